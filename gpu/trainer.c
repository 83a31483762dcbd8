/* Makes trainers, gives them jobs and runs the schedule: warm-up, then chunks of collect and learn up to the next step
 * where something is due (report, evaluation, checkpoint, end).
 *
 * Thread: the trainer's worker (trainer_plan: any). Invariant: trainer_run() returns only between chunks or evaluation
 * slices, where the tensors with TENSOR_KEEP and struct position are the whole state of the job. */
#include "gpu/trainer_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu/eval_metrics.h"
#include "gpu/host/threads.h"
#include "gpu/spec_keys.h"
#include "proto/status.h"

#define WARM_AT_ONCE 8      /* vector steps between two looks at the clock (and at the budget) */
#define CHUNKS_AT_ONCE 10   /* of short chunks: what many trainers give to one device at once takes turns at its driver */
#define STEPS_AT_ONCE 64    /* learn steps of one long chunk that a device gets at once; a power of two */
#define LONG_NS 10000000    /* what is given to a device at once takes less, or stop and pause would wait for it */
#define SHORT_NS 900000     /* less than this, and several chunks go at once: together less than LONG_NS */
#define PACE_FILL 4         /* calls that may only fill the device's queue and say nothing about its pace */
#define CLOCK_EVERY 64      /* learn steps between two looks at the clock: how late divergence is noticed, give or take a launch */

int64_t monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---------------------------------------------------------------- before a job is accepted */

static int check_device(const struct backend *b, const struct fh_spec *spec, struct fh_status *st)
{
	if (spec->run.device == (int)b->kind)
		return 0;
	return fh_fail_field(st, FH_INVALID, "run.device", "run.device asks for another device than %s, on which this trainer runs",
			     b->name);
}

static int plan_checked(const struct backend *b, const struct fh_spec *spec, struct plan *out, struct fh_status *st)
{
	int rc = spec_check(spec, st);

	if (rc == 0)
		rc = check_device(b, spec, st);
	if (rc == 0 && (spec->learn.batch == 0 || spec->replay.capacity == 0 || spec->run.precision == FH_PRECISION_AUTO))
		rc = fh_fail(st, FH_INTERNAL, "a trainer needs a resolved specification");
	return rc ? rc : plan_make(spec, out, st);
}

int trainer_plan(const struct backend *b, const struct fh_spec *spec, int64_t bars, struct memory_plan *out,
		 struct fh_status *st)
{
	struct fh_split split[FH_SPLITS];
	struct device_info info;
	struct memory_plan memory;
	struct plan *plan = malloc(sizeof *plan);
	int rc = plan ? plan_checked(b, spec, plan, st) : fh_fail(st, FH_EXHAUSTED, "no memory for a plan");

	if (rc == 0)
		rc = spec_splits(spec, bars, split, st);
	if (rc == 0)
		rc = b->info(b, &info, st);
	if (rc == 0) {
		plan_memory(plan, bars, &memory);
		if (b->price)
			b->price(b, plan, bars, &memory);
		if (info.memory_total && memory.total > info.memory_total)
			rc = fh_fail(st, FH_EXHAUSTED, "the job needs %zu MiB on %s, which has %zu MiB", memory.total >> 20, info.name,
				     info.memory_total >> 20);
	}
	if (rc == 0)
		*out = memory;
	free(plan);
	return rc;
}

/* ---------------------------------------------------------------- life */

/* The first kept tensor of a role: the master parameters, not their low-precision copy. */
static int tensor_of(const struct plan *p, enum tensor_role role)
{
	for (int i = 0; i < p->tensors; i++)
		if (p->tensor[i].desc.role == role && p->tensor[i].desc.flags & TENSOR_KEEP)
			return i;
	return -1;
}

int trainer_new(const struct backend *b, const struct fh_spec *spec, struct trainer **out, struct fh_status *st)
{
	struct trainer *t = calloc(1, sizeof *t);
	int rc;

	if (!t)
		return fh_fail(st, FH_EXHAUSTED, "no memory for a trainer");
	t->backend = b;
	rc = plan_checked(b, spec, &t->plan, st);
	if (rc == 0) {
		t->param = tensor_of(&t->plan, ROLE_PARAM);
		t->target = tensor_of(&t->plan, ROLE_TARGET);
		t->clock = tensor_of(&t->plan, ROLE_CLOCK);
		t->accum = tensor_of(&t->plan, ROLE_ACCUM);
	}
	if (rc == 0)
		rc = readback_new(t, st);
	if (rc == 0)
		rc = b->exec_new(b, &t->plan, &t->x, st);
	if (rc) {
		trainer_free(t);
		return rc;
	}
	*out = t;
	return 0;
}

void trainer_free(struct trainer *t)
{
	if (!t)
		return;
	validate_abandon(t);
	validate_forget(t);
	team_free(t->team);
	if (t->x)
		t->backend->exec_free(t->x);
	readback_free(t);
	market_unref(t->market);
	free(t);
}

int trainer_fits(const struct trainer *t, const struct fh_spec *spec)
{
	return spec_same_layout(&t->plan.spec, spec);
}

void trainer_memory(const struct trainer *t, struct memory_plan *out)
{
	int64_t bars = t->market ? t->market->bars : 0;

	plan_memory(&t->plan, bars, out);
	if (t->backend->price)
		t->backend->price(t->backend, &t->plan, bars, out);
}

void trainer_usage(const struct trainer *t, struct exec_usage *out)
{
	t->backend->usage(t->x, out);
}

/* ---------------------------------------------------------------- start of a job */

static double auto_scale(struct trainer *t, const struct fh_spec *spec, const struct market *m, struct fh_split train)
{
	const double of[SCALE_OF] = {m->tick, m->max_gap, spec->env.tick, spec->env.initial_cash, spec->env.max_position, spec->env.multiplier};
	int same = strcmp(t->scaled.hash, m->hash) == 0 && t->scaled.train.begin == train.begin && t->scaled.train.end == train.end;

	for (int i = 0; i < SCALE_OF; i++) {
		same = same && t->scaled.of[i] == of[i];
		t->scaled.of[i] = of[i];
	}
	if (!same)
		t->scaled.scale = market_auto_reward_scale(m, train, spec);
	snprintf(t->scaled.hash, sizeof t->scaled.hash, "%s", m->hash);
	t->scaled.train = train;
	return t->scaled.scale;
}

int trainer_prepare(struct trainer *t, const struct fh_spec *spec, const struct market *m, struct job_start *out,
		    struct fh_status *st)
{
	int rc = spec_check(spec, st);

	if (rc == 0 && !trainer_fits(t, spec))
		rc = fh_fail(st, FH_INVALID, "the specification has another layout than this trainer");
	if (rc == 0)
		rc = spec_splits(spec, m->bars, out->split, st);
	if (rc)
		return rc;
	out->spec = *spec;
	if (spec->env.reward_scale == 0)
		out->spec.env.reward_scale = auto_scale(t, spec, m, out->split[FH_SPLIT_TRAIN]);
	return 0;
}

static int is_cleared(const struct tensor_desc *d, int keep_weights, int keep_replay)
{
	int weight = d->role == ROLE_PARAM || d->role == ROLE_TARGET || d->role == ROLE_MOMENT;

	return d->flags & TENSOR_FRESH && !(keep_weights && weight) && !(keep_replay && d->flags & TENSOR_REPLAY);
}

/* Neighbours at once: on a device every call is a launch. */
static int zero_fresh(struct trainer *t, int keep_weights, int keep_replay, struct fh_status *st)
{
	int rc = 0;

	for (int i = 0, n; rc == 0 && i < t->plan.tensors; i += n + 1) {
		for (n = 0; i + n < t->plan.tensors && is_cleared(&t->plan.tensor[i + n].desc, keep_weights, keep_replay);)
			n++;
		if (n)
			rc = t->backend->zero(t->x, i, n, st);
	}
	return rc;
}

static void pace_reset(struct trainer *t)
{
	t->paced = t->slow = 0;
}

int trainer_read_progress(struct trainer *t, struct fh_status *st)
{
	int rc = readback_clock(t, st);

	pace_reset(t); /* the device's queue is empty afterwards */
	return rc ? rc : readback_settle(t, st);
}

int trainer_install(struct trainer *t, const struct job_start *start, struct market *m, int keep_weights, int keep_replay,
		    const void *weights_from, const void *replay_from, struct fh_status *st)
{
	int rc = readback_reset(t, st);

	if (rc == 0)
		rc = t->backend->exec_market(t->x, m, st);
	if (rc)
		return rc; /* nothing of the last job has changed yet */
	validate_abandon(t);
	validate_forget(t);
	t->begun = 0;
	struct market *before = t->market;
	t->market = market_ref(m);
	market_unref(before);
	t->spec = start->spec;
	memcpy(t->split, start->split, sizeof t->split);
	t->plan.program->schedule(&t->spec, &t->schedule);
	t->planned = spec_planned_steps(&t->spec);
	t->at = (struct position){.boundary = BOUNDARY_PASSED};
	t->checkpoint_due = t->diverged = 0;
	t->began_at = t->first_step_ns = 0;
	t->chunks_at_once = 1;
	t->steps_at_once = t->backend->kind == FH_DEVICE_HOST ? 1 : STEPS_AT_ONCE;
	rc = zero_fresh(t, keep_weights, keep_replay, st);
	return rc ? rc : t->plan.program->begin(t->x, &t->spec, t->split, weights_from, replay_from, st);
}

/* Transitions of the last job mean the same only on the same bars, in the same environment, at the same discount. */
static int check_replay(const struct trainer *t, const struct fh_spec *spec, const struct market *m, struct fh_status *st)
{
	int n;
	const struct spec_key *key = spec_keys(&n);

	if (!t->begun)
		return fh_fail_field(st, FH_CONFLICT, "init.replay", "init.replay is keep, but no job has run here since the start");
	if (strcmp(t->market->hash, m->hash) != 0)
		return fh_fail_field(st, FH_CONFLICT, "init.replay", "init.replay is keep, but the last job ran on other bars (%.12s…, now %.12s…)",
				     t->market->hash, m->hash);
	for (int i = 0; i < n; i++) {
		char was[FH_NAME_MAX + 32], is[FH_NAME_MAX + 32];
		if (strncmp(key[i].path, "env.", 4) != 0 && strcmp(key[i].path, "learn.gamma") != 0)
			continue;
		spec_get(&t->spec, key + i, was, sizeof was);
		spec_get(spec, key + i, is, sizeof is);
		if (strcmp(was, is) != 0)
			return fh_fail_field(st, FH_CONFLICT, "init.replay", "init.replay is keep, but %s was %s in the last job and is %s now",
					     key[i].path, was, is);
	}
	return 0;
}

/* Weights of a checkpoint on the host, before anything of the trainer changes. */
struct carried {
	int tensor[PLAN_TENSOR_MAX], tensors;
	void *data[PLAN_TENSOR_MAX];
	void *clock;
};

static void carried_release(struct carried *c)
{
	for (int i = 0; i < c->tensors; i++)
		free(c->data[i]);
	free(c->clock);
}

static int begin_carried(struct trainer *t, const struct job_start *start, struct market *m, const char *checkpoint,
			 int keep_replay, const void *clocks, struct fh_status *st)
{
	struct carried c = {.tensors = 0};
	int rc = trainer_carry(t, checkpoint, &c.clock, c.tensor, c.data, &c.tensors, st);

	if (rc == 0)
		rc = trainer_install(t, start, m, 0, keep_replay, c.clock, clocks, st);
	for (int i = 0; rc == 0 && i < c.tensors; i++)
		rc = t->backend->write(t->x, c.tensor[i], 0, c.data[i], 0, st);
	carried_release(&c);
	return rc;
}

int trainer_begin(struct trainer *t, const struct fh_spec *spec, struct market *m, const char *checkpoint,
		  struct fh_status *st)
{
	int warm = spec->init.from == FH_INIT_WARM, keep = spec->init.replay == FH_CARRY_KEEP, rc;
	void *clocks = NULL;
	struct job_start start;

	rc = trainer_prepare(t, spec, m, &start, st);
	if (rc == 0 && warm && !t->begun)
		rc = fh_fail_field(st, FH_CONFLICT, "init.from", "init.from is warm, but no job of this layout has run here since the start");
	if (rc == 0 && spec->init.from == FH_INIT_CHECKPOINT && !checkpoint)
		rc = fh_fail_field(st, FH_INVALID, "init.checkpoint", "init.from is checkpoint, but there is no file of checkpoint %s",
				   spec->init.checkpoint);
	if (rc == 0 && keep)
		rc = check_replay(t, &start.spec, m, st);
	if (rc == 0 && (warm || keep)) {
		clocks = malloc(t->plan.tensor[t->clock].bytes);
		rc = clocks ? t->backend->read(t->x, t->clock, 0, clocks, 0, st) : fh_fail(st, FH_EXHAUSTED, "no memory for clocks");
	}
	if (rc == 0 && t->backend->keep_products)
		rc = t->backend->keep_products(t->x, NULL, st);
	if (rc == 0 && checkpoint)
		rc = begin_carried(t, &start, m, checkpoint, keep, keep ? clocks : NULL, st);
	else if (rc == 0)
		rc = trainer_install(t, &start, m, warm, keep, warm ? clocks : NULL, keep ? clocks : NULL, st);
	free(clocks);
	if (rc == 0 && (warm || checkpoint)) /* initial values came with what is made of them */
		rc = t->plan.program->derive(t->x, st);
	if (rc == 0)
		rc = trainer_read_progress(t, st);
	if (rc == 0)
		t->begun = 1;
	return rc;
}

/* ---------------------------------------------------------------- running */

static int multiple(int64_t step, int64_t every)
{
	return every > 0 && step % every == 0;
}

/* Learn steps until something is due. */
static int64_t until_due(const struct trainer *t)
{
	const int64_t every[] = {t->spec.run.report_every, t->spec.run.validate_every, t->spec.run.checkpoint_every};
	int64_t left = t->planned - t->at.step;

	for (unsigned i = 0; i < sizeof every / sizeof every[0]; i++)
		if (every[i] > 0 && every[i] - t->at.step % every[i] < left)
			left = every[i] - t->at.step % every[i];
	return left;
}

/* Vector steps that are certainly needed are enqueued without a look at what the ones before have stored. */
static int run_warm(struct trainer *t, struct fh_status *st)
{
	struct run run = t->schedule.warm;
	int64_t n = t->progress.warm_left < WARM_AT_ONCE ? t->progress.warm_left : WARM_AT_ONCE;
	int rc;

	run.count = (int)n;
	rc = t->backend->run(t->x, &run, 1, st);
	if (rc)
		return rc;
	t->at.vector_step += n;
	t->progress.warm_left -= n;
	return t->progress.warm_left ? 0 : trainer_read_progress(t, st);
}

/* A call to the backend returns when the one two before it is done (on the host: when it is done itself), so the time
 * between two returns is what one takes, but for calls that had something to capture and where something else was done in
 * between. One chunk at a time at first, several when they are short; a chunk that is long (large batches, many trials, many learn steps) is cut. None of this changes what
 * is computed. */
static void pace(struct trainer *t, int64_t steps)
{
	int64_t now = monotonic_ns(), took = now - t->paced_ns;
	struct exec_usage used;

	t->backend->usage(t->x, &used);
	t->paced_ns = now;
	if (t->interrupted) {
		t->interrupted = 0;
		return;
	}
	if (used.captures != t->captures) {
		t->captures = used.captures;
		pace_reset(t);
	}
	if (++t->paced < PACE_FILL)
		return;
	t->slow = took > LONG_NS ? t->slow + 1 : 0;
	if (t->slow >= 2 && steps > 1) {
		t->steps_at_once = t->chunks_at_once > 1 ? t->steps_at_once : (steps + 1) / 2;
		t->chunks_at_once = 1;
		pace_reset(t);
	} else if (took < SHORT_NS && t->backend->kind != FH_DEVICE_HOST) {
		t->chunks_at_once = CHUNKS_AT_ONCE;
	}
}

/* How many of `n` learn steps go at once: as many as a whole chunk has, or a power of two. A device captures every list of
 * runs that it sees, so it must not see a list of its own for every distance between two boundaries. */
static int64_t steps_at_once(const struct trainer *t, int64_t whole, int64_t n)
{
	int64_t power = 1;

	n = n < t->steps_at_once ? n : t->steps_at_once;
	if (n == whole)
		return n;
	while (2 * power <= n)
		power *= 2;
	return power;
}

/* One chunk, or a part of it: learn steps at multiples of a chunk's length begin with its other runs. A device gets several
 * whole chunks at once when nothing is due in between, for one launch costs it what several do. */
static int run_chunk(struct trainer *t, struct fh_status *st)
{
	struct run run[CHUNK_RUN_MAX * CHUNKS_AT_ONCE];
	int last = t->schedule.runs - 1, whole = t->schedule.chunk[last].count, first, chunks = 1, rc;
	int64_t within = t->at.step % whole, left = until_due(t), steps;

	first = within == 0 ? 0 : last;
	steps = steps_at_once(t, whole, whole - within < left ? whole - within : left);
	if (steps == whole && left / whole >= t->chunks_at_once)
		chunks = t->chunks_at_once;
	for (int i = 0; i < chunks; i++)
		memcpy(run + i * t->schedule.runs, t->schedule.chunk, sizeof *run * (size_t)t->schedule.runs);
	run[chunks * t->schedule.runs - 1].count = (int)steps;
	rc = t->backend->run(t->x, run + first, chunks * t->schedule.runs - first, st);
	if (rc)
		return rc;
	t->at.vector_step += within == 0 ? chunks : 0;
	t->at.step += whole * (chunks - 1) + steps;
	t->at.boundary = BOUNDARY_REPORT;
	t->at.evaluated = 0;
	t->runs_since++;
	pace(t, whole * (chunks - 1) + steps);
	/* The clock behind the first learn steps of a run says when they were done. */
	if (t->at.step - t->progress_step >= CLOCK_EVERY || (!t->first_step_ns && t->progress_step == t->began_at))
		return readback_clock(t, st);
	return 0;
}

static int checkpoint_here(const struct trainer *t)
{
	return t->at.step == t->planned || multiple(t->at.step, t->spec.run.checkpoint_every);
}

static int run_boundary(struct trainer *t, int64_t budget_ns, struct fh_status *st)
{
	const struct fh_spec *s = &t->spec;
	int last = t->at.step == t->planned, rc = 0;

	switch ((enum boundary)t->at.boundary) {
	case BOUNDARY_REPORT:
		if (s->run.report_every > 0 && (last || multiple(t->at.step, s->run.report_every)))
			rc = readback_report(t, st);
		break;
	case BOUNDARY_EVALUATE:
		if (validate_count(t) > 0)
			pace_reset(t);
		rc = validate_run(t, budget_ns, st);
		if (rc == 0)
			return 0; /* not finished */
		rc = rc < 0 ? rc : 0;
		break;
	case BOUNDARY_CHECKPOINT:
		rc = checkpoint_here(t) ? validate_settle(t, budget_ns, st) : 1;
		if (rc == 0)
			return 0;
		t->checkpoint_due = rc > 0 && checkpoint_here(t);
		rc = rc < 0 ? rc : 0;
		break;
	case BOUNDARY_PASSED:
		return 0;
	}
	if (rc == 0)
		t->at.boundary++;
	return rc;
}

static int done(const struct trainer *t)
{
	return t->at.step == t->planned && t->at.boundary == BOUNDARY_PASSED;
}

static int warming(const struct trainer *t)
{
	return t->at.step == 0 && t->progress.warm_left > 0;
}

static int run_behind(struct trainer *t, struct fh_status *st)
{
	int rc = validate_settle(t, 0, st);

	t->interrupted = 1;
	return rc < 0 ? rc : 0;
}

static int run_once(struct trainer *t, int64_t budget_ns, struct fh_status *st)
{
	int rc;

	if (t->at.boundary != BOUNDARY_PASSED)
		rc = run_boundary(t, budget_ns, st);
	else if (warming(t))
		rc = run_warm(t, st);
	else if (validate_turn(t))
		rc = run_behind(t, st);
	else
		rc = run_chunk(t, st);
	if (rc == 0)
		rc = readback_drain(t, st);
	if (rc == 0 && t->diverged && (rc = validate_settle(t, INT64_MAX, st)) >= 0)
		rc = fh_fail(st, FH_DIVERGED, "training produced numbers that are not finite for many steps in a row, near step %lld: "
			     "lower learn.lr, or look at the data", (long long)t->at.step);
	return rc < 0 ? rc : 0;
}

/* Nothing goes on until an evaluation is finished. */
static int validating(const struct trainer *t)
{
	return (t->at.boundary == BOUNDARY_EVALUATE && validate_count(t) > 0) || (t->at.boundary == BOUNDARY_CHECKPOINT && t->behind && checkpoint_here(t));
}

void trainer_state_get(const struct trainer *t, struct trainer_state *out)
{
	*out = (struct trainer_state){
		.phase = done(t) ? TRAINER_DONE : validating(t) ? TRAINER_VALIDATE : warming(t) ? TRAINER_WARMUP : TRAINER_LEARN,
		.step = t->at.step, .planned = t->planned, .vector_step = t->at.vector_step, .epoch = trainer_epoch(t),
		.transitions = t->progress.stored, .checkpoint_due = t->checkpoint_due, .first_step_ns = t->first_step_ns,
		.seen_ns = wall_ns(), .done = done(t),
	};
}

int trainer_run(struct trainer *t, int64_t budget_ns, struct trainer_state *out, struct fh_status *st)
{
	int64_t end = monotonic_ns() + budget_ns, left = budget_ns;
	int rc = 0, was_due = t->checkpoint_due;

	if (!t->begun)
		return fh_fail(st, FH_CONFLICT, "the trainer has no job");
	do {
		if (done(t) || !readback_room(t))
			break;
		rc = run_once(t, left > 0 ? left : 0, st);
		left = end - monotonic_ns();
	} while (rc == 0 && left > 0 && !(t->checkpoint_due && !was_due));
	if (rc == 0 && t->asked == t->answered)
		rc = readback_clock(t, st);
	if (rc == 0)
		rc = readback_drain(t, st);
	if (rc == 0)
		trainer_state_get(t, out);
	return rc;
}
