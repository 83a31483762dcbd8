/* Parked trainers; see pool.h. */
#include "daemon/pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/limits.h"
#include "proto/status.h"

struct parked { struct trainer *trainer; size_t bytes; };

struct pool {
	const struct backend *backend;
	size_t limit;
	pthread_mutex_t lock;
	struct parked parked[LIMIT_PARKED]; /* [0] was parked first */
	unsigned count;
	size_t parked_bytes, live_bytes;
	struct device_info device;          /* as a worker last saw it */
};

/* Only workers ask the device: a hung one must not hang whoever asks for information. */
static void look_at_device(struct pool *p)
{
	struct device_info now;

	if (p->backend->info(p->backend, &now, NULL))
		return;
	pthread_mutex_lock(&p->lock);
	p->device = now;
	pthread_mutex_unlock(&p->lock);
}

void pool_device(struct pool *p, struct device_info *out)
{
	pthread_mutex_lock(&p->lock);
	*out = p->device;
	pthread_mutex_unlock(&p->lock);
}

int pool_new(const struct backend *b, size_t limit_bytes, struct pool **out, struct fh_status *st)
{
	struct pool *p = calloc(1, sizeof *p);

	if (!p)
		return fh_fail(st, FH_EXHAUSTED, "no memory for the trainer pool");
	p->backend = b;
	p->limit = limit_bytes;
	pthread_mutex_init(&p->lock, NULL);
	look_at_device(p);
	*out = p;
	return 0;
}

void pool_free(struct pool *p)
{
	if (!p)
		return;
	for (unsigned i = 0; i < p->count; i++)
		trainer_free(p->parked[i].trainer);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

/* Takes entry i out of the list; its bytes are no longer parked. Lock held. */
static struct parked take_out(struct pool *p, unsigned i)
{
	struct parked e = p->parked[i];

	p->count--;
	memmove(&p->parked[i], &p->parked[i + 1], (p->count - i) * sizeof p->parked[0]);
	p->parked_bytes -= e.bytes;
	return e;
}

static struct trainer *take_fitting(struct pool *p, const struct fh_spec *spec)
{
	for (unsigned i = p->count; i-- > 0;)
		if (trainer_fits(p->parked[i].trainer, spec))
			return take_out(p, i).trainer;
	return NULL;
}

int pool_take(struct pool *p, const struct fh_spec *spec, size_t bytes, struct trainer **out, int *reused,
	      struct fh_status *st)
{
	struct trainer *evicted[LIMIT_PARKED], *t;
	unsigned n = 0;
	int rc = 0;

	pthread_mutex_lock(&p->lock);
	t = take_fitting(p, spec);
	while (!t && p->count && p->live_bytes + p->parked_bytes + bytes > p->limit)
		evicted[n++] = take_out(p, 0).trainer;
	p->live_bytes += bytes;
	pthread_mutex_unlock(&p->lock);
	for (unsigned i = 0; i < n; i++)
		trainer_free(evicted[i]);
	*reused = t != NULL;
	if (!t)
		rc = trainer_new(p->backend, spec, &t, st);
	if (rc) {
		pthread_mutex_lock(&p->lock);
		p->live_bytes -= bytes;
		pthread_mutex_unlock(&p->lock);
		return rc;
	}
	look_at_device(p);
	*out = t;
	return 0;
}

void pool_park(struct pool *p, struct trainer *t, size_t bytes)
{
	struct trainer *evicted = NULL;

	pthread_mutex_lock(&p->lock);
	p->live_bytes -= bytes;
	if (p->count == LIMIT_PARKED)
		evicted = take_out(p, 0).trainer;
	p->parked[p->count++] = (struct parked){t, bytes};
	p->parked_bytes += bytes;
	pthread_mutex_unlock(&p->lock);
	trainer_free(evicted);
	look_at_device(p);
}

void pool_drop(struct pool *p, struct trainer *t, size_t bytes)
{
	trainer_free(t);
	pthread_mutex_lock(&p->lock);
	p->live_bytes -= bytes;
	pthread_mutex_unlock(&p->lock);
	look_at_device(p);
}

void pool_stats(struct pool *p, unsigned *parked, size_t *live_bytes, size_t *parked_bytes)
{
	pthread_mutex_lock(&p->lock);
	*parked = p->count;
	*live_bytes = p->live_bytes;
	*parked_bytes = p->parked_bytes;
	pthread_mutex_unlock(&p->lock);
}

size_t pool_limit(const struct pool *p)
{
	return p->limit;
}
