/* The first values of a job: parameters by seed, environments at their start bars, clocks and configuration.
 *
 * Written through the backend, so one source serves host and device; runs on the trainer's thread between jobs. */
#include "gpu/dqn/dqn.h"

#include <stdlib.h>
#include <string.h>

#include "gpu/dqn/model.h"
#include "gpu/evaluate.h"
#include "gpu/host/round.h"
#include "proto/status.h"

static int put(struct exec *x, int tensor, int trial, const void *src, struct fh_status *st)
{
	size_t bytes = x->plan->tensor[tensor].stride;

	return x->backend->write(x, tensor, bytes * (size_t)trial, src, bytes, st);
}

static void round_all(const float *flat, int64_t n, uint16_t *low)
{
	for (int64_t i = 0; i < n; i++)
		low[i] = bf16_from(flat[i]);
}

/* Both networks begin alike, and so do their low-precision copies: nothing has to come back from a device for them. A backend with an
 * initial() of its own does this for all trials at once. */
static int begin_network(struct exec *x, int trial, uint64_t seed, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;
	int lp = d->precision == FH_PRECISION_BF16;
	float *flat = malloc((size_t)d->params * sizeof *flat);
	uint16_t *low = lp ? malloc((size_t)d->params * sizeof *low) : NULL;
	int rc;

	if (!flat || (lp && !low)) {
		free(flat);
		free(low);
		return fh_fail(st, FH_EXHAUSTED, "no memory for %lld initial parameters", (long long)d->params);
	}
	dqn_init_params(d, seed, flat);
	rc = put(x, T_PARAM, trial, flat, st);
	if (rc == 0)
		rc = put(x, T_TARGET, trial, flat, st);
	if (lp)
		round_all(flat, d->params, low);
	if (rc == 0 && lp)
		rc = put(x, T_PARAM_LP, trial, low, st);
	if (rc == 0 && lp)
		rc = put(x, T_TARGET_LP, trial, low, st);
	free(flat);
	free(low);
	return rc;
}

static int begin_clock(struct exec *x, const struct fh_spec *spec, struct fh_split train, int trial,
		       const struct dqn_clock *weights, const struct dqn_clock *replay, struct fh_status *st)
{
	struct env_config config;
	struct dqn_clock c;
	int rc;

	dqn_clock_init(spec, train, trial, &c);
	if (weights)
		c.applied = weights->applied; /* the moments go on, and their bias correction with them */
	if (replay) {
		c.stored = replay->stored;
		c.largest = replay->largest;
	}
	rc = put(x, T_CLOCK, trial, &c, st);
	memset(&config, 0, sizeof config);
	eval_env_config(spec, spec->env.reward_scale, &config);
	return rc ? rc : put(x, T_CONFIG, trial, &config, st);
}

/* Where the environments of one trial stand before the first vector step, one array per tensor. */
struct starts { double *cash; int32_t *t; float *obs; };

static void start_all(const struct exec *x, uint64_t seed, struct fh_split train, const struct env_config *config,
		      struct starts *s)
{
	const struct dqn_dims *d = x->dims;
	const struct market *m = x->market_host;

	for (int e = 0; e < d->N; e++) {
		struct env_state state;
		float *obs = s->obs + (size_t)e * d->SD;
		int32_t bar = env_start_bar(seed, (uint32_t)e, 0, (int32_t)train.begin, (int32_t)train.end);

		env_start(&state, config, bar);
		s->cash[e] = state.cash;
		s->t[e] = bar;
		memcpy(obs, m->feature + (size_t)bar * FH_MARKET_FEATURES, FH_MARKET_FEATURES * sizeof *obs);
		env_features(&state, config, m->close[bar], m->sigma[bar], ENV_STEPS_OWN, obs + FH_MARKET_FEATURES);
	}
}

/* Cash, equity and peak are equal at the start; everything else of the state is zero and is so already. */
static int begin_environments(struct exec *x, const struct fh_spec *spec, struct fh_split train, int trial,
			      struct fh_status *st)
{
	static const int equal[] = {T_ENV_CASH, T_ENV_EQUITY, T_ENV_PEAK};
	const struct dqn_dims *d = x->dims;
	struct env_config config;
	size_t n = (size_t)d->N;
	struct starts s = {malloc(n * sizeof *s.cash), malloc(n * sizeof *s.t), malloc(n * (size_t)d->SD * sizeof *s.obs)};
	int rc = 0;

	if (!s.cash || !s.t || !s.obs) {
		rc = fh_fail(st, FH_EXHAUSTED, "no memory for the start of %d environments", d->N);
	} else {
		eval_env_config(spec, spec->env.reward_scale, &config);
		start_all(x, (uint64_t)spec->run.seed + (uint64_t)trial, train, &config, &s);
		for (int i = 0; rc == 0 && i < 3; i++)
			rc = put(x, equal[i], trial, s.cash, st);
		if (rc == 0)
			rc = put(x, T_ENV_T, trial, s.t, st);
		if (rc == 0)
			rc = put(x, T_OBS, trial, s.obs, st);
	}
	free(s.cash);
	free(s.t);
	free(s.obs);
	return rc;
}

int dqn_begin(struct exec *x, const struct fh_spec *spec, const struct fh_split *split, const void *weights_from,
	      const void *replay_from, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;
	const struct dqn_clock *weights = weights_from, *replay = replay_from;
	struct fh_split train = split[FH_SPLIT_TRAIN];
	int there = !weights && x->backend->initial != NULL, rc = 0;

	if (there)
		rc = x->backend->initial(x, (uint64_t)spec->run.seed, st);
	for (int p = 0; rc == 0 && p < d->P; p++) {
		rc = begin_clock(x, spec, train, p, weights ? weights + p : NULL, replay ? replay + p : NULL, st);
		if (rc == 0 && !weights && !there)
			rc = begin_network(x, p, (uint64_t)spec->run.seed + (uint64_t)p, st);
		if (rc == 0)
			rc = begin_environments(x, spec, train, p, st);
	}
	return rc;
}

static int derive_low(struct exec *x, int from, int to, int trial, float *flat, uint16_t *low, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;
	size_t bytes = x->plan->tensor[from].stride;
	int rc = x->backend->read(x, from, bytes * (size_t)trial, flat, bytes, st);

	if (rc)
		return rc;
	round_all(flat, d->params, low);
	return put(x, to, trial, low, st);
}

/* BF16 copies of both networks: the optimizer writes them from the first update on. */
int dqn_derive(struct exec *x, struct fh_status *st)
{
	const struct dqn_dims *d = x->dims;
	float *flat;
	uint16_t *low;
	int rc = 0;

	if (d->precision != FH_PRECISION_BF16)
		return 0;
	flat = malloc((size_t)d->params * sizeof *flat);
	low = malloc((size_t)d->params * sizeof *low);
	if (!flat || !low)
		rc = fh_fail(st, FH_EXHAUSTED, "no memory for %lld parameters", (long long)d->params);
	for (int p = 0; rc == 0 && p < d->P; p++) {
		rc = derive_low(x, T_PARAM, T_PARAM_LP, p, flat, low, st);
		if (rc == 0)
			rc = derive_low(x, T_TARGET, T_TARGET_LP, p, flat, low, st);
	}
	free(flat);
	free(low);
	return rc;
}
