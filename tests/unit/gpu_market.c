/* Features against the golden file, no look-ahead, appended bars, odd markets, the data set file, auto reward scale. */
#include <sys/stat.h>
#include "tests/unit/bars.h"

#define F FH_MARKET_FEATURES

static struct market *build(const struct bars *b, double tick)
{
	struct fh_status st = FH_STATUS_INIT;
	struct market *m = NULL;

	if (market_build(&b->view, tick, &m, &st))
		fail_msg("%s", st.text);
	return m;
}

static void features_match_the_reference(void **state)
{
	struct st_file *f = golden_open("features");
	struct bars b;
	int64_t n;
	const double *ref = golden_f64(f, "features", &n), *ref_sigma = golden_f64(f, "sigma", NULL);
	double *out = malloc((size_t)n * 8), *sigma = malloc((size_t)n / F * 8);
	double tick = golden_real(f, "tick");
	struct market *m;
	char what[32];

	(void)state;
	bars_golden(&b, f, "");
	assert_int_equal(n, b.view.bars * F);
	market_features64(&b.view, tick, out, sigma);
	for (int c = 0; c < F; c++) {
		snprintf(what, sizeof(what), "feature %d", c);
		assert_within(column_error(out, ref, n / F, F, c), 1e-9, what); /* 1e-5 is asked for; F64 gives far less */
	}
	assert_within(column_error(sigma, ref_sigma, n / F, 1, 0), 1e-12, "sigma");
	m = build(&b, tick);
	for (int64_t i = 0; i < n; i++)
		assert_true(m->feature[i] == (float)out[i]);
	for (int64_t t = 0; t < n / F; t++)
		assert_true(m->sigma[t] == (float)sigma[t]);
	market_unref(m);
	free(out);
	free(sigma);
	bars_free(&b);
	st_close(f);
}

static void shuffled_future_changes_no_past_row(void **state)
{
	static const int64_t cut[] = {1, 2, 143, 144, 145, 255, 256, 257, 700, 1500};
	struct st_file *f = golden_open("features");
	struct bars b, other;
	struct market *m, *changed;

	(void)state;
	bars_golden(&b, f, "");
	m = build(&b, golden_real(f, "tick"));
	for (size_t k = 0; k < sizeof(cut) / sizeof(cut[0]); k++) {
		size_t rows = (size_t)cut[k];

		bars_copy(&other, &b);
		bars_shuffle_after(&other, cut[k], 7 + k);
		changed = build(&other, golden_real(f, "tick"));
		assert_memory_equal(m->feature, changed->feature, rows * F * sizeof(float));
		assert_memory_equal(m->sigma, changed->sigma, rows * sizeof(float));
		assert_memory_not_equal(m->feature, changed->feature, (size_t)b.view.bars * F * sizeof(float));
		market_unref(changed);
		bars_free(&other);
	}
	market_unref(m);
	bars_free(&b);
	st_close(f);
}

static void a_prefix_gives_the_bits_of_the_whole(void **state)
{
	static const int64_t length[] = {2, 3, 100, 144, 145, 255, 256, 257, 511, 512, 513, 1999};
	struct st_file *f = golden_open("features");
	struct bars b;
	struct market *whole, *part;

	(void)state;
	bars_golden(&b, f, "");
	whole = build(&b, golden_real(f, "tick"));
	for (size_t k = 0; k < sizeof(length) / sizeof(length[0]); k++) {
		b.view.bars = length[k];
		part = build(&b, golden_real(f, "tick"));
		assert_memory_equal(whole->feature, part->feature, (size_t)length[k] * F * sizeof(float));
		assert_memory_equal(whole->sigma, part->sigma, (size_t)length[k] * sizeof(float));
		assert_string_not_equal(whole->hash, part->hash);
		market_unref(part);
	}
	market_unref(whole);
	bars_free(&b);
	st_close(f);
}

/* Bars that come one after the other, in pieces of any length, give the market that one call gives. */
static void pieces_give_the_bits_of_the_whole(void **state)
{
	static const int64_t roll[] = {1, 144, 700};
	struct fh_status st = FH_STATUS_INIT;
	struct st_file *f = golden_open("features");
	struct market *whole = NULL, *m = NULL;
	double tick = golden_real(f, "tick");
	struct bars b;

	(void)state;
	bars_golden(&b, f, "");
	assert_int_equal(market_build_rolls(&b.view, tick, roll, 3, &whole, &st), 0);
	for (uint32_t longest = 1; longest < 700; longest = longest * 2 + 1) {
		int64_t have = 0;

		assert_int_equal(market_new(b.view.bars, tick, roll, 3, &m, &st), 0);
		for (uint32_t i = 0; have < b.view.bars && i < 1500; i++) {
			int64_t n = 1 + philox_below(philox_word(longest, PHILOX_SYNTH, 0, i), longest), left = b.view.bars - have;
			size_t bytes = (size_t)(n = n < left ? n : left) * 8;

			memcpy(m->ts + have, b.ts + have, bytes);
			memcpy(m->open + have, b.open + have, bytes);
			memcpy(m->high + have, b.high + have, bytes);
			memcpy(m->low + have, b.low + have, bytes);
			memcpy(m->close + have, b.close + have, bytes);
			memcpy(m->volume + have, b.volume + have, bytes);
			have += n;
			assert_int_equal(market_grow(m, have, &st), 0);
			assert_memory_equal(m->sigma, whole->sigma, (size_t)have * sizeof(float));
		}
		memcpy(m->ts, b.ts, (size_t)b.view.bars * 8); /* what has not come in 1,500 pieces comes now */
		memcpy(m->open, b.open, (size_t)b.view.bars * 8);
		memcpy(m->high, b.high, (size_t)b.view.bars * 8);
		memcpy(m->low, b.low, (size_t)b.view.bars * 8);
		memcpy(m->close, b.close, (size_t)b.view.bars * 8);
		memcpy(m->volume, b.volume, (size_t)b.view.bars * 8);
		assert_int_equal(market_finish(m, &st), 0);
		assert_string_equal(m->hash, whole->hash);
		assert_memory_equal(m->feature, whole->feature, (size_t)b.view.bars * F * sizeof(float));
		assert_memory_equal(m->sigma, whole->sigma, (size_t)b.view.bars * sizeof(float));
		market_unref(m);
	}
	market_unref(whole);
	bars_free(&b);
	st_close(f);
}

static void every_processor_gives_the_same_bits(void **state)
{
	static const char *const kind[] = {"base", "avx2", "avx512"};
	const char *was = getenv("FH_HOST_KERNELS");
	char *keep = was ? strdup(was) : NULL;
	struct st_file *f = golden_open("features");
	struct market *m[3];
	struct bars b;

	(void)state;
	bars_golden(&b, f, "");
	for (int64_t t = 900; t < 1100; t++) /* prices below zero, too */
		b.open[t] -= 6000, b.high[t] -= 6000, b.low[t] -= 6000, b.close[t] -= 6000;
	for (int k = 0; k < 3; k++) {
		setenv("FH_HOST_KERNELS", kind[k], 1);
		m[k] = build(&b, golden_real(f, "tick"));
		assert_memory_equal(m[k]->feature, m[0]->feature, (size_t)b.view.bars * F * sizeof(float));
		assert_memory_equal(m[k]->sigma, m[0]->sigma, (size_t)b.view.bars * sizeof(float));
	}
	if (keep)
		setenv("FH_HOST_KERNELS", keep, 1);
	else
		unsetenv("FH_HOST_KERNELS");
	free(keep);
	for (int k = 0; k < 3; k++)
		market_unref(m[k]);
	bars_free(&b);
	st_close(f);
}

/* 28, 29, 31, 32 of one bar straight from their definition. */
static void window_shape(const struct bars *b, const long double *r, int64_t t, long double out[4])
{
	for (int k = 0; k < 2; k++) {
		int64_t n = k ? 21 : 144, from = t + 1 < n ? 0 : t + 1 - n;
		long double mean = 0, square = 0, std;

		n = t + 1 - from;
		for (int64_t i = from; i <= t; i++)
			mean += logl(1.0L + (long double)b->volume[i]) / n;
		for (int64_t i = from; i <= t; i++)
			square += powl(logl(1.0L + (long double)b->volume[i]) - mean, 2);
		std = sqrtl(square / n);
		out[k] = std >= 1e-6L ? (logl(1.0L + (long double)b->volume[t]) - mean) / std : 0;
	}
	int64_t from = t < 144 ? 1 : t - 143, n = t + 1 - from;
	long double mean = 0, square = 0, cube = 0, lag = 0, std;

	for (int64_t i = from; i <= t; i++)
		mean += r[i] / n;
	for (int64_t i = from; i <= t; i++) {
		square += (r[i] - mean) * (r[i] - mean);
		cube += (r[i] - mean) * (r[i] - mean) * (r[i] - mean);
		lag += i > from ? (r[i] - mean) * (r[i - 1] - mean) : 0;
	}
	std = n > 0 ? sqrtl(square / n) : 0;
	out[2] = n >= 3 && std >= 1e-8L ? lag / square : 0;
	out[3] = n >= 3 && std >= 1e-8L ? cube / n / (std * std * std) : 0;
	for (int k = 0; k < 4; k++)
		out[k] = out[k] > 5 ? 5 : out[k] < -5 ? -5 : out[k];
}

/* Windows that are made of blocks: right where returns of very different size lie side by side, where nothing moves, far from zero. */
static void windows_hold_on_hostile_markets(void **state)
{
	static const int column[4] = {28, 29, 31, 32};
	struct bars b;
	double *out, *sigma;
	long double *r, want[4];

	(void)state;
	bars_alloc(&b, 3000);
	out = malloc(3000 * F * sizeof(double));
	sigma = malloc(3000 * sizeof(double));
	r = calloc(3000, sizeof(*r));
	assert_true(out && sigma && r);
	for (int kind = 0; kind < 4; kind++) {
		for (int64_t t = 0; t < 3000; t++) {
			struct philox_words w = philox_block(9, PHILOX_SYNTH, (uint64_t)kind, (uint64_t)t);
			double noise = (double)(w.w[0] % 2001) / 1000.0 - 1.0, c = 100.0 + noise;

			if (kind == 0) /* a thousandfold price now and then, for a bar or for long */
				c *= t % 777 < 2 || (t > 1500 && t < 1900) ? 1000.0 : 1.0;
			if (kind == 1) /* nothing moves for long */
				c = t / 400 % 2 ? 100.0 : c;
			if (kind == 2) /* steady growth, hardly any noise */
				c = 100.0 * exp(0.01 * (double)(t % 700)) * (1.0 + 1e-6 * noise);
			if (kind == 3) /* around zero: differences over a tick */
				c -= 100.0;
			b.ts[t] = t * 60000000000;
			b.close[t] = b.open[t] = c;
			b.high[t] = c + 1.0;
			b.low[t] = c - 1.0;
			b.volume[t] = w.w[1] % 7 ? (double)(w.w[1] % 1000) : 1e15;
			r[t] = !t ? 0 : b.close[t - 1] > 0 && c > 0 ? logl((long double)c / (long double)b.close[t - 1]) :
			       ((long double)c - (long double)b.close[t - 1]) / fmaxl(fabsl((long double)b.close[t - 1]), 0.25L);
		}
		market_features64(&b.view, 0.25, out, sigma);
		for (int64_t t = 0; t < 3000; t++) {
			window_shape(&b, r, t, want);
			for (int k = 0; k < 4; k++)
				if (!(fabsl((long double)out[t * F + column[k]] - want[k]) < 1e-8L))
					fail_msg("market %d, bar %lld, feature %d is %.12g and not %.12Lg", kind, (long long)t, column[k],
						 out[t * F + column[k]], want[k]);
		}
	}
	free(out);
	free(sigma);
	free(r);
	bars_free(&b);
}

static void odd_markets_give_finite_features(void **state)
{
	static const char *const name[] = {"negative_price", "zero_price", "zero_volume", "flat_fee", "mdd_first_bar"};

	(void)state;
	for (size_t k = 0; k < sizeof(name) / sizeof(name[0]); k++) {
		struct bars b;
		struct market *m;

		bars_csv(&b, name[k]);
		m = build(&b, 0.01);
		for (int64_t i = 0; i < m->bars * F; i++)
			if (!(fabsf(m->feature[i]) <= 5.0f))
				fail_msg("%s: bar %lld feature %d is %g", name[k], (long long)(i / F), (int)(i % F), (double)m->feature[i]);
		for (int64_t t = 0; t < m->bars; t++)
			assert_true(m->sigma[t] >= 0.9e-8f && isfinite(m->sigma[t]));
		market_unref(m);
		bars_free(&b);
	}
}

static void extreme_numbers_give_finite_features(void **state)
{
	static const double price[] = {MARKET_PRICE_MAX, -MARKET_PRICE_MAX, 1e-300, -1e-300, 0.0, 5e-324, 1.0, -0.0};
	struct bars b;
	struct market *m;

	(void)state;
	bars_alloc(&b, 600);
	for (uint32_t t = 0; t < 600; t++) {
		struct philox_words w = philox_block(3, PHILOX_SYNTH, 1, t);

		b.ts[t] = (int64_t)t * 1000 - 300000;
		b.open[t] = price[w.w[0] % 8];
		b.high[t] = price[w.w[1] % 8];
		b.low[t] = price[w.w[2] % 8];
		b.close[t] = price[w.w[3] % 8];
		b.volume[t] = w.w[0] % 3 ? MARKET_VOLUME_MAX : 0.0;
	}
	m = build(&b, MARKET_TICK_MIN);
	for (int64_t i = 0; i < m->bars * F; i++)
		if (!(fabsf(m->feature[i]) <= 5.0f))
			fail_msg("bar %lld feature %d is %g", (long long)(i / F), (int)(i % F), (double)m->feature[i]);
	market_unref(m);
	bars_free(&b);
}

static void equal_pasts_of_two_files_are_equal(void **state)
{
	struct bars a, b;
	struct market *x, *y;

	(void)state;
	bars_csv(&a, "future_a");
	bars_csv(&b, "future_b");
	x = build(&a, 0.25);
	y = build(&b, 0.25);
	assert_int_equal(x->bars, 80);
	assert_memory_equal(x->feature, y->feature, 60 * F * sizeof(float));
	assert_memory_equal(x->sigma, y->sigma, 60 * sizeof(float));
	assert_memory_not_equal(x->feature + 60 * F, y->feature + 60 * F, F * sizeof(float));
	market_unref(x);
	market_unref(y);
	bars_free(&a);
	bars_free(&b);
}

/* ---------------------------------------------------------------- refusals and the file */

static void bad_bars_are_refused_by_name(void **state)
{
	struct fh_status st;
	struct bars b;
	struct market *m = NULL;

	(void)state;
	bars_csv(&b, "zero_volume");
	for (int k = 0; k < 10; k++) {
		struct bars x;
		const char *field[] = {"bars", "ts", "ts", "ts", "ts", "open", "high", "low", "close", "volume"};

		st = (struct fh_status)FH_STATUS_INIT;
		bars_copy(&x, &b);
		switch (k) {
		case 0: x.view.bars = 1; break;
		case 1: x.ts[2] = x.ts[1]; break;
		case 2: x.ts[2] = x.ts[1] - 1; break;
		case 3: x.ts[0] = -MARKET_TS_MAX; break;
		case 4: x.ts[x.view.bars - 1] = MARKET_TS_MAX; break;
		case 5: x.open[3] = NAN; break;
		case 6: x.high[3] = INFINITY; break;
		case 7: x.low[3] = -INFINITY; break;
		case 8: x.close[3] = 2 * MARKET_PRICE_MAX; break;
		default: x.volume[3] = -1.0; break;
		}
		assert_int_equal(market_build(&x.view, 0.01, &m, &st), FH_INVALID);
		assert_string_equal(st.field, field[k]);
		assert_null(m);
		bars_free(&x);
	}
	assert_int_equal(market_build(&b.view, 0.0, &m, &st), FH_INVALID);
	assert_int_equal(market_build(&b.view, NAN, &m, &st), FH_INVALID);
	bars_free(&b);
}

static char *temporary(const char *name)
{
	static char path[256];
	const char *dir = getenv("TMPDIR");

	snprintf(path, sizeof(path), "%s/fh-market-%ld-%s", dir ? dir : "/tmp", (long)getpid(), name);
	return path;
}

static void a_saved_market_loads_the_same(void **state)
{
	static const char *const meta[] = {"name", "golden \"quoted\" \xC3\xA4", NULL};
	struct fh_status st = FH_STATUS_INIT;
	struct st_file *f = golden_open("env"), *file;
	struct bars b;
	struct market *m, *back = NULL;
	char *path = temporary("save");

	(void)state;
	bars_golden(&b, f, "");
	m = build(&b, 0.03125);
	assert_int_equal(market_save(m, path, meta, &st), 0);
	assert_int_equal(market_load(path, 0.03125, &back, &st), 0);
	assert_int_equal(back->bars, m->bars);
	assert_string_equal(back->hash, m->hash);
	assert_memory_equal(back->ts, m->ts, (size_t)m->bars * 8);
	assert_memory_equal(back->volume, m->volume, (size_t)m->bars * 8);
	assert_memory_equal(back->feature, m->feature, (size_t)m->bars * F * 4);
	assert_memory_equal(back->sigma, m->sigma, (size_t)m->bars * 4);
	assert_int_equal(st_open(path, &file, &st), 0);
	assert_string_equal(st_meta(file, "name"), meta[1]);
	st_close(file);
	market_unref(back);
	market_unref(m);
	unlink(path);
	bars_free(&b);
	st_close(f);
}

static void another_tick_recomputes_where_it_matters(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct bars b;
	struct market *m, *want, *back = NULL;
	char *path = temporary("tick");

	(void)state;
	bars_csv(&b, "negative_price");
	m = build(&b, 0.01);
	want = build(&b, 25.0);
	assert_memory_not_equal(m->feature, want->feature, (size_t)m->bars * F * 4);
	assert_int_equal(market_save(m, path, NULL, &st), 0);
	assert_int_equal(market_load(path, 25.0, &back, &st), 0);
	assert_memory_equal(back->feature, want->feature, (size_t)m->bars * F * 4);
	market_unref(back);
	market_unref(want);
	market_unref(m);
	unlink(path);
	bars_free(&b);
}

/* Every byte of the bars is covered by the hash. */
static void a_changed_file_is_refused(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct bars b;
	struct market *m, *back = NULL;
	char *path = temporary("changed");
	FILE *f;
	struct stat info;
	const double bad[3] = {NAN, NAN, 7.0}; /* the last one is as good a volume as any */

	(void)state;
	bars_csv(&b, "zero_volume");
	m = build(&b, 0.01);
	for (int k = 0; k < 3; k++) {
		assert_int_equal(market_save(m, path, NULL, &st), 0);
		assert_int_equal(stat(path, &info), 0);
		f = fopen(path, "r+");
		assert_non_null(f);
		fseek(f, info.st_size - (k == 0 ? 48 * m->bars : k == 1 ? 16 * m->bars : 8), SEEK_SET); /* the first time, a price, the last volume */
		fwrite(&bad[k], sizeof(bad[k]), 1, f);
		fclose(f);
		assert_int_equal(market_load(path, 0.01, &back, &st), FH_CORRUPT);
		assert_non_null(strstr(st.text, path));
		assert_null(back);
	}
	assert_int_equal(truncate(path, info.st_size - 1), 0);
	assert_int_equal(market_load(path, 0.01, &back, &st), FH_CORRUPT);
	unlink(path);
	assert_int_equal(market_load(path, 0.01, &back, &st), FH_NOT_FOUND);
	market_unref(m);
	bars_free(&b);
}

/* ---------------------------------------------------------------- reward scale */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void auto_reward_scale_uses_the_median_move(void **state)
{
	struct st_file *f = golden_open("env");
	struct fh_spec spec = {.env = {.tick = 0.03125, .multiplier = 50.0, .max_position = 4.0, .initial_cash = 4000.0}};
	struct bars b;
	struct market *m;

	(void)state;
	bars_golden(&b, f, "");
	m = build(&b, 0.03125);
	for (int64_t n = 1; n < 1200; n = n * 3 + 1) {
		struct fh_split s = {200, 200 + n};
		double *x = malloc((size_t)n * 8), median, scale;

		for (int64_t i = 0; i < n; i++) {
			double c = fabs(m->close[200 + i]);

			x[i] = m->sigma[200 + i] * (c > 0.03125 ? c : 0.03125);
		}
		qsort(x, (size_t)n, 8, by_value);
		median = 0.5 * (x[(n - 1) / 2] + x[n / 2]);
		scale = market_auto_reward_scale(m, s, &spec);
		assert_true(scale == 4000.0 / (4.0 * 50.0 * median));
		free(x);
	}
	market_unref(m);
	bars_free(&b);
	st_close(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(features_match_the_reference), cmocka_unit_test(shuffled_future_changes_no_past_row),
		cmocka_unit_test(a_prefix_gives_the_bits_of_the_whole),
		cmocka_unit_test(pieces_give_the_bits_of_the_whole), cmocka_unit_test(every_processor_gives_the_same_bits),
		cmocka_unit_test(windows_hold_on_hostile_markets), cmocka_unit_test(odd_markets_give_finite_features),
		cmocka_unit_test(extreme_numbers_give_finite_features), cmocka_unit_test(equal_pasts_of_two_files_are_equal),
		cmocka_unit_test(bad_bars_are_refused_by_name), cmocka_unit_test(a_saved_market_loads_the_same),
		cmocka_unit_test(another_tick_recomputes_where_it_matters), cmocka_unit_test(a_changed_file_is_refused),
		cmocka_unit_test(auto_reward_scale_uses_the_median_move),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
