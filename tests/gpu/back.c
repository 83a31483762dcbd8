/* The kernels behind the forward pass that take all layers at once (FH_GPU_WIDE=16, 32, 64: a block a tile of so many rows; 100 b + r: a
 * cluster of b blocks a tile of r; 1000 + r: warpgroups) against those layer by layer (0), bit for bit, over sizes where tiles, units of
 * columns and steps of a sum do not come out even; the projection wherever a return may land. */
#include "gpu/cuda/scratch.h"
#include "tests/gpu/rig.h"

/* The first is the default network; others are odd in one thing or another, or have several slices, trials or chunks a layer. */
static const struct rig_shape shapes[] = {
	{.B = 70, .SD = 48, .H1 = 256, .H2 = 256, .VH = 128, .AH = 128, .NA = 51, .D = 3, .A = {5, 3, 3}},
	{.B = 1, .SD = 6, .H1 = 16, .H2 = 16, .VH = 8, .AH = 8, .NA = 11, .D = 3, .A = {3, 2, 2}},
	{.B = 33, .SD = 200, .H1 = 33, .H2 = 47, .VH = 19, .AH = 21, .NA = 2, .D = 1, .A = {5}},
	{.B = 64, .SD = 48, .H1 = 64, .H2 = 200, .VH = 40, .AH = 104, .NA = 64, .D = 4, .A = {5, 1, 3, 2}, .P = 3},
	{.B = 97, .SD = 7, .H1 = 300, .H2 = 270, .VH = 16, .AH = 16, .NA = 56, .D = 2, .A = {4, 8}, .P = 2},
	{.B = 1070, .SD = 48, .H1 = 40, .H2 = 24, .VH = 16, .AH = 8, .NA = 21, .D = 2, .A = {3, 2}},
	{.B = 40, .SD = 48, .H1 = 24, .H2 = 24, .VH = 16, .AH = 8, .NA = 51, .D = 3, .A = {5, 3, 3}, .loss = FH_LOSS_MSE},
	{.B = 21, .SD = 48, .H1 = 24, .H2 = 24, .VH = 16, .AH = 8, .NA = 101, .D = 1, .A = {6}},
	{.B = 3, .SD = 6, .H1 = 24, .H2 = 16, .VH = 8, .AH = 8, .NA = 256, .D = 3, .A = {5, 3, 3}}, /* the most atoms, and more than 48 KB for the loss */
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void make(struct rig *r, const struct rig_shape *shape, int precision, int loss)
{
	struct rig_shape s = *shape;

	s.C = 2048, s.N = 4, s.n = 1, s.P = s.P ? s.P : 1, s.precision = precision, s.loss = loss;
	rig_make(r, &s);
	rig_fill(r, 31);
}

static void stages(struct rig *r, int from, int to)
{
	for (int stage = from; stage <= to; stage++)
		RIG_OK(r->x[1]->backend->stage(r->x[1], &dqn_stage_table[stage], &r->st));
}

static const int written[] = {T_GRAD, T_ERROR, T_CE, T_PROJ, T_LOGITS};
enum { WRITTEN = sizeof written / sizeof written[0] };

/* What LOSS and BACKWARD leave, all of it filled with NaN before. */
struct left { unsigned char *tensor[WRITTEN], *scratch; };

static struct left back(struct rig *r, const struct cuda_scratch *s, const char *wide)
{
	const struct cuda_array *made[] = {&s->dout, &s->dhead, &s->dh2, &s->dh1, &s->q, &s->edge, &s->part};
	const size_t bytes = r->plan[1].tensor[T_SCRATCH].bytes;
	struct left l = {.scratch = malloc(bytes)};

	RIG_OK(r->x[1]->backend->read(r->x[1], T_SCRATCH, 0, l.scratch, bytes, &r->st));
	for (unsigned i = 0; i < sizeof made / sizeof made[0]; i++)
		memset(l.scratch + made[i]->offset, 0xff, made[i]->stride * (size_t)r->d.P);
	RIG_OK(r->x[1]->backend->write(r->x[1], T_SCRATCH, 0, l.scratch, bytes, &r->st));
	for (int i = 1; i < WRITTEN; i++) { /* the padding of T_GRAD is nobody's: it stays zero */
		const size_t n = r->plan[1].tensor[written[i]].bytes;
		unsigned char *nan = malloc(n);

		memset(nan, 0xff, n);
		RIG_OK(r->x[1]->backend->write(r->x[1], written[i], 0, nan, n, &r->st));
		free(nan);
	}
	setenv("FH_GPU_WIDE", wide, 1);
	stages(r, STAGE_LOSS, STAGE_BACKWARD);
	unsetenv("FH_GPU_WIDE");
	RIG_OK(r->x[1]->backend->read(r->x[1], T_SCRATCH, 0, l.scratch, bytes, &r->st));
	for (int i = 0; i < WRITTEN; i++) {
		const size_t n = r->plan[1].tensor[written[i]].bytes;

		l.tensor[i] = malloc(n);
		RIG_OK(r->x[1]->backend->read(r->x[1], written[i], 0, l.tensor[i], n, &r->st));
	}
	return l;
}

/* Every element of each trial, and none of them NaN: all bits set say that nobody wrote it. */
static void same(const char *name, int shape, const unsigned char *a, const unsigned char *b, size_t stride, size_t bytes, int trials)
{
	for (int p = 0; p < trials; p++)
		for (size_t k = 0; k < bytes; k++) {
			const size_t at = (size_t)p * stride + k;

			if (a[at] != b[at] || (k % 4 == 3 && a[at] == 0xff && a[at - 1] == 0xff))
				fail_msg("shape %d, %s of trial %d: byte %zu of %zu is %02x layer by layer, %02x in one launch", shape, name, p, k, bytes, a[at],
					 b[at]);
		}
}

static void same_left(struct rig *r, const struct cuda_scratch *s, int shape, const struct left *a, const struct left *b)
{
	const struct { const char *name; const struct cuda_array *x; size_t bytes; } made[] = {
		{"dout", &s->dout, (size_t)r->d.B * (size_t)(s->ldo * s->low)}, {"dhead", &s->dhead, (size_t)r->d.B * (size_t)(s->ldhead * s->low)},
		{"dh2", &s->dh2, (size_t)r->d.B * (size_t)(s->ldh2 * s->low)}, {"dh1", &s->dh1, (size_t)r->d.B * (size_t)(s->ldh1 * s->low)},
		{"q", &s->q, (size_t)r->d.B * 4}, {"edge", &s->edge, (size_t)r->d.B * 4}, {"part", &s->part, (size_t)s->parts * 8},
	};

	for (unsigned k = 0; k < sizeof made / sizeof made[0]; k++)
		same(made[k].name, shape, a->scratch + made[k].x->offset, b->scratch + made[k].x->offset, made[k].x->stride, made[k].bytes, r->d.P);
	for (int k = 0; k < WRITTEN; k++) {
		const struct plan_tensor *t = &r->plan[1].tensor[written[k]];

		same(t->name, shape, a->tensor[k], b->tensor[k], t->stride, (size_t)t->elements * 4, r->d.P);
	}
}

static void left_free(struct left *l)
{
	for (int k = 0; k < WRITTEN; k++)
		free(l->tensor[k]);
	free(l->scratch);
}

static void back_is_layered(void **state)
{
	static const char *const wide[] = {"16", "32", "64", "416", "432", "464", "816", "832", "864", "1064", "1128"};

	(void)state;
	if (!rig_cuda)
		skip();
	for (int i = 0; i < SHAPES; i++) {
		struct rig rig, *r = &rig;
		struct cuda_scratch s;

		make(r, &shapes[i], FH_PRECISION_BF16, shapes[i].loss);
		cuda_scratch_make(&r->d, &s);
		setenv("FH_GPU_WIDE", "0", 1);
		stages(r, STAGE_ADVANCE, STAGE_FORWARD);
		struct left layered = back(r, &s, "0");
		for (unsigned k = 0; k < sizeof wide / sizeof wide[0]; k++) {
			struct left one = back(r, &s, wide[k]);

			same_left(r, &s, i, &layered, &one);
			left_free(&one);
		}
		left_free(&layered);
		rig_free(r);
	}
}

/* Learn steps in their graph against the stages, everything that lasts. */
static void learning_is_staged(void **state)
{
	static const int learnt[] = {T_PARAM, T_TARGET, T_M, T_V, T_GRAD, T_TREE, T_CLOCK, T_INDEX, T_WEIGHT, T_ERROR, T_CE}, which[] = {3, 5, 3};
	static const char *const wide[] = {"1", "1", "8"};
	static const struct run steps = {DQN_PHASE_LEARN, 2};

	(void)state;
	if (!rig_cuda)
		skip();
	for (int w = 0; w < 3; w++) {
		struct rig rigs[2], *r;

		for (int i = 0; i < 2; i++) {
			r = &rigs[i];
			setenv("FH_GPU_SYNC", i ? "1" : "0", 1);
			make(r, &shapes[which[w]], FH_PRECISION_BF16, FH_LOSS_C51);
			setenv("FH_GPU_SYNC", "0", 1);
			rig_run_wide(r, i ? "0" : wide[w], &steps, 2);
		}
		rig_equal_devices(&rigs[0], &rigs[1], learnt, sizeof learnt / sizeof learnt[0]);
		rig_free(&rigs[0]);
		rig_free(&rigs[1]);
	}
}

/* Every discount with every return: the host's distribution, and no mass lost. */
static void projection_at(int NA, const char *wide)
{
	static const float G[] = {0.f, 1.f, 0.99f, 0.97f, 0.7f, 0.69f, 0.5f, 0.1f, 0.01f, 1e-6f, 1e-30f};
	static const float R[] = {0.f, 1.f, -2.5f, 0.0371f, -2.999f, 1.9999f, 2.f, -3.f, 40.f, -40.f, 1e6f, -1e6f, 1e30f, -3e38f};
	enum { GS = sizeof G / sizeof G[0], RS = sizeof R / sizeof R[0] };
	const struct rig_shape s = {.B = GS * RS, .SD = 8, .H1 = 16, .H2 = 16, .VH = 16, .AH = 16, .NA = NA, .D = 2, .A = {2, 3}};
	struct rig rig, *r = &rig;

	make(r, &s, FH_PRECISION_F32, FH_LOSS_C51);
	for (int stage = STAGE_ADVANCE; stage <= STAGE_FORWARD; stage++)
		rig_stage(r, stage);
	for (int i = 0; i < s.B; i++)
		((float *)rig_host(r, T_G, 0))[i] = G[i % GS], ((float *)rig_host(r, T_R, 0))[i] = R[i / GS];
	for (int t = T_R; t <= T_G; t++)
		RIG_OK(r->x[1]->backend->write(r->x[1], t, 0, r->x[0]->tensor[t], r->plan[0].tensor[t].bytes, &r->st));
	setenv("FH_GPU_WIDE", wide, 1);
	rig_stage(r, STAGE_LOSS);
	unsetenv("FH_GPU_WIDE");
	float *m = malloc(r->plan[1].tensor[T_PROJ].bytes);
	RIG_OK(r->x[1]->backend->read(r->x[1], T_PROJ, 0, m, r->plan[1].tensor[T_PROJ].bytes, &r->st));
	for (int row = 0; row < s.B * s.D; row++) {
		const float *want = (const float *)rig_host(r, T_PROJ, 0) + row * NA, *got = m + row * NA, g = G[row / s.D % GS], ret = R[row / s.D / GS];
		double sum = 0;

		for (int i = 0; i < NA; i++) {
			sum += got[i];
			if (!(fabsf(got[i] - want[i]) <= 2e-5f))
				fail_msg("R %g, G %g: atom %d of %d gets %.9g, the host's %.9g", ret, g, i, NA, got[i], want[i]);
		}
		if (!(fabs(sum - 1) <= 1e-6))
			fail_msg("R %g, G %g: %d atoms have %.9g", ret, g, NA, sum);
	}
	free(m);
	rig_free(r);
}

static void projection_everywhere(void **state)
{
	static const int atoms[] = {2, 11, 32, 51, 64, 101};

	(void)state;
	if (!rig_cuda)
		skip();
	for (unsigned i = 0; i < sizeof atoms / sizeof atoms[0]; i++) {
		projection_at(atoms[i], "0");
		projection_at(atoms[i], "1");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(back_is_layered),
		cmocka_unit_test(learning_is_staged),
		cmocka_unit_test(projection_everywhere),
	};

	return cmocka_run_group_tests(tests, rig_open, NULL);
}
