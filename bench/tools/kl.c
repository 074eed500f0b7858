/* kl WANT GOT: two dumps of `larql run --logits-out` over the same tokens, as one line of
 * JSON: the share of positions with the same first choice, and the mean Kullback-Leibler
 * divergence of GOT from WANT in nats. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/fidelity.h"

static FILE *dump_open(const char *path, uint32_t head[3]) /* version, vocabulary, positions */
{
    char magic[4];
    FILE *f = fopen(path, "rb");
    if (f && (fread(magic, sizeof magic, 1, f) != 1 || memcmp(magic, "LQLG", 4) != 0 || fread(head, 12, 1, f) != 1)) {
        fclose(f);
        f = NULL;
    }
    if (!f)
        fprintf(stderr, "kl: %s: not a dump of logits\n", path);
    return f;
}

int main(int argc, char **argv)
{
    uint32_t want_head[3], got_head[3], want_first, got_first;
    FILE *want_file = argc == 3 ? dump_open(argv[1], want_head) : NULL;
    FILE *got_file = argc == 3 ? dump_open(argv[2], got_head) : NULL;
    float *want = NULL, *got = NULL;
    double same = 0, divergence = 0;
    int rc = 1;
    if (!want_file || !got_file || memcmp(want_head, got_head, sizeof want_head) != 0 || want_head[1] == 0 ||
        want_head[2] == 0) {
        fprintf(stderr, "usage: kl WANT GOT: dumps of one model over the same tokens\n");
        goto out;
    }
    size_t vocab = want_head[1], positions_n = want_head[2];
    want = calloc(vocab, sizeof *want);
    got = calloc(vocab, sizeof *got);
    for (size_t p = 0; p < positions_n; p++) {
        if (!want || !got || fread(want, sizeof *want, vocab, want_file) != vocab ||
            fread(got, sizeof *got, vocab, got_file) != vocab) {
            fprintf(stderr, "kl: position %zu of %zu is missing\n", p, positions_n);
            goto out;
        }
        fidelity_top(want, vocab, 1, &want_first);
        fidelity_top(got, vocab, 1, &got_first);
        same += want_first == got_first;
        divergence += fidelity_kl(want, fidelity_log_sum(want, vocab), got, vocab);
    }
    printf("{\"positions\":%zu,\"same_first\":%.5f,\"kl\":%.3g}\n", positions_n, same / (double)positions_n,
           divergence / (double)positions_n);
    rc = 0;
out:
    if (want_file)
        fclose(want_file);
    if (got_file)
        fclose(got_file);
    free(want);
    free(got);
    return rc;
}
