/* grid_msg: what is taken for a message of the grid. */
#include <stdlib.h>
#include <string.h>

#include "common/grid_msg.h"
#include "tests/unit/support.h"

#define SERVER (&larql__grid__v1__server_message__descriptor)
#define ROUTER (&larql__grid__v1__router_message__descriptor)
#define STATUS (&larql__grid__v1__status_response__descriptor)

/* Bytes made by `protoc --encode`: protobuf's own implementation. */
START_TEST(another_implementations_bytes_are_read)
{
    uint8_t p[100];
    struct lq_fault fault = {0};
    size_t n = unhex("0a330a0567656d6d611003180b2080808080402a14687474703a2f2f31302e302e302e313a38303830"
                     "320461626364380140074801",
                     p);
    Larql__Grid__V1__ServerMessage *m = grid_msg_parse(SERVER, p, n, &fault);
    ck_assert_msg(m, "%s", fault.text);
    ck_assert_int_eq(m->payload_case, LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_ANNOUNCE);
    ck_assert_str_eq(m->announce->model_id, "gemma");
    ck_assert_uint_eq(m->announce->layer_start, 3);
    ck_assert_uint_eq(m->announce->layer_end, 11);
    ck_assert(m->announce->ram_bytes == UINT64_C(17179869184));
    ck_assert_str_eq(m->announce->listen_url, "http://10.0.0.1:8080");
    ck_assert_str_eq(m->announce->vindex_hash, "abcd");
    ck_assert_uint_eq(m->announce->expert_start, 1);
    ck_assert_uint_eq(m->announce->expert_end, 7);
    ck_assert(m->announce->serves_openai);
    size_t packed_n;
    uint8_t *packed = grid_msg_pack(&m->base, &packed_n);
    ck_assert_uint_eq(packed_n, n);
    ck_assert_mem_eq(packed, p, n);
    free(packed);
    grid_msg_free(m);
}
END_TEST

START_TEST(what_is_packed_is_read_back)
{
    Larql__Grid__V1__LayerLatency one = LARQL__GRID__V1__LAYER_LATENCY__INIT, *list[] = {&one, &one};
    Larql__Grid__V1__HeartbeatMsg beat = LARQL__GRID__V1__HEARTBEAT_MSG__INIT;
    Larql__Grid__V1__ServerMessage m = LARQL__GRID__V1__SERVER_MESSAGE__INIT, *back;
    struct lq_fault fault;
    size_t n;
    one.layer = 7;
    one.avg_ms = 1.5f;
    beat.cpu_pct = 12.5f;
    beat.ram_used = UINT64_MAX;
    beat.n_layer_stats = 2;
    beat.layer_stats = list;
    m.payload_case = LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_HEARTBEAT;
    m.heartbeat = &beat;
    uint8_t *p = grid_msg_pack(&m.base, &n);
    back = grid_msg_parse(SERVER, p, n, &fault);
    ck_assert_ptr_nonnull(back);
    ck_assert_int_eq(back->payload_case, LARQL__GRID__V1__SERVER_MESSAGE__PAYLOAD_HEARTBEAT);
    ck_assert_uint_eq(back->heartbeat->n_layer_stats, 2);
    ck_assert_uint_eq(back->heartbeat->layer_stats[1]->layer, 7);
    ck_assert(back->heartbeat->ram_used == UINT64_MAX);
    grid_msg_free(back);
    for (size_t cut = 0; cut < n; cut++) /* every beginning is judged, none crashes */
        grid_msg_free(grid_msg_parse(SERVER, p, cut, &fault));
    free(p);
}
END_TEST

static const struct {
    const ProtobufCMessageDescriptor *d;
    const char *hex, *text; /* NULL: it is taken */
} cases[] = {
    {SERVER, "0a00", NULL},                       /* announce with nothing in it */
    {SERVER, "", "of a kind"},                    /* nothing */
    {SERVER, "3a00", "of a kind"},                /* a kind of number 7 */
    {SERVER, "0a0210ff", "no ServerMessage"},     /* cut varint */
    {SERVER, "0a0410051803", "layer_end"},        /* 5..3 */
    {SERVER, "0a0410031803", NULL},               /* 3..3 */
    {SERVER, "0a0438054003", "expert_end"},       /* experts 5..3 */
    {SERVER, "0a033a0161", "no ServerMessage"},   /* the dialect: 7 is a list of strings */
    {SERVER, "0a0448016800", NULL},               /* an unknown field inside */
    {SERVER, "0a0400000000", "no ServerMessage"}, /* fields of number 0 */
    {SERVER, "22050d0000c07f", "cpu_pct"},        /* NaN */
    {SERVER, "22050d0000807f", "cpu_pct"},        /* infinite */
    {SERVER, "22050d00004841", NULL},             /* 12.5 */
    {SERVER, "22220a200000000000000000000000000000000000000000000000000000000000000000", "no ServerMessage"},
    {SERVER, "2222222000000000000000000000000000000000000000000000000000000000000000ff", "no ServerMessage"},
    {SERVER, "222222200000000000000000000000000000000000000000000000000000000000000000",
     "no ServerMessage"}, /* bytes as 4 */
    {SERVER, "0a040a02c328", "UTF-8"},
    {SERVER, "0a040a02c3a4", NULL},
    {SERVER, "0a050a03eda080", "UTF-8"},               /* a surrogate */
    {SERVER, "0a050a03e08080", "UTF-8"},               /* overlong */
    {SERVER, "0a00120a1a08ffffffffffffffff", "UTF-8"}, /* the last of two kinds counts */
    {ROUTER, "1a0408ff0101", "no RouterMessage"},
    {ROUTER, "1a030a0161", NULL},
    {ROUTER, "1a078500000000000000", "no RouterMessage"},
    {STATUS, "850001020304", "number 0"}, /* in a varint longer than it need be */
    {ROUTER, "2a00", "of a kind"},
    {STATUS, "", NULL},
    {STATUS, "0a0822060a0408021001", "no StatusResponse"},
    {STATUS, "0a06220408021001", "layer_end"}, /* a gap 2..1, nested */
};

START_TEST(bytes_are_judged)
{
    uint8_t p[200];
    struct lq_fault fault = {0};
    size_t n = unhex(cases[_i].hex, p);
    void *m = grid_msg_parse(cases[_i].d, p, n, &fault);
    if (cases[_i].text)
        ck_assert_msg(!m && strstr(fault.text, cases[_i].text), "%s", m ? "taken" : fault.text);
    else
        ck_assert_msg(m, "%s", fault.text);
    grid_msg_free(m);
}
END_TEST

START_TEST(long_texts_and_bodies_are_refused)
{
    Larql__Grid__V1__RejectMsg no = LARQL__GRID__V1__REJECT_MSG__INIT;
    Larql__Grid__V1__RouterMessage m = LARQL__GRID__V1__ROUTER_MESSAGE__INIT;
    struct lq_fault fault = {0};
    m.payload_case = LARQL__GRID__V1__ROUTER_MESSAGE__PAYLOAD_REJECT;
    m.reject = &no;
    for (int over = 0; over < 2; over++) {
        size_t n, text_n = GRID_TEXT_BYTES_MAX + (size_t)over;
        no.reason = calloc(1, text_n + 1);
        memset(no.reason, 'x', text_n);
        uint8_t *p = grid_msg_pack(&m.base, &n);
        void *back = grid_msg_parse(ROUTER, p, n, &fault);
        ck_assert((back == NULL) == over);
        grid_msg_free(back);
        free(no.reason);
        free(p);
    }
    uint8_t *big = calloc(1, GRID_ASK_BYTES_MAX + 1);
    ck_assert_ptr_null(grid_msg_parse(SERVER, big, GRID_ASK_BYTES_MAX + 1, &fault));
    ck_assert_int_eq(fault.code, LQ_BIG_BODY);
    free(big);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("grid_msg");
    TCase *t = tcase_create("grid_msg");
    tcase_add_test(t, another_implementations_bytes_are_read);
    tcase_add_test(t, what_is_packed_is_read_back);
    tcase_add_loop_test(t, bytes_are_judged, 0, sizeof cases / sizeof *cases);
    tcase_add_test(t, long_texts_and_bodies_are_refused);
    suite_add_tcase(s, t);
    return run_suite(s);
}
