/* Memory of a trainer, planned from what its program registers; see layout.h. Pure computation, any thread.
 *
 * Invariant: tensors lie in the order of their index, each on an ARENA_ALIGN boundary, none overlapping. */
#include "gpu/layout.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "gpu/spec_keys.h"
#include "proto/status.h"

#define ARENA_ALIGN 256
#define TENSOR_BYTES_MAX ((size_t)1 << 42) /* beyond any machine; keeps the sums below from wrapping */
/* Resident market: ts, o h l c v, 40 features, sigma. */
#define MARKET_BYTES_PER_BAR (8 + 5 * 8 + FH_MARKET_FEATURES * 4 + 4)

void plan_tensor(struct plan *p, int index, enum st_dtype dtype, enum tensor_role role, unsigned flags, const char *name,
		 int rank, ...)
{
	assert(index == p->tensors && p->tensors < PLAN_TENSOR_MAX && rank >= 0 && rank <= TENSOR_RANK_MAX);
	struct plan_tensor *t = p->tensor + p->tensors++;
	va_list dims;

	memset(t, 0, sizeof *t);
	snprintf(t->name, sizeof t->name, "%s", name);
	t->desc = (struct tensor_desc){.name = t->name, .dtype = dtype, .rank = rank, .role = role, .flags = flags};
	t->elements = 1;
	va_start(dims, rank);
	for (int i = 0; i < rank; i++) {
		t->desc.dim[i] = va_arg(dims, int64_t);
		assert(t->desc.dim[i] > 0);
		t->elements *= t->desc.dim[i];
	}
	va_end(dims);
	t->stride = (size_t)t->elements * st_dtype_size(dtype);
}

void plan_view(struct plan *p, int tensor, int64_t offset, const char *name, int rank, int64_t d0, int64_t d1)
{
	assert(p->views < PLAN_VIEW_MAX && tensor < p->tensors && (rank == 1 || rank == 2));
	struct tensor_view *v = p->view + p->views;

	snprintf(p->view_name[p->views], sizeof p->view_name[0], "%s", name);
	*v = (struct tensor_view){.tensor = tensor, .name = p->view_name[p->views], .rank = rank, .dim = {d0, rank == 2 ? d1 : 1},
				  .offset = offset};
	assert(offset + v->dim[0] * v->dim[1] <= p->tensor[tensor].elements);
	p->views++;
}

/* Names point into the struct itself, so that a copied plan must be rebased. */
static void rebase(struct plan *p)
{
	for (int i = 0; i < p->tensors; i++)
		p->tensor[i].desc.name = p->tensor[i].name;
	for (int i = 0; i < p->views; i++)
		p->view[i].name = p->view_name[i];
}

void plan_copy(struct plan *to, const struct plan *from)
{
	*to = *from;
	rebase(to);
}

int plan_place(struct plan *p, struct fh_status *st)
{
	size_t at = 0;

	for (int i = 0; i < p->tensors; i++) {
		struct plan_tensor *t = p->tensor + i;
		t->bytes = t->stride * (size_t)p->population;
		if (t->stride > TENSOR_BYTES_MAX || t->bytes > TENSOR_BYTES_MAX)
			return fh_fail(st, FH_EXHAUSTED, "tensor %s needs %zu bytes", t->name, t->bytes);
		t->offset = at;
		at += (t->bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
	}
	p->arena_bytes = at;
	return 0;
}

int plan_make(const struct fh_spec *spec, struct plan *out, struct fh_status *st)
{
	const struct program *program = program_find(spec->model);
	struct plan p;

	if (!program)
		return fh_fail_field(st, FH_INVALID, "model", "model \"%s\" is not known", spec->model);
	memset(&p, 0, sizeof p);
	p.program = program;
	p.spec = *spec;
	p.population = (int)spec->run.population;
	int rc = program->plan(spec, FH_STATE_DIM, &p, st);
	if (rc == 0)
		rc = plan_place(&p, st);
	if (rc == 0)
		plan_copy(out, &p);
	return rc;
}

int spec_same_layout(const struct fh_spec *a, const struct fh_spec *b)
{
	int n;
	const struct spec_key *key = spec_keys(&n);

	for (int i = 0; i < n; i++) {
		char x[FH_NAME_MAX + 32], y[FH_NAME_MAX + 32];
		if (!(key[i].flags & SPEC_SHAPE))
			continue;
		spec_get(a, key + i, x, sizeof x);
		spec_get(b, key + i, y, sizeof y);
		if (strcmp(x, y) != 0)
			return 0;
	}
	return 1;
}

void plan_memory(const struct plan *p, int64_t bars, struct memory_plan *out)
{
	memset(out, 0, sizeof *out);
	for (int i = 0; i < p->tensors; i++) {
		const struct plan_tensor *t = p->tensor + i;
		size_t *owner = &out->scratch;

		if (t->desc.flags & TENSOR_REPLAY)
			owner = &out->replay;
		else if (t->desc.role == ROLE_PARAM || t->desc.role == ROLE_TARGET)
			owner = &out->parameters;
		else if (t->desc.role == ROLE_MOMENT || t->desc.role == ROLE_GRAD)
			owner = &out->optimizer;
		else if (t->desc.role == ROLE_STATE)
			owner = &out->environments;
		*owner += t->bytes;
	}
	out->market = (size_t)bars * MARKET_BYTES_PER_BAR;
	out->total = p->arena_bytes + out->market;
}
