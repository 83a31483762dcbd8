/* Times the host's training step: the default network on a replay of 32,768 transitions, sample … count, as a whole and
 * stage by stage.
 *
 * host_step [-t THREADS] [-b BATCH] [-r ROUNDS] [-s STEPS] [-p f32|tf32|bf16] [-l c51|mse] [-w]
 * One JSON line a round with microseconds a step; -w waits for a line on standard input before each round, so that another
 * program can take turns. The last line says how fast this machine multiplies in the same process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gpu/dqn/dqn.h"
#include "gpu/host/stages.h"
#include "gpu/host/threads.h"
#include "gpu/host/work.h"
#include "gpu/philox.h"
#include "gpu/sumtree.h"

#define CAPACITY 32768
#define WARMUP_STEPS 30

struct options { int threads, batch, rounds, steps, precision, loss, wait; };

static const char *const stage_name[DQN_STAGES] = {
	[STAGE_ADVANCE] = "advance", [STAGE_SAMPLE] = "sample", [STAGE_GATHER] = "gather", [STAGE_FORWARD] = "forward",
	[STAGE_LOSS] = "loss", [STAGE_BACKWARD] = "backward", [STAGE_NORM] = "norm", [STAGE_ADAM] = "adam",
	[STAGE_PRIORITY] = "priority", [STAGE_COUNT] = "count",
};

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* ---------------------------------------------------------------- the trainer's memory, filled with noise */

static int64_t elements(const struct dqn_dims *d, int t, enum st_dtype *type)
{
	int bf16 = d->precision == FH_PRECISION_BF16;

	*type = ST_F32;
	switch (t) {
	case T_PARAM: case T_TARGET: case T_M: case T_V: case T_GRAD: return d->params;
	case T_PARAM_LP: case T_TARGET_LP: *type = ST_BF16; return bf16 ? d->params : 1;
	case T_CLOCK: *type = ST_U8; return (int64_t)sizeof(struct dqn_clock);
	case T_ACCUM: *type = ST_F64; return DQN_ACC_COUNT;
	case T_RP_S: case T_RP_S2: *type = bf16 ? ST_BF16 : ST_F32; return d->C * d->SD;
	case T_RP_A: *type = ST_U8; return d->C * d->D;
	case T_RP_R: case T_RP_G: return d->C;
	case T_TREE: return 2 * d->C;
	case T_OBS: return (int64_t)d->N * d->SD;
	case T_ACTION: *type = ST_I32; return (int64_t)d->N * d->D;
	case T_INDEX: *type = ST_I32; return d->B;
	case T_A: *type = ST_I32; return (int64_t)d->B * d->D;
	case T_S: case T_S2: return (int64_t)d->B * d->SD;
	case T_WEIGHT: case T_R: case T_G: case T_ERROR: case T_CE: return d->B;
	case T_LOGITS: case T_PROJ: return (int64_t)d->B * d->D * d->NA;
	case T_SCRATCH: *type = ST_U8; return (int64_t)dqn_scratch_bytes(d, FH_DEVICE_HOST);
	default: return 0;
	}
}

static void fill(struct exec *x, const struct dqn_dims *d)
{
	float *s = host_tensor(x, T_RP_S, 0), *s2 = host_tensor(x, T_RP_S2, 0), *tree = host_tensor(x, T_TREE, 0);
	float *obs = host_tensor(x, T_OBS, 0);
	struct dqn_clock *c = host_tensor(x, T_CLOCK, 0);
	uint64_t n = 0;

	dqn_init_params(d, 1, host_tensor(x, T_PARAM, 0));
	memcpy(host_tensor(x, T_TARGET, 0), host_tensor(x, T_PARAM, 0), (size_t)d->params * sizeof(float));
	for (int64_t i = 0; i < d->C; i++) {
		for (int k = 0; k < d->SD; k++, n++) {
			float u = 2.0f * philox_uniform(philox_word(1, PHILOX_SYNTH, 0, n)) - 1.0f;

			if (d->precision == FH_PRECISION_BF16) {
				((uint16_t *)s)[i * d->SD + k] = (uint16_t)(0x3E00 + n % 256);
				((uint16_t *)s2)[i * d->SD + k] = (uint16_t)(0xBE00 + n % 253);
			} else {
				s[i * d->SD + k] = u;
				s2[i * d->SD + k] = -u;
			}
		}
		for (int b = 0; b < d->D; b++)
			((uint8_t *)host_tensor(x, T_RP_A, 0))[i * d->D + b] =
				(uint8_t)philox_below(philox_word(1, PHILOX_SYNTH, 1, (uint64_t)(i * d->D + b)), (uint32_t)d->A[b]);
		((float *)host_tensor(x, T_RP_R, 0))[i] = 2.0f * philox_uniform(philox_word(1, PHILOX_SYNTH, 2, (uint64_t)i)) - 1.0f;
		((float *)host_tensor(x, T_RP_G, 0))[i] = i % 100 ? 0.9f : 0.0f;
		tree[d->C + i] = 0.1f + philox_uniform(philox_word(1, PHILOX_SYNTH, 3, (uint64_t)i));
	}
	tree_rebuild(tree, d->C);
	for (int64_t i = 0; i < (int64_t)d->N * d->SD; i++)
		obs[i] = philox_uniform(philox_word(1, PHILOX_SYNTH, 4, (uint64_t)i));
	*c = (struct dqn_clock){
		.seed = 1, .planned = 100000, .gamma = 0.9, .lr0 = 1e-4, .lr_end = 1e-4, .max_grad_norm = 10.0, .tau = 0.005,
		.alpha = 0.6, .beta0 = 0.4, .beta_end = 1.0, .v_min = -10.0, .v_max = 10.0, .stored = CAPACITY, .largest = 1.0f,
	};
}

/* What exits with a message has nothing to clean up: the process ends. */
static void die(const char *what)
{
	fprintf(stderr, "host_step: %s\n", what);
	exit(1);
}

static void make(const struct options *o, struct dqn_dims *d, struct plan *plan, struct exec *x)
{
	static const int actions[] = {DQN_EXPOSURES, DQN_ORDERS, DQN_URGENCIES};
	struct fh_spec spec;

	memset(&spec, 0, sizeof(spec));
	spec.run.population = 1;
	spec.run.precision = o->precision;
	spec.learn.loss = o->loss;
	spec.learn.batch = o->batch;
	spec.learn.n_step = 1;
	spec.net.trunk1 = spec.net.trunk2 = 256;
	spec.net.value_hidden = spec.net.advantage_hidden = 128;
	spec.net.atoms = 51;
	spec.collect.envs = 32;
	spec.replay.capacity = CAPACITY;
	if (dqn_dims_make(&spec, FH_STATE_DIM, actions, DQN_BRANCHES, d, NULL))
		die("dimensions are refused");
	x->plan = plan;
	x->dims = d;
	for (int t = 0; t < DQN_TENSORS; t++) {
		enum st_dtype type;
		int64_t n = elements(d, t, &type);

		plan->tensor[t].elements = n;
		plan->tensor[t].desc.dtype = type;
		if (n && posix_memalign(&x->tensor[t], 256, (size_t)n * st_dtype_size(type)))
			die("no memory");
		if (n)
			memset(x->tensor[t], 0, (size_t)n * st_dtype_size(type));
	}
	fill(x, d);
}

/* ---------------------------------------------------------------- timing */

/* us of each stage are added to spent (may be NULL). */
static void steps(struct exec *x, int count, double spent[DQN_STAGES])
{
	const stage_fn *fn = host_dqn_stages();
	double t = now_us();

	for (int i = 0; i < count; i++)
		for (int s = STAGE_ADVANCE; s <= STAGE_COUNT; s++) {
			fn[s](x, NULL);
			if (spent) {
				double end = now_us();

				spent[s] += end - t;
				t = end;
			}
		}
}

static void wait_turn(const struct options *o)
{
	char line[16];

	if (o->wait && !fgets(line, sizeof(line), stdin))
		exit(0);
}

static double policy_us(struct exec *x)
{
	const stage_fn *fn = host_dqn_stages();
	double t = now_us();

	for (int i = 0; i < 50; i++)
		fn[STAGE_POLICY](x, NULL);
	return (now_us() - t) / 50;
}

static void one_round(const struct options *o, struct exec *x)
{
	double spent[DQN_STAGES] = {0}, t, whole;

	wait_turn(o);
	t = now_us();
	steps(x, o->steps, NULL);
	whole = (now_us() - t) / o->steps;
	steps(x, o->steps, spent);
	printf("{\"what\": \"fhd\", \"kernels\": \"%s\", \"B\": %d, \"threads\": %d, \"us\": %.1f", host_kernels()->name, o->batch,
	       team_threads(((struct host_priv *)x->priv)->team), whole);
	for (int s = STAGE_ADVANCE; s <= STAGE_COUNT; s++)
		printf(", \"%s\": %.1f", stage_name[s], spent[s] / o->steps);
	printf(", \"policy\": %.1f}\n", policy_us(x));
	fflush(stdout);
}

/* Useful arithmetic of one step as it is written in gpu/MATH.md: three forward passes, the gradient of every weight, and
 * of every activation but the states. */
static double step_flops(const struct dqn_dims *d)
{
	double all = 0.0;

	for (int i = 0; i < d->layers; i++)
		all += 2.0 * d->layer[i].out * d->layer[i].in * (i == DQN_S1 ? 4.0 : 5.0);
	return all * d->B;
}

/* ---------------------------------------------------------------- the machine's own speed */

struct big { float *a, *b, *c; int n; const struct kernels *k; };

static void big_task(void *ctx, int task, int member)
{
	const struct big *g = ctx;
	struct product p = {
		.m = g->n, .n = PANEL, .k = g->n, .a = g->a, .a_row = g->n + 16, .a_col = 1, .b = g->b + (int64_t)task * g->n * PANEL,
		.b_row = PANEL, .c = g->c + (int64_t)task * PANEL, .c_row = g->n,
	};

	(void)member;
	g->k->product(&p);
}

/* GFLOP/s of a large product on all threads of the team, best of several. */
static double machine_gflops(struct team *team)
{
	struct big g = {.n = 512, .k = host_kernels()};
	size_t bytes = (size_t)(g.n + PANEL) * (size_t)(g.n + PANEL) * sizeof(float);
	double best = 0.0;

	if (posix_memalign((void **)&g.a, 64, bytes) || posix_memalign((void **)&g.b, 64, bytes) ||
	    posix_memalign((void **)&g.c, 64, bytes))
		die("no memory");
	memset(g.a, 0, bytes);
	memset(g.b, 0, bytes);
	memset(g.c, 0, bytes);
	for (int i = 0; i < 40; i++) {
		double t = now_us(), rate;

		team_run(team, g.n / PANEL, big_task, &g);
		rate = 2.0 * g.n * g.n * g.n / (now_us() - t) * 1e-3;
		best = rate > best ? rate : best;
	}
	free(g.a);
	free(g.b);
	free(g.c);
	return best;
}

static int precision_of(const char *word)
{
	if (!strcmp(word, "bf16"))
		return FH_PRECISION_BF16;
	return !strcmp(word, "tf32") ? FH_PRECISION_TF32 : FH_PRECISION_F32;
}

int main(int argc, char **argv)
{
	struct options o = {.threads = 0, .batch = 256, .rounds = 5, .steps = 100, .precision = FH_PRECISION_F32, .loss = FH_LOSS_C51};
	static struct plan plan;
	struct host_priv priv;
	struct dqn_dims d;
	struct exec x;
	double rate;
	int c;

	while ((c = getopt(argc, argv, "t:b:r:s:p:l:w")) != -1)
		switch (c) {
		case 't': o.threads = atoi(optarg); break;
		case 'b': o.batch = atoi(optarg); break;
		case 'r': o.rounds = atoi(optarg); break;
		case 's': o.steps = atoi(optarg); break;
		case 'p': o.precision = precision_of(optarg); break;
		case 'l': o.loss = strcmp(optarg, "mse") ? FH_LOSS_C51 : FH_LOSS_MSE; break;
		case 'w': o.wait = 1; break;
		default: die("usage: host_step [-t THREADS] [-b BATCH] [-r ROUNDS] [-s STEPS] [-p PRECISION] [-l LOSS] [-w]");
		}
	if (o.batch < 1 || o.rounds < 1 || o.steps < 1)
		die("batch, rounds and steps are at least 1");
	memset(&x, 0, sizeof(x));
	if (team_new(o.threads, &priv.team, NULL))
		die("threads do not start");
	x.priv = &priv;
	make(&o, &d, &plan, &x);
	steps(&x, WARMUP_STEPS, NULL);
	for (int i = 0; i < o.rounds; i++)
		one_round(&o, &x);
	wait_turn(&o);
	rate = machine_gflops(priv.team);
	printf("{\"what\": \"floor\", \"gflops\": %.1f, \"flops\": %.0f, \"floor_us\": %.1f}\n", rate, step_flops(&d),
	       step_flops(&d) / rate * 1e-3);
	team_free(priv.team);
	for (int t = 0; t < DQN_TENSORS; t++)
		free(x.tensor[t]);
	return 0;
}
