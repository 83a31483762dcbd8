/* Calls from raw bytes to raw bytes: what is refused and how, roles, repeated request ids, the StartJob rules. */
#include "tests/unit/daemon_util.h"

#include <sys/stat.h>
#include "proto/spec.h"

static void expect_error(const Fh__V1__Reply *reply, int code, const char *field)
{
	assert_non_null(reply->error);
	if (reply->error->code != (Fh__V1__ErrorCode)-code)
		fail_msg("code %d, expected %d: %s", reply->error->code, -code, reply->error->text);
	if (field)
		assert_string_equal(reply->error->field ? reply->error->field : "", field);
	assert_true(reply->error->text && reply->error->text[0]);
}

static const Fh__V1__Reply *raw(struct rpc *r, const void *data, size_t n)
{
	util_reply_free();
	rpc_take(r, data, n, NULL);
	util_wait(&util_answer.done);
	return util_answer.reply;
}

static const Fh__V1__Reply *ping(struct rpc *r, char *token)
{
	Fh__V1__Request q = FH__V1__REQUEST__INIT;
	Fh__V1__PingRequest p = FH__V1__PING_REQUEST__INIT;

	q.token = token;
	q.call_case = FH__V1__REQUEST__CALL_PING;
	q.ping = &p;
	return util_call(r, &q, "p");
}

static const Fh__V1__Reply *start_spec(struct rpc *r, const struct fh_spec *spec, const char *name, const char *id, const char *token)
{
	Fh__V1__Request q = FH__V1__REQUEST__INIT;
	Fh__V1__StartJobRequest s = FH__V1__START_JOB_REQUEST__INIT;
	struct fh_arena a;
	const Fh__V1__Reply *reply;

	fh_arena_init(&a, 1 << 20);
	assert_int_equal(fh_spec_to_message(spec, &a, &s.spec, NULL), 0);
	s.name = (char *)name;
	q.token = (char *)token;
	q.call_case = FH__V1__REQUEST__CALL_START_JOB;
	q.start_job = &s;
	reply = util_call(r, &q, id);
	fh_arena_release(&a);
	return reply;
}

static const Fh__V1__Reply *start(struct rpc *r, const char *name, int64_t steps, const char *id, char *token)
{
	struct fh_spec spec;

	util_spec(&spec, "m", steps);
	return start_spec(r, &spec, name, id, token);
}

/* ---------------------------------------------------------------- bytes */

static void bytes_that_are_no_request_get_an_error(void **state)
{
	unsigned char noise[4096];

	srand(7);
	for (int i = 0; i < 2000; i++) {
		size_t n = (size_t)rand() % sizeof noise;

		for (size_t k = 0; k < n; k++)
			noise[k] = (unsigned char)rand();
		assert_non_null(raw(rpc, noise, n)->error);
	}
	expect_error(raw(rpc, "", 0), FH_CORRUPT, NULL);
	assert_null(ping(rpc, NULL)->error);
}

static void another_protocol_version_is_told(void **state)
{
	Fh__V1__Request q = FH__V1__REQUEST__INIT;
	unsigned char bytes[64];
	size_t n;

	q.has_magic = q.has_protocol = 1;
	q.magic = FH_MAGIC;
	q.protocol = FH_PROTOCOL + 1;
	q.request_id = "v2";
	n = fh__v1__request__pack(&q, bytes);
	expect_error(raw(rpc, bytes, n), FH_VERSION, NULL);
	assert_string_equal(util_answer.reply->request_id, "v2");
}

static void a_request_without_a_call_is_told(void **state)
{
	Fh__V1__Request q = FH__V1__REQUEST__INIT;

	assert_non_null(util_call(rpc, &q, "none")->error);
	assert_string_equal(util_answer.reply->request_id, "none");
}

/* ---------------------------------------------------------------- roles */

static struct rpc *with_tokens(const char *text)
{
	FILE *f;

	snprintf(util_daemon.config.token_file, sizeof util_daemon.config.token_file, "%s/tokens", util_dir);
	f = fopen(util_daemon.config.token_file, "w");
	fputs(text, f);
	fclose(f);
	chmod(util_daemon.config.token_file, 0600);
	return util_rpc();
}

static void a_token_gives_its_role_and_no_more(void **state)
{
	struct rpc *r = with_tokens("# who may what\nread r-secret\nsubmit s-secret\n\nadmin a-secret\n");
	Fh__V1__Request q = FH__V1__REQUEST__INIT;
	Fh__V1__DrainRequest drain = FH__V1__DRAIN_REQUEST__INIT;

	expect_error(ping(r, NULL), FH_DENIED, "token");
	expect_error(ping(r, "wrong"), FH_DENIED, "token");
	expect_error(ping(r, "r-secre"), FH_DENIED, "token");
	expect_error(ping(r, "r-secret2"), FH_DENIED, "token");
	assert_null(ping(r, "r-secret")->error);
	expect_error(start(r, "x", 10, "1", "r-secret"), FH_DENIED, "token");
	assert_null(start(r, "x", 10, "2", "s-secret")->error);
	q.call_case = FH__V1__REQUEST__CALL_DRAIN;
	q.drain = &drain;
	q.token = "s-secret";
	expect_error(util_call(r, &q, "3"), FH_DENIED, "token");
	q.token = "a-secret";
	assert_null(util_call(r, &q, "4")->error);
	assert_int_equal(util_daemon.draining, 1);
	rpc_free(r);
}

/* Every call of the protocol has a row and a handler; an empty one is answered, whatever it lacks. Changes are not allowed to
 * this token, so none is made. */
static void every_call_is_known(void **state)
{
	struct rpc *r = with_tokens("read r-secret\n");
	const ProtobufCMessageDescriptor *d = &fh__v1__request__descriptor;
	int calls = 0;

	for (unsigned i = 0; i < d->n_fields; i++) {
		Fh__V1__Request q = FH__V1__REQUEST__INIT;
		const Fh__V1__Reply *reply;
		unsigned char bytes[256];
		char id[24];
		size_t n;

		if (!(d->fields[i].flags & PROTOBUF_C_FIELD_FLAG_ONEOF))
			continue;
		snprintf(id, sizeof id, "every-%u", i);
		q.has_magic = q.has_protocol = 1;
		q.magic = FH_MAGIC;
		q.protocol = FH_PROTOCOL;
		q.request_id = id;
		q.token = "r-secret";
		n = fh__v1__request__pack(&q, bytes);
		assert_true(d->fields[i].id < 2048 && n + 3 < sizeof bytes);
		if (d->fields[i].id < 16) {
			bytes[n++] = (unsigned char)(d->fields[i].id << 3 | 2);
		} else {
			bytes[n++] = (unsigned char)((d->fields[i].id << 3 | 2) | 0x80);
			bytes[n++] = (unsigned char)(d->fields[i].id >> 4);
		}
		bytes[n++] = 0; /* no field is set */
		reply = raw(r, bytes, n);
		if (reply->error && reply->error->code == FH__V1__ERROR_CODE__UNIMPLEMENTED)
			fail_msg("%s: %s", d->fields[i].name, reply->error->text);
		calls++;
	}
	assert_true(calls > 0);
	rpc_free(r);
}

static void a_token_file_that_is_wrong_or_open_is_refused(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct rpc *r = with_tokens("read a\n");

	rpc_free(r);
	chmod(util_daemon.config.token_file, 0644);
	assert_int_equal(rpc_new(&util_daemon, util_send, NULL, &r, &st), FH_DENIED);
	chmod(util_daemon.config.token_file, 0600);
	assert_int_equal(truncate(util_daemon.config.token_file, 0), 0);
	assert_int_equal(rpc_new(&util_daemon, util_send, NULL, &r, &st), FH_INVALID);
}

/* ---------------------------------------------------------------- repeated ids */

static void the_same_request_id_gets_the_same_bytes(void **state)
{
	unsigned char *first;
	size_t n;

	assert_null(start(rpc, "one", 10, "same", NULL)->error);
	n = util_answer.size;
	first = malloc(n);
	memcpy(first, util_answer.bytes, n);
	assert_null(start(rpc, "one", 10, "same", NULL)->error);
	assert_int_equal(util_answer.size, n);
	assert_memory_equal(util_answer.bytes, first, n);
	free(first);
	assert_int_equal(jobs_count(util_daemon.jobs), 1);
}

static void a_repeat_while_the_first_is_in_work_gets_its_answer(void **state)
{
	Fh__V1__Request q = FH__V1__REQUEST__INIT;
	Fh__V1__SynthDatasetRequest s = FH__V1__SYNTH_DATASET_REQUEST__INIT;
	unsigned char bytes[256];
	size_t n;

	s.name = "twice";
	s.kind = "walk";
	s.has_bars = s.has_seed = 1;
	s.bars = 5000;
	s.seed = 3;
	q.has_magic = q.has_protocol = 1;
	q.magic = FH_MAGIC;
	q.protocol = FH_PROTOCOL;
	q.request_id = "twice";
	q.call_case = FH__V1__REQUEST__CALL_SYNTH_DATASET;
	q.synth_dataset = &s;
	n = fh__v1__request__pack(&q, bytes);
	util_reply_free();
	rpc_take(rpc, bytes, n, NULL);
	rpc_take(rpc, bytes, n, NULL);
	assert_int_equal(rpc_open_calls(rpc), 2);
	util_wait(&util_answer.done);
	assert_int_equal(rpc_open_calls(rpc), 0);
	assert_null(util_answer.reply->error);
	assert_string_equal(util_answer.reply->dataset->dataset->name, "twice");
}

static void a_request_id_for_something_else_is_refused(void **state)
{
	assert_null(start(rpc, "one", 10, "id", NULL)->error);
	expect_error(start(rpc, "two", 10, "id", NULL), FH_CONFLICT, "request_id");
	assert_int_equal(jobs_count(util_daemon.jobs), 1);
}

static void a_started_job_is_found_by_its_request_id_after_a_restart(void **state)
{
	uint64_t id = start(rpc, NULL, 10, "before", NULL)->job->job->id;
	const Fh__V1__Reply *reply;

	rpc_free(rpc);
	util_stop();
	util_start(1);
	rpc = util_rpc();
	rpc_remember_job(rpc, jobs_by_id(util_daemon.jobs, id)->request_id, id);
	reply = start(rpc, NULL, 10, "before", NULL);
	assert_null(reply->error);
	assert_int_equal(reply->job->job->id, id);
	assert_int_equal(jobs_count(util_daemon.jobs), 1);
}

/* ---------------------------------------------------------------- StartJob */

static void the_same_name_and_specification_attach(void **state)
{
	uint64_t id = start(rpc, "mine", 10, "1", NULL)->job->job->id;
	const Fh__V1__Reply *reply = start(rpc, "mine", 10, "2", NULL);

	assert_null(reply->error);
	assert_int_equal(reply->job->job->id, id);
	assert_int_equal(reply->job->job->attached, 1);
}

static void the_same_name_with_another_specification_says_what_differs(void **state)
{
	assert_null(start(rpc, "mine", 10, "1", NULL)->error);
	expect_error(start(rpc, "mine", 20, "2", NULL), FH_CONFLICT, "name");
	assert_non_null(strstr(util_answer.reply->error->text, "run.steps_per_epoch is 10 there and 20 here"));
	assert_int_equal(jobs_count(util_daemon.jobs), 1);
}

static void names_that_could_be_ids_or_paths_are_refused(void **state)
{
	expect_error(start(rpc, "17", 10, "1", NULL), FH_INVALID, "name");
	expect_error(start(rpc, "../x", 10, "2", NULL), FH_INVALID, "name");
	expect_error(start(rpc, "a b", 10, "3", NULL), FH_INVALID, "name");
	assert_int_equal(jobs_count(util_daemon.jobs), 0);
}

static void a_job_for_another_device_is_a_wrong_specification(void **state)
{
	struct fh_spec spec;

	util_spec(&spec, "m", 10);
	spec.run.device = FH_DEVICE_CUDA;
	expect_error(start_spec(rpc, &spec, "gpu", "1", NULL), FH_INVALID, "run.device");
	assert_int_equal(jobs_count(util_daemon.jobs), 0);
	spec.run.device = FH_DEVICE_HOST;
	assert_null(start_spec(rpc, &spec, "gpu", "2", NULL)->error);
}

static void a_draining_daemon_takes_no_jobs_but_lets_clients_attach(void **state)
{
	assert_null(start(rpc, "mine", 10, "1", NULL)->error);
	daemon_drain(&util_daemon, 1);
	expect_error(start(rpc, "other", 10, "2", NULL), FH_UNAVAILABLE, NULL);
	assert_null(start(rpc, "mine", 10, "3", NULL)->error);
	daemon_drain(&util_daemon, 0);
	/* "unavailable" was not kept as the answer: the same id may try again. */
	assert_null(start(rpc, "other", 10, "2", NULL)->error);
}

static void a_job_that_does_not_fit_is_refused_with_both_numbers(void **state)
{
	Fh__V1__Request q = FH__V1__REQUEST__INIT;
	Fh__V1__StartJobRequest s = FH__V1__START_JOB_REQUEST__INIT;
	Fh__V1__JobSpec spec = FH__V1__JOB_SPEC__INIT;
	Fh__V1__DataSpec data = FH__V1__DATA_SPEC__INIT;
	Fh__V1__RunSpec run = FH__V1__RUN_SPEC__INIT;

	data.dataset = "m";
	spec.data = &data;
	spec.run = &run;
	run.has_slots = 1;
	run.slots = 2;
	s.spec = &spec;
	q.call_case = FH__V1__REQUEST__CALL_START_JOB;
	q.start_job = &s;
	expect_error(util_call(rpc, &q, "slots"), FH_INVALID, "run.slots");
	run.slots = 1;
	data.dataset = "nobody";
	expect_error(util_call(rpc, &q, "set"), FH_NOT_FOUND, "data.dataset");
	assert_int_equal(jobs_count(util_daemon.jobs), 0);
}

static void unknown_jobs_are_not_found(void **state)
{
	Fh__V1__Request q = FH__V1__REQUEST__INIT;
	Fh__V1__StopJobRequest s = FH__V1__STOP_JOB_REQUEST__INIT;

	s.job = "99";
	q.call_case = FH__V1__REQUEST__CALL_STOP_JOB;
	q.stop_job = &s;
	expect_error(util_call(rpc, &q, "a"), FH_NOT_FOUND, "job");
	s.job = "nobody";
	expect_error(util_call(rpc, &q, "b"), FH_NOT_FOUND, "job");
	s.job = NULL;
	expect_error(util_call(rpc, &q, "c"), FH_INVALID, "job");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(bytes_that_are_no_request_get_an_error, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(another_protocol_version_is_told, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(a_request_without_a_call_is_told, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(a_token_gives_its_role_and_no_more, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(every_call_is_known, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(a_token_file_that_is_wrong_or_open_is_refused, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(the_same_request_id_gets_the_same_bytes, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(a_repeat_while_the_first_is_in_work_gets_its_answer, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(a_request_id_for_something_else_is_refused, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(a_started_job_is_found_by_its_request_id_after_a_restart, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(the_same_name_and_specification_attach, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(the_same_name_with_another_specification_says_what_differs, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(names_that_could_be_ids_or_paths_are_refused, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(a_draining_daemon_takes_no_jobs_but_lets_clients_attach, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(a_job_that_does_not_fit_is_refused_with_both_numbers, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(a_job_for_another_device_is_a_wrong_specification, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(unknown_jobs_are_not_found, util_setup, util_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
