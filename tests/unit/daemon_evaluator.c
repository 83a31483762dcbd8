/* Promises of the evaluator and of operations: an evaluation gives what gpu/evaluate.h gives, in one piece or many; decisions
 * are not held up by evaluations; bounds, cancelling, stopping; operations finish once, can be waited for and are let go. */
#include <unistd.h>
#include <uv.h>
#include "daemon/evaluator.h"
#include "daemon/log.h"
#include "daemon/operations.h"
#include "tests/unit/loop.h"
#include "tests/unit/training.h"

static uv_loop_t loop;
static struct operations *ops;
static struct evaluator *ev;
static char folder[] = "/tmp/fhd-evaluator-XXXXXX";
static struct fh_spec spec;
static struct market *market;
static char checkpoint[128], sha[65];

/* One small trained network in a file, shared by the tests. */
static int make_checkpoint(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct st_image img;
	struct trainer *t;

	log_level_set(LOG_ERROR);
	assert_non_null(mkdtemp(folder));
	snprintf(checkpoint, sizeof checkpoint, "%s/1-60.safetensors", folder);
	spec = small_spec();
	market = synth_market(SYNTH_MOMENTUM, 4000, 5);
	t = begin_job(&spec, market);
	run_slices(t, 1 << 30, NULL);
	assert_int_equal(trainer_snapshot(t, NULL, &img, &st), 0);
	assert_int_equal(st_image_write(&img, checkpoint, &st), 0);
	assert_int_equal(hash_bytes(img.data, img.bytes, sha, NULL), 0);
	st_image_release(&img);
	trainer_free(t);
	return 0;
}

static int remove_checkpoint(void **state)
{
	market_unref(market);
	unlink(checkpoint);
	return rmdir(folder);
}

static int setup(void **state)
{
	uv_loop_init(&loop);
	assert_int_equal(operations_new(&loop, &ops, NULL), 0);
	return evaluator_new(&loop, ops, &ev, NULL);
}

static int teardown(void **state)
{
	evaluator_stop(ev);
	operations_stop(ops);
	evaluator_free(ev);
	operations_free(ops);
	uv_run(&loop, UV_RUN_DEFAULT);
	return uv_loop_close(&loop);
}

static struct policy_ref ref(enum fh_policy which)
{
	struct policy_ref r = {.which = which};

	snprintf(r.path, sizeof r.path, "%s", checkpoint);
	snprintf(r.id, sizeof r.id, "1-60");
	snprintf(r.sha256, sizeof r.sha256, "%s", sha);
	return r;
}

static int finished;
static void on_finished(void *arg)
{
	finished++;
}

static struct operation *evaluate(int split, int trace, int benchmarks, struct market *m)
{
	struct evaluate_ask ask = {.policy = ref(FH_POLICY_TARGET), .split = split, .trace = trace, .benchmarks = benchmarks, .own_data = 1};
	struct fh_status st = FH_STATUS_INIT;
	struct operation *op = operation_new(ops, 1, &st);

	assert_non_null(op);
	if (evaluator_evaluate(ev, op, &ask, market_ref(m), on_finished, NULL, &st))
		fail_msg("%s", st.text);
	return op;
}

static struct operation *evaluated(int split, int trace, int benchmarks)
{
	struct operation *op = evaluate(split, trace, benchmarks, market);
	int before = finished;

	loop_await(&loop, &finished, before + 1);
	assert_true(op->done);
	if (op->code)
		fail_msg("%s", op->status.text);
	return op;
}

/* The same by hand. */
static void by_hand(struct fh_split split, eval_script script, struct eval_report *out)
{
	struct policy *p = NULL;
	struct env_config cfg;
	struct evaluation *e;
	struct fh_spec s;

	assert_int_equal(policy_load(checkpoint, FH_POLICY_TARGET, 0, &p, &s, NULL, NULL), 0);
	eval_env_config(&s, s.env.reward_scale, &cfg);
	if (script == eval_buy_and_hold)
		eval_hold_config(&cfg);
	assert_int_equal(evaluation_new(script ? NULL : p, script, NULL, market, &cfg, split, 0, &e, NULL), 0);
	while (!evaluation_run(e, 1000000000))
		;
	evaluation_report(e, out);
	evaluation_free(e);
	policy_free(p);
}

static void test_reports_are_those_of_the_library(void **state)
{
	struct operation *op = evaluated(FH_SPLIT_VALIDATION, 1, 1);
	const struct evaluate_result *r = op->result;
	struct fh_split split[FH_SPLITS];
	struct eval_report want;

	assert_int_equal(spec_splits(&spec, market->bars, split, NULL), 0);
	assert_int_equal(r->reports, 3);
	assert_string_equal(r->report[0].name, "agent");
	assert_string_equal(r->report[1].name, "buy_and_hold");
	assert_string_equal(r->report[2].name, "never_trade");
	by_hand(split[FH_SPLIT_VALIDATION], NULL, &want);
	assert_true(want.pnl == r->report[0].value.pnl && want.sharpe == r->report[0].value.sharpe && want.trades == r->report[0].value.trades);
	by_hand(split[FH_SPLIT_VALIDATION], eval_buy_and_hold, &want);
	assert_true(want.pnl == r->report[1].value.pnl);
	assert_true(want.pnl != 0);
	assert_true(r->report[2].value.pnl == 0 && r->report[2].value.trades == 0);
	assert_int_equal(r->begin, split[FH_SPLIT_VALIDATION].begin);
	assert_int_equal(r->end, split[FH_SPLIT_VALIDATION].end);
	assert_int_equal(r->first_ts, market->ts[r->begin]);
	assert_int_equal(r->last_ts, market->ts[r->end - 1]);
	assert_int_equal(r->rows, r->report[0].value.bars);
	assert_int_equal(r->branches, 3);
	for (int64_t i = 0; i < r->rows; i++) {
		assert_int_equal(r->row[i].bar, r->begin + 1 + i);
		assert_true(r->close[i] == market->close[r->row[i].bar]);
	}
	assert_true(fabs(r->row[r->rows - 1].equity - r->initial_cash - r->report[0].value.pnl) < 1e-6);
	assert_true(op->progress == 1);
}

static void test_splits(void **state)
{
	const struct evaluate_result *r = evaluated(EVALUATE_ALL, 0, 0)->result;
	struct market *other = synth_market(SYNTH_WALK, 3000, 9);
	struct operation *op;

	assert_int_equal(r->begin, MARKET_WARMUP);
	assert_int_equal(r->end, market->bars);
	assert_int_equal(r->reports, 1);
	assert_int_equal(r->rows, 0);
	r = evaluated(FH_SPLIT_TRAIN, 0, 0)->result;
	assert_int_equal(r->begin, MARKET_WARMUP);
	op = evaluate(FH_SPLIT_TEST, 0, 0, other); /* the checkpoint's own data was asked for, and these are others */
	loop_await(&loop, &finished, finished + 1);
	assert_int_equal(op->code, FH_CONFLICT);
	assert_string_equal(op->status.field, "dataset");
	market_unref(other);
}

/* ---- decisions */

static struct { int done, code; struct act_result r; int32_t action[64]; float q[512]; struct fh_status st; uint64_t at; } acted;
static void on_act(void *arg, int code, const struct act_result *r, const struct fh_status *st)
{
	acted.done++;
	acted.code = code;
	acted.at = uv_hrtime();
	if (code) {
		acted.st = *st;
		return;
	}
	acted.r = *r;
	memcpy(acted.action, r->action, (size_t)r->rows * 3 * sizeof(int32_t));
	memcpy(acted.q, r->q, (size_t)r->rows * 11 * sizeof(float));
}

static void act_on(const float *states, size_t floats, uint32_t rows, enum fh_policy which)
{
	struct policy_ref p = ref(which);

	memset(&acted, 0, sizeof acted);
	assert_int_equal(evaluator_act(ev, &p, states, floats, rows, on_act, NULL, NULL), 0);
	loop_await(&loop, &acted.done, 1);
}

static void test_decisions(void **state)
{
	float states[4 * FH_STATE_DIM], q[4 * 11];
	int32_t action[4 * 3];
	struct policy *p;

	for (int i = 0; i < 4 * FH_STATE_DIM; i++)
		states[i] = (float)sin(i);
	for (int which = FH_POLICY_TARGET; which <= FH_POLICY_ONLINE; which++) {
		assert_int_equal(policy_load(checkpoint, which, 0, &p, NULL, NULL, NULL), 0);
		policy_act(p, states, 4, action, q);
		policy_free(p);
		act_on(states, 4 * FH_STATE_DIM, 4, which);
		assert_int_equal(acted.code, 0);
		assert_int_equal(acted.r.rows, 4);
		assert_int_equal(acted.r.branches, 3);
		assert_int_equal(acted.r.state_dim, FH_STATE_DIM);
		assert_memory_equal(acted.action, action, sizeof action);
		assert_memory_equal(acted.q, q, sizeof q);
	}
	act_on(states, 4 * FH_STATE_DIM, 0, FH_POLICY_TARGET); /* rows from the length */
	assert_int_equal(acted.r.rows, 4);
	act_on(states, 4 * FH_STATE_DIM - 1, 0, FH_POLICY_TARGET);
	assert_int_equal(acted.code, FH_INVALID);
	assert_string_equal(acted.st.field, "state");
	act_on(states, 4 * FH_STATE_DIM, 3, FH_POLICY_TARGET);
	assert_int_equal(acted.code, FH_INVALID);
	act_on(states, 1, 0, FH_POLICY_TARGET);
	assert_int_equal(acted.code, FH_INVALID);
}

/* More networks than places, each by its own bits; then a file that is none. */
static void test_many_policies(void **state)
{
	float states[FH_STATE_DIM] = {0};
	struct policy_ref p = ref(FH_POLICY_TARGET);

	for (int i = 0; i < 3 * EVALUATOR_POLICIES; i++) {
		snprintf(p.sha256, sizeof p.sha256, "%064d", i % (EVALUATOR_POLICIES + 3));
		memset(&acted, 0, sizeof acted);
		assert_int_equal(evaluator_act(ev, &p, states, FH_STATE_DIM, 1, on_act, NULL, NULL), 0);
		loop_await(&loop, &acted.done, 1);
		assert_int_equal(acted.code, 0);
	}
	snprintf(p.sha256, sizeof p.sha256, "%064d", 99);
	snprintf(p.path, sizeof p.path, "%s/none", folder);
	memset(&acted, 0, sizeof acted);
	assert_int_equal(evaluator_act(ev, &p, states, FH_STATE_DIM, 1, on_act, NULL, NULL), 0);
	loop_await(&loop, &acted.done, 1);
	assert_int_not_equal(acted.code, 0);
	assert_non_null(strstr(acted.st.text, "none"));
}

/* So many evaluations wait that they cannot be over before the decisions, however fast one of them is. */
static void test_decisions_go_before_evaluations(void **state)
{
	enum { MANY = EVALUATOR_QUEUE_MAX / 2 };
	struct market *large = synth_market(SYNTH_MOMENTUM, 400000, 5);
	struct evaluate_ask ask = {.policy = ref(FH_POLICY_TARGET), .split = EVALUATE_ALL, .benchmarks = 1};
	struct operation *op[MANY];
	float states[FH_STATE_DIM] = {0};

	for (int i = 0; i < MANY; i++) {
		op[i] = operation_new(ops, 1, NULL);
		assert_int_equal(evaluator_evaluate(ev, op[i], &ask, market_ref(large), on_finished, NULL, NULL), 0);
	}
	market_unref(large);
	for (int i = 0; i < 50; i++) {
		act_on(states, FH_STATE_DIM, 1, FH_POLICY_TARGET);
		assert_int_equal(acted.code, 0);
		assert_int_equal(op[MANY - 1]->done, 0); /* they overtake it, it goes on */
	}
	for (int i = 0; i < MANY; i++)
		operation_cancel(op[i]);
	for (int i = 0; i < MANY; i++)
		loop_await(&loop, &op[i]->done, 1);
	assert_int_equal(op[MANY - 1]->code, FH_INTERRUPTED);
	assert_true(op[MANY - 1]->progress < 1);
}

static void test_queues_are_bounded_and_stop_answers(void **state)
{
	struct market *large = synth_market(SYNTH_MOMENTUM, 400000, 5);
	struct evaluate_ask ask = {.policy = ref(FH_POLICY_TARGET), .split = EVALUATE_ALL};
	struct operation *op[EVALUATOR_QUEUE_MAX + 2];
	struct fh_status st = FH_STATUS_INIT;
	int taken = 0, code = 0, before = finished;

	for (; !code && taken < EVALUATOR_QUEUE_MAX + 2; taken++) {
		op[taken] = operation_new(ops, 1, &st);
		code = evaluator_evaluate(ev, op[taken], &ask, market_ref(large), on_finished, NULL, &st);
	}
	assert_int_equal(code, FH_EXHAUSTED);
	assert_true(taken > EVALUATOR_QUEUE_MAX);
	market_unref(large); /* of the refused one */
	market_unref(large);
	evaluator_stop(ev);
	assert_int_equal(finished - before, taken - 1);
	for (int i = 0; i < taken - 1; i++) {
		assert_true(op[i]->done);
		assert_int_equal(op[i]->code, FH_UNAVAILABLE);
	}
	code = evaluator_act(ev, &ask.policy, NULL, 0, 0, on_act, NULL, &st);
	assert_int_equal(code, FH_UNAVAILABLE);
}

/* ---- operations */

static int waited;
static struct operation *waited_for;
static void on_waited(void *arg, struct operation *op)
{
	waited++;
	waited_for = op;
}

static void test_operations_are_waited_for(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct operation *op = operation_new(ops, 1, &st);
	uint64_t begin = uv_hrtime();

	waited = 0;
	assert_ptr_equal(operation_find(ops, op->id), op);
	assert_null(operation_find(ops, "op-1-1"));
	assert_null(operation_find(ops, NULL));
	operation_wait(ops, op, 0, on_waited, NULL);
	assert_int_equal(waited, 1);
	operation_wait(ops, op, 40, on_waited, NULL);
	assert_int_equal(waited, 1);
	loop_await(&loop, &waited, 2);
	assert_true(uv_hrtime() - begin >= 35000000);
	assert_int_equal(op->done, 0);
	waited = 0;
	for (int i = 0; i < OPERATION_WAITERS_MAX; i++)
		operation_wait(ops, op, 10000, on_waited, NULL);
	assert_int_equal(waited, 0);
	operation_wait(ops, op, 10000, on_waited, NULL); /* one too many: at once */
	assert_int_equal(waited, 1);
	operation_finish_checkpoint(ops, op->number, 0, "1-60", &st);
	assert_int_equal(waited, 1 + OPERATION_WAITERS_MAX);
	assert_ptr_equal(waited_for, op);
	assert_string_equal(op->checkpoint, "1-60");
	operation_finish_checkpoint(ops, op->number, FH_IO, "", &st); /* a second end changes nothing */
	assert_int_equal(op->code, 0);
	operation_finish_checkpoint(ops, 0, 0, "1-60", &st);
	operation_finish_checkpoint(ops, 12345, 0, "1-60", &st);
}

static void test_operations_are_bounded(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct operation *op[OPERATIONS_MAX];
	char first[OPERATION_ID_MAX], third[OPERATION_ID_MAX];

	for (int i = 0; i < OPERATIONS_MAX; i++)
		assert_non_null(op[i] = operation_new(ops, 1, &st));
	assert_null(operation_new(ops, 1, &st));
	assert_int_equal(st.code, FH_EXHAUSTED);
	snprintf(first, sizeof first, "%s", op[0]->id);
	snprintf(third, sizeof third, "%s", op[2]->id);
	operation_finish(ops, op[2], 0, &st, malloc(10), OPERATION_RESULT_BYTES_MAX, free);
	operation_finish(ops, op[0], 0, &st, malloc(10), 10, free); /* together too much: the older result goes, this one stays */
	assert_non_null(operation_find(ops, first));
	assert_null(operation_find(ops, third));
	assert_non_null(operation_new(ops, 1, &st)); /* in the place of the one that went */
	assert_non_null(operation_new(ops, 1, &st)); /* in the place of the first */
	assert_null(operation_find(ops, first));
	assert_null(operation_new(ops, 1, &st));
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_reports_are_those_of_the_library), T(test_splits), T(test_decisions), T(test_many_policies),
		T(test_decisions_go_before_evaluations), T(test_queues_are_bounded_and_stop_answers),
		T(test_operations_are_waited_for), T(test_operations_are_bounded),
	};

	return cmocka_run_group_tests(tests, make_checkpoint, remove_checkpoint);
}
