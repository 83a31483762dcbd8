/* The front door of an ipc listener, in front of a small server of our own instead of NNG: bytes pass both ways, only
 * complete hellos of the right protocol get through, half-open peers are bounded, a dead inner listener is brought back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/gate.h"
#include "daemon/limits.h"

#define REQ 0x30

static const unsigned char hello_req[8] = {0, 'S', 'P', 0, 0, REQ, 0, 0}, hello_rep[8] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};

static uv_loop_t loop;
static struct gate *gate;
static char dir[64], path[100], inner[100];
static uv_pipe_t server;
static int server_open, inner_connections, deaths;

/* ---------------------------------------------------------------- the server behind: says hello, then echoes */

struct peer { uv_pipe_t pipe; uv_write_t write; char buffer[65536]; size_t got; };

static void peer_free(uv_handle_t *h)
{
	free(h->data);
}

static void peer_written(uv_write_t *w, int status);

static void peer_alloc(uv_handle_t *h, size_t n, uv_buf_t *buf)
{
	struct peer *p = h->data;

	*buf = uv_buf_init(p->buffer, sizeof p->buffer);
}

static void peer_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
	struct peer *p = s->data;
	uv_buf_t out = uv_buf_init(p->buffer, n > 0 ? (unsigned)n : 0);

	if (n < 0) {
		uv_close((uv_handle_t *)s, peer_free);
		return;
	}
	if (n == 0)
		return;
	if (!p->got)
		memcpy(p->buffer, hello_rep, 8); /* the first 8 bytes are the hello: the gate sends it in one piece */
	p->got += (size_t)n;
	uv_read_stop(s);
	p->write.data = p;
	uv_write(&p->write, s, &out, 1, peer_written);
}

static void peer_written(uv_write_t *w, int status)
{
	struct peer *p = w->data;

	if (status == 0)
		uv_read_start((uv_stream_t *)&p->pipe, peer_alloc, peer_read);
}

static void on_inner(uv_stream_t *s, int status)
{
	struct peer *p = calloc(1, sizeof *p);

	inner_connections++;
	uv_pipe_init(&loop, &p->pipe, 0);
	p->pipe.data = p;
	assert_int_equal(uv_accept(s, (uv_stream_t *)&p->pipe), 0);
	uv_read_start((uv_stream_t *)&p->pipe, peer_alloc, peer_read);
}

static void server_listen(void)
{
	unlink(inner);
	uv_pipe_init(&loop, &server, 0);
	assert_int_equal(uv_pipe_bind(&server, inner), 0);
	assert_int_equal(uv_listen((uv_stream_t *)&server, 128, on_inner), 0);
	server_open = 1;
}

static void on_dead(void *ctx)
{
	deaths++;
	if (!server_open)
		server_listen();
}

/* ---------------------------------------------------------------- rig */

static int setup(void **state)
{
	struct gate_config c = {.loop = &loop, .path = path, .inner = inner, .peer_proto = REQ, .mode = 0660, .dead = on_dead};

	strcpy(dir, "/tmp/fhd-gate-XXXXXX");
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/s", dir);
	snprintf(inner, sizeof inner, "%s/s.in", dir);
	inner_connections = deaths = 0;
	uv_loop_init(&loop);
	server_listen();
	return gate_new(&c, &gate, NULL);
}

static int teardown(void **state)
{
	gate_close_begin(gate);
	gate_free(gate);
	if (server_open)
		uv_close((uv_handle_t *)&server, NULL);
	server_open = 0;
	uv_run(&loop, UV_RUN_DEFAULT); /* ends only when every handle is closed */
	assert_int_equal(uv_loop_close(&loop), 0);
	assert_int_equal(access(path, F_OK), -1);
	unlink(inner);
	return rmdir(dir);
}

static int client(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	strcpy(a.sun_path, path);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	return fd;
}

static void expire(uv_timer_t *t)
{
	*(int *)t->data = 1;
}

/* Turns the loop until n bytes have come or the peer has closed; returns how many came. */
static size_t receive(int fd, void *to, size_t n)
{
	size_t got = 0;
	int late = 0;
	uv_timer_t timer;

	uv_timer_init(&loop, &timer);
	timer.data = &late;
	uv_timer_start(&timer, expire, 20000, 0);
	while (got < n && !late) {
		ssize_t r = read(fd, (char *)to + got, n - got);

		if (r == 0 || (r < 0 && errno != EAGAIN))
			break;
		if (r > 0)
			got += (size_t)r;
		else
			uv_run(&loop, UV_RUN_ONCE);
	}
	uv_close((uv_handle_t *)&timer, NULL);
	uv_run(&loop, UV_RUN_NOWAIT);
	assert_false(late);
	return got;
}

static int joined(void)
{
	unsigned char answer[8];
	int fd = client();

	assert_int_equal(write(fd, hello_req, 8), 8);
	assert_int_equal(receive(fd, answer, 8), 8);
	assert_memory_equal(answer, hello_rep, 8);
	return fd;
}

/* ---------------------------------------------------------------- promises */

static void bytes_pass_both_ways(void **state)
{
	int fd = joined();
	static unsigned char out[300000], in[300000];
	size_t sent = 0, got = 0;

	for (size_t i = 0; i < sizeof out; i++)
		out[i] = (unsigned char)(i * 31 + i / 7);
	while (got < sizeof in) {
		ssize_t w = sent < sizeof out ? write(fd, out + sent, sizeof out - sent) : 0, r;

		sent += w > 0 ? (size_t)w : 0;
		uv_run(&loop, UV_RUN_NOWAIT);
		r = read(fd, in + got, sizeof in - got);
		got += r > 0 ? (size_t)r : 0;
	}
	assert_memory_equal(in, out, sizeof in);
	close(fd);
}

static void a_hello_may_come_in_pieces(void **state)
{
	unsigned char answer[8];
	int fd = client();

	for (int i = 0; i < 8; i++) {
		assert_int_equal(write(fd, hello_req + i, 1), 1);
		for (int k = 0; k < 3; k++)
			uv_run(&loop, UV_RUN_NOWAIT);
	}
	assert_int_equal(receive(fd, answer, 8), 8);
	close(fd);
}

static void only_a_complete_hello_of_the_right_protocol_gets_through(void **state)
{
	static const unsigned char pair[8] = {0, 'S', 'P', 0, 0, 0x10, 0, 0};
	char byte;
	int fd;

	for (int i = 0; i < 300; i++) {
		fd = client();
		if (i % 3)
			assert_true(write(fd, i % 3 == 1 ? "\0SP" : "GET / HTTP/1.1\r\n\r\n", 3) > 0);
		close(fd);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	fd = client();
	assert_int_equal(write(fd, pair, 8), 8);
	assert_int_equal(receive(fd, &byte, 1), 0);
	close(fd);
	fd = client();
	assert_int_equal(write(fd, "GET / HTTP/1.1\r\n\r\n", 18), 18);
	assert_int_equal(receive(fd, &byte, 1), 0);
	close(fd);
	assert_int_equal(inner_connections, 0);
	close(joined());
	assert_int_equal(inner_connections, 1);
	assert_int_equal(deaths, 0);
}

static void half_open_peers_are_bounded_and_do_not_keep_others_out(void **state)
{
	int fd[LIMIT_HALF_OPEN + 20];
	char byte;

	for (int i = 0; i < LIMIT_HALF_OPEN + 20; i++) {
		fd[i] = client();
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	assert_int_equal(receive(fd[0], &byte, 1), 0); /* the oldest had to go */
	assert_true(gate_connections(gate) <= LIMIT_HALF_OPEN);
	close(joined());
	for (int i = 0; i < LIMIT_HALF_OPEN + 20; i++)
		close(fd[i]);
}

static void a_dead_listener_is_brought_back_and_the_client_only_waits(void **state)
{
	uv_close((uv_handle_t *)&server, NULL);
	server_open = 0;
	uv_run(&loop, UV_RUN_NOWAIT);
	close(joined());
	assert_int_equal(deaths, 1);
}

static void the_socket_is_not_for_everyone(void **state)
{
	struct stat sb;

	assert_int_equal(stat(path, &sb), 0);
	assert_int_equal(sb.st_mode & 0777, 0660);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(bytes_pass_both_ways, setup, teardown),
		cmocka_unit_test_setup_teardown(a_hello_may_come_in_pieces, setup, teardown),
		cmocka_unit_test_setup_teardown(only_a_complete_hello_of_the_right_protocol_gets_through, setup, teardown),
		cmocka_unit_test_setup_teardown(half_open_peers_are_bounded_and_do_not_keep_others_out, setup, teardown),
		cmocka_unit_test_setup_teardown(a_dead_listener_is_brought_back_and_the_client_only_waits, setup, teardown),
		cmocka_unit_test_setup_teardown(the_socket_is_not_for_everyone, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
