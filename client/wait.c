/* Waiting inside the client library; see wait.h. Any thread. */
#include "client/wait.h"

#include <errno.h>
#include <nng/nng.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define CLOSE_MS 1000

int64_t wait_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int wait_interrupted(const volatile int *flag)
{
	return flag && __atomic_load_n(flag, __ATOMIC_RELAXED);
}

int wait_fds(struct pollfd *fd, int n, int64_t deadline_ns, const volatile int *interrupt)
{
	for (;;) {
		int64_t left_ms = (deadline_ns - wait_now_ns() + 999999) / 1000000;
		int rc;

		if (wait_interrupted(interrupt))
			return WAIT_INTERRUPTED;
		if (left_ms < 0)
			left_ms = 0;
		rc = poll(fd, (nfds_t)n, (int)(left_ms < WAIT_SLICE_MS ? left_ms : WAIT_SLICE_MS));
		if (rc > 0)
			return WAIT_READY;
		if (rc < 0 && errno != EINTR)
			return WAIT_TIMEOUT;
		if (wait_now_ns() >= deadline_ns)
			return WAIT_TIMEOUT;
	}
}

static unsigned handed_over;

void wait_give(void)
{
	__atomic_add_fetch(&handed_over, 1, __ATOMIC_RELEASE);
}

void wait_take(void)
{
	__atomic_load_n(&handed_over, __ATOMIC_ACQUIRE);
}

/* Shared by the closing thread and the one that waits for it; the last of the two frees it. */
struct closing {
	nng_socket sock;
	int done_fd, users;
};

static void closing_release(struct closing *c)
{
	if (__atomic_sub_fetch(&c->users, 1, __ATOMIC_ACQ_REL))
		return;
	close(c->done_fd);
	free(c);
}

static void *close_thread(void *arg)
{
	struct closing *c = arg;
	uint64_t one = 1;

	nng_close(c->sock);
	while (write(c->done_fd, &one, sizeof one) < 0 && errno == EINTR)
		;
	closing_release(c);
	return NULL;
}

int wait_close(struct nng_socket_s sock)
{
	struct closing *c = malloc(sizeof *c);
	pthread_t thread;
	struct pollfd fd = {.events = POLLIN};
	uint64_t n;
	int waited, done;

	if (!c)
		return -1;
	*c = (struct closing){.sock = sock, .done_fd = eventfd(0, EFD_CLOEXEC), .users = 2};
	if (c->done_fd < 0 || pthread_create(&thread, NULL, close_thread, c)) {
		if (c->done_fd >= 0)
			close(c->done_fd);
		free(c);
		return -1;
	}
	pthread_detach(thread);
	fd.fd = c->done_fd;
	waited = wait_fds(&fd, 1, wait_now_ns() + (int64_t)CLOSE_MS * 1000000, NULL);
	done = waited == WAIT_READY && read(c->done_fd, &n, sizeof n) == (ssize_t)sizeof n;
	closing_release(c);
	wait_take();
	return done ? 0 : -1;
}
