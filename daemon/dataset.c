/* The registry: names, what is known of each set, start-up. See dataset.h. */
#include "daemon/dataset.h"
#include "daemon/clock.h"
#include "daemon/dataset_internal.h"
#include "daemon/files.h"
#include "daemon/log.h"
#include "daemon/need.h"
#include "daemon/store.h"
#include "gpu/safetensors.h"
#include "proto/spec.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEAR 3 /* edits between a name and one that may have been meant */

int datasets_new(const struct datasets_config *cfg, struct datasets **out, struct fh_status *st)
{
	struct datasets *ds;
	int code = files_folder(cfg->dir, st);

	if (code)
		return code;
	ds = need(calloc(1, sizeof *ds));
	ds->cfg = *cfg;
	ds->dir = need(strdup(cfg->dir));
	ds->cfg.dir = ds->dir;
	if (!ds->cfg.cache_bytes)
		ds->cfg.cache_bytes = DATASET_CACHE_BYTES;
	if (!ds->cfg.upload_idle_ms)
		ds->cfg.upload_idle_ms = UPLOAD_IDLE_MS;
	if (!ds->cfg.bars_max)
		ds->cfg.bars_max = DATASET_BARS_MAX;
	ds->started_ns = time_now_ns();
	cache_start(ds);
	*out = ds;
	return 0;
}

void datasets_stop(struct datasets *ds)
{
	if (!ds || ds->stopping)
		return;
	ds->stopping = 1;
	uploads_stop(ds);
	registrations_stop(ds);
	cache_stop(ds);
}

int datasets_busy(const struct datasets *ds)
{
	return ds->in_flight;
}

void datasets_free(struct datasets *ds)
{
	if (!ds)
		return;
	assert(!ds->in_flight && ds->stopping);
	cache_free(ds);
	while (ds->sets)
		dataset_remove(ds, ds->set[ds->sets - 1]);
	free(ds->set);
	free(ds->dir);
	free(ds);
}

/* ---------------------------------------------------------------- names */

/* The place of `name`, or where it belongs. */
static size_t place(const struct datasets *ds, const char *name, int *found)
{
	size_t lo = 0, hi = ds->sets;

	*found = 0;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		int c = strcmp(ds->set[mid]->name, name);

		if (!c) {
			*found = 1;
			return mid;
		}
		if (c < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

struct dataset *dataset_lookup(const struct datasets *ds, const char *name)
{
	int found;
	size_t i = place(ds, name, &found);

	return found ? ds->set[i] : NULL;
}

const struct dataset *datasets_find(const struct datasets *ds, const char *name)
{
	struct dataset *d = dataset_lookup(ds, name);

	return d && !d->dropping ? d : NULL;
}

const struct dataset *datasets_at(const struct datasets *ds, size_t i)
{
	return i < ds->sets ? ds->set[i] : NULL;
}

int dataset_missing(const struct datasets *ds, const char *name, const char *field, struct fh_status *st)
{
	const char *near = NULL;
	int best = NEAR + 1;

	for (size_t i = 0; i < ds->sets; i++) {
		int distance = fh_edit_distance(name, ds->set[i]->name);

		if (distance < best) {
			best = distance;
			near = ds->set[i]->name;
		}
	}
	if (near)
		return fh_fail_field(st, FH_NOT_FOUND, field, "there is no data set \"%s\", did you mean \"%s\"?", name, near);
	return fh_fail_field(st, FH_NOT_FOUND, field, "there is no data set \"%s\"", name);
}

int datasets_need(const struct datasets *ds, const char *name, const struct dataset **out, struct fh_status *st)
{
	const struct dataset *d = datasets_find(ds, name);

	if (!d)
		return dataset_missing(ds, name, "data.dataset", st);
	if (d->broken[0])
		return fh_fail_field(st, FH_CORRUPT, "data.dataset", "data set \"%s\" cannot be used: %.400s", name, d->broken);
	*out = d;
	return 0;
}

const char *dataset_name(const struct dataset *d)
{
	return d->name;
}

const char *dataset_hash(const struct dataset *d)
{
	return d->hash;
}

int64_t dataset_bars_of(const struct dataset *d, const char *hash)
{
	if (!strcmp(d->hash, hash))
		return d->bars;
	for (size_t i = 0; i < d->info->n_version; i++)
		if (d->info->version[i]->hash && !strcmp(d->info->version[i]->hash, hash))
			return d->info->version[i]->bars;
	return 0;
}

int64_t dataset_bars(const struct dataset *d)
{
	return d->bars;
}

const Fh__V1__Dataset *dataset_info(const struct dataset *d)
{
	return d->info;
}

const char *dataset_broken(const struct dataset *d)
{
	return d->broken[0] ? d->broken : NULL;
}

void dataset_path(const struct datasets *ds, const char *name, char *path, size_t size)
{
	snprintf(path, size, "%s/%s" FILES_SUFFIX, ds->dir, name);
}

void dataset_remove(struct datasets *ds, struct dataset *d)
{
	int found;
	size_t i = place(ds, d->name, &found);

	assert(found);
	memmove(&ds->set[i], &ds->set[i + 1], (--ds->sets - i) * sizeof *ds->set);
	fh__v1__dataset__free_unpacked(d->info, NULL);
	free(d);
}

struct dataset *dataset_put(struct datasets *ds, const char *name, const char *hash, const void *packed, size_t bytes)
{
	Fh__V1__Dataset *info = fh__v1__dataset__unpack(NULL, bytes, packed);
	struct dataset *d;
	int found;
	size_t i;

	if (!info)
		return NULL;
	i = place(ds, name, &found);
	if (!found) {
		if (ds->sets == ds->room) {
			ds->room = ds->room ? ds->room * 2 : 16;
			ds->set = need(realloc(ds->set, ds->room * sizeof *ds->set));
		}
		memmove(&ds->set[i + 1], &ds->set[i], (ds->sets++ - i) * sizeof *ds->set);
		ds->set[i] = need(calloc(1, sizeof **ds->set));
	}
	d = ds->set[i];
	fh__v1__dataset__free_unpacked(d->info, NULL);
	snprintf(d->name, sizeof d->name, "%s", name);
	snprintf(d->hash, sizeof d->hash, "%s", hash);
	d->info = info;
	d->bars = info->bars;
	d->tick = info->tick;
	d->broken[0] = 0;
	return d;
}

/* ---------------------------------------------------------------- start-up */

/* A look at the header only: the bars are hashed when somebody loads them. A file with more bars than its row is left by an
 * append that did not come to its row: the first ones are still those of the row. */
static void check_file(struct datasets *ds, struct dataset *d)
{
	struct fh_status st = FH_STATUS_INIT;
	const struct st_tensor *t = NULL;
	struct st_file *f = NULL;
	char path[PATH_MAX];
	const char *hash;
	int code;

	dataset_path(ds, d->name, path, sizeof path);
	code = st_open(path, &f, &st);
	if (!code)
		code = st_need(f, "ts", ST_I64, -1, NULL, &t, &st);
	if (!code && (t->rank != 1 || t->dim[0] < d->bars))
		code = fh_fail(&st, FH_CORRUPT, "%s holds fewer bars than were registered", path);
	if (!code && t->dim[0] == d->bars && (!(hash = st_meta(f, "hash")) || strcmp(hash, d->hash)))
		code = fh_fail(&st, FH_CORRUPT, "%s holds other bars than were registered", path);
	st_close(f);
	if (!code)
		return;
	snprintf(d->broken, sizeof d->broken, "%s", st.text);
	log_warn("data set unusable", "dataset=%s error=%s", d->name, log_quote(st.text));
}

static int load_row(void *arg, const struct store_dataset *r)
{
	struct datasets *ds = arg;
	struct dataset *d = dataset_put(ds, r->name, r->hash, r->info, r->info_bytes);

	if (d)
		check_file(ds, d);
	else
		log_error("row of a data set cannot be read", "dataset=%s", log_quote(r->name));
	return 0;
}

static int known(void *arg, const char *name)
{
	return dataset_lookup(arg, name) != NULL;
}

int datasets_load(struct datasets *ds, struct fh_status *st)
{
	int code = store_load_datasets(ds->cfg.store, load_row, ds, st);

	if (!code)
		files_sweep(ds->dir, store_fresh(ds->cfg.store), known, ds);
	return code;
}
