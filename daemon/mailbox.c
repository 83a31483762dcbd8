/* Bounded rings; see mailbox.h. */
#include "daemon/mailbox.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int ring_init(struct ring *r, size_t item, unsigned capacity, struct fh_status *st)
{
	memset(r, 0, sizeof *r);
	r->slot = calloc(capacity, item);
	if (!r->slot)
		return fh_fail(st, FH_EXHAUSTED, "no memory for a ring of %u items of %zu bytes", capacity, item);
	r->item = item;
	r->capacity = capacity;
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->room, NULL);
	return 0;
}

void ring_release(struct ring *r)
{
	if (!r->slot)
		return;
	pthread_mutex_destroy(&r->lock);
	pthread_cond_destroy(&r->room);
	free(r->slot);
	r->slot = NULL;
}

static void put(struct ring *r, const void *item)
{
	unsigned at = (r->head + r->count) % r->capacity;

	assert(r->count < r->capacity);
	memcpy(r->slot + at * r->item, item, r->item);
	r->count++;
}

static void advance(struct ring *r)
{
	r->head = (r->head + 1) % r->capacity;
	r->count--;
}

int ring_push(struct ring *r, const void *item)
{
	int fits;

	pthread_mutex_lock(&r->lock);
	fits = r->count < r->capacity;
	if (fits)
		put(r, item);
	pthread_mutex_unlock(&r->lock);
	return fits;
}

void ring_push_over(struct ring *r, const void *item)
{
	pthread_mutex_lock(&r->lock);
	if (r->count == r->capacity) {
		advance(r);
		r->dropped++;
	}
	put(r, item);
	pthread_mutex_unlock(&r->lock);
}

void ring_push_wait(struct ring *r, const void *item)
{
	pthread_mutex_lock(&r->lock);
	while (r->count == r->capacity)
		pthread_cond_wait(&r->room, &r->lock);
	put(r, item);
	pthread_mutex_unlock(&r->lock);
}

int ring_pop(struct ring *r, void *item)
{
	int any;

	pthread_mutex_lock(&r->lock);
	any = r->count > 0;
	if (any) {
		memcpy(item, r->slot + r->head * r->item, r->item);
		advance(r);
		pthread_cond_signal(&r->room);
	}
	pthread_mutex_unlock(&r->lock);
	return any;
}

uint64_t ring_dropped(struct ring *r)
{
	uint64_t n;

	pthread_mutex_lock(&r->lock);
	n = r->dropped;
	pthread_mutex_unlock(&r->lock);
	return n;
}
