/* One REQ connection to an ipc address without NNG: a Unix socket that speaks SP (eight bytes of greeting, then messages of one
 * byte, a length and, for REQ and REP, the id of the request).
 *
 * Why: a client that sends one request needs no threads. NNG starts a dozen before the first connection, which is most of the
 * time between `fhctl start` and the daemon. One thread; nothing here outlasts its deadline. */
#ifndef FH_CLIENT_IPC_H
#define FH_CLIENT_IPC_H

#include <stddef.h>
#include <stdint.h>

struct fh_status;

/* The path of an ipc:// address, NULL for another one. */
const char *ipc_path(const char *url);
/* 0 and a connected descriptor; FH_UNAVAILABLE, FH_DENIED, FH_INVALID (the path is too long), FH_INTERRUPTED. */
int ipc_open(const char *url, int64_t deadline_ns, const volatile int *interrupt, int *fd, struct fh_status *st);
/* The other side has gone, or says something unasked: the connection is of no use. */
int ipc_is_broken(int fd);
/* Sends the request; *sent is 1 once any of it may have arrived. Then waits for its answer: malloc'ed. 0, 1: the connection broke,
 * FH_DEADLINE, FH_INTERRUPTED, FH_EXHAUSTED, FH_CORRUPT (not an SP message, or one above `most` bytes). */
int ipc_exchange(int fd, const void *request, size_t bytes, size_t most, int64_t deadline_ns, const volatile int *interrupt, int *sent,
		 void **reply, size_t *reply_bytes);

#endif
