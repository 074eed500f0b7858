/* grid_impl: sessions and spares, shared by grid.c, grid_spare.c and grid_admin.c. */
#ifndef LQ_ROUTER_GRID_IMPL_H
#define LQ_ROUTER_GRID_IMPL_H

#include "common/grid_msg.h"
#include "router/grid.h"
#include "router/member.h"

enum session_state {
    SESSION_OPEN,     /* said nothing yet */
    SESSION_JOINING,  /* announced; its URL is being probed */
    SESSION_SERVING,  /* acknowledged: s->m is a member that gets requests */
    SESSION_LEAVING,  /* told to drain: finishes what it has */
    SESSION_SPARE,    /* has nothing, waits for layers */
    SESSION_ASSIGNED, /* a spare that loads what it was given */
    SESSION_STATES_N,
};

struct layer_report { /* of a heartbeat */
    uint32_t layer;
    float avg_ms, p99_ms;
};

struct session {
    TAILQ_ENTRY(session) entry;
    struct grid *grid;
    struct grpc_stream *stream;
    enum session_state state;
    struct member *m; /* a reference; NULL unless JOINING, SERVING, LEAVING */
    char id[48];      /* of a spare; a member has its own */
    uint64_t heard_us, since_us; /* last message; in this state */
    char model[ROUTE_MODEL_CHARS]; /* announced or assigned */
    uint32_t first, last;
    uint64_t ram_bytes, disk_bytes; /* a spare's */
    char refused[ROUTE_MODEL_CHARS + 32]; /* what it refused last, not to be given again for a while */
    uint64_t refused_us;
    struct layer_report *layers;
    size_t layers_n;
};
TAILQ_HEAD(session_list, session);

struct origin {
    char *model, *url;
};

/* A model that was seen since the start: its gaps are known even when all its shards are gone. */
struct known_model {
    char id[ROUTE_MODEL_CHARS];
    uint32_t layers_n;
    struct hash256 identity;
    bool has_identity;
};

/* A spare that has loaded ends its stream and comes back as a shard (shard/spare.c): until
 * then nobody else is given its layers. */
enum { EXPECTED_MAX = 64 };
struct expected {
    char model[ROUTE_MODEL_CHARS];
    uint32_t first, last;
    uint64_t until_us;
};

struct grid {
    struct crew *crew;
    struct grid_opts opts;
    struct grpc_server *server;
    struct event *tick_ev;
    struct session_list sessions;
    size_t sessions_n, spares_n; /* spares_n: idle ones */
    uint64_t next_spare;
    struct origin *origins;
    size_t origins_n;
    struct known_model *models;
    size_t models_n;
    struct expected expected[EXPECTED_MAX];
};

/* The only place that assigns a state. */
void session_set_state(struct session *s, enum session_state to);
void session_send(struct session *s, Larql__Grid__V1__RouterMessage__PayloadCase kind, void *msg);
struct session *session_find(struct grid *g, const char *id_or_url); /* NULL: none */
const char *session_id(const struct session *s);

/* grid_spare.c: gives spares what is missing; each tick, and when something changed. */
void spare_tick(struct grid *g);
/* s, which was assigned, left without a word: it may come back as a shard; and: it has. */
void spare_expect(struct grid *g, const struct session *s);
void spare_arrived(struct grid *g, const struct session *s);
enum lq_err spare_origins_parse(struct grid *g, const char *text, struct lq_fault *fault) LQ_MUST_CHECK;
void spare_release(struct grid *g);
/* Layers to one spare now; origin "" : a live replica's, or the configured one. */
enum lq_err spare_assign(struct grid *g, struct session *s, const char *model, uint32_t first, uint32_t last,
                         const char *origin, const char *hash, struct lq_fault *fault) LQ_MUST_CHECK;

/* grid_admin.c: the unary methods. */
void grid_on_status(struct grpc_stream *s, const uint8_t *p, size_t n, void *grid);
void grid_on_drain(struct grpc_stream *s, const uint8_t *p, size_t n, void *grid);
void grid_on_assign(struct grpc_stream *s, const uint8_t *p, size_t n, void *grid);
/* False: the call has been refused. */
bool grid_may(struct grid *g, struct grpc_stream *s, const char *what);

#endif
