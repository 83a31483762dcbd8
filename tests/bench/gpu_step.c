/* Times the learner's and the collector's phases on the device, over batches, environments and trials; one line a case.
 * Random contents of the shape of a real run (no zeros: they run faster than data).
 *
 *     gpu_step [learn|collect|trials|crossing|layered|crowd|device]   one part of it, or all; which device there is
 *     gpu_step run PHASE B NA N P …                        ten units of each case, not timed: for profilers
 *     gpu_step check PHASE B NA N P …                      two, for checkers, and how long each case took them
 *
 * On the emulated device the sizes are small and the times mean nothing: it shows that all of it runs. */
#include "tests/gpu/rig.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}
static int by_value(const void *a, const void *b) { return *(const double *)a > *(const double *)b ? 1 : -1; }

/* Median µs of one unit of `run`, over rounds; least and most beside. */
static void measure(struct rig *r, const struct run *run, int runs, int units, const char *name)
{
	enum { ROUNDS = 15 };
	double us[ROUNDS];
	int launches = RIG_MANY(40, 1);
	const int rounds = RIG_MANY(ROUNDS, 1);
	const double began = now_us();

	for (int k = 0; k < RIG_MANY(10, 1); k++)
		RIG_OK(r->x[1]->backend->run(r->x[1], run, runs, &r->st));
	RIG_OK(r->x[1]->backend->finish(r->x[1], &r->st));
	if (now_us() - began > 10000) /* what takes a millisecond needs no more */
		launches = RIG_MANY(5, 1);
	for (int i = 0; i < rounds; i++) {
		double t = now_us();

		for (int k = 0; k < launches; k++)
			RIG_OK(r->x[1]->backend->run(r->x[1], run, runs, &r->st));
		RIG_OK(r->x[1]->backend->finish(r->x[1], &r->st));
		us[i] = (now_us() - t) / launches / units;
	}
	qsort(us, (size_t)rounds, sizeof *us, by_value);
	printf("%-44s %9.2f us  (%.2f to %.2f)\n", name, us[rounds / 2], us[0], us[rounds - 1]);
	fflush(stdout);
}

static int64_t capacity(int64_t on_card) { return RIG_MANY(on_card, 8192); }

/* A learner and a collector of this shape, which names the network, B, N, P and the precision; a full replay of C. */
static void begin_shape(struct rig *r, struct rig_shape s, int64_t C, double eps)
{
	const int P = s.P;
	const struct env_config cfg = {.tick = 0.01, .multiplier = 1, .max_position = 1, .lot = 1, .initial_cash = 100000,
		.reward_scale = 1000000, .pt = 2, .sl = 2, .ruin_fraction = 0.5, .episode_length = 256, .horizon = 60};
	struct market *m;

	s.NA = s.NA ? s.NA : 51, s.SD = 48, s.D = 3, s.A[0] = 5, s.A[1] = s.A[2] = 3, s.C = C, s.n = 1, s.loss = FH_LOSS_C51;
	unsetenv("FH_GPU_POISON");
	rig_make(r, &s);
	rig_fill(r, 3);
	m = rig_market(r, 20000, 0.003);
	int64_t stored = ((struct dqn_clock *)rig_host(r, T_CLOCK, 0))->stored;
	float *tree = malloc(r->plan[0].tensor[T_TREE].bytes);
	memcpy(tree, rig_host(r, T_TREE, 0), r->plan[0].tensor[T_TREE].bytes);
	rig_environments(r, m, &cfg, eps);
	memcpy(rig_host(r, T_TREE, 0), tree, r->plan[0].tensor[T_TREE].bytes); /* a full replay */
	free(tree);
	for (int p = 0; p < P; p++) {
		struct dqn_clock *k = rig_host(r, T_CLOCK, p);

		k->stored = stored, k->max_grad_norm = 1;
	}
	rig_send(r);
	market_unref(m);
}

/* The default network. */
static void begin(struct rig *r, int B, int NA, int N, int P, int64_t C, double eps)
{
	const struct rig_shape s = {.B = B, .H1 = 256, .H2 = 256, .VH = 128, .AH = 128, .NA = NA, .N = N, .P = P, .precision = FH_PRECISION_BF16};

	begin_shape(r, s, C, eps);
}

/* `gpu_step run|check learn|collect B NA N P …`: units of one phase and nothing else, case after case. */
static int run_cases(int units, int args, char **arg)
{
	struct rig rig, *r = &rig;

	setvbuf(stdout, NULL, _IOLBF, 0); /* whoever ends it wants to know how far it came */
	for (; args >= 5; args -= 5, arg += 5) {
		const struct run run = {strcmp(arg[0], "collect") ? DQN_PHASE_LEARN : DQN_PHASE_COLLECT, 1};
		const double began = now_us();

		begin(r, atoi(arg[1]), atoi(arg[2]), atoi(arg[3]), atoi(arg[4]), capacity(atoi(arg[4]) > 1 ? 32768 : 131072), 0.1);
		for (int k = 0; k < units; k++)
			RIG_OK(r->x[1]->backend->run(r->x[1], &run, 1, &r->st));
		RIG_OK(r->x[1]->backend->finish(r->x[1], &r->st));
		rig_free(r);
		printf("%s B %s NA %s N %s P %s: done in %.1f s\n", arg[0], arg[1], arg[2], arg[3], arg[4], (now_us() - began) * 1e-6);
	}
	return args != 0;
}

/* Where the kernels for few rows and those for many cross: both of each size, whatever is chosen by itself. */
static void crossing(void)
{
	static const int batch[] = {256, 512, 1024, 2048}, envs[] = {256, 1024, 4096};
	struct rig rig, *r = &rig;
	char name[96];

	for (int many = 0; many < 2; many++) {
		setenv("FH_GPU_WIDE", many ? "1" : "0", 1);
		for (unsigned i = 0; i < RIG_MANY(sizeof batch / sizeof batch[0], 1); i++) {
			const struct run run = {DQN_PHASE_LEARN, 4};

			begin(r, batch[i], 51, 32, 1, capacity(32768), 0.1);
			snprintf(name, sizeof name, "learn step, B %d, in %s", batch[i], many ? "one launch" : "layers");
			measure(r, &run, 1, 4, name);
			rig_free(r);
		}
		for (unsigned i = 0; i < RIG_MANY(sizeof envs / sizeof envs[0], 1); i++) {
			const struct run run = {DQN_PHASE_COLLECT, 4};

			begin(r, 256, 51, envs[i], 1, capacity(32768), 0.1);
			snprintf(name, sizeof name, "collect, N %d, as %s", envs[i], many ? "many" : "few");
			measure(r, &run, 1, 4, name);
			rig_free(r);
		}
	}
	unsetenv("FH_GPU_WIDE");
}

static void learning(void)
{
	static const struct { int B, NA; } learn[] = {{256, 51}, {64, 51}, {64, 11}, {1024, 51}, {8192, 51}};
	struct rig rig, *r = &rig;
	char name[96];

	for (unsigned i = 0; i < RIG_MANY(sizeof learn / sizeof learn[0], 3); i++) {
		const struct run run = {DQN_PHASE_LEARN, RIG_MANY(10, 1)};

		begin(r, RIG_MANY(learn[i].B, 16), learn[i].NA, 32, 1, capacity(131072), 0.1);
		snprintf(name, sizeof name, "learn step, B %d, NA %d", learn[i].B, learn[i].NA);
		measure(r, &run, 1, RIG_MANY(10, 1), name);
		if (i == 0) {
			const struct run chunk[8] = {{0, 1}, {1, 1}, {0, 1}, {1, 1}, {0, 1}, {1, 1}, {0, 1}, {1, 1}}, collect = {0, RIG_MANY(10, 1)};

			measure(r, chunk, RIG_MANY(8, 2), RIG_MANY(4, 1), "chunk: collect 32 envs and one learn step");
			measure(r, &collect, 1, RIG_MANY(10, 1), "collect, 32 envs");
		}
		rig_free(r);
	}
}

static void collecting(void)
{
	static const int envs[] = {1024, 16384, 65536};
	struct rig rig, *r = &rig;
	char name[96];

	for (unsigned i = 0; i < sizeof envs / sizeof envs[0]; i++)
		for (int random = 0; random < 2; random++) { /* epsilon 1: the network is left out where there are many environments */
			const struct run run = {DQN_PHASE_COLLECT, RIG_MANY(4, 1)};

			begin(r, 256, 51, RIG_MANY(envs[i], 64), 1, capacity(131072), random ? 1.0 : 0.1);
			snprintf(name, sizeof name, "collect, N %d%s", envs[i], random ? ", random actions" : "");
			measure(r, &run, 1, RIG_MANY(4, 1), name);
			rig_free(r);
		}
}

static void trying(void)
{
	static const int trials[] = {8, 32, 128};
	struct rig rig, *r = &rig;
	char name[96];

	for (unsigned i = 0; i < sizeof trials / sizeof trials[0]; i++) {
		const struct run run = {DQN_PHASE_LEARN, RIG_MANY(4, 1)};

		begin(r, RIG_MANY(256, 8), 51, 32, RIG_MANY(trials[i], 2), capacity(32768), 0.1);
		snprintf(name, sizeof name, "learn step, %d trials, B 256, each trial", trials[i]);
		measure(r, &run, 1, RIG_MANY(4, 1) * trials[i], name);
		rig_free(r);
	}
}

/* Networks that go layer by layer: wide ones, and all that are not BF16. The two stages of products beside the step, each with the wait for its end. */
static void layering(void)
{
	static const struct { int precision, trunk, heads, B; } net[] = {
		{FH_PRECISION_BF16, 512, 128, 256}, {FH_PRECISION_BF16, 512, 128, 2048}, {FH_PRECISION_BF16, 512, 128, 8192},
		{FH_PRECISION_BF16, 1024, 256, 256}, {FH_PRECISION_BF16, 1024, 256, 2048}, {FH_PRECISION_BF16, 1024, 256, 8192},
		{FH_PRECISION_TF32, 256, 128, 256}, {FH_PRECISION_TF32, 256, 128, 2048}, {FH_PRECISION_TF32, 256, 128, 8192},
		{FH_PRECISION_TF32, 1024, 256, 256}, {FH_PRECISION_TF32, 1024, 256, 2048}, {FH_PRECISION_TF32, 1024, 256, 8192},
		{FH_PRECISION_F32, 256, 128, 256}, {FH_PRECISION_F32, 256, 128, 2048}, {FH_PRECISION_F32, 256, 128, 8192},
		{FH_PRECISION_F32, 1024, 256, 256}, {FH_PRECISION_F32, 1024, 256, 2048},
	};
	static const char *const precision[] = {[FH_PRECISION_F32] = "F32", [FH_PRECISION_TF32] = "TF32", [FH_PRECISION_BF16] = "BF16"};
	static const int stages[] = {STAGE_FORWARD, STAGE_BACKWARD};
	struct rig rig, *r = &rig;
	char name[96];

	for (unsigned i = 0; i < RIG_MANY(sizeof net / sizeof net[0], 7); i++) {
		const struct run run = {DQN_PHASE_LEARN, 1};
		const struct rig_shape s = {.B = RIG_MANY(net[i].B, 16), .H1 = RIG_MANY(net[i].trunk, 32), .H2 = RIG_MANY(net[i].trunk, 32),
			.VH = RIG_MANY(net[i].heads, 16), .AH = RIG_MANY(net[i].heads, 16), .N = 32, .P = 1, .precision = net[i].precision};

		begin_shape(r, s, capacity(16384), 0.1);
		snprintf(name, sizeof name, "learn step, %s, trunk %d, B %d", precision[net[i].precision], net[i].trunk, net[i].B);
		measure(r, &run, 1, 1, name);
		for (int k = 0; k < 2; k++) {
			double least = 1e9;

			for (int n = 0; n < RIG_MANY(20, 1); n++) {
				const double t = now_us();

				RIG_OK(r->x[1]->backend->stage(r->x[1], &dqn_stage_table[stages[k]], &r->st));
				least = fmin(least, now_us() - t);
			}
			printf("    %-40s %9.2f us\n", dqn_stage_table[stages[k]].name, least);
		}
		const double t = now_us();
		struct exec *next = NULL;
		RIG_OK(r->x[1]->backend->exec_new(r->x[1]->backend, &r->plan[1], &next, &r->st));
		const double took = now_us() - t;
		next->backend->products(next, name, sizeof name);
		next->backend->exec_free(next);
		printf("    %-40s %9.2f ms; %s\n", "next trainer", took * 1e-3, name);
		rig_free(r);
	}
}

/* ---------------------------------------------------------------- several trainers at once, as in slots */

enum { TRAINERS = 16, CHUNKS = 10 };
struct trainer { struct rig rig; const struct run *run; atomic_int *now; long done; }; /* done: calls that came back while it was measured */
enum { WARMS, MEASURES, ENDS };

/* No assertions: it is another thread than the one that reports. */
static void *train(void *arg)
{
	struct trainer *t = arg;
	struct exec *x = t->rig.x[1];
	int now;

	while ((now = atomic_load(t->now)) != ENDS) {
		if (x->backend->run(x, t->run, 2 * CHUNKS, &t->rig.st)) {
			fprintf(stderr, "%s\n", t->rig.st.text);
			exit(1);
		}
		t->done += now == MEASURES;
	}
	return NULL;
}

static void pass(double us)
{
	const struct timespec t = {0, (long)(us * 1e3)};

	nanosleep(&t, NULL);
}

/* Chunks of a collection and a learn step, which so many trainers enqueue side by side, each from a thread of its own. */
static void crowd(void)
{
	static const int at_once[] = {1, 2, 3, 4, 6, 8, 12, 16};
	static struct trainer trainer[TRAINERS];
	struct run run[2 * CHUNKS];
	pthread_t thread[TRAINERS];
	const int most = RIG_MANY(TRAINERS, 3);

	for (int i = 0; i < 2 * CHUNKS; i++)
		run[i] = (struct run){i % 2 ? DQN_PHASE_LEARN : DQN_PHASE_COLLECT, 1};
	for (int i = 0; i < most; i++)
		begin(&trainer[i].rig, RIG_MANY(256, 16), 51, 32, 1, capacity(32768), 0.1);
	for (unsigned k = 0; k < sizeof at_once / sizeof at_once[0] && at_once[k] <= most; k++) {
		const int n = at_once[k];
		atomic_int now = WARMS;
		long chunks = 0;

		for (int i = 0; i < n; i++) {
			trainer[i].run = run, trainer[i].now = &now, trainer[i].done = 0;
			assert_int_equal(pthread_create(&thread[i], NULL, train, &trainer[i]), 0);
		}
		pass(RIG_MANY(100e3, 1e3)); /* graphs are captured, and captured again once the others are there */
		const double from = now_us();
		atomic_store(&now, MEASURES);
		pass(RIG_MANY(300e3, 1e3));
		atomic_store(&now, ENDS);
		const double took = now_us() - from;
		for (int i = 0; i < n; i++) {
			struct rig *r = &trainer[i].rig;

			pthread_join(thread[i], NULL);
			chunks += trainer[i].done * CHUNKS;
			RIG_OK(r->x[1]->backend->finish(r->x[1], &r->st));
		}
		printf("%2d at once: %9.0f chunks a second of all together, one of each takes %9.2f us\n", n, chunks / took * 1e6, chunks ? took * n / chunks : 0.0);
		fflush(stdout);
	}
	for (int i = 0; i < most; i++)
		rig_free(&trainer[i].rig);
}

/* Which device there is: exit 0 and its name, or 3. */
static int device(void)
{
	struct fh_status st = FH_STATUS_INIT;
	struct device_info info;

	if (!rig_cuda || rig_cuda->info(rig_cuda, &info, &st) != 0)
		return 3;
	printf("%s, %s\n", info.name, info.driver);
	return 0;
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } parts[] = {
		{"learn", learning}, {"collect", collecting}, {"trials", trying}, {"crossing", crossing}, {"layered", layering}, {"crowd", crowd},
	};

	rig_open(NULL);
	if (argc == 2 && !strcmp(argv[1], "device"))
		return device();
	if (!rig_cuda) {
		printf("skipped: no CUDA device\n");
		return 0;
	}
	if (argc > 2 && (!strcmp(argv[1], "run") || !strcmp(argv[1], "check")))
		return run_cases(!strcmp(argv[1], "run") ? 10 : 2, argc - 2, argv + 2);
	for (unsigned i = 0; i < sizeof parts / sizeof parts[0]; i++)
		if (argc == 1 || !strcmp(argv[1], parts[i].name))
			parts[i].run();
	return 0;
}
