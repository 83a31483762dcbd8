/* The promises of client/fhclient.h for single calls: never later than the deadline, every outcome has its code. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <cmocka.h>

#include "client/fhclient.h"
#include "client/wait.h"
#include "tests/unit/fake_daemon.h"

static int answer_ping(struct fake *f, const Fh__V1__Request *req, Fh__V1__Reply *reply)
{
	static Fh__V1__PingReply ping = FH__V1__PING_REPLY__INIT;

	(void)f;
	(void)req;
	ping.version = "test";
	reply->result_case = FH__V1__REPLY__RESULT_PING;
	reply->ping = &ping;
	return 0;
}

static int answer_nothing(struct fake *f, const Fh__V1__Request *req, Fh__V1__Reply *reply)
{
	(void)f;
	(void)req;
	(void)reply;
	return FAKE_SILENT;
}

static int hang_up_once(struct fake *f, const Fh__V1__Request *req, Fh__V1__Reply *reply)
{
	return atomic_load(&f->requests) == 0 ? FAKE_HANG_UP : answer_ping(f, req, reply);
}

static int answer_raw(struct fake *f, const Fh__V1__Request *req, Fh__V1__Reply *reply)
{
	(void)f;
	(void)req;
	(void)reply;
	return FAKE_RAW;
}

static struct fh_client *client_of(const char *url)
{
	struct fh_client *c = NULL;

	assert_int_equal(fh_client_new(url, "test 1", &c, NULL), 0);
	return c;
}

static int call(struct fh_client *c, Fh__V1__Request *req, int64_t timeout_ms, struct fh_answer *a, struct fh_status *st)
{
	int rc;

	wait_give(); /* what the test prepared, to the daemon's thread */
	rc = fh_client_call(c, req, timeout_ms, a, st);
	wait_take();
	return rc;
}

static int ping(struct fh_client *c, int64_t timeout_ms, struct fh_answer *a, struct fh_status *st)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__PingRequest p = FH__V1__PING_REQUEST__INIT;

	req.call_case = FH__V1__REQUEST__CALL_PING;
	req.ping = &p;
	return call(c, &req, timeout_ms, a, st);
}

static int stop_job(struct fh_client *c, int64_t timeout_ms, struct fh_answer *a, struct fh_status *st)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__StopJobRequest s = FH__V1__STOP_JOB_REQUEST__INIT;

	s.job = "x";
	req.call_case = FH__V1__REQUEST__CALL_STOP_JOB;
	req.stop_job = &s;
	return call(c, &req, timeout_ms, a, st);
}

static double since(int64_t start_ns) { return (double)(wait_now_ns() - start_ns) * 1e-9; }

static void calls_are_answered(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_answer a;
	struct fake f;
	struct fh_client *c;
	char first[65];

	fake_start(&f, answer_ping, NULL);
	c = client_of(f.url);
	assert_int_equal(ping(c, 5000, &a, &st), 0);
	assert_string_equal(a.reply->ping->version, "test");
	fh_answer_release(&a);
	strcpy(first, f.last_id);
	assert_int_equal(strlen(first), 32);
	assert_int_equal(ping(c, 5000, &a, &st), 0);
	assert_string_not_equal(first, f.last_id);
	fh_answer_release(&a);
	fh_client_free(c);
	fake_stop(&f);
}

static void nobody_there_is_told_at_once(void **state)
{
	static const char *const url[] = {"ipc:///tmp/fh-no-such-dir/fhd.sock", "tcp://127.0.0.1:9"};

	for (size_t i = 0; i < 2; i++) {
		struct fh_status st = FH_STATUS_INIT;
		struct fh_answer a;
		struct fh_client *c = client_of(url[i]);
		int64_t start = wait_now_ns();

		assert_int_equal(ping(c, 8000, &a, &st), FH_UNAVAILABLE);
		assert_true(since(start) < 4);
		assert_non_null(strstr(st.text, url[i]));
		fh_client_free(c);
	}
}

/* Something listens, accepts and never says a word: not even a handshake. */
static void a_mute_listener_does_not_hold_us(void **state)
{
	char dir[] = "/tmp/fh-mute-XXXXXX", url[128];
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	struct fh_status st = FH_STATUS_INIT;
	struct fh_answer a;
	struct fh_client *c;
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	int64_t start;

	assert_non_null(mkdtemp(dir));
	snprintf(to.sun_path, sizeof to.sun_path, "%s/s", dir);
	assert_int_equal(bind(fd, (struct sockaddr *)&to, sizeof to), 0);
	assert_int_equal(listen(fd, 4), 0);
	snprintf(url, sizeof url, "ipc://%s", to.sun_path);
	c = client_of(url);
	start = wait_now_ns();
	assert_int_equal(ping(c, 400, &a, &st), FH_UNAVAILABLE);
	assert_true(since(start) > 0.35 && since(start) < 3);
	fh_client_free(c);
	close(fd);
	unlink(to.sun_path);
	rmdir(dir);
}

static void no_answer_is_a_deadline_for_reads_and_unknown_for_changes(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_answer a;
	struct fake f;
	struct fh_client *c;
	int64_t start = wait_now_ns();

	fake_start(&f, answer_nothing, NULL);
	c = client_of(f.url);
	assert_int_equal(ping(c, 300, &a, &st), FH_DEADLINE);
	assert_int_equal(stop_job(c, 300, &a, &st), FH_UNKNOWN);
	assert_true(since(start) > 0.55 && since(start) < 5);
	/* The client is still usable. */
	f.answer = answer_ping;
	assert_int_equal(ping(c, 5000, &a, &st), 0);
	fh_answer_release(&a);
	fh_client_free(c);
	fake_stop(&f);
}

static void a_broken_connection_repeats_reads_only(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_answer a;
	struct fake f;
	struct fh_client *c;
	int64_t start = wait_now_ns();

	fake_start(&f, hang_up_once, NULL);
	c = client_of(f.url);
	assert_int_equal(ping(c, 5000, &a, &st), 0);
	fh_answer_release(&a);
	assert_int_equal(atomic_load(&f.requests), 2);
	assert_true(f.ids_equal); /* the same request id again */
	fh_client_free(c);
	fake_stop(&f);
	fake_start(&f, hang_up_once, NULL);
	c = client_of(f.url);
	assert_int_equal(stop_job(c, 5000, &a, &st), FH_UNKNOWN);
	assert_int_equal(atomic_load(&f.requests), 1);
	assert_true(since(start) < 4); /* noticed, not waited for */
	fh_client_free(c);
	fake_stop(&f);
}

static int answer_error(struct fake *f, const Fh__V1__Request *req, Fh__V1__Reply *reply)
{
	static Fh__V1__Error e;
	static struct fh_status st;

	(void)f;
	(void)req;
	fh_fail_field(&st, FH_CONFLICT, "name", "name is taken");
	fh_error_from_status(&e, &st);
	reply->error = &e;
	return 0;
}

static void errors_of_the_daemon_come_through(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_answer a;
	struct fake f;
	struct fh_client *c;

	fake_start(&f, answer_error, NULL);
	c = client_of(f.url);
	assert_int_equal(stop_job(c, 5000, &a, &st), FH_CONFLICT);
	assert_string_equal(st.field, "name");
	assert_string_equal(st.text, "name is taken");
	fh_client_free(c);
	fake_stop(&f);
}

static int answer_no_job(struct fake *f, const Fh__V1__Request *req, Fh__V1__Reply *reply)
{
	static Fh__V1__JobReply job = FH__V1__JOB_REPLY__INIT;

	(void)f;
	(void)req;
	reply->result_case = FH__V1__REPLY__RESULT_JOB;
	reply->job = &job;
	return 0;
}

static int answer_other_id(struct fake *f, const Fh__V1__Request *req, Fh__V1__Reply *reply)
{
	answer_ping(f, req, reply);
	reply->request_id = "another";
	return 0;
}

static int answer_other_protocol(struct fake *f, const Fh__V1__Request *req, Fh__V1__Reply *reply)
{
	answer_error(f, req, reply);
	reply->protocol = FH_PROTOCOL + 1;
	return 0;
}

static void strange_answers_are_told_apart(void **state)
{
	static const struct { fake_answer answer; const char *raw; size_t len; int code; } row[] = {
		{answer_raw, "", 0, FH_CORRUPT}, {answer_raw, "hello world", 11, FH_CORRUPT},
		{answer_raw, "\x08\xb1\x88\x91\xc2\x04\x10\x01\x52\xff", 10, FH_CORRUPT}, /* envelope, then cut */
		{answer_no_job, NULL, 0, FH_CORRUPT}, {answer_other_id, NULL, 0, FH_CORRUPT},
		{answer_other_protocol, NULL, 0, FH_VERSION},
	};

	for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
		struct fh_status st = FH_STATUS_INIT;
		struct fh_answer a;
		struct fake f;
		struct fh_client *c;
		int rc;

		fake_start(&f, row[i].answer, NULL);
		f.raw = row[i].raw;
		f.raw_len = row[i].len;
		c = client_of(f.url);
		rc = ping(c, 5000, &a, &st);
		if (rc != row[i].code)
			fail_msg("row %zu: %d, %s", i, rc, st.text);
		fh_client_free(c);
		fake_stop(&f);
	}
}

static void too_large_answers_are_not_taken(void **state)
{
	size_t n = FH_WIRE_DATA_MAX + 1000;
	char *big = calloc(1, n);
	struct fh_status st = FH_STATUS_INIT;
	struct fh_answer a;
	struct fake f;
	struct fh_client *c;

	assert_non_null(big);
	fake_start(&f, answer_raw, NULL);
	f.raw = big;
	f.raw_len = n;
	c = client_of(f.url);
	assert_int_equal(stop_job(c, 5000, &a, &st), FH_UNKNOWN);
	fh_client_free(c);
	fake_stop(&f);
	free(big);
}

static volatile int flag;

static int raise_flag(struct fake *f, const Fh__V1__Request *req, Fh__V1__Reply *reply)
{
	__atomic_store_n(&flag, 1, __ATOMIC_RELAXED);
	return answer_nothing(f, req, reply);
}

static void an_interrupt_ends_the_wait(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_answer a;
	struct fake f;
	struct fh_client *c;
	int64_t start;

	fake_start(&f, raise_flag, NULL);
	c = client_of(f.url);
	fh_client_interrupt(c, &flag);
	start = wait_now_ns();
	assert_int_equal(ping(c, 20000, &a, &st), FH_INTERRUPTED);
	assert_true(since(start) < 5);
	fh_client_free(c);
	fake_stop(&f);
}

static void addresses(void **state)
{
	char url[FH_URL_MAX], dir[] = "/tmp/fh-url-XXXXXX", path[64], longer[400];
	struct fh_status st = FH_STATUS_INIT;
	FILE *file;

	unsetenv("FHD_URL");
	unsetenv("XDG_RUNTIME_DIR");
	assert_int_equal(fh_client_url(NULL, url, &st), 0);
	assert_string_equal(url, "ipc:///run/fhd/fhd.sock");
	assert_non_null(mkdtemp(dir));
	setenv("XDG_RUNTIME_DIR", dir, 1);
	assert_int_equal(fh_client_url(NULL, url, &st), 0);
	assert_string_equal(url, "ipc:///run/fhd/fhd.sock"); /* no socket there */
	snprintf(path, sizeof path, "%s/fhd.sock", dir);
	file = fopen(path, "w");
	assert_non_null(file);
	fclose(file);
	assert_int_equal(fh_client_url(NULL, url, &st), 0);
	assert_int_equal(strncmp(url + 6, path, strlen(path)), 0);
	setenv("FHD_URL", "tcp://127.0.0.1:7", 1);
	assert_int_equal(fh_client_url(NULL, url, &st), 0);
	assert_string_equal(url, "tcp://127.0.0.1:7");
	assert_int_equal(fh_client_url("/tmp/x.sock", url, &st), 0);
	assert_string_equal(url, "ipc:///tmp/x.sock");
	assert_int_equal(fh_client_url("http://x", url, &st), FH_INVALID);
	assert_int_equal(fh_client_url("", url, &st), FH_INVALID);
	memset(longer, 'a', sizeof longer - 1);
	longer[sizeof longer - 1] = 0;
	memcpy(longer, "ipc://", 6);
	assert_int_equal(fh_client_url(longer, url, &st), FH_INVALID);
	unlink(path);
	rmdir(dir);
	unsetenv("FHD_URL");
	unsetenv("XDG_RUNTIME_DIR");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(calls_are_answered), cmocka_unit_test(nobody_there_is_told_at_once),
		cmocka_unit_test(a_mute_listener_does_not_hold_us),
		cmocka_unit_test(no_answer_is_a_deadline_for_reads_and_unknown_for_changes),
		cmocka_unit_test(a_broken_connection_repeats_reads_only),
		cmocka_unit_test(errors_of_the_daemon_come_through), cmocka_unit_test(strange_answers_are_told_apart),
		cmocka_unit_test(too_large_answers_are_not_taken), cmocka_unit_test(an_interrupt_ends_the_wait),
		cmocka_unit_test(addresses),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);

	nng_fini(); /* what its threads still hold */
	return failed;
}
