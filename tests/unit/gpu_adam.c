/* The optimizer alone, against golden: decoupled weight decay with a linear rate, a skipped step in between, the target
 * as a moving average and as a hard copy, and the BF16 copies of a bf16 run. */
#include "learner_rig.h"

#include "gpu/host/round.h"

/* The golden vector of 64 is the first weight of this network; every other gradient is zero. */
static const struct rig_shape shape = {.SD = 8, .H1 = 8, .H2 = 8, .VH = 8, .AH = 8, .NA = 3, .A = {2, 2, 2}, .B = 8, .P = 1,
				       .precision = FH_PRECISION_F32, .loss = FH_LOSS_C51, .C = 16};

static void follow(int period, int precision)
{
	struct st_file *f = golden_open("adam");
	struct rig_shape s = shape;
	struct dqn_clock *c;
	struct rig *r;
	const float *grads = golden_f32(f, "grads", NULL);
	const double *theta = golden_f64(f, "theta_after", NULL);
	const double *target = golden_f64(f, period ? "target_hard" : "target_ema", NULL);
	const float *param, *tgt;

	s.precision = precision;
	r = rig_new(rig_dims(&s), 2);
	c = rig_clock(r, 0);
	param = rig_at(r, T_PARAM, 0);
	tgt = rig_at(r, T_TARGET, 0);
	c->lr0 = golden_real(f, "lr");
	c->lr_end = golden_real(f, "lr_end");
	c->lr_linear = 1;
	c->planned = golden_int(f, "planned_steps");
	c->weight_decay = golden_real(f, "weight_decay");
	c->tau = golden_real(f, "tau");
	c->target_period = period;
	c->max_grad_norm = 1e9;
	memcpy(rig_at(r, T_PARAM, 0), golden_f32(f, "theta", NULL), 64 * sizeof(float));
	memcpy(rig_at(r, T_TARGET, 0), golden_f32(f, "target", NULL), 64 * sizeof(float));
	for (int i = 0; i < 5; i++) {
		rig_stage(r, STAGE_ADVANCE);
		memcpy(rig_at(r, T_GRAD, 0), grads + i * 64, 64 * sizeof(float));
		rig_stage(r, STAGE_NORM);
		rig_stage(r, STAGE_ADAM);
		rig_stage(r, STAGE_COUNT);
		assert_within(relative_error_f32(param, theta + i * 64, 64), 1e-6, "theta");
		assert_within(relative_error_f32(tgt, target + i * 64, 64), 1e-6, "target");
		for (int j = 0; j < 64 && precision == FH_PRECISION_BF16 && !c->skip; j++) {
			assert_int_equal(((uint16_t *)rig_at(r, T_PARAM_LP, 0))[j], bf16_from(param[j]));
			assert_int_equal(((uint16_t *)rig_at(r, T_TARGET_LP, 0))[j], bf16_from(tgt[j]));
		}
	}
	assert_within(relative_error_f32(rig_at(r, T_M, 0), golden_f64(f, "m", NULL), 64), 1e-6, "m");
	assert_within(relative_error_f32(rig_at(r, T_V, 0), golden_f64(f, "v", NULL), 64), 1e-6, "v");
	assert_int_equal(c->applied, golden_i32(f, "t_and_skipped", NULL)[0]);
	assert_int_equal(c->skipped, golden_i32(f, "t_and_skipped", NULL)[1]);
	assert_int_equal(c->skipped_run, 0);
	for (int64_t i = 64; i < r->d.params; i++)
		assert_true(param[i] == 0.0f && tgt[i] == 0.0f); /* nothing there to decay: padding stays zero */
	rig_free(r);
	st_close(f);
}

static void moving_average(void **state) { (void)state; follow(0, FH_PRECISION_F32); }
static void hard_copies(void **state) { (void)state; follow(2, FH_PRECISION_F32); }
static void copies_in_bf16(void **state) { (void)state; follow(0, FH_PRECISION_BF16); }

static void the_norm_scales_and_counts(void **state)
{
	struct rig *r = rig_new(rig_dims(&shape), 2);
	struct dqn_clock *c = rig_clock(r, 0);
	float *grad = rig_at(r, T_GRAD, 0);

	(void)state;
	grad[0] = 3.0f;
	grad[r->d.params - 64] = 4.0f; /* the last tensor */
	c->max_grad_norm = 2.0;
	rig_stage(r, STAGE_NORM);
	assert_true(c->grad_norm == 5.0 && c->grad_scale == 0.4f && !c->skip);
	c->max_grad_norm = 10.0;
	rig_stage(r, STAGE_NORM);
	assert_true(c->grad_scale == 1.0f);
	grad[0] = 0.0f;
	grad[r->d.params - 64] = 0.0f;
	rig_stage(r, STAGE_NORM);
	assert_true(c->grad_norm == 0.0 && c->grad_scale == 1.0f && !c->skip);
	grad[7] = INFINITY;
	rig_stage(r, STAGE_NORM);
	assert_true(c->skip);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(moving_average), cmocka_unit_test(hard_copies), cmocka_unit_test(copies_in_bf16),
		cmocka_unit_test(the_norm_scales_and_counts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
