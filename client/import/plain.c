/* Plain rows, many at a time: what fast.h reads goes straight into the bars (pass.h).
 *
 * A large block is read in two halves, the second by a thread of its own into memory of its own.
 * Invariant: whatever is taken here means the same as row by row; where it might not, it is left to text.c. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "client/import/pass.h"

#define FAST_ROWS 65536       /* taken at once, by each of two threads */
#define FAST_LEAST 4096       /* bytes that are worth it */
#define FAST_TWO (256u << 10) /* bytes from which a second thread is worth it */
#define FAST_RUN 1024         /* and rows that were plain the last time */

_Static_assert(CSV_SPARE >= FAST_SPARE, "the bytes behind a block of the reader");

/* The second half of a block, read by a thread of its own into memory of its own. */
struct helper {
	pthread_t thread;
	struct fast fast;
	const char *p, *end;
	struct fast_rows rows;
	int64_t memory[6 * FAST_ROWS];
};

static void *help(void *arg)
{
	struct helper *h = arg;

	h->p = fast_take(&h->fast, h->p, h->end, INT64_MIN, &h->rows);
	return NULL;
}

/* 1: it runs. */
static int start_helper(struct pass *p, const char *from, const char *end)
{
	struct helper *h = p->helper;

	if (!h)
		h = p->helper = malloc(sizeof *h);
	if (!h)
		return 0;
	h->fast = p->fast;
	h->p = from;
	h->end = end;
	h->rows = (struct fast_rows){.ts = h->memory, .room = FAST_ROWS};
	for (int k = 0; k < 5; k++)
		h->rows.value[k] = (double *)(void *)(h->memory + (k + 1) * FAST_ROWS);
	return !pthread_create(&h->thread, NULL, help, h);
}

static void took(struct pass *p, const char *to, int64_t n)
{
	p->csv.begin = (size_t)(to - p->csv.block);
	p->csv.line += n;
	p->out->rows += n;
	bars_took(&p->out->bars, n, p->csv.line);
}

/* What the helper has read stands behind all that was read before it, or it is read again. */
static int64_t take_over(struct pass *p, const char *middle, struct fh_status *st)
{
	struct bars *b = &p->out->bars;
	struct helper *h = p->helper;

	pthread_join(h->thread, NULL);
	int64_t n = h->rows.count;
	if (p->csv.block + p->csv.begin != middle || !n || (b->count && h->rows.ts[0] <= b->newest))
		return 0;
	int rc = bars_room(b, n, st);
	if (rc)
		return rc;
	memcpy(b->ts + b->count, h->rows.ts, (size_t)n * 8);
	for (int k = 0; k < 5; k++)
		memcpy(b->value[k] + b->count, h->rows.value[k], (size_t)n * 8);
	took(p, h->p, n);
	return n;
}

/* The plain rows that stand in the block now, up to the first that is not: how many, or negative. */
static int64_t take_plain(struct pass *p, struct fh_status *st)
{
	struct csv_reader *r = &p->csv;
	struct bars *b = &p->out->bars;
	const char *from = r->block + r->begin, *end, *middle = NULL;
	int rc;

	if (!p->fast.on || r->has_quote || r->has_nul || r->end - r->begin < FAST_LEAST)
		return 0;
	end = memrchr(from, '\n', r->end - r->begin);
	if (!end)
		return 0;
	end++;
	if (end - from >= FAST_TWO)
		middle = memchr(from + (end - from) / 2, '\n', (size_t)(end - from - (end - from) / 2));
	middle = middle ? middle + 1 : NULL;
	rc = bars_room(b, FAST_ROWS, st);
	if (rc)
		return rc;
	/* Where plain rows are few after each other the other half would be read in vain. */
	int two = middle && middle < end && p->plain_run >= FAST_RUN && start_helper(p, middle, end);
	struct fast_rows rows = {.ts = b->ts + b->count, .room = FAST_ROWS};
	for (int k = 0; k < 5; k++)
		rows.value[k] = b->value[k] + b->count;
	const char *to = fast_take(&p->fast, from, two ? middle : end, b->count ? b->newest : INT64_MIN, &rows);
	took(p, to, rows.count);
	p->plain_run = rows.count;
	int64_t more = two ? take_over(p, middle, st) : 0;
	return more < 0 ? more : rows.count + more;
}

/* Files of another shape, zone or rule are for the careful reader alone. */
void plain_init(struct pass *p)
{
	if (p->json || p->zone || p->date != INT64_MIN || p->point != '.' || p->csv.terminator != '\n' || p->o->sort ||
	    p->o->price_scale > 0)
		return;
	fast_init(&p->fast, &p->col, p->csv.delimiter);
	p->plain_run = FAST_RUN;
}

/* All plain rows of the block. */
int plain_block(struct pass *p, struct fh_status *st)
{
	int64_t plain = FAST_LEAST + 1;

	while (plain > FAST_LEAST) {
		plain = take_plain(p, st);
		if (plain < 0)
			return (int)plain;
		int rc = plain ? pass_tell(p, st) : 0;
		if (rc)
			return rc;
	}
	return 0;
}

void plain_release(struct pass *p)
{
	free(p->helper);
}
