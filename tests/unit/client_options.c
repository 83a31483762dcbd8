/* The promises of the command line: options anywhere, errors that name what was meant, one table for everything. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "client/options.h"
#include "client/output.h"
#include "client/table.h"

/* Parses a line of words; the words live as long as the test. */
static int parse(const char *line, struct ctx *c, enum ask *ask, struct fh_status *st)
{
	static char copy[1024];
	static char *argv[64];
	int argc = 1;

	snprintf(copy, sizeof copy, "%s", line);
	argv[0] = "fhctl";
	for (char *w = strtok(copy, " "); w; w = strtok(NULL, " "))
		argv[argc++] = w;
	argv[argc] = NULL;
	*st = (struct fh_status)FH_STATUS_INIT;
	return options_parse(argc, argv, c, ask, st);
}

static void options_may_stand_anywhere(void **state)
{
	static const char *const line[] = {
		"--timeout 2.5 -q list -s queued -o json --connect tcp://127.0.0.1:1",
		"-q --connect=tcp://127.0.0.1:1 --timeout=2.5 list -ojson -squeued",
		"list -qs queued -o=json --connect tcp://127.0.0.1:1 --timeout 2.5",
	};

	for (size_t i = 0; i < sizeof line / sizeof line[0]; i++) {
		struct fh_status st;
		struct ctx c;
		enum ask ask;

		if (parse(line[i], &c, &ask, &st))
			fail_msg("%s: %s", line[i], st.text);
		assert_int_equal(ask, ASK_RUN);
		assert_string_equal(c.cmd->name, "list");
		assert_int_equal(c.output, OUT_JSON);
		assert_int_equal(c.timeout_ms, 2500);
		assert_true(c.timeout_given && c.quiet);
		assert_string_equal(c.connect, "tcp://127.0.0.1:1");
		assert_string_equal(opt_text(&c, "state"), "queued");
		assert_int_equal(c.argc, 0);
	}
}

static void operands_and_repeated_options(void **state)
{
	struct fh_status st;
	struct ctx c;
	enum ask ask;
	int64_t n = 7;

	assert_int_equal(parse("start --set a.b=1 job.yaml --set c.d=-2 -f", &c, &ask, &st), 0);
	assert_int_equal(c.argc, 1);
	assert_string_equal(c.argv[0], "job.yaml");
	assert_string_equal(opt_nth(&c, "set", 0), "a.b=1");
	assert_string_equal(opt_nth(&c, "set", 1), "c.d=-2");
	assert_null(opt_nth(&c, "set", 2));
	assert_string_equal(opt_text(&c, "set"), "c.d=-2");
	assert_true(opt_flag(&c, "follow"));
	assert_false(opt_flag(&c, "wait"));
	assert_int_equal(parse("start -", &c, &ask, &st), 0);
	assert_string_equal(c.argv[0], "-");
	assert_int_equal(parse("show -- -x", &c, &ask, &st), 0);
	assert_string_equal(c.argv[0], "-x");
	assert_int_equal(parse("metrics 3 --since 12 --limit 0x", &c, &ask, &st), 0);
	assert_int_equal(opt_int(&c, "since", 0, 100, &n, &st), 0);
	assert_int_equal(n, 12);
	assert_int_equal(opt_int(&c, "since", 0, 11, &n, &st), FH_INVALID);
	assert_int_equal(opt_int(&c, "limit", 0, 11, &n, &st), FH_INVALID);
	assert_int_equal(opt_int(&c, "absent", 0, 11, &n, &st), 0);
	assert_int_equal(n, 12);
}

static void two_word_commands(void **state)
{
	struct fh_status st;
	struct ctx c;
	enum ask ask;

	assert_int_equal(parse("dataset list", &c, &ask, &st), 0);
	assert_string_equal(c.cmd->name, "dataset list");
	assert_int_equal(parse("-o json dataset show m", &c, &ask, &st), 0);
	assert_string_equal(c.cmd->name, "dataset show");
	assert_string_equal(c.argv[0], "m");
}

static void usage_errors_name_what_was_meant(void **state)
{
	static const struct { const char *line, *words; } row[] = {
		{"", "command is missing"}, {"strat", "start?"}, {"lsit", "list?"}, {"wibble", "fhctl help"}, {"datset list", "mean dataset?"}, {"dataset lst", "list"}, {"dataset", "import"},
		{"dataset shwo x", "show"}, {"checkpoint", "save"}, {"start --nmae x", "--name?"}, {"start --set", "--set needs KEY=VALUE"},
		{"list -o jsn", "json"}, {"list -o", "-o needs FORMAT"}, {"show", "JOB is missing"}, {"show 1 2", "'2' is one word too many"}, {"ping x", "x"},
		{"list --quiet=1", "takes no value"}, {"list -Z", "-Z"}, {"list --timeout soon", "soon"}, {"list --timeout -1", "-1"},
		{"list --timeout nan", "nan"}, {"start -o csv", "csv"}, {"--conect x list", "--connect?"},
	};

	for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
		struct fh_status st;
		struct ctx c;
		enum ask ask;
		int rc = parse(row[i].line, &c, &ask, &st);

		if (rc != FH_INVALID || !strstr(st.text, row[i].words))
			fail_msg("%s: %d %s", row[i].line, rc, st.text);
		assert_int_equal(exit_code_of(rc), EXIT_USAGE);
	}
}

static void help_is_asked_for_in_every_way(void **state)
{
	static const struct { const char *line, *cmd; int words; } row[] = {
		{"help", NULL, 0}, {"--help", NULL, 0}, {"-h", NULL, 0}, {"start --help", "start", 0}, {"start job.yaml -h", "start", 0},
		{"help start", NULL, 1}, {"help dataset import", NULL, 2}, {"dataset --help", NULL, 1}, {"show --help", "show", 0},
		{"start --nonsense --help", "start", 0},
	};

	for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
		struct fh_status st;
		struct ctx c;
		enum ask ask;
		int rc = parse(row[i].line, &c, &ask, &st);

		/* Nonsense before --help may be refused as well; a person asking for help must only not be ignored. */
		if (rc && !strstr(row[i].line, "nonsense"))
			fail_msg("%s: %s", row[i].line, st.text);
		if (rc)
			continue;
		assert_int_equal(ask, ASK_HELP);
		assert_int_equal(c.argc, row[i].words);
		if (row[i].cmd)
			assert_string_equal(c.cmd->name, row[i].cmd);
	}
}

static char *help_text(const struct command *cmd)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);

	assert_non_null(f);
	if (cmd)
		usage_command(f, cmd);
	else
		usage_all(f);
	fclose(f);
	return text;
}

static void every_command_is_whole(void **state)
{
	const struct command *c;
	char *all = help_text(NULL);
	int n = 0, words;

	for (; (c = command_at(n)); n++) {
		char copy[64], *word[2];
		char *text = help_text(c);

		assert_non_null(c->run);
		assert_true(c->help && *c->help && c->args_min <= c->args_max && (int)c->group < COMMAND_GROUPS);
		assert_non_null(strstr(all, c->name));
		assert_non_null(strstr(text, c->name));
		for (const struct opt *o = c->opts; o && o->name; o++) {
			assert_non_null(strstr(text, o->name));
			/* No option of a command hides one of fhctl's own. */
			for (const struct opt *g = global_options; g->name; g++)
				assert_true(strcmp(g->name, o->name) != 0 && (!o->letter || o->letter != g->letter));
		}
		snprintf(copy, sizeof copy, "%s", c->name);
		word[0] = copy;
		word[1] = strchr(copy, ' ');
		if (word[1])
			*word[1]++ = 0;
		assert_ptr_equal(command_find(word, word[1] ? 2 : 1, &words), c);
		free(text);
	}
	assert_true(n >= 20);
	free(all);
}

static void codes_are_those_of_the_manual(void **state)
{
	static const struct { int code, exit; } row[] = {
		{0, 0}, {FH_INVALID, 2}, {FH_NOT_FOUND, 3}, {FH_DENIED, 4}, {FH_CONFLICT, 5}, {FH_EXHAUSTED, 5}, {FH_UNAVAILABLE, 6},
		{FH_VERSION, 7}, {FH_UNIMPLEMENTED, 7}, {FH_DEADLINE, 124}, {FH_UNKNOWN, 255}, {FH_INTERNAL, 1}, {FH_DEVICE, 1},
		{FH_DIVERGED, 1}, {FH_CORRUPT, 1}, {FH_IO, 1}, {FH_INTERRUPTED, 9},
	};

	for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
		assert_int_equal(exit_code_of(row[i].code), row[i].exit);
	signal_seen = 2;
	assert_int_equal(exit_code_of(FH_INTERRUPTED), 130);
	signal_seen = 15;
	assert_int_equal(exit_code_of(FH_INTERRUPTED), 143);
	signal_seen = 0;
}

static char *table_text(const struct table *t, int csv)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);

	assert_non_null(f);
	(csv ? table_print_csv : table_print)(t, f);
	fclose(f);
	return text;
}

static void tables_align_by_characters(void **state)
{
	static const char *const heads[] = {"ID", "NAME", "X", NULL};
	struct table t;
	char *text;

	table_init(&t, heads, "rlr");
	table_add(&t, "%d", 7);
	table_add(&t, "\xc3\xa4\xc3\xb6");
	table_add(&t, "%g", 0.5);
	table_add(&t, "%d", 123);
	table_add(&t, "a,\"b\"\n\033[2J");
	table_add(&t, "-");
	text = table_text(&t, 0);
	assert_string_equal(text, " ID  NAME          X\n  7  \xc3\xa4\xc3\xb6          0.5\n123  a,\"b\"??[2J    -\n");
	free(text);
	text = table_text(&t, 1);
	assert_string_equal(text, "id,name,x\n7,\xc3\xa4\xc3\xb6,0.5\n123,\"a,\"\"b\"\"??[2J\",-\n");
	free(text);
	table_release(&t);
}

static void numbers_for_people(void **state)
{
	char b[OUT_TEXT];

	assert_string_equal(text_bytes(0, b), "0 B");
	assert_string_equal(text_bytes(1023, b), "1023 B");
	assert_string_equal(text_bytes(1536, b), "1.5 KiB");
	assert_string_equal(text_bytes(22ull << 30, b), "22.0 GiB");
	assert_string_equal(text_duration(0.04, b), "0.0s");
	assert_string_equal(text_duration(9.96, b), "10s");
	assert_string_equal(text_duration(59.6, b), "1m00s");
	assert_string_equal(text_duration(3599.6, b), "1h00m");
	assert_string_equal(text_duration(90000, b), "1d01h");
	assert_string_equal(text_duration(-1, b), "-");
	assert_string_equal(text_duration(0.0 / 0.0, b), "-");
	assert_string_equal(text_time(0, b), "-");
	assert_string_equal(text_time(1704067200000000000ull, b), "2024-01-01T00:00:00Z");
	assert_string_equal(text_real(0.0 / 0.0, b), "-");
	assert_string_equal(text_clean("a\033[1m\n", b, sizeof b), "a?[1m?");
	assert_string_equal(text_clean("\xc3\xa4\xc3\xb6", b, 4), "\xc3\xa4");
	assert_string_equal(text_clean(NULL, b, sizeof b), "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options_may_stand_anywhere), cmocka_unit_test(operands_and_repeated_options),
		cmocka_unit_test(two_word_commands), cmocka_unit_test(usage_errors_name_what_was_meant),
		cmocka_unit_test(help_is_asked_for_in_every_way), cmocka_unit_test(every_command_is_whole),
		cmocka_unit_test(codes_are_those_of_the_manual), cmocka_unit_test(tables_align_by_characters),
		cmocka_unit_test(numbers_for_people),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
