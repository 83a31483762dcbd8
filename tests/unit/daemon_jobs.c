/* Jobs from acceptance to their end, in a whole daemon without clients: the transition table, what is durable, stop,
 * pause, resume, order, slots, names. */
#include "tests/unit/daemon_util.h"

#include <signal.h>
#include <sys/resource.h>

#include "daemon/queue.h"
#include "daemon/series.h"
#include "daemon/worker.h"

/* The daemon ends and comes back with what it had stored. */
static void restart(int slots)
{
	rpc_free(rpc);
	util_stop();
	util_start(slots);
	rpc = util_rpc();
}

/* ---------------------------------------------------------------- the table */

static void the_table_allows_these_moves_and_no_others(void **state)
{
	static const struct { enum job_state from; enum job_event event; enum job_state to; } allowed[] = {
		{JOB_QUEUED, EVENT_START, JOB_RUNNING}, {JOB_QUEUED, EVENT_PAUSE, JOB_PAUSED},
		{JOB_QUEUED, EVENT_STOP, JOB_STOPPED}, {JOB_QUEUED, EVENT_FAIL, JOB_FAILED},
		{JOB_RUNNING, EVENT_PAUSE, JOB_PAUSED}, {JOB_RUNNING, EVENT_STOP, JOB_STOPPED},
		{JOB_RUNNING, EVENT_FINISH, JOB_DONE}, {JOB_RUNNING, EVENT_FAIL, JOB_FAILED},
		{JOB_RUNNING, EVENT_INTERRUPT, JOB_QUEUED}, {JOB_PAUSED, EVENT_RESUME, JOB_QUEUED},
		{JOB_PAUSED, EVENT_STOP, JOB_STOPPED}, {JOB_FAILED, EVENT_RESUME, JOB_QUEUED},
		{JOB_STOPPED, EVENT_RESUME, JOB_QUEUED},
	};

	for (int from = JOB_QUEUED; from <= JOB_STOPPED; from++)
		for (int event = 0; event < EVENT_COUNT; event++) {
			enum job_state expected = JOB_NONE;

			for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++)
				if ((int)allowed[i].from == from && (int)allowed[i].event == event)
					expected = allowed[i].to;
			assert_int_equal(job_transition((enum job_state)from, (enum job_event)event), expected);
		}
	assert_true(job_is_final(JOB_DONE) && job_is_final(JOB_FAILED) && job_is_final(JOB_STOPPED));
	assert_false(job_is_final(JOB_QUEUED) || job_is_final(JOB_RUNNING) || job_is_final(JOB_PAUSED));
}

/* ---------------------------------------------------------------- helpers */

struct outcome { int done; struct fh_status st; struct job *job; enum job_state state; };

static void on_done(void *ctx, struct job *j, const struct fh_status *st)
{
	struct outcome *o = ctx;

	o->done = 1;
	o->st = *st;
	o->job = j;
	o->state = j->state;
}

/* report_every: as in a specification, 0 for a series that holds nothing but changes of state. */
static struct job *add_reporting(const char *name, int64_t steps, int64_t priority, int64_t report_every)
{
	struct outcome o = {0};
	struct fh_spec spec;
	struct memory_plan memory;
	struct fh_status st = FH_STATUS_INIT;
	const struct dataset *set = datasets_find(util_daemon.datasets, "m");

	util_spec(&spec, "m", steps);
	spec.run.priority = priority;
	spec.run.report_every = report_every;
	assert_int_equal(trainer_plan(util_daemon.backend, &spec, dataset_bars(set), &memory, &st), 0);
	assert_int_equal(jobs_add(util_daemon.jobs, &spec, name, NULL, 0, &memory, dataset_hash(set), NULL, on_done, &o, &st), 0);
	util_wait(&o.done);
	assert_int_equal(o.st.code, 0);
	return o.job;
}

static struct job *add(const char *name, int64_t steps, int64_t priority)
{
	return add_reporting(name, steps, priority, 50);
}

struct await { const struct job *job; enum job_state state; int64_t step; int reached; };

static void look(uv_check_t *c)
{
	struct await *a = c->data;

	jobs_refresh(util_daemon.jobs, (struct job *)a->job);
	a->reached = a->job->state == a->state && a->job->step >= a->step && !a->job->committing;
}

static void tick(uv_timer_t *t)
{
	(void)t; /* turns the loop so that `look` runs */
}

static void await(const struct job *j, enum job_state s, int64_t step)
{
	struct await a = {j, s, step, 0};
	uv_check_t check;
	uv_timer_t timer;

	uv_check_init(&util_daemon.loop, &check);
	uv_timer_init(&util_daemon.loop, &timer);
	check.data = &a;
	uv_check_start(&check, look);
	uv_timer_start(&timer, tick, 5, 5);
	util_wait(&a.reached);
	uv_close((uv_handle_t *)&check, NULL);
	uv_close((uv_handle_t *)&timer, NULL);
	uv_run(&util_daemon.loop, UV_RUN_NOWAIT);
}

static void turn(int turns)
{
	assert_true(turns < 10000);
	uv_run(&util_daemon.loop, UV_RUN_ONCE);
}

typedef int (*request)(struct jobs *, struct job *, job_done, void *, struct fh_status *);

static int stop(struct jobs *js, struct job *j, job_done done, void *ctx, struct fh_status *st)
{
	return jobs_stop(js, j, 0, done, ctx, st);
}

static void ask(request fn, struct job *j, enum job_state expected)
{
	struct outcome o = {0};
	struct fh_status st = FH_STATUS_INIT;

	if (fn(util_daemon.jobs, j, on_done, &o, &st))
		fail_msg("refused: %s", st.text);
	util_wait(&o.done);
	assert_int_equal(o.st.code, 0);
	assert_int_equal(o.state, expected);
}

static void refused(request fn, struct job *j, const char *says)
{
	struct outcome o = {0};
	struct fh_status st = FH_STATUS_INIT;

	assert_int_equal(fn(util_daemon.jobs, j, on_done, &o, &st), FH_CONFLICT);
	if (!strstr(st.text, says))
		fail_msg("\"%s\" does not say \"%s\"", st.text, says);
	assert_int_equal(o.done, 0);
}

#define ENDLESS 100000000

/* ---------------------------------------------------------------- life */

static void a_job_runs_to_its_end_and_leaves_a_checkpoint(void **state)
{
	struct job *j = add(NULL, 100, 0);

	assert_string_equal(j->name, "job-1");
	await(j, JOB_DONE, 100);
	assert_int_equal(j->step, 100);
	assert_string_equal(j->last_checkpoint, "1-100");
	assert_true(j->started_ns && j->ended_ns >= j->started_ns);
	assert_int_equal(queue_slots_free(util_daemon.queue), 1);
	refused(stop, j, "done already");
}

static void stopping_a_queued_job_is_immediate_and_final(void **state)
{
	struct job *a = add("a", ENDLESS, 0), *b = add("b", 50, 0), *c = add("c", 50, 0);

	await(a, JOB_RUNNING, 0);
	ask(stop, b, JOB_STOPPED);
	assert_int_equal(a->state, JOB_RUNNING);
	assert_int_equal(b->started_ns, 0);
	refused(stop, b, "stopped already");
	refused(jobs_pause, b, "stopped already");
	refused(jobs_resume, b, "no checkpoint");
	assert_int_equal(queue_position(util_daemon.queue, c), 1);
	ask(stop, a, JOB_STOPPED);
	await(c, JOB_DONE, 50);
	assert_int_equal(b->state, JOB_STOPPED);
	assert_int_equal(b->started_ns, 0);
}

static void stop_leaves_a_checkpoint_from_which_the_job_goes_on(void **state)
{
	struct job *j = add("j", ENDLESS, 0);
	int64_t step;

	await(j, JOB_RUNNING, 10);
	ask(stop, j, JOB_STOPPED);
	step = j->step;
	assert_true(step >= 10 && j->last_checkpoint[0]);
	ask(jobs_resume, j, JOB_RUNNING);
	await(j, JOB_RUNNING, step + 1);
	ask(stop, j, JOB_STOPPED);
	assert_true(j->step > step);
}

static void pause_frees_the_slot_and_resume_goes_on_where_it_was(void **state)
{
	struct job *a = add("a", ENDLESS, 0), *b = add("b", 50, 0);
	int64_t step;

	await(a, JOB_RUNNING, 10);
	ask(jobs_pause, a, JOB_PAUSED);
	step = a->step;
	refused(jobs_pause, a, "paused already");
	await(b, JOB_DONE, 50);
	assert_int_equal(a->step, step);
	ask(jobs_resume, a, JOB_RUNNING);
	refused(jobs_resume, a, "already");
	await(a, JOB_RUNNING, step + 1);
	ask(stop, a, JOB_STOPPED);
}

static void pause_then_stop_at_once_stops(void **state)
{
	struct outcome paused = {0}, stopped = {0};
	struct fh_status st = FH_STATUS_INIT;
	struct job *j = add("j", ENDLESS, 0);

	await(j, JOB_RUNNING, 5);
	assert_int_equal(jobs_pause(util_daemon.jobs, j, on_done, &paused, &st), 0);
	assert_int_equal(jobs_stop(util_daemon.jobs, j, 0, on_done, &stopped, &st), 0);
	util_wait(&stopped.done);
	assert_int_equal(stopped.st.code, 0);
	assert_int_equal(j->state, JOB_STOPPED);
	assert_int_equal(paused.done, 1);
	assert_int_equal(paused.st.code, FH_CONFLICT);
}

static void a_stop_while_the_job_is_being_started_is_kept(void **state)
{
	struct outcome o = {0}, before = {0};
	struct fh_status st = FH_STATUS_INIT;
	struct job *first = add("first", ENDLESS, 0), *j = add("j", ENDLESS, 0);

	await(first, JOB_RUNNING, 0);
	assert_int_equal(jobs_stop(util_daemon.jobs, first, 1, on_done, &before, &st), 0);
	for (int turns = 0; j->state == JOB_QUEUED; turns++)
		turn(turns);
	assert_int_equal(j->state, JOB_RUNNING); /* the slot is its own, its worker has not been told yet */
	assert_int_equal(j->sent, 0);
	assert_int_equal(jobs_stop(util_daemon.jobs, j, 0, on_done, &o, &st), 0);
	util_wait(&o.done);
	util_wait(&before.done);
	assert_int_equal(o.st.code, 0);
	assert_int_equal(j->state, JOB_STOPPED);
	assert_int_equal(queue_slots_free(util_daemon.queue), 1);
	assert_int_equal(workers_idle(util_daemon.workers), 0);
}

/* One transaction takes a job in and says that it runs; one that has to wait is only queued. */
static void a_job_with_a_free_slot_starts_with_its_first_row(void **state)
{
	struct job *a = add_reporting("a", ENDLESS, 0, 0), *b = add("b", 50, 0);

	assert_int_equal(a->state, JOB_RUNNING);
	assert_int_equal(a->shown, JOB_RUNNING);
	assert_int_equal(series_last_seq(util_daemon.series, a->id), 2); /* queued, running */
	assert_int_equal(b->shown, JOB_QUEUED);
	assert_int_equal(series_last_seq(util_daemon.series, b->id), 1);
	ask(stop, a, JOB_STOPPED);
	await(b, JOB_DONE, 50);
}

/* The limit on the size of files stands for the disk's end: the job was never there, and its slot is free. */
static void a_job_whose_first_row_is_refused_leaves_nothing(void **state)
{
	struct outcome o = {0};
	struct fh_status st = FH_STATUS_INIT;
	struct fh_spec spec;
	struct memory_plan memory;
	const struct dataset *set = datasets_find(util_daemon.datasets, "m");
	struct rlimit old, tight;

	util_spec(&spec, "m", 50);
	assert_int_equal(trainer_plan(util_daemon.backend, &spec, dataset_bars(set), &memory, &st), 0);
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
	tight = old;
	tight.rlim_cur = 1;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
	assert_int_equal(jobs_add(util_daemon.jobs, &spec, "refused", NULL, 0, &memory, dataset_hash(set), NULL, on_done, &o, &st), 0);
	util_wait(&o.done);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	assert_true(o.st.code == FH_IO || o.st.code == FH_EXHAUSTED);
	for (int turns = 0; queue_slots_free(util_daemon.queue) == 0; turns++) /* its market may still be on its way */
		turn(turns);
	assert_null(jobs_by_name(util_daemon.jobs, "refused"));
	assert_int_equal(jobs_count(util_daemon.jobs), 0);
	assert_int_equal(workers_idle(util_daemon.workers), 0);
	await(add("refused", 50, 0), JOB_DONE, 50);
}

static void higher_priority_runs_first(void **state)
{
	struct job *first = add("first", ENDLESS, 0), *low = add("low", 50, -1), *high = add("high", 50, 5);

	await(first, JOB_RUNNING, 0);
	assert_int_equal(queue_position(util_daemon.queue, high), 1);
	assert_int_equal(queue_position(util_daemon.queue, low), 2);
	ask(stop, first, JOB_STOPPED);
	await(low, JOB_DONE, 50);
	assert_int_equal(high->step, 50); /* the slot was free for low only when high had trained to its end */
	assert_true(high->started_ns < low->started_ns);
}

static void draining_starts_nothing_and_leaves_the_running_job_alone(void **state)
{
	struct job *a = add("a", ENDLESS, 0), *b = add("b", 50, 0);

	await(a, JOB_RUNNING, 5);
	daemon_drain(&util_daemon, 1);
	ask(stop, a, JOB_STOPPED);
	assert_int_equal(queue_slots_free(util_daemon.queue), 1);
	assert_int_equal(b->state, JOB_QUEUED);
	daemon_drain(&util_daemon, 0);
	await(b, JOB_DONE, 50);
}

/* ---------------------------------------------------------------- durability */

static void a_stopped_daemon_requeues_its_running_job_and_goes_on(void **state)
{
	struct job *a = add("a", ENDLESS, 0), *b = add("b", 50, 0), *p;
	int64_t step;

	await(a, JOB_RUNNING, 20);
	ask(jobs_pause, b, JOB_PAUSED);
	restart(1);
	a = jobs_find(util_daemon.jobs, "a");
	p = jobs_find(util_daemon.jobs, "b");
	assert_non_null(a);
	assert_int_equal(p->state, JOB_PAUSED);
	step = a->step;
	assert_true(step >= 20);
	assert_int_equal(a->interruptions, 0);
	await(a, JOB_RUNNING, step + 1);
	assert_string_equal(a->resume_note, "");
	ask(stop, a, JOB_STOPPED);
}

static void ids_and_names_go_on_after_a_restart(void **state)
{
	struct job *a = add("a", 10, 0);

	await(a, JOB_DONE, 10);
	restart(1);
	assert_non_null(jobs_find(util_daemon.jobs, "1"));
	assert_non_null(jobs_by_name(util_daemon.jobs, "a"));
	assert_int_equal(add(NULL, 10, 0)->id, 2);
}

static void a_job_of_two_slots_waits_for_both_and_holds_back_those_behind(void **state)
{
	struct job *small, *wide, *behind;
	struct fh_spec spec;
	struct memory_plan memory;
	struct outcome o = {0};

	restart(2);
	small = add("small", ENDLESS, 0);
	await(small, JOB_RUNNING, 1);
	util_spec(&spec, "m", 50);
	spec.run.slots = 2;
	assert_int_equal(trainer_plan(util_daemon.backend, &spec, 2000, &memory, NULL), 0);
	assert_int_equal(jobs_add(util_daemon.jobs, &spec, "wide", NULL, 0, &memory,
				  dataset_hash(datasets_find(util_daemon.datasets, "m")), NULL, on_done, &o, NULL), 0);
	util_wait(&o.done);
	wide = o.job;
	behind = add("behind", 50, 0);
	assert_int_equal(queue_slots_free(util_daemon.queue), 1);
	assert_int_equal(wide->state, JOB_QUEUED);
	assert_int_equal(behind->state, JOB_QUEUED);
	ask(stop, small, JOB_STOPPED);
	await(wide, JOB_DONE, 50);
	await(behind, JOB_DONE, 50);
	assert_true(behind->started_ns > wide->started_ns);
	assert_int_equal(queue_slots_free(util_daemon.queue), 2);
}

static void two_slots_train_two_jobs_at_once(void **state)
{
	struct job *a, *b;

	restart(2);
	a = add("a", ENDLESS, 0);
	b = add("b", ENDLESS, 0);
	await(a, JOB_RUNNING, 5);
	await(b, JOB_RUNNING, 5);
	assert_int_not_equal(a->worker, b->worker);
	ask(stop, a, JOB_STOPPED);
	ask(stop, b, JOB_STOPPED);
}

static void differences_of_specifications_are_named(void **state)
{
	struct fh_spec a, b;
	char text[300];

	util_spec(&a, "m", 100);
	b = a;
	jobs_spec_differs(&a, &b, text, sizeof text);
	assert_string_equal(text, "");
	b.learn.lr = 0.001;
	b.run.seed = a.run.seed + 1;
	jobs_spec_differs(&a, &b, text, sizeof text);
	assert_non_null(strstr(text, "learn.lr is 0.0003 there and 0.001 here"));
	assert_non_null(strstr(text, "run.seed"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_table_allows_these_moves_and_no_others),
		cmocka_unit_test(differences_of_specifications_are_named),
		cmocka_unit_test_setup_teardown(a_job_runs_to_its_end_and_leaves_a_checkpoint, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(stopping_a_queued_job_is_immediate_and_final, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(stop_leaves_a_checkpoint_from_which_the_job_goes_on, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(pause_frees_the_slot_and_resume_goes_on_where_it_was, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(pause_then_stop_at_once_stops, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(a_stop_while_the_job_is_being_started_is_kept, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(a_job_with_a_free_slot_starts_with_its_first_row, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(a_job_whose_first_row_is_refused_leaves_nothing, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(higher_priority_runs_first, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(draining_starts_nothing_and_leaves_the_running_job_alone, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(a_stopped_daemon_requeues_its_running_job_and_goes_on, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(ids_and_names_go_on_after_a_restart, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(a_job_of_two_slots_waits_for_both_and_holds_back_those_behind, util_setup, util_teardown),
		cmocka_unit_test_setup_teardown(two_slots_train_two_jobs_at_once, util_setup, util_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
