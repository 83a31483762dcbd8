/* A daemon for tests of clients: one REP socket, answers made by the test, in a thread of its own. */
#ifndef FAKE_DAEMON_H
#define FAKE_DAEMON_H

#include <nng/nng.h>
#include <nng/protocol/pubsub0/pub.h>
#include <nng/protocol/reqrep0/rep.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/wait.h" /* wait_give(), wait_take(): the order that the messages bring */
#include "proto/wire.h"

struct fake;
/* Fills in *reply (initialised with the request's id); what it points to must live until the next call. Returns 0 to
 * answer, FAKE_SILENT to keep the request without an answer, FAKE_HANG_UP to break the connection, FAKE_RAW to send
 * fake->raw as it is. */
typedef int (*fake_answer)(struct fake *f, const Fh__V1__Request *req, Fh__V1__Reply *reply);
enum { FAKE_SILENT = 1, FAKE_HANG_UP, FAKE_RAW };

struct fake {
	char dir[32], url[64], pub_url[64];
	fake_answer answer;
	void *test;                /* the test's own */
	const void *raw;
	size_t raw_len;
	nng_socket rep, pub;
	pthread_t thread;
	atomic_int stop, requests;
	char last_id[65], ids_equal;
};

static inline void fake_send(struct fake *f, const Fh__V1__Reply *reply, int how)
{
	size_t n = how == FAKE_RAW ? f->raw_len : protobuf_c_message_get_packed_size(&reply->base);
	nng_msg *msg;

	if (nng_msg_alloc(&msg, n))
		abort();
	if (how == FAKE_RAW)
		memcpy(nng_msg_body(msg), f->raw, n);
	else
		fh_pack(&reply->base, nng_msg_body(msg));
	if (nng_sendmsg(f->rep, msg, 0))
		nng_msg_free(msg);
}

static inline void *fake_run(void *arg)
{
	struct fake *f = arg;

	while (!atomic_load(&f->stop)) {
		struct fh_arena a;
		Fh__V1__Request *req;
		Fh__V1__Reply reply;
		nng_msg *msg;
		nng_pipe pipe;
		int how;

		if (nng_recvmsg(f->rep, &msg, 0))
			continue;
		wait_take();
		pipe = nng_msg_get_pipe(msg);
		if (fh_request_unpack(nng_msg_body(msg), nng_msg_len(msg), &a, &req, NULL))
			abort();
		nng_msg_free(msg);
		f->ids_equal = !strcmp(f->last_id, req->request_id);
		snprintf(f->last_id, sizeof f->last_id, "%s", req->request_id);
		fh_reply_init(&reply, req->request_id);
		how = f->answer(f, req, &reply);
		atomic_fetch_add(&f->requests, 1);
		wait_give();
		if (how == FAKE_HANG_UP)
			nng_pipe_close(pipe);
		else if (how != FAKE_SILENT)
			fake_send(f, &reply, how);
		fh_arena_release(&a);
	}
	return NULL;
}

static inline void fake_up(struct fake *f)
{
	atomic_store(&f->stop, 0);
	if (nng_rep0_open(&f->rep) || nng_socket_set_ms(f->rep, NNG_OPT_RECVTIMEO, 20) ||
	    nng_socket_set_ms(f->rep, NNG_OPT_SENDTIMEO, 1000) || nng_socket_set_size(f->rep, NNG_OPT_RECVMAXSZ, 0) ||
	    nng_listen(f->rep, f->url, NULL, 0))
		abort();
	if (pthread_create(&f->thread, NULL, fake_run, f))
		abort();
}

static inline void fake_down(struct fake *f)
{
	atomic_store(&f->stop, 1);
	pthread_join(f->thread, NULL);
	wait_close(f->rep); /* NNG 1.5.2 now and then never comes back from nng_close() */
}

static inline void fake_start(struct fake *f, fake_answer answer, void *test)
{
	memset(f, 0, sizeof *f);
	strcpy(f->dir, "/tmp/fh-fake-XXXXXX");
	if (!mkdtemp(f->dir))
		abort();
	snprintf(f->url, sizeof f->url, "ipc://%s/fhd.sock", f->dir);
	snprintf(f->pub_url, sizeof f->pub_url, "ipc://%s/pub.sock", f->dir);
	f->answer = answer;
	f->test = test;
	if (nng_pub0_open(&f->pub) || nng_listen(f->pub, f->pub_url, NULL, 0))
		abort();
	fake_up(f);
}

static inline void fake_stop(struct fake *f)
{
	char path[80];

	fake_down(f);
	wait_close(f->pub);
	snprintf(path, sizeof path, "%s/fhd.sock", f->dir);
	unlink(path);
	snprintf(path, sizeof path, "%s/pub.sock", f->dir);
	unlink(path);
	rmdir(f->dir);
}

#endif
