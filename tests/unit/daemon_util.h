/* A whole daemon inside the test process: its loop is turned by hand until a condition holds or a deadline passes. */
#ifndef TESTS_DAEMON_UTIL_H
#define TESTS_DAEMON_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "daemon/daemon.h"
#include "daemon/dataset.h"
#include "daemon/jobs.h"
#include "daemon/log.h"
#include "daemon/rpc.h"
#include "gpu/spec.h"
#include "tests/unit/loop.h"

static struct daemon util_daemon;
static char util_dir[64];

/* Turns the loop until *flag is set. */
static inline void util_wait(const int *flag)
{
	loop_await(&util_daemon.loop, flag, 1);
}

static inline void util_dir_make(void)
{
	strcpy(util_dir, "/tmp/fhd-unit-XXXXXX");
	assert_non_null(mkdtemp(util_dir));
}

static inline void util_dir_remove(void)
{
	assert_int_equal(folder_remove(util_dir), 0);
}

static inline void util_config(struct config *c, int slots)
{
	config_defaults(c);
	snprintf(c->state_dir, sizeof c->state_dir, "%s/state", util_dir);
	snprintf(c->listen[0], sizeof c->listen[0], "ipc://%s/fhd.sock", util_dir);
	strcpy(c->device, "host");
	c->slots = slots;
	assert_int_equal(config_finish(c, NULL), 0);
}

static inline void util_start(int slots)
{
	struct config c;
	struct fh_status st = FH_STATUS_INIT;

	log_level_set(LOG_ERROR);
	util_config(&c, slots);
	if (daemon_start(&util_daemon, &c, &st))
		fail_msg("daemon_start: %s", st.text);
}

static inline void util_stop(void)
{
	daemon_stop(&util_daemon, 0, "the test is over");
	assert_int_equal(daemon_run(&util_daemon), 0);
}

/* ---------------------------------------------------------------- calls without a socket */

static struct {
	int done;
	Fh__V1__Reply *reply; /* of the newest answer; freed by the next util_call or util_reply_free */
	unsigned char *bytes;
	size_t size;
} util_answer;

static inline void util_reply_free(void)
{
	if (util_answer.reply)
		fh__v1__reply__free_unpacked(util_answer.reply, NULL);
	free(util_answer.bytes);
	memset(&util_answer, 0, sizeof util_answer);
}

static inline void util_send(void *ctx, void *reply_to, nng_msg *msg)
{
	(void)ctx;
	(void)reply_to;
	util_reply_free();
	util_answer.size = nng_msg_len(msg);
	util_answer.bytes = malloc(util_answer.size + 1);
	memcpy(util_answer.bytes, nng_msg_body(msg), util_answer.size);
	util_answer.reply = fh__v1__reply__unpack(NULL, util_answer.size, util_answer.bytes);
	assert_non_null(util_answer.reply);
	util_answer.done = 1;
	nng_msg_free(msg);
}

/* A second call table beside the daemon's own, whose answers come to util_answer. */
static inline struct rpc *util_rpc(void)
{
	struct rpc *r;

	assert_int_equal(rpc_new(&util_daemon, util_send, NULL, &r, NULL), 0);
	return r;
}

/* Sends a request (its envelope is filled here) and waits for the answer. */
static inline const Fh__V1__Reply *util_call(struct rpc *r, Fh__V1__Request *q, const char *request_id)
{
	unsigned char *bytes;
	size_t n;

	q->has_magic = q->has_protocol = 1;
	q->magic = FH_MAGIC;
	q->protocol = FH_PROTOCOL;
	q->request_id = (char *)request_id;
	n = fh__v1__request__get_packed_size(q);
	bytes = malloc(n);
	fh__v1__request__pack(q, bytes);
	util_reply_free();
	rpc_take(r, bytes, n, NULL);
	free(bytes);
	util_wait(&util_answer.done);
	return util_answer.reply;
}

static inline void util_dataset(struct rpc *r, const char *name, int64_t bars)
{
	Fh__V1__Request q = FH__V1__REQUEST__INIT;
	Fh__V1__SynthDatasetRequest synth = FH__V1__SYNTH_DATASET_REQUEST__INIT;
	const Fh__V1__Reply *reply;

	synth.name = (char *)name;
	synth.kind = "momentum";
	synth.has_bars = synth.has_seed = 1;
	synth.bars = bars;
	synth.seed = 1;
	q.call_case = FH__V1__REQUEST__CALL_SYNTH_DATASET;
	q.synth_dataset = &synth;
	reply = util_call(r, &q, "synth");
	if (reply->error)
		fail_msg("synth: %s", reply->error->text);
}

/* A job that takes a fraction of a second. */
static inline void util_spec(struct fh_spec *s, const char *dataset, int64_t steps)
{
	static const char *const set[][2] = {
		{"net.trunk1", "16"}, {"net.trunk2", "16"}, {"net.value_hidden", "8"}, {"net.advantage_hidden", "8"},
		{"net.atoms", "11"}, {"learn.batch", "16"}, {"learn.warmup", "64"}, {"replay.capacity", "1024"},
		{"collect.envs", "4"}, {"run.validate_every", "0"}, {"run.report_every", "50"},
		{"run.checkpoint_every", "0"}, {"run.device", "host"},
	};

	spec_defaults(s);
	for (size_t i = 0; i < sizeof set / sizeof set[0]; i++)
		assert_int_equal(spec_set(s, spec_key_find(set[i][0]), set[i][1], NULL), 0);
	strcpy(s->data.dataset, dataset);
	s->run.epochs = 1;
	s->run.steps_per_epoch = steps;
	spec_resolve(s, FH_DEVICE_HOST);
}

/* For tests of one slot with 2,000 bars called "m". */
static struct rpc *rpc;

static inline int util_setup(void **state)
{
	(void)state;
	util_dir_make();
	util_start(1);
	rpc = util_rpc();
	util_dataset(rpc, "m", 2000);
	return 0;
}

static inline int util_teardown(void **state)
{
	(void)state;
	util_reply_free();
	rpc_free(rpc);
	util_stop();
	util_dir_remove();
	return 0;
}

#endif
