/* The front door of an ipc listener: accepts on the public path, checks the peer's SP hello, and only then opens a
 * connection to the NNG socket behind it and passes bytes both ways.
 *
 * Why: NNG 1.5.2 stops accepting for good after one peer went away in the middle of its handshake, has no bound on
 * half-open connections, and lets a peer of the wrong protocol get that far. Behind the gate NNG sees nothing but
 * complete handshakes of the right protocol. If its listener should die all the same, the gate notices at the next
 * connection, has it brought back (`dead`), and tries again: the client sees a short wait.
 * Thread: loop. Bounds: LIMIT_CONNECTIONS, LIMIT_HALF_OPEN (the oldest goes), LIMIT_HELLO_MS, one GATE_BUFFER per
 * direction. */
#ifndef FHD_GATE_H
#define FHD_GATE_H

#include <stdint.h>
#include <uv.h>
#include "proto/status.h"

#define GATE_BUFFER (64 << 10)

struct gate;

struct gate_config {
	uv_loop_t *loop;
	const char *path;        /* public; the caller holds its lock and has removed what was there */
	const char *inner;       /* of the NNG listener */
	/* Instead, where peers are told apart: the NNG listener for the one at `fd`, NULL when it is not let in. */
	const char *(*door)(void *ctx, int fd);
	int peer_proto;          /* SP number that a peer must say */
	unsigned mode;           /* of the public path, set before the first connection can come */
	void (*dead)(void *ctx); /* the inner listener does not answer: listen again now */
	void *ctx;
};
/* Listens. FH_UNAVAILABLE names the path. */
int gate_new(const struct gate_config *cfg, struct gate **out, struct fh_status *st);
unsigned gate_connections(const struct gate *g); /* open ones, hello or not */
/* No new connections; those without a hello end. */
void gate_close_begin(struct gate *g);
/* After NNG has closed: what it wrote still goes out, for LIMIT_FLUSH_MS at most; the loop runs until that is over.
 * Frees g by itself. NULL is fine. */
void gate_free(struct gate *g);

#endif
