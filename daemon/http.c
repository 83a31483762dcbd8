/* See http.h. */
#include "daemon/http.h"
#include "proto/status.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct connection {
	struct connection *next;
	struct http *http;
	uv_tcp_t tcp;
	uv_timer_t deadline;
	uv_write_t write;
	int handles, closing, answered;
	size_t got;
	char in[HTTP_REQUEST_BYTES + 1];
	char *out;
};

struct http {
	uv_tcp_t tcp;
	uv_loop_t *loop;
	struct http_source source;
	struct connection *connection;
	unsigned connections;
};

/* ---------------------------------------------------------------- connections */

static void handle_closed(uv_handle_t *h)
{
	struct connection *c = h->data;

	if (--c->handles)
		return;
	free(c->out);
	free(c);
}

static void connection_end(struct connection *c)
{
	struct connection **p;

	if (c->closing)
		return;
	c->closing = 1;
	for (p = &c->http->connection; *p != c;)
		p = &(*p)->next;
	*p = c->next;
	c->http->connections--;
	uv_close((uv_handle_t *)&c->deadline, handle_closed);
	uv_close((uv_handle_t *)&c->tcp, handle_closed);
}

static void on_deadline(uv_timer_t *t)
{
	connection_end(t->data);
}

static void on_written(uv_write_t *w, int status)
{
	connection_end(w->data);
}

static void respond(struct connection *c, int code, const char *reason, const char *type, const char *body, size_t bytes, int head)
{
	uv_buf_t buf;
	int n;

	c->answered = 1;
	uv_read_stop((uv_stream_t *)&c->tcp);
	c->out = malloc(512 + bytes);
	if (!c->out) {
		connection_end(c);
		return;
	}
	n = snprintf(c->out, 512, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n"
		     "X-Content-Type-Options: nosniff\r\n%sConnection: close\r\n\r\n", code, reason, type, bytes,
		     code == 405 ? "Allow: GET, HEAD\r\n" : "");
	if (!head)
		memcpy(c->out + n, body, bytes);
	buf = uv_buf_init(c->out, (unsigned)((size_t)n + (head ? 0 : bytes)));
	c->write.data = c;
	if (uv_write(&c->write, (uv_stream_t *)&c->tcp, &buf, 1, on_written))
		connection_end(c);
}

static void respond_text(struct connection *c, int code, const char *reason, const char *text, int head)
{
	char line[600];
	int n = snprintf(line, sizeof line, "%.590s\n", text);

	respond(c, code, reason, "text/plain; charset=utf-8", line, (size_t)n, head);
}

static void respond_metrics(struct connection *c, int head)
{
	const struct http_source *s = &c->http->source;
	char *text = malloc(HTTP_REPLY_BYTES);
	size_t n;

	if (!text) {
		respond_text(c, 503, "Service Unavailable", "no memory", head);
		return;
	}
	n = s->metrics(s->arg, text, HTTP_REPLY_BYTES);
	respond(c, 200, "OK", "text/plain; version=0.0.4; charset=utf-8", text, n, head);
	free(text);
}

static void route(struct connection *c, const char *target, int head)
{
	const struct http_source *s = &c->http->source;
	char why[512] = "ok";
	size_t n = strcspn(target, "?");
	int good;

	if (n == 8 && !memcmp(target, "/metrics", 8)) {
		respond_metrics(c, head);
		return;
	}
	if (n == 8 && !memcmp(target, "/healthz", 8))
		good = s->healthy(s->arg, why, sizeof why);
	else if (n == 7 && !memcmp(target, "/readyz", 7))
		good = s->ready(s->arg, why, sizeof why);
	else {
		respond_text(c, 404, "Not Found", "there are /metrics, /healthz and /readyz", head);
		return;
	}
	respond_text(c, good ? 200 : 503, good ? "OK" : "Service Unavailable", good ? "ok" : why, head);
}

/* "GET /metrics HTTP/1.1": exactly three words. What follows the first line does not matter here. */
static void answer(struct connection *c)
{
	char *line_end = strstr(c->in, "\r\n"), *target, *version;
	int head;

	*line_end = 0;
	target = strchr(c->in, ' ');
	version = target ? strchr(target + 1, ' ') : NULL;
	if (!version || strncmp(version + 1, "HTTP/1.", 7) || strlen(version + 1) != 8) {
		respond_text(c, 400, "Bad Request", "this is no HTTP/1 request", 0);
		return;
	}
	*target++ = 0;
	*version = 0;
	head = !strcmp(c->in, "HEAD");
	if (!head && strcmp(c->in, "GET"))
		respond_text(c, 405, "Method Not Allowed", "only GET and HEAD", 0);
	else
		route(c, target, head);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
	struct connection *c = h->data;

	*buf = uv_buf_init(c->in + c->got, (unsigned)(HTTP_REQUEST_BYTES - c->got));
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
	struct connection *c = s->data;

	if (c->answered || !n)
		return;
	if (n < 0) {
		if (n == UV_ENOBUFS && c->got == HTTP_REQUEST_BYTES)
			respond_text(c, 431, "Request Header Fields Too Large", "the request is too long", 0);
		else
			connection_end(c);
		return;
	}
	c->got += (size_t)n;
	c->in[c->got] = 0;
	if (memchr(c->in, 0, c->got))
		respond_text(c, 400, "Bad Request", "this is no HTTP/1 request", 0);
	else if (strstr(c->in, "\r\n\r\n"))
		answer(c);
	else if (c->got == HTTP_REQUEST_BYTES)
		respond_text(c, 431, "Request Header Fields Too Large", "the request is too long", 0);
}

static void on_connection(uv_stream_t *server, int status)
{
	struct http *h = server->data;
	struct connection *c;

	if (status < 0)
		return;
	c = calloc(1, sizeof *c);
	if (!c)
		return;
	c->http = h;
	c->tcp.data = c->deadline.data = c;
	c->handles = 2;
	c->next = h->connection;
	h->connection = c;
	h->connections++;
	uv_tcp_init(h->loop, &c->tcp);
	uv_timer_init(h->loop, &c->deadline);
	if (uv_accept(server, (uv_stream_t *)&c->tcp) || h->connections > HTTP_CONNECTIONS_MAX ||
	    uv_timer_start(&c->deadline, on_deadline, HTTP_DEADLINE_MS, 0) ||
	    uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read))
		connection_end(c);
}

/* ---------------------------------------------------------------- the server */

static int parse(const char *address, int anywhere, struct sockaddr_storage *out, struct fh_status *st)
{
	const char *colon = strrchr(address, ':');
	char host[64], *end;
	size_t n = colon ? (size_t)(colon - address) : 0;
	long port = colon ? strtol(colon + 1, &end, 10) : -1;
	int v6 = n > 2 && address[0] == '[' && address[n - 1] == ']', rc, loopback;

	if (!colon || n >= sizeof host || !colon[1] || *end || port < 0 || port > 65535)
		return fh_fail_field(st, FH_INVALID, "http", "\"%.100s\" is no address like 127.0.0.1:9178 or [::1]:9178", address);
	snprintf(host, sizeof host, "%.*s", (int)(v6 ? n - 2 : n), v6 ? address + 1 : address);
	rc = v6 ? uv_ip6_addr(host, (int)port, (struct sockaddr_in6 *)out) : uv_ip4_addr(host, (int)port, (struct sockaddr_in *)out);
	if (rc)
		return fh_fail_field(st, FH_INVALID, "http", "\"%.100s\": %s is no numeric address", address, host);
	loopback = v6 ? IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)out)->sin6_addr)
		      : ntohl(((struct sockaddr_in *)out)->sin_addr.s_addr) >> 24 == 127;
	if (!loopback && !anywhere)
		return fh_fail_field(st, FH_DENIED, "http", "%s is not a loopback address: put a proxy in front of one, or set insecure_tcp", host);
	return 0;
}

static void server_closed(uv_handle_t *s)
{
	free(s->data);
}

int http_listen(uv_loop_t *loop, const char *address, int anywhere, const struct http_source *source, struct http **out,
		struct fh_status *st)
{
	struct sockaddr_storage at;
	struct http *h;
	int rc = parse(address, anywhere, &at, st);

	if (rc)
		return rc;
	h = calloc(1, sizeof *h);
	if (!h)
		return fh_fail(st, FH_EXHAUSTED, "no memory for the HTTP server");
	h->loop = loop;
	h->source = *source;
	h->tcp.data = h;
	uv_tcp_init(loop, &h->tcp);
	rc = uv_tcp_bind(&h->tcp, (struct sockaddr *)&at, 0);
	if (!rc)
		rc = uv_listen((uv_stream_t *)&h->tcp, HTTP_CONNECTIONS_MAX, on_connection);
	if (rc) {
		uv_close((uv_handle_t *)&h->tcp, server_closed);
		return fh_fail_field(st, FH_UNAVAILABLE, "http", "%s: %s", address, uv_strerror(rc));
	}
	*out = h;
	return 0;
}

int http_port(const struct http *h)
{
	struct sockaddr_storage at;
	int n = sizeof at;

	if (uv_tcp_getsockname(&h->tcp, (struct sockaddr *)&at, &n))
		return 0;
	return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port : ((struct sockaddr_in *)&at)->sin_port);
}

void http_close(struct http *h)
{
	if (!h)
		return;
	while (h->connection)
		connection_end(h->connection);
	uv_close((uv_handle_t *)&h->tcp, server_closed);
}
