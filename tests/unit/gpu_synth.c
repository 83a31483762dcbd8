/* Synthetic markets: the structure they promise, bars that give no order an advantage, the same bits everywhere. */
#include "gpu/synth.h"
#include "tests/unit/bars.h"

#define N 200000

static void make(struct bars *b, enum synth_kind kind, int64_t n, uint64_t seed)
{
	struct fh_status st = FH_STATUS_INIT;
	struct synth s;

	bars_alloc(b, n);
	synth_init(&s, kind, n, seed);
	if (synth_bars(&s, b->ts, b->open, b->high, b->low, b->close, b->volume, &st))
		fail_msg("%s", st.text);
}

struct moments { double mean, std, lag, square_lag; };

static void measure(const struct bars *b, struct moments *m)
{
	int64_t n = b->view.bars - 1;
	double *r = malloc(sizeof(double) * (size_t)n), v = 0.0, lag = 0.0, s = 0.0, s2 = 0.0, sl = 0.0;

	memset(m, 0, sizeof(*m));
	for (int64_t i = 0; i < n; i++) {
		r[i] = log(b->close[i + 1] / b->close[i]);
		m->mean += r[i] / (double)n;
	}
	for (int64_t i = 0; i < n; i++) {
		double y = r[i] - m->mean;

		v += y * y;
		lag += i ? y * (r[i - 1] - m->mean) : 0.0;
	}
	for (int64_t i = 0; i < n; i++)
		s += r[i] * r[i] / (double)n;
	for (int64_t i = 0; i < n; i++) {
		double y = r[i] * r[i] - s;

		s2 += y * y;
		sl += i ? y * (r[i - 1] * r[i - 1] - s) : 0.0;
	}
	m->std = sqrt(v / (double)n);
	m->lag = lag / v;
	m->square_lag = sl / s2;
	free(r);
}

static void kinds_have_their_structure(void **state)
{
	struct moments m[4];

	(void)state;
	for (enum synth_kind k = SYNTH_MOMENTUM; k <= SYNTH_WALK; k++) {
		struct bars b;

		make(&b, k, N, 11);
		measure(&b, &m[k]);
		assert_within(fabs(m[k].std / 1e-3 - 1.0), k == SYNTH_REGIME ? 0.05 : 0.01, "standard deviation of a bar's return");
		assert_within(fabs(m[k].mean), 4e-3 / sqrt(N) * 3.0, "drift");
		bars_free(&b);
	}
	assert_within(fabs(m[SYNTH_MOMENTUM].lag - 0.3), 0.01, "momentum: lag-1 autocorrelation");
	assert_within(fabs(m[SYNTH_WALK].lag), 0.01, "walk: lag-1 autocorrelation");
	assert_within(fabs(m[SYNTH_WALK].square_lag), 0.01, "walk: no clusters of volatility");
	assert_true(m[SYNTH_REGIME].square_lag > 0.1);
}

static void bars_are_consistent(void **state)
{
	(void)state;
	for (enum synth_kind k = SYNTH_MOMENTUM; k <= SYNTH_WALK; k++) {
		struct bars b;

		make(&b, k, 20000, 4);
		assert_true(b.open[0] == 100.0);
		assert_true(b.ts[0] == SYNTH_FIRST_TS);
		for (int64_t t = 0; t < 20000; t++) {
			if (t) {
				assert_true(b.open[t] == b.close[t - 1]);
				assert_true(b.ts[t] - b.ts[t - 1] == SYNTH_BAR_NS_DEFAULT);
			}
			assert_true(b.low[t] > 0.0 && b.low[t] <= fmin(b.open[t], b.close[t]));
			assert_true(b.high[t] >= fmax(b.open[t], b.close[t]) && b.high[t] < b.low[t] * 1.02);
			assert_true(b.volume[t] >= 1.0 && b.volume[t] == floor(b.volume[t]));
		}
		bars_free(&b);
	}
}

/* On a martingale every rule for one bar earns nothing on average, whatever its stop, target or limit. */
static void no_order_gains_from_the_shape_of_a_bar(void **state)
{
	static const double distance[] = {0.2, 0.5, 1.0, 1.5}; /* standard deviations from the open */
	struct bars b;

	(void)state;
	make(&b, SYNTH_WALK, N, 21);
	for (size_t d = 0; d < sizeof(distance) / sizeof(distance[0]); d++) {
		double sum[4] = {0}, square[4] = {0};

		for (int64_t t = 0; t < N; t++) {
			double down = b.open[t] * (1.0 - distance[d] * 1e-3), up = b.open[t] * (1.0 + distance[d] * 1e-3);
			double gain[4] = {
				(b.low[t] <= down ? down : b.close[t]) - b.open[t],  /* long with a stop */
				(b.high[t] >= up ? up : b.close[t]) - b.open[t],     /* long with a profit barrier */
				b.low[t] < down ? b.close[t] - down : 0.0,           /* buying at a limit below */
				b.high[t] > up ? up - b.close[t] : 0.0,              /* selling at a limit above */
			};

			for (int k = 0; k < 4; k++) {
				sum[k] += gain[k];
				square[k] += gain[k] * gain[k];
			}
		}
		for (int k = 0; k < 4; k++)
			assert_within(fabs(sum[k]) / sqrt(square[k]), 4.0, "z score of a rule on a martingale");
	}
	bars_free(&b);
}

static void bits_depend_on_the_parameters_alone(void **state)
{
	/* fixed when the generator was written: no library, compiler or processor may change them */
	static const char *const hash[4] = {
		"",
		"952309126528a1500e3179217d619ea7a28388f3c12621d38432dba1bec9303f",
		"54c65381dcc4d247c5bb0699cf9fc32d99c7f7427d5430053b4b40bdc415c86a",
		"4f866e14c0304b66de0af1f470e47c1b91b0752070edc39cd177468b5593abaf",
	};

	(void)state;
	for (enum synth_kind k = SYNTH_MOMENTUM; k <= SYNTH_WALK; k++) {
		struct fh_status st = FH_STATUS_INIT;
		struct market *m = NULL, *other = NULL;
		struct bars b, c;

		make(&b, k, 20000, 1);
		make(&c, k, 20000, 2);
		assert_int_equal(market_build(&b.view, 0.01, &m, &st), 0);
		assert_int_equal(market_build(&c.view, 0.01, &other, &st), 0);
		assert_string_equal(m->hash, hash[k]);
		assert_string_not_equal(m->hash, other->hash);
		market_unref(m);
		market_unref(other);
		bars_free(&b);
		make(&b, k, 500, 2); /* a shorter one is the beginning of a longer one */
		assert_memory_equal(b.close, c.close, 500 * sizeof(double));
		assert_memory_equal(b.volume, c.volume, 500 * sizeof(double));
		bars_free(&b);
		bars_free(&c);
	}
}

static void bad_parameters_are_refused_by_name(void **state)
{
	struct bars b;

	(void)state;
	bars_alloc(&b, 1000);
	for (int k = 0; k < 10; k++) {
		static const char *const field[] = {"kind", "bars", "phi", "phi", "sigma", "sigma", "start", "bar_ns", "bar_ns", "sigma"};
		struct fh_status st = FH_STATUS_INIT;
		struct synth s;

		synth_init(&s, SYNTH_MOMENTUM, 1000, 1);
		switch (k) {
		case 0: s.kind = 0; break;
		case 1: s.bars = 1; break;
		case 2: s.phi = 1.0; break;
		case 3: s.phi = NAN; break;
		case 4: s.sigma = 0.0; break;
		case 5: s.sigma = 0.5; break;
		case 6: s.start = -1.0; break;
		case 7: s.bar_ns = 0; break;
		case 8: s.bar_ns = INT64_MAX / 100; break;
		default: s.sigma = 0.2; s.start = 1e9; s.phi = 0.9; break; /* leaves the range of prices */
		}
		assert_int_equal(synth_bars(&s, b.ts, b.open, b.high, b.low, b.close, b.volume, &st), FH_INVALID);
		assert_string_equal(st.field, field[k]);
	}
	assert_int_equal(synth_kind_find("momentum"), SYNTH_MOMENTUM);
	assert_int_equal(synth_kind_find("walk"), SYNTH_WALK);
	assert_int_equal(synth_kind_find("Walk"), 0);
	assert_string_equal(synth_kind_name(SYNTH_REGIME), "regime");
	bars_free(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kinds_have_their_structure), cmocka_unit_test(bars_are_consistent),
		cmocka_unit_test(no_order_gains_from_the_shape_of_a_bar), cmocka_unit_test(bits_depend_on_the_parameters_alone),
		cmocka_unit_test(bad_parameters_are_refused_by_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
