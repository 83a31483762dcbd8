/* Promises of the HTTP pages: right answers to right requests, a short clear one to everything else, bounds on size, time and
 * number of connections, and only on this machine unless somebody insists. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "daemon/http.h"
#include "proto/status.h"

static uv_loop_t loop;
static struct http *http;
static int sick;

static size_t metrics(void *arg, char *text, size_t size)
{
	return (size_t)snprintf(text, size, "fhd_up 1\n");
}

static int healthy(void *arg, char *why, size_t size)
{
	snprintf(why, size, "worker 0 has not moved");
	return !sick;
}

static const struct http_source source = {metrics, healthy, healthy, NULL};

static int setup(void **state)
{
	sick = 0;
	uv_loop_init(&loop);
	return http_listen(&loop, "127.0.0.1:0", 0, &source, &http, NULL);
}

static int teardown(void **state)
{
	http_close(http);
	uv_run(&loop, UV_RUN_DEFAULT);
	return uv_loop_close(&loop);
}

static int dial(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)http_port(http)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct timeval limit = {20, 0};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
	return fd;
}

/* The client is a thread that reads to the end, while the loop runs here. */
static struct { int fd; size_t n; char text[8192]; uv_async_t done; int finished; } client;

static void *read_all(void *arg)
{
	ssize_t n;

	while (client.n < sizeof client.text - 1 && (n = read(client.fd, client.text + client.n, sizeof client.text - 1 - client.n)) > 0)
		client.n += (size_t)n;
	client.text[client.n] = 0;
	uv_async_send(&client.done);
	return NULL;
}

static void on_finished(uv_async_t *h)
{
	client.finished = 1;
}

static const char *reply_to(const void *bytes, size_t n)
{
	pthread_t t;

	memset(&client, 0, sizeof client);
	client.fd = dial();
	assert_true(write(client.fd, bytes, n) == (ssize_t)n);
	uv_async_init(&loop, &client.done, on_finished);
	pthread_create(&t, NULL, read_all, NULL);
	while (!client.finished)
		uv_run(&loop, UV_RUN_ONCE);
	pthread_join(t, NULL);
	close(client.fd);
	uv_close((uv_handle_t *)&client.done, NULL);
	uv_run(&loop, UV_RUN_NOWAIT);
	return client.text;
}

static const char *ask(const char *request)
{
	return reply_to(request, strlen(request));
}

static void expect(const char *reply, const char *start, const char *end)
{
	size_t n = strlen(reply), k = strlen(end);

	if (strncmp(reply, start, strlen(start)) || n < k || strcmp(reply + n - k, end))
		fail_msg("got \"%s\", not %s … %s", reply, start, end);
}

static void test_pages(void **state)
{
	expect(ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), "HTTP/1.1 200 OK\r\n", "\r\n\r\nfhd_up 1\n");
	assert_non_null(strstr(client.text, "Content-Length: 9\r\n"));
	assert_non_null(strstr(client.text, "version=0.0.4"));
	expect(ask("GET /metrics?x=1 HTTP/1.0\r\n\r\n"), "HTTP/1.1 200", "fhd_up 1\n");
	expect(ask("HEAD /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 200", "\r\n\r\n");
	expect(ask("GET /healthz HTTP/1.1\r\n\r\n"), "HTTP/1.1 200", "\r\n\r\nok\n");
	sick = 1;
	expect(ask("GET /healthz HTTP/1.1\r\n\r\n"), "HTTP/1.1 503", "worker 0 has not moved\n");
	expect(ask("GET /readyz HTTP/1.1\r\n\r\n"), "HTTP/1.1 503", "worker 0 has not moved\n");
}

static void test_everything_else(void **state)
{
	char large[HTTP_REQUEST_BYTES + 1000];

	expect(ask("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 404", "\n");
	expect(ask("GET /../../etc/passwd HTTP/1.1\r\n\r\n"), "HTTP/1.1 404", "\n");
	expect(ask("GET /%AF HTTP/1.1\r\n\r\n"), "HTTP/1.1 404", "\n");
	expect(ask("GET /metricsx HTTP/1.1\r\n\r\n"), "HTTP/1.1 404", "\n");
	expect(ask("POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"), "HTTP/1.1 405", "\n");
	assert_non_null(strstr(client.text, "Allow: GET, HEAD\r\n"));
	expect(ask("\r\n\r\n"), "HTTP/1.1 400", "\n");
	expect(ask("GET\r\n\r\n"), "HTTP/1.1 400", "\n");
	expect(ask("GET /metrics\r\n\r\n"), "HTTP/1.1 400", "\n");
	expect(ask("GET /metrics SMTP/1.1\r\n\r\n"), "HTTP/1.1 400", "\n");
	expect(ask("GET /metrics HTTP/1.1 extra\r\n\r\n"), "HTTP/1.1 400", "\n");
	expect(reply_to("GET /metrics\0 HTTP/1.1\r\n\r\n", 27), "HTTP/1.1 400", "\n");
	memset(large, 'x', sizeof large);
	memcpy(large, "GET /", 5);
	expect(reply_to(large, HTTP_REQUEST_BYTES), "HTTP/1.1 431", "\n");
}

static int closed_by_server(int fd)
{
	char byte;

	return recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}

/* Peers that say nothing: those beyond the bound are closed at once, the others when their time is over; meanwhile nobody else
 * is refused for longer than that. */
static void test_silent_peers(void **state)
{
	int fd[HTTP_CONNECTIONS_MAX + 5], closed = 0;
	uint64_t begin = uv_hrtime();

	for (int i = 0; i < HTTP_CONNECTIONS_MAX + 5; i++) {
		fd[i] = dial();
		for (int k = 0; k < 5; k++)
			uv_run(&loop, UV_RUN_NOWAIT);
	}
	for (int i = 0; i < HTTP_CONNECTIONS_MAX + 5; i++)
		closed += closed_by_server(fd[i]);
	assert_int_equal(closed, 5);
	while (closed < HTTP_CONNECTIONS_MAX + 5) {
		uv_run(&loop, UV_RUN_ONCE); /* until a timer */
		closed = 0;
		for (int i = 0; i < HTTP_CONNECTIONS_MAX + 5; i++)
			closed += closed_by_server(fd[i]);
	}
	assert_true(uv_hrtime() - begin < 2 * (uint64_t)HTTP_DEADLINE_MS * 1000000);
	for (int i = 0; i < HTTP_CONNECTIONS_MAX + 5; i++)
		close(fd[i]);
	expect(ask("GET /healthz HTTP/1.1\r\n\r\n"), "HTTP/1.1 200", "ok\n");
}

static void test_peers_that_leave(void **state)
{
	struct linger hard = {1, 0};

	for (int i = 0; i < 50; i++) {
		int fd = dial();

		if (i % 2)
			assert_true(write(fd, "GET /metrics HTTP/1.1\r\n\r\n", 25) == 25);
		if (i % 3)
			setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
		close(fd);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	expect(ask("GET /healthz HTTP/1.1\r\n\r\n"), "HTTP/1.1 200", "ok\n");
}

static void test_addresses(void **state)
{
	static const char *const bad[] = {"", "9178", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "localhost:80", "::1:80",
					  "[::1]", "[::1:80", "127.0.0.1:80 "};
	struct fh_status st = FH_STATUS_INIT;
	struct http *h = NULL;
	char same[64];

	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(http_listen(&loop, bad[i], 0, &source, &h, &st), FH_INVALID);
	assert_int_equal(http_listen(&loop, "0.0.0.0:0", 0, &source, &h, &st), FH_DENIED);
	assert_int_equal(http_listen(&loop, "[::]:0", 0, &source, &h, &st), FH_DENIED);
	assert_null(h);
	snprintf(same, sizeof same, "127.0.0.1:%d", http_port(http));
	assert_int_equal(http_listen(&loop, same, 0, &source, &h, &st), FH_UNAVAILABLE);
	assert_string_equal(st.field, "http");
	assert_int_equal(http_listen(&loop, "0.0.0.0:0", 1, &source, &h, &st), 0);
	http_close(h);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_pages), T(test_everything_else), T(test_silent_peers), T(test_peers_that_leave), T(test_addresses),
	};

	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
