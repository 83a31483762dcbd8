/* The promises of proto/text.h: job files in YAML and JSON, hostile files refused with their line, what is printed
 * reads back. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "proto/spec.h"
#include "proto/text.h"

static int parse(const char *text, struct fh_job_file *j, struct fh_status *st)
{
	fh_job_file_init(j);
	*st = (struct fh_status)FH_STATUS_INIT;
	return fh_job_file_parse(text, strlen(text), "job.yaml", j, st);
}

static void a_job_file_in_yaml_and_in_json(void **state)
{
	static const char *const text[] = {
		"name: trial-1\nlabels: {team: a, note: \"two words\"}\nmodel: dqn\ndata:\n  dataset: eurusd\n  embargo: 20\n"
		"learn:\n  lr: 3e-3\n  loss: mse\n  batch: auto   # comment\nrun:\n  seed: -5\n",
		"{\"name\": \"trial-1\",\n\t\"labels\": {\"team\": \"a\", \"note\": \"two words\"},\n\t\"model\": \"dqn\", "
		"\"data\": {\"dataset\": \"eurusd\", \"embargo\": \"20\"},\n\t\"learn\": {\"lr\": 0.003, \"loss\": \"MSE\", "
		"\"batch\": \"auto\"}, \"run\": {\"seed\": -5}}\n",
		"\xef\xbb\xbfname: trial-1\r\nlabels: {team: a, note: \"two words\"}\r\ndata: {dataset: eurusd, embargo: 20}\r\n"
		"learn: {lr: .003, loss: mse}\r\nrun: {seed: -5}\r\n",
	};

	for (size_t i = 0; i < sizeof text / sizeof text[0]; i++) {
		struct fh_status st;
		struct fh_job_file j;

		if (parse(text[i], &j, &st))
			fail_msg("%zu: %s", i, st.text);
		assert_string_equal(j.name, "trial-1");
		assert_int_equal(j.labels, 2);
		assert_string_equal(j.label[1].key, "note");
		assert_string_equal(j.label[1].value, "two words");
		assert_string_equal(j.spec.data.dataset, "eurusd");
		assert_int_equal(j.spec.data.embargo, 20);
		assert_true(j.spec.learn.lr == 0.003);
		assert_int_equal(j.spec.learn.loss, FH_LOSS_MSE);
		assert_int_equal(j.spec.learn.batch, 0);
		assert_int_equal(j.spec.run.seed, -5);
	}
}

static void empty_files_and_sections_change_nothing(void **state)
{
	static const char *const text[] = {"", "# nothing\n", "---\n", "data:\nlabels:\nname:\n", "{}", "learn: {}\n"};
	struct fh_spec want;

	spec_defaults(&want);
	for (size_t i = 0; i < sizeof text / sizeof text[0]; i++) {
		struct fh_status st;
		struct fh_job_file j;

		if (parse(text[i], &j, &st))
			fail_msg("%zu: %s", i, st.text);
		assert_null(fh_spec_difference(&j.spec, &want));
		assert_string_equal(j.name, "");
	}
}

/* Each is refused with the line, the field and words that a person can act on, and changes nothing. */
static void wrong_files_are_refused_with_line_and_field(void **state)
{
	static const struct { const char *text; const char *line, *field, *words; } row[] = {
		{"learn:\n  lrr: 1\n", "job.yaml:2", "learn.lrr", "learn.lr?"},
		{"lern:\n  lr: 1\n", "job.yaml:2", "lern.lr", "learn.lr?"},
		{"lr: 1\n", "job.yaml:1", "lr", "learn.lr?"},
		{"lables: {a: b}\n", "job.yaml:1", "lables", "labels?"},
		{"nane: x\n", "job.yaml:1", "nane", "name?"},
		{"model: dqn\nschema_version: 2\n", "job.yaml:2", "schema_version", "reads 1"},
		{"schema_version: [1]\n", "job.yaml:1", "schema_version", "list"},
		{"data:\n  dataset: e\n\nrun:\n  epochs: many\n", "job.yaml:5", "run.epochs", "many"},
		{"run: {epochs: 1.5}\n", "job.yaml:1", "run.epochs", "1.5"},
		{"learn: {lr: .nan}\n", "job.yaml:1", "learn.lr", "nan"},
		{"learn: {lr: nan}\n", "job.yaml:1", "learn.lr", "nan"},
		{"learn: {lr: inf}\n", "job.yaml:1", "learn.lr", "inf"},
		{"learn: {lr: 1e999}\n", "job.yaml:1", "learn.lr", "1e999"},
		{"learn: {lr: true}\n", "job.yaml:1", "learn.lr", "true"},
		{"learn: {lr: null}\n", "job.yaml:1", "learn.lr", "null"},
		{"learn: {lr: ~}\n", "job.yaml:1", "learn.lr", "null"},
		{"learn: {lr: }\n", "job.yaml:1", "learn.lr", ""},
		{"learn: {lr: [1]}\n", "job.yaml:1", "learn.lr", "list"},
		{"learn: {lr: {a: 1}}\n", "job.yaml:1", "learn.lr", "mapping"},
		{"learn: {loss: c52}\n", "job.yaml:1", "learn.loss", "c51, mse"},
		{"learn: 3\n", "job.yaml:1", "learn", "single value"},
		{"learn: [1, 2]\n", "job.yaml:1", "learn", "list"},
		{"labels: [a]\n", "job.yaml:1", "labels", "list"},
		{"labels: {a: [b]}\n", "job.yaml:1", "labels.a", "list"},
		{"labels: {\"a b\": c}\n", "job.yaml:1", "labels", "a b"},
		{"name: 123\n", "job.yaml:1", "name", "digits"},
		{"name: a/b\n", "job.yaml:1", "name", "a/b"},
		{"learn:\n  lr: 1\n  lr: 2\n", "job.yaml:3", "lr", "twice"},
		{"learn:\n  lr: 1\nrun:\n  seed: 1\nlearn:\n  gamma: 1\n", "job.yaml:5", "learn", "twice"},
		{"run: {seed: 99999999999999999999}\n", "job.yaml:1", "run.seed", "99999999999999999999"},
		{"replay: {capacity: 1000}\n", "job.yaml:1", "replay.capacity", "power of two"},
		{"a: &x 1\nb: *x\n", "job.yaml:1", "", "anchors"},
		{"a: *x\n", "job.yaml:1", "", "aliases"},
		{"a: !!int 3\n", "job.yaml:1", "", "tags"},
		{"- a\n- b\n", "job.yaml:1", "", "top"},
		{"just words\n", "job.yaml:1", "", "top"},
		{"a: 1\n---\nb: 2\n", "job.yaml:", "", "second document"},
		{"a: \"\\0\"\n", "job.yaml:1", "", "NUL"},
		{"? [a]\n: 1\n", "job.yaml:1", "", "key"},
		{"learn: {lr: 1\n", "job.yaml:", "", "not readable"},
		{"learn:\n\tlr: 1\n", "job.yaml:", "", "not readable"},
		{"a: 'x\n", "job.yaml:", "", "not readable"},
		{"a: {b: {c: {d: {e: {f: {g: {h: {i: 1}}}}}}}}\n", "job.yaml:1", "", "nested"},
	};
	struct fh_spec want;

	spec_defaults(&want);
	for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
		struct fh_status st;
		struct fh_job_file j;
		int rc = parse(row[i].text, &j, &st);

		if (rc != FH_INVALID || !strstr(st.text, row[i].line) || strcmp(st.field, row[i].field) ||
		    !strstr(st.text, row[i].words))
			fail_msg("%s: %d, field '%s': %s", row[i].text, rc, st.field, st.text);
		assert_null(strchr(st.text, '\n'));
		assert_null(fh_spec_difference(&j.spec, &want));
		assert_int_equal(j.labels, 0);
	}
}

static char *repeat(const char *s, size_t n, const char *tail)
{
	size_t len = strlen(s);
	char *out = malloc(len * n + strlen(tail) + 1);

	assert_non_null(out);
	for (size_t i = 0; i < n; i++)
		memcpy(out + i * len, s, len);
	strcpy(out + len * n, tail);
	return out;
}

static void bombs_are_refused(void **state)
{
	static const struct { const char *unit; size_t n; } row[] = {
		{"[", 100000}, {"{a: ", 50000}, {"- ", 100000}, {"? ", 100000}, {"a: [", 60000}, {"\"", 99999}, {"&", 100000},
		{"*a ", 50000}, {"#\n", 100000}, {"\n", 200000}, {"'", 200001}, {"!", 100000}, {"---\n", 50000}, {"%", 1000},
		{"[{", 50000}, {"a:\n", 3}, {"|", 2000}, {">-\n", 2000},
	};

	for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
		char *text = repeat(row[i].unit, row[i].n, "");
		struct fh_status st;
		struct fh_job_file j;
		int rc = parse(text, &j, &st);

		/* Comments and empty lines are an empty file; the rest is refused. */
		assert_int_equal(rc, strspn(row[i].unit, "#\n") == strlen(row[i].unit) ? 0 : FH_INVALID);
		free(text);
	}
	/* A thousand million laughs would need aliases. */
	struct fh_status st;
	struct fh_job_file j;

	assert_int_equal(parse("a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n", &j, &st), FH_INVALID);
	/* Many keys. */
	char *many = malloc(64000);
	size_t at = 0;

	assert_non_null(many);
	for (int i = 0; i < 5000; i++)
		at += (size_t)sprintf(many + at, "k%d: 1\n", i);
	assert_int_equal(parse(many, &j, &st), FH_INVALID);
	assert_non_null(strstr(st.text, "4096"));
	free(many);
	char *large = repeat("# 3456789\n", FH_TEXT_FILE_MAX / 10 + 1, "");

	assert_int_equal(parse(large, &j, &st), FH_EXHAUSTED);
	free(large);
	assert_int_equal(parse("a: \xff\n", &j, &st), FH_INVALID);
	fh_job_file_init(&j);
	assert_int_equal(fh_job_file_parse("a: 1\0b", 6, "x", &j, &st), FH_INVALID);
}

static void damaged_files_do_no_harm(void **state)
{
	static const char base[] = "name: t\nlabels: {a: b, c: \"d\"}\ndata:\n  dataset: e\nlearn: {lr: 1e-3, loss: 'mse'}\n"
				   "run:\n  - epochs: 3\n  seed: |\n    5\n";
	uint32_t x = 7;
	int taken = 0;

	for (int round = 0; round < 4000; round++) {
		static const char odd[] = "{}[]:,-?&*!|>'\"%@`#\n\t \\0\xc3\x00";
		char text[sizeof base];
		struct fh_status st;
		struct fh_job_file j;

		memcpy(text, base, sizeof base);
		for (int i = 0; i < 3; i++) {
			x = x * 1664525u + 1013904223u;
			text[(x >> 8) % (sizeof base - 1)] = odd[(x >> 20) % sizeof odd];
		}
		fh_job_file_init(&j);
		st = (struct fh_status)FH_STATUS_INIT;
		if (fh_job_file_parse(text, sizeof base - 1, "t", &j, &st) == 0)
			taken++;
		else
			assert_true(st.code == FH_INVALID && st.text[0]);
	}
	assert_in_range(taken, 0, 3999);
}

static char *print_spec(const struct fh_spec *s)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);

	assert_non_null(f);
	assert_int_equal(fh_spec_print(f, s, NULL), 0);
	fclose(f);
	return text;
}

static void the_printed_specification_reads_back(void **state)
{
	struct fh_status st;
	struct fh_job_file j;
	struct fh_spec s;
	int n;
	const struct spec_key *key = spec_keys(&n);

	spec_defaults(&s);
	for (int round = 0; round < 2; round++) {
		char *text = print_spec(&s), *again;

		if (parse(text, &j, &st))
			fail_msg("%s", st.text);
		assert_null(fh_spec_difference(&j.spec, &s));
		again = print_spec(&j.spec);
		assert_string_equal(text, again);
		/* Every key is there with its help. */
		for (int i = 0; i < n; i++)
			assert_non_null(strstr(text, key[i].help));
		free(text);
		free(again);
		/* Once more with awkward values: names that look like something else, a number without a short form. */
		strcpy(s.data.dataset, "null");
		strcpy(s.init.checkpoint, "1e5");
		s.learn.lr = 0.1 + 0.2;
		s.run.seed = INT64_MAX;
	}
}

static char *message_text(const ProtobufCMessage *m, int yaml)
{
	char *text = NULL;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);

	assert_non_null(f);
	assert_int_equal((yaml ? fh_print_yaml : fh_print_json)(f, m, 1, NULL), 0);
	fclose(f);
	return text;
}

static void messages_as_json_and_yaml(void **state)
{
	Fh__V1__Job job = FH__V1__JOB__INIT;
	Fh__V1__JobReply reply = FH__V1__JOB_REPLY__INIT;
	Fh__V1__Label label = FH__V1__LABEL__INIT, *labels = &label;
	Fh__V1__Sample sample = FH__V1__SAMPLE__INIT;
	Fh__V1__MetricValue v = FH__V1__METRIC_VALUE__INIT, w = v, *values[] = {&v, &w};
	char *text;

	reply.job = &job;
	job.has_id = 1;
	job.id = UINT64_MAX;
	job.name = "a\"b\n\x01\xc3\xa4";
	job.has_state = 1;
	job.state = FH__V1__JOB_STATE__RUNNING;
	job.n_label = 1;
	job.label = &labels;
	label.key = "no";
	label.value = "x: y";
	job.has_eta_seconds = 1;
	job.eta_seconds = 0.1;
	job.has_attached = 1;
	job.last_report = &sample;
	sample.n_value = 2;
	sample.value = values;
	v.name = "loss";
	v.has_value = 1;
	v.value = NAN;
	w.name = "q";
	w.has_value = 1;
	w.value = -INFINITY;
	text = message_text(&reply.base, 0);
	assert_string_equal(text, "{\n  \"schema_version\": 1,\n  \"job\": {\n    \"id\": \"18446744073709551615\",\n"
				  "    \"name\": \"a\\\"b\\n\\u0001\xc3\xa4\",\n    \"state\": \"RUNNING\",\n"
				  "    \"label\": [{\n      \"key\": \"no\",\n      \"value\": \"x: y\"\n    }],\n"
				  "    \"eta_seconds\": 0.1,\n    \"last_report\": {\n      \"value\": [{\n        \"name\": \"loss\",\n"
				  "        \"value\": \"NaN\"\n      }, {\n        \"name\": \"q\",\n        \"value\": \"-Infinity\"\n"
				  "      }]\n    },\n    \"attached\": false\n  }\n}\n");
	free(text);
	text = message_text(&reply.base, 1);
	assert_string_equal(text, "schema_version: 1\njob:\n  id: 18446744073709551615\n  name: \"a\\\"b\\n\\u0001\xc3\xa4\"\n"
				  "  state: RUNNING\n  label:\n    - key: \"no\"\n      value: \"x: y\"\n  eta_seconds: 0.1\n"
				  "  last_report:\n    value:\n      - name: loss\n        value: .nan\n      - name: q\n"
				  "        value: -.inf\n  attached: false\n");
	free(text);
}

static void lists_bytes_and_empty_messages(void **state)
{
	Fh__V1__ActReply act = FH__V1__ACT_REPLY__INIT;
	Fh__V1__GetCheckpointReply get = FH__V1__GET_CHECKPOINT_REPLY__INIT;
	Fh__V1__EmptyReply empty = FH__V1__EMPTY_REPLY__INIT;
	int32_t action[] = {1, -2};
	float q[] = {0.1f, 1e-7f};
	char *text;

	act.n_action = 2;
	act.action = action;
	act.n_q = 2;
	act.q = q;
	text = message_text(&act.base, 0);
	assert_string_equal(text, "{\n  \"schema_version\": 1,\n  \"action\": [1, -2],\n  \"q\": [0.1, 1e-07]\n}\n");
	free(text);
	text = message_text(&act.base, 1);
	assert_string_equal(text, "schema_version: 1\naction: [1, -2]\nq: [0.1, 1e-07]\n");
	free(text);
	get.has_data = 1;
	get.data.data = (uint8_t *)"abcd";
	get.data.len = 4;
	text = message_text(&get.base, 0);
	assert_string_equal(text, "{\n  \"schema_version\": 1,\n  \"data\": \"YWJjZA==\"\n}\n");
	free(text);
	text = message_text(&empty.base, 0);
	assert_string_equal(text, "{\n  \"schema_version\": 1\n}\n");
	free(text);
}

/* What -o yaml prints of a specification is a job file again. */
static void a_printed_message_is_a_job_file(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_job_file j;
	Fh__V1__JobSpec *m;
	struct fh_arena a;
	struct fh_spec s;

	spec_defaults(&s);
	assert_int_equal(fh_spec_set(&s, "data.dataset", "on", NULL), 0);
	assert_int_equal(fh_spec_set(&s, "learn.loss", "mse", NULL), 0);
	fh_arena_init(&a, 1 << 20);
	assert_int_equal(fh_spec_to_message(&s, &a, &m, &st), 0);
	for (int i = 0; i < 4; i++) {
		int yaml = i & 1, version = i >> 1;
		char *text = NULL;
		size_t size = 0;
		FILE *f = open_memstream(&text, &size);

		assert_non_null(f);
		assert_int_equal((yaml ? fh_print_yaml : fh_print_json)(f, &m->base, version, &st), 0);
		fclose(f);
		if (parse(text, &j, &st))
			fail_msg("%s in %s", st.text, text);
		assert_null(fh_spec_difference(&j.spec, &s));
		free(text);
	}
	fh_arena_release(&a);
}

static void files_are_read_whole_or_refused(void **state)
{
	char path[] = "/tmp/fh-text-XXXXXX";
	int fd = mkstemp(path);
	struct fh_status st = FH_STATUS_INIT;
	struct fh_arena a;
	char *text;
	size_t len;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, "a: 1\n", 5), 5);
	fh_arena_init(&a, 4 << 20);
	assert_int_equal(fh_file_read(path, &a, &text, &len, &st), 0);
	assert_int_equal(len, 5);
	assert_int_equal(ftruncate(fd, FH_TEXT_FILE_MAX + 1), 0);
	assert_int_equal(fh_file_read(path, &a, &text, &len, &st), FH_EXHAUSTED);
	assert_int_equal(fh_file_read("/nonexistent/x", &a, &text, &len, &st), FH_INVALID);
	assert_int_equal(fh_file_read("/tmp", &a, &text, &len, &st), FH_INVALID);
	fh_arena_release(&a);
	close(fd);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_job_file_in_yaml_and_in_json), cmocka_unit_test(empty_files_and_sections_change_nothing),
		cmocka_unit_test(wrong_files_are_refused_with_line_and_field), cmocka_unit_test(bombs_are_refused),
		cmocka_unit_test(damaged_files_do_no_harm), cmocka_unit_test(the_printed_specification_reads_back),
		cmocka_unit_test(messages_as_json_and_yaml), cmocka_unit_test(lists_bytes_and_empty_messages),
		cmocka_unit_test(a_printed_message_is_a_job_file), cmocka_unit_test(files_are_read_whole_or_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
