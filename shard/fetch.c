/* fetch: see fetch.h. */
#include "shard/fetch.h"

#include <curl/curl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "common/log.h"

enum {
    REDIRECTS_MAX = 5,
    CONNECT_MS = 10000,
    STALL_S = 30,      /* without a byte */
    TRIES_FIRST_N = 4, /* as long as nothing has come: a wrong address is told within seconds */
    TRIES_LATER_N = 8, /* without a byte in between: half a minute of pauses */
    PAUSE_FIRST_MS = 200,
    PAUSE_MAX_MS = 10000,
    STOP_POLL_MS = 50,
    BUFFER_BYTES = 256 << 10, /* of a body, taken at once */
};

struct answer { /* the head of the last response in a chain of redirects */
    long status;
    bool ranged, encoded;
    uint64_t from, end, bytes; /* its Content-Range */
    char etag[FETCH_WORD_BYTES], modified[FETCH_WORD_BYTES];
};

struct fetch {
    CURL *curl;
    struct fetch_opts o;
    char *shown;
    struct curl_slist *headers;
    struct fetch_origin origin;
    bool changed;
    uint64_t bytes;
    /* one request */
    struct answer answer;
    fetch_sink sink;
    void *sink_arg;
    uint64_t at, end;
    bool judged; /* the head is what was asked for */
    enum lq_err rc;
    bool again; /* rc may pass by itself */
    struct lq_fault *fault;
    char curl_error[CURL_ERROR_SIZE];
};

enum lq_err fetch_global_init(struct lq_fault *fault)
{
    return curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? LQ_OK
                                                             : lq_fail(fault, LQ_INTERNAL, "libcurl does not start");
}

/* ---- an answer's head ---------------------------------------------------------------------- */

static bool decimal(const char **p, uint64_t *out)
{
    uint64_t v = 0;
    const char *start = *p;
    for (; **p >= '0' && **p <= '9'; ++*p)
        if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(**p - '0'), &v))
            return false;
    *out = v;
    return *p > start;
}

/* "bytes 0-99/1000", nothing else. */
static bool content_range(const char *p, struct answer *a)
{
    uint64_t last;
    if (strncasecmp(p, "bytes ", 6) != 0)
        return false;
    p += 6;
    if (!decimal(&p, &a->from) || *p++ != '-' || !decimal(&p, &last) || *p++ != '/' || !decimal(&p, &a->bytes) || *p)
        return false;
    a->end = last + 1;
    return last < UINT64_MAX && a->from <= last && a->end <= a->bytes && a->bytes <= INT64_MAX;
}

static bool is_name(const char *line, const char *name, const char **value)
{
    size_t n = strlen(name);
    if (strncasecmp(line, name, n) != 0 || line[n] != ':')
        return false;
    for (*value = line + n + 1; **value == ' ' || **value == '\t'; ++*value) {
    }
    return true;
}

/* libcurl gives each header line whole; a new status line begins another response. */
static size_t on_header(char *p, size_t size, size_t n, void *arg)
{
    struct fetch *f = arg;
    struct answer *a = &f->answer;
    char line[1024];
    const char *v;
    n *= size;
    size_t kept = n < sizeof line - 1 ? n : sizeof line - 1;
    memcpy(line, p, kept);
    while (kept && (line[kept - 1] == '\r' || line[kept - 1] == '\n' || line[kept - 1] == ' '))
        kept--;
    line[kept] = '\0';
    if (strncmp(line, "HTTP/", 5) == 0)
        *a = (struct answer){0};
    else if (is_name(line, "Content-Range", &v))
        a->ranged = content_range(v, a);
    else if (is_name(line, "Content-Encoding", &v))
        a->encoded = strcasecmp(v, "identity") != 0;
    else if (is_name(line, "ETag", &v))
        snprintf(a->etag, sizeof a->etag, "%.255s", v);
    else if (is_name(line, "Last-Modified", &v))
        snprintf(a->modified, sizeof a->modified, "%.255s", v);
    return n;
}

static void refuse(struct fetch *f, const char *why)
{
    f->again = false;
    f->rc = lq_fail(f->fault, LQ_BAD_ANSWER, "%s: %s", f->shown, why);
}

static void refuse_status(struct fetch *f, long status)
{
    char why[96];
    snprintf(why, sizeof why, "answers with status %ld%s", status,
             status == 401 || status == 403 ? " (is a key needed, or wrong?)" : "");
    refuse(f, why);
    f->again = status == 408 || status == 429 || (status >= 500 && status != 501);
}

/* The origin as it is known, or as this answer makes it known. False: it has changed. */
static bool same_origin(struct fetch *f)
{
    const struct answer *a = &f->answer;
    if (f->origin.bytes == 0) {
        f->origin.bytes = a->bytes;
        memcpy(f->origin.etag, a->etag, sizeof a->etag);
        memcpy(f->origin.modified, a->modified, sizeof a->modified);
    }
    return f->origin.bytes == a->bytes && strcmp(f->origin.etag, a->etag) == 0 &&
           strcmp(f->origin.modified, a->modified) == 0;
}

static void judge(struct fetch *f)
{
    const struct answer *a = &f->answer;
    uint64_t end = f->end < a->bytes ? f->end : a->bytes;
    f->rc = LQ_OK;
    if (a->status == 200)
        refuse(f, "answers 200 with the whole file to a request for a range: an origin must serve ranges (206)");
    else if (a->status != 206)
        refuse_status(f, a->status);
    else if (!a->ranged)
        refuse(f, "its 206 names no Content-Range of one range and a size");
    else if (a->encoded)
        refuse(f, "its 206 is encoded (Content-Encoding), though identity was asked for");
    else if (!same_origin(f)) {
        f->changed = true;
        refuse(f, "the file has changed (size, ETag or Last-Modified)");
    } else if (a->from != f->at || a->end != end) {
        char why[160];
        snprintf(why, sizeof why, "its 206 is bytes %" PRIu64 "-%" PRIu64 ", asked were %" PRIu64 "-%" PRIu64,
                 a->from, a->end - 1, f->at, end - 1);
        refuse(f, why);
    } else {
        f->end = end;
    }
    f->judged = true;
}

/* ---- one request --------------------------------------------------------------------------- */

static bool stopped(const struct fetch *f)
{
    return f->o.stop && atomic_load_explicit(f->o.stop, memory_order_relaxed);
}

static size_t on_body(char *p, size_t size, size_t n, void *arg)
{
    struct fetch *f = arg;
    n *= size;
    if (!f->judged) {
        (void)curl_easy_getinfo(f->curl, CURLINFO_RESPONSE_CODE, &f->answer.status);
        judge(f);
    }
    if (!f->rc && n > f->end - f->at)
        refuse(f, "sends more bytes than its Content-Range says");
    if (!f->rc && (f->rc = f->sink(f->sink_arg, f->at, p, n, f->fault)))
        f->again = false;
    if (f->rc)
        return 0; /* ends the transfer */
    f->at += n;
    f->bytes += n;
    return n;
}

static int on_progress(void *arg, curl_off_t down_n, curl_off_t down, curl_off_t up_n, curl_off_t up)
{
    (void)down_n, (void)down, (void)up_n, (void)up;
    return stopped(arg);
}

/* May libcurl's failure pass by itself? */
static bool passes(CURLcode code)
{
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
        return true;
    default:
        return false;
    }
}

/* From f->at on; f->rc says how it ended. */
static void request(struct fetch *f)
{
    char range[64];
    snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, f->at, f->end - 1);
    f->answer = (struct answer){0};
    f->judged = f->again = false;
    f->rc = LQ_OK;
    f->curl_error[0] = '\0';
    CURLcode code = curl_easy_setopt(f->curl, CURLOPT_RANGE, range);
    if (code == CURLE_OK)
        code = curl_easy_perform(f->curl);
    if (f->rc) /* ours: on_body ended it */
        return;
    if (stopped(f)) {
        f->rc = lq_fail(f->fault, LQ_CANCELLED, "%s: stopped", f->shown);
    } else if (code != CURLE_OK) {
        f->again = passes(code);
        f->rc = lq_fail(f->fault, f->again ? LQ_SHARD_DOWN : LQ_BAD_ANSWER, "%s: %s", f->shown,
                        *f->curl_error ? f->curl_error : curl_easy_strerror(code));
    } else if (!f->judged) { /* no body */
        (void)curl_easy_getinfo(f->curl, CURLINFO_RESPONSE_CODE, &f->answer.status);
        judge(f);
    }
    if (!f->rc && f->at < f->end) {
        f->again = true;
        f->rc =
            lq_fail(f->fault, LQ_SHARD_DOWN, "%s: the body ended %" PRIu64 " bytes early", f->shown, f->end - f->at);
    }
}

/* False: stopped meanwhile. */
static bool pause_ms(const struct fetch *f, long ms)
{
    for (; ms > 0 && !stopped(f); ms -= STOP_POLL_MS) {
        struct timespec t = {.tv_nsec = STOP_POLL_MS * 1000000L};
        (void)nanosleep(&t, NULL); /* shorter is fine */
    }
    return !stopped(f);
}

/* Half to all of the pause, so that many that lost one origin do not come back at once. */
static long with_jitter(long ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return ms / 2 + (t.tv_nsec / 1000) % (ms / 2 + 1);
}

enum lq_err fetch_range(struct fetch *f, uint64_t from, uint64_t end, fetch_sink sink, void *arg,
                        struct lq_fault *fault)
{
    long ms = PAUSE_FIRST_MS;
    struct lq_fault here;
    f->at = from;
    f->end = end;
    f->sink = sink;
    f->sink_arg = arg;
    f->fault = fault ? fault : &here;
    for (int tries_n = 0; f->at < f->end;) {
        uint64_t before = f->at;
        request(f);
        if (!f->rc || !f->again)
            return f->rc;
        if (f->at > before) {
            tries_n = 0;
            ms = PAUSE_FIRST_MS;
        }
        if (++tries_n >= (f->bytes ? TRIES_LATER_N : TRIES_FIRST_N))
            return f->rc;
        log_warn("fetch_again byte=%" PRIu64 " pause_ms=%ld why=%s", f->at, ms, log_q(f->fault->text));
        if (!pause_ms(f, with_jitter(ms)))
            return lq_fail(f->fault, LQ_CANCELLED, "%s: stopped", f->shown);
        ms = 2 * ms < PAUSE_MAX_MS ? 2 * ms : PAUSE_MAX_MS;
    }
    return LQ_OK;
}

/* ---- life ---------------------------------------------------------------------------------- */

/* Scheme, host and path; refuses what a URL of a model file never has. */
static enum lq_err check_url(struct fetch *f, bool *tls, struct lq_fault *fault)
{
    CURLU *u = curl_url();
    char *scheme = NULL, *user = NULL, *shown = NULL;
    enum lq_err rc = LQ_OK;
    if (!u)
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    if (curl_url_set(u, CURLUPART_URL, f->o.url, 0) != CURLUE_OK ||
        curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) != CURLUE_OK ||
        (strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0)) {
        rc = lq_fail(fault, LQ_USAGE, "this is no http:// or https:// URL of a model file");
    } else if (curl_url_get(u, CURLUPART_USER, &user, 0) == CURLUE_OK) {
        rc = lq_fail(fault, LQ_USAGE, "a URL with a user or a password would end in logs: use a key file");
    } else if (curl_url_set(u, CURLUPART_QUERY, NULL, 0) != CURLUE_OK ||
               curl_url_set(u, CURLUPART_FRAGMENT, NULL, 0) != CURLUE_OK ||
               curl_url_get(u, CURLUPART_URL, &shown, 0) != CURLUE_OK || !(f->shown = strdup(shown))) {
        rc = lq_fail(fault, LQ_NOMEM, "out of memory");
    } else {
        *tls = strcmp(scheme, "https") == 0;
    }
    curl_free(scheme);
    curl_free(user);
    curl_free(shown);
    curl_url_cleanup(u);
    return rc;
}

static bool set_options(struct fetch *f, bool tls)
{
    CURL *c = f->curl;
    bool ok = true;
#define SET(option, value) ok = ok && curl_easy_setopt(c, option, value) == CURLE_OK
    SET(CURLOPT_URL, f->o.url);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_REDIR_PROTOCOLS_STR, tls ? "https" : "http,https");
    SET(CURLOPT_FOLLOWLOCATION, 1L);
    SET(CURLOPT_MAXREDIRS, (long)REDIRECTS_MAX);
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_BUFFERSIZE, (long)BUFFER_BYTES);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    SET(CURLOPT_LOW_SPEED_LIMIT, 1L);
    SET(CURLOPT_LOW_SPEED_TIME, (long)STALL_S);
    SET(CURLOPT_HTTPHEADER, f->headers);
    SET(CURLOPT_USERAGENT, "larql-shard/" LQ_VERSION);
    SET(CURLOPT_ERRORBUFFER, f->curl_error);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, f);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, f);
    SET(CURLOPT_NOPROGRESS, 0L);
    SET(CURLOPT_XFERINFOFUNCTION, on_progress);
    SET(CURLOPT_XFERINFODATA, f);
    if (f->o.ca_file)
        SET(CURLOPT_CAINFO, f->o.ca_file);
    if (f->o.cert_file) {
        SET(CURLOPT_SSLCERT, f->o.cert_file);
        SET(CURLOPT_SSLKEY, f->o.key_file);
    }
    if (f->o.bearer) {
        SET(CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
        SET(CURLOPT_XOAUTH2_BEARER, f->o.bearer);
    }
#undef SET
    return ok;
}

enum lq_err fetch_new(const struct fetch_opts *o, struct fetch **out, struct lq_fault *fault)
{
    bool tls = false;
    struct fetch *f = calloc(1, sizeof *f);
    if (!f)
        return lq_fail(fault, LQ_NOMEM, "out of memory");
    f->o = *o;
    enum lq_err rc = check_url(f, &tls, fault);
    if (!rc && (!(f->headers = curl_slist_append(NULL, "Accept-Encoding: identity")) ||
                !(f->curl = curl_easy_init()) || !set_options(f, tls)))
        rc = lq_fail(fault, LQ_NOMEM, "%s: out of memory, or a libcurl that lacks what is needed", f->shown);
    if (rc)
        fetch_free(f);
    else
        *out = f;
    return rc;
}

void fetch_free(struct fetch *f)
{
    if (!f)
        return;
    curl_easy_cleanup(f->curl);
    curl_slist_free_all(f->headers);
    free(f->shown);
    free(f);
}

const char *fetch_shown(const struct fetch *f)
{
    return f->shown;
}

const struct fetch_origin *fetch_origin(const struct fetch *f)
{
    return &f->origin;
}

void fetch_expect(struct fetch *f, const struct fetch_origin *o)
{
    f->origin = *o;
}

bool fetch_changed(const struct fetch *f)
{
    return f->changed;
}

uint64_t fetch_bytes(const struct fetch *f)
{
    return f->bytes;
}
