/* Saving and restoring a trainer: every tensor with TENSOR_KEEP by name, the trainer's position, the specification.
 *
 * Snapshots and resumes run on the trainer's worker between two trainer_run(); reading files any thread. Invariant: a
 * file is read, checked and copied to host memory as a whole before the first tensor of the trainer changes. */
#include "gpu/checkpoint.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/safetensors.h"
#include "gpu/spec_keys.h"
#include "gpu/trainer_impl.h"
#include "proto/status.h"

#define POSITION_TENSOR "trainer.position" /* I64, the fields of struct position */
#define POSITION_FIELDS 4
#define META_MAX 64 /* keys and values of the caller */
#define NUMBER_TEXT 32
#define PRODUCTS_TEXT 96
#define PRODUCTS_OWN "own" /* files from before there was a choice */

_Static_assert(sizeof(struct position) == POSITION_FIELDS * sizeof(int64_t), "a position is a row of int64");

/* ---------------------------------------------------------------- the specification as text */

void spec_to_text(const struct fh_spec *spec, char *text)
{
	size_t at = 0;
	int n;
	const struct spec_key *key = spec_keys(&n);

	for (int i = 0; i < n; i++) {
		char value[FH_NAME_MAX + 32];
		spec_get(spec, key + i, value, sizeof value);
		at += (size_t)snprintf(text + at, SPEC_TEXT_MAX - at, "%s=%s\n", key[i].path, value);
		assert(at < SPEC_TEXT_MAX);
	}
}

static int set_line(struct fh_spec *spec, char *line, struct fh_status *st)
{
	char *value = strchr(line, '=');
	const struct spec_key *key;

	if (!value)
		return fh_fail(st, FH_CORRUPT, "the specification has the line \"%.60s\"", line);
	*value++ = 0;
	key = spec_key_find(line);
	return key ? spec_set(spec, key, value, st) : fh_fail(st, FH_CORRUPT, "the specification has an unknown key \"%.60s\"", line);
}

int spec_from_text(const char *text, struct fh_spec *spec, struct fh_status *st)
{
	char copy[SPEC_TEXT_MAX], *save = NULL;
	struct fh_spec out;

	if (strlen(text) >= sizeof copy)
		return fh_fail(st, FH_CORRUPT, "the specification is longer than %d bytes", SPEC_TEXT_MAX - 1);
	snprintf(copy, sizeof copy, "%s", text);
	spec_defaults(&out);
	for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		int rc = set_line(&out, line, st);
		if (rc)
			return rc;
	}
	*spec = out;
	return 0;
}

/* These may differ between the two halves of one run: they change what is kept or when, not what is computed. */
static int neutral(const char *path)
{
	static const char *const paths[] = {"data.dataset", "run.checkpoint_every", "run.keep_checkpoints", "run.slots", "run.priority",
					    "run.on_interrupt", "init.from", "init.checkpoint", "init.replay"};

	for (unsigned i = 0; i < sizeof paths / sizeof paths[0]; i++)
		if (strcmp(paths[i], path) == 0)
			return 1;
	return 0;
}

const struct spec_key *spec_course_difference(const struct fh_spec *a, const struct fh_spec *b)
{
	int n;
	const struct spec_key *key = spec_keys(&n);

	for (int i = 0; i < n; i++) {
		char x[FH_NAME_MAX + 32], y[FH_NAME_MAX + 32];
		spec_get(a, key + i, x, sizeof x);
		spec_get(b, key + i, y, sizeof y);
		if (strcmp(x, y) != 0 && !neutral(key[i].path))
			return key + i;
	}
	return NULL;
}

/* ---------------------------------------------------------------- reading */

static int need_meta(const struct st_file *f, const char *key, const char **out, struct fh_status *st)
{
	*out = st_meta(f, key);
	return *out ? 0 : fh_fail(st, FH_CORRUPT, "the file is no checkpoint: its metadata has no \"%s\"", key);
}

int checkpoint_open(const char *path, struct st_file **out, struct fh_spec *spec, struct fh_status *st)
{
	struct st_file *f;
	const char *format, *version, *text;
	struct fh_spec s;
	int rc = st_open(path, &f, st);

	if (rc)
		return rc;
	rc = need_meta(f, "format", &format, st);
	if (rc == 0 && strcmp(format, CHECKPOINT_FORMAT) != 0)
		rc = fh_fail(st, FH_CORRUPT, "the file is no checkpoint: its format is \"%.40s\"", format);
	if (rc == 0)
		rc = need_meta(f, "version", &version, st);
	if (rc == 0 && strcmp(version, CHECKPOINT_VERSION) != 0)
		rc = fh_fail(st, FH_VERSION, "the checkpoint has version %.20s, this program reads version " CHECKPOINT_VERSION, version);
	if (rc == 0)
		rc = need_meta(f, "spec", &text, st);
	if (rc == 0)
		rc = spec_from_text(text, &s, st);
	if (rc == 0)
		rc = spec_check(&s, st);
	if (rc == 0 && (s.learn.batch == 0 || s.replay.capacity == 0 || s.run.precision == FH_PRECISION_AUTO ||
			s.run.device == FH_DEVICE_AUTO || !(s.env.reward_scale > 0)))
		rc = fh_fail(st, FH_CORRUPT, "the checkpoint's specification holds auto where a number is needed");
	if (rc) {
		fh_prefix(st, "checkpoint");
		if (st && st->code == FH_INVALID)
			st->code = rc = FH_CORRUPT; /* the file is at fault, not a request */
		st_close(f);
		return rc;
	}
	*out = f;
	*spec = s;
	return 0;
}

/* The shape in the file: the trial axis in front of more than one trial. */
static int file_shape(const struct plan *p, int rank, const int64_t *dim, int64_t *out)
{
	int n = 0;

	if (p->population > 1)
		out[n++] = p->population;
	for (int i = 0; i < rank; i++)
		out[n++] = dim[i];
	return n;
}

static int read_view(const struct st_file *f, const struct plan *p, const struct tensor_view *v, char *to, struct fh_status *st)
{
	const struct plan_tensor *t = p->tensor + v->tensor;
	const struct st_tensor *from;
	int64_t dim[ST_RANK_MAX];
	size_t item = st_dtype_size(t->desc.dtype);
	int rank = file_shape(p, v->rank, v->dim, dim), rc = st_need(f, v->name, t->desc.dtype, rank, dim, &from, st);

	if (rc)
		return rc;
	size_t part = from->bytes / (size_t)p->population;
	for (int i = 0; to && i < p->population; i++)
		memcpy(to + t->stride * (size_t)i + (size_t)v->offset * item, (const char *)from->data + part * (size_t)i, part);
	return 0;
}

/* With to = NULL only shapes are checked. */
static int read_tensor(const struct st_file *f, const struct plan *p, int tensor, char *to, struct fh_status *st)
{
	const struct plan_tensor *t = p->tensor + tensor;
	const struct st_tensor *from;
	int64_t dim[ST_RANK_MAX];
	int views = 0, rc = 0;

	for (int i = 0; rc == 0 && i < p->views; i++)
		if (p->view[i].tensor == tensor) {
			views++;
			rc = read_view(f, p, p->view + i, to, st);
		}
	if (rc || views)
		return rc;
	rc = st_need(f, t->name, t->desc.dtype, file_shape(p, t->desc.rank, t->desc.dim, dim), dim, &from, st);
	if (rc == 0 && to)
		memcpy(to, from->data, t->bytes);
	return rc;
}

int checkpoint_read(const struct st_file *f, const struct plan *plan, int tensor, void *to, struct fh_status *st)
{
	int rc = read_tensor(f, plan, tensor, NULL, st);

	if (rc)
		return rc;
	memset(to, 0, plan->tensor[tensor].bytes);
	return read_tensor(f, plan, tensor, to, st);
}

/* A host copy of one tensor, which the caller frees. Shapes are checked before memory is taken. */
static int copy_of(const struct st_file *f, const struct plan *plan, int tensor, void **out, struct fh_status *st)
{
	int rc = read_tensor(f, plan, tensor, NULL, st);
	void *to = NULL;

	if (rc == 0 && !(to = malloc(plan->tensor[tensor].bytes)))
		rc = fh_fail(st, FH_EXHAUSTED, "no memory for %s of a checkpoint", plan->tensor[tensor].name);
	if (rc == 0)
		rc = checkpoint_read(f, plan, tensor, to, st);
	if (rc)
		free(to);
	else
		*out = to;
	return rc;
}

/* ---------------------------------------------------------------- weights of another job */

static int is_weight(const struct tensor_desc *d)
{
	return d->flags & TENSOR_KEEP && (d->role == ROLE_PARAM || d->role == ROLE_TARGET || d->role == ROLE_MOMENT);
}

static int check_finite(const char *name, const float *v, size_t bytes, struct fh_status *st)
{
	for (size_t i = 0; i < bytes / sizeof *v; i++)
		if (!isfinite(v[i]))
			return fh_fail(st, FH_CORRUPT, "checkpoint: %s[%zu] is not finite", name, i);
	return 0;
}

int trainer_carry(const struct trainer *t, const char *path, void **clock, int *tensor, void **data, int *tensors,
		  struct fh_status *st)
{
	struct st_file *f;
	struct fh_spec spec;
	struct progress at;
	int rc = checkpoint_open(path, &f, &spec, st);

	if (rc)
		return rc;
	rc = copy_of(f, &t->plan, t->clock, clock, st);
	for (int i = 0; rc == 0 && i < t->plan.tensors; i++) {
		const struct plan_tensor *p = t->plan.tensor + i;
		if (!is_weight(&p->desc))
			continue;
		rc = copy_of(f, &t->plan, i, &data[*tensors], st);
		if (rc)
			break;
		tensor[(*tensors)++] = i;
		rc = check_finite(p->name, data[*tensors - 1], p->bytes, st);
	}
	for (int p = 0; rc == 0 && p < t->plan.population; p++) {
		t->plan.program->progress(&t->plan, (const char *)*clock + t->plan.tensor[t->clock].stride * (size_t)p, &at);
		if (at.applied < 0)
			rc = fh_fail(st, FH_CORRUPT, "checkpoint: %lld applied updates", (long long)at.applied);
	}
	st_close(f);
	return rc;
}

/* ---------------------------------------------------------------- resume */

static int check_course(const struct fh_spec *file, const struct fh_spec *job, struct fh_status *st)
{
	const struct spec_key *key = spec_course_difference(file, job);
	char was[FH_NAME_MAX + 32], is[FH_NAME_MAX + 32];

	if (!key)
		return 0;
	spec_get(file, key, was, sizeof was);
	spec_get(job, key, is, sizeof is);
	return fh_fail_field(st, FH_CONFLICT, key->path, "the checkpoint was made with %s %s, the job has %s", key->path, was, is);
}

static int check_market(const struct st_file *f, const struct market *m, struct fh_status *st)
{
	const char *hash;
	int rc = need_meta(f, "market", &hash, st);

	if (rc == 0 && strcmp(hash, m->hash) != 0)
		rc = fh_fail(st, FH_CONFLICT, "the checkpoint belongs to other bars (%.12s…) than the data set holds (%.12s…)", hash, m->hash);
	return rc;
}

static int read_position(const struct trainer *t, const struct st_file *f, const struct fh_spec *spec, struct position *out,
			 struct fh_status *st)
{
	const int64_t dim[1] = {POSITION_FIELDS};
	const struct st_tensor *from;
	struct position at;
	int rc = st_need(f, POSITION_TENSOR, ST_I64, 1, dim, &from, st);

	if (rc)
		return rc;
	memcpy(&at, from->data, sizeof at);
	if (at.step < 0 || at.step > spec_planned_steps(spec) || at.vector_step < 0 || at.boundary < BOUNDARY_REPORT ||
	    at.boundary > BOUNDARY_PASSED || at.evaluated < 0 || at.evaluated > 4 * (int64_t)t->plan.population)
		return fh_fail(st, FH_CORRUPT, "checkpoint: the position (step %lld, boundary %lld, evaluation %lld) is out of range",
			       (long long)at.step, (long long)at.boundary, (long long)at.evaluated);
	*out = at;
	return 0;
}

static int check_position(const struct trainer *t, const void *clocks, const struct position *at, struct fh_status *st)
{
	for (int p = 0; p < t->plan.population; p++) {
		struct progress now;
		t->plan.program->progress(&t->plan, (const char *)clocks + t->plan.tensor[t->clock].stride * (size_t)p, &now);
		if (now.step != at->step || now.vector_step != at->vector_step)
			return fh_fail(st, FH_CORRUPT, "checkpoint: trial %d stands at step %lld, the trainer at %lld", p, (long long)now.step,
				       (long long)at->step);
	}
	return 0;
}

/* Everything the file holds for the job, checked; tensor[i] is NULL where nothing is kept. */
static int load_all(const struct trainer *t, const struct st_file *f, const struct job_start *start, void **tensor,
		    struct position *at, struct fh_status *st)
{
	int rc = read_position(t, f, &start->spec, at, st);

	for (int i = 0; rc == 0 && i < t->plan.tensors; i++)
		if (t->plan.tensor[i].desc.flags & TENSOR_KEEP)
			rc = copy_of(f, &t->plan, i, &tensor[i], st);
	if (rc == 0)
		rc = t->plan.program->restore(&t->plan, &start->spec, start->split, tensor, st);
	return rc ? rc : check_position(t, tensor[t->clock], at, st);
}

static int write_all(struct trainer *t, void *const *tensor, struct fh_status *st)
{
	for (int i = 0; i < t->plan.tensors; i++) {
		int rc = tensor[i] ? t->backend->write(t->x, i, 0, tensor[i], 0, st) : 0;
		if (rc)
			return rc;
	}
	return t->plan.program->derive(t->x, st);
}

int trainer_resume(struct trainer *t, const struct fh_spec *spec, struct market *m, const char *checkpoint,
		   struct fh_status *st)
{
	void *tensor[PLAN_TENSOR_MAX] = {NULL};
	struct position at;
	struct job_start start;
	struct fh_spec made;
	struct st_file *f;
	const char *text;
	char products[PRODUCTS_TEXT];
	int rc = checkpoint_open(checkpoint, &f, &made, st);

	if (rc)
		return rc;
	text = st_meta(f, "products");
	snprintf(products, sizeof products, "%s", text ? text : PRODUCTS_OWN);
	rc = trainer_prepare(t, spec, m, &start, st);
	if (rc == 0)
		rc = check_market(f, m, st);
	if (rc == 0)
		rc = check_course(&made, &start.spec, st);
	if (rc == 0)
		rc = load_all(t, f, &start, tensor, &at, st);
	st_close(f);
	if (rc == 0 && t->backend->keep_products)
		rc = t->backend->keep_products(t->x, products, st);
	if (rc == 0)
		rc = trainer_install(t, &start, m, 0, 0, NULL, NULL, st);
	if (rc == 0)
		rc = write_all(t, tensor, st);
	for (int i = 0; i < PLAN_TENSOR_MAX; i++)
		free(tensor[i]);
	if (rc)
		return rc;
	t->at = at;
	t->began_at = at.step;
	rc = trainer_read_progress(t, st);
	if (rc == 0)
		t->begun = 1;
	return rc;
}

/* ---------------------------------------------------------------- snapshot */

/* The list that becomes the file; buffers live until the image is made. */
struct list {
	struct st_tensor tensor[PLAN_TENSOR_MAX + PLAN_VIEW_MAX + 1];
	void *buffer[PLAN_TENSOR_MAX + PLAN_VIEW_MAX];
	int tensors, buffers;
};

static void *list_buffer(struct list *l, size_t bytes)
{
	void *b = malloc(bytes);

	if (b)
		l->buffer[l->buffers++] = b;
	return b;
}

static void list_add(struct list *l, const struct plan *p, const char *name, enum st_dtype dtype, int rank, const int64_t *dim,
		     const void *data, size_t bytes)
{
	struct st_tensor *t = l->tensor + l->tensors++;

	*t = (struct st_tensor){.dtype = dtype, .data = data, .bytes = bytes};
	snprintf(t->name, sizeof t->name, "%s", name);
	t->rank = file_shape(p, rank, dim, t->dim);
}

/* Trials lie a whole flat buffer apart: a view of several is gathered, of one it is part of the buffer. */
static int list_view(struct list *l, const struct plan *p, const struct tensor_view *v, const char *flat, struct fh_status *st)
{
	const struct plan_tensor *t = p->tensor + v->tensor;
	size_t item = st_dtype_size(t->desc.dtype), part = (size_t)(v->dim[0] * v->dim[1]) * item;
	const char *from = flat + (size_t)v->offset * item;

	if (p->population > 1) {
		char *all = list_buffer(l, part * (size_t)p->population);
		if (!all)
			return fh_fail(st, FH_EXHAUSTED, "no memory for %s of a checkpoint", v->name);
		for (int i = 0; i < p->population; i++)
			memcpy(all + part * (size_t)i, from + t->stride * (size_t)i, part);
		from = all;
	}
	list_add(l, p, v->name, t->desc.dtype, v->rank, v->dim, from, part * (size_t)p->population);
	return 0;
}

static int list_tensor(struct trainer *t, struct list *l, int tensor, struct fh_status *st)
{
	const struct plan *p = &t->plan;
	const struct plan_tensor *d = p->tensor + tensor;
	void *data = list_buffer(l, d->bytes);
	int views = 0, rc;

	if (!data)
		return fh_fail(st, FH_EXHAUSTED, "no memory for %s of a checkpoint (%zu bytes)", d->name, d->bytes);
	rc = t->backend->read(t->x, tensor, 0, data, 0, st);
	for (int i = 0; rc == 0 && i < p->views; i++)
		if (p->view[i].tensor == tensor) {
			views++;
			rc = list_view(l, p, p->view + i, data, st);
		}
	if (rc == 0 && !views)
		list_add(l, p, d->name, d->desc.dtype, d->desc.rank, d->desc.dim, data, d->bytes);
	return rc;
}

/* Ours first, then the caller's. */
static int make_image(const struct trainer *t, const struct list *l, const char *const *meta, struct st_image *out,
		      struct fh_status *st)
{
	char spec[SPEC_TEXT_MAX], step[NUMBER_TEXT], vector_step[NUMBER_TEXT], stored[NUMBER_TEXT], seed[NUMBER_TEXT], products[PRODUCTS_TEXT] = "";
	const char *all[2 * META_MAX + 32] = {"format", CHECKPOINT_FORMAT, "version", CHECKPOINT_VERSION, "model", t->spec.model,
					      "spec", spec, "step", step, "vector_step", vector_step, "transitions", stored,
					      "seed", seed, "market", t->market->hash, "backend", t->backend->name};
	int n = 20;

	spec_to_text(&t->spec, spec);
	snprintf(step, sizeof step, "%lld", (long long)t->at.step);
	snprintf(vector_step, sizeof vector_step, "%lld", (long long)t->at.vector_step);
	snprintf(stored, sizeof stored, "%lld", (long long)t->progress.stored);
	snprintf(seed, sizeof seed, "%lld", (long long)t->spec.run.seed);
	if (t->backend->products)
		t->backend->products(t->x, products, sizeof products);
	if (products[0])
		all[n++] = "products", all[n++] = products;
	for (int i = 0; meta && meta[i]; i++) {
		if (i == 2 * META_MAX)
			return fh_fail(st, FH_EXHAUSTED, "more than %d metadata entries", META_MAX);
		all[n++] = meta[i];
	}
	all[n] = NULL;
	return st_image_make(l->tensor, l->tensors, all, out, st);
}

int trainer_snapshot(struct trainer *t, const char *const *meta, struct st_image *out, struct fh_status *st)
{
	const int64_t one_row[1] = {POSITION_FIELDS};
	struct list *l;
	int rc;

	if (!t->begun)
		return fh_fail(st, FH_CONFLICT, "the trainer has no job");
	l = calloc(1, sizeof *l);
	if (!l)
		return fh_fail(st, FH_EXHAUSTED, "no memory for a checkpoint");
	rc = validate_settle(t, INT64_MAX, st); /* nobody could make it again: the networks have moved on */
	rc = rc < 0 ? rc : trainer_read_progress(t, st);
	for (int i = 0; rc == 0 && i < t->plan.tensors; i++)
		if (t->plan.tensor[i].desc.flags & TENSOR_KEEP)
			rc = list_tensor(t, l, i, st);
	if (rc == 0) {
		struct st_tensor *p = l->tensor + l->tensors++;
		*p = (struct st_tensor){.name = POSITION_TENSOR, .dtype = ST_I64, .rank = 1, .dim = {one_row[0]}, .data = &t->at,
					.bytes = sizeof t->at};
		rc = make_image(t, l, meta, out, st);
	}
	for (int i = 0; i < l->buffers; i++)
		free(l->buffer[i]);
	free(l);
	if (rc == 0)
		t->checkpoint_due = 0;
	return rc;
}
