/* /metrics (Prometheus text), /healthz and /readyz on a TCP address of this machine. Off unless configured.
 *
 * Loop thread, on libuv: NNG's HTTP server (1.5.2) has no bound on connections or time and reads behind the end of some paths. Here
 * a connection carries one request of at most HTTP_REQUEST_BYTES, is answered and closed; it has HTTP_DEADLINE_MS for all
 * of that. Answers come from what the loop has: a hung device cannot hang them. */
#ifndef FHD_HTTP_H
#define FHD_HTTP_H

#include <stddef.h>
#include <uv.h>

struct daemon;
struct fh_status;
struct http;

#define HTTP_CONNECTIONS_MAX 32
#define HTTP_REQUEST_BYTES 4096
#define HTTP_DEADLINE_MS 5000
#define HTTP_REPLY_BYTES (256 << 10)

/* What is served. `metrics` fills text and returns its length; `healthy` returns 1, or 0 and a reason. */
struct http_source {
	size_t (*metrics)(void *arg, char *text, size_t size);
	int (*healthy)(void *arg, char *why, size_t size);
	int (*ready)(void *arg, char *why, size_t size);
	void *arg;
};
/* address: "127.0.0.1:9178", "[::1]:9178"; port 0 takes a free one. Others than loopback only with `anywhere`. FH_INVALID,
 * FH_UNAVAILABLE (in use). */
int http_listen(uv_loop_t *loop, const char *address, int anywhere, const struct http_source *source, struct http **out,
		struct fh_status *st);
int http_port(const struct http *h);
/* Closes everything; memory goes as the handles close. NULL is fine. */
void http_close(struct http *h);

/* The same with the daemon's own pages (http_metrics.c). */
int http_open(struct daemon *d, const char *address, int anywhere, struct http **out, struct fh_status *st);

#endif
