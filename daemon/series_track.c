/* The tracks of the series: one ring of packed samples a job, and which of them memory keeps; see series_internal.h.
 *
 * Loop thread. Invariant: what the disk does not have yet is never let go of; series->stats.bytes is the sum over all rings. */
#include "daemon/series_internal.h"
#include "daemon/need.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct track *track_find(const struct series *s, uint64_t job)
{
	return job < s->tracks ? s->track[job] : NULL;
}

struct track *track_get(struct series *s, uint64_t job)
{
	struct track *t = track_find(s, job);

	if (t)
		return t;
	if (job >= s->tracks) {
		size_t n = s->tracks ? s->tracks : 64;

		while (n <= job)
			n *= 2;
		s->track = need(realloc(s->track, n * sizeof *s->track));
		memset(s->track + s->tracks, 0, (n - s->tracks) * sizeof *s->track);
		s->tracks = n;
	}
	t = s->track[job] = need(calloc(1, sizeof *t));
	t->job = job;
	t->first_kept = t->first_held = 1;
	return t;
}

struct item *track_item(const struct track *t, uint64_t seq)
{
	assert(seq >= t->first_held && seq < t->first_held + t->held);
	return &t->ring[(t->head + (seq - t->first_held)) & (t->room - 1)];
}

static void lru_remove(struct series *s, struct track *t)
{
	if (t->older)
		t->older->newer = t->newer;
	else if (s->oldest == t)
		s->oldest = t->newer;
	if (t->newer)
		t->newer->older = t->older;
	else if (s->newest == t)
		s->newest = t->older;
	t->older = t->newer = NULL;
}

static void lru_touch(struct series *s, struct track *t)
{
	lru_remove(s, t);
	t->older = s->newest;
	if (s->newest)
		s->newest->newer = t;
	else
		s->oldest = t;
	s->newest = t;
}

void track_forget(struct series *s, struct track *t, size_t n)
{
	for (; n; n--) {
		struct item *i = track_item(t, t->first_held);

		s->stats.bytes -= i->bytes;
		free(i->packed);
		t->head = (t->head + 1) & (t->room - 1);
		t->held--;
		t->first_held++;
	}
	if (!t->held) {
		free(t->ring);
		t->ring = NULL;
		t->room = t->head = 0;
		lru_remove(s, t);
	}
}

void track_push(struct series *s, struct track *t, struct item i)
{
	if (t->held == t->room) {
		size_t room = t->room ? t->room * 2 : 16;
		struct item *ring = need(malloc(room * sizeof *ring));

		for (size_t k = 0; k < t->held; k++)
			ring[k] = t->ring[(t->head + k) & (t->room - 1)];
		free(t->ring);
		t->ring = ring;
		t->room = room;
		t->head = 0;
	}
	t->ring[(t->head + t->held++) & (t->room - 1)] = i;
	s->stats.bytes += i.bytes;
	lru_touch(s, t);
}

void track_trim(struct series *s, struct track *t)
{
	size_t pending = (size_t)(t->assigned - t->visible);

	if (t->held > SERIES_TAIL && t->held > pending)
		track_forget(s, t, t->held - (pending > SERIES_TAIL ? pending : SERIES_TAIL));
	for (struct track *o = s->oldest, *next; o && s->stats.bytes > SERIES_BYTES_MAX; o = next) {
		next = o->newer;
		track_forget(s, o, o->held - (size_t)(o->assigned - o->visible));
	}
}
