/* event_log: see event_log.h. */
#include "router/event_log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { EVENTS_KEPT = 256 };

struct event_line {
    struct timespec at;
    char event[24], id[48], text[256];
};

struct event_log {
    pthread_mutex_t mu;
    uint64_t seq; /* of the next one */
    struct event_line ring[EVENTS_KEPT];
};

struct event_log *event_log_new(void)
{
    struct event_log *l = calloc(1, sizeof *l);
    if (l)
        pthread_mutex_init(&l->mu, NULL);
    return l;
}

void event_log_free(struct event_log *l)
{
    if (l)
        pthread_mutex_destroy(&l->mu);
    free(l);
}

void event_log_add(struct event_log *l, const char *event, const char *id, const char *fmt, ...)
{
    if (!l)
        return;
    va_list args;
    va_start(args, fmt);
    pthread_mutex_lock(&l->mu);
    struct event_line *e = &l->ring[l->seq++ % EVENTS_KEPT];
    clock_gettime(CLOCK_REALTIME, &e->at);
    snprintf(e->event, sizeof e->event, "%s", event);
    snprintf(e->id, sizeof e->id, "%s", id);
    vsnprintf(e->text, sizeof e->text, fmt, args);
    pthread_mutex_unlock(&l->mu);
    va_end(args);
}

static json_t *line_json(uint64_t seq, const struct event_line *e)
{
    struct tm tm;
    char at[40], day[24];
    gmtime_r(&e->at.tv_sec, &tm);
    strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(at, sizeof at, "%s.%03ldZ", day, e->at.tv_nsec / 1000000);
    /* Texts hold what peers said: not surely UTF-8, then "?". */
    json_t *text = json_string(e->text), *id = json_string(e->id);
    return json_pack("{sI,ss,ss,so,so}", "seq", (json_int_t)seq, "at", at, "event", e->event, "server_id",
                     id ? id : json_string("?"), "text", text ? text : json_string("?"));
}

json_t *event_log_json(struct event_log *l, size_t max)
{
    json_t *list = json_array();
    pthread_mutex_lock(&l->mu);
    size_t n = l->seq < EVENTS_KEPT ? (size_t)l->seq : EVENTS_KEPT;
    for (size_t i = 1; i <= n && i <= max; i++)
        json_array_append_new(list, line_json(l->seq - i, &l->ring[(l->seq - i) % EVENTS_KEPT]));
    pthread_mutex_unlock(&l->mu);
    return list;
}
