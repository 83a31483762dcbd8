/* What lists and `show` say of a market: range, rate of bars, gaps by length, a line of closes. Any thread: pure. */
#include "daemon/dataset.h"
#include "daemon/dataset_internal.h"
#include "daemon/need.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_COUNTED 4096 /* different bar-to-bar times that are told apart; a market has a few dozen */
#define HOUR_NS INT64_C(3600000000000)
#define MONDAY (3 * 24) /* hours of the week before 1970-01-01, a Thursday */
#define YEAR_NS (365.25 * 86400e9)

struct step { int64_t length; uint64_t count; };

/* Counts every distance between neighbours; lengths beyond the table's room are left out. Returns how many there are. */
static size_t count_steps(const struct market *m, struct step *step)
{
	struct step *last = NULL;
	size_t n = 0;

	for (int64_t t = 1; t < m->bars; t++) {
		int64_t length = m->ts[t] - m->ts[t - 1];
		if (last && last->length == length) { /* nearly always */
			last->count++;
			continue;
		}
		size_t i = (size_t)(((uint64_t)length * UINT64_C(0x9E3779B97F4A7C15)) >> 52);

		for (size_t k = 0; k < STEPS_COUNTED && step[i].count && step[i].length != length; k++)
			i = (i + 1) % STEPS_COUNTED;
		if (step[i].count && step[i].length != length)
			continue;
		n += !step[i].count;
		step[i].length = length;
		step[i].count++;
		last = &step[i];
	}
	return n;
}

static int by_count(const void *a, const void *b)
{
	const struct step *x = a, *y = b;

	if (x->count != y->count)
		return x->count < y->count ? 1 : -1;
	return (x->length > y->length) - (x->length < y->length);
}

/* The most frequent step is the length of a bar; what is longer is a gap. */
static size_t find_gaps(const struct market *m, Fh__V1__Dataset *d, Fh__V1__Gap *gap)
{
	struct step *step = calloc(STEPS_COUNTED, sizeof *step);
	size_t n = 0;

	if (!step)
		return 0;
	count_steps(m, step);
	qsort(step, STEPS_COUNTED, sizeof *step, by_count);
	d->has_bar_ns = d->has_gaps = 1;
	d->bar_ns = step[0].length;
	for (int64_t t = 1; t < m->bars; t++)
		d->gaps += m->ts[t] - m->ts[t - 1] > d->bar_ns;
	for (size_t i = 1; i < STEPS_COUNTED && step[i].count && n < DATASET_GAPS_MAX; i++) {
		if (step[i].length <= step[0].length)
			continue;
		fh__v1__gap__init(&gap[n]);
		gap[n].has_length_ns = gap[n].has_count = 1;
		gap[n].length_ns = step[i].length;
		gap[n++].count = step[i].count;
	}
	free(step);
	return n;
}

/* The shape of the sessions: in which hours of the week there are bars. */
static void count_hours(const struct market *m, uint32_t hour[DATASET_WEEK_HOURS])
{
	uint32_t *now = hour;
	int64_t over = INT64_MIN; /* when the hour ends */

	memset(hour, 0, DATASET_WEEK_HOURS * sizeof *hour);
	for (int64_t t = 0; t < m->bars; t++) {
		if (m->ts[t] >= over) {
			int64_t h = m->ts[t] / HOUR_NS - (m->ts[t] % HOUR_NS < 0), w = (h + MONDAY) % DATASET_WEEK_HOURS;

			now = &hour[w < 0 ? w + DATASET_WEEK_HOURS : w];
			over = (h + 1) * HOUR_NS;
		}
		++*now;
	}
}

/* Of the arrays that the host keeps, and of those that a device gets (gpu/cuda/backend.cu): five columns of 8 bytes, features, sigma. */
static void memory(const struct market *m, Fh__V1__Dataset *d)
{
	uint64_t learned = (FH_MARKET_FEATURES + 1) * sizeof(float);

	d->has_memory_host = d->has_memory_device = 1;
	d->memory_host = (uint64_t)m->bars * (6 * 8 + learned + (m->rolled != NULL));
	d->memory_device = (uint64_t)m->bars * (5 * 8 + learned + (m->rolled != NULL));
}

static void prices(const struct market *m, Fh__V1__Dataset *d, float *spark)
{
	d->has_close_min = d->has_close_max = 1;
	d->close_min = d->close_max = m->close[0];
	for (int64_t t = 1; t < m->bars; t++) {
		d->close_min = m->close[t] < d->close_min ? m->close[t] : d->close_min;
		d->close_max = m->close[t] > d->close_max ? m->close[t] : d->close_max;
	}
	d->n_spark = m->bars < DATASET_SPARK ? (size_t)m->bars : DATASET_SPARK;
	d->spark = spark;
	int64_t last = d->n_spark > 1 ? (int64_t)d->n_spark - 1 : 1;
	for (size_t i = 0; i < d->n_spark; i++)
		spark[i] = (float)m->close[(int64_t)i * (m->bars - 1) / last];
}

void *dataset_info_make(const struct market *m, const struct dataset_origin *o, uint64_t created_ns, uint64_t bytes, size_t *size)
{
	Fh__V1__Dataset d = FH__V1__DATASET__INIT;
	Fh__V1__Gap gap[DATASET_GAPS_MAX], *gaps[DATASET_GAPS_MAX];
	Fh__V1__DatasetVersion version[DATASET_VERSIONS_MAX], *versions[DATASET_VERSIONS_MAX];
	float spark[DATASET_SPARK];
	uint32_t hour[DATASET_WEEK_HOURS];
	double span = (double)(m->ts[m->bars - 1] - m->ts[0]);
	void *packed;

	d.name = (char *)o->name;
	d.hash = (char *)m->hash;
	d.source = (char *)(o->source ? o->source : "");
	for (size_t i = 0; i < o->versions; i++) {
		fh__v1__dataset_version__init(&version[i]);
		version[i].has_bars = 1;
		version[i].bars = o->version[i].bars;
		version[i].hash = (char *)o->version[i].hash;
		versions[i] = &version[i];
	}
	d.has_bars = d.has_first_ts = d.has_last_ts = d.has_bytes = d.has_created_ns = d.has_bars_per_year = 1;
	d.has_has_volume = d.has_duplicates = d.has_dropped = d.has_tick = 1;
	d.bars = m->bars;
	d.first_ts = m->ts[0];
	d.last_ts = m->ts[m->bars - 1];
	d.bytes = bytes;
	d.created_ns = created_ns;
	d.bars_per_year = span > 0 ? (double)(m->bars - 1) / span * YEAR_NS : 0;
	d.has_volume = o->has_volume;
	d.duplicates = o->duplicates;
	d.dropped = o->dropped;
	d.has_repaired = d.has_moved = 1;
	d.repaired = o->repaired;
	d.moved = o->moved;
	memory(m, &d);
	count_hours(m, hour);
	d.week_hour = hour;
	d.n_week_hour = DATASET_WEEK_HOURS;
	d.tick = m->tick;
	d.note = (char **)o->note;
	d.n_note = o->notes;
	d.n_version = o->versions;
	d.version = versions;
	d.roll = m->roll;
	d.n_roll = (size_t)m->rolls;
	if (o->contracts == d.n_roll + 1) {
		d.contract = (char **)o->contract;
		d.n_contract = o->contracts;
	}
	d.n_gap = find_gaps(m, &d, gap);
	for (size_t i = 0; i < d.n_gap; i++)
		gaps[i] = &gap[i];
	d.gap = gaps;
	prices(m, &d, spark);
	*size = fh__v1__dataset__get_packed_size(&d);
	packed = malloc(*size);
	if (packed)
		fh__v1__dataset__pack(&d, packed);
	return packed;
}

/* ---------------------------------------------------------------- origins */

static void free_texts(const char *const *text, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free((char *)text[i]);
	free((char **)text);
}

static const char *const *copy_texts(const char *const *text, size_t n)
{
	char **to = need(calloc(n + 1, sizeof *to));

	for (size_t i = 0; i < n; i++)
		to[i] = need(strdup(text[i]));
	return (const char *const *)to;
}

/* A name for each contract, or none. */
static int check_contracts(const struct dataset_origin *o, struct fh_status *st)
{
	size_t want = 1;

	for (size_t i = 0; i < o->rolls; i++)
		want += o->roll[i] > 0;
	if (o->contracts && o->contracts != want)
		return fh_fail_field(st, FH_INVALID, "contract", "%zu names of contracts, and the bars are of %zu", o->contracts, want);
	for (size_t i = 0; i < o->contracts; i++)
		if (strlen(o->contract[i]) > DATASET_CONTRACT_BYTES_MAX)
			return fh_fail_field(st, FH_INVALID, "contract", "name %zu is longer than %d bytes", i, DATASET_CONTRACT_BYTES_MAX);
	return 0;
}

void origin_release(struct dataset_origin *o)
{
	free((char *)o->name);
	free((char *)o->source);
	free((char *)o->hash);
	free((char *)o->base);
	free((void *)o->version);
	free((int64_t *)o->roll);
	free_texts(o->note, o->notes);
	free_texts(o->contract, o->contracts);
	memset(o, 0, sizeof *o);
}

int origin_copy(struct dataset_origin *to, const struct dataset_origin *from, struct fh_status *st)
{
	if (from->notes > DATASET_NOTES_MAX)
		return fh_fail_field(st, FH_INVALID, "note", "%zu notes, %d are allowed", from->notes, DATASET_NOTES_MAX);
	for (size_t i = 0; i < from->notes; i++)
		if (strlen(from->note[i]) > DATASET_NOTE_BYTES_MAX)
			return fh_fail_field(st, FH_INVALID, "note", "note %zu is longer than %d bytes", i, DATASET_NOTE_BYTES_MAX);
	if (from->source && strlen(from->source) > DATASET_SOURCE_BYTES_MAX)
		return fh_fail_field(st, FH_INVALID, "source", "source is longer than %d bytes", DATASET_SOURCE_BYTES_MAX);
	if (from->rolls > MARKET_ROLLS_MAX)
		return fh_fail_field(st, FH_INVALID, "roll", "%zu changes of the contract, %d are allowed", from->rolls, MARKET_ROLLS_MAX);
	if (check_contracts(from, st))
		return st ? st->code : FH_INVALID;
	if (from->tick && !(from->tick >= MARKET_TICK_MIN && from->tick <= MARKET_PRICE_MAX))
		return fh_fail_field(st, FH_INVALID, "tick", "tick is %g, not in [%g, %g]", from->tick, MARKET_TICK_MIN,
				     MARKET_PRICE_MAX);
	*to = *from;
	to->tick = from->tick ? from->tick : DATASET_TICK_DEFAULT;
	to->name = need(strdup(from->name));
	to->source = need(strdup(from->source ? from->source : ""));
	to->hash = need(strdup(from->hash ? from->hash : ""));
	to->base = need(strdup(from->base ? from->base : ""));
	to->roll = NULL;
	if (from->rolls) {
		to->roll = need(malloc(from->rolls * sizeof *to->roll));
		memcpy((int64_t *)to->roll, from->roll, from->rolls * sizeof *to->roll);
	}
	to->version = NULL;
	to->versions = 0;
	to->note = copy_texts(from->note, from->notes);
	to->contract = copy_texts(from->contract, from->contracts);
	return 0;
}
