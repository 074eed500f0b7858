/* tokenizer_spm: SentencePiece's BPE by scores: characters, then again and again the
 * neighbours whose union has the best score; what is left outside the vocabulary
 * becomes byte tokens. Also the merge queue, which byte-level BPE shares. */
#include <stdlib.h>
#include <string.h>

#include "client/tokenizer_impl.h"
#include "proto/bytes.h"

/* ---- the queue: a binary heap ---------------------------------------------------------- */

static bool before(const struct merge *a, const struct merge *b)
{
    return a->key != b->key ? a->key < b->key : a->left < b->left;
}

bool merge_push(struct merge_heap *h, struct merge m)
{
    if (h->n == h->cap) {
        size_t cap = h->cap ? 2 * h->cap : 64;
        struct merge *p = realloc(h->p, cap * sizeof *p);
        if (!p)
            return false;
        h->p = p;
        h->cap = cap;
    }
    size_t i = h->n++;
    for (; i > 0 && before(&m, &h->p[(i - 1) / 2]); i = (i - 1) / 2)
        h->p[i] = h->p[(i - 1) / 2];
    h->p[i] = m;
    return true;
}

bool merge_pop(struct merge_heap *h, struct merge *out)
{
    if (h->n == 0)
        return false;
    *out = h->p[0];
    struct merge last = h->p[--h->n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= h->n)
            break;
        if (child + 1 < h->n && before(&h->p[child + 1], &h->p[child]))
            child++;
        if (!before(&h->p[child], &last))
            break;
        h->p[i] = h->p[child];
        i = child;
    }
    h->p[i] = last;
    return true;
}

/* ---- SentencePiece ------------------------------------------------------------------------ */

/* As long as the first byte says, as far as continuation bytes go: in text that is no
 * UTF-8 a stray byte is a character, and never swallows the next one. */
static uint32_t char_bytes(const char *p, size_t left)
{
    unsigned char c = (unsigned char)*p;
    uint32_t want = c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4, n = 1;
    while (n < want && n < left && ((unsigned char)p[n] & 0xc0) == 0x80)
        n++;
    return n;
}

static bool offer(const struct tokenizer *t, const struct symbol *s, struct merge_heap *h, uint32_t left,
                  uint32_t right)
{
    if (left == TOKEN_NONE || right == TOKEN_NONE)
        return true;
    uint32_t id = token_find(t, s[left].p, s[left].n + s[right].n);
    if (id == TOKEN_NONE)
        return true;
    return merge_push(h, (struct merge){.key = -lef32_get(t->scores + 4 * (size_t)id),
                                        .left = left,
                                        .right = right,
                                        .left_n = s[left].n,
                                        .right_n = s[right].n});
}

static void emit(const struct tokenizer *t, const struct symbol *s, struct ids *out)
{
    uint32_t id = token_find(t, s->p, s->n);
    if (id != TOKEN_NONE) {
        ids_push(out, id);
        return;
    }
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t byte = t->byte_id[(unsigned char)s->p[i]];
        if (byte != TOKEN_NONE)
            ids_push(out, byte);
        else if (t->unk >= 0)
            ids_push(out, (uint32_t)t->unk);
    }
}

enum lq_err spm_encode(const struct tokenizer *t, const char *text, size_t n, struct ids *out, struct lq_fault *fault)
{
    struct merge_heap h = {0};
    struct symbol *s = malloc((n ? n : 1) * sizeof *s);
    uint32_t count = 0;
    bool ok = s != NULL;
    for (size_t at = 0; ok && at < n; count++) {
        uint32_t len = char_bytes(text + at, n - at);
        s[count] = (struct symbol){text + at, len, count ? count - 1 : TOKEN_NONE, TOKEN_NONE, 0};
        if (count)
            s[count - 1].next = count;
        at += len;
    }
    for (uint32_t i = 1; ok && i < count; i++)
        ok = offer(t, s, &h, i - 1, i);
    struct merge m;
    while (ok && merge_pop(&h, &m)) {
        struct symbol *l = &s[m.left], *r = &s[m.right];
        if (l->n != m.left_n || r->n != m.right_n || l->n == 0 || r->n == 0)
            continue; /* one of them has merged meanwhile */
        l->n += r->n;
        r->n = 0;
        l->next = r->next;
        if (l->next != TOKEN_NONE)
            s[l->next].prev = m.left;
        ok = offer(t, s, &h, l->prev, m.left) && offer(t, s, &h, m.left, l->next);
    }
    for (uint32_t i = count ? 0 : TOKEN_NONE; ok && i != TOKEN_NONE; i = s[i].next)
        emit(t, &s[i], out);
    free(h.p);
    free(s);
    return ok ? LQ_OK : lq_fail(fault, LQ_NOMEM, "out of memory for a text of %zu bytes", n);
}
