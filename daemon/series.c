/* See series.h.
 *
 * Reports of all jobs share one batch: while a batch is being written the next one collects, so the number of syncs follows the
 * disk and not the number of samples. */
#include "daemon/series_internal.h"
#include "daemon/clock.h"
#include "daemon/log.h"
#include "daemon/need.h"
#include "daemon/publish.h"
#include "daemon/store.h"
#include "proto/status.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Row and item kind beside those of the wire: evaluations of another split or network than those asked for, which are no answer
 * to "how does it do" (the store's newest kind 2 is the last validation). */
#define KIND_ASIDE 4
#define THIN_EVERY 1024 /* samples of a job between two passes that thin its rows */

struct ref { struct track *track; uint64_t seq; };
struct batch {
	struct series *series;
	struct store_txn *txn;
	size_t n;
	struct ref ref[SERIES_BATCH_MAX];
};

/* ---------------------------------------------------------------- from handed over to visible */

static void keep_copy(struct item *to, const struct item *from)
{
	free(to->packed);
	*to = *from;
	to->packed = need(malloc(from->bytes ? from->bytes : 1));
	memcpy(to->packed, from->packed, from->bytes);
}

static void thin(struct series *s, struct track *t)
{
	uint64_t below = t->visible > SERIES_KEPT_MAX ? t->visible - SERIES_KEPT_MAX + 1 : 0;
	struct store_txn *txn;

	if (t->visible % THIN_EVERY || t->visible <= SERIES_KEPT_FULL || s->stopping)
		return;
	txn = store_begin(s->store);
	store_thin_samples(txn, t->job, t->visible - SERIES_KEPT_FULL + 1, SERIES_STRIDE, below);
	store_commit(s->store, txn, NULL, NULL);
	if (below > t->first_kept)
		t->first_kept = below;
}

/* Everything up to the first number that is still on its way can be seen now. */
static void advance(struct series *s, struct track *t)
{
	uint64_t before = t->visible;

	while (t->visible < t->assigned) {
		struct item *i = track_item(t, t->visible + 1);

		if (!i->durable)
			break;
		t->visible++;
		s->pending--;
		if (i->kind == FH__V1__SAMPLE_KIND__REPORT)
			keep_copy(&t->report, i);
		else if (i->kind == FH__V1__SAMPLE_KIND__VALIDATION)
			keep_copy(&t->validation, i);
		else if (i->kind == FH__V1__SAMPLE_KIND__STATE_CHANGE)
			t->state = i->state;
		publish_sample(s->publish, t->job, i->packed, i->bytes);
		thin(s, t);
	}
	if (t->visible == before)
		return;
	series_answer(t, 0);
	track_trim(s, t);
}

/* A disk that refuses does not stop the view: the sample is shown, counted as undurable, and the number may be used again
 * after a crash. */
static void settled(struct series *s, struct track *t, uint64_t seq, int code, const struct fh_status *st)
{
	if (code) {
		s->stats.undurable++;
		log_status(LOG_WARN, "sample not stored", st);
	}
	track_item(t, seq)->durable = 1;
	advance(s, t);
}

static void on_batch(void *arg, int code, const struct fh_status *st)
{
	struct batch *b = arg;
	struct series *s = b->series;

	s->in_flight--;
	for (size_t i = 0; i < b->n; i++)
		settled(s, b->ref[i].track, b->ref[i].seq, code, st);
	free(b);
	if (!s->in_flight)
		series_flush(s);
}

void series_flush(struct series *s)
{
	struct batch *b = s->open;

	if (!b)
		return;
	s->open = NULL;
	s->in_flight++;
	store_commit(s->store, b->txn, on_batch, b);
}

static struct place place_of(const Fh__V1__Sample *m)
{
	static const char *const split[] = {"train", "validation", "test"};
	struct place p = {.step = m->step, .policy = (int)m->policy, .trial = m->trial};

	for (int i = 0; m->split && i < 3; i++)
		p.split = strcmp(m->split, split[i]) ? p.split : i;
	return p;
}

static int place_compare(const struct place *a, const struct place *b)
{
	if (a->step != b->step)
		return a->step < b->step ? -1 : 1;
	if (a->split != b->split)
		return a->split < b->split ? -1 : 1;
	if (a->policy != b->policy)
		return a->policy < b->policy ? -1 : 1;
	return a->trial < b->trial ? -1 : a->trial > b->trial;
}

/* A job that goes on from a checkpoint makes the samples behind it again, the same to the bit: they are here already. */
static int repeats(struct track *t, const Fh__V1__Sample *m)
{
	struct place p = place_of(m), *last = m->kind == FH__V1__SAMPLE_KIND__REPORT ? &t->reported : &t->evaluated;

	if (!m->has_step || !m->step)
		return 0;
	if (place_compare(&p, last) <= 0)
		return 1;
	*last = p;
	return 0;
}

/* Numbers and packs the sample; it is in the ring afterwards. */
static struct item *number(struct series *s, uint64_t job, Fh__V1__Sample *m, int aside, struct track **track)
{
	struct track *t = track_get(s, job);
	struct item i = {.kind = m->kind, .state = m->has_state ? m->state : 0};

	if (!m->has_time_ns) {
		m->has_time_ns = 1;
		m->time_ns = time_now_ns();
	}
	if (aside || (m->kind == FH__V1__SAMPLE_KIND__VALIDATION && m->split && strcmp(m->split, "validation")))
		i.kind = KIND_ASIDE;
	m->has_job = m->has_seq = m->has_kind = 1;
	m->job = job;
	m->seq = ++t->assigned;
	i.bytes = fh__v1__sample__get_packed_size(m);
	i.packed = need(malloc(i.bytes));
	fh__v1__sample__pack(m, i.packed);
	track_push(s, t, i);
	s->pending++;
	s->stats.appended++;
	*track = t;
	return track_item(t, t->assigned);
}

static uint64_t append(struct series *s, uint64_t job, Fh__V1__Sample *m, int aside)
{
	struct track *t;
	struct item *i;

	if (s->pending >= SERIES_PENDING_MAX) {
		s->stats.dropped++;
		return 0;
	}
	if (repeats(track_get(s, job), m)) {
		s->stats.repeated++;
		return 0;
	}
	i = number(s, job, m, aside, &t);
	if (!s->open) {
		s->open = need(calloc(1, sizeof *s->open));
		s->open->series = s;
		s->open->txn = store_begin(s->store);
	}
	store_put_sample(s->open->txn, &(struct store_sample){job, t->assigned, i->kind, i->packed, i->bytes});
	s->open->ref[s->open->n++] = (struct ref){t, t->assigned};
	if (!s->in_flight || s->open->n == SERIES_BATCH_MAX)
		series_flush(s);
	return t->assigned;
}

uint64_t series_append(struct series *s, uint64_t job, Fh__V1__Sample *m)
{
	return append(s, job, m, 0);
}

uint64_t series_append_aside(struct series *s, uint64_t job, Fh__V1__Sample *m)
{
	return append(s, job, m, 1);
}

struct change { struct series *series; struct track *track; uint64_t seq; };

static void on_change(void *arg, int code, const struct fh_status *st)
{
	struct change *c = arg;

	settled(c->series, c->track, c->seq, code, st);
	free(c);
}

uint64_t series_state_change(struct series *s, struct store_txn *txn, uint64_t job, Fh__V1__JobState state,
			     const char *reason, uint64_t step, uint64_t epoch, uint64_t vector_step)
{
	Fh__V1__Sample m = FH__V1__SAMPLE__INIT;
	struct change *c = need(calloc(1, sizeof *c));
	struct item *i;

	series_flush(s); /* what came before goes to the disk before */
	m.kind = FH__V1__SAMPLE_KIND__STATE_CHANGE;
	m.has_state = m.has_step = m.has_epoch = m.has_vector_step = 1;
	m.state = state;
	m.reason = (char *)(reason ? reason : "");
	m.step = step;
	m.epoch = epoch;
	m.vector_step = vector_step;
	i = number(s, job, &m, 0, &c->track);
	c->series = s;
	c->seq = c->track->assigned;
	store_put_sample(txn, &(struct store_sample){job, c->seq, i->kind, i->packed, i->bytes});
	store_on_done(txn, on_change, c);
	return c->seq;
}

/* ---------------------------------------------------------------- life and look-ups */

int series_new(uv_loop_t *loop, struct store *store, struct publish *publish, struct series **out, struct fh_status *st)
{
	struct series *s = calloc(1, sizeof *s);

	if (!s)
		return fh_fail(st, FH_EXHAUSTED, "no memory for the series");
	s->loop = loop;
	s->store = store;
	s->publish = publish;
	*out = s;
	return 0;
}

static void load_newest(struct item *to, const struct store_sample *from)
{
	struct item i = {.packed = (void *)from->packed, .bytes = from->bytes, .kind = from->kind};

	if (from->packed)
		keep_copy(to, &i);
}

static void load_place(struct place *to, const struct store_sample *from)
{
	Fh__V1__Sample *m = from->packed ? fh__v1__sample__unpack(NULL, from->bytes, from->packed) : NULL;
	struct place p = m ? place_of(m) : (struct place){0};

	if (m && place_compare(&p, to) > 0)
		*to = p;
	if (m)
		fh__v1__sample__free_unpacked(m, NULL);
}

static int load_row(void *arg, const struct store_series *r)
{
	struct track *t = track_get(arg, r->job);

	t->assigned = t->visible = r->last_seq;
	t->first_kept = r->first_seq;
	t->first_held = r->last_seq + 1;
	load_newest(&t->report, &r->report);
	load_newest(&t->validation, &r->validation);
	load_place(&t->reported, &r->report);
	load_place(&t->evaluated, &r->validation);
	load_place(&t->evaluated, &r->aside);
	return 0;
}

int series_load(struct series *s, struct fh_status *st)
{
	return store_load_series(s->store, load_row, s, st);
}

void series_stop(struct series *s)
{
	if (!s || s->stopping)
		return;
	s->stopping = 1;
	series_flush(s);
	for (size_t i = 0; i < s->tracks; i++)
		if (s->track[i])
			series_answer(s->track[i], 1);
}

void series_free(struct series *s)
{
	if (!s)
		return;
	assert(!s->stats.waiters && !s->in_flight && !s->open);
	for (size_t i = 0; i < s->tracks; i++) {
		struct track *t = s->track[i];

		if (!t)
			continue;
		track_forget(s, t, t->held);
		free(t->report.packed);
		free(t->validation.packed);
		free(t);
	}
	free(s->track);
	free(s);
}

uint64_t series_last_seq(const struct series *s, uint64_t job)
{
	const struct track *t = track_find(s, job);

	return t ? t->visible : 0;
}

uint64_t series_first_seq(const struct series *s, uint64_t job)
{
	const struct track *t = track_find(s, job);

	return t && t->visible ? t->first_kept : 0;
}

Fh__V1__Sample *series_newest(const struct series *s, uint64_t job, int validation)
{
	const struct track *t = track_find(s, job);
	const struct item *i = t ? validation ? &t->validation : &t->report : NULL;

	return i && i->packed ? fh__v1__sample__unpack(NULL, i->bytes, i->packed) : NULL;
}

void series_stats(const struct series *s, struct series_stats *out)
{
	*out = s->stats;
}
