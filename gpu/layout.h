/* From specification to memory: every tensor's shape and offset, and the bytes it all takes, before anything is
 * allocated. Pure computation, any thread. Tensors start on 256-byte boundaries of one arena. */
#ifndef FH_GPU_LAYOUT_H
#define FH_GPU_LAYOUT_H

#include <stddef.h>
#include "gpu/program.h"

#define PLAN_TENSOR_MAX 96
#define PLAN_VIEW_MAX 128

struct plan_tensor {
	struct tensor_desc desc;
	char name[ST_TENSOR_NAME_MAX];
	int64_t elements;      /* of one trial */
	size_t offset, bytes;  /* in the arena; bytes cover all P trials */
	size_t stride;         /* bytes from trial to trial: elements * element size */
};

struct plan {
	const struct program *program;
	struct fh_spec spec;     /* resolved */
	int population;
	int tensors, views;
	struct plan_tensor tensor[PLAN_TENSOR_MAX];
	struct tensor_view view[PLAN_VIEW_MAX];
	char view_name[PLAN_VIEW_MAX][ST_TENSOR_NAME_MAX];
	size_t arena_bytes;
	unsigned char dims[512]; /* the program's own dimensions (struct dqn_dims), copied by value */
};

/* Used by program->plan, in tensor-index order: `index` must equal the running count (an assertion). */
void plan_tensor(struct plan *p, int index, enum st_dtype dtype, enum tensor_role role, unsigned flags,
		 const char *name, int rank, ...); /* int64_t dims */
void plan_view(struct plan *p, int tensor, int64_t offset, const char *name, int rank, int64_t d0, int64_t d1);
/* Gives every registered tensor its place in the arena. */
int plan_place(struct plan *p, struct fh_status *st);
/* Bytes from the first of so many tensors, which lie behind each other, to the end of the last. */
static inline size_t plan_span(const struct plan *p, int tensor, int tensors)
{
	const struct plan_tensor *last = &p->tensor[tensor + tensors - 1];

	return last->offset + last->bytes - p->tensor[tensor].offset;
}
/* Runs program->plan and lays the arena out. spec must be resolved (no auto but reward_scale). */
int plan_make(const struct fh_spec *spec, struct plan *out, struct fh_status *st);
/* A plan holds pointers into itself: copy it with this. */
void plan_copy(struct plan *to, const struct plan *from);
/* 1 when all SHAPE keys are equal. */
int spec_same_layout(const struct fh_spec *a, const struct fh_spec *b);
/* Memory by owner for `fhctl info` and the admission check. */
struct memory_plan {
	size_t parameters, optimizer, replay, environments, scratch, market;
	size_t overhead; /* captured graphs and what the driver rounds up: known to the backend alone, see its price() */
	size_t total;
};
void plan_memory(const struct plan *p, int64_t bars, struct memory_plan *out);

#endif
