/* Negotiation as one table: what comes in, what is chosen. */
#include "proto/negotiate.h"

#include <string.h>

#include "tests/unit/support.h"

#define F32 "application/x-larql-ffn"
#define F16 F32 "-f16"
#define I8 F32 "-i8"

enum { ALL = 3, NO_F16 = 2, NO_I8 = 1, COMPACT = 4, REFUSED = -1, JSON = -2 };

static const struct {
    const char *type, *accept;
    int switches, want; /* want: the answer's format */
    bool f32_too;
} cases[] = {
    /* 1: no Accept */
    {F32, NULL, ALL, WIRE_F32, true},
    {F16, NULL, ALL, WIRE_F32, true},
    {F16, "", ALL, WIRE_F32, true},
    {F16, "  ", ALL, WIRE_F32, true},
    /* the named one */
    {F32, F16, ALL, WIRE_F16, false},
    {F32, I8, ALL, WIRE_I8, false},
    {F32, "Application/X-Larql-FFN-F16", ALL, WIRE_F16, false},
    /* 2: whole types, parameters, malformed members, q = 0 */
    {F32, F16 "x", ALL, WIRE_F32, false},
    {F32, F16 "; a=b; q=0.5", ALL, WIRE_F16, false},
    {F32, F16 ";a=\"x,y;q=0\";q=0.5, " F32 ";q=0.4", ALL, WIRE_F16, true},
    {F32, F16 ";q=0", ALL, WIRE_F32, false},
    {F32, F16 ";q=0.000, " I8, ALL, WIRE_I8, false},
    {F32, F16 ";q=2, " I8 ";q=0.1", ALL, WIRE_I8, false},
    {F32, F16 ";q=0.1234, " I8 ";q=0.1", ALL, WIRE_I8, false},
    {F32, F16 ";q=, " I8 ";q=0.1", ALL, WIRE_I8, false},
    {F32, F16 ";q=1.001", ALL, WIRE_F32, false},
    {F32, F16 ";q=1.", ALL, WIRE_F16, false},
    {F32, F16 ";Q=0.5", ALL, WIRE_F16, false},
    {F32, F16 ";;q=0.5", ALL, WIRE_F16, false},
    {F32, ",, ," F16 ",", ALL, WIRE_F16, false},
    {F32, F16 ";a=\"", ALL, WIRE_F32, false},
    {F32, "text/html, " F16 ";q=0.1", ALL, WIRE_F16, false},
    {F32, F16 "\t;\tq=0.5\t,\t" I8 ";q=0.9", ALL, WIRE_I8, false},
    /* 3: wildcards name f32 only; i8 only when named */
    {F32, "*/*", ALL, WIRE_F32, true},
    {F32, "application/*", ALL, WIRE_F32, true},
    {F32, "*/*, " F16 ";q=0.5", ALL, WIRE_F32, true},
    {F32, "*/*;q=0.4, " F16 ";q=0.5", ALL, WIRE_F16, true},
    {F32, F32 ";q=0, */*", ALL, WIRE_F32, false},
    {F32, "*/*;q=0, " F16, ALL, WIRE_F16, false},
    /* 4: highest q, then precision; LARQL's list, both ways */
    {F32, I8 ", " F16 ", " F32, ALL, WIRE_F32, true},
    {F32, I8 ", " F16 ", " F32, ALL | COMPACT, WIRE_I8, true},
    {F32, I8 ", " F16, ALL, WIRE_F16, false},
    {F32, I8 ", " F16, ALL | COMPACT, WIRE_I8, false},
    {F32, I8 ";q=0.5, " F16 ";q=0.6", ALL | COMPACT, WIRE_F16, false},
    {F32, F16 ", " F32 ";q=0.5", ALL, WIRE_F16, true},
    {F32, I8 ", " F16 ";q=0.9, " F32 ";q=0.5", ALL, WIRE_I8, true},
    /* 5: no candidate; twice counts first */
    {F32, I8, NO_I8, WIRE_F32, false},
    {F32, I8 ", " F16 ";q=0.9", NO_I8, WIRE_F16, false},
    {F32, F16, NO_F16, WIRE_F32, false},
    {F32, "text/html", ALL, WIRE_F32, false},
    {F32, F32 ";q=0", ALL, WIRE_F32, false},
    {F32, F16 ";q=0, " F16, ALL, WIRE_F32, false},
    {F32, F16 ";q=0.2, " I8 ";q=0.3, " F16, ALL, WIRE_I8, false},
    /* 6: i8 bodies, switches */
    {I8, I8, ALL, WIRE_I8, false},
    {I8, F16 ", " I8 ";q=0.1", ALL, WIRE_F16, false},
    {I8, NULL, ALL, REFUSED, false},
    {I8, F16, ALL, REFUSED, false},
    {I8, I8 ";q=0", ALL, REFUSED, false},
    {I8, "*/*", ALL, REFUSED, false},
    {I8, I8, NO_I8, REFUSED, false},
    {F16, F16, NO_F16, REFUSED, false},
    {F16, I8, ALL, WIRE_I8, false},
    /* content types */
    {F32 "; charset=x", NULL, ALL, WIRE_F32, true},
    {" " F16 " ", NULL, ALL, WIRE_F32, true},
    {"APPLICATION/X-LARQL-FFN", NULL, ALL, WIRE_F32, true},
    {F16 "x", NULL, ALL, REFUSED, false},
    {"application/x-larql", NULL, ALL, REFUSED, false},
    {"text/plain", NULL, ALL, REFUSED, false},
    {"application/x-www-form-urlencoded", NULL, ALL, REFUSED, false},
    {NULL, F16, ALL, JSON, true},
    {"", NULL, ALL, JSON, true},
    {"application/json", F16, ALL, JSON, true},
    {"Application/JSON; charset=utf-8", NULL, ALL, JSON, true},
    {"application/json5", NULL, ALL, REFUSED, false},
};

START_TEST(table)
{
    struct wire_switches sw = {.f16_on = cases[_i].switches & 1,
                               .i8_on = cases[_i].switches & 2,
                               .compact_ties = cases[_i].switches & COMPACT};
    struct negotiated n;
    struct lq_fault fault = {.text = ""};
    enum lq_err rc = negotiate(cases[_i].type, cases[_i].accept, &sw, &n, &fault);
    const char *accept = cases[_i].accept ? cases[_i].accept : "(none)";
    if (cases[_i].want == REFUSED) {
        ck_assert_msg(rc == LQ_BAD_MEDIA && lq_err_status(rc) == 415 && fault.text[0], "Accept %s was taken", accept);
        return;
    }
    ck_assert_msg(rc == LQ_OK, "Accept %s: %s", accept, fault.text);
    ck_assert_int_eq(n.json, cases[_i].want == JSON);
    if (!n.json) {
        ck_assert_msg((int)n.answer == cases[_i].want, "Accept %s: %s", accept, wire_name(n.answer));
        ck_assert_msg(n.accepts_f32 == cases[_i].f32_too, "Accept %s: accepts_f32 %d", accept, n.accepts_f32);
    }
}
END_TEST

START_TEST(what_our_client_sends_is_understood)
{
    const struct wire_switches all = {.f16_on = true, .i8_on = true};
    for (enum wire_format f = WIRE_F32; f < WIRE_FORMATS_N; f++) {
        struct negotiated n;
        enum wire_format read;
        ck_assert_int_eq(negotiate(wire_content_type(f), negotiate_client_accept(f), &all, &n, NULL), LQ_OK);
        ck_assert_int_eq(n.body, f);
        ck_assert_int_eq(n.answer, f);
        ck_assert(n.accepts_f32);
        ck_assert_int_eq(negotiate_answer(wire_content_type(f), &read, NULL), LQ_OK);
        ck_assert_int_eq(read, f);
    }
    enum wire_format read;
    ck_assert_int_eq(negotiate_answer("text/html", &read, NULL), LQ_BAD_ANSWER);
    ck_assert_int_eq(negotiate_answer(NULL, &read, NULL), LQ_BAD_ANSWER);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("negotiate");
    TCase *t = tcase_create("table");
    tcase_add_loop_test(t, table, 0, sizeof cases / sizeof *cases);
    tcase_add_test(t, what_our_client_sends_is_understood);
    suite_add_tcase(s, t);
    return run_suite(s);
}
