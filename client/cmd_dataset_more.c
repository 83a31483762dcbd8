/* fhctl dataset append | merge | export. One thread.
 *
 * Append and merge end as one upload each: whole or not at all. Bars that two sources both have must be the same unless
 * --on-duplicate says which counts. stdout gets the result, stderr progress and notices. */
#include <stdlib.h>
#include <string.h>

#include "client/dataset_args.h"
#include "client/export.h"
#include "client/fetch.h"
#include "client/import/timestamp.h"
#include "client/output.h"
#include "client/upload.h"

#define MERGED_MAX 64

static int differs(const struct market_bars *a, int64_t i, const struct market_bars *b, int64_t k)
{
	return a->open[i] != b->open[k] || a->high[i] != b->high[k] || a->low[i] != b->low[k] || a->close[i] != b->close[k] ||
	       a->volume[i] != b->volume[k];
}

static struct bar bar_at(const struct market_bars *b, int64_t i)
{
	return (struct bar){b->ts[i], i + 1, b->open[i], b->high[i], b->low[i], b->close[i], b->volume[i]};
}

static int conflict(const char *one, const char *other, int64_t ts, double a, double b, struct fh_status *st)
{
	char at[TIMESTAMP_TEXT_MAX];

	return fh_fail(st, FH_CONFLICT, "the bar at %s is in %.64s (close %.10g) and in %.64s (close %.10g), and they differ; "
		       "--on-duplicate=first|last chooses", timestamp_format(ts, at), one, a, other, b);
}

/* ---- append */

/* A continuous symbol's contracts have their number behind it, nameless ones nothing but a number: such names say nothing about others. */
static int is_number(const char *name)
{
	const char *colon = strrchr(name, ':'), *p = colon ? colon + 1 : name;

	return *p && p[strspn(p, "0123456789")] == '\0';
}

/* Whether bar i of the file, the first new one, is of another contract than the set's last bar: the file says so when it has that bar,
 * else the names do, where both are known. */
static void find_seam(struct ctx *c, const struct fetched *set, const struct bars *b, int64_t i, struct import *fresh)
{
	const char *old = set->part.names ? set->part.name[set->part.names - 1] : "", *new = bars_contract_name(b, i);

	if (i && b->ts[i - 1] == set->last_ts && b->contract_of)
		fresh->bars.seam = b->contract_of[i] != b->contract_of[i - 1];
	else if (i && b->ts[i - 1] == set->last_ts)
		return;
	else if (*old && *new && is_number(old) == is_number(new))
		fresh->bars.seam = strcmp(old, new) != 0;
	else if (*old || *new || set->rolls || b->contract_of)
		ctx_note(c, "whether the contract changes where the new bars begin is not known: %s; taken as the same",
			 *old && *new ? "the names are of different kinds" : *old ? "the file has no symbols" : "the set has no names of contracts");
	if (fresh->bars.seam && fresh->notes < IMPORT_NOTES_MAX)
		snprintf(fresh->note[fresh->notes++], IMPORT_NOTE_SIZE, "the contract changes where the new bars begin%s%.64s%s%.64s", *old ? ", from " : "", old,
			 !*new ? "" : *old ? " to " : ", to ", new);
}

/* Of the file's bars those after the set's last one; the ones before must be in the set already, with the same values. */
static int new_bars(struct ctx *c, struct fetched *set, const struct import *m, enum on_duplicate rule, struct import *fresh,
		    int64_t *known, struct fh_status *st)
{
	struct market_bars b = bars_view(&m->bars), have;
	int64_t i = 0, k = 0;
	char at[TIMESTAMP_TEXT_MAX];
	int rc = 0;

	if (rule == DUPLICATE_LAST)
		return fh_fail_field(st, FH_INVALID, "--on-duplicate", "append never changes bars that are there: refuse or first");
	if (b.ts[0] <= set->last_ts)
		rc = fetch_tail(c, set, b.ts[0], st);
	if (rc)
		return rc;
	have = bars_view(&set->part);
	for (; i < b.bars && b.ts[i] <= set->last_ts && rule == DUPLICATE_REFUSE; i++) {
		while (k < have.bars && have.ts[k] < b.ts[i])
			k++;
		if (k == have.bars || have.ts[k] != b.ts[i])
			return fh_fail(st, FH_CONFLICT, "the file has a bar at %s, before the end of data set %s, which has none there; "
				       "append puts bars at the end only (dataset merge makes a new set)", timestamp_format(b.ts[i], at), set->name);
		if (differs(&b, i, &have, k))
			return conflict(set->name, "the file", b.ts[i], have.close[k], b.close[i], st);
	}
	while (i < b.bars && b.ts[i] <= set->last_ts)
		i++;
	*known = i;
	if (i < b.bars)
		find_seam(c, set, &m->bars, i, fresh);
	for (int64_t k = i; !rc && k < b.bars; k++) {
		struct bar x = bar_at(&b, k);
		int change = k == i || (m->bars.contract_of && m->bars.contract_of[k] != m->bars.contract_of[k - 1]);
		if (change && m->bars.names)
			rc = bars_contract(&fresh->bars, bars_contract_name(&m->bars, k), st);
		else if (change)
			fresh->bars.contract++;
		if (!rc)
			rc = bars_add(&fresh->bars, &x, st);
	}
	return rc;
}

static int append(struct ctx *c, const char *name, const char *path, const struct import_options *o, struct progress *bar,
		  struct fh_answer *out, int64_t *fresh_count, struct fh_status *st)
{
	struct import *m = NULL, *fresh = calloc(1, sizeof *fresh);
	struct fetched set;
	char source[DATASET_SOURCE_SIZE];
	int64_t known = 0;
	int rc = fetch_info(c, name, &set, st);

	if (!fresh)
		rc = fh_fail(st, FH_EXHAUSTED, "no memory");
	if (!rc)
		rc = import_file(path, o, &m, st);
	if (!rc) {
		fresh->notes = m->notes < IMPORT_NOTES_MAX - 1 ? m->notes : IMPORT_NOTES_MAX - 1; /* one more may come */
		memcpy(fresh->note, m->note, sizeof fresh->note);
		rc = new_bars(c, &set, m, o->on_duplicate, fresh, &known, st);
	}
	*fresh_count = rc ? 0 : fresh->bars.count;
	if (!rc && known)
		ctx_note(c, "%lld bars of the file are in the set already", (long long)known);
	if (!rc && fresh->bars.count) {
		fresh->has_volume = m->has_volume;
		fresh->dropped = m->dropped;
		fresh->bars.repeats = m->bars.repeats;
		fresh->bars.conflicts = m->bars.conflicts;
		fresh->bars.repaired = m->bars.repaired;
		fresh->bars.moved = m->bars.moved;
		dataset_source(path, o, source);
		rc = upload_append(c, fresh, name, set.hash, source, bar, out, st);
	}
	import_free(m);
	import_free(fresh);
	fetch_release(&set);
	return rc;
}

static int run_append(struct ctx *c)
{
	struct fh_status st = FH_STATUS_INIT;
	struct import_options o = {.progress = dataset_import_progress};
	struct progress bar;
	struct fh_answer a;
	int64_t fresh = 0;
	int rc = dataset_import_options(c, &o, &st);

	if (rc)
		return ctx_fail(c, &st);
	dataset_progress(c, &bar);
	o.progress_arg = &bar;
	rc = append(c, c->argv[0], c->argv[1], &o, &bar, &a, &fresh, &st);
	if (rc || fresh)
		return dataset_end(c, &bar, rc, &a, &st);
	progress_clear(&bar);
	ctx_note(c, "nothing to append: data set %s ends with the last bar of the file or later", c->argv[0]);
	return EXIT_DONE;
}

/* ---- merge */

static int is_roll(const struct bars *b, int64_t i)
{
	return b->contract_of && i && b->contract_of[i] != b->contract_of[i - 1];
}

/* The contract of the bar that is taken next. With names it is what they say, also where the other set goes on; without, another one where
 * the bar is the first of one in its own set. */
static int merged_contract(struct bars *out, const struct bars *from, int64_t i, int named, struct fh_status *st)
{
	if (named)
		return bars_contract(out, bars_contract_name(from, i), st);
	out->contract += is_roll(from, i);
	return 0;
}

static int all_named(const struct fetched *f)
{
	int32_t known = 0;

	while (known < f->part.names && f->part.name[known][0])
		known++;
	return known && known == f->part.names;
}

/* Two sets in order of time; at one time the bars are the same, or `rule` takes the first or the last set's. */
static int merge_two(const struct fetched *x, const struct fetched *y, enum on_duplicate rule, struct bars *out, uint64_t *same,
		     uint64_t *chosen, struct fh_status *st)
{
	struct market_bars a = bars_view(&x->part), b = bars_view(&y->part);
	int named = all_named(x) && all_named(y);
	int64_t i = 0, k = 0;
	int rc = 0;

	while (!rc && (i < a.bars || k < b.bars)) {
		int64_t at_a = i, at_b = k;
		struct bar v;
		if (i < a.bars && k < b.bars && a.ts[i] == b.ts[k]) {
			int other = differs(&a, i, &b, k);
			if (other && rule == DUPLICATE_REFUSE)
				return conflict(x->name, y->name, a.ts[i], a.close[i], b.close[k], st);
			*same += !other;
			*chosen += (uint64_t)other;
			v = rule == DUPLICATE_LAST ? bar_at(&b, k) : bar_at(&a, i);
			i++;
			k++;
		} else if (k == b.bars || (i < a.bars && a.ts[i] < b.ts[k])) {
			v = bar_at(&a, i++);
		} else {
			v = bar_at(&b, k++);
		}
		int first = i > at_a && !(k > at_b && rule == DUPLICATE_LAST);
		rc = merged_contract(out, first ? &x->part : &y->part, first ? at_a : at_b, named, st);
		if (!rc)
			rc = bars_add(out, &v, st);
	}
	return rc;
}

static void merge_note(struct import *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void merge_note(struct import *m, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(m->note[m->notes++], IMPORT_NOTE_SIZE, fmt, ap);
	va_end(ap);
}

/* sets[0] takes the others in, one after the other. */
static int merge_all(struct ctx *c, struct import *m, double *tick, struct progress *bar, enum on_duplicate rule, struct fh_status *st)
{
	struct fetched one, next;
	uint64_t same = 0, chosen = 0;
	int rc = fetch_bars(c, c->argv[1], bar, &one, st);

	*tick = one.tick;
	m->has_volume = one.has_volume;
	for (int i = 2; !rc && i < c->argc; i++) {
		struct bars both;
		bars_init(&both);
		rc = fetch_bars(c, c->argv[i], bar, &next, st);
		if (!rc)
			rc = merge_two(&one, &next, rule, &both, &same, &chosen, st);
		*tick = next.tick < *tick ? next.tick : *tick;
		m->has_volume |= next.has_volume;
		fetch_release(&next);
		bars_release(&one.part);
		one.part = both; /* with the names of its own */
	}
	m->bars = one.part; /* taken over, the rest is let go */
	bars_init(&one.part);
	fetch_release(&one);
	if (same)
		merge_note(m, "bars that several sets have, all the same: %llu", (unsigned long long)same);
	if (chosen)
		merge_note(m, "bars that differ between sets: %llu, the %s was taken", (unsigned long long)chosen,
			   rule == DUPLICATE_LAST ? "last" : "first");
	return rc;
}

static int run_merge(struct ctx *c)
{
	static const char *const dup[] = {"refuse", "first", "last", NULL};
	struct fh_status st = FH_STATUS_INIT;
	struct import *m = calloc(1, sizeof *m);
	struct progress bar;
	struct fh_answer a;
	char source[DATASET_SOURCE_SIZE] = "merged:";
	int rule = 0;
	double tick = 0;
	int rc = m ? dataset_word(c, "on-duplicate", dup, &rule, &st) : fh_fail(&st, FH_EXHAUSTED, "no memory");

	progress_init(&bar, c->quiet);
	if (!rc)
		rc = merge_all(c, m, &tick, &bar, (enum on_duplicate)rule, &st);
	for (int i = 1; i < c->argc && strlen(source) + 67 < sizeof source; i++)
		snprintf(source + strlen(source), sizeof source - strlen(source), " %.64s", c->argv[i]);
	if (!rc)
		rc = upload_bars(c, m, c->argv[0], source, tick, &bar, &a, &st);
	import_free(m);
	return dataset_end(c, &bar, rc, &a, &st);
}

/* ---- export */

static int run_export(struct ctx *c)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fetched set;
	struct progress bar;
	int rc = export_check(c->argv[1], &st);

	if (rc)
		return ctx_fail(c, &st);
	progress_init(&bar, c->quiet);
	rc = fetch_bars(c, c->argv[0], &bar, &set, &st);
	if (!rc) {
		progress_update(&bar, 1, 1, "writing %lld bars", (long long)set.bars);
		rc = export_bars(&set, c->argv[1], &st);
	}
	progress_clear(&bar);
	fetch_release(&set);
	if (rc)
		return ctx_fail(c, &st);
	if (strcmp(c->argv[1], "-"))
		ctx_note(c, "%lld bars in %s, hash %.16s", (long long)set.bars, c->argv[1], set.hash);
	return EXIT_DONE;
}

static const struct opt append_opts[] = {DATASET_IMPORT_OPTS, {NULL, 0, NULL, NULL}};
static const struct opt merge_opts[] = {
	{"on-duplicate", 0, "WHAT", "same time, other bar: refuse (default), first or last set"},
	{NULL, 0, NULL, NULL}
};

const struct command cmds_dataset_more[] = {
	{"dataset append", GROUP_DATA, "NAME FILE", "put the bars of a file behind those of a data set",
	 "Features go on as if all bars had been imported at once, and the hash changes. Jobs that are running, paused or queued keep\n"
	 "the bars they started with. Bars that the set has already are left out when they are the same, refused when not.\n\n"
	 "  fhctl dataset append es 20240702.dbn.zst --symbol ESU4\n",
	 append_opts, 2, 2, OUT_ALL, run_append},
	{"dataset merge", GROUP_DATA, "NEW NAME...", "make one data set of several, in order of time",
	 "  fhctl dataset merge eurusd eurusd-2017 eurusd-2018\n",
	 merge_opts, 2, MERGED_MAX, OUT_ALL, run_merge},
	{"dataset export", GROUP_DATA, "NAME FILE", "write the bars to a file: .csv, .safetensors, .parquet, - for CSV on stdout",
	 "Importing that file again gives the same hash.\n\n"
	 "  fhctl dataset export eurusd eurusd.csv\n",
	 NULL, 2, 2, OUT_TABLE, run_export},
	{.name = NULL}
};
