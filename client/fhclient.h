/* The C library of fhd's clients: one connection, calls with a deadline, following a job's samples.
 *
 * A client belongs to one thread. Nothing here waits longer than the deadline it is given, whatever the daemon does.
 * A lost call is repeated only when repeating cannot change anything (reads); otherwise the code is FH_UNKNOWN.
 * Codes: those the daemon answers with, and FH_UNAVAILABLE (nobody listens), FH_VERSION (another protocol),
 * FH_DEADLINE (a read got no answer in time), FH_UNKNOWN (a change was sent, no answer came), FH_CORRUPT (the answer is
 * damaged), FH_INTERRUPTED (the interrupt flag was raised). */
#ifndef FH_CLIENT_H
#define FH_CLIENT_H

#include <stdint.h>
#include "proto/fh.pb-c.h"
#include "proto/status.h"
#include "proto/wire.h"

struct fh_client;

#define FH_CALL_TIMEOUT_MS 10000 /* of one call, unless the caller says otherwise */
#define FH_URL_MAX 256

/* The URL to use: `given`, else $FHD_URL, else ipc://$XDG_RUNTIME_DIR/fhd.sock when that file exists, else
 * ipc:///run/fhd/fhd.sock. FH_INVALID for a scheme other than ipc:// and tcp:// or one that is too long. */
int fh_client_url(const char *given, char url[FH_URL_MAX], struct fh_status *st);

/* Makes a client; connects with the first call. `name` ("fhctl 0.1.0") appears in the daemon's log. */
int fh_client_new(const char *url, const char *name, struct fh_client **out, struct fh_status *st);
void fh_client_free(struct fh_client *c); /* NULL allowed */
const char *fh_client_address(const struct fh_client *c);
/* Whether the last call was answered by the daemon, if only with an error: tells its FH_UNAVAILABLE (draining) from ours. */
int fh_client_answered(const struct fh_client *c);
/* Calls give up with FH_INTERRUPTED when *flag becomes non-zero: a signal handler sets it, in any thread. */
void fh_client_interrupt(struct fh_client *c, const volatile int *flag);

struct fh_answer {
	struct fh_arena arena;  /* holds everything below */
	Fh__V1__Reply *reply;
};

/* Fills in magic, protocol, client and, where absent, a new request id; sends; waits for the answer. The caller sets
 * call_case and the call's message. 0: a reply without an error whose result fits the call. */
int fh_client_call(struct fh_client *c, Fh__V1__Request *req, int64_t timeout_ms, struct fh_answer *out,
		   struct fh_status *st);
void fh_answer_release(struct fh_answer *a);

/* ---- following: every sample of a job with seq > since, in order, none twice, gaps refilled by polling.
 * Subscribes to the daemon's publisher where it can, polls where it cannot, and rides out a daemon restart for
 * `patience_ms`. */
struct fh_follow;
int fh_follow_new(struct fh_client *c, uint64_t job, uint64_t since, int64_t patience_ms, struct fh_follow **out,
		  struct fh_status *st);
void fh_follow_free(struct fh_follow *f);
/* The next sample into *out (valid until the next call), waiting at most timeout_ms.
 * 1: a sample. 0: none in that time. Negative: FH_UNAVAILABLE when the patience is over, FH_NOT_FOUND when the job is
 * gone, … */
int fh_follow_next(struct fh_follow *f, int64_t timeout_ms, const Fh__V1__Sample **out, struct fh_status *st);
/* Last state the daemon told (JOB_STATE_UNSPECIFIED at first), and whether the daemon is away at the moment. */
Fh__V1__JobState fh_follow_state(const struct fh_follow *f);
int fh_follow_away(const struct fh_follow *f);
/* 1 when the job has ended and every sample of it was handed out. */
int fh_follow_done(const struct fh_follow *f);
uint64_t fh_follow_seq(const struct fh_follow *f); /* of the last sample handed out */

#endif
