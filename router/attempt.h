/* attempt: a request's tries at shards: sent, answered, failed, sent again elsewhere.
 *
 *   attempt_first -> send -> [ shard ] -> on_head -> on_data -> on_end
 *        | the shard fails, says 503, or takes half of the time: another replica, while
 *        |   no byte of an answer left, the body is still here and the budget has some
 *        | --hedge: a second try beside the first, when that is slower than 19 in 20
 *        | answer <= 64 KiB: leaves when whole    | larger: streams from its head on
 *      relayed, or an error of our own; the request ends here
 *
 * Owner: struct forward, which is one request; thread: its loop. */
#ifndef LQ_ROUTER_ATTEMPT_H
#define LQ_ROUTER_ATTEMPT_H

#include "router/link.h"

struct forward;

struct attempt {
    struct link_use use; /* first; use.link NULL: not under way */
    struct forward *forward;
    struct http_call *call;
    int status;
    struct http_headers *head; /* what of the shard's head the client gets */
    uint64_t length;
    bool head_seen, hedge;
};

enum { FORWARD_ATTEMPTS = 2 }; /* at once */

struct forward {
    struct router *rt;
    struct http_req *req; /* NULL: answered or gone */
    struct http_front_visit visit; /* format WIRE_FORMATS_N: JSON */
    uint64_t deadline_us;
    const char *model_id; /* the request's header, or model_copy */
    char *model_copy;
    uint32_t *layers; /* for another choice and for messages */
    uint32_t layers_n;
    struct member *first; /* chosen, not yet asked; lives as long as the table of `generation` is ours */
    uint64_t generation;
    struct attempt attempts[FORWARD_ATTEMPTS];
    struct tried tried;
    struct event *hedge_ev; /* NULL: no hedge */
    /* the request's body */
    struct evbuffer *body; /* what came and was not sent; kept for another try unless `cut` */
    bool cut;              /* cut through: leaves as it comes */
    bool shard_full;       /* it takes no more until on_shard_room() */
    /* the answer */
    struct attempt *started; /* whose head the client has seen */
    bool client_full;        /* it takes no more until on_client_room() */
};

/* NULL: out of memory. */
struct forward *forward_new(struct router *rt, struct http_req *r, unsigned format);
/* Cancels what is under way. The request must be answered or gone. */
void forward_free(struct forward *f);
/* Ends the exchange with an error of our own. */
void forward_refuse(struct forward *f, const struct lq_fault *fault);

/* Sends the request to f->first. The body is in f->body, whole, or leaves as it comes
 * (f->cut) through attempt_pass_on(). */
enum lq_err attempt_first(struct forward *f, struct lq_fault *fault) LQ_MUST_CHECK;
/* Moves what came to the shard; while that is full it stays in `in`, and stops the client. */
void attempt_pass_on(struct forward *f, struct evbuffer *in);
/* The last bytes of a body that is cut through. */
void attempt_pass_end(struct forward *f, struct evbuffer *in);

#endif
