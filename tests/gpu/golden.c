/* The device against the float64 reference: five steps of the small and of the full network at the tolerances of
 * section 10, and both losses. Batches enter through the replay, as in a run. */
#include "tests/gpu/rig.h"

struct tolerance { double forward, gradient, whole, param, change, moment; };
static struct tolerance tolerance_of(int precision, int full)
{
	if (precision == FH_PRECISION_F32)
		return (struct tolerance){1e-5, 1e-4, 1e-4, 1e-4, 1e-3, 1e-3};
	if (precision == FH_PRECISION_TF32)
		return (struct tolerance){2e-3, full ? 1e-1 : 5e-3, full ? 1.5e-2 : 5e-3, INFINITY, INFINITY, INFINITY};
	return (struct tolerance){2e-2, full ? 2e-1 : 5e-2, 5e-2, INFINITY, INFINITY, INFINITY};
}

static void load_network(struct rig *r, const struct st_file *f, const char *group, int tensor)
{
	float *flat = rig_host(r, tensor, 0);

	for (int i = 0; i < r->plan[0].views; i++) {
		const struct tensor_view *v = &r->plan[0].view[i];
		const char *dot = strchr(v->name, '.');
		char name[128];
		int64_t n;

		if (v->tensor != T_PARAM)
			continue;
		snprintf(name, sizeof name, "%s%s", group, dot);
		const float *src = golden_f32(f, name, &n);
		assert_int_equal(n, v->dim[0] * v->dim[1]);
		memcpy(flat + v->offset, src, (size_t)n * sizeof *src);
	}
	rig_low(r, tensor, tensor == T_PARAM ? T_PARAM_LP : T_TARGET_LP, 0);
}

/* Rows 0..B-1 of the replay become the batch. */
static void load_batch(struct rig *r, const struct st_file *f, const char *prefix)
{
	const struct dqn_dims *d = &r->d;
	char name[64];
	int64_t n;
	const float *src;

	for (int side = 0; side < 2; side++) {
		snprintf(name, sizeof name, "%s%s", prefix, side ? "s2" : "s");
		src = golden_f32(f, name, &n);
		assert_int_equal(n, d->B * d->SD);
		for (int64_t i = 0; i < n; i++)
			rig_state(r, side ? T_RP_S2 : T_RP_S, 0, i, src[i]);
	}
	snprintf(name, sizeof name, "%sa", prefix);
	const int32_t *a = golden_i32(f, name, &n);
	for (int64_t i = 0; i < n; i++)
		((uint8_t *)rig_host(r, T_RP_A, 0))[i] = (uint8_t)a[i];
	snprintf(name, sizeof name, "%sR", prefix);
	memcpy(rig_host(r, T_RP_R, 0), golden_f32(f, name, &n), sizeof(float) * (size_t)d->B);
	snprintf(name, sizeof name, "%sG", prefix);
	memcpy(rig_host(r, T_RP_G, 0), golden_f32(f, name, &n), sizeof(float) * (size_t)d->B);
	snprintf(name, sizeof name, "%sw", prefix);
	memcpy(rig_host(r, T_WEIGHT, 0), golden_f32(f, name, &n), sizeof(float) * (size_t)d->B);
	for (int j = 0; j < d->B; j++)
		((int32_t *)rig_host(r, T_INDEX, 0))[j] = j;
	for (int t = T_RP_S; t <= T_RP_G; t++)
		RIG_OK(r->x[1]->backend->write(r->x[1], t, 0, r->x[0]->tensor[t], r->plan[0].tensor[t].bytes, &r->st));
	RIG_OK(r->x[1]->backend->write(r->x[1], T_INDEX, 0, rig_host(r, T_INDEX, 0), r->plan[0].tensor[T_INDEX].bytes, &r->st));
	RIG_OK(r->x[1]->backend->write(r->x[1], T_WEIGHT, 0, rig_host(r, T_WEIGHT, 0), r->plan[0].tensor[T_WEIGHT].bytes, &r->st));
}

static void device_stage(struct rig *r, int stage)
{
	RIG_OK(r->x[1]->backend->stage(r->x[1], &dqn_stage_table[stage], &r->st));
}

/* Error of the views of a flat tensor against "{group}.{name}"; picked positions where the reference keeps only those. */
static void check_network(struct rig *r, const struct st_file *f, const char *group, int tensor, const char *start, double limit,
			  double whole_limit)
{
	const int64_t params = r->d.params;
	float *dev = malloc((size_t)params * 4);
	double all_diff = 0, all_norm = 0;

	RIG_OK(r->x[1]->backend->read(r->x[1], tensor, 0, dev, (size_t)params * 4, &r->st));
	for (int i = 0; i < r->plan[0].views; i++) {
		const struct tensor_view *v = &r->plan[0].view[i];
		const char *dot = strchr(v->name, '.');
		char name[128], pick_name[128];
		int64_t n, m;

		if (v->tensor != T_PARAM)
			continue;
		snprintf(name, sizeof name, "%s%s", group, dot);
		snprintf(pick_name, sizeof pick_name, "pick%s", dot);
		double *ref = golden_double(f, name, &n), diff = 0, norm = 0;
		const int32_t *pick = n < v->dim[0] * v->dim[1] ? golden_i32(f, pick_name, &m) : NULL;
		const float *from = NULL;

		if (start) { /* the change since the start */
			snprintf(name, sizeof name, "%s%s", start, dot);
			from = golden_f32(f, name, &m);
		}
		for (int64_t k = 0; k < n; k++) {
			int64_t at = pick ? pick[k] : k;
			double base = from ? from[at] : 0, x = dev[v->offset + at] - base, y = ref[k] - base;

			diff += (x - y) * (x - y);
			norm += y * y;
		}
		all_diff += diff, all_norm += norm;
		free(ref);
		double e = norm > 0 ? sqrt(diff / norm) : sqrt(diff);
		if (!(e <= limit))
			fail_msg("%s%s%s: relative error %.3g, at most %.3g", group, dot, start ? " (change)" : "", e, limit);
	}
	free(dev);
	assert_within(sqrt(all_diff / all_norm), whole_limit, group);
}

static struct rig_shape shape_of(const struct st_file *f, int precision, int loss)
{
	struct rig_shape s = {.N = 2, .n = 1, .P = 1, .precision = precision, .loss = loss};
	const char *a = golden_meta(f, "A");

	s.B = (int)golden_int(f, "B"), s.SD = (int)golden_int(f, "SD"), s.H1 = (int)golden_int(f, "H1"), s.H2 = (int)golden_int(f, "H2");
	s.VH = (int)golden_int(f, "VH"), s.AH = (int)golden_int(f, "AH"), s.NA = (int)golden_int(f, "NA");
	for (s.D = 0; *a; a += strcspn(a, ",") + (a[strcspn(a, ",")] == ','))
		s.A[s.D++] = atoi(a);
	s.C = s.B < 64 ? 64 : s.B;
	return s;
}

static void begin(struct rig *r, const struct st_file *f, int precision, int loss)
{
	const struct rig_shape s = shape_of(f, precision, loss);
	struct dqn_clock *c;

	rig_make(r, &s);
	rig_fill(r, 1);
	load_network(r, f, "param", T_PARAM);
	load_network(r, f, "target", T_TARGET);
	c = rig_host(r, T_CLOCK, 0);
	c->step = c->applied = 0;
	c->v_min = golden_real(f, "v_min"), c->v_max = golden_real(f, "v_max");
	c->lr_linear = 0, c->target_period = 0, c->weight_decay = 0;
	rig_send(r);
}

static void five_steps(const char *file, int precision)
{
	struct st_file *f = golden_open(file);
	const int full = !strcmp(file, "step_full");
	const struct tolerance t = tolerance_of(precision, full);
	struct rig rig, *r = &rig;

	begin(r, f, precision, FH_LOSS_C51);
	struct dqn_clock *c = rig_host(r, T_CLOCK, 0);
	c->lr0 = golden_real(f, "lr"), c->max_grad_norm = golden_real(f, "max_grad_norm"), c->tau = golden_real(f, "tau");
	rig_send(r);
	for (int step = 0; step < 5; step++) {
		char prefix[16];

		snprintf(prefix, sizeof prefix, "batch%d.", step);
		load_batch(r, f, prefix);
		for (int stage = STAGE_ADVANCE; stage <= STAGE_COUNT; stage++)
			if (stage != STAGE_SAMPLE && stage != STAGE_PRIORITY)
				device_stage(r, stage);
		if (step == 0) {
			struct dqn_clock now;

			check_network(r, f, "grad", T_GRAD, NULL, t.gradient, t.whole);
			RIG_OK(r->x[1]->backend->read(r->x[1], T_CLOCK, 0, &now, sizeof now, &r->st));
			const double *loss = golden_f64(f, "batch0.loss", NULL), *norm = golden_f64(f, "batch0.norm", NULL);
			assert_within(fabs(now.loss / loss[0] - 1), t.forward, "loss");
			assert_within(fabs(now.grad_norm / norm[0] - 1), t.whole, "gradient norm");
			if (precision == FH_PRECISION_F32) {
				int64_t n;
				float *error = malloc(sizeof(float) * (size_t)r->d.B);
				double *kl = golden_double(f, "batch0.kl", &n), diff = 0, sum = 0;

				RIG_OK(r->x[1]->backend->read(r->x[1], T_ERROR, 0, error, sizeof(float) * (size_t)r->d.B, &r->st));
				for (int64_t i = 0; i < n; i++)
					diff += (error[i] - kl[i]) * (error[i] - kl[i]), sum += kl[i] * kl[i];
				assert_within(sqrt(diff / sum), 1e-4, "priority error");
				free(error);
				free(kl);
				check_network(r, f, "after1.param", T_PARAM, NULL, t.param, t.param);
			}
		}
	}
	if (precision == FH_PRECISION_F32) {
		check_network(r, f, "after5.param", T_PARAM, NULL, t.param, t.param);
		check_network(r, f, "after5.param", T_PARAM, "param", INFINITY, t.change);
		check_network(r, f, "after5.target", T_TARGET, NULL, t.param, t.param);
		check_network(r, f, "after5.m", T_M, NULL, t.moment, t.moment);
		check_network(r, f, "after5.v", T_V, NULL, t.moment, t.moment);
	}
	rig_free(r);
	st_close(f);
}

static void each_precision(const char *file)
{
	if (!rig_cuda)
		skip();
	for (int p = FH_PRECISION_F32; p <= FH_PRECISION_BF16; p++)
		five_steps(file, p);
}

static void step_small(void **state) { (void)state; each_precision("step_small"); }
static void step_full(void **state) { (void)state; each_precision("step_full"); }

static void mse(void **state)
{
	struct rig rig, *r = &rig;
	struct dqn_clock now;

	(void)state;
	if (!rig_cuda)
		skip();
	struct st_file *f = golden_open("mse");
	begin(r, f, FH_PRECISION_F32, FH_LOSS_MSE);
	load_batch(r, f, "");
	for (int stage = STAGE_ADVANCE; stage <= STAGE_NORM; stage++)
		if (stage != STAGE_SAMPLE)
			device_stage(r, stage);
	check_network(r, f, "grad", T_GRAD, NULL, 1e-4, 1e-4);
	RIG_OK(r->x[1]->backend->read(r->x[1], T_CLOCK, 0, &now, sizeof now, &r->st));
	assert_within(fabs(now.loss / golden_f64(f, "loss", NULL)[0] - 1), 1e-5, "loss");
	rig_free(r);
	st_close(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(step_small),
		cmocka_unit_test(step_full),
		cmocka_unit_test(mse),
	};

	return cmocka_run_group_tests(tests, rig_open, NULL);
}
