/* Settings: the table, files, mistakes named, and defaults that depend on the machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/config.h"
#include "proto/status.h"

static char path[] = "/tmp/fhd-config-XXXXXX";

static int setup(void **state)
{
	strcpy(path, "/tmp/fhd-config-XXXXXX");
	return close(mkstemp(path));
}

static int teardown(void **state)
{
	return unlink(path);
}

static void file(const char *text)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void a_file_sets_every_kind_of_key(void **state)
{
	struct config c;
	struct fh_status st = FH_STATUS_INIT;

	file("# mine\nstate_dir: /var/tmp/x\nlisten: [\"ipc:///run/a.sock\", \"tcp://127.0.0.1:9000\"]\nslots: 3\n"
	     "memory: 2G\ninsecure_tcp: true\nlog_level: debug\ndataset_bars: 5000\ndataset_quota: 3G\nupload_idle: 7\n");
	config_defaults(&c);
	assert_int_equal(config_load(&c, path, &st), 0);
	assert_string_equal(c.state_dir, "/var/tmp/x");
	assert_string_equal(c.listen[0], "ipc:///run/a.sock");
	assert_string_equal(c.listen[1], "tcp://127.0.0.1:9000");
	assert_int_equal(c.slots, 3);
	assert_int_equal(c.memory, 2ll << 30);
	assert_int_equal(c.insecure_tcp, 1);
	assert_int_equal(c.dataset_bars, 5000);
	assert_int_equal(c.dataset_quota, 3ll << 30);
	assert_int_equal(c.upload_idle, 7);
	assert_string_equal(c.log_level, "debug");
	assert_string_equal(c.device, "auto"); /* not named: its default */
}

static void refused(const char *text, const char *field, const char *part)
{
	struct config c, before;
	struct fh_status st = FH_STATUS_INIT;

	file(text);
	config_defaults(&c);
	before = c;
	assert_int_equal(config_load(&c, path, &st), FH_INVALID);
	assert_string_equal(st.field, field);
	if (!strstr(st.text, part))
		fail_msg("\"%s\" does not say \"%s\"", st.text, part);
	assert_memory_equal(&c, &before, sizeof c);
}

static void mistakes_are_named_and_change_nothing(void **state)
{
	refused("slots: 2\nslot: 3\n", "slot", "slots");
	refused("slots: 2\nslot: 3\n", "slot", ":2");
	refused("slots: 0\n", "slots", "1 to 16");
	refused("slots: many\n", "slots", "many");
	refused("threads: 4\nslots: 1.5\n", "slots", "1.5");
	refused("memory: 4X\n", "memory", "4X");
	refused("insecure_tcp: yes please\n", "insecure_tcp", "yes please");
	refused("dataset_bars: 20000001\n", "dataset_bars", "2 to 20000000");
	refused("log_level: loud\n", "log_level", "loud");
	refused("device: [a, b]\n", "device", "one value");
	refused("listen: [a, b, c, d, e, f, g, h, i]\n", "listen", "8");
}

static void the_printed_default_is_the_default(void **state)
{
	struct config c, expected;
	struct fh_status st = FH_STATUS_INIT;
	FILE *f = fopen(path, "w");
	char text[8192], *p;
	size_t n;

	config_print(f);
	fclose(f);
	config_defaults(&expected);
	config_defaults(&c);
	assert_int_equal(config_load(&c, path, &st), 0); /* all commented out */
	assert_memory_equal(&c, &expected, sizeof c);
	f = fopen(path, "r");
	n = fread(text, 1, sizeof text - 1, f);
	fclose(f);
	text[n] = 0;
	p = strstr(text, "# slots: ");
	assert_non_null(p);
	memmove(p, p + 2, strlen(p + 2) + 1); /* the same line with its mark taken away */
	file(text);
	assert_int_equal(config_load(&c, path, &st), 0);
	assert_memory_equal(&c, &expected, sizeof c);
}

static void defaults_follow_the_environment(void **state)
{
	struct config c;

	setenv("STATE_DIRECTORY", "/var/lib/private/fhd:/other", 1);
	setenv("RUNTIME_DIRECTORY", "/run/mine", 1);
	config_defaults(&c);
	assert_int_equal(config_finish(&c, NULL), 0);
	assert_string_equal(c.state_dir, "/var/lib/private/fhd");
	assert_string_equal(c.listen[0], "ipc:///run/mine/fhd.sock");
	assert_string_equal(c.publish, "ipc:///run/mine/fhd.pub");
	unsetenv("RUNTIME_DIRECTORY");
	setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
	config_defaults(&c);
	strcpy(c.publish, "none");
	assert_int_equal(config_finish(&c, NULL), 0);
	assert_string_equal(c.listen[0], "ipc:///run/user/7/fhd.sock");
	assert_string_equal(c.publish, "");
	unsetenv("XDG_RUNTIME_DIR");
	config_defaults(&c);
	assert_int_equal(config_finish(&c, NULL), 0);
	assert_string_equal(c.listen[0], "ipc:///run/fhd/fhd.sock");
}

static void a_relative_state_directory_becomes_absolute(void **state)
{
	struct config c;
	char cwd[256], expected[300];

	assert_non_null(getcwd(cwd, sizeof cwd));
	snprintf(expected, sizeof expected, "%s/here", cwd);
	config_defaults(&c);
	assert_int_equal(config_set(&c, "state_dir", "here", NULL), 0);
	assert_int_equal(config_finish(&c, NULL), 0);
	assert_string_equal(c.state_dir, expected);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_file_sets_every_kind_of_key, setup, teardown),
		cmocka_unit_test_setup_teardown(mistakes_are_named_and_change_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(the_printed_default_is_the_default, setup, teardown),
		cmocka_unit_test(defaults_follow_the_environment),
		cmocka_unit_test(a_relative_state_directory_becomes_absolute),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
