/* Pictures are well-formed XML without a number that is none, whatever the series; traces come back bit for bit. */

#include "client/chart.h"
#include "client/import/timestamp.h"
#include "tests/unit/golden.h"

/* ---- a small judge of XML: tags nest, attributes are quoted, text has no stray markup */

#define DEPTH_MAX 16

static const char *tag_end(const char *p)
{
	for (char quote = 0; *p; p++) {
		if (quote) {
			quote = *p == quote ? 0 : quote;
			assert_true(*p != '<');
		} else if (*p == '"' || *p == '\'') {
			quote = *p;
		} else if (*p == '>') {
			return p;
		}
	}
	fail_msg("a tag does not end");
	return p;
}

static void assert_entity(const char *p)
{
	static const char *const known[] = {"&amp;", "&lt;", "&gt;", "&quot;"};
	int good = 0;

	for (int i = 0; i < 4; i++)
		good |= !strncmp(p, known[i], strlen(known[i]));
	assert_true(good);
}

static void assert_xml(const struct svg *s)
{
	char open[DEPTH_MAX][16];
	int depth = 0, roots = 0;

	assert_false(s->failed);
	assert_int_equal(strlen(s->text), s->len);
	for (const char *p = s->text; *p; p++) {
		assert_true((unsigned char)*p >= ' ' || *p == '\n');
		if (*p == '&')
			assert_entity(p);
		if (*p != '<')
			continue;
		const char *end = tag_end(p + 1), *name = p[1] == '/' ? p + 2 : p + 1;
		size_t n = strcspn(name, " />?");
		assert_true(n < 16);
		if (p[1] == '?') {
			assert_true(p == s->text);
		} else if (p[1] == '/') {
			assert_true(depth-- > 0 && strlen(open[depth]) == n && !strncmp(open[depth], name, n));
		} else if (end[-1] != '/') {
			assert_true(depth < DEPTH_MAX);
			roots += depth == 0;
			snprintf(open[depth++], 16, "%.*s", (int)n, name);
		}
		p = end;
	}
	assert_int_equal(depth, 0);
	assert_int_equal(roots, 1);
}

/* No NaN or inf in any attribute. */
static void assert_numbers(const struct svg *s)
{
	for (const char *p = strstr(s->text, "</style>"); p && *p; p++)
		if (*p == '"' && p[-1] == '=') {
			const char *e = strchr(p + 1, '"');
			for (const char *q = p + 1; q < e; q++)
				assert_true(strncmp(q, "nan", 3) && strncmp(q, "inf", 3));
			p = e;
		}
}

static void check(const struct svg *s)
{
	assert_xml(s);
	assert_numbers(s);
}

/* ---- series to draw */

static void add(struct trace *t, int64_t i, double close, double equity, double fill, double exit_fill)
{
	Fh__V1__TraceRow r = FH__V1__TRACE_ROW__INIT;

	r.ts = 1704186000 * NS_PER_SECOND + i * 3600 * NS_PER_SECOND;
	r.close = close;
	r.equity = equity;
	r.fill = fill;
	r.fill_price = close;
	r.exit_fill = exit_fill;
	r.exit_price = close;
	r.position = fill;
	assert_int_equal(trace_add(t, &r, NULL), 0);
}

static struct trace wave(int64_t n, double mean, double size)
{
	struct trace t;
	Fh__V1__EvaluateReply e = FH__V1__EVALUATE_REPLY__INIT;

	memset(&t, 0, sizeof t);
	e.first_ts = 1704186000 * NS_PER_SECOND;
	e.initial_cash = mean;
	e.multiplier = 1;
	e.max_position = 2;
	assert_int_equal(trace_add_first(&t, &e, NULL), 0);
	for (int64_t i = 1; i < n; i++)
		add(&t, i, mean + size * sin((double)i / 40), mean + size * cos((double)i / 90), i % 7 == 0 ? (i % 2 ? 1 : -1) : 0,
		    i % 31 == 0 ? 1 : 0);
	return t;
}

static const struct caption caption = {"t", "", ""};

static void pictures_are_well_formed(void **arg)
{
	static const struct caption odd = {"a <b> & \"c\"", "d\x01\n'e' ü", "f & g"};
	static const double mean[] = {100, 0, -50, 1e9, 1e-5, 1e-300}, size[] = {10, 1, 60, 1, 1e-6, 0};

	for (int i = 0; i < 6; i++) {
		struct trace t = wave(500, mean[i], size[i]);
		struct svg s;
		chart_draw(&s, CHART_EQUITY | CHART_TRADES, &odd, &t, NULL);
		check(&s);
		assert_non_null(strstr(s.text, "a &lt;b&gt; &amp; &quot;c&quot;"));
		assert_non_null(strstr(s.text, ">Equity<"));
		assert_non_null(strstr(s.text, ">Drawdown<"));
		assert_non_null(strstr(s.text, "prefers-color-scheme"));
		svg_release(&s);
		trace_release(&t);
	}
}

static void series_with_holes_and_extremes(void **arg)
{
	static const double odd[] = {NAN, INFINITY, -INFINITY, 0, 1e308, -1e308, 1e-308, 5};
	struct trace t = wave(2, 100, 1);
	struct training r;
	struct svg s;

	memset(&r, 0, sizeof r);
	for (int i = 0; i < 64; i++) {
		add(&t, i + 2, odd[i % 8], odd[(i + 3) % 8], odd[(i + 5) % 8], odd[i % 3]);
		assert_int_equal(training_add(&r, i, odd[i % 8], odd[(i + 1) % 8], NULL), 0);
		assert_int_equal(training_add_validation(&r, i, odd[(i + 2) % 8], NULL), 0);
	}
	chart_draw(&s, CHART_EQUITY | CHART_TRADES | CHART_LOSS, &caption, &t, &r);
	check(&s);
	svg_release(&s);
	training_release(&r);
	memset(&r, 0, sizeof r);
	chart_draw(&s, CHART_LOSS, &caption, NULL, &r); /* nothing to show yet */
	check(&s);
	assert_non_null(strstr(s.text, "no samples yet"));
	svg_release(&s);
	trace_release(&t);
}

static void a_million_bars_make_a_small_file(void **arg)
{
	struct trace t = wave(1000000, 100, 5);
	struct svg s;

	chart_draw(&s, CHART_EQUITY | CHART_TRADES, &caption, &t, NULL);
	check(&s);
	assert_true(s.len < 400000);
	svg_release(&s);
	trace_release(&t);
}

/* The highest and lowest point of a long series survive thinning. */
static void thinning_keeps_extremes(void **arg)
{
	enum { N = 200000 };
	double *v = calloc(N, sizeof *v), lowest = INFINITY, highest = -INFINITY;
	struct panel p = {0, 0, 900, 300, 0, N - 1, 0, 0};
	struct svg s;

	v[77777] = 10;
	v[123456] = -10;
	panel_fit(&p, v, N);
	svg_begin(&s, 900, 300, "t");
	panel_line(&s, &p, NULL, v, N, "a");
	svg_end(&s);
	check(&s);
	const char *d = strstr(s.text, "d=\"M");
	assert_non_null(d);
	for (d += 3; *d && *d != '"'; d++) {
		char *e;
		if (*d != 'M' && *d != 'L')
			continue;
		strtod(d + 1, &e);
		double y = strtod(e, NULL);
		lowest = y < lowest ? y : lowest;
		highest = y > highest ? y : highest;
	}
	assert_true(lowest == 0 && highest == 300);
	svg_release(&s);
	free(v);
}

static void axis_steps_are_round(void **arg)
{
	static const struct { double lo, hi, want; } row[] = {{0, 10, 2}, {0, 1, 0.2}, {100, 101, 0.2}, {-5, 5, 2}, {0, 12, 2.5}, {0, 1e6, 2e5}, {3, 3, 1}};

	for (size_t i = 0; i < sizeof row / sizeof *row; i++)
		assert_true(fabs(nice_step(row[i].lo, row[i].hi, 5) / row[i].want - 1) < 1e-12);
}

/* Labels of a time axis over bars `minutes` apart; of each day only those of [from, to) minutes where to > 0. */
static int axis(int64_t start, int minutes, int n, int from, int to, char label[][40], double px[])
{
	int64_t *ts = calloc((size_t)n, sizeof *ts), at = start * NS_PER_SECOND;
	struct panel p = {0, 0, 872, 100, 0, n - 1, 0, 1};
	struct svg s;
	int found = 0;

	for (int i = 0; i < n; at += minutes * 60 * NS_PER_SECOND) {
		int64_t minute = at % NS_PER_DAY / NS_PER_SECOND / 60;
		if (!to || (minute >= from && minute < to))
			ts[i++] = at;
	}
	svg_begin(&s, 900, 120, "t");
	panel_x_times(&s, &p, ts, n, 1);
	svg_end(&s);
	check(&s);
	for (const char *q = s.text; (q = strstr(q, "<text class=\"tick\" x=\"")) && found < 16; q++) {
		px[found] = atof(q + 22);
		snprintf(label[found++], 40, "%.*s", (int)strcspn(strchr(q, '>') + 1, "<"), strchr(q, '>') + 1);
	}
	svg_release(&s);
	free(ts);
	return found;
}

static void time_axes_have_round_labels(void **arg)
{
	static const struct { int64_t start; int minutes, n, from, to; const char *first, *second; } row[] = {
		{1705095840, 1, 2856, 0, 0, "2024-01-13", "06:00"},    /* two days of minutes from 21:44 on */
		{1510650000, 60, 790, 0, 0, "2017-11-20", "11-27"},    /* five weeks of hours: Mondays */
		{1704186000, 1440, 900, 0, 0, "2024-04", "2024-07"},   /* days */
		{1704186000, 1440, 5000, 0, 0, "2026", "2028"},
		{1704205800, 1, 390 * 5, 870, 1260, "18:00", "2024-01-03"}, /* five sessions of 14:30 to 21:00 */
		{1704186000, 1, 20, 0, 0, "09:02", "09:04"},
	};
	char label[16][40];
	double px[16];

	for (size_t k = 0; k < sizeof row / sizeof *row; k++) {
		int n = axis(row[k].start, row[k].minutes, row[k].n, row[k].from, row[k].to, label, px);
		if (n < 3 || strcmp(label[0], row[k].first) != 0 || strcmp(label[1], row[k].second) != 0)
			fail_msg("%zu: %d labels, %s and %s", k, n, n ? label[0] : "-", n > 1 ? label[1] : "-");
		for (int i = 1; i < n; i++)
			assert_true(px[i] - px[i - 1] >= 58);
	}
}

static void saving_replaces_whole_or_not_at_all(void **arg)
{
	char dir[] = "/tmp/fh-plot-XXXXXX", path[64], missing[96];
	struct fh_status st = FH_STATUS_INIT;
	struct svg s;

	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/a.svg", dir);
	snprintf(missing, sizeof missing, "%s/no/a.svg", dir);
	svg_begin(&s, 10, 10, "t");
	svg_end(&s);
	assert_int_equal(svg_save(&s, path, &st), 0);
	assert_int_equal(svg_save(&s, path, &st), 0);
	assert_int_equal(svg_save(&s, missing, &st), FH_IO);
	assert_non_null(strstr(st.text, "no/a.svg"));
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(dir), 0); /* nothing else was left there */
	svg_release(&s);
}

/* ---- traces */

static void a_trace_comes_back_bit_for_bit(void **arg)
{
	Fh__V1__EvaluateReply e = FH__V1__EVALUATE_REPLY__INIT;
	Fh__V1__TraceRow r = FH__V1__TRACE_ROW__INIT;
	int32_t action[] = {4, 0, 2};
	char path[] = "/tmp/fh-trace-XXXXXX", first[512];
	struct fh_status st = FH_STATUS_INIT;
	struct trace t;
	int fd = mkstemp(path);
	FILE *f = fdopen(fd, "w+");

	assert_non_null(f);
	e.first_ts = 1704186000 * NS_PER_SECOND;
	e.last_ts = e.first_ts + 100 * 60 * NS_PER_SECOND;
	e.begin = 144;
	e.end = 245;
	e.initial_cash = 100000;
	e.multiplier = 50;
	e.max_position = 1.0 / 3;
	trace_csv_begin(f, &e);
	r.n_action = 3;
	r.action = action;
	for (int i = 1; i <= 100; i++) {
		r.ts = e.first_ts + i * 60 * NS_PER_SECOND;
		r.bar = 144 + i;
		r.fill = i % 3 - 1;
		r.fill_price = 1.0 / i;
		r.exit_fill = i % 5 == 0 ? -1.0 / 7 : 0;
		r.exit = i % 5;
		r.exit_price = M_PI * i;
		r.position = 0.1 * i;
		r.cash = 1e5 / 3 * i;
		r.equity = 1e5 + 1.0 / (3 * i);
		r.close = 4000 + 0.1 * i;
		trace_csv_row(f, &e, &r);
	}
	assert_int_equal(fseek(f, 0, SEEK_SET), 0);
	for (int i = 0; i < 2; i++)
		assert_non_null(fgets(first, sizeof first, f));
	assert_non_null(strstr(first, "2024-01-02T09:00:00Z,144,,,,0,0,0,none,0,0,0,100000,100000,0,,0,0,0,50,0.33333333333333331,"));
	assert_true(fabs(strtod(strrchr(first, ',') + 1, NULL) / (365.25 * 1440) - 1) < 1e-12); /* 100 steps of a minute */
	fclose(f);

	memset(&t, 0, sizeof t);
	if (trace_read(path, &t, &st))
		fail_msg("%s", st.text);
	assert_int_equal(t.n, 101);
	assert_true(isnan(t.close[0]) && t.equity[0] == 100000 && t.position[0] == 0);
	assert_true(t.multiplier == 50 && t.max_position == 1.0 / 3);
	for (int i = 1; i <= 100; i++) {
		assert_true(t.ts[i] == e.first_ts + i * 60 * NS_PER_SECOND && t.fill[i] == i % 3 - 1 && t.fill_price[i] == 1.0 / i);
		assert_true(t.exit_fill[i] == (i % 5 == 0 ? -1.0 / 7 : 0) && t.exit_price[i] == M_PI * i && t.position[i] == 0.1 * i);
		assert_true(t.equity[i] == 1e5 + 1.0 / (3 * i) && t.close[i] == 4000 + 0.1 * i);
	}
	trace_release(&t);
	unlink(path);
}

static void files_that_are_no_trace_are_refused(void **arg)
{
	static const struct { const char *text, *words; } row[] = {
		{"", "empty"}, {"time,open,high,low,close\n2024-01-02,1,2,1,2\n", "no column 'fill'"},
		{"time,fill,price,fee,exit_fill,exit_price,position,equity,close,multiplier,max_position\n2024-01-02,0,0,0,0,0,0,1,,1,1\n", "fewer than two"},
		{"time,fill,price,fee,exit_fill,exit_price,position,equity,close,multiplier,max_position\n2024-01-02,x,0,0,0,0,0,1,,1,1\n", ":2: |(fill)"},
		{"time,fill,price,fee,exit_fill,exit_price,position,equity,close,multiplier,max_position\n2024-01-02,0,0\n", ":2: |no column 4"}
	};

	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		char path[] = "/tmp/fh-trace-XXXXXX", words[64], *save = NULL;
		struct fh_status st = FH_STATUS_INIT;
		struct trace t;
		int fd = mkstemp(path);
		memset(&t, 0, sizeof t);
		assert_int_equal(write(fd, row[i].text, strlen(row[i].text)), (ssize_t)strlen(row[i].text));
		close(fd);
		assert_int_equal(trace_read(path, &t, &st), FH_INVALID);
		assert_int_equal(t.n, 0);
		unlink(path);
		snprintf(words, sizeof words, "%s", row[i].words);
		for (char *w = strtok_r(words, "|", &save); w; w = strtok_r(NULL, "|", &save))
			if (!strstr(st.text, w))
				fail_msg("'%s' does not say '%s'", st.text, w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pictures_are_well_formed), cmocka_unit_test(series_with_holes_and_extremes),
		cmocka_unit_test(a_million_bars_make_a_small_file), cmocka_unit_test(thinning_keeps_extremes),
		cmocka_unit_test(axis_steps_are_round), cmocka_unit_test(time_axes_have_round_labels),
		cmocka_unit_test(saving_replaces_whole_or_not_at_all),
		cmocka_unit_test(a_trace_comes_back_bit_for_bit), cmocka_unit_test(files_that_are_no_trace_are_refused)
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
