/* SP on a Unix socket; see ipc.h. Every descriptor is non-blocking, all waiting is wait_fds(). */
#include "client/ipc.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/wait.h"
#include "proto/status.h"

#define GREETING_BYTES 8
#define HEAD_BYTES 9          /* of a message: its kind and its length */
#define ID_BYTES 4
#define ID_LAST 0x80000000u   /* set in the last id of a request's path: ours is the only one */
#define KIND_MESSAGE 1
#define BUSY_MS 10            /* before a listener whose queue is full is tried again */

static const unsigned char req_says[GREETING_BYTES] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
static const unsigned char rep_says[GREETING_BYTES] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};

const char *ipc_path(const char *url)
{
	return strncmp(url, "ipc://", 6) ? NULL : url + 6;
}

/* ---------------------------------------------------------------- bytes */

/* 0, 1: broken, FH_DEADLINE, FH_INTERRUPTED. */
static int wait_for(int fd, short events, int64_t deadline_ns, const volatile int *interrupt)
{
	struct pollfd p = {.fd = fd, .events = events};
	int waited = wait_fds(&p, 1, deadline_ns, interrupt);

	if (waited == WAIT_READY)
		return 0;
	return waited == WAIT_INTERRUPTED ? FH_INTERRUPTED : FH_DEADLINE;
}

static int again(void)
{
	return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

static int read_all(int fd, void *to, size_t bytes, int64_t deadline_ns, const volatile int *interrupt)
{
	for (size_t at = 0; at < bytes;) {
		ssize_t n = recv(fd, (char *)to + at, bytes - at, 0);
		int rc = 0;

		if (n == 0 || (n < 0 && !again()))
			return 1;
		if (n > 0)
			at += (size_t)n;
		else
			rc = wait_for(fd, POLLIN, deadline_ns, interrupt);
		if (rc)
			return rc;
	}
	return 0;
}

static int write_all(int fd, struct iovec *part, int parts, int64_t deadline_ns, const volatile int *interrupt, int *sent)
{
	while (parts) {
		struct msghdr m = {.msg_iov = part, .msg_iovlen = (size_t)parts};
		ssize_t n = sendmsg(fd, &m, MSG_NOSIGNAL);
		int rc = 0;

		if (n < 0 && !again())
			return 1;
		if (n < 0)
			rc = wait_for(fd, POLLOUT, deadline_ns, interrupt);
		if (rc)
			return rc;
		for (*sent |= n > 0; n > 0;) {
			size_t now = (size_t)n < part->iov_len ? (size_t)n : part->iov_len;

			part->iov_base = (char *)part->iov_base + now;
			part->iov_len -= now;
			n -= (ssize_t)now;
			if (!part->iov_len)
				part++, parts--;
		}
	}
	return 0;
}

/* ---------------------------------------------------------------- connecting */

static int failed(const char *url, int error, struct fh_status *st)
{
	switch (error) {
	case EPERM: case EACCES:
		return fh_fail(st, FH_DENIED, "not allowed to connect to %s", url);
	case ECONNREFUSED: case ENOENT: case ECONNRESET: case EPIPE: case ENOTDIR:
		return fh_fail(st, FH_UNAVAILABLE, "no daemon answers at %s", url);
	case ETIMEDOUT:
		return fh_fail(st, FH_UNAVAILABLE, "%s accepts connections but does not answer", url);
	case EPROTO: case EPROTOTYPE: case ENOTSOCK:
		return fh_fail(st, FH_UNAVAILABLE, "what listens at %s is not fhd", url);
	case EINTR:
		return fh_fail(st, FH_INTERRUPTED, "interrupted");
	default:
		return fh_fail(st, FH_UNAVAILABLE, "cannot connect to %s: %s", url, strerror(error));
	}
}

/* A listener with a full queue says EAGAIN and means: later. Returns an errno. */
static int connect_path(int fd, const struct sockaddr_un *to, int64_t deadline_ns, const volatile int *interrupt)
{
	while (connect(fd, (const struct sockaddr *)to, sizeof *to)) {
		int64_t later = wait_now_ns() + (int64_t)BUSY_MS * 1000000;

		if (errno != EAGAIN && errno != EINTR)
			return errno;
		if (wait_fds(NULL, 0, later < deadline_ns ? later : deadline_ns, interrupt) == WAIT_INTERRUPTED)
			return EINTR;
		if (wait_now_ns() >= deadline_ns)
			return ETIMEDOUT;
	}
	return 0;
}

static int greet(int fd, int64_t deadline_ns, const volatile int *interrupt)
{
	struct iovec part = {(void *)req_says, GREETING_BYTES};
	unsigned char says[GREETING_BYTES];
	int sent = 0, rc = write_all(fd, &part, 1, deadline_ns, interrupt, &sent);

	if (rc == 0)
		rc = read_all(fd, says, sizeof says, deadline_ns, interrupt);
	if (rc == FH_DEADLINE)
		return ETIMEDOUT;
	if (rc == FH_INTERRUPTED)
		return EINTR;
	if (rc)
		return ECONNRESET;
	return memcmp(says, rep_says, sizeof says) ? EPROTO : 0;
}

int ipc_open(const char *url, int64_t deadline_ns, const volatile int *interrupt, int *out, struct fh_status *st)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	const char *path = ipc_path(url);
	int fd, error;

	if (strlen(path) >= sizeof to.sun_path)
		return fh_fail(st, FH_INVALID, "%s is not a usable address", url);
	strcpy(to.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return fh_fail(st, FH_EXHAUSTED, "cannot open a socket: %s", strerror(errno));
	error = connect_path(fd, &to, deadline_ns, interrupt);
	if (!error)
		error = greet(fd, deadline_ns, interrupt);
	if (error)
		close(fd);
	if (error == EPIPE || error == ECONNRESET) /* the daemon does so to users that its setting roles leaves out */
		return fh_fail(st, FH_UNAVAILABLE, "%s closed the connection at once: it stops, or has no role for this user", url);
	if (error)
		return failed(url, error, st);
	*out = fd;
	return 0;
}

int ipc_is_broken(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, 0) != 0;
}

/* ---------------------------------------------------------------- one request */

static void put_big(unsigned char *to, uint64_t v, int bytes)
{
	for (int i = bytes - 1; i >= 0; i--, v >>= 8)
		to[i] = (unsigned char)v;
}

static uint64_t get_big(const unsigned char *from, int bytes)
{
	uint64_t v = 0;

	for (int i = 0; i < bytes; i++)
		v = v << 8 | from[i];
	return v;
}

static uint32_t new_id(void)
{
	uint32_t id;

	if (getrandom(&id, sizeof id, GRND_NONBLOCK) != (ssize_t)sizeof id)
		id = (uint32_t)wait_now_ns();
	return id | ID_LAST;
}

int ipc_exchange(int fd, const void *request, size_t bytes, size_t most, int64_t deadline_ns, const volatile int *interrupt, int *sent,
		 void **reply, size_t *reply_bytes)
{
	unsigned char head[HEAD_BYTES + ID_BYTES];
	struct iovec part[2] = {{head, sizeof head}, {(void *)request, bytes}};
	uint32_t id = new_id();
	uint64_t size;
	void *body;
	int rc;

	head[0] = KIND_MESSAGE;
	put_big(head + 1, bytes + ID_BYTES, 8);
	put_big(head + HEAD_BYTES, id, ID_BYTES);
	rc = write_all(fd, part, bytes ? 2 : 1, deadline_ns, interrupt, sent);
	if (rc == 0)
		rc = read_all(fd, head, sizeof head, deadline_ns, interrupt);
	if (rc)
		return rc;
	size = get_big(head + 1, 8);
	if (head[0] != KIND_MESSAGE || size < ID_BYTES || size - ID_BYTES > most || get_big(head + HEAD_BYTES, ID_BYTES) != id)
		return FH_CORRUPT;
	body = malloc(size - ID_BYTES + 1);
	if (!body)
		return FH_EXHAUSTED;
	rc = read_all(fd, body, size - ID_BYTES, deadline_ns, interrupt);
	if (rc) {
		free(body);
		return rc;
	}
	*reply = body;
	*reply_bytes = size - ID_BYTES;
	return 0;
}
