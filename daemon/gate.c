/* The front door of an ipc listener; see gate.h. */
#include "daemon/gate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/limits.h"
#include "daemon/log.h"
#include "daemon/need.h"

#define HELLO_BYTES 8
#define BACKLOG 512
#define TICK_MS 250
#define TRIES 5 /* inner connections for one client */

enum conn_state { CONN_HELLO, CONN_JOINING, CONN_JOINED, CONN_CLOSING };

/* One direction: one buffer that is either being read into or being written out. */
struct flow {
	struct conn *conn;
	uv_pipe_t *from, *to;
	uv_write_t write;
	char *buffer;
};

struct conn {
	struct gate *gate;
	struct conn *next, *prev;     /* newest first */
	enum conn_state state;
	uv_pipe_t front, back;
	int open_handles, back_open;
	uint64_t since_ms;            /* of the state */
	const char *inner;            /* where it is passed on to */
	int tries, again;             /* again: connect once the old inner handle has closed */
	unsigned char hello[HELLO_BYTES], answer[HELLO_BYTES];
	size_t hello_bytes, answer_bytes;
	uv_connect_t connect;
	uv_write_t write_hello, write_answer;
	struct flow up, down;
};

struct gate {
	struct gate_config cfg;
	char path[108], inner[108];
	uv_pipe_t server;
	uv_timer_t tick;
	struct conn *newest;
	unsigned connections, half_open;
	int open_handles, closing, freeing;
	uint64_t flush_until_ms;
};

static void join(struct conn *c);

/* ---------------------------------------------------------------- closing */

static void gate_maybe_free(struct gate *g)
{
	if (g->freeing && g->open_handles == 0 && g->connections == 0)
		free(g);
}

static void conn_gone(struct conn *c)
{
	struct gate *g = c->gate;

	*(c->prev ? &c->prev->next : &g->newest) = c->next;
	if (c->next)
		c->next->prev = c->prev;
	g->connections--;
	free(c->up.buffer);
	free(c->down.buffer);
	free(c);
	if (g->freeing && g->connections == 0 && !uv_is_closing((uv_handle_t *)&g->tick))
		gate_free(g);
	else
		gate_maybe_free(g);
}

static void on_handle_closed(uv_handle_t *h)
{
	struct conn *c = h->data;

	if (h == (uv_handle_t *)&c->back) {
		c->back_open = 0;
		if (c->again && c->state == CONN_JOINING) {
			c->again = 0;
			c->open_handles--;
			join(c);
			return;
		}
	}
	if (--c->open_handles == 0)
		conn_gone(c);
}

static void set_state(struct conn *c, enum conn_state s)
{
	c->gate->half_open -= c->state == CONN_HELLO;
	c->gate->half_open += s == CONN_HELLO;
	c->state = s;
	c->since_ms = uv_now(c->gate->cfg.loop);
}

static void conn_close(struct conn *c)
{
	if (c->state == CONN_CLOSING)
		return;
	set_state(c, CONN_CLOSING);
	uv_close((uv_handle_t *)&c->front, on_handle_closed);
	if (c->back_open && !uv_is_closing((uv_handle_t *)&c->back))
		uv_close((uv_handle_t *)&c->back, on_handle_closed);
}

/* ---------------------------------------------------------------- joined: bytes both ways */

static void flow_read(struct flow *f);

static void on_flow_written(uv_write_t *w, int status)
{
	struct flow *f = w->data;

	if (status < 0)
		conn_close(f->conn);
	else
		flow_read(f);
}

static void on_flow_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
	struct conn *c = h->data;
	struct flow *f = h == (uv_handle_t *)&c->front ? &c->up : &c->down;

	(void)suggested;
	*buf = uv_buf_init(f->buffer, GATE_BUFFER);
}

static void on_flow_data(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
	struct conn *c = s->data;
	struct flow *f = s == (uv_stream_t *)&c->front ? &c->up : &c->down;
	uv_buf_t out;

	if (n == 0)
		return;
	uv_read_stop(s);
	if (n < 0) {
		conn_close(c); /* what was read before has been written: a flow reads again only after that */
		return;
	}
	out = uv_buf_init(buf->base, (unsigned)n);
	f->write.data = f;
	if (uv_write(&f->write, (uv_stream_t *)f->to, &out, 1, on_flow_written))
		conn_close(c);
}

static void flow_read(struct flow *f)
{
	if (f->conn->state == CONN_JOINED && uv_read_start((uv_stream_t *)f->from, on_flow_alloc, on_flow_data))
		conn_close(f->conn);
}

static void on_answered(uv_write_t *w, int status)
{
	struct conn *c = w->data;

	if (status < 0)
		conn_close(c);
}

static void joined(struct conn *c)
{
	uv_buf_t buf = uv_buf_init((char *)c->answer, HELLO_BYTES);

	set_state(c, CONN_JOINED);
	c->up = (struct flow){.conn = c, .from = &c->front, .to = &c->back, .buffer = need(malloc(GATE_BUFFER))};
	c->down = (struct flow){.conn = c, .from = &c->back, .to = &c->front, .buffer = need(malloc(GATE_BUFFER))};
	c->write_answer.data = c;
	if (uv_write(&c->write_answer, (uv_stream_t *)&c->front, &buf, 1, on_answered)) {
		conn_close(c);
		return;
	}
	flow_read(&c->up);
	flow_read(&c->down);
}

/* ---------------------------------------------------------------- joining: the handshake with NNG */

/* The inner listener failed this connection. Whether it is dead or only busy, another try follows. */
static void join_failed(struct conn *c, int dead)
{
	struct gate *g = c->gate;

	if (c->state != CONN_JOINING || c->again)
		return;
	if (g->closing || ++c->tries >= TRIES) {
		conn_close(c);
		return;
	}
	c->again = 1;
	if (!uv_is_closing((uv_handle_t *)&c->back))
		uv_close((uv_handle_t *)&c->back, on_handle_closed);
	if (dead)
		g->cfg.dead(g->cfg.ctx);
}

static void on_answer_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
	struct conn *c = h->data;

	(void)suggested;
	*buf = uv_buf_init((char *)c->answer + c->answer_bytes, (unsigned)(HELLO_BYTES - c->answer_bytes));
}

static void on_answer(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
	struct conn *c = s->data;

	(void)buf;
	if (n < 0) {
		uv_read_stop(s);
		join_failed(c, 1);
		return;
	}
	c->answer_bytes += (size_t)n;
	if (c->answer_bytes < HELLO_BYTES)
		return;
	uv_read_stop(s);
	joined(c);
}

static void on_hello_passed(uv_write_t *w, int status)
{
	if (status < 0 && status != UV_ECANCELED)
		join_failed(w->data, 1);
}

static void on_connect(uv_connect_t *r, int status)
{
	struct conn *c = r->data;
	uv_buf_t buf = uv_buf_init((char *)c->hello, HELLO_BYTES);

	if (status == UV_ECANCELED || c->state != CONN_JOINING || c->again)
		return;
	c->write_hello.data = c;
	if (status < 0 || uv_read_start((uv_stream_t *)&c->back, on_answer_alloc, on_answer) ||
	    uv_write(&c->write_hello, (uv_stream_t *)&c->back, &buf, 1, on_hello_passed))
		join_failed(c, status != UV_EAGAIN);
}

static void join(struct conn *c)
{
	set_state(c, CONN_JOINING);
	uv_pipe_init(c->gate->cfg.loop, &c->back, 0);
	c->back.data = c;
	c->back_open = 1;
	c->open_handles++;
	c->answer_bytes = 0;
	c->connect.data = c;
	uv_pipe_connect(&c->connect, &c->back, c->inner, on_connect);
}

/* ---------------------------------------------------------------- the peer's hello */

static void on_hello_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
	struct conn *c = h->data;

	(void)suggested;
	*buf = uv_buf_init((char *)c->hello + c->hello_bytes, (unsigned)(HELLO_BYTES - c->hello_bytes));
}

static const char *door_of(struct conn *c)
{
	struct gate *g = c->gate;
	uv_os_fd_t fd;

	if (!g->cfg.door)
		return g->inner;
	return uv_fileno((uv_handle_t *)&c->front, &fd) ? NULL : g->cfg.door(g->cfg.ctx, fd);
}

static void on_hello(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
	struct conn *c = s->data;
	unsigned char want[HELLO_BYTES] = {0, 'S', 'P', 0};

	(void)buf;
	if (n < 0) {
		conn_close(c);
		return;
	}
	c->hello_bytes += (size_t)n;
	if (c->hello_bytes < HELLO_BYTES)
		return;
	uv_read_stop(s);
	want[4] = (unsigned char)(c->gate->cfg.peer_proto >> 8);
	want[5] = (unsigned char)c->gate->cfg.peer_proto;
	if (!memcmp(c->hello, want, HELLO_BYTES))
		c->inner = door_of(c);
	if (c->inner)
		join(c);
	else
		conn_close(c);
}

static void close_oldest_half_open(struct gate *g)
{
	struct conn *oldest = NULL;

	for (struct conn *c = g->newest; c; c = c->next)
		if (c->state == CONN_HELLO)
			oldest = c;
	if (oldest)
		conn_close(oldest);
}

static void on_connection(uv_stream_t *server, int status)
{
	struct gate *g = server->data;
	struct conn *c;

	if (status < 0) {
		log_warn("a connection was not accepted", "error=%s", log_quote(uv_strerror(status)));
		return;
	}
	c = need(calloc(1, sizeof *c));
	c->gate = g;
	uv_pipe_init(g->cfg.loop, &c->front, 0);
	c->front.data = c;
	c->open_handles = 1;
	c->next = g->newest;
	if (c->next)
		c->next->prev = c;
	g->newest = c;
	g->connections++;
	g->half_open++;
	c->since_ms = uv_now(g->cfg.loop);
	if (uv_accept(server, (uv_stream_t *)&c->front) || g->connections > LIMIT_CONNECTIONS) {
		log_warn("a connection was turned away", "connections=%u limit=%d", g->connections, LIMIT_CONNECTIONS);
		conn_close(c);
		return;
	}
	if (g->half_open > LIMIT_HALF_OPEN)
		close_oldest_half_open(g);
	if (uv_read_start((uv_stream_t *)&c->front, on_hello_alloc, on_hello))
		conn_close(c);
}

/* ---------------------------------------------------------------- time */

static void on_tick(uv_timer_t *t)
{
	struct gate *g = t->data;
	uint64_t now = uv_now(g->cfg.loop);

	for (struct conn *c = g->newest, *next; c; c = next) {
		next = c->next;
		if (c->state == CONN_HELLO && now - c->since_ms > LIMIT_HELLO_MS)
			conn_close(c);
		else if (c->state == CONN_JOINING && now - c->since_ms > LIMIT_JOIN_MS)
			join_failed(c, 1);
		else if (g->freeing && now > g->flush_until_ms)
			conn_close(c);
	}
}

/* ---------------------------------------------------------------- life */

static void on_own_closed(uv_handle_t *h)
{
	struct gate *g = h->data;

	g->open_handles--;
	gate_maybe_free(g);
}

int gate_new(const struct gate_config *cfg, struct gate **out, struct fh_status *st)
{
	struct gate *g = need(calloc(1, sizeof *g));
	int rv;

	g->cfg = *cfg;
	snprintf(g->path, sizeof g->path, "%s", cfg->path);
	snprintf(g->inner, sizeof g->inner, "%s", cfg->inner ? cfg->inner : "");
	uv_pipe_init(cfg->loop, &g->server, 0);
	uv_timer_init(cfg->loop, &g->tick);
	g->server.data = g->tick.data = g;
	g->open_handles = 2;
	rv = uv_pipe_bind(&g->server, g->path);
	if (!rv && chmod(g->path, cfg->mode)) /* between bind and listen nobody can connect */
		rv = UV_EPERM;
	if (!rv)
		rv = uv_listen((uv_stream_t *)&g->server, BACKLOG, on_connection);
	if (rv) {
		gate_close_begin(g);
		gate_free(g);
		return fh_fail_field(st, FH_UNAVAILABLE, "listen", "%s: %s", cfg->path, uv_strerror(rv));
	}
	uv_timer_start(&g->tick, on_tick, TICK_MS, TICK_MS);
	*out = g;
	return 0;
}

unsigned gate_connections(const struct gate *g)
{
	return g->connections;
}

void gate_close_begin(struct gate *g)
{
	if (g->closing)
		return;
	g->closing = 1;
	uv_close((uv_handle_t *)&g->server, on_own_closed); /* removes the path as well */
	for (struct conn *c = g->newest, *next; c; c = next) {
		next = c->next;
		if (c->state == CONN_HELLO)
			conn_close(c);
	}
}

void gate_free(struct gate *g)
{
	if (!g)
		return;
	gate_close_begin(g);
	if (!g->freeing) {
		g->freeing = 1;
		uv_update_time(g->cfg.loop);
		g->flush_until_ms = uv_now(g->cfg.loop) + LIMIT_FLUSH_MS;
	}
	if (g->connections == 0 && !uv_is_closing((uv_handle_t *)&g->tick))
		uv_close((uv_handle_t *)&g->tick, on_own_closed);
}
