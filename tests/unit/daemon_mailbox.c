/* Rings between the loop and a worker: order, the oldest goes and is counted, nothing else is ever lost. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "daemon/mailbox.h"

#define MANY 200000

static void items_come_out_in_order(void **state)
{
	struct ring r;
	int v;

	assert_int_equal(ring_init(&r, sizeof v, 3, NULL), 0);
	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < 3; i++) {
			v = 10 * round + i;
			assert_int_equal(ring_push(&r, &v), 1);
		}
		v = -1;
		assert_int_equal(ring_push(&r, &v), 0);
		for (int i = 0; i < 3; i++) {
			assert_int_equal(ring_pop(&r, &v), 1);
			assert_int_equal(v, 10 * round + i);
		}
		assert_int_equal(ring_pop(&r, &v), 0);
	}
	assert_int_equal(ring_dropped(&r), 0);
	ring_release(&r);
}

static void a_full_ring_drops_its_oldest_and_counts(void **state)
{
	struct ring r;
	int v;

	assert_int_equal(ring_init(&r, sizeof v, 4, NULL), 0);
	for (v = 0; v < 11; v++)
		ring_push_over(&r, &v);
	assert_int_equal(ring_dropped(&r), 7);
	for (int i = 7; i < 11; i++) {
		assert_int_equal(ring_pop(&r, &v), 1);
		assert_int_equal(v, i);
	}
	assert_int_equal(ring_pop(&r, &v), 0);
	ring_release(&r);
}

static void *produce_waiting(void *arg)
{
	for (int i = 0; i < MANY; i++)
		ring_push_wait(arg, &i);
	return NULL;
}

static void a_waiting_producer_loses_nothing(void **state)
{
	struct ring r;
	pthread_t t;
	int v, expected = 0;

	assert_int_equal(ring_init(&r, sizeof v, 8, NULL), 0);
	pthread_create(&t, NULL, produce_waiting, &r);
	while (expected < MANY)
		if (ring_pop(&r, &v))
			assert_int_equal(v, expected++);
	pthread_join(t, NULL);
	assert_int_equal(ring_pop(&r, &v), 0);
	ring_release(&r);
}

static void *produce_over(void *arg)
{
	for (int i = 0; i < MANY; i++)
		ring_push_over(arg, &i);
	return NULL;
}

static void what_was_dropped_and_what_came_out_are_all(void **state)
{
	struct ring r;
	pthread_t t;
	int v, last = -1, got = 0;

	assert_int_equal(ring_init(&r, sizeof v, 16, NULL), 0);
	pthread_create(&t, NULL, produce_over, &r);
	while (last != MANY - 1) {
		if (!ring_pop(&r, &v))
			continue;
		assert_true(v > last); /* never out of order, never twice */
		last = v;
		got++;
	}
	pthread_join(t, NULL);
	assert_int_equal((uint64_t)got + ring_dropped(&r), MANY);
	ring_release(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(items_come_out_in_order),
		cmocka_unit_test(a_full_ring_drops_its_oldest_and_counts),
		cmocka_unit_test(a_waiting_producer_loses_nothing),
		cmocka_unit_test(what_was_dropped_and_what_came_out_are_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
