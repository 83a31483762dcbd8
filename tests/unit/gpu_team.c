/* The thread team: every task runs exactly once, memory is visible across a round, idle members use no CPU, and the
 * number of threads follows the environment and its bound. */
#include "golden.h"

#include <stdatomic.h>
#include <time.h>

#include "gpu/host/threads.h"

#define TASKS_MAX 300

struct counts { atomic_int ran[TASKS_MAX]; long value[TASKS_MAX]; int members; };

static void count_task(void *ctx, int task, int member)
{
	struct counts *c = ctx;

	atomic_fetch_add(&c->ran[task], 1);
	c->value[task] += task;
	if (member < 0 || member >= c->members)
		atomic_fetch_add(&c->ran[task], 1000);
}

static void every_task_runs_once(void **state)
{
	static struct counts c;

	(void)state;
	for (int threads = 1; threads <= 5; threads++) {
		struct team *t = NULL;

		assert_int_equal(team_new(threads, &t, NULL), 0);
		assert_int_equal(team_threads(t), threads);
		memset(&c, 0, sizeof(c));
		c.members = threads;
		for (int round = 0; round < 200; round++)
			team_run(t, TASKS_MAX - round, count_task, &c);
		for (int i = 0; i < TASKS_MAX; i++) {
			int rounds = TASKS_MAX - i < 200 ? TASKS_MAX - i : 200;

			assert_int_equal(c.ran[i], rounds);
			assert_int_equal(c.value[i], (long)i * rounds);
		}
		team_run(t, 0, count_task, &c);
		team_run(t, 1, count_task, &c);
		assert_int_equal(c.ran[0], 201);
		team_free(t);
	}
	memset(&c, 0, sizeof(c));
	c.members = 1;
	team_run(NULL, 3, count_task, &c);
	assert_int_equal(c.ran[2], 1);
	assert_int_equal(team_threads(NULL), 1);
	team_free(NULL);
}

static double seconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* After a round, members stop spinning: over a tenth of a second of waiting the process burns next to nothing. */
static void idle_members_use_no_cpu(void **state)
{
	static struct counts c;
	struct timespec tenth = {0, 100000000};
	struct team *t = NULL;
	double before;

	(void)state;
	assert_int_equal(team_new(4, &t, NULL), 0);
	c.members = 4;
	team_run(t, 100, count_task, &c);
	before = seconds(CLOCK_PROCESS_CPUTIME_ID);
	nanosleep(&tenth, NULL);
	assert_within(seconds(CLOCK_PROCESS_CPUTIME_ID) - before, 0.02, "CPU seconds of an idle team");
	team_run(t, 100, count_task, &c); /* and they wake up again */
	assert_int_equal(c.ran[99], 2);
	team_free(t);
}

static void the_number_of_threads(void **state)
{
	struct team *t = NULL;

	(void)state;
	setenv("FH_HOST_THREADS", "3", 1);
	assert_int_equal(team_default_threads(), 3);
	assert_int_equal(team_new(0, &t, NULL), 0);
	assert_int_equal(team_threads(t), 3);
	team_free(t);
	setenv("FH_HOST_THREADS", "1000", 1);
	assert_int_equal(team_default_threads(), TEAM_THREADS_MAX);
	unsetenv("FH_HOST_THREADS");
	assert_in_range(team_default_threads(), 1, TEAM_THREADS_MAX);
	assert_int_equal(team_new(1000, &t, NULL), 0);
	assert_int_equal(team_threads(t), TEAM_THREADS_MAX);
	team_free(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_task_runs_once), cmocka_unit_test(idle_members_use_no_cpu), cmocka_unit_test(the_number_of_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
