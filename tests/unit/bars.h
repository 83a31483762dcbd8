/* Shared by the C tests of market and environment: bars from a golden file, from a small CSV, by permutation. */
#ifndef FH_TESTS_BARS_H
#define FH_TESTS_BARS_H

#include "gpu/market.h"
#include "gpu/philox.h"
#include "tests/unit/golden.h"

struct bars { /* owned; view is what market.h wants */
	struct market_bars view;
	int64_t *ts;
	double *open, *high, *low, *close, *volume;
};

GOLDEN_UNUSED static void bars_alloc(struct bars *b, int64_t n)
{
	size_t bytes = (size_t)n * 8;

	b->ts = malloc(bytes);
	b->open = malloc(bytes);
	b->high = malloc(bytes);
	b->low = malloc(bytes);
	b->close = malloc(bytes);
	b->volume = malloc(bytes);
	assert_true(b->ts && b->open && b->high && b->low && b->close && b->volume);
	b->view = (struct market_bars){n, b->ts, b->open, b->high, b->low, b->close, b->volume};
}

GOLDEN_UNUSED static void bars_free(struct bars *b)
{
	free(b->ts);
	free(b->open);
	free(b->high);
	free(b->low);
	free(b->close);
	free(b->volume);
}

GOLDEN_UNUSED static void bars_copy(struct bars *to, const struct bars *from)
{
	size_t bytes = (size_t)from->view.bars * 8;

	bars_alloc(to, from->view.bars);
	memcpy(to->ts, from->ts, bytes);
	memcpy(to->open, from->open, bytes);
	memcpy(to->high, from->high, bytes);
	memcpy(to->low, from->low, bytes);
	memcpy(to->close, from->close, bytes);
	memcpy(to->volume, from->volume, bytes);
}

/* Tensors {prefix}ts, {prefix}open, … of a golden file. */
GOLDEN_UNUSED static void bars_golden(struct bars *b, const struct st_file *f, const char *prefix)
{
	static const char *const name[5] = {"open", "high", "low", "close", "volume"};
	double **to[5] = {&b->open, &b->high, &b->low, &b->close, &b->volume};
	char full[64];
	int64_t n;
	const int64_t *ts;

	snprintf(full, sizeof(full), "%sts", prefix);
	ts = golden_i64(f, full, &n);
	b->ts = malloc((size_t)n * 8);
	assert_non_null(b->ts);
	memcpy(b->ts, ts, (size_t)n * 8);
	for (int i = 0; i < 5; i++) {
		snprintf(full, sizeof(full), "%s%s", prefix, name[i]);
		*to[i] = golden_double(f, full, NULL);
	}
	b->view = (struct market_bars){n, b->ts, b->open, b->high, b->low, b->close, b->volume};
}

/* A row "2024-01-02[T09:00:00Z],o,h,l,c,v"; the clock in days since 1970 by counting. */
GOLDEN_UNUSED static int64_t row_time(const char *s)
{
	static const int before[12] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
	int y, mo, d, h = 0, mi = 0, sec = 0, fields = sscanf(s, "%d-%d-%dT%d:%d:%d", &y, &mo, &d, &h, &mi, &sec);
	int64_t days;

	assert_true(fields >= 3 && y >= 1970 && mo >= 1 && mo <= 12);
	days = (int64_t)(y - 1970) * 365 + (y - 1969) / 4 + before[mo - 1] + (mo > 2 && y % 4 == 0) + d - 1;
	return ((days * 24 + h) * 60 + mi) * 60000000000 + (int64_t)sec * 1000000000;
}

/* tests/cases/NAME.csv of our own plain form: a header line, then time and five numbers. */
GOLDEN_UNUSED static void bars_csv(struct bars *b, const char *name)
{
	char relative[128], line[256];
	int64_t n = 0;
	FILE *f;

	snprintf(relative, sizeof(relative), "tests/cases/%s.csv", name);
	f = fopen(source_path(relative), "r");
	assert_non_null(f);
	bars_alloc(b, 1024);
	assert_non_null(fgets(line, sizeof(line), f));
	while (fgets(line, sizeof(line), f) && n < 1024) {
		char *comma = strchr(line, ',');

		assert_non_null(comma);
		assert_int_equal(sscanf(comma, ",%lf,%lf,%lf,%lf,%lf", &b->open[n], &b->high[n], &b->low[n], &b->close[n],
					&b->volume[n]), 5);
		b->ts[n++] = row_time(line);
	}
	fclose(f);
	b->view.bars = n;
}

/* Bars first .. n - 1 in another order (their times stay in place): a future that differs. */
GOLDEN_UNUSED static void bars_shuffle_after(struct bars *b, int64_t first, uint64_t seed)
{
	double *column[5] = {b->open, b->high, b->low, b->close, b->volume};

	for (int64_t i = b->view.bars - 1; i > first; i--) {
		int64_t j = first + philox_below(philox_word(seed, PHILOX_SYNTH, 0, (uint64_t)i), (uint32_t)(i - first + 1));

		for (int c = 0; c < 5; c++) {
			double x = column[c][i];

			column[c][i] = column[c][j];
			column[c][j] = x;
		}
	}
}

#endif
