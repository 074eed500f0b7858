/* err: see err.h. */
#include "proto/err.h"

#include <stdarg.h>
#include <stdio.h>

static const struct {
    int status;
    const char *word;
} table[] = {
#define X(name, http, word) {http, word},
    LQ_ERR_MAP(X)
#undef X
};

int lq_err_status(enum lq_err code)
{
    return (unsigned)code < LQ_ERRS_N ? table[code].status : 500;
}

const char *lq_err_word(enum lq_err code)
{
    return (unsigned)code < LQ_ERRS_N ? table[code].word : "unknown";
}

enum lq_err lq_err_of_status(int status)
{
    for (int i = LQ_OK + 1; i < LQ_ERRS_N; i++)
        if (table[i].status == status)
            return (enum lq_err)i;
    return LQ_BAD_ANSWER;
}

static void fill(struct lq_fault *f, enum lq_err code, size_t at_byte, const char *fmt, va_list ap)
{
    if (!f)
        return;
    f->code = code;
    f->at_byte = at_byte;
    (void)vsnprintf(f->text, sizeof f->text, fmt, ap); /* cut when long, by design */
}

enum lq_err lq_fail(struct lq_fault *f, enum lq_err code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fill(f, code, LQ_NO_BYTE, fmt, ap);
    va_end(ap);
    return code;
}

enum lq_err lq_fail_at(struct lq_fault *f, enum lq_err code, size_t at_byte, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fill(f, code, at_byte, fmt, ap);
    va_end(ap);
    return code;
}
