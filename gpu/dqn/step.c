/* The DQN, told from above: what it keeps in memory, and one step of it as a list of stages.
 *
 *   collect   policy -> explore -> env -> insert                                    one step of all environments
 *   learn     advance -> sample -> gather -> forward -> loss -> backward
 *             -> norm -> adam -> priority -> count                                  one training step
 *
 * A job is: collect until `warmup` transitions are stored, then again and again one collect and steps_per_collect
 * learns. Each stage is one operation that every backend implements under the same id (gpu/host/stages.h, gpu/cuda/);
 * its row says what it reads and what it writes. Scalars that change (step, learning rate, beta, epsilon, seeds) live
 * in T_CLOCK. Nothing here allocates; any thread. */
#include "gpu/dqn/dqn.h"

#include <stdio.h>
#include <string.h>

#include "gpu/dqn/model.h"
#include "gpu/layout.h"
#include "proto/status.h"

#define LIST(...) (const short[]){__VA_ARGS__, -1}
#define ENV_STATE T_ENV_CASH, T_ENV_EQUITY, T_ENV_PEAK, T_ENV_Q, T_ENV_ENTRY, T_ENV_SIGMA, T_ENV_T, T_ENV_ENTRY_BAR, \
	T_ENV_STEPS, T_ENV_RETURN
#define PENDING T_PEND_S, T_PEND_A, T_PEND_R, T_PEND_COUNT, T_PEND_HEAD
#define REPLAY T_RP_S, T_RP_S2, T_RP_A, T_RP_R, T_RP_G

/* By stage id, so both phases are slices of it. What a stage leaves in T_SCRATCH for the next one is the backend's. */
const struct stage dqn_stage_table[DQN_STAGES] = {
	/* collect: one step of all environments */
	{"policy", STAGE_POLICY, LIST(T_PARAM, T_PARAM_LP, T_OBS, T_CLOCK), LIST(T_ACTION)},
	{"explore", STAGE_EXPLORE, LIST(T_ACTION, T_CLOCK), LIST(T_ACTION, T_CLOCK)},
	{"env", STAGE_ENV, LIST(T_ACTION, T_OBS, T_CLOCK, T_CONFIG, ENV_STATE, PENDING),
	 LIST(ENV_STATE, PENDING, REPLAY, T_OBS, T_CLOCK, T_ACCUM)},
	{"insert", STAGE_INSERT, LIST(T_CLOCK, T_TREE), LIST(T_TREE, T_CLOCK)},
	/* learn: one training step */
	{"advance", STAGE_ADVANCE, LIST(T_CLOCK), LIST(T_CLOCK)},
	{"sample", STAGE_SAMPLE, LIST(T_TREE, T_CLOCK), LIST(T_INDEX, T_WEIGHT)},
	{"gather", STAGE_GATHER, LIST(T_INDEX, REPLAY), LIST(T_S, T_A, T_R, T_G, T_S2)},
	{"forward", STAGE_FORWARD, LIST(T_PARAM, T_PARAM_LP, T_TARGET, T_TARGET_LP, T_S, T_S2), LIST(T_LOGITS)},
	{"loss", STAGE_LOSS, LIST(T_LOGITS, T_A, T_R, T_G, T_WEIGHT, T_CLOCK), LIST(T_PROJ, T_CE, T_ERROR, T_CLOCK)},
	{"backward", STAGE_BACKWARD, LIST(T_PARAM, T_PARAM_LP, T_S), LIST(T_GRAD)},
	{"norm", STAGE_NORM, LIST(T_GRAD, T_CLOCK), LIST(T_CLOCK)},
	{"adam", STAGE_ADAM, LIST(T_GRAD, T_PARAM, T_TARGET, T_M, T_V, T_CLOCK),
	 LIST(T_PARAM, T_TARGET, T_M, T_V, T_PARAM_LP, T_TARGET_LP, T_CLOCK)},
	{"priority", STAGE_PRIORITY, LIST(T_INDEX, T_ERROR, T_TREE, T_CLOCK), LIST(T_TREE, T_CLOCK)},
	{"count", STAGE_COUNT, LIST(T_CLOCK, T_ERROR, T_WEIGHT), LIST(T_ACCUM, T_CLOCK)},
};

static const struct phase phases[DQN_PHASES] = {
	[DQN_PHASE_COLLECT] = {"collect", dqn_stage_table + STAGE_POLICY, STAGE_INSERT - STAGE_POLICY + 1},
	[DQN_PHASE_LEARN] = {"learn", dqn_stage_table + STAGE_ADVANCE, STAGE_COUNT - STAGE_ADVANCE + 1},
};

static void schedule(const struct fh_spec *spec, struct schedule *out)
{
	*out = (struct schedule){
		.warm = {DQN_PHASE_COLLECT, 1},
		.chunk = {{DQN_PHASE_COLLECT, 1}, {DQN_PHASE_LEARN, (int)spec->learn.steps_per_collect}},
		.runs = 2,
	};
}

/* ---------------------------------------------------------------- tensors */

/* "s1.w" … "b21.b" of one flat buffer, as `prefix`.s1.w in checkpoints. */
static void plan_network(struct plan *p, const struct dqn_dims *d, int tensor, const char *prefix)
{
	static const char *const trunk[] = {"s1", "s2", "v1", "v2"};
	char layer[24], name[64];

	for (int l = 0; l < d->layers; l++) {
		const struct dqn_layer *y = d->layer + l;
		if (l < DQN_B0)
			snprintf(layer, sizeof layer, "%s", trunk[l]);
		else
			snprintf(layer, sizeof layer, "b%d%d", (l - DQN_B0) / 2, (l - DQN_B0) % 2 + 1);
		snprintf(name, sizeof name, "%s.%s.w", prefix, layer);
		plan_view(p, tensor, y->w, name, 2, y->out, y->in);
		snprintf(name, sizeof name, "%s.%s.b", prefix, layer);
		plan_view(p, tensor, y->b, name, 1, y->out, 1);
	}
}

static void plan_learner(struct plan *p, const struct dqn_dims *d)
{
	const unsigned keep = TENSOR_KEEP | TENSOR_FRESH;
	int64_t low = d->precision == FH_PRECISION_BF16 ? d->params : 1;

	plan_tensor(p, T_PARAM, ST_F32, ROLE_PARAM, keep, "param", 1, d->params);
	plan_tensor(p, T_TARGET, ST_F32, ROLE_TARGET, keep, "target", 1, d->params);
	plan_tensor(p, T_M, ST_F32, ROLE_MOMENT, keep, "adam.m", 1, d->params);
	plan_tensor(p, T_V, ST_F32, ROLE_MOMENT, keep, "adam.v", 1, d->params);
	plan_tensor(p, T_GRAD, ST_F32, ROLE_GRAD, TENSOR_FRESH, "grad", 1, d->params);
	plan_tensor(p, T_PARAM_LP, ST_BF16, ROLE_PARAM, TENSOR_FRESH, "param_low", 1, low);
	plan_tensor(p, T_TARGET_LP, ST_BF16, ROLE_TARGET, TENSOR_FRESH, "target_low", 1, low);
	plan_tensor(p, T_CLOCK, ST_U8, ROLE_CLOCK, keep, "clock", 1, (int64_t)sizeof(struct dqn_clock));
	plan_tensor(p, T_CONFIG, ST_U8, ROLE_CLOCK, TENSOR_FRESH, "config", 1, (int64_t)sizeof(struct env_config));
	plan_tensor(p, T_ACCUM, ST_F64, ROLE_ACCUM, keep, "accum", 1, (int64_t)DQN_ACC_COUNT);
}

static void plan_replay(struct plan *p, const struct dqn_dims *d)
{
	const unsigned keep = TENSOR_KEEP | TENSOR_FRESH | TENSOR_REPLAY;
	enum st_dtype state = d->precision == FH_PRECISION_BF16 ? ST_BF16 : ST_F32;
	int64_t C = d->C, SD = d->SD, D = d->D;

	plan_tensor(p, T_RP_S, state, ROLE_STATE, keep, "replay.s", 2, C, SD);
	plan_tensor(p, T_RP_S2, state, ROLE_STATE, keep, "replay.s2", 2, C, SD);
	plan_tensor(p, T_RP_A, ST_U8, ROLE_STATE, keep, "replay.a", 2, C, D);
	plan_tensor(p, T_RP_R, ST_F32, ROLE_STATE, keep, "replay.r", 1, C);
	plan_tensor(p, T_RP_G, ST_F32, ROLE_STATE, keep, "replay.g", 1, C);
	plan_tensor(p, T_TREE, ST_F32, ROLE_STATE, keep, "replay.tree", 1, 2 * C);
}

static void plan_environments(struct plan *p, const struct dqn_dims *d)
{
	static const char *const money[] = {"env.cash", "env.equity", "env.peak", "env.q", "env.entry", "env.entry_sigma"};
	static const char *const count[] = {"env.t", "env.entry_bar", "env.steps"};
	const unsigned keep = TENSOR_KEEP | TENSOR_FRESH;
	enum st_dtype state = d->precision == FH_PRECISION_BF16 ? ST_BF16 : ST_F32;
	int64_t N = d->N, n = d->n, SD = d->SD, D = d->D;

	for (int i = 0; i < 6; i++)
		plan_tensor(p, T_ENV_CASH + i, ST_F64, ROLE_STATE, keep, money[i], 1, N);
	for (int i = 0; i < 3; i++)
		plan_tensor(p, T_ENV_T + i, ST_I32, ROLE_STATE, keep, count[i], 1, N);
	plan_tensor(p, T_ENV_RETURN, ST_F64, ROLE_STATE, keep, "env.return", 1, N);
	plan_tensor(p, T_OBS, ST_F32, ROLE_STATE, keep, "env.obs", 2, N, SD);
	plan_tensor(p, T_PEND_S, state, ROLE_STATE, keep, "pending.s", 3, N, n, SD);
	plan_tensor(p, T_PEND_A, ST_U8, ROLE_STATE, keep, "pending.a", 3, N, n, D);
	plan_tensor(p, T_PEND_R, ST_F32, ROLE_STATE, keep, "pending.r", 2, N, n);
	plan_tensor(p, T_PEND_COUNT, ST_I32, ROLE_STATE, keep, "pending.count", 1, N);
	plan_tensor(p, T_PEND_HEAD, ST_I32, ROLE_STATE, keep, "pending.head", 1, N);
}

static void plan_scratch(struct plan *p, const struct dqn_dims *d, enum fh_device device)
{
	int64_t N = d->N, B = d->B, D = d->D, SD = d->SD, host = device == FH_DEVICE_HOST;
	size_t own = dqn_scratch_bytes(d, device);

	plan_tensor(p, T_ACTION, ST_I32, ROLE_SCRATCH, TENSOR_FRESH, "action", 2, N, D);
	plan_tensor(p, T_ENV_STAT, ST_F64, ROLE_SCRATCH, TENSOR_HOST, "env.stat", 2, host ? N : 1, (int64_t)DQN_ENV_STATS);
	plan_tensor(p, T_ENV_READY, ST_I32, ROLE_SCRATCH, TENSOR_HOST, "env.ready", 2, host ? N : 1, (int64_t)3);
	plan_tensor(p, T_INDEX, ST_I32, ROLE_SCRATCH, 0, "index", 1, B);
	plan_tensor(p, T_WEIGHT, ST_F32, ROLE_SCRATCH, 0, "weight", 1, B);
	plan_tensor(p, T_S, ST_F32, ROLE_SCRATCH, 0, "s", 2, B, SD);
	plan_tensor(p, T_S2, ST_F32, ROLE_SCRATCH, 0, "s2", 2, B, SD);
	plan_tensor(p, T_A, ST_I32, ROLE_SCRATCH, 0, "a", 2, B, D);
	plan_tensor(p, T_R, ST_F32, ROLE_SCRATCH, 0, "r", 1, B);
	plan_tensor(p, T_G, ST_F32, ROLE_SCRATCH, 0, "g", 1, B);
	plan_tensor(p, T_LOGITS, ST_F32, ROLE_SCRATCH, 0, "logits", 3, B, D, (int64_t)d->NA);
	plan_tensor(p, T_PROJ, ST_F32, ROLE_SCRATCH, 0, "projected", 3, B, D, (int64_t)d->NA);
	plan_tensor(p, T_ERROR, ST_F32, ROLE_SCRATCH, 0, "error", 1, B);
	plan_tensor(p, T_CE, ST_F32, ROLE_SCRATCH, 0, "ce", 1, B);
	plan_tensor(p, T_SCRATCH, ST_U8, ROLE_SCRATCH, 0, "scratch", 1, (int64_t)(own ? own : 1));
}

void dqn_plan_tensors(struct plan *p, const struct dqn_dims *d, enum fh_device device)
{
	static const char *const flat[] = {"param", "target", "adam.m", "adam.v"};

	_Static_assert(sizeof *d <= sizeof p->dims, "the dimensions fit into the plan");
	memcpy(p->dims, d, sizeof *d);
	p->population = d->P;
	plan_learner(p, d);
	plan_replay(p, d);
	plan_environments(p, d);
	plan_scratch(p, d, device);
	for (int i = 0; i < 4; i++)
		plan_network(p, d, T_PARAM + i, flat[i]);
}

static int plan(const struct fh_spec *spec, int state_dim, struct plan *p, struct fh_status *st)
{
	static const int actions[DQN_BRANCHES] = {DQN_EXPOSURES, DQN_ORDERS, DQN_URGENCIES};
	struct dqn_dims d;
	int rc = dqn_dims_make(spec, state_dim, actions, DQN_BRANCHES, &d, st);

	if (rc == 0)
		dqn_plan_tensors(p, &d, (enum fh_device)spec->run.device);
	return rc;
}

const struct program dqn_program = {
	.name = "dqn", .plan = plan, .schedule = schedule,
	.begin = dqn_begin, .restore = dqn_restore, .derive = dqn_derive, .progress = dqn_progress,
	.phase = phases, .phases = DQN_PHASES,
	.metric = dqn_metric, .accumulators = DQN_ACC_COUNT,
};
