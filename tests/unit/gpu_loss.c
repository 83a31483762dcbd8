/* The target projection against golden, published counter-examples and hand-made cases; and the gradient of both losses
 * against central differences of the loss in double precision, computed here from the definitions. */
#include "learner_rig.h"

#include "gpu/projection.h"

/* ---------------------------------------------------------------- projection */

static void project(int atoms, double v_min, double v_max, const float *p, float ret, float discount, float *m)
{
	struct projection s = projection_make(atoms, v_min, v_max);

	projection_apply(&s, p, 1, ret, discount, m, 1);
}

static void golden_projections(void **state)
{
	struct st_file *f = golden_open("projection");
	int64_t n;
	const float *p = golden_f32(f, "p", &n), *R = golden_f32(f, "R", NULL), *G = golden_f32(f, "G", NULL);
	const double *m = golden_f64(f, "m", NULL);
	int NA = (int)golden_int(f, "NA");

	(void)state;
	for (int64_t s = 0; s < n / NA; s++) {
		float out[64];

		project(NA, golden_real(f, "v_min"), golden_real(f, "v_max"), p + s * NA, R[s], G[s], out);
		for (int i = 0; i < NA; i++)
			assert_within(fabs(out[i] - m[s * NA + i]), 2e-5, "m");
	}
	st_close(f);
}

static void exact_projections(void **state)
{
	struct st_file *f = golden_open("projection");
	int64_t n;
	const float *p = golden_f32(f, "exact.p", &n), *R = golden_f32(f, "exact.R", NULL), *G = golden_f32(f, "exact.G", NULL);
	const double *m = golden_f64(f, "exact.m", NULL);
	int NA = (int)golden_int(f, "exact_NA");

	(void)state;
	for (int64_t s = 0; s < n / NA; s++) {
		float out[64];

		project(NA, golden_real(f, "exact_v_min"), golden_real(f, "exact_v_max"), p + s * NA, R[s], G[s], out);
		for (int i = 0; i < NA; i++)
			assert_true((double)out[i] == m[s * NA + i]);
	}
	st_close(f);
}

static void the_table_of_cases(void **state)
{
	FILE *f = fopen(source_path("tests/cases/c51_projection.csv"), "r");
	char line[256];
	int rows = 0;

	(void)state;
	assert_non_null(f);
	assert_non_null(fgets(line, sizeof(line), f)); /* header */
	while (fgets(line, sizeof(line), f)) {
		double v_min, v_max, reward, gamma, p[5], m[5], mass = 0.0;
		float pf[5], out[5];
		int atoms, terminated;
		char name[32];

		assert_int_equal(sscanf(line, "%31[^,],%lf,%lf,%d,%lf,%lf,%d,%lf,%lf,%lf,%lf,%lf,%lf,%lf,%lf,%lf,%lf", name, &v_min, &v_max,
					&atoms, &reward, &gamma, &terminated, p, p + 1, p + 2, p + 3, p + 4, m, m + 1, m + 2, m + 3, m + 4), 17);
		assert_int_equal(atoms, 5);
		for (int i = 0; i < 5; i++)
			pf[i] = (float)p[i];
		project(atoms, v_min, v_max, pf, (float)reward, terminated ? 0.0f : (float)gamma, out);
		for (int i = 0; i < 5; i++) {
			assert_within(fabs(out[i] - m[i]), 1e-6, name);
			mass += out[i];
		}
		assert_within(fabs(mass - 1.0), 1e-6, name);
		rows++;
	}
	fclose(f);
	assert_int_equal(rows, 7);
}

/* Supports on which F32 puts the top atom past the end or a target beside its atom. */
static void awkward_supports_keep_their_mass(void **state)
{
	static const double edge[] = {4.1, 6.9, 7.3, 8.2};

	(void)state;
	for (int e = 0; e < 4; e++)
		for (int r = -400; r <= 400; r++)
			for (int k = 0; k < 4; k++) {
				static const float discount[] = {0.0f, 1.0f, 0.9f, 0.99f * 0.99f * 0.99f};
				float p[51], m[51];
				double mass = 0.0, mean = 0.0, want = 0.0;
				float ret = (float)(edge[e] * r / 200.0);

				for (int i = 0; i < 51; i++)
					p[i] = 1.0f / 51.0f;
				project(51, -edge[e], edge[e], p, ret, discount[k], m);
				for (int i = 0; i < 51; i++) {
					double z = -edge[e] + 2 * edge[e] * i / 50, tz = ret + discount[k] * z;

					assert_true(m[i] >= 0.0f);
					mass += m[i];
					mean += m[i] * z;
					tz = tz < -edge[e] ? -edge[e] : tz > edge[e] ? edge[e] : tz;
					want += p[i] * tz;
				}
				assert_within(fabs(mass - 1.0), 1e-6, "mass");
				assert_within(fabs(mean - want), 1e-5, "mean"); /* the projection keeps the mean of what it clips */
			}
}

static void nonsense_stays_inside(void **state)
{
	static const float odd[] = {INFINITY, -INFINITY, NAN, 3e38f, -3e38f};

	(void)state;
	for (int i = 0; i < 5; i++)
		for (int k = 0; k < 5; k++) {
			struct projection s = projection_make(51, -4.1, 4.1);

			for (int j = 0; j < 51; j++) {
				float b = projection_place(&s, j, odd[i], odd[k]);

				assert_true(b >= 0.0f && b <= 50.0f);
			}
		}
}

/* ---------------------------------------------------------------- losses in double precision */

struct reference {
	struct dqn_dims d;
	double v_min, v_max;
	double *logits; /* [B][sumA][NA] of the last pass */
};

static void dense(const double *w, const double *b, int out, int in, const double *x, int relu, double *y)
{
	for (int i = 0; i < out; i++) {
		y[i] = b[i];
		for (int k = 0; k < in; k++)
			y[i] += w[i * in + k] * x[k];
		if (relu && y[i] < 0.0)
			y[i] = 0.0;
	}
}

#define WIDE 128

/* Combined logits of one state. */
static void reference_forward(const struct reference *r, const double *param, const float *state, double *logits)
{
	const struct dqn_dims *d = &r->d;
	double x[WIDE], h1[WIDE], h2[WIDE], hidden[WIDE], v[WIDE], adv[8 * WIDE];
	const struct dqn_layer *l = d->layer;

	for (int i = 0; i < d->SD; i++)
		x[i] = state[i];
	dense(param + l[0].w, param + l[0].b, d->H1, d->SD, x, 1, h1);
	dense(param + l[1].w, param + l[1].b, d->H2, d->H1, h1, 1, h2);
	dense(param + l[2].w, param + l[2].b, d->VH, d->H2, h2, 1, hidden);
	dense(param + l[3].w, param + l[3].b, d->NA, d->VH, hidden, 0, v);
	for (int b = 0; b < d->D; b++) {
		const struct dqn_layer *first = &l[DQN_B0 + 2 * b], *second = first + 1;

		dense(param + first->w, param + first->b, d->AH, d->H2, h2, 1, hidden);
		dense(param + second->w, param + second->b, d->A[b] * d->NA, d->AH, hidden, 0, adv);
		for (int i = 0; i < d->NA; i++) {
			double mean = 0.0;

			for (int a = 0; a < d->A[b]; a++)
				mean += adv[a * d->NA + i] / d->A[b];
			for (int a = 0; a < d->A[b]; a++)
				logits[a * d->NA + i] = v[i] + adv[a * d->NA + i] - mean;
		}
		logits += d->A[b] * d->NA;
	}
}

/* Softmax of y and its expected value. */
static double reference_q(const struct reference *r, const double *y, double *p)
{
	double top = -HUGE_VAL, total = 0.0, q = 0.0;

	for (int i = 0; i < r->d.NA; i++)
		top = y[i] > top ? y[i] : top;
	for (int i = 0; i < r->d.NA; i++)
		total += p[i] = exp(y[i] - top);
	for (int i = 0; i < r->d.NA; i++) {
		p[i] /= total;
		q += p[i] * (r->v_min + (r->v_max - r->v_min) / (r->d.NA - 1) * i);
	}
	return q;
}

/* The loss with the given targets (T_PROJ's layout) held fixed. */
static double reference_loss(const struct reference *r, const double *param, const float *s, const int32_t *a, const float *weight,
			     const float *target)
{
	const struct dqn_dims *d = &r->d;
	double loss = 0.0, p[WIDE];

	for (int j = 0; j < d->B; j++) {
		const double *y = r->logits;

		reference_forward(r, param, s + j * d->SD, r->logits);
		for (int b = 0; b < d->D; b++) {
			const double *taken = y + a[j * d->D + b] * d->NA;
			const float *m = target + (j * d->D + b) * d->NA;
			double q = reference_q(r, taken, p), one = 0.0;

			for (int i = 0; i < d->NA && d->loss == FH_LOSS_C51; i++)
				one -= m[i] * log(p[i]);
			if (d->loss == FH_LOSS_MSE)
				one = (q - m[0]) * (q - m[0]);
			loss += weight[j] * one / d->D / d->B;
			y += d->A[b] * d->NA;
		}
	}
	return loss;
}

static void differences(int loss)
{
	struct rig_shape shape = {.SD = 5, .H1 = 9, .H2 = 10, .VH = 6, .AH = 7, .NA = 6, .A = {4, 3, 2}, .B = 13, .P = 1,
				  .precision = FH_PRECISION_F32, .loss = loss, .C = 16};
	struct rig *r = rig_new(rig_dims(&shape), 2);
	struct reference ref = {.d = r->d, .v_min = -2.0, .v_max = 3.0};
	const struct dqn_dims *d = &r->d;
	float *s = rig_at(r, T_S, 0), *s2 = rig_at(r, T_S2, 0), *weight = rig_at(r, T_WEIGHT, 0);
	int32_t *a = rig_at(r, T_A, 0);
	const float *grad = rig_at(r, T_GRAD, 0);
	double *param = malloc((size_t)d->params * sizeof(*param)), diff = 0.0, size = 0.0, loss_here;
	uint32_t x = 5;

	assert_non_null(param);
	ref.logits = malloc((size_t)d->sumA * d->NA * sizeof(double));
	assert_non_null(ref.logits);
#define NEXT() ((x = x * 1664525u + 1013904223u) >> 8)
	for (int i = 0; i < d->B * d->SD; i++) {
		s[i] = (float)(NEXT() % 2000) / 1000.0f - 1.0f;
		s2[i] = (float)(NEXT() % 2000) / 1000.0f - 1.0f;
	}
	for (int j = 0; j < d->B; j++) {
		for (int b = 0; b < d->D; b++)
			a[j * d->D + b] = (int32_t)(NEXT() % (uint32_t)d->A[b]);
		((float *)rig_at(r, T_R, 0))[j] = (float)(NEXT() % 400) / 100.0f - 2.0f;
		((float *)rig_at(r, T_G, 0))[j] = NEXT() % 4 ? 0.9f : 0.0f;
		weight[j] = 0.2f + (float)(NEXT() % 800) / 1000.0f;
	}
#undef NEXT
	dqn_init_params(d, 3, rig_at(r, T_PARAM, 0));
	dqn_init_params(d, 4, rig_at(r, T_TARGET, 0));
	rig_clock(r, 0)->v_min = ref.v_min;
	rig_clock(r, 0)->v_max = ref.v_max;
	rig_stage(r, STAGE_ADVANCE);
	rig_stages(r, STAGE_FORWARD, STAGE_NORM);
	for (int64_t i = 0; i < d->params; i++)
		param[i] = ((float *)rig_at(r, T_PARAM, 0))[i];
	loss_here = reference_loss(&ref, param, s, a, weight, rig_at(r, T_PROJ, 0));
	assert_within(fabs(rig_clock(r, 0)->loss - loss_here) / loss_here, 1e-6, "loss");
	for (int t = 0; t < 2 * d->layers; t++) {
		char name[64];
		int64_t at, n;

		tensor_of(d, t, "grad", name, &at, &n);
		for (int64_t i = at; i < at + n; i++) {
			const double h = 1e-6;
			double keep = param[i], up, down;

			param[i] = keep + h;
			up = reference_loss(&ref, param, s, a, weight, rig_at(r, T_PROJ, 0));
			param[i] = keep - h;
			down = reference_loss(&ref, param, s, a, weight, rig_at(r, T_PROJ, 0));
			param[i] = keep;
			diff += pow(grad[i] - (up - down) / (2 * h), 2);
			size += pow((up - down) / (2 * h), 2);
		}
	}
	assert_true(size > 0.0);
	assert_within(sqrt(diff / size), 1e-5, "gradient against differences");
	free(ref.logits);
	free(param);
	rig_free(r);
}

static void differences_of_c51(void **state) { (void)state; differences(FH_LOSS_C51); }
static void differences_of_mse(void **state) { (void)state; differences(FH_LOSS_MSE); }

/* A net that says Q = 10 everywhere: truncated y = r + gamma Q, terminated y = r. */
static void a_time_limit_still_bootstraps(void **state)
{
	struct rig_shape shape = {.SD = 2, .H1 = 4, .H2 = 4, .VH = 4, .AH = 4, .NA = 31, .A = {2, 2, 2}, .B = 2, .P = 1,
				  .precision = FH_PRECISION_F32, .loss = FH_LOSS_MSE, .C = 16};
	struct rig *r = rig_new(rig_dims(&shape), 1);
	const struct dqn_dims *d = &r->d;
	float *target = rig_at(r, T_TARGET, 0), *proj = rig_at(r, T_PROJ, 0);

	(void)state;
	target[d->layer[DQN_V2].b + 20] = 60.0f; /* atom 20 of -10, -9, … 20 is 10 */
	rig_clock(r, 0)->v_min = -10.0;
	rig_clock(r, 0)->v_max = 20.0;
	for (int j = 0; j < 2; j++) {
		((float *)rig_at(r, T_R, 0))[j] = 1.0f;
		((float *)rig_at(r, T_G, 0))[j] = j ? 0.0f : 0.99f;
		((float *)rig_at(r, T_WEIGHT, 0))[j] = 1.0f;
	}
	rig_stage(r, STAGE_ADVANCE);
	rig_stages(r, STAGE_FORWARD, STAGE_LOSS);
	for (int b = 0; b < d->D; b++) {
		assert_within(fabs(proj[b * d->NA] - 10.9), 1e-5, "truncated");
		assert_within(fabs(proj[(d->D + b) * d->NA] - 1.0), 1e-6, "terminated");
	}
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_projections), cmocka_unit_test(exact_projections), cmocka_unit_test(the_table_of_cases),
		cmocka_unit_test(awkward_supports_keep_their_mass), cmocka_unit_test(nonsense_stays_inside),
		cmocka_unit_test(differences_of_c51), cmocka_unit_test(differences_of_mse),
		cmocka_unit_test(a_time_limit_still_bootstraps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
