/* grid_link: questions of an operator to one router's --grid-port, one at a time.
 * Owner: the sub-command. Thread: one. */
#ifndef LQ_CLIENT_GRID_LINK_H
#define LQ_CLIENT_GRID_LINK_H

#include <event2/event.h>

#include "common/grid_msg.h"

/* Exit codes of `larql grid`. */
enum { GRID_EXIT_UNREACHABLE = 1, GRID_EXIT_REFUSED = 2, GRID_EXIT_GAPS = 3 };

struct grid_link_opts {
    const char *router;                            /* "HOST:PORT", after http://, grpc:// or https:// */
    const char *grid_key_file;                     /* LARQL_GRID_KEY where it is NULL */
    const char *tls_ca, *tls_cert, *tls_key, *pin; /* a CA or a pin means TLS, as https:// does */
};

struct grid_link;

/* Connects with the first question. LQ_USAGE, LQ_NOMEM. */
enum lq_err grid_link_new(const struct grid_link_opts *o, struct grid_link **out,
                          struct lq_fault *fault) LQ_MUST_CHECK;
void grid_link_free(struct grid_link *l); /* NULL is fine; no callback follows */
struct event_base *grid_link_base(struct grid_link *l);

enum grid_question { GRID_ASK_STATUS, GRID_ASK_DRAIN, GRID_ASK_ASSIGN };

struct grid_answer {
    void *msg;      /* StatusResponse or AdminAck, the receiver's: grid_msg_free(); NULL: failed */
    int exit_code;  /* where it failed: UNREACHABLE or REFUSED */
    char text[700]; /* and why */
};

/* a is good for the call only, its msg longer. Not from inside grid_link_ask(). */
typedef void (*grid_on_answer)(void *arg, const struct grid_answer *a);
void grid_link_ask(struct grid_link *l, enum grid_question q, const ProtobufCMessage *in, grid_on_answer fn,
                   void *arg);

/* The same, and waits for it. */
void grid_link_wait(struct grid_link *l, enum grid_question q, const ProtobufCMessage *in, struct grid_answer *out);

#endif
