/* What a registration is when its bars go behind those of a registered set: the bars of both, and what stays of the old one. See dataset.h.
 *
 * registration_append() runs on the pool and touches its registration alone, the rest on the loop. Invariant: the old file is read as it was
 * registered, or nothing happens. */
#include "daemon/dataset.h"
#include "daemon/dataset_internal.h"
#include "daemon/need.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- pool */

/* The old bars and the new ones behind them. */
static int join_bars(struct registration *r, const struct market *old)
{
	size_t a = (size_t)old->bars, b = (size_t)r->bars.bars;
	int code = market_new(old->bars + r->bars.bars, r->origin.tick, r->origin.roll, (int64_t)r->origin.rolls, &r->market, &r->st);

	if (code)
		return code;
	struct market *m = r->market;
	const void *const from[2][6] = {
		{old->ts, old->open, old->high, old->low, old->close, old->volume},
		{r->bars.ts, r->bars.open, r->bars.high, r->bars.low, r->bars.close, r->bars.volume},
	};
	void *const to[6] = {m->ts, m->open, m->high, m->low, m->close, m->volume};

	for (size_t k = 0; k < 6; k++) {
		memcpy(to[k], from[0][k], a * 8);
		memcpy((char *)to[k] + a * 8, from[1][k], b * 8);
	}
	return 0;
}

/* The old changes of the contract and the new ones behind them. */
static int join_rolls(struct registration *r, const struct market *old)
{
	size_t a = (size_t)old->rolls, b = r->origin.rolls;
	int64_t *roll = malloc((a + b + 1) * sizeof *roll);

	if (!roll)
		return fh_fail(&r->st, FH_EXHAUSTED, "no memory for %zu changes of the contract", a + b);
	if (a)
		memcpy(roll, old->roll, a * sizeof *roll);
	for (size_t i = 0; i < b; i++) /* checked when the market is built, so nothing may overflow here */
		roll[a + i] = r->origin.roll[i] < 0 || r->origin.roll[i] > DATASET_BARS_MAX ? -1 : r->origin.roll[i] + old->bars;
	free((int64_t *)r->origin.roll);
	r->origin.roll = roll;
	r->origin.rolls = a + b;
	return 0;
}

/* Makes r->market the whole of an append: what came is checked against what its client computed and against the last old bar. */
int registration_append(struct registration *r)
{
	struct market *old = NULL;
	char hash[65];
	int code = market_hash(&r->bars, r->origin.roll, (int64_t)r->origin.rolls, hash, &r->st);

	if (!code && r->bars.bars > DATASET_BARS_MAX - r->there_bars)
		code = fh_fail_field(&r->st, FH_INVALID, "bars", "%lld bars and %lld more; a data set has up to %lld", (long long)r->there_bars,
				     (long long)r->bars.bars, (long long)DATASET_BARS_MAX);
	if (!code && r->origin.hash[0] && strcmp(r->origin.hash, hash))
		code = fh_fail_field(&r->st, FH_CORRUPT, "hash", "the bars that came have the hash %.16s, the client's had %.16s", hash,
				     r->origin.hash);
	if (!code)
		code = dataset_read(r->path, r->origin.tick, r->there_bars, &old, &r->st);
	if (code)
		return code;
	if (strcmp(old->hash, r->there))
		code = fh_fail(&r->st, FH_CORRUPT, "%s holds other bars than were registered", r->path);
	if (!code)
		code = dataset_check_bars(&r->bars, r->there_bars, &old->ts[old->bars - 1], &r->st);
	if (!code)
		code = join_rolls(r, old);
	if (!code)
		code = join_bars(r, old);
	market_unref(old);
	return code;
}

/* ---------------------------------------------------------------- loop */

int dataset_may_append(const struct datasets *ds, const struct dataset_origin *o, struct fh_status *st)
{
	const struct dataset *d;
	int code = datasets_need(ds, o->name, &d, st);

	if (code)
		return code;
	if (o->base && o->base[0] && strcmp(o->base, d->hash))
		return fh_fail_field(st, FH_CONFLICT, "base_hash", "data set \"%s\" has other bars now (%.12s) than the bars were made for (%.12s)",
				     o->name, d->hash, o->base);
	return 0;
}

/* The names of the old contracts and of the new ones behind them. Where the new bars go on with the last old contract, one name is enough. */
static void join_contracts(struct dataset_origin *o, const Fh__V1__Dataset *old)
{
	size_t seam = o->rolls && !o->roll[0], a = old->n_roll + 1, b = o->rolls + 1 - seam, n = 0;
	char **name, *last = NULL;

	if (!o->contracts && !old->n_contract)
		return;
	name = need(calloc(a + b + 1, sizeof *name));
	for (size_t i = 0; i < a; i++)
		name[n++] = last = need(strdup(i < old->n_contract ? old->contract[i] : ""));
	for (size_t i = 0; i < b; i++) {
		char *next = i < o->contracts ? (char *)o->contract[i] : need(strdup(""));

		if (i || seam) {
			name[n++] = next;
		} else if (last && last[0]) {
			free(next);
		} else {
			free(last);
			name[n - 1] = next;
		}
	}
	free((char **)o->contract);
	o->contract = (const char *const *)name;
	o->contracts = n;
}

/* What stays of the set that bars are appended to: its tick, where it came from, its notices, its earlier states. */
void registration_inherit(struct registration *r, const struct dataset *d)
{
	const Fh__V1__Dataset *old = d->info;
	struct dataset_origin *o = &r->origin;
	size_t keep = old->n_version < DATASET_VERSIONS_MAX - 1 ? old->n_version : DATASET_VERSIONS_MAX - 1;
	struct dataset_version *v = need(calloc(keep + 1, sizeof *v));
	size_t room = DATASET_NOTES_MAX - 1 < old->n_note ? 0 : DATASET_NOTES_MAX - 1 - old->n_note;
	size_t fresh = o->notes < room ? o->notes : room, kept = old->n_note < DATASET_NOTES_MAX - 1 ? old->n_note : DATASET_NOTES_MAX - 1;
	char **note = need(calloc(kept + fresh + 1, sizeof *note)), text[DATASET_NOTE_BYTES_MAX];

	for (size_t i = 0; i < keep; i++) {
		const Fh__V1__DatasetVersion *from = old->version[old->n_version - keep + i];
		v[i].bars = from->bars;
		snprintf(v[i].hash, sizeof v[i].hash, "%s", from->hash ? from->hash : "");
	}
	v[keep].bars = d->bars;
	snprintf(v[keep].hash, sizeof v[keep].hash, "%s", d->hash);
	snprintf(text, sizeof text, "%lld bars appended from %.*s", (long long)r->bars.bars, 200, o->source);
	for (size_t i = 0; i < kept; i++)
		note[i] = need(strdup(old->note[i]));
	note[kept] = need(strdup(text));
	for (size_t i = 0; i < o->notes; i++) {
		if (i < fresh)
			note[kept + 1 + i] = (char *)o->note[i];
		else
			free((char *)o->note[i]);
	}
	free((char **)o->note);
	free((char *)o->source);
	o->note = (const char *const *)note;
	o->notes = kept + 1 + fresh;
	o->source = need(strdup(old->source ? old->source : ""));
	o->version = v;
	o->versions = keep + 1;
	join_contracts(o, old);
	o->tick = d->tick;
	o->has_volume = o->has_volume || old->has_volume;
	o->duplicates += old->duplicates;
	o->dropped += old->dropped;
	o->repaired += old->repaired;
	o->moved += old->moved;
	r->there_bars = d->bars;
	r->created_ns = old->created_ns;
}
