/* Requests over a Unix socket by hand: what a listener may do wrong, and that nothing outlasts its deadline. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>
#include "client/ipc.h"
#include "client/wait.h"
#include "proto/status.h"

#define MS 1000000
#define SOON_MS 200
#define LATE_MS 20000
#define MOST 4096

/* One connection, served by a script. */
static struct {
	char dir[32], path[64], url[80];
	int fd;
	pthread_t thread;
	const unsigned char *greeting;
	size_t greeting_bytes;
	int reads;             /* the request is read before anything is answered */
	unsigned char answer[MOST * 4];
	size_t answer_bytes;
	int id;                /* the request's id is put at 9 */
	int piecemeal;         /* a byte at a time */
	int hold;              /* the connection stays open behind the answer, until the client closes it */
	unsigned char got[256];
} server;

static const unsigned char rep[8] = {0, 'S', 'P', 0, 0, 0x31, 0, 0}, pub[8] = {0, 'S', 'P', 0, 0, 0x20, 0, 0};

static void say(int fd, const unsigned char *data, size_t bytes)
{
	for (size_t at = 0, n; at < bytes; at += n) {
		n = server.piecemeal ? 1 : bytes - at;
		if (send(fd, data + at, n, MSG_NOSIGNAL) != (ssize_t)n)
			return;
	}
}

static void *serve(void *arg)
{
	int fd = accept(server.fd, NULL, NULL);
	unsigned char hello[8], rest[64];

	(void)arg;
	if (fd < 0)
		return NULL;
	if (recv(fd, hello, 8, MSG_WAITALL) == 8)
		say(fd, server.greeting, server.greeting_bytes);
	if (server.reads && recv(fd, server.got, 13, MSG_WAITALL) == 13) {
		size_t body = server.got[8] - 4u;

		if (recv(fd, server.got + 13, body, MSG_WAITALL) == (ssize_t)body && server.id)
			memcpy(server.answer + 9, server.got + 9, 4);
		say(fd, server.answer, server.answer_bytes);
	}
	while (server.hold && recv(fd, rest, sizeof rest, 0) > 0)
		;
	close(fd);
	return NULL;
}

static int setup(void **state)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};

	memset(&server, 0, sizeof server);
	strcpy(server.dir, "/tmp/fhipcXXXXXX");
	assert_non_null(mkdtemp(server.dir));
	snprintf(server.path, sizeof server.path, "%s/s", server.dir);
	snprintf(server.url, sizeof server.url, "ipc://%s", server.path);
	snprintf(at.sun_path, sizeof at.sun_path, "%s", server.path);
	server.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(server.fd, (struct sockaddr *)&at, sizeof at), 0);
	assert_int_equal(listen(server.fd, 1), 0);
	server.greeting = rep;
	server.greeting_bytes = server.reads = server.id = 8;
	server.hold = 1;
	server.answer[0] = 1;
	return 0;
}

static int teardown(void **state)
{
	close(server.fd);
	unlink(server.path);
	rmdir(server.dir);
	return 0;
}

static void begin(void)
{
	assert_int_equal(pthread_create(&server.thread, NULL, serve, NULL), 0);
}

static int open_it(int64_t ms, int *fd, struct fh_status *st)
{
	return ipc_open(server.url, wait_now_ns() + ms * MS, NULL, fd, st);
}

/* What an exchange of "ask" gives; `text` the answer. */
static int exchange(int64_t ms, char text[MOST + 1], int *sent)
{
	struct fh_status st = FH_STATUS_INIT;
	void *reply = NULL;
	size_t bytes = 0;
	int fd, rc;

	begin();
	if (open_it(LATE_MS, &fd, &st))
		fail_msg("%s", st.text);
	*sent = 0;
	rc = ipc_exchange(fd, "ask", 3, MOST, wait_now_ns() + ms * MS, NULL, sent, &reply, &bytes);
	close(fd);
	pthread_join(server.thread, NULL);
	if (rc == 0) {
		memcpy(text, reply, bytes);
		text[bytes] = 0;
	}
	free(reply);
	return rc;
}

static void answer(size_t claimed, const char *body)
{
	for (int i = 0; i < 8; i++)
		server.answer[1 + i] = (unsigned char)(claimed >> 8 * (7 - i));
	memcpy(server.answer + 13, body, strlen(body));
	server.answer_bytes = 13 + strlen(body);
}

static void a_request_and_its_answer(void **state)
{
	static const unsigned char head[9] = {1, 0, 0, 0, 0, 0, 0, 0, 7};
	char text[MOST + 1];
	int sent;

	answer(4 + 6, "answer");
	assert_int_equal(exchange(LATE_MS, text, &sent), 0);
	assert_string_equal(text, "answer");
	assert_int_equal(sent, 1);
	assert_memory_equal(server.got, head, 9);
	assert_true(server.got[9] & 0x80);
	assert_memory_equal(server.got + 13, "ask", 3);
}

static void an_answer_may_come_a_byte_at_a_time_and_be_empty(void **state)
{
	char text[MOST + 1];
	int sent;

	server.piecemeal = 1;
	answer(4 + 6, "answer");
	assert_int_equal(exchange(LATE_MS, text, &sent), 0);
	assert_string_equal(text, "answer");
	answer(4, "");
	assert_int_equal(exchange(LATE_MS, text, &sent), 0);
	assert_string_equal(text, "");
}

static void what_is_no_answer_to_the_request_is_refused(void **state)
{
	char text[MOST + 1];
	int sent;

	answer(3, ""); /* shorter than an id */
	assert_int_equal(exchange(LATE_MS, text, &sent), FH_CORRUPT);
	answer((size_t)1 << 60, "");
	assert_int_equal(exchange(LATE_MS, text, &sent), FH_CORRUPT);
	answer(4 + MOST + 1, "");
	assert_int_equal(exchange(LATE_MS, text, &sent), FH_CORRUPT);
	answer(4 + 1, "x");
	server.answer[0] = 2;
	assert_int_equal(exchange(LATE_MS, text, &sent), FH_CORRUPT);
	server.answer[0] = 1;
	server.id = 0; /* of another request */
	assert_int_equal(exchange(LATE_MS, text, &sent), FH_CORRUPT);
}

static void a_connection_that_breaks_is_told_from_one_that_is_slow(void **state)
{
	char text[MOST + 1];
	int sent;

	server.hold = 0;
	answer(4 + 100, "the beginning of it");
	assert_int_equal(exchange(LATE_MS, text, &sent), 1);
	assert_int_equal(sent, 1);
	server.hold = 1;
	assert_int_equal(exchange(SOON_MS, text, &sent), FH_DEADLINE);
	assert_int_equal(sent, 1);
}

static void listeners_that_are_not_ours(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	int fd;

	server.greeting = pub;
	server.reads = 0;
	begin();
	assert_int_equal(open_it(LATE_MS, &fd, &st), FH_UNAVAILABLE);
	assert_non_null(strstr(st.text, "is not fhd"));
	pthread_join(server.thread, NULL);
	server.greeting_bytes = 3; /* and then silence */
	begin();
	assert_int_equal(open_it(SOON_MS, &fd, &st), FH_UNAVAILABLE);
	assert_non_null(strstr(st.text, "does not answer"));
	pthread_join(server.thread, NULL);
	server.hold = 0; /* or the end */
	begin();
	assert_int_equal(open_it(LATE_MS, &fd, &st), FH_UNAVAILABLE);
	pthread_join(server.thread, NULL);
}

static void nobody_there(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	char far[200];
	int fd;

	assert_int_equal(ipc_open("ipc:///nowhere/at/all", wait_now_ns() + LATE_MS * (int64_t)MS, NULL, &fd, &st), FH_UNAVAILABLE);
	assert_non_null(strstr(st.text, "no daemon answers"));
	memset(far, 'a', sizeof far);
	memcpy(far, "ipc:///", 7);
	far[sizeof far - 1] = 0;
	assert_int_equal(ipc_open(far, wait_now_ns() + LATE_MS * (int64_t)MS, NULL, &fd, &st), FH_INVALID);
	assert_null(ipc_path("tcp://127.0.0.1:1"));
	assert_string_equal(ipc_path("ipc:///a/b"), "/a/b");
}

/* A queue that is full says "later": that is waited for, until the deadline or the interrupt. */
static void a_full_listener_is_waited_for(void **state)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	static const volatile int interrupted = 1;
	struct fh_status st = FH_STATUS_INIT;
	int waiting[16], n = 0, fd;
	int64_t began = wait_now_ns();

	snprintf(at.sun_path, sizeof at.sun_path, "%s", server.path);
	do
		waiting[n] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
	while (connect(waiting[n], (struct sockaddr *)&at, sizeof at) == 0 && ++n < 15);
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(open_it(SOON_MS, &fd, &st), FH_UNAVAILABLE);
	assert_true(wait_now_ns() - began >= SOON_MS * (int64_t)MS);
	assert_int_equal(ipc_open(server.url, wait_now_ns() + LATE_MS * (int64_t)MS, &interrupted, &fd, &st), FH_INTERRUPTED);
	for (; n >= 0; n--)
		close(waiting[n]);
}

static void a_broken_connection_is_noticed_before_it_is_used(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	int fd;

	server.reads = server.hold = 0;
	begin();
	assert_int_equal(open_it(LATE_MS, &fd, &st), 0);
	pthread_join(server.thread, NULL);
	assert_int_equal(ipc_is_broken(fd), 1);
	close(fd);
	server.hold = 1;
	begin();
	assert_int_equal(open_it(LATE_MS, &fd, &st), 0);
	assert_int_equal(ipc_is_broken(fd), 0);
	close(fd);
	pthread_join(server.thread, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_request_and_its_answer, setup, teardown),
		cmocka_unit_test_setup_teardown(an_answer_may_come_a_byte_at_a_time_and_be_empty, setup, teardown),
		cmocka_unit_test_setup_teardown(what_is_no_answer_to_the_request_is_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(a_connection_that_breaks_is_told_from_one_that_is_slow, setup, teardown),
		cmocka_unit_test_setup_teardown(listeners_that_are_not_ours, setup, teardown),
		cmocka_unit_test_setup_teardown(nobody_there, setup, teardown),
		cmocka_unit_test_setup_teardown(a_full_listener_is_waited_for, setup, teardown),
		cmocka_unit_test_setup_teardown(a_broken_connection_is_noticed_before_it_is_used, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
