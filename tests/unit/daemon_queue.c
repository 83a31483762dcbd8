/* The queue: priority, then age; positions; a thousand jobs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>
#include "daemon/daemon.h"
#include "daemon/jobs.h"
#include "daemon/queue.h"

#define JOBS 1000

static struct daemon daemon_;
static struct queue *queue;
static struct job *job;

static int setup(void **state)
{
	job = calloc(JOBS, sizeof *job);
	for (int i = 0; i < JOBS; i++) {
		job[i].id = (uint64_t)i + 1;
		job[i].state = JOB_QUEUED;
	}
	return queue_new(&daemon_, 2, &queue, NULL);
}

static int teardown(void **state)
{
	queue_free(queue);
	free(job);
	return 0;
}

static void equal_priorities_run_in_order_of_age(void **state)
{
	for (int i = 0; i < JOBS; i++)
		queue_add(queue, &job[i]);
	assert_int_equal(queue_length(queue), JOBS);
	for (int i = 0; i < JOBS; i++)
		assert_int_equal(queue_position(queue, &job[i]), i + 1);
}

static void an_older_job_that_comes_back_goes_before_younger_ones(void **state)
{
	for (int i = 1; i < JOBS; i++)
		queue_add(queue, &job[i]);
	queue_add(queue, &job[0]);
	assert_int_equal(queue_position(queue, &job[0]), 1);
	assert_int_equal(queue_position(queue, &job[1]), 2);
}

static int by_priority_then_id(const void *a, const void *b)
{
	const struct job *x = *(struct job *const *)a, *y = *(struct job *const *)b;

	if (x->spec.run.priority != y->spec.run.priority)
		return x->spec.run.priority > y->spec.run.priority ? -1 : 1;
	return x->id < y->id ? -1 : 1;
}

static void priority_goes_before_age(void **state)
{
	struct job *sorted[JOBS];

	srand(1);
	for (int i = 0; i < JOBS; i++) {
		job[i].spec.run.priority = rand() % 7 - 3;
		sorted[i] = &job[i];
	}
	for (int i = 0; i < JOBS; i++)
		queue_add(queue, &job[(i * 7) % JOBS]); /* 7 and JOBS have no common factor: each once */
	qsort(sorted, JOBS, sizeof *sorted, by_priority_then_id);
	for (int i = 0; i < JOBS; i++)
		assert_int_equal(queue_position(queue, sorted[i]), i + 1);
}

static void a_removed_job_leaves_no_hole(void **state)
{
	for (int i = 0; i < JOBS; i++)
		queue_add(queue, &job[i]);
	for (int i = 0; i < JOBS; i += 2)
		queue_remove(queue, &job[i]);
	queue_remove(queue, &job[0]); /* not in any more: nothing happens */
	assert_int_equal(queue_length(queue), JOBS / 2);
	for (int i = 1; i < JOBS; i += 2)
		assert_int_equal(queue_position(queue, &job[i]), i / 2 + 1);
	assert_int_equal(queue_position(queue, &job[2]), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(equal_priorities_run_in_order_of_age, setup, teardown),
		cmocka_unit_test_setup_teardown(an_older_job_that_comes_back_goes_before_younger_ones, setup, teardown),
		cmocka_unit_test_setup_teardown(priority_goes_before_age, setup, teardown),
		cmocka_unit_test_setup_teardown(a_removed_job_leaves_no_hole, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
