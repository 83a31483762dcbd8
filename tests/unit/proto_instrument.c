/* Promises of presets: every number is what the exchange's page says, and what our page says; a job file's own keys win whatever the order of its lines. */
#include "tests/unit/golden.h"

#include <string.h>

#include "gpu/instruments.h"
#include "proto/spec.h"
#include "proto/text.h"

/* Value of one tick in money, from the pages: a second way to the product of two columns. */
static const struct { const char *name; double tick_value; } known[] = {
	{"ES", 12.5}, {"NQ", 5}, {"RTY", 5}, {"YM", 5}, {"CL", 10}, {"GC", 10}, {"SI", 25}, {"ZN", 15.625}, {"ZB", 31.25},
	{"6E", 6.25}, {"6J", 6.25}, {"FESX", 10}, {"FDAX", 25}, {"BTC", 25}, {"fx", 1}, {"equity", 0.01}, {"crypto", 0.01},
};

static void every_preset_is_sane(void **arg)
{
	size_t n = 0;

	for (const struct instrument *i; (i = instrument_at((int)n)); n++) {
		struct fh_spec spec;
		struct fh_status st = FH_STATUS_INIT;
		spec_defaults(&spec);
		strcpy(spec.data.dataset, "x");
		instrument_apply(i, &spec);
		if (spec_check(&spec, &st))
			fail_msg("%s: %s", i->name, st.text);
		assert_string_equal(i->name, known[n].name);
		assert_true(fabs(i->tick * i->multiplier / known[n].tick_value - 1) < 1e-12);
		assert_true(i->half_spread >= i->tick / 2 && i->fee > 0);
		/* Of the coins the tick says nothing about the spread: both costs are shares of a price of 60,000. */
		if (!strcmp(i->name, "crypto"))
			assert_true(i->half_spread + i->fee < 0.002 * 60000);
		else
			assert_true(i->half_spread <= 2 * i->tick);
		assert_true(i->lot >= 0 && strlen(i->hours) >= 8);
		assert_true(strchr(i->session, ' ') && strlen(i->what) && strlen(i->currency) == (i->currency[0] == 'q' ? 5 : 3));
	}
	assert_int_equal(n, sizeof known / sizeof *known);
	assert_ptr_equal(instrument_find("es"), instrument_at(0));
	assert_null(instrument_find("ESZ"));
	assert_null(instrument_at(-1));
}

/* The page for people has the same numbers: name, tick, multiplier, tick value, half spread, fee, lot and session of every preset. */
static void the_page_says_the_same(void **arg)
{
	char line[1024], cell[8][64];
	FILE *f = fopen(source_path("gpu/INSTRUMENTS.md"), "r");
	size_t rows = 0;

	assert_non_null(f);
	while (fgets(line, sizeof line, f)) {
		const struct instrument *i;
		if (sscanf(line, "| %63[^|]| %63[^|]| %63[^|]| %63[^|]| %63[^|]| %63[^|]| %63[^|]| %63[^|]|", cell[0], cell[1], cell[2], cell[3],
			   cell[4], cell[5], cell[6], cell[7]) != 8)
			continue;
		for (int k = 0; k < 8; k++)
			cell[k][strcspn(cell[k], k == 7 ? "|" : " ")] = 0;
		cell[7][strlen(cell[7]) - 1] = 0;
		i = instrument_find(cell[0]);
		if (!i)
			continue;
		if (atof(cell[1]) != i->tick || atof(cell[2]) != i->multiplier || atof(cell[4]) != i->half_spread || atof(cell[5]) != i->fee ||
		    atof(cell[6]) != i->lot || strcmp(cell[7], i->session) != 0 || fabs(atof(cell[3]) / (i->tick * i->multiplier) - 1) > 1e-12)
			fail_msg("gpu/INSTRUMENTS.md has other numbers for %s", i->name);
		rows++;
	}
	fclose(f);
	assert_int_equal(rows, sizeof known / sizeof *known);
}

static struct fh_spec parse(const char *text)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_job_file j;

	fh_job_file_init(&j);
	if (fh_job_file_parse(text, strlen(text), "job.yaml", &j, &st))
		fail_msg("%s", st.text);
	return j.spec;
}

static void a_job_file_names_one(void **arg)
{
	struct fh_spec a = parse("instrument: CL\nenv:\n  fee: 9\n"), b = parse("env:\n  fee: 9\n  max_position: 3\ninstrument: cl\n");
	struct fh_spec plain = parse("env:\n  fee: 9\n");

	for (int i = 0; i < 2; i++) {
		const struct fh_spec *s = i ? &b : &a;
		assert_true(s->env.tick == 0.01 && s->env.multiplier == 1000 && s->env.half_spread == 0.01 && s->env.fee == 9);
	}
	assert_true(b.env.max_position == 3 && a.env.initial_cash == plain.env.initial_cash);
	assert_true(plain.env.multiplier != 1000);
}

/* --instrument: over the whole file, as options are. */
static void an_option_names_one(void **arg)
{
	static const char text[] = "instrument: CL\nenv:\n  fee: 9\n  max_position: 4\n";
	struct fh_status st = FH_STATUS_INIT;
	struct fh_job_file j;

	fh_job_file_init(&j);
	assert_int_equal(fh_job_file_parse(text, strlen(text), "job.yaml", &j, &st), 0);
	assert_int_equal(fh_job_file_instrument(&j, "zn", &st), 0);
	assert_true(j.spec.env.tick == 0.015625 && j.spec.env.multiplier == 1000 && j.spec.env.half_spread == 0.0078125 && j.spec.env.fee == 1.67);
	assert_true(j.spec.env.max_position == 4);
	assert_int_equal(fh_job_file_instrument(&j, "ZNZ", &st), FH_INVALID);
	assert_non_null(strstr(st.text, "there are ES, NQ"));
}

static void an_unknown_one_is_refused_with_the_list(void **arg)
{
	struct fh_job_file j;
	const struct { const char *text, *words; } bad[] = {
		{"env:\n  fee: 1\ninstrument: DAX\n", "job.yaml:3: there is no preset \"DAX\"; there are ES, NQ"},
		{"instrument: [ES]\n", "a list"}, {"instrument:\n", "no preset \"\""}, {"instrument: ~\n", "null"},
		{"instrumnt: ES\n", "instrument"},
		/* A complete file, as `fhctl spec` prints it: the line would do nothing. */
		{"env: {tick: 1, multiplier: 1, half_spread: 0, fee: 0, lot: 1}\ninstrument: ES\n", "job.yaml:2: instrument ES would set nothing"},
	};

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct fh_status st = FH_STATUS_INIT;
		fh_job_file_init(&j);
		assert_int_equal(fh_job_file_parse(bad[i].text, strlen(bad[i].text), "job.yaml", &j, &st), FH_INVALID);
		if (!strstr(st.text, bad[i].words))
			fail_msg("'%s' does not say '%s'", st.text, bad[i].words);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_preset_is_sane), cmocka_unit_test(the_page_says_the_same), cmocka_unit_test(a_job_file_names_one),
		cmocka_unit_test(an_option_names_one),
		cmocka_unit_test(an_unknown_one_is_refused_with_the_list),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
