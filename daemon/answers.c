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

uint64_t answers_hash(const void *data, size_t bytes)
{
	const unsigned char *p = data;
	uint64_t h = 14695981039346656037ull;

	for (size_t i = 0; i < bytes; i++)
		h = (h ^ p[i]) * 1099511628211ull;
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
