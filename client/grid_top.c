/* grid_top: see grid_top.h.
 * The terminal : raw enough for single keys (signals stay), its other screen, no cursor,
 *                and no wrapping, for what is wider than its code points. Given back on q,
 *                on signals, before a stop, at exit() and in a crash.
 * A frame      : made whole in memory, written at once over the last one: no flicker. */
#include "client/grid_top.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "client/cmd.h"
#include "client/grid_view.h"

enum { REFRESH_S = 1, ROWS_DEFAULT = 24, ROWS_MIN = 3, COLUMNS_DEFAULT = 80, ENDING_SIGNALS_N = 4 };

#define SCREEN_ON "\033[?1049h\033[?25l\033[?7l"
#define SCREEN_OFF "\033[?7h\033[?25h\033[?1049l"

struct top {
    struct grid_link *link;
    const char *router;
    Larql__Grid__V1__StatusResponse *status; /* the last one; NULL: none yet */
    time_t status_at;
    char failed[700]; /* why the last question had no answer; "": it had */
    bool asking, more_rows_below;
    size_t scrolled; /* rows */
    int ended_by;    /* a signal; 0: q */
    struct event *tick, *key, *resize, *stop, *ending[ENDING_SIGNALS_N];
};

/* ---- the terminal --------------------------------------------------------------------- */

static struct termios saved_mode;
static volatile sig_atomic_t screen_is_ours, mode_is_saved;

static void put(const char *p, size_t n)
{
    while (n > 0) {
        ssize_t k = write(STDOUT_FILENO, p, n);
        if (k < 0 && errno != EINTR)
            return; /* the terminal is gone: SIGHUP or its end on stdin follows */
        if (k > 0)
            p += k, n -= (size_t)k;
    }
}

/* Only what a signal's handler may call. */
static void screen_give_back(void)
{
    if (!screen_is_ours)
        return;
    screen_is_ours = 0;
    put(SCREEN_OFF, sizeof SCREEN_OFF - 1);
    if (mode_is_saved)
        (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &saved_mode);
}

static void screen_take(void)
{
    struct termios mode;
    mode_is_saved = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &saved_mode) == 0;
    if (mode_is_saved) {
        mode = saved_mode;
        mode.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        mode.c_cc[VMIN] = 1;
        mode.c_cc[VTIME] = 0;
        (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &mode);
    }
    screen_is_ours = 1;
    put(SCREEN_ON, sizeof SCREEN_ON - 1);
}

static void on_crash(int sig)
{
    screen_give_back();
    (void)raise(sig); /* SA_RESETHAND: the default now */
}

static void watch_crashes(void)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
    struct sigaction sa = {.sa_handler = on_crash, .sa_flags = (int)SA_RESETHAND};
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++)
        (void)sigaction(crashes[i], &sa, NULL);
}

static void screen_size(unsigned *rows, unsigned *columns)
{
    struct winsize w;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_row > 0 && w.ws_col > 0;
    *rows = !known ? ROWS_DEFAULT : w.ws_row > ROWS_MIN ? w.ws_row : ROWS_MIN;
    *columns = known ? w.ws_col : COLUMNS_DEFAULT;
}

/* ---- a frame --------------------------------------------------------------------------- */

static void print_model(const struct grid_view *v, const struct grid_model *g, FILE *to)
{
    char coverage[16];
    fprintf(to, "\nMODEL %s   %u layers   coverage %s\n", grid_shown(g->m->model_id), g->m->num_layers,
            grid_coverage_text(g, coverage));
    fprintf(to, "  %-11s %8s %9s\n", "LAYERS", "REPLICAS", "IN FLIGHT");
    for (size_t i = 0; i < g->m->n_shards; i++) {
        const Larql__Grid__V1__ShardInfo *s = g->m->shards[i];
        char range[32], replicas[32];
        uint64_t in_flight = 0;
        for (size_t k = 0; k < s->n_server_ids; k++) {
            const Larql__Grid__V1__ServerInfo *x = grid_view_server(v, s->server_ids[k]);
            in_flight += x ? x->requests_in_flight : 0;
        }
        snprintf(range, sizeof range, "%u-%u", s->layer_start, s->layer_end);
        snprintf(replicas, sizeof replicas, "%u/%zu", g->live_n[i], s->n_server_ids);
        fprintf(to, "  %-11s %8s %9llu\n", range, replicas, (unsigned long long)in_flight);
    }
    for (size_t i = 0; i < g->gaps_n; i++)
        fprintf(to, "  GAP layers %u-%u\n", g->gaps[i].first, g->gaps[i].last);
}

/* Of its layers: the mean of their means, the worst of their 99th percentiles. */
static void print_server(const Larql__Grid__V1__ServerInfo *x, FILE *to)
{
    char layers[32] = "-", mean[32] = "-", worst[32] = "-";
    double sum = 0, p99 = 0;
    for (size_t i = 0; i < x->n_layer_stats; i++) {
        sum += (double)x->layer_stats[i]->avg_ms;
        p99 = (double)x->layer_stats[i]->p99_ms > p99 ? (double)x->layer_stats[i]->p99_ms : p99;
    }
    if (x->n_layer_stats) {
        snprintf(mean, sizeof mean, "%.2f", sum / (double)x->n_layer_stats);
        snprintf(worst, sizeof worst, "%.2f", p99);
    }
    if (*x->model_id)
        snprintf(layers, sizeof layers, "%u-%u", x->layer_start, x->layer_end);
    fprintf(to, "%-20s %-9s %-11s %9u %6.0f %8llu %8s %8s  %-28s %s\n", grid_shown(x->server_id),
            grid_shown(x->state), layers, x->requests_in_flight, (double)x->cpu_pct,
            (unsigned long long)(x->ram_used / 1000000), mean, worst, grid_shown(x->listen_url),
            grid_shown(x->model_id));
}

static void print_grid(const struct grid_view *v, FILE *to)
{
    for (size_t i = 0; i < v->models_n; i++)
        print_model(v, &v->models[i], to);
    if (v->status->n_servers == 0) {
        fprintf(to, "\nGrid: empty (no servers registered).\n");
        return;
    }
    fprintf(to, "\n%-20s %-9s %-11s %9s %6s %8s %8s %8s  %-28s %s\n", "SHARD", "STATE", "LAYERS", "IN FLIGHT",
            "CPU %", "RAM MB", "MEAN MS", "P99 MS", "URL", "MODEL");
    for (size_t i = 0; i < v->status->n_servers; i++)
        print_server(v->status->servers[i], to);
}

/* malloc'd text of all rows after the title; NULL: out of memory. */
static char *frame_text(const Larql__Grid__V1__StatusResponse *s)
{
    char *text = NULL;
    size_t n;
    struct grid_view v;
    FILE *to = grid_view_init(&v, s) ? open_memstream(&text, &n) : NULL;
    if (to) {
        print_grid(&v, to);
        if (fclose(to) != 0) {
            free(text);
            text = NULL;
        }
    }
    grid_view_release(&v);
    return text;
}

static void title_text(const struct top *t, char *text, size_t n)
{
    char at[16] = "--:--:--", more[800] = "";
    struct tm tm;
    if (t->status && localtime_r(&t->status_at, &tm))
        strftime(at, sizeof at, "%H:%M:%S", &tm);
    if (*t->failed)
        snprintf(more, sizeof more, "  NO ANSWER: %s", grid_shown(t->failed));
    else if (t->status)
        snprintf(more, sizeof more, "  %zu models, %zu shards", t->status->n_models, t->status->n_servers);
    snprintf(text, n, "larql grid  router %s  at %s%s", grid_shown(t->router), at, more);
}

/* At most so many code points of one row, and nothing of the last frame after it. */
static void print_row(const char *row, size_t n, unsigned columns, FILE *to)
{
    size_t end = 0;
    for (; end < n; end++)
        if (((unsigned char)row[end] & 0xc0) != 0x80 && columns-- == 0)
            break;
    fprintf(to, "%.*s\033[K", (int)end, row);
}

/* Rows of text from t->scrolled on, as many as there is room for. */
static void print_rows(struct top *t, const char *text, unsigned room, unsigned columns, FILE *to)
{
    size_t row = 0, rows_n = 0;
    for (const char *c = text; *c; c++)
        rows_n += *c == '\n';
    if (t->scrolled + room > rows_n)
        t->scrolled = rows_n > room ? rows_n - room : 0;
    for (const char *c = text; *c; row++) {
        size_t n = strcspn(c, "\n");
        if (row >= t->scrolled && row < t->scrolled + room) {
            fputc('\n', to);
            print_row(c, n, columns, to);
        }
        c += n + (c[n] == '\n');
    }
    t->more_rows_below = rows_n > t->scrolled + room;
}

static void draw(struct top *t)
{
    char *rows = t->status ? frame_text(t->status) : NULL, *frame = NULL, title[1200];
    unsigned rows_n, columns;
    size_t n;
    FILE *to = open_memstream(&frame, &n);
    screen_size(&rows_n, &columns);
    title_text(t, title, sizeof title);
    if (to) {
        fprintf(to, "\033[H");
        print_row(title, strlen(title), columns, to);
        print_rows(t, rows ? rows : "", rows_n - 2, columns, to); /* 2: title and keys */
        const char *keys = t->more_rows_below ? " q quits   j k scroll   more below" : " q quits   j k scroll";
        fprintf(to, "\n\033[7m");
        print_row(keys, strlen(keys), columns, to);
        fprintf(to, "\033[0m\033[J");
        if (fclose(to) == 0)
            put(frame, n);
    }
    free(frame);
    free(rows);
}

/* ---- events ---------------------------------------------------------------------------- */

static void keep(struct top *t, const struct grid_answer *a)
{
    snprintf(t->failed, sizeof t->failed, "%s", a->text);
    if (!a->msg)
        return;
    grid_msg_free(t->status);
    t->status = a->msg;
    t->status_at = time(NULL);
}

static void on_answer(void *arg, const struct grid_answer *a)
{
    struct top *t = arg;
    t->asking = false;
    keep(t, a);
    draw(t);
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    static const Larql__Grid__V1__StatusRequest in = LARQL__GRID__V1__STATUS_REQUEST__INIT;
    struct top *t = arg;
    if (t->asking)
        return; /* a slow router is not asked twice */
    t->asking = true;
    grid_link_ask(t->link, GRID_ASK_STATUS, &in.base, on_answer, t);
}

static void on_key(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    struct top *t = arg;
    char keys[64];
    ssize_t n = read((int)fd, keys, sizeof keys);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n <= 0) { /* the terminal is gone */
        event_base_loopbreak(grid_link_base(t->link));
        return;
    }
    for (ssize_t i = 0; i < n; i++) {
        if (keys[i] == 'q' || keys[i] == 'Q')
            event_base_loopbreak(grid_link_base(t->link));
        t->scrolled += keys[i] == 'j';
        t->scrolled -= keys[i] == 'k' && t->scrolled > 0;
    }
    draw(t);
}

static void on_resize(evutil_socket_t sig, short what, void *arg)
{
    (void)sig, (void)what;
    draw(arg);
}

static void on_ending(evutil_socket_t sig, short what, void *arg)
{
    (void)what;
    struct top *t = arg;
    t->ended_by = (int)sig;
    event_base_loopbreak(grid_link_base(t->link));
}

/* Ctrl-Z: the shell gets its terminal as it was; `fg` comes back here. */
static void on_stop(evutil_socket_t sig, short what, void *arg)
{
    (void)sig, (void)what;
    screen_give_back();
    (void)raise(SIGSTOP);
    screen_take();
    draw(arg);
}

static bool watch(struct top *t)
{
    static const int ending[ENDING_SIGNALS_N] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    static const struct timeval each = {.tv_sec = REFRESH_S};
    struct event_base *base = grid_link_base(t->link);
    bool ok = (t->tick = event_new(base, -1, EV_PERSIST, on_tick, t)) && event_add(t->tick, &each) == 0 &&
              (t->resize = evsignal_new(base, SIGWINCH, on_resize, t)) && event_add(t->resize, NULL) == 0 &&
              (t->stop = evsignal_new(base, SIGTSTP, on_stop, t)) && event_add(t->stop, NULL) == 0;
    for (size_t i = 0; ok && i < ENDING_SIGNALS_N; i++)
        ok = (t->ending[i] = evsignal_new(base, ending[i], on_ending, t)) && event_add(t->ending[i], NULL) == 0;
    if (ok && isatty(STDIN_FILENO))
        ok =
            (t->key = event_new(base, STDIN_FILENO, EV_READ | EV_PERSIST, on_key, t)) && event_add(t->key, NULL) == 0;
    return ok;
}

static void unwatch(struct top *t)
{
    struct event *all[] = {t->tick, t->key, t->resize, t->stop};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i])
            event_free(all[i]);
    for (size_t i = 0; i < ENDING_SIGNALS_N; i++)
        if (t->ending[i])
            event_free(t->ending[i]);
}

static int on_a_terminal(struct top *t)
{
    if (!watch(t)) {
        unwatch(t);
        fprintf(stderr, "larql grid: out of memory\n");
        return CMD_EXIT_FAILED;
    }
    (void)atexit(screen_give_back);
    watch_crashes();
    screen_take();
    draw(t);
    on_tick(-1, 0, t);
    event_base_dispatch(grid_link_base(t->link));
    screen_give_back();
    unwatch(t);
    if (t->ended_by == 0)
        return EXIT_SUCCESS;
    if (t->ended_by == SIGINT)
        return CMD_EXIT_INTERRUPTED;
    (void)raise(t->ended_by); /* libevent has put the default back: who waits for us is told how we ended */
    return CMD_EXIT_FAILED;
}

static int one_frame(struct top *t)
{
    static const Larql__Grid__V1__StatusRequest in = LARQL__GRID__V1__STATUS_REQUEST__INIT;
    struct grid_answer a;
    char title[1200];
    grid_link_wait(t->link, GRID_ASK_STATUS, &in.base, &a);
    keep(t, &a);
    if (!a.msg) {
        fprintf(stderr, "error: %s\n", grid_shown(a.text));
        return a.exit_code;
    }
    char *rows = frame_text(t->status);
    title_text(t, title, sizeof title);
    if (rows)
        printf("%s\n%s", title, rows);
    free(rows);
    return rows && fflush(stdout) == 0 ? EXIT_SUCCESS : CMD_EXIT_FAILED;
}

int grid_top(struct grid_link *l, const char *router)
{
    struct top t = {.link = l, .router = router};
    const char *term = getenv("TERM");
    bool terminal = isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb") != 0;
    int code = terminal ? on_a_terminal(&t) : one_frame(&t);
    grid_msg_free(t.status);
    return code;
}
