/* The forward pass by itself: golden logits and Q in every precision, one row and many rows, greedy actions with ties,
 * initial values, and that POLICY and host_net see the same network. */
#include "learner_rig.h"

#include "gpu/host/net.h"
#include "gpu/host/pass.h"

static struct host_net *golden_net(const struct st_file *f, int precision, struct dqn_dims *d)
{
	struct rig_shape s = golden_shape(f, precision, FH_LOSS_C51);
	struct host_net *net = NULL;
	float *param;

	*d = rig_dims(&s);
	assert_int_equal(host_net_new(d, golden_real(f, "v_min"), golden_real(f, "v_max"), NULL, &net, NULL), 0);
	param = malloc((size_t)d->params * sizeof(*param));
	assert_non_null(param);
	load_group(f, d, "param", param);
	host_net_set(net, param);
	free(param);
	return net;
}

/* Branch b of out [rows][sumA][width] against golden `prefix`b, of which the first `rows` rows are compared. */
static void check_branches(const struct st_file *f, const struct dqn_dims *d, const char *prefix, const float *out, int rows, int width,
			   double limit)
{
	for (int b = 0; b < d->D; b++) {
		double diff = 0.0, size = 0.0;
		char name[32];
		const double *ref;
		int64_t n;

		snprintf(name, sizeof(name), "%s%d", prefix, b);
		if (!st_find(f, name))
			continue;
		ref = golden_f64(f, name, &n);
		assert_true(n >= (int64_t)rows * d->A[b] * width);
		for (int j = 0; j < rows; j++)
			for (int i = 0; i < d->A[b] * width; i++) {
				double o = out[((int64_t)j * d->sumA + host_first_action(d, b)) * width + i];
				double r = ref[(int64_t)j * d->A[b] * width + i];

				diff += (o - r) * (o - r);
				size += r * r;
			}
		assert_within(sqrt(diff / size), limit, name);
	}
}

/* All rows at once, then every row alone. */
static void check_forward(const char *file, const char *input, int logit_rows, int precision, double limit)
{
	struct st_file *f = golden_open(file);
	struct dqn_dims d;
	struct host_net *net = golden_net(f, precision, &d);
	const float *x = golden_f32(f, input, NULL);
	float *q = calloc((size_t)d.B * d.sumA, sizeof(*q));
	float *logits = calloc((size_t)d.B * d.sumA * d.NA, sizeof(*logits));

	assert_true(q && logits);
	for (int single = 0; single < 2; single++) {
		for (int j = 0; single && j < d.B; j++)
			host_net_forward(net, x + (int64_t)j * d.SD, 1, NULL, q + (int64_t)j * d.sumA, logits + (int64_t)j * d.sumA * d.NA);
		if (!single)
			host_net_forward(net, x, d.B, NULL, q, logits);
		check_branches(f, &d, "logits", logits, logit_rows ? logit_rows : d.B, d.NA, limit);
		check_branches(f, &d, "Q", q, d.B, 1, limit);
		memset(q, 0, (size_t)d.B * d.sumA * sizeof(*q));
		memset(logits, 0, (size_t)d.B * d.sumA * d.NA * sizeof(*logits));
	}
	free(q);
	free(logits);
	host_net_free(net);
	st_close(f);
}

static void forward_of_the_small_net(void **state)
{
	(void)state;
	check_forward("forward_small", "x", 0, FH_PRECISION_F32, 1e-5);
	check_forward("forward_small", "x", 0, FH_PRECISION_TF32, 2e-3);
	check_forward("forward_small", "x", 0, FH_PRECISION_BF16, 2e-2);
}

static void forward_of_the_default_net(void **state)
{
	(void)state;
	check_forward("step_full", "batch0.s", 16, FH_PRECISION_F32, 1e-5);
	check_forward("step_full", "batch0.s", 16, FH_PRECISION_TF32, 2e-3);
	check_forward("step_full", "batch0.s", 16, FH_PRECISION_BF16, 2e-2);
}

static void lower_precision_is_really_lower(void **state)
{
	struct st_file *f = golden_open("step_full");
	float *q[3];

	(void)state;
	for (int i = 0; i < 3; i++) {
		struct dqn_dims d;
		struct host_net *net = golden_net(f, FH_PRECISION_F32 + i, &d);

		q[i] = calloc((size_t)d.B * d.sumA, sizeof(float));
		assert_non_null(q[i]);
		host_net_forward(net, golden_f32(f, "batch0.s", NULL), d.B, NULL, q[i], NULL);
		host_net_free(net);
	}
	for (int i = 0; i < 3; i++)
		assert_memory_not_equal(q[i], q[(i + 1) % 3], 64);
	for (int i = 0; i < 3; i++)
		free(q[i]);
	st_close(f);
}

static void the_lowest_index_wins_a_tie(void **state)
{
	struct st_file *f = golden_open("forward_small");
	struct dqn_dims d = {.D = 1, .A = {3}, .sumA = 3};
	const float *q = golden_f32(f, "tie.Q", NULL);
	const int32_t *want = golden_i32(f, "tie.argmax", NULL);
	float by_action[3 * PANEL] = {0};
	int32_t action[4];

	(void)state;
	for (int j = 0; j < 4; j++)
		for (int a = 0; a < 3; a++)
			by_action[a * PANEL + j] = q[j * 3 + a];
	host_greedy(&d, by_action, 4, action);
	assert_memory_equal(action, want, sizeof(action));
	st_close(f);
}

static void initial_values_are_exact(void **state)
{
	struct rig_shape s = {.SD = 6, .H1 = 16, .H2 = 16, .VH = 8, .AH = 8, .NA = 11, .A = {3, 2, 2}, .B = 8, .P = 1,
			      .precision = FH_PRECISION_F32, .loss = FH_LOSS_C51, .C = 16};
	struct st_file *f = golden_open("philox");
	struct dqn_dims d = rig_dims(&s);
	float *flat = malloc((size_t)d.params * sizeof(*flat));
	int64_t n;
	const float *want = golden_f32(f, "init.net", &n);
	double covered = 0.0, all = 0.0;

	(void)state;
	assert_non_null(flat);
	assert_int_equal(n, d.params_unpadded);
	memset(flat, 0xFF, (size_t)d.params * sizeof(*flat));
	dqn_init_params(&d, (uint64_t)golden_int(f, "seed"), flat);
	for (int t = 0; t < 2 * d.layers; t++) {
		char name[64];
		int64_t at, len;

		tensor_of(&d, t, "param", name, &at, &len);
		assert_int_equal(at % 64, 0);
		assert_memory_equal(flat + at, want, (size_t)len * sizeof(*want));
		for (int64_t i = 0; i < len; i++)
			covered += fabs(want[i]);
		want += len;
	}
	for (int64_t i = 0; i < d.params; i++)
		all += fabs(flat[i]);
	assert_within(fabs(all - covered), 1e-9 * all, "padding"); /* nothing but zeros between the tensors */
	free(flat);
	st_close(f);
}

static void the_default_network_has_288868_parameters(void **state)
{
	struct rig_shape s = {.SD = 48, .H1 = 256, .H2 = 256, .VH = 128, .AH = 128, .NA = 51, .A = {5, 3, 3}, .B = 128, .P = 1,
			      .precision = FH_PRECISION_F32, .loss = FH_LOSS_C51, .C = 16};
	struct dqn_dims d = rig_dims(&s);

	(void)state;
	assert_int_equal(d.params_unpadded, 288868);
	assert_int_equal(d.layers, 10);
	assert_int_equal(d.head, 512);
	assert_int_equal(d.outs, 612);
}

/* POLICY over 75 states takes the actions that host_net takes in blocks and one by one. */
static void policy_and_net_agree(void **state)
{
	static const int precision[] = {FH_PRECISION_F32, FH_PRECISION_TF32, FH_PRECISION_BF16};

	(void)state;
	for (int i = 0; i < 3; i++) {
		struct rig_shape s = {.SD = 11, .H1 = 37, .H2 = 29, .VH = 21, .AH = 19, .NA = 13, .A = {5, 3, 2}, .B = 75, .P = 2,
				      .precision = precision[i], .loss = FH_LOSS_C51, .C = 16};
		struct rig *r = rig_new(rig_dims(&s), 2);
		struct host_net *net = NULL;
		int32_t action[75 * 3];

		assert_int_equal(host_net_new(&r->d, -10.0, 10.0, NULL, &net, NULL), 0);
		for (int p = 0; p < 2; p++) {
			float *obs = rig_at(r, T_OBS, p);

			dqn_init_params(&r->d, 5 + (uint64_t)p, rig_at(r, T_PARAM, p));
			for (int k = 0; k < 75 * 11; k++)
				obs[k] = (float)((k * 7919 + p) % 1000) / 500.0f - 1.0f;
		}
		rig_stage(r, STAGE_POLICY);
		for (int p = 0; p < 2; p++) {
			host_net_set(net, rig_at(r, T_PARAM, p));
			host_net_forward(net, rig_at(r, T_OBS, p), 75, action, NULL, NULL);
			assert_memory_equal(action, rig_at(r, T_ACTION, p), sizeof(action));
			for (int j = 0; j < 75; j++)
				host_net_forward(net, (float *)rig_at(r, T_OBS, p) + j * 11, 1, action + j * 3, NULL, NULL);
			assert_memory_equal(action, rig_at(r, T_ACTION, p), sizeof(action));
		}
		host_net_free(net);
		rig_free(r);
	}
}

/* Q and logits of a row are the same bits among any number of rows, at any place, on one thread and on several. */
static void a_row_depends_on_no_other(void **state)
{
	enum { ROWS = 150, SUM = 10, ATOMS = 13, STATE = 11 };
	static const int precision[] = {FH_PRECISION_F32, FH_PRECISION_TF32, FH_PRECISION_BF16};
	static float x[ROWS * STATE], q[ROWS * SUM], part[ROWS * SUM], logits[ROWS * SUM * ATOMS], some[ROWS * SUM * ATOMS];
	struct team *team = NULL;

	(void)state;
	assert_int_equal(team_new(3, &team, NULL), 0);
	for (int k = 0; k < ROWS * STATE; k++)
		x[k] = (float)((k * 7919) % 1000) / 250.0f - 2.0f;
	for (int i = 0; i < 6; i++) {
		struct rig_shape s = {.SD = STATE, .H1 = 137, .H2 = 169, .VH = 21, .AH = 19, .NA = ATOMS, .A = {5, 3, 2}, .B = 75, .P = 1,
				      .precision = precision[i % 3], .loss = FH_LOSS_C51, .C = 16};
		struct dqn_dims d = rig_dims(&s);
		float *param = calloc((size_t)d.params, sizeof(*param));
		struct host_net *net = NULL;

		assert_non_null(param);
		assert_int_equal(host_net_new(&d, -10.0, 10.0, i < 3 ? NULL : team, &net, NULL), 0);
		dqn_init_params(&d, 3, param);
		host_net_set(net, param);
		host_net_forward(net, x, ROWS, NULL, q, logits);
		for (int at = 0, n = 1; at < ROWS; at += n, n = n % 37 + 1) {
			int count = ROWS - at < n ? ROWS - at : n;

			host_net_forward(net, x + at * STATE, count, NULL, part + at * SUM, some + at * SUM * ATOMS);
		}
		assert_memory_equal(q, part, sizeof(q));
		assert_memory_equal(logits, some, sizeof(logits));
		host_net_free(net);
		free(param);
	}
	team_free(team);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(forward_of_the_small_net), cmocka_unit_test(forward_of_the_default_net),
		cmocka_unit_test(lower_precision_is_really_lower), cmocka_unit_test(the_lowest_index_wins_a_tie),
		cmocka_unit_test(initial_values_are_exact), cmocka_unit_test(the_default_network_has_288868_parameters),
		cmocka_unit_test(policy_and_net_agree), cmocka_unit_test(a_row_depends_on_no_other),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
