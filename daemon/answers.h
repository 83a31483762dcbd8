/* Answers kept for repeated request ids, so that a client whose reply got lost may send its request again.
 *
 * Thread: loop. Bounded by LIMIT_ANSWERS entries and LIMIT_ANSWERS_BYTES bytes; the oldest answered ones go first. An
 * entry is IN_WORK from its first request to its answer; the same id meanwhile waits for that answer. */
#ifndef FHD_ANSWERS_H
#define FHD_ANSWERS_H

#include <stddef.h>
#include <stdint.h>
#include "daemon/limits.h"

struct answers;
struct rpc_call;

enum answer_state { ANSWER_IN_WORK, ANSWER_BYTES, ANSWER_JOB };

struct answer {
	char id[LIMIT_REQUEST_ID + 1];
	enum answer_state state;
	uint64_t hash;            /* of the request's bytes; 0 with ANSWER_JOB */
	int call;
	uint64_t job;             /* ANSWER_JOB: a StartJob that an earlier process accepted */
	void *data;               /* ANSWER_BYTES */
	size_t bytes;
	struct rpc_call *waiting; /* IN_WORK: repeats of it, chained by call->repeat_next */
	struct answer *bucket_next, *older, *newer;
};

struct answers *answers_new(void); /* NULL: no memory */
void answers_free(struct answers *as);
struct answer *answers_find(struct answers *as, const char *id);
/* A new entry IN_WORK, NULL when LIMIT_ANSWERS are in work at once (then the answer is not kept). */
struct answer *answers_begin(struct answers *as, const char *id, int call, uint64_t hash);
/* Keeps a copy of the bytes, or forgets the entry when they are too many. `a` may be gone afterwards. */
void answers_end(struct answers *as, struct answer *a, const void *data, size_t bytes);
void answers_forget(struct answers *as, struct answer *a);
void answers_remember_job(struct answers *as, const char *id, int call, uint64_t job);
uint64_t answers_hash(const void *data, size_t bytes);

#endif
