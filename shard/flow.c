/* flow: one POST /v1/walk-ffn on the loop.
 *
 *   the page table -> flow_start --- refused (503, 413, 415)
 *                          | body read whole
 *                       on_body ------ refused by its head (400), queue full (503)
 *                          | offload_queue
 *                       flow_on_turn_end, with whatever else this turn has brought
 *                          | offload_start
 *                       [ work.c on the compute thread, or here when that is quicker ]
 *                          | loop_post, or at once
 *                       on_done -----> answer, or the fault's error
 *   at any time: on_gone (the client left), on_deadline (504)
 *
 * The order of checks is that of docs/protocol.md, section 4. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/log.h"
#include "shard/job.h"

/* The longest that the loop may compute itself: what /v1/health can wait for it. */
enum { LOOP_US_MAX = 1000 };

static void job_free(struct job *j)
{
    if (j->deadline_ev)
        event_free(j->deadline_ev);
    if (j->body)
        evbuffer_free(j->body);
    free(j->answer);
    free(j);
}

/* Takes the request away from the job: it will be answered, or is gone. */
static struct http_req *job_detach(struct job *j)
{
    struct http_req *r = j->req;
    j->req = NULL;
    load_leave(&j->shard->load);
    atomic_store(&j->gone, true);
    if (j->deadline_ev) {
        event_free(j->deadline_ev);
        j->deadline_ev = NULL;
    }
    return r;
}

static void refuse(struct job *j, const struct lq_fault *fault)
{
    struct shard *s = j->shard;
    if (fault->code == LQ_NOT_FINITE)
        metric_add(s->m.not_finite, 1);
    if (fault->code == LQ_DEADLINE)
        metric_add(s->m.deadline, 1);
    j->visit.answer_format = WIRE_FORMATS_N;
    http_front_fail_visit(&s->m.books, job_detach(j), &j->visit, fault);
}

/* What is known when the head is written; durations in ms, as Server-Timing wants them. */
static bool add_timing(const struct job *j, struct http_headers *h)
{
    char text[96];
    snprintf(text, sizeof text, "queue;dur=%u.%03u, compute;dur=%u.%03u, encode;dur=%u.%03u", j->queue_us / 1000,
             j->queue_us % 1000, j->compute_us / 1000, j->compute_us % 1000, j->encode_us / 1000,
             j->encode_us % 1000);
    return http_headers_add(h, "Server-Timing", text);
}

static void answer(struct job *j)
{
    struct shard *s = j->shard;
    struct http_req *r = job_detach(j);
    struct http_headers *h = http_headers_new();
    struct evbuffer *body = evbuffer_new();
    char count[32];
    snprintf(count, sizeof count, "%zu", j->saturated_n);
    bool ok = h && body && http_headers_add(h, "Content-Type", j->content_type) &&
              (j->saturated_n == 0 || http_headers_add(h, "X-Larql-Saturated", count)) && add_timing(j, h);
    if (ok) {
        ok = http_front_give(body, j->answer, j->answer_n);
        j->answer = NULL;
    }
    if (ok) {
        metric_add(s->m.rows, j->rows_n);
        metric_add(s->m.saturated, j->saturated_n);
        metric_add(s->m.f32_fallbacks, j->fell_back);
        j->visit.answer_format = j->form.json ? WIRE_FORMATS_N : j->form.answer;
        j->visit.out_bytes = j->answer_n;
        http_front_close(&s->m.books, r, 200, &j->visit);
        http_req_reply(r, 200, h, body);
    } else {
        http_front_nomem(r);
    }
    http_headers_free(h);
    if (body)
        evbuffer_free(body);
}

/* The compute path has finished with j. */
static void on_done(struct loop_msg *m)
{
    struct job *j = (struct job *)m; /* first member of its first member */
    struct shard *s = j->shard;
    if (j->form.json) {
        j->visit.layer = j->json_layer;
        j->visit.layers_n = j->json_layers_n;
        j->visit.rows_n = j->json_rows_n;
    }
    if (j->row_us)
        s->row_us = s->row_us ? (3 * s->row_us + j->row_us) / 4 : j->row_us;
    if (j->req && j->fault.code == LQ_OK)
        answer(j);
    else if (j->req)
        refuse(j, &j->fault);
    job_free(j);
}

/* Before the job is queued it is ours to free; after, on_done does it. */
static void on_gone_reading(struct http_req *r, void *arg)
{
    (void)r;
    struct job *j = arg;
    (void)job_detach(j);
    job_free(j);
}

static void on_gone_queued(struct http_req *r, void *arg)
{
    (void)r;
    (void)job_detach(arg);
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct job *j = arg;
    struct lq_fault fault;
    (void)lq_fail(&fault, LQ_DEADLINE, "no answer within the deadline");
    refuse(j, &fault); /* the compute thread still has j; on_done frees it */
}

static enum lq_err arm_deadline(struct job *j, struct lq_fault *fault)
{
    uint64_t now = clock_us(), left_us = j->deadline_us > now ? j->deadline_us - now : 0;
    struct timeval tv = {.tv_sec = (time_t)(left_us / 1000000), .tv_usec = (suseconds_t)(left_us % 1000000)};
    j->deadline_ev = evtimer_new(loop_base(j->shard->loop), on_deadline, j);
    if (!j->deadline_ev || evtimer_add(j->deadline_ev, &tv) != 0)
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    return LQ_OK;
}

/* Checks 8 to 12 of a binary body, here so that a bad one never waits in the queue. */
static enum lq_err check_binary(struct job *j, struct lq_fault *fault)
{
    enum lq_err rc = wire_head_decode(j->body_p, j->body_n, j->body_n, &j->head, NULL, fault);
    if (!rc)
        rc = wire_payload_check(j->form.body, j->head.seq_len, j->shard->arch.hidden_n,
                                j->body_n - j->head.payload_at, &j->values_n, fault);
    if (rc)
        return rc;
    j->visit.layer = wire_head_layer(&j->head, 0);
    j->visit.layers_n = j->head.layers_n;
    j->visit.rows_n = j->head.seq_len;
    return LQ_OK;
}

/* Room for a binary answer, so that the compute path need not ask for it; not where the
 * answer will be refused for its size. */
static enum lq_err reserve_answer(struct job *j, struct lq_fault *fault)
{
    const struct shard *s = j->shard;
    const struct wire_head *h = &j->head;
    uint64_t bytes = wire_answer_bytes(j->form.answer, h->layers_n, h->seq_len, s->arch.hidden_n);
    uint64_t f32_bytes = wire_answer_bytes(WIRE_F32, h->layers_n, h->seq_len, s->arch.hidden_n);
    if (bytes > s->answer_max)
        return LQ_OK;
    j->may_fall_back = j->form.answer == WIRE_F16 && j->form.accepts_f32 && f32_bytes <= s->answer_max;
    if (j->may_fall_back)
        bytes = f32_bytes; /* pages that are never written cost nothing */
    if (!(j->answer = malloc(bytes)))
        return lq_fail(fault, LQ_NOMEM, "out of memory for an answer of %llu bytes", (unsigned long long)bytes);
    return LQ_OK;
}

/* Is j so little work that two wake-ups would cost more than they spare the loop? */
static bool is_small(const struct job *j)
{
    uint64_t rows_n = (uint64_t)j->head.seq_len * j->head.layers_n, row_us = j->shard->row_us;
    return !j->form.json && row_us > 0 && rows_n <= LOOP_US_MAX && row_us * rows_n <= LOOP_US_MAX;
}

void flow_on_turn_end(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct shard *s = arg;
    if (offload_start(s->queue))
        metric_add(s->m.inline_jobs, 1);
}

static void on_body(struct http_req *r, struct evbuffer *in, void *arg)
{
    struct job *j = arg;
    struct lq_fault fault;
    enum lq_err rc = LQ_OK;
    if (evbuffer_add_buffer(j->body, in) != 0)
        rc = lq_fail(&fault, LQ_NOMEM, "out of memory");
    j->visit.in_bytes = j->body_n = evbuffer_get_length(j->body);
    j->body_p = evbuffer_pullup(j->body, -1);
    j->task.bytes = j->body_n;
    if (!rc && !j->body_p && j->body_n > 0)
        rc = lq_fail(&fault, LQ_NOMEM, "out of memory for a body of %zu bytes", j->body_n);
    if (!j->body_p)
        j->body_p = (const uint8_t *)"";
    if (!rc && !j->form.json)
        rc = check_binary(j, &fault);
    if (!rc && !j->form.json)
        rc = reserve_answer(j, &fault);
    if (!rc)
        rc = arm_deadline(j, &fault);
    http_req_on_gone(r, on_gone_queued, j);
    work_prepare(j);
    j->task.small = is_small(j);
    j->queued_us = clock_us();
    if (!rc)
        rc = offload_queue(j->shard->queue, &j->task, &fault);
    if (rc) {
        refuse(j, &fault);
        job_free(j);
        return;
    }
    event_active(j->shard->turn_ev, 0, 0);
}

void flow_start(void *arg, struct http_req *r)
{
    struct shard *s = arg;
    char accept[2048];
    struct negotiated form = {0};
    struct lq_fault fault;
    if (s->draining) {
        http_front_refuse(r, LQ_NOT_READY, "draining: this shard is about to stop");
        return;
    }
    const struct http_headers *h = http_req_headers(r);
    enum lq_err rc = negotiate(http_headers_get(h, "Content-Type"),
                               http_headers_join(h, "Accept", accept, sizeof accept), &s->wire, &form, &fault);
    uint64_t limit = !rc && form.json ? s->json_max : s->body_max;
    if (rc && http_req_may_read(r, limit, NULL) == LQ_OK) { /* else 417 or 413, which come before this 415 */
        http_req_reply_fault(r, &fault, NULL);
        return;
    }
    struct job *j = calloc(1, sizeof *j);
    if (!j || !(j->body = evbuffer_new())) {
        free(j);
        http_front_nomem(r);
        return;
    }
    j->task.done.fn = on_done;
    j->shard = s;
    j->req = r;
    j->form = form;
    j->visit.format = form.json ? WIRE_FORMATS_N : form.body;
    load_enter(&s->load, http_req_start_us(r));
    j->deadline_us = http_front_deadline_us(r, s->deadline_ms);
    http_req_on_gone(r, on_gone_reading, j);
    http_req_read(r, limit, NULL, on_body, j);
}
