/* Polls of the series: a page of packed samples from the tail in memory or from the store, at once or when there is one.
 *
 * Loop thread. A held poll is a waiter of its track with a timer; it is answered exactly once: when a sample above its `since`
 * becomes visible (series_answer), when its time is over, or when the daemon stops. */
#include "daemon/series_internal.h"
#include "daemon/need.h"
#include "daemon/store.h"

#include <stdlib.h>

struct waiter {
	struct waiter *next;
	struct series *series;
	struct track *track;
	uint64_t since;
	uint32_t limit;
	series_done done;
	void *arg;
	uv_timer_t timer;
};

static void page_from_ring(struct track *t, uint64_t since, uint32_t limit, series_done done, void *arg)
{
	struct series_page page = {.first_seq = t->first_kept, .last_seq = t->visible, .state = (Fh__V1__JobState)t->state};
	uint64_t n = since < t->visible ? t->visible - since : 0;
	struct series_row *row;
	size_t bytes = 0;

	if (n > limit)
		n = limit;
	row = n ? need(malloc(n * sizeof *row)) : NULL;
	for (; page.n < n; page.n++) {
		struct item *i = track_item(t, since + 1 + page.n);

		if (page.n && bytes + i->bytes > SERIES_REPLY_BYTES_MAX)
			break;
		bytes += i->bytes;
		row[page.n] = (struct series_row){since + 1 + page.n, i->packed, i->bytes};
	}
	page.row = row;
	page.more = since + page.n < t->visible;
	done(arg, 0, &page);
	free(row);
}

struct reading { struct track *track; uint64_t since; uint32_t limit; series_done done; void *arg; };

static void on_rows(void *arg, int code, const struct store_sample *stored, size_t n, int more)
{
	struct reading *r = arg;
	struct track *t = r->track;
	struct series_page page = {.from_disk = 1, .first_seq = t->first_kept, .last_seq = t->visible, .state = (Fh__V1__JobState)t->state};
	struct series_row *row = n ? need(malloc(n * sizeof *row)) : NULL;
	size_t bytes = 0;

	for (; page.n < n && stored[page.n].seq <= t->visible; page.n++) {
		const struct store_sample *m = &stored[page.n];

		if (page.n && bytes + m->bytes > SERIES_REPLY_BYTES_MAX)
			break;
		bytes += m->bytes;
		row[page.n] = (struct series_row){m->seq, m->packed, m->bytes};
	}
	page.row = row;
	page.more = page.n && (page.n < n || more) && row[page.n - 1].seq < t->visible;
	if (!code && !page.n && t->held) /* the disk refused these once: go on with what memory has */
		page_from_ring(t, r->since + 1 < t->first_held ? t->first_held - 1 : r->since, r->limit, r->done, r->arg);
	else
		r->done(r->arg, code, &page);
	free(row);
	free(r);
}

/* What is there now: from memory when the tail reaches back far enough, else from the disk. */
static void answer(struct series *s, struct track *t, uint64_t since, uint32_t limit, series_done done, void *arg)
{
	struct reading *r;

	if (since >= t->visible || since + 1 >= t->first_held) {
		page_from_ring(t, since, limit, done, arg);
		return;
	}
	r = need(calloc(1, sizeof *r));
	*r = (struct reading){t, since, limit, done, arg};
	store_read_samples(s->store, t->job, since, limit, on_rows, r);
}

static void waiter_closed(uv_handle_t *h)
{
	free(h->data);
}

static void waiter_answer(struct waiter *w)
{
	struct waiter **p = &w->track->waiters;

	while (*p != w)
		p = &(*p)->next;
	*p = w->next;
	w->series->stats.waiters--;
	uv_close((uv_handle_t *)&w->timer, waiter_closed);
	answer(w->series, w->track, w->since, w->limit, w->done, w->arg);
}

static void waiter_timeout(uv_timer_t *timer)
{
	waiter_answer(timer->data);
}

void series_poll(struct series *s, uint64_t job, uint64_t since, uint32_t limit, uint32_t wait_ms, series_done done, void *arg)
{
	struct track *t = track_get(s, job);
	struct waiter *w;

	if (!limit)
		limit = SERIES_LIMIT_DEFAULT;
	if (limit > SERIES_LIMIT_MAX)
		limit = SERIES_LIMIT_MAX;
	if (wait_ms > SERIES_WAIT_MS_MAX)
		wait_ms = SERIES_WAIT_MS_MAX;
	if (since < t->visible || !wait_ms || s->stopping || s->stats.waiters >= SERIES_WAITERS_MAX) {
		answer(s, t, since, limit, done, arg);
		return;
	}
	w = need(calloc(1, sizeof *w));
	*w = (struct waiter){.next = t->waiters, .series = s, .track = t, .since = since, .limit = limit, .done = done, .arg = arg};
	t->waiters = w;
	s->stats.waiters++;
	w->timer.data = w;
	uv_timer_init(s->loop, &w->timer);
	uv_update_time(w->timer.loop); /* else short by what the loop's own time lags */
	uv_timer_start(&w->timer, waiter_timeout, wait_ms, 0);
}

void series_answer(struct track *t, int all)
{
	for (struct waiter *w = t->waiters, *next; w; w = next) {
		next = w->next;
		if (all || t->visible > w->since)
			waiter_answer(w);
	}
}
