/* Every kernel of every instruction set this CPU has, against plain double precision: all shapes of products around the
 * edges of tiles, all options, nothing written outside; elementary functions to a few units of the last place; and that
 * a result does not depend on how a call is cut. */
#include "golden.h"

#include "gpu/host/kernels.h"
#include "gpu/host/round.h"

static uint32_t noise_state = 1;

static float noise(void) /* in [-1, 1) */
{
	noise_state = noise_state * 1664525u + 1013904223u;
	return (float)(noise_state >> 8) * 0x1p-23f - 1.0f;
}

static void fill(float *v, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		v[i] = noise();
}

static const struct kernels *each(int i)
{
	const struct kernels *all[] = {host_kernels_base(), host_kernels_avx2(), host_kernels_avx512()};

	return i < 3 ? all[i] : NULL;
}

#define EACH(k) for (int e_ = 0; e_ < 3; e_++) for (const struct kernels *k = each(e_); k; k = NULL)

/* ---------------------------------------------------------------- products */

#define M_MAX 40
#define K_MAX 70
#define ROW 80
#define MARK 12345.0f

static float A[K_MAX * ROW + ROW * ROW], B[K_MAX * ROW + ROW * 2], C[M_MAX * ROW], S[M_MAX * ROW], G[M_MAX * ROW], bias[ROW];

static double element(const struct product *g, int i, int j)
{
	double sum = (g->start ? g->start[i * g->start_row + j] : 0.0) + (g->bias ? g->bias[i] : 0.0);

	for (int k = 0; k < g->k; k++) {
		int64_t at = g->pick ? g->pick[k] : k;

		sum += (double)g->a[i * g->a_row + at * g->a_col] * g->b[at * g->b_row + j];
	}
	if (g->relu && sum < 0.0)
		sum = 0.0;
	if (g->gate && !(g->gate[i * g->gate_row + j] > 0.0f))
		sum = 0.0;
	return g->round ? round_bits((float)sum, g->round) : sum;
}

static void check_product(const struct kernels *k, struct product *g)
{
	double slack = g->round == 16 ? 1e-2 : g->round == 13 ? 2e-3 : 1e-5; /* a sum on a rounding boundary may go either way */

	for (int i = 0; i < M_MAX * ROW; i++)
		C[i] = MARK;
	k->product(g);
	for (int i = 0; i < M_MAX; i++)
		for (int j = 0; j < ROW; j++) {
			if (i >= g->m || j >= g->n)
				assert_true(C[i * ROW + j] == MARK);
			else
				assert_within(fabs(C[i * ROW + j] - element(g, i, j)), slack * (1.0 + fabs(element(g, i, j))), k->name);
		}
}

static void products_of_every_shape(void **state)
{
	int32_t pick[K_MAX];

	(void)state;
	fill(A, sizeof(A) / sizeof(*A));
	fill(B, sizeof(B) / sizeof(*B));
	fill(S, sizeof(S) / sizeof(*S));
	fill(G, sizeof(G) / sizeof(*G));
	fill(bias, ROW);
	for (int i = 0; i < K_MAX; i++)
		pick[i] = (i * 37) % K_MAX;
	EACH(k)
		for (int m = 1; m <= M_MAX; m++)
			for (int n = 1; n <= PANEL; n += m % 5 ? 5 : 1) {
				int option = (int)((uint32_t)(noise() * 1000.0f + 1000.0f) % 64);
				struct product g = {
					.m = m, .n = n, .k = (m * 7 + n * 3) % K_MAX, .a = A, .a_row = ROW, .a_col = 1, .b = B, .b_row = ROW,
					.c = C, .c_row = ROW,
				};

				g.start = option & 1 ? S : NULL;
				g.start_row = ROW;
				g.bias = option & 2 ? bias : NULL;
				g.gate = option & 4 ? G : NULL;
				g.gate_row = ROW;
				g.relu = (option & 8) != 0;
				g.round = option & 16 ? 16 : option & 32 ? 13 : 0;
				check_product(k, &g);
				g.a_row = 1;
				g.a_col = ROW;
				check_product(k, &g);
				g.pick = pick;
				check_product(k, &g);
			}
}

static void products_of_listed_rows(void **state)
{
	static const int32_t list[] = {5, 0, 17, 3, 39, 22, 8, 9, 31, 12, 2, 27, 30};

	(void)state;
	fill(A, sizeof(A) / sizeof(*A));
	fill(B, sizeof(B) / sizeof(*B));
	EACH(k)
		for (int m = 0; m <= 13; m++)
			for (int n = 1; n <= 2 * PANEL; n++) {
				struct product_rows g = {
					.m = m, .n = n, .k = (m + n) % 60, .row = list, .a = A, .a_row = ROW, .b = B, .b_row = ROW, .c = C, .c_row = ROW,
					.start = n % 2 ? S : NULL, .start_row = ROW, .bias = n % 3 ? bias : NULL,
					.gate = n % 4 ? NULL : G, .gate_row = ROW,
				};

				for (int i = 0; i < M_MAX * ROW; i++)
					C[i] = MARK;
				k->product_rows(&g);
				for (int i = 0; i < M_MAX; i++)
					for (int j = 0; j < ROW; j++) {
						double want = MARK;

						for (int r = 0; r < m && j < n; r++)
							if (list[r] == i) {
								want = (g.start ? S[i * ROW + j] : 0.0) + (g.bias ? bias[j] : 0.0);
								for (int s = 0; s < g.k; s++)
									want += (double)A[i * ROW + s] * B[s * ROW + j];
								if (g.gate && !(G[i * ROW + j] > 0.0f))
									want = 0.0;
							}
						assert_within(fabs(C[i * ROW + j] - want), 1e-5 * (1.0 + fabs(want)), k->name);
					}
			}
}

static void a_product_may_be_cut_anywhere(void **state)
{
	static float whole[M_MAX * PANEL], part[M_MAX * PANEL];

	(void)state;
	fill(A, sizeof(A) / sizeof(*A));
	fill(B, sizeof(B) / sizeof(*B));
	EACH(k) {
		struct product g = {
			.m = M_MAX, .n = PANEL, .k = K_MAX, .a = A, .a_row = ROW, .a_col = 1, .b = B, .b_row = ROW, .c = whole, .c_row = PANEL,
		};

		if (k == host_kernels_base())
			continue; /* a BLAS library makes no such promise, and the learner cuts the same way always */
		k->product(&g);
		for (int from = 0; from < M_MAX; from += 7) {
			g.a = A + from * ROW;
			g.c = part + from * PANEL;
			g.m = M_MAX - from < 7 ? M_MAX - from : 7;
			k->product(&g);
		}
		assert_memory_equal(whole, part, sizeof(whole));
	}
}

/* Packed for a few rows, a layer gives the bits of the product it is: the samples are columns there, rows here. */
static void a_few_rows_have_the_bits_of_a_product(void **state)
{
	enum { N_MAX = 3 * FEW_PANEL };
	static float w[N_MAX * K_MAX], packed[N_MAX * K_MAX], pad[N_MAX], x[K_MAX * PANEL], rows[FEW_ROWS * K_MAX];
	static float start[N_MAX * PANEL], start_rows[FEW_ROWS * N_MAX], c[N_MAX * PANEL], y[FEW_ROWS * N_MAX];

	(void)state;
	fill(w, N_MAX * K_MAX);
	fill(x, K_MAX * PANEL);
	fill(start, N_MAX * PANEL);
	EACH(k)
		for (int m = 1; m <= FEW_ROWS; m++)
			for (int n = 1; n <= N_MAX; n += 19) {
				int depth = 1 + (n * 5 + m) % K_MAX, with = n % 2, relu = n % 3 == 0, round = n % 4 == 0 ? 16 : 0;
				struct product g = {
					.m = n, .n = PANEL, .k = depth, .a = w, .a_row = K_MAX, .a_col = 1, .b = x, .b_row = PANEL, .c = c, .c_row = PANEL,
					.start = with ? start : NULL, .start_row = PANEL, .bias = pad, .relu = relu, .round = round,
				};
				struct product_few few = {
					.m = m, .n = n, .k = depth, .x = rows, .x_row = K_MAX, .w = packed, .bias = pad, .start = with ? start_rows : NULL,
					.start_row = N_MAX, .y = y, .y_row = N_MAX, .relu = relu, .round = round,
				};

				memset(packed, 0, sizeof(packed));
				memset(pad, 0, sizeof(pad));
				fill(pad, n);
				for (int j = 0; j < n; j++)
					for (int i = 0; i < depth; i++)
						packed[(j / FEW_PANEL * depth + i) * FEW_PANEL + j % FEW_PANEL] = w[j * K_MAX + i];
				for (int i = 0; i < m; i++) {
					for (int s = 0; s < depth; s++)
						rows[i * K_MAX + s] = x[s * PANEL + 5 * i]; /* wherever in the block they lie */
					for (int j = 0; j < n; j++)
						start_rows[i * N_MAX + j] = start[j * PANEL + 5 * i];
				}
				k->product_own(&g);
				k->product_few(&few);
				for (int i = 0; i < m; i++)
					for (int j = 0; j < n; j++)
						assert_memory_equal(&y[i * N_MAX + j], &c[j * PANEL + 5 * i], sizeof(float));
			}
}

/* ---------------------------------------------------------------- moving and rounding */

static void transposing(void **state)
{
	(void)state;
	fill(A, sizeof(A) / sizeof(*A));
	EACH(k)
		for (int rows = 1; rows <= 35; rows++)
			for (int cols = 1; cols <= 35; cols++) {
				for (int i = 0; i < M_MAX * ROW; i++)
					C[i] = MARK;
				k->transpose(A, ROW, rows, cols, C, ROW, 0);
				for (int j = 0; j < M_MAX; j++)
					for (int i = 0; i < ROW; i++)
						assert_true(C[j * ROW + i] == (j < cols && i < rows ? A[i * ROW + j] : MARK));
			}
}

static void rounding_to_nearest_even(void **state)
{
	static const uint32_t word[] = {
		0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x3F801000, 0x3F803000, 0x3F801001, 0x7F7FFFFF, 0x7F800000,
		0xFF800000, 0x00000001, 0x80000000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0xBF80FFFF, 0x00008000,
	};
	enum { N = sizeof(word) / sizeof(word[0]) };
	float in[N], out[N];

	(void)state;
	memcpy(in, word, sizeof(in));
	assert_true(round_bits(1.00390625f, 16) == 1.0f);      /* half way, down to even */
	assert_true(round_bits(1.01171875f, 16) == 1.015625f); /* half way, up to even */
	assert_true(bf16_to(bf16_from(1.01171875f)) == 1.015625f);
	EACH(k)
		for (int bits = 13; bits <= 16; bits += 3) {
			k->round(in, N, bits, out);
			for (int i = 0; i < N; i++) {
				float want = round_bits(in[i], bits);

				if (in[i] != in[i])
					assert_true(out[i] != out[i] && want != want && bf16_to(bf16_from(in[i])) != bf16_to(bf16_from(in[i])));
				else
					assert_memory_equal(&out[i], &want, sizeof(want));
			}
		}
}

/* ---------------------------------------------------------------- distributions */

static void softmax_and_its_parts(void **state)
{
	float y[64], p[64], m[64], top, lse;

	(void)state;
	EACH(k)
		for (int n = 1; n <= 64; n++) {
			double total = 0.0, peak = -HUGE_VAL, cross = 0.0, plogp = 0.0;

			fill(y, 64);
			fill(m, 64);
			for (int i = 0; i < n; i++) {
				y[i] = y[i] * 30.0f;
				m[i] = i % 3 ? fabsf(m[i]) : 0.0f;
				peak = y[i] > peak ? y[i] : peak;
			}
			for (int i = 0; i < n; i++)
				total += exp(y[i] - (float)peak); /* the difference in F32: its rounding is not exp's */
			lse = k->softmax(y, n, p, &top);
			assert_true(top == (float)peak);
			assert_within(fabs(lse - log(total)), 1e-6, "log of the sum");
			for (int i = 0; i < n; i++) {
				assert_within(fabs(p[i] / (exp(y[i] - (float)peak) / total) - 1.0), 1e-6, "softmax");
				cross += m[i] * (y[i] - peak - log(total));
				plogp += m[i] > 0.0f ? m[i] * log(m[i]) : 0.0;
			}
			assert_within(fabs(k->cross(m, y, top + lse, n) - cross), 2e-6 * fabs(cross) + 1e-6, "cross");
			assert_within(fabs(k->entropy(m, n) - plogp), 1e-6 * (1.0 + fabs(plogp)), "entropy");
		}
}

static void softmax_of_extremes(void **state)
{
	(void)state;
	EACH(k) {
		float y[5] = {3e38f, -3e38f, 0.0f, 3e38f, 1.0f}, p[5], top, lse, one[3] = {0.0f, 1.0f, 0.0f}, broken[3] = {0.0f, NAN, 1.0f};

		lse = k->softmax(y, 5, p, &top);
		assert_true(p[0] == 0.5f && p[3] == 0.5f && p[1] == 0.0f && p[2] == 0.0f && p[4] == 0.0f);
		assert_true(isfinite(k->cross(one, y, top + lse, 3)));
		assert_true(k->entropy(one, 3) == 0.0f);
		k->softmax(broken, 3, p, &top);
		assert_true(p[0] != p[0] && p[1] != p[1] && p[2] != p[2]);
	}
}

static void powers(void **state)
{
	float x[1000], in[1000];

	(void)state;
	EACH(k)
		for (int round = 0; round < 40; round++) {
			float exponent = noise();

			for (int i = 0; i < 1000; i++)
				in[i] = x[i] = expf(noise() * 16.0f);
			k->power(x, 1000, exponent);
			for (int i = 0; i < 1000; i++)
				assert_within(fabs(x[i] / pow(in[i], exponent) - 1.0), 5e-6, "power");
		}
}

static void expectations(void **state)
{
	float logit[51 * PANEL], q[PANEL];

	(void)state;
	fill(logit, 51 * PANEL);
	for (int i = 0; i < 51 * PANEL; i++)
		logit[i] *= 20.0f;
	EACH(k) {
		k->expectation(logit, PANEL, 51, 0.0f, 0.4f, q);
		for (int j = 0; j < PANEL; j++) {
			double mass = 0.0, moment = 0.0, peak = -HUGE_VAL;

			for (int i = 0; i < 51; i++)
				peak = logit[i * PANEL + j] > peak ? logit[i * PANEL + j] : peak;
			for (int i = 0; i < 51; i++) {
				mass += exp(logit[i * PANEL + j] - peak);
				moment += exp(logit[i * PANEL + j] - peak) * (-10.0 + 0.4 * i);
			}
			assert_within(fabs(q[j] - moment / mass), 1e-5, "expectation");
		}
	}
}

static void sums(void **state)
{
	float x[517];

	(void)state;
	fill(x, 517);
	EACH(k)
		for (int n = 1; n <= 517; n += 3) {
			double sum = 0.0, squares = 0.0;

			for (int i = 0; i < n; i++) {
				sum += x[i];
				squares += (double)x[i] * x[i];
			}
			assert_within(fabs(k->sum(x, n) - sum), 1e-5, "sum");
			assert_within(fabs(k->sum_squares(x, n) / squares - 1.0), 1e-12, "sum of squares");
			assert_within(fabs(k->dot(x, x, n) / squares - 1.0), 1e-5, "dot");
		}
	x[3] = 3e38f; /* a square beyond F32 is still a number */
	EACH(k)
		assert_true(isfinite(k->sum_squares(x, 517)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(products_of_every_shape), cmocka_unit_test(products_of_listed_rows),
		cmocka_unit_test(a_product_may_be_cut_anywhere), cmocka_unit_test(a_few_rows_have_the_bits_of_a_product),
		cmocka_unit_test(transposing), cmocka_unit_test(rounding_to_nearest_even), cmocka_unit_test(softmax_and_its_parts),
		cmocka_unit_test(softmax_of_extremes), cmocka_unit_test(powers), cmocka_unit_test(expectations), cmocka_unit_test(sums),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
