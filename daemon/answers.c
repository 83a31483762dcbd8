/* Answers kept for repeated request ids; see answers.h. */
#include "daemon/answers.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 4096 /* power of two */

struct answers {
	struct answer *bucket[BUCKETS];
	struct answer *oldest, *newest;
	size_t count, bytes;
};

#define PRIME 1099511628211ull
#define LARGE 65536 /* chunks of bars: read by words, four at a time, so that hashing them costs no more than copying */

static uint64_t hash_large(const unsigned char *p, size_t bytes)
{
	uint64_t lane[4] = {1, 2, 3, 4}, w[4], h = 0;

	for (size_t i = 0; i + sizeof w <= bytes; i += sizeof w) {
		memcpy(w, p + i, sizeof w);
		for (int k = 0; k < 4; k++) {
			lane[k] = (lane[k] ^ w[k]) * PRIME;
			lane[k] ^= lane[k] >> 29; /* high bits reach the low ones too */
		}
	}
	for (int k = 0; k < 4; k++)
		h = (h ^ lane[k]) * PRIME ^ lane[k] >> 32;
	return h;
}

uint64_t answers_hash(const void *data, size_t bytes)
{
	const unsigned char *p = data;
	size_t i = bytes < LARGE ? 0 : bytes & ~(size_t)31;
	uint64_t h = i ? hash_large(p, i) : 14695981039346656037ull;

	for (; i < bytes; i++)
		h = (h ^ p[i]) * PRIME;
	return h ? h : 1;
}

static struct answer **bucket_of(struct answers *as, const char *id)
{
	uint64_t h = answers_hash(id, strlen(id));

	return &as->bucket[(h ^ h >> 32) & (BUCKETS - 1)];
}

struct answers *answers_new(void)
{
	return calloc(1, sizeof(struct answers));
}

void answers_free(struct answers *as)
{
	if (!as)
		return;
	while (as->oldest)
		answers_forget(as, as->oldest);
	free(as);
}

struct answer *answers_find(struct answers *as, const char *id)
{
	struct answer *a = *bucket_of(as, id);

	while (a && strcmp(a->id, id))
		a = a->bucket_next;
	return a;
}

void answers_forget(struct answers *as, struct answer *a)
{
	struct answer **p = bucket_of(as, a->id);

	while (*p && *p != a)
		p = &(*p)->bucket_next;
	assert(*p == a);
	*p = a->bucket_next;
	*(a->older ? &a->older->newer : &as->oldest) = a->newer;
	*(a->newer ? &a->newer->older : &as->newest) = a->older;
	as->count--;
	as->bytes -= a->bytes;
	free(a->data);
	free(a);
}

/* Makes room for `entries` more with `bytes`; entries in work stay. 0 when there is none to be made. */
static int make_room(struct answers *as, size_t entries, size_t bytes)
{
	struct answer *a = as->oldest;

	while (a && (as->count + entries > LIMIT_ANSWERS || as->bytes + bytes > LIMIT_ANSWERS_BYTES)) {
		struct answer *newer = a->newer;

		if (a->state != ANSWER_IN_WORK)
			answers_forget(as, a);
		a = newer;
	}
	return as->count + entries <= LIMIT_ANSWERS && as->bytes + bytes <= LIMIT_ANSWERS_BYTES;
}

struct answer *answers_begin(struct answers *as, const char *id, int call, uint64_t hash)
{
	struct answer *a, **p;

	if (!make_room(as, 1, 0) || !(a = calloc(1, sizeof *a)))
		return NULL;
	snprintf(a->id, sizeof a->id, "%s", id);
	a->call = call;
	a->hash = hash;
	p = bucket_of(as, id);
	a->bucket_next = *p;
	*p = a;
	a->older = as->newest;
	*(as->newest ? &as->newest->newer : &as->oldest) = a;
	as->newest = a;
	as->count++;
	return a;
}

void answers_end(struct answers *as, struct answer *a, const void *data, size_t bytes)
{
	assert(a->state == ANSWER_IN_WORK);
	if (bytes > LIMIT_ANSWER_BYTES || !make_room(as, 0, bytes) || !(a->data = malloc(bytes ? bytes : 1))) {
		answers_forget(as, a);
		return;
	}
	memcpy(a->data, data, bytes);
	a->bytes = bytes;
	as->bytes += bytes;
	a->state = ANSWER_BYTES;
}

void answers_remember_job(struct answers *as, const char *id, int call, uint64_t job)
{
	struct answer *a;

	if (!*id || strlen(id) > LIMIT_REQUEST_ID || answers_find(as, id) || !(a = answers_begin(as, id, call, 0)))
		return;
	a->state = ANSWER_JOB;
	a->job = job;
}
