/* bench_play: the steps; see bench.h.
 *
 * Workers take each turn (one token through one lane) together, so that a format's latency under
 * --concurrent is that of N callers of this format and not of a mix. A worker that fails says in
 * which turn and comes to one barrier more; there all the others see it and end too. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/bench.h"
#include "client/cmd.h"
#include "common/clock.h"

/* ---- turns ------------------------------------------------------------------------------------ */

/* False: a worker failed in an earlier turn; there will be no other turn. */
static bool turn_begin(struct bench_worker *w)
{
    struct bench *b = w->b;
    w->turn++;
    if (b->workers_n > 1)
        pthread_barrier_wait(&b->barrier);
    w->stopped = atomic_load(&b->failed_turn) < w->turn;
    return !w->stopped;
}

static void turn_failed(struct bench_worker *w)
{
    size_t seen = atomic_load(&w->b->failed_turn);
    while (seen > w->turn && !atomic_compare_exchange_weak(&w->b->failed_turn, &seen, w->turn))
        ;
}

/* ---- one step ---------------------------------------------------------------------------------- */

static void count_calls(struct bench_lane *l, const struct lq_ffn_stats *before)
{
    struct lq_ffn_stats now, *to = &l->counted;
    lq_ffn_stats(l->ffn, &now);
    to->calls += now.calls - before->calls;
    to->f32_up_calls += now.f32_up_calls - before->f32_up_calls;
    to->f32_down_calls += now.f32_down_calls - before->f32_down_calls;
    to->bytes_up += now.bytes_up - before->bytes_up;
    to->bytes_down += now.bytes_down - before->bytes_down;
    to->range_fallbacks += now.range_fallbacks - before->range_fallbacks;
    to->saturated_values += now.saturated_values - before->saturated_values;
    to->retries += now.retries - before->retries;
}

/* step SIZE_MAX: not measured. */
static enum lq_err feed(struct bench_lane *l, uint32_t id, size_t step)
{
    struct bench_worker *w = l->worker;
    struct lq_ffn_stats before;
    lq_ffn_stats(l->ffn, &before);
    uint64_t start_us = clock_us();
    enum lq_err rc = decoder_feed(l->decoder, &id, 1, &l->logits, NULL, NULL, &w->fault);
    if (rc || step == SIZE_MAX)
        return rc;
    l->column->ms[w->index * w->b->steps_n + step] = (double)(clock_us() - start_us) / 1000.0;
    count_calls(l, &before);
    return LQ_OK;
}

static enum lq_err note_mismatch(struct bench_column *c, size_t step, const uint32_t *want, const uint32_t *got,
                                 size_t k, struct lq_fault *fault)
{
    c->mismatches_n++;
    if (c->mismatch)
        return LQ_OK;
    if (!(c->mismatch = calloc(1, sizeof *c->mismatch)))
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    c->mismatch->step = step;
    memcpy(c->mismatch->want, want, k * sizeof *want);
    memcpy(c->mismatch->got, got, k * sizeof *got);
    return LQ_OK;
}

/* Every lane's logits of the step beside lane 0's. */
static enum lq_err compare(struct bench_worker *w, size_t step)
{
    struct bench *b = w->b;
    const struct bench_lane *f32 = &w->lanes[0];
    size_t vocab = b->arch.vocab_n, at = w->index * b->steps_n + step, five = vocab < 5 ? vocab : 5;
    size_t k = b->top_n < vocab ? b->top_n : vocab, most = k > five ? k : five;
    uint32_t want[FIDELITY_TOP_MAX], got[FIDELITY_TOP_MAX];
    double log_sum = fidelity_log_sum(f32->logits, vocab);
    enum lq_err rc = LQ_OK;
    fidelity_top(f32->logits, vocab, most, want);
    for (size_t i = 0; i < b->columns_n && !rc; i++) {
        struct bench_column *c = &b->columns[i];
        fidelity_top(w->lanes[i].logits, vocab, most, got);
        c->kl[at] = i == 0 ? 0 : fidelity_kl(f32->logits, log_sum, w->lanes[i].logits, vocab);
        c->top1[at] = want[0] == got[0];
        c->top5[at] = fidelity_top_match(want, got, five, b->o->ordered);
        c->topk[at] = fidelity_top_match(want, got, k, b->o->ordered);
        if (!c->topk[at] && w->index == 0)
            rc = note_mismatch(c, step, want, got, k, &w->fault);
    }
    return rc;
}

static void progress(const struct bench *b, size_t done, size_t all, const char *what)
{
    enum { CELLS = 30 };
    char bar[CELLS + 1];
    if (b->o->quiet || !isatty(STDERR_FILENO))
        return;
    size_t full = all ? done * CELLS / all : CELLS;
    for (size_t i = 0; i < CELLS; i++)
        bar[i] = i < full ? '#' : '.';
    bar[CELLS] = '\0';
    fprintf(stderr, "\r%s [%s] %zu of %zu\033[K", what, bar, done, all);
    if (done == all)
        fputs("\r\033[K", stderr);
}

/* ---- passages ------------------------------------------------------------------------------------ */

static void begin(struct bench_worker *w)
{
    for (size_t i = 0; i < w->b->columns_n; i++)
        decoder_reset(w->lanes[i].decoder);
}

/* Teacher-forced: all lanes take the ids, then what f32 chooses. The first `most` steps, measured
 * ones only with `count`. */
static enum lq_err play_forced(struct bench_worker *w, const struct bench_passage *p, size_t most, bool count)
{
    struct bench *b = w->b;
    size_t n = p->measured_from + p->steps_n;
    begin(w);
    for (size_t i = 0; i < n && i < most; i++) {
        bool measured = count && i >= p->measured_from;
        size_t step = measured ? p->step_at + i - p->measured_from : SIZE_MAX;
        uint32_t id = i < p->ids_n ? p->ids[i] : w->lanes[0].chosen;
        for (size_t k = 0; k < b->columns_n; k++) { /* each format goes first now and then */
            if (!turn_begin(w))
                return LQ_OK;
            enum lq_err rc = feed(&w->lanes[(i + k) % b->columns_n], id, step);
            if (rc)
                return rc;
        }
        fidelity_top(w->lanes[0].logits, b->arch.vocab_n, 1, &w->lanes[0].chosen);
        enum lq_err rc = measured ? compare(w, step) : LQ_OK;
        if (!rc && count && w->index == 0)
            rc = bench_measure_layers(w, measured);
        if (rc)
            return rc;
        if (measured && w->index == 0)
            progress(b, step + 1, b->steps_n, "step");
    }
    return LQ_OK;
}

static void *work(void *arg)
{
    struct bench_worker *w = arg;
    struct bench *b = w->b;
    pthread_mutex_lock(&b->gate); /* one missing at the barrier would stop all */
    pthread_mutex_unlock(&b->gate);
    if (atomic_load(&b->failed_turn) == 0)
        return NULL;
    if (b->o->warmup)
        w->rc = play_forced(w, &b->passages[0], (size_t)b->o->warmup, false);
    for (size_t i = 0; i < b->passages_n && !w->rc && !w->stopped; i++)
        w->rc = play_forced(w, &b->passages[i], SIZE_MAX, true);
    if (w->rc)
        turn_failed(w);
    if (!w->stopped) /* one that fails in the last turn is not left alone there */
        (void)turn_begin(w);
    return NULL;
}

/* Every column goes on with its own choices, until it has parted from f32's. */
static enum lq_err play_free(struct bench_worker *w)
{
    struct bench *b = w->b;
    const struct bench_passage *p = &b->free_passage;
    size_t together = b->columns_n - 1;
    begin(w);
    for (size_t i = 0; i < p->measured_from + p->steps_n && together > 0; i++) {
        for (size_t k = 0; k < b->columns_n; k++) {
            struct bench_lane *l = &w->lanes[k];
            if (l->column->divergence >= 0)
                continue;
            enum lq_err rc = feed(l, i < p->ids_n ? p->ids[i] : l->chosen, SIZE_MAX);
            if (rc)
                return rc;
            fidelity_top(l->logits, b->arch.vocab_n, 1, &l->chosen);
            if (i < p->measured_from)
                continue;
            l->column->free_n = i - p->measured_from + 1;
            if (l->chosen != w->lanes[0].chosen) {
                l->column->divergence = (int64_t)(i - p->measured_from);
                together--;
            }
        }
        if (i >= p->measured_from)
            progress(b, i - p->measured_from + 1, p->steps_n, "free");
    }
    if (together == 0 && b->columns_n > 1)
        progress(b, p->steps_n, p->steps_n, "free");
    return LQ_OK;
}

/* ---- all of it ------------------------------------------------------------------------------------ */

static int say(enum lq_err rc, const char *text)
{
    fprintf(stderr, "larql bench: %s\n", text);
    return rc == LQ_SHARD_DOWN ? CMD_EXIT_GRID : CMD_EXIT_FAILED;
}

static int run_workers(struct bench *b)
{
    size_t made = 1;
    pthread_mutex_lock(&b->gate);
    while (made < b->workers_n && pthread_create(&b->workers[made].thread, NULL, work, &b->workers[made]) == 0)
        made++;
    bool all = made == b->workers_n;
    if (!all)
        atomic_store(&b->failed_turn, 0);
    pthread_mutex_unlock(&b->gate);
    work(&b->workers[0]);
    for (size_t i = 1; i < made; i++)
        pthread_join(b->workers[i].thread, NULL);
    if (!all) {
        fprintf(stderr, "larql bench: cannot start %zu threads\n", b->workers_n);
        return CMD_EXIT_FAILED;
    }
    for (size_t i = 0; i < b->workers_n; i++)
        if (b->workers[i].rc)
            return say(b->workers[i].rc, b->workers[i].fault.text);
    return 0;
}

/* A grid without a format is asked in f32 by the library: here that would be a wrong figure. */
static int check_format(const struct bench_lane *l)
{
    const struct lq_ffn_stats *s = &l->counted;
    bool up = s->f32_up_calls == s->calls && s->range_fallbacks == 0, down = s->f32_down_calls == s->calls;
    if (l->column->policy || l->column->format == WIRE_F32 || s->calls == 0 || (!up && !down))
        return 0;
    fprintf(stderr, "larql bench: %s %s no %s: leave it out of --wire, or let the servers have it\n",
            lq_ffn_url(l->ffn), up ? "takes" : "answers in", l->column->name);
    return CMD_EXIT_GRID;
}

int bench_play(struct bench *b)
{
    int code = run_workers(b);
    for (size_t i = 0; i < b->columns_n && !code; i++) {
        struct bench_column *c = &b->columns[i];
        code = check_format(&b->workers[0].lanes[i]);
        for (size_t k = 0; k < b->workers_n; k++) {
            const struct lq_ffn_stats *s = &b->workers[k].lanes[i].counted;
            c->bytes_up += s->bytes_up;
            c->bytes_down += s->bytes_down;
            c->range_fallbacks += s->range_fallbacks;
            c->saturated += s->saturated_values;
            c->retries += s->retries;
        }
    }
    if (code)
        return code;
    enum lq_err rc = play_free(&b->workers[0]);
    return rc ? say(rc, b->workers[0].fault.text) : 0;
}
