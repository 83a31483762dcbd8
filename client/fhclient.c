/* One connection to the daemon and calls with a deadline; see fhclient.h.
 *
 * An ipc address is spoken to by ipc.c, any other one through NNG. There: one REQ socket per connection, closed after anything but an answer: a socket never carries two requests, and a late
 * answer finds nobody. Waiting is poll() on the socket's descriptor and on one that NNG's pipe callback writes, so a
 * dead peer and an interrupt are seen at once. Dialling runs in a thread of its own: a peer that accepts and then says
 * nothing would hold nng_dial() longer than the deadline. Invariant: c->open says whether c->sock is a live socket. */
#include "client/fhclient.h"

#include <errno.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/ipc.h"
#include "client/wait.h"

#define NAME_SIZE 64
#define TOKEN_MAX 256
#define REDIAL_NEVER_MS (7 * 24 * 3600 * 1000)
#define REDIAL_SETTLE_MS 250
#define DIAL_END_MS 1000 /* what a dial gets to end after its socket was closed */
#define READ_TRIES 2 /* a read is sent again once when its connection breaks */

struct fh_client {
	char url[FH_URL_MAX], name[NAME_SIZE], token[TOKEN_MAX];
	const volatile int *interrupt;
	nng_socket sock;
	int stuck;    /* a socket could not be closed: this must stay */
	int answered; /* the last call was answered, if only with an error */
	int ipc_fd;   /* of an ipc address, -1 while there is no connection; the rest is of NNG */
	int open, reply_fd, lost_fd, added_fd; /* the last two count events of NNG's pipe callback */
};

/* ---------------------------------------------------------------- where the daemon is */

static int default_url(char url[FH_URL_MAX])
{
	const char *dir = getenv("XDG_RUNTIME_DIR");

	if (dir && *dir) {
		int n = snprintf(url, FH_URL_MAX, "ipc://%s/fhd.sock", dir);

		if (n < FH_URL_MAX && access(url + strlen("ipc://"), F_OK) == 0)
			return n;
	}
	return snprintf(url, FH_URL_MAX, "ipc:///run/fhd/fhd.sock");
}

int fh_client_url(const char *given, char url[FH_URL_MAX], struct fh_status *st)
{
	const char *env = getenv("FHD_URL"), *source = given ? "--connect" : "FHD_URL";
	char out[FH_URL_MAX];
	int n;

	if (!given && env && *env)
		given = env;
	if (!given)
		n = default_url(out);
	else if (given[0] == '/')
		n = snprintf(out, sizeof out, "ipc://%s", given);
	else if ((!strncmp(given, "ipc://", 6) || !strncmp(given, "tcp://", 6)) && given[6])
		n = snprintf(out, sizeof out, "%s", given);
	else
		return fh_fail_field(st, FH_INVALID, source, "'%.80s' is not an address: ipc:///path/of/fhd.sock or tcp://host:port",
				     given);
	if (n >= FH_URL_MAX)
		return fh_fail_field(st, FH_INVALID, source, "an address of %d bytes, at most %d are allowed", n, FH_URL_MAX - 1);
	strcpy(url, out);
	return 0;
}

int fh_client_new(const char *url, const char *name, struct fh_client **out, struct fh_status *st)
{
	struct fh_client *c = calloc(1, sizeof *c);
	const char *token = getenv("FHD_TOKEN");

	if (!c)
		return fh_fail(st, FH_EXHAUSTED, "no memory for a connection");
	snprintf(c->url, sizeof c->url, "%s", url);
	snprintf(c->name, sizeof c->name, "%s", name);
	if (token)
		snprintf(c->token, sizeof c->token, "%s", token);
	c->ipc_fd = -1;
	c->lost_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	c->added_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (c->lost_fd < 0 || c->added_fd < 0) {
		if (c->lost_fd >= 0)
			close(c->lost_fd);
		free(c);
		return fh_fail(st, FH_EXHAUSTED, "no file descriptor left: %s", strerror(errno));
	}
	*out = c;
	return 0;
}

static int drain(int fd)
{
	uint64_t n;

	return read(fd, &n, sizeof n) == (ssize_t)sizeof n;
}

static void disconnect(struct fh_client *c)
{
	if (c->ipc_fd >= 0)
		close(c->ipc_fd);
	c->ipc_fd = -1;
	if (c->open && wait_close(c->sock))
		c->stuck = 1;
	c->open = 0;
	/* The callbacks of the closed socket are done; what they wrote is of no interest any more. */
	drain(c->lost_fd);
	drain(c->added_fd);
}

/* After a break NNG may have begun to dial again. Closing the socket in the middle of that handshake ends the listener of
 * a daemon on NNG 1.5.2, so the handshake gets the time to complete. */
static void disconnect_broken(struct fh_client *c)
{
	struct pollfd fd = {.fd = c->added_fd, .events = POLLIN};

	poll(&fd, 1, REDIAL_SETTLE_MS);
	disconnect(c);
}

void fh_client_free(struct fh_client *c)
{
	if (!c)
		return;
	disconnect(c);
	if (c->stuck)
		return; /* NNG may still call on_pipe() */
	close(c->lost_fd);
	close(c->added_fd);
	free(c);
}

const char *fh_client_address(const struct fh_client *c)
{
	return c->url;
}

int fh_client_answered(const struct fh_client *c)
{
	return c->answered;
}

void fh_client_interrupt(struct fh_client *c, const volatile int *flag)
{
	c->interrupt = flag;
}

const volatile int *wait_interrupt_of(const struct fh_client *c)
{
	return c->interrupt;
}

/* ---------------------------------------------------------------- connecting */

/* NNG's thread: a connection is there or gone. */
static void on_pipe(nng_pipe p, nng_pipe_ev ev, void *arg)
{
	const struct fh_client *c = arg;
	uint64_t one = 1;

	(void)p;
	wait_take();
	/* A full counter is non-zero as well. */
	while (write(ev == NNG_PIPE_EV_REM_POST ? c->lost_fd : c->added_fd, &one, sizeof one) < 0 && errno == EINTR)
		;
	wait_give();
}

/* Shared by the dialling thread and the one that waits for it; the last of the two frees it. */
struct dial {
	nng_socket sock;
	char url[FH_URL_MAX];
	int done_fd, rc, users;
};

static void dial_release(struct dial *d)
{
	if (__atomic_sub_fetch(&d->users, 1, __ATOMIC_ACQ_REL))
		return;
	close(d->done_fd);
	free(d);
}

static void *dial_thread(void *arg)
{
	struct dial *d = arg;
	uint64_t one = 1;

	__atomic_store_n(&d->rc, nng_dial(d->sock, d->url, NULL, 0), __ATOMIC_RELEASE);
	while (write(d->done_fd, &one, sizeof one) < 0 && errno == EINTR)
		;
	dial_release(d);
	return NULL;
}

static int dial_failed(const struct fh_client *c, int rc, struct fh_status *st)
{
	switch (rc) {
	case NNG_EPERM: return fh_fail(st, FH_DENIED, "not allowed to connect to %s", c->url);
	case NNG_ECONNREFUSED: case NNG_ENOENT: case NNG_ECONNRESET: case NNG_ECONNSHUT: case NNG_ECLOSED: case NNG_EUNREACHABLE:
		return fh_fail(st, FH_UNAVAILABLE, "no daemon answers at %s", c->url);
	case NNG_ETIMEDOUT: return fh_fail(st, FH_UNAVAILABLE, "%s accepts connections but does not answer", c->url);
	case NNG_EADDRINVAL: return fh_fail(st, FH_INVALID, "%s is not a usable address", c->url);
	case NNG_EPROTO: case NNG_EPEERAUTH:
		return fh_fail(st, FH_UNAVAILABLE, "what listens at %s is not fhd", c->url);
	default: return fh_fail(st, FH_UNAVAILABLE, "cannot connect to %s: %s", c->url, nng_strerror(rc));
	}
}

static struct dial *dial_start(struct fh_client *c, struct fh_status *st)
{
	struct dial *d = malloc(sizeof *d);
	pthread_t thread;

	if (!d) {
		fh_fail(st, FH_EXHAUSTED, "out of memory");
		return NULL;
	}
	*d = (struct dial){.sock = c->sock, .done_fd = eventfd(0, EFD_CLOEXEC), .users = 2};
	snprintf(d->url, sizeof d->url, "%s", c->url);
	if (d->done_fd >= 0 && pthread_create(&thread, NULL, dial_thread, d) == 0) {
		pthread_detach(thread);
		return d;
	}
	if (d->done_fd >= 0)
		close(d->done_fd);
	fh_fail(st, FH_EXHAUSTED, "cannot start a thread: %s", strerror(errno));
	free(d);
	return NULL;
}

/* Dials in a thread; at the deadline the socket is closed, which ends the thread's call. Should NNG not let go of it even
 * then, the thread is left behind: no call outlasts its deadline by more than the bound of a close. */
static int dial(struct fh_client *c, int64_t deadline_ns, struct fh_status *st)
{
	struct dial *d = dial_start(c, st);
	struct pollfd fd = {.events = POLLIN};
	int waited, rc;

	if (!d)
		return FH_EXHAUSTED;
	fd.fd = d->done_fd;
	waited = wait_fds(&fd, 1, deadline_ns, c->interrupt);
	if (waited != WAIT_READY) {
		disconnect(c);
		if (wait_fds(&fd, 1, wait_now_ns() + (int64_t)DIAL_END_MS * 1000000, NULL) != WAIT_READY)
			c->stuck = 1;
	}
	rc = waited == WAIT_READY ? __atomic_load_n(&d->rc, __ATOMIC_ACQUIRE) : NNG_ETIMEDOUT;
	dial_release(d);
	if (waited == WAIT_INTERRUPTED)
		return fh_fail(st, FH_INTERRUPTED, "interrupted");
	return rc ? dial_failed(c, rc, st) : 0;
}

static int socket_options(struct fh_client *c)
{
	int rc = nng_socket_set_ms(c->sock, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);

	if (!rc)
		rc = nng_socket_set_size(c->sock, NNG_OPT_RECVMAXSZ, FH_WIRE_DATA_MAX);
	/* Never again, we would say; but NNG 1.5.2 takes a random number modulo this, and a negative one is at once. */
	if (!rc)
		rc = nng_socket_set_ms(c->sock, NNG_OPT_RECONNMINT, REDIAL_NEVER_MS);
	if (!rc)
		rc = nng_socket_get_int(c->sock, NNG_OPT_RECVFD, &c->reply_fd);
	wait_give();
	if (!rc)
		rc = nng_pipe_notify(c->sock, NNG_PIPE_EV_ADD_POST, on_pipe, c);
	if (!rc)
		rc = nng_pipe_notify(c->sock, NNG_PIPE_EV_REM_POST, on_pipe, c);
	return rc;
}

static int connect_client(struct fh_client *c, int64_t deadline_ns, struct fh_status *st)
{
	int rc;

	if (c->open) {
		struct pollfd fd = {.fd = c->lost_fd, .events = POLLIN};

		if (poll(&fd, 1, 0) <= 0)
			return 0;
		disconnect(c); /* it broke since the last call */
	}
	rc = nng_req0_open(&c->sock);
	if (rc)
		return fh_fail(st, FH_EXHAUSTED, "cannot open a socket: %s", nng_strerror(rc));
	c->open = 1;
	rc = socket_options(c);
	rc = rc ? fh_fail(st, FH_INTERNAL, "cannot set up a socket: %s", nng_strerror(rc)) : dial(c, deadline_ns, st);
	if (rc)
		disconnect(c);
	else
		drain(c->added_fd);
	return rc;
}

/* ---------------------------------------------------------------- one call */

enum { CALL_READ = 1 }; /* may be repeated: changes nothing */

struct call { uint32_t call, result, or_result; unsigned flags; };

#define CALL(x) FH__V1__REQUEST__CALL_##x
#define RESULT(x) FH__V1__REPLY__RESULT_##x

static const struct call calls[] = {
	{CALL(PING), RESULT(PING), 0, CALL_READ},
	{CALL(INFO), RESULT(INFO), 0, CALL_READ},
	{CALL(START_JOB), RESULT(JOB), 0, 0},
	{CALL(STOP_JOB), RESULT(JOB), 0, 0},
	{CALL(PAUSE_JOB), RESULT(JOB), 0, 0},
	{CALL(RESUME_JOB), RESULT(JOB), 0, 0},
	{CALL(LIST_JOBS), RESULT(JOBS), 0, CALL_READ},
	{CALL(SHOW_JOB), RESULT(JOB), 0, CALL_READ},
	{CALL(METRICS), RESULT(METRICS), 0, CALL_READ},
	{CALL(EVALUATE), RESULT(OPERATION), RESULT(EVALUATE), 0},
	{CALL(ACT), RESULT(ACT), 0, CALL_READ},
	{CALL(LIST_CHECKPOINTS), RESULT(CHECKPOINTS), 0, CALL_READ},
	{CALL(SAVE_CHECKPOINT), RESULT(OPERATION), 0, 0},
	{CALL(GET_CHECKPOINT), RESULT(CHECKPOINT_DATA), 0, CALL_READ},
	{CALL(DROP_CHECKPOINT), RESULT(EMPTY), RESULT(CHECKPOINT), 0},
	{CALL(LIST_DATASETS), RESULT(DATASETS), 0, CALL_READ},
	{CALL(SHOW_DATASET), RESULT(DATASET), 0, CALL_READ},
	{CALL(DROP_DATASET), RESULT(EMPTY), RESULT(DATASET), 0},
	{CALL(SYNTH_DATASET), RESULT(DATASET), RESULT(OPERATION), 0},
	{CALL(BEGIN_UPLOAD), RESULT(UPLOAD), 0, 0},
	{CALL(UPLOAD_CHUNK), RESULT(UPLOAD), 0, 0},
	{CALL(COMMIT_UPLOAD), RESULT(UPLOAD), RESULT(DATASET), 0},
	{CALL(ABORT_UPLOAD), RESULT(EMPTY), RESULT(UPLOAD), 0},
	{CALL(READ_BARS), RESULT(BARS), 0, CALL_READ},
	{CALL(DRAIN), RESULT(EMPTY), RESULT(INFO), 0},
	{CALL(SHUTDOWN), RESULT(EMPTY), RESULT(INFO), 0},
	{CALL(OPERATION), RESULT(OPERATION), 0, CALL_READ},
};

static const struct call *call_find(uint32_t call)
{
	for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
		if (calls[i].call == call)
			return &calls[i];
	return NULL;
}

static int send_request(struct fh_client *c, const Fh__V1__Request *req, size_t size, int64_t deadline_ns,
			struct fh_status *st)
{
	int64_t left_ms = (deadline_ns - wait_now_ns()) / 1000000;
	nng_msg *msg;
	int rc = nng_msg_alloc(&msg, size);

	if (rc)
		return fh_fail(st, FH_EXHAUSTED, "no memory for a request of %zu bytes", size);
	fh_pack(&req->base, nng_msg_body(msg));
	nng_socket_set_ms(c->sock, NNG_OPT_SENDTIMEO, left_ms < 1 ? 1 : (nng_duration)left_ms);
	rc = nng_sendmsg(c->sock, msg, 0);
	if (rc) {
		nng_msg_free(msg);
		return fh_fail(st, FH_UNAVAILABLE, "cannot send to %s: %s", c->url, nng_strerror(rc));
	}
	return 0;
}

/* 0 and the message; 1 when the connection broke; FH_INTERRUPTED, FH_DEADLINE. */
static int wait_reply(struct fh_client *c, int64_t deadline_ns, nng_msg **out)
{
	for (;;) {
		struct pollfd fd[2] = {{.fd = c->reply_fd, .events = POLLIN}, {.fd = c->lost_fd, .events = POLLIN}};
		int waited = wait_fds(fd, 2, deadline_ns, c->interrupt);
		int rc;

		if (waited == WAIT_INTERRUPTED)
			return FH_INTERRUPTED;
		if (waited == WAIT_TIMEOUT)
			return FH_DEADLINE;
		rc = nng_recvmsg(c->sock, out, NNG_FLAG_NONBLOCK);
		if (rc == 0)
			return 0;
		if (rc != NNG_EAGAIN || fd[1].revents)
			return 1;
	}
}

/* The parts that every caller reads without looking are there. */
static int check_result(const struct call *k, const Fh__V1__Request *req, const Fh__V1__Reply *r, struct fh_status *st)
{
	const char *missing = NULL;

	if (r->request_id && *r->request_id && strcmp(r->request_id, req->request_id) != 0)
		return fh_fail(st, FH_CORRUPT, "the daemon answered another request");
	if (r->error)
		return fh_error_to_status(r->error, st);
	if (r->result_case != k->result && (!k->or_result || r->result_case != k->or_result))
		return fh_fail(st, FH_CORRUPT, "the daemon answered with something else than was asked for");
	if (r->result_case == RESULT(JOB) && !r->job->job)
		missing = "job";
	else if (r->result_case == RESULT(DATASET) && !r->dataset->dataset)
		missing = "data set";
	else if (r->result_case == RESULT(CHECKPOINT) && !r->checkpoint->checkpoint)
		missing = "checkpoint";
	return missing ? fh_fail(st, FH_CORRUPT, "the daemon's answer has no %s", missing) : 0;
}

static int take_reply(const struct call *k, const Fh__V1__Request *req, const void *data, size_t bytes, struct fh_answer *out,
		      struct fh_status *st)
{
	struct fh_answer a;
	int rc = fh_reply_unpack(data, bytes, &a.arena, &a.reply, st);

	if (rc)
		return rc;
	rc = check_result(k, req, a.reply, st);
	if (rc)
		fh_answer_release(&a);
	else
		*out = a;
	return rc;
}

enum progress_of_call { CALL_UNSENT, CALL_SENT, CALL_ANSWERED };

/* What became of an exchange that brought no answer, in words. */
static int no_answer(const struct fh_client *c, int rc, struct fh_status *st)
{
	switch (rc) {
	case 1: return fh_fail(st, FH_UNAVAILABLE, "the connection to %s broke before an answer came", c->url);
	case FH_DEADLINE: return fh_fail(st, rc, "%s did not answer in time", c->url);
	case FH_INTERRUPTED: return fh_fail(st, rc, "interrupted");
	case FH_EXHAUSTED: return fh_fail(st, rc, "no memory for an answer");
	default: return fh_fail(st, FH_CORRUPT, "what %s answers is no message of fhd's", c->url);
	}
}

static int ipc_try(struct fh_client *c, const struct call *k, const Fh__V1__Request *req, size_t size, int64_t deadline_ns,
		   struct fh_answer *out, enum progress_of_call *how, struct fh_status *st)
{
	void *request, *reply = NULL;
	size_t bytes = 0;
	int rc = 0, sent = 0;

	if (c->ipc_fd >= 0 && ipc_is_broken(c->ipc_fd))
		disconnect(c); /* it broke since the last call */
	if (c->ipc_fd < 0)
		rc = ipc_open(c->url, deadline_ns, c->interrupt, &c->ipc_fd, st);
	if (rc)
		return rc;
	request = malloc(size + 1);
	if (!request)
		return fh_fail(st, FH_EXHAUSTED, "no memory for a request of %zu bytes", size);
	fh_pack(&req->base, request);
	rc = ipc_exchange(c->ipc_fd, request, size, FH_WIRE_DATA_MAX, deadline_ns, c->interrupt, &sent, &reply, &bytes);
	free(request);
	*how = rc == 0 ? CALL_ANSWERED : sent ? CALL_SENT : *how;
	if (rc) {
		disconnect(c); /* a late answer finds nobody */
		return no_answer(c, rc, st);
	}
	rc = take_reply(k, req, reply, bytes, out, st);
	free(reply);
	return rc;
}

/* One try. *how tells whether the daemon may have got it, and whether it answered. */
static int try_call(struct fh_client *c, const struct call *k, const Fh__V1__Request *req, size_t size,
		    int64_t deadline_ns, struct fh_answer *out, enum progress_of_call *how, struct fh_status *st)
{
	nng_msg *msg = NULL;
	int rc;

	if (ipc_path(c->url))
		return ipc_try(c, k, req, size, deadline_ns, out, how, st);
	rc = connect_client(c, deadline_ns, st);
	if (rc == 0)
		rc = send_request(c, req, size, deadline_ns, st);
	if (rc == 0) {
		*how = CALL_SENT;
		rc = wait_reply(c, deadline_ns, &msg);
		if (rc == 0) {
			*how = CALL_ANSWERED;
			rc = take_reply(k, req, nng_msg_body(msg), nng_msg_len(msg), out, st);
			nng_msg_free(msg);
			return rc;
		}
		if (rc == 1)
			disconnect_broken(c);
		rc = no_answer(c, rc, st);
	}
	disconnect(c);
	return rc;
}

int fh_client_call(struct fh_client *c, Fh__V1__Request *req, int64_t timeout_ms, struct fh_answer *out,
		   struct fh_status *st)
{
	const struct call *k = call_find(req->call_case);
	int64_t deadline_ns = wait_now_ns() + timeout_ms * 1000000;
	char id[FH_REQUEST_ID_SIZE];
	enum progress_of_call how = CALL_UNSENT;
	int rc, own_id = !req->request_id;
	size_t size;

	c->answered = 0;
	if (!k)
		return fh_fail(st, FH_INTERNAL, "call %u is not one that this client knows", (unsigned)req->call_case);
	if (own_id) {
		fh_request_id_new(id);
		req->request_id = id;
	}
	req->has_magic = req->has_protocol = 1;
	req->magic = FH_MAGIC;
	req->protocol = FH_PROTOCOL;
	req->client = c->name;
	req->token = c->token[0] ? c->token : NULL;
	rc = fh_pack_size(&req->base, &size, st);
	for (int i = 0; rc == 0 && i < READ_TRIES; i++) {
		rc = try_call(c, k, req, size, deadline_ns, out, &how, st);
		if (rc != FH_UNAVAILABLE || how != CALL_SENT || !(k->flags & CALL_READ) || i + 1 == READ_TRIES)
			break;
		rc = 0;
	}
	if (rc && rc != FH_INTERRUPTED && how == CALL_SENT && !(k->flags & CALL_READ))
		rc = fh_fail(st, FH_UNKNOWN, "the request was sent to %s and no answer came: it may or may not have happened",
			     c->url);
	c->answered = how == CALL_ANSWERED;
	if (own_id)
		req->request_id = NULL;
	return rc;
}

void fh_answer_release(struct fh_answer *a)
{
	fh_arena_release(&a->arena);
	a->reply = NULL;
}
