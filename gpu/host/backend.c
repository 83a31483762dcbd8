/* The host backend: one arena per trainer, stages called one after another, readbacks copied at once.
 *
 * Thread: an exec belongs to one worker; the backend itself has no state that changes. Work is done when run() returns,
 * so a readback is finished when it is asked for. Invariant: nothing is allocated inside a step. */
#include "gpu/backend.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "gpu/dqn/dqn.h"
#include "gpu/host/stages.h"
#include "gpu/host/threads.h"
#include "proto/status.h"

#define READBACK_SLOTS 8
#define POISON 0xA5 /* as F32 a tiny negative number, as an index far outside: scratch that is read before written shows */

struct slot { void *data; uint64_t tag; };

struct host_exec {
	struct host_priv priv; /* first: the stages see only this */
	struct exec x;
	struct plan plan;
	const stage_fn *stages;
	struct slot slot[READBACK_SLOTS];
	uint64_t asked, answered;
	size_t slot_bytes;
	struct host_act *act; /* made at the first evaluation */
};

static struct host_exec *host_of(struct exec *x) { return (struct host_exec *)x->priv; }

/* ---------------------------------------------------------------- device */

/* What the kernel would give without swapping; free pages alone leave out the page cache. 0 when it does not say. */
static size_t memory_available(void)
{
	char line[128];
	unsigned long long kib = 0;
	FILE *f = fopen("/proc/meminfo", "r");

	if (!f)
		return 0;
	while (fgets(line, sizeof line, f))
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			break;
	fclose(f);
	return (size_t)kib * 1024;
}

static int host_info(const struct backend *b, struct device_info *out, struct fh_status *st)
{
	struct utsname u;
	long page = sysconf(_SC_PAGESIZE), all = sysconf(_SC_PHYS_PAGES);

	memset(out, 0, sizeof *out);
	snprintf(out->name, sizeof out->name, "host CPU");
	if (uname(&u) == 0)
		snprintf(out->driver, sizeof out->driver, "%.20s %.40s", u.sysname, u.release);
	out->memory_total = page > 0 && all > 0 ? (size_t)page * (size_t)all : 0;
	out->memory_free = memory_available();
	out->threads = team_default_threads();
	return 0;
}

/* Markets and arenas are the process's own memory and nobody counts them apart. */
static int host_memory(const struct backend *b, struct device_memory *out, struct fh_status *st)
{
	struct device_info info;

	host_info(b, &info, st);
	*out = (struct device_memory){.total = info.memory_total, .free = info.memory_free};
	out->others = out->free < out->total ? out->total - out->free : 0;
	return 0;
}

/* ---------------------------------------------------------------- life of an exec */

static void host_exec_free(struct exec *x)
{
	if (!x)
		return;
	struct host_exec *h = host_of(x);
	for (int i = 0; i < READBACK_SLOTS; i++)
		free(h->slot[i].data);
	host_dqn_act_free(h->act);
	team_free(h->priv.team);
	market_unref((struct market *)(uintptr_t)x->market_host);
	free(x->arena);
	free(h);
}

/* Only what the trainer reads back: clocks and accumulators. */
static size_t readback_bytes(const struct plan *plan)
{
	size_t most = 0;

	for (int i = 0; i < plan->tensors; i++) {
		enum tensor_role role = plan->tensor[i].desc.role;
		if ((role == ROLE_CLOCK || role == ROLE_ACCUM) && plan->tensor[i].bytes > most)
			most = plan->tensor[i].bytes;
	}
	return most;
}

static void clear_arena(struct host_exec *h)
{
	int poison = getenv("FHD_POISON") != NULL; /* tests: what is not zeroed at a start must be written before it is read */

	for (int i = 0; i < h->plan.tensors; i++) {
		const struct plan_tensor *t = h->plan.tensor + i;
		int dirty = poison && t->desc.role == ROLE_SCRATCH && !(t->desc.flags & TENSOR_FRESH);
		h->x.tensor[i] = (char *)h->x.arena + t->offset;
		memset(h->x.tensor[i], dirty ? POISON : 0, t->bytes);
	}
}

static int host_exec_new(const struct backend *b, const struct plan *plan, struct exec **out, struct fh_status *st)
{
	struct host_exec *h = calloc(1, sizeof *h);
	int rc;

	if (!h)
		return fh_fail(st, FH_EXHAUSTED, "no memory for a trainer");
	plan_copy(&h->plan, plan);
	h->x.backend = b;
	h->x.plan = &h->plan;
	h->x.dims = h->plan.dims;
	h->x.priv = h;
	h->stages = host_stages(plan->program);
	h->slot_bytes = readback_bytes(plan);
	rc = posix_memalign(&h->x.arena, 4096, plan->arena_bytes);
	if (rc) {
		h->x.arena = NULL;
		rc = fh_fail(st, FH_EXHAUSTED, "a trainer needs %zu bytes of memory and the system refused", plan->arena_bytes);
	}
	for (int i = 0; rc == 0 && i < READBACK_SLOTS; i++)
		if (!(h->slot[i].data = malloc(h->slot_bytes)))
			rc = fh_fail(st, FH_EXHAUSTED, "no memory for a readback slot of %zu bytes", h->slot_bytes);
	if (rc == 0)
		rc = team_new(0, &h->priv.team, st);
	if (rc) {
		host_exec_free(&h->x);
		return rc;
	}
	clear_arena(h);
	*out = &h->x;
	return 0;
}

static void host_usage(const struct exec *x, struct exec_usage *out)
{
	*out = (struct exec_usage){.arena = x->plan->arena_bytes};
}

static int host_exec_market(struct exec *x, const struct market *m, struct fh_status *st)
{
	struct market *before = (struct market *)(uintptr_t)x->market_host;

	x->market_host = market_ref((struct market *)(uintptr_t)m);
	market_unref(before);
	x->market.bars = m->bars;
	x->market.open = m->open;
	x->market.high = m->high;
	x->market.low = m->low;
	x->market.close = m->close;
	x->market.feature = m->feature;
	x->market.sigma = m->sigma;
	return 0;
}

/* ---------------------------------------------------------------- copies */

static size_t span(const struct exec *x, int tensor, size_t offset, size_t bytes)
{
	size_t whole;

	assert(tensor >= 0 && tensor < x->plan->tensors);
	whole = x->plan->tensor[tensor].bytes;
	assert(offset <= whole && bytes <= whole - offset);
	return bytes ? bytes : whole - offset;
}

static int host_write(struct exec *x, int tensor, size_t offset, const void *src, size_t bytes, struct fh_status *st)
{
	memcpy((char *)x->tensor[tensor] + offset, src, span(x, tensor, offset, bytes));
	return 0;
}

static int host_read(struct exec *x, int tensor, size_t offset, void *dst, size_t bytes, struct fh_status *st)
{
	memcpy(dst, (const char *)x->tensor[tensor] + offset, span(x, tensor, offset, bytes));
	return 0;
}

static int host_zero(struct exec *x, int tensor, int tensors, struct fh_status *st)
{
	memset(x->tensor[tensor], 0, plan_span(x->plan, tensor, tensors));
	return 0;
}

/* ---------------------------------------------------------------- work */

static int host_stage(struct exec *x, const struct stage *stage, struct fh_status *st)
{
	return host_of(x)->stages[stage->id](x, st);
}

static int host_run(struct exec *x, const struct run *run, int runs, struct fh_status *st)
{
	for (int r = 0; r < runs; r++) {
		const struct phase *phase = x->plan->program->phase + run[r].phase;
		for (int i = 0; i < run[r].count; i++)
			for (int s = 0; s < phase->stages; s++) {
				int rc = host_stage(x, phase->stage + s, st);
				if (rc)
					return rc;
			}
	}
	return 0;
}

static int host_finish(struct exec *x, struct fh_status *st)
{
	return 0;
}

static int host_readback_request(struct exec *x, int tensor, int clear, uint64_t tag, struct fh_status *st)
{
	struct host_exec *h = host_of(x);
	size_t bytes = x->plan->tensor[tensor].bytes;

	assert(bytes <= h->slot_bytes);
	if (h->asked - h->answered == READBACK_SLOTS)
		return fh_fail(st, FH_EXHAUSTED, "all %d readback slots are in use", READBACK_SLOTS);
	struct slot *s = h->slot + h->asked++ % READBACK_SLOTS;
	s->tag = tag;
	memcpy(s->data, x->tensor[tensor], bytes);
	if (clear)
		memset(x->tensor[tensor], 0, bytes);
	return 0;
}

static int host_readback_poll(struct exec *x, const void **data, uint64_t *tag, struct fh_status *st)
{
	struct host_exec *h = host_of(x);

	if (h->answered == h->asked)
		return 0;
	const struct slot *s = h->slot + h->answered++ % READBACK_SLOTS;
	*data = s->data;
	*tag = s->tag;
	return 1;
}

static int host_act_open(struct exec *x, int policy, int first, int *trials, struct act_limits *limits, struct fh_status *st)
{
	return host_dqn_act_open(x, &host_of(x)->act, policy, first, trials, limits, st);
}

static int host_act(struct exec *x, const struct act_part *part, int parts, const int32_t *bar, const float *portfolio, int32_t *action,
		    struct fh_status *st)
{
	(void)st;
	return host_dqn_act(x, host_of(x)->act, part, parts, bar, portfolio, action);
}

/* ---------------------------------------------------------------- tables */

const stage_fn *host_stages(const struct program *p)
{
	assert(p == &dqn_program);
	return host_dqn_stages();
}

const struct backend *backend_host(void)
{
	static const struct backend host = {
		.name = "host", .kind = FH_DEVICE_HOST, .abi = BACKEND_ABI, .device = 0, .info = host_info,
		.memory = host_memory, .usage = host_usage,
		.exec_new = host_exec_new, .exec_free = host_exec_free, .exec_market = host_exec_market,
		.write = host_write, .read = host_read, .zero = host_zero, .run = host_run, .stage = host_stage,
		.readback_request = host_readback_request, .readback_poll = host_readback_poll, .finish = host_finish, .act_open = host_act_open, .act = host_act,
	};
	return &host;
}
