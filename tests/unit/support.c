/* support: what unit tests share. */
#include "tests/unit/support.h"

#include <stdio.h>
#include <stdlib.h>

int run_suite(Suite *s)
{
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

char *read_text(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        ck_abort_msg("cannot open %s (tests run from the project's root)", path);
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    ck_assert_int_ge(size, 0);
    rewind(f);
    char *p = malloc((size_t)size + 1);
    ck_assert_ptr_nonnull(p);
    ck_assert_uint_eq(fread(p, 1, (size_t)size, f), (size_t)size);
    p[size] = '\0';
    fclose(f);
    if (n)
        *n = (size_t)size;
    return p;
}

size_t unhex(const char *hex, uint8_t *out)
{
    size_t n = 0;
    for (unsigned v; sscanf(hex, "%2x", &v) == 1; hex += 2)
        out[n++] = (uint8_t)v;
    return n;
}
