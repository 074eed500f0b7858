/* run: from the model file to the last token.
 *
 *   open -> connect | local -> prompt ids -> decoder -> prefill in chunks -> [pick, print, feed]*
 */
#include "client/run.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/chat.h"
#include "client/cmd.h"
#include "client/wire_policy.h"
#include "common/clock.h"
#include "model/vindex.h"

enum { PROMPT_BYTES_MAX = 64 << 20, PIECE_BYTES = 1024 };

static volatile sig_atomic_t interrupted;

/* The first ends the text after the token that is under way; the second ends at once. */
static void on_signal(int sig)
{
    (void)sig;
    if (interrupted)
        _exit(CMD_EXIT_INTERRUPTED);
    interrupted = 1;
}

static int fail(int code, const char *text)
{
    fprintf(stderr, "larql run: %s\n", text);
    return code;
}

static int code_of(enum lq_err rc)
{
    return rc == LQ_USAGE                               ? CMD_EXIT_USAGE
           : rc == LQ_BAD_MODEL || rc == LQ_UNSUPPORTED ? CMD_EXIT_MODEL
           : rc == LQ_SHARD_DOWN                        ? CMD_EXIT_GRID
                                                        : CMD_EXIT_FAILED;
}

/* ---- the FFN ------------------------------------------------------------------------------------ */

static enum lq_err ffn_here(void *arg, uint32_t layer, const float *x, size_t rows_n, float *out,
                            struct lq_fault *fault)
{
    (void)fault;
    struct run *r = arg;
    ffn_forward(r->local, r->compute, layer, x, rows_n, r->local_scratch, out);
    return LQ_OK;
}

static enum lq_err ffn_there(void *arg, uint32_t layer, const float *x, size_t rows_n, float *out,
                             struct lq_fault *fault)
{
    struct run *r = arg;
    char why[LQ_WHY_BYTES];
    if (r->policy)
        (void)lq_ffn_set_wire(r->remote, (enum lq_ffn_wire)r->policy[layer]);
    if (lq_ffn_forward(r->remote, layer, x, (uint32_t)rows_n, out, why) == LQ_FFN_OK)
        return LQ_OK;
    return lq_fail(fault, LQ_SHARD_DOWN, "%s", why);
}

static int connect_remote(struct run *r)
{
    static const char *const names[] = {"f32", "f16", "i8"};
    struct lq_ffn_opts opts;
    char why[LQ_WHY_BYTES];
    lq_ffn_opts_init(&opts);
    opts.deadline_ms = (uint64_t)r->o->deadline_ms;
    opts.busy_poll_us = (uint64_t)r->o->busy_poll_us;
    opts.api_key_file = r->o->api_key_file; /* else LARQL_API_KEY */
    opts.model_id = r->o->model_id;
    opts.tls_ca = r->o->tls_ca;
    opts.tls_cert = r->o->tls_cert;
    opts.tls_key = r->o->tls_key;
    if (r->o->wire) {
        int w = 0;
        while (w < 3 && strcmp(r->o->wire, names[w]) != 0)
            w++;
        if (w == 3) {
            fprintf(stderr, "larql run: --wire %s: use f32, f16 or i8\n", r->o->wire);
            return CMD_EXIT_USAGE;
        }
        opts.wire = (enum lq_ffn_wire)w;
    }
    struct lq_fault fault;
    if (r->o->wire_policy && wire_policy_read(r->o->wire_policy, r->arch.layers_n, r->arch.hidden_n, &r->policy,
                                              &fault) != LQ_OK)
        return fail(CMD_EXIT_USAGE, fault.text);
    enum lq_ffn_rc rc = lq_ffn_connect(r->o->ffn, &opts, &r->remote, why);
    if (rc)
        return fail(rc == LQ_FFN_USAGE ? CMD_EXIT_USAGE : CMD_EXIT_GRID, why);
    if (lq_ffn_hidden(r->remote) != r->arch.hidden_n || lq_ffn_layers(r->remote) != r->arch.layers_n) {
        fprintf(stderr, "larql run: %s serves %u layers of hidden size %u, %s has %u of %u: not the same model\n",
                r->o->ffn, lq_ffn_layers(r->remote), lq_ffn_hidden(r->remote), r->o->model_path, r->arch.layers_n,
                r->arch.hidden_n);
        return CMD_EXIT_GRID;
    }
    return 0;
}

/* ---- opening -------------------------------------------------------------------------------------- */

static int open_model(struct run *r)
{
    struct lq_fault fault;
    bool here = strcmp(r->o->ffn, "local") == 0;
    const struct model_want want = {.ffn = here, .ffn_last = UINT32_MAX, .client = true};
    enum mat_activations activations;
    enum lq_err rc = mat_activations_read(r->o->activations, &activations, &fault);
    if (!rc)
        rc = model_open(r->o->model_path, &want, &r->gguf, &fault);
    if (!rc)
        rc = arch_read(r->gguf, &r->arch, &fault);
    if (!rc)
        rc = tokenizer_new(r->gguf, &r->tokenizer, &fault);
    if (!rc && here)
        rc = ffn_new(r->gguf, &r->arch, 0, r->arch.layers_n - 1, &r->local, &fault);
    if (rc)
        return fail(code_of(rc), fault.text);
    size_t wide = r->arch.heads_n * (size_t)r->arch.head_dim;
    wide = r->arch.hidden_n > wide ? r->arch.hidden_n : wide;
    wide = here && r->arch.ffn_n > wide ? r->arch.ffn_n : wide;
    rc = compute_new((size_t)r->o->threads, wide, activations, &r->compute, &fault);
    if (rc)
        return fail(code_of(rc), fault.text);
    if (!here)
        return connect_remote(r);
    if (r->o->wire || r->o->wire_policy)
        return fail(CMD_EXIT_USAGE, "--wire and --wire-policy have no meaning with --ffn local");
    r->local_scratch = malloc(ffn_scratch_floats(r->local, (size_t)r->o->chunk) * sizeof(float));
    return r->local_scratch ? 0 : fail(CMD_EXIT_FAILED, "out of memory");
}

/* A whole file, terminated; "-": standard input. */
static char *read_all(const char *path, size_t *n)
{
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    char *p = NULL;
    *n = 0;
    for (size_t cap = 0; f && !ferror(f) && !feof(f);) {
        if (*n + 1 >= cap) {
            cap = cap ? 2 * cap : 65536;
            char *grown = cap <= PROMPT_BYTES_MAX ? realloc(p, cap) : NULL;
            if (!grown) {
                errno = cap > PROMPT_BYTES_MAX ? EFBIG : ENOMEM;
                break;
            }
            p = grown;
        }
        *n += fread(p + *n, 1, cap - *n - 1, f);
    }
    bool ok = f && feof(f) && !ferror(f);
    if (!ok)
        fprintf(stderr, "larql run: cannot read %s: %s\n", path, strerror(errno));
    if (f && f != stdin)
        fclose(f);
    if (!ok) {
        free(p);
        return NULL;
    }
    p[*n] = '\0';
    return p;
}

static int read_teacher(struct run *r)
{
    size_t n;
    char *text = read_all(r->o->teacher_path, &n), *save, *end;
    if (!text)
        return CMD_EXIT_USAGE;
    r->prompt = malloc((n / 2 + 1) * sizeof *r->prompt);
    int code = r->prompt ? 0 : fail(CMD_EXIT_FAILED, "out of memory");
    for (char *w = strtok_r(text, " \t\r\n,", &save); w && !code; w = strtok_r(NULL, " \t\r\n,", &save)) {
        unsigned long id = strtoul(w, &end, 10);
        if (*end || id >= r->arch.vocab_n) {
            fprintf(stderr, "larql run: %s: '%.20s' is no token id below %u\n", r->o->teacher_path, w,
                    r->arch.vocab_n);
            code = CMD_EXIT_USAGE;
        } else {
            r->prompt[r->prompt_n++] = (uint32_t)id;
        }
    }
    free(text);
    return code;
}

static int read_prompt(struct run *r)
{
    struct lq_fault fault;
    size_t n;
    char *file = NULL, *chat = NULL;
    const char *text = r->o->prompt;
    if (r->o->teacher_path)
        return read_teacher(r);
    if (r->o->prompt_file && !(text = file = read_all(r->o->prompt_file, &n)))
        return CMD_EXIT_USAGE;
    enum lq_err rc = LQ_OK;
    n = file ? n : strlen(text);
    if (r->o->chat) {
        rc = chat_format(r->gguf, r->o->system, text, &chat, &fault);
        text = chat;
        n = rc ? 0 : strlen(chat);
    }
    if (!rc)
        rc = tokenizer_encode(r->tokenizer, text, n, true, r->o->chat, &r->prompt, &r->prompt_n, &fault);
    free(file);
    free(chat);
    return rc ? fail(code_of(rc), fault.text) : 0;
}

static int make_decoder(struct run *r)
{
    struct lq_fault fault;
    const struct sampler_opts so = {.temperature = (float)r->o->temperature,
                                    .top_k = (uint32_t)r->o->top_k,
                                    .top_p = (float)r->o->top_p,
                                    .seed = (uint64_t)r->o->seed};
    size_t make = r->o->teacher_path ? 0 : (size_t)r->o->tokens, need = r->prompt_n + make;
    if (r->prompt_n == 0)
        return fail(CMD_EXIT_USAGE, "the prompt is empty and the model has no token to begin with");
    if (r->o->context && (size_t)r->o->context < need) {
        fprintf(stderr, "larql run: --context %lld is less than %zu tokens of prompt and %zu to make\n",
                (long long)r->o->context, r->prompt_n, make);
        return CMD_EXIT_USAGE;
    }
    if (need > UINT32_MAX / 2)
        return fail(CMD_EXIT_USAGE, "the prompt is too long");
    if (need > r->arch.context_n)
        fprintf(stderr, "larql run: warning: %zu tokens, the model was trained on %u\n", need, r->arch.context_n);
    r->made = malloc((make + 1) * sizeof *r->made);
    r->step_us = malloc((make + 1) * sizeof *r->step_us);
    if (!r->made || !r->step_us)
        return fail(CMD_EXIT_FAILED, "out of memory");
    enum lq_err rc =
        decoder_new(r->gguf, &r->arch, r->compute, r->o->context ? (uint32_t)r->o->context : (uint32_t)need,
                    (uint32_t)r->o->chunk, r->remote ? ffn_there : ffn_here, r, &r->decoder, &fault);
    if (!rc)
        rc = sampler_new(&so, r->arch.vocab_n, &r->sampler, &fault);
    return rc ? fail(code_of(rc), fault.text) : 0;
}

/* ---- generating ---------------------------------------------------------------------------------------- */

static int feed(struct run *r, const uint32_t *ids, size_t n, const float **logits)
{
    struct lq_fault fault;
    bool every = r->logits_file && r->o->teacher_path;
    enum lq_err rc = decoder_feed(r->decoder, ids, n, logits, every ? logits_add : NULL, r, &fault);
    if (rc)
        return fail(code_of(rc), fault.text);
    if (r->logits_file && !every)
        logits_add(r, decoder_pos(r->decoder) - 1, *logits);
    return 0;
}

static int prefill(struct run *r, const float **logits)
{
    bool show = !r->o->quiet && isatty(STDERR_FILENO) && r->prompt_n > (size_t)r->o->chunk;
    uint64_t start_us = clock_us();
    int code = 0;
    for (size_t at = 0; at < r->prompt_n && !code && !interrupted; at += (size_t)r->o->chunk) {
        size_t n = r->prompt_n - at < (size_t)r->o->chunk ? r->prompt_n - at : (size_t)r->o->chunk;
        code = feed(r, r->prompt + at, n, logits);
        if (show)
            fprintf(stderr, "\rprompt %zu of %zu tokens", at + n, r->prompt_n);
    }
    if (show)
        fputs("\r\033[K", stderr);
    r->prefill_us = clock_us() - start_us;
    return code ? code : interrupted ? CMD_EXIT_INTERRUPTED : 0;
}

/* Prints whole UTF-8 characters; the beginning of one waits in buf. */
static void print_piece(char *buf, size_t *n)
{
    size_t keep = 0;
    for (size_t back = 1; back <= 3 && back <= *n; back++) {
        unsigned char c = (unsigned char)buf[*n - back];
        if (c >= 0xc0) { /* a first byte: are its followers here? */
            size_t need = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
            keep = back < need ? back : 0;
            break;
        }
        if (c < 0x80)
            break;
    }
    fwrite(buf, 1, *n - keep, stdout);
    fflush(stdout);
    memmove(buf, buf + *n - keep, keep);
    *n = keep;
}

static int generate(struct run *r, const float *logits)
{
    char buf[PIECE_BYTES + 8];
    size_t held = 0;
    int code = 0;
    while (r->made_n < (size_t)r->o->tokens && !code && !interrupted) {
        uint32_t id = sampler_pick(r->sampler, logits);
        r->made[r->made_n++] = id;
        if (!r->o->ignore_eos && tokenizer_is_end(r->tokenizer, id))
            break;
        held += tokenizer_piece(r->tokenizer, id, false, buf + held, PIECE_BYTES);
        print_piece(buf, &held);
        if (r->made_n == (size_t)r->o->tokens)
            break;
        uint64_t start_us = clock_us();
        code = feed(r, &id, 1, &logits);
        r->step_us[r->steps_n++] = clock_us() - start_us;
    }
    fwrite(buf, 1, held, stdout);
    if (isatty(STDOUT_FILENO))
        putchar('\n');
    if (fflush(stdout) != 0 || ferror(stdout))
        return fail(CMD_EXIT_FAILED, "cannot write to stdout");
    return code ? code : interrupted ? CMD_EXIT_INTERRUPTED : 0;
}

int run_all(struct run *r)
{
    const struct sigaction act = {.sa_handler = on_signal};
    const float *logits = NULL;
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    int code = open_model(r);
    if (!code)
        code = read_prompt(r);
    if (!code)
        code = make_decoder(r);
    if (!code && r->o->logits_path && !logits_open(r, r->o->logits_path))
        code = CMD_EXIT_FAILED;
    if (!code)
        code = prefill(r, &logits);
    if (!code && !r->o->teacher_path)
        code = generate(r, logits);
    if (r->logits_file && !logits_close(r) && !code)
        code = CMD_EXIT_FAILED;
    if ((!code || code == CMD_EXIT_INTERRUPTED) && r->decoder && !r->o->quiet)
        report_print(r);
    if (!code && r->o->stats_path && !report_write(r, r->o->stats_path))
        code = CMD_EXIT_FAILED;
    return code;
}

void run_release(struct run *r)
{
    decoder_free(r->decoder);
    sampler_free(r->sampler);
    lq_ffn_close(r->remote);
    compute_free(r->compute);
    ffn_free(r->local);
    tokenizer_free(r->tokenizer);
    gguf_free(r->gguf);
    free(r->policy);
    free(r->local_scratch);
    free(r->prompt);
    free(r->made);
    free(r->step_us);
    *r = (struct run){.o = r->o};
}
