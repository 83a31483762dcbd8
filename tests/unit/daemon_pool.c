/* Trainers and the device's memory, on a device that holds as much as a test says: whose memory is free, who is evicted before
 * anybody is refused, and that a refusal names what was asked and what was free and leaves the device as it was. */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include "daemon/daemon.h"
#include "daemon/pool.h"
#include "tests/unit/market.h"

#define SYSTEM (16 << 20)          /* held by others from the beginning */
#define ROOM ((size_t)64 << 20)    /* bytes free for trainers */
#define NO_LIMIT ((size_t)1 << 40)

/* A device of ROOM + SYSTEM bytes whose arenas lie on the host. */
static struct {
	struct backend b;
	size_t free, others;
	int refuse;                /* trainers that the driver refuses although they fit */
	int made, freed;
} fake;

/* Read by the pool's own thread as well. */
static size_t free_now(void)
{
	return __atomic_load_n(&fake.free, __ATOMIC_SEQ_CST);
}

static void others_come(size_t bytes)
{
	__atomic_add_fetch(&fake.others, bytes, __ATOMIC_SEQ_CST);
	__atomic_sub_fetch(&fake.free, bytes, __ATOMIC_SEQ_CST);
}

static int fake_memory(const struct backend *b, struct device_memory *out, struct fh_status *st)
{
	*out = (struct device_memory){.total = ROOM + SYSTEM, .free = free_now(), .others = __atomic_load_n(&fake.others, __ATOMIC_SEQ_CST)};
	return 0;
}

static int fake_exec_new(const struct backend *b, const struct plan *plan, struct exec **out, struct fh_status *st)
{
	int rc;

	if (fake.refuse && fake.refuse--)
		return fh_fail(st, FH_EXHAUSTED, "the driver has no memory");
	if (plan->arena_bytes > free_now())
		return fh_fail(st, FH_EXHAUSTED, "the driver has not enough memory");
	rc = backend_host()->exec_new(b, plan, out, st);
	if (!rc) {
		__atomic_sub_fetch(&fake.free, plan->arena_bytes, __ATOMIC_SEQ_CST);
		fake.made++;
	}
	return rc;
}

static void fake_exec_free(struct exec *x)
{
	__atomic_add_fetch(&fake.free, x->plan->arena_bytes, __ATOMIC_SEQ_CST);
	fake.freed++;
	backend_host()->exec_free(x);
}

static int make_fake(void **state)
{
	memset(&fake, 0, sizeof fake);
	fake.b = *backend_host();
	fake.b.memory = fake_memory;
	fake.b.exec_new = fake_exec_new;
	fake.b.exec_free = fake_exec_free;
	fake.free = ROOM;
	fake.others = SYSTEM;
	return 0;
}

/* About 12 MiB with 32,768 transitions; `atoms` makes another layout of nearly the same size. */
static void spec_of(struct fh_spec *s, int64_t capacity, int64_t atoms)
{
	spec_defaults(s);
	strcpy(s->data.dataset, "m");
	s->net.trunk1 = s->net.trunk2 = s->net.value_hidden = s->net.advantage_hidden = 8;
	s->net.atoms = atoms;
	s->learn.batch = 16;
	s->learn.warmup = 64;
	s->replay.capacity = capacity;
	s->collect.envs = 4;
	spec_resolve(s, FH_DEVICE_HOST);
}

static struct pool *pool(size_t limit, int park)
{
	struct fh_status st = FH_STATUS_INIT;
	struct pool *p;

	if (pool_new(&fake.b, limit, park, &p, &st))
		fail_msg("%s", st.text);
	return p;
}

static struct trainer *take(struct pool *p, uint64_t job, int64_t capacity, int64_t atoms, int *reused, struct fh_status *st)
{
	struct memory_plan m;
	struct fh_spec s;
	struct trainer *t;

	spec_of(&s, capacity, atoms);
	assert_int_equal(trainer_plan(&fake.b, &s, 2000, &m, NULL), 0);
	return pool_take(p, job, &s, &m, &t, reused, st) ? NULL : t;
}

static size_t plan_bytes(int64_t capacity, int64_t atoms)
{
	struct memory_plan m;
	struct fh_spec s;

	spec_of(&s, capacity, atoms);
	assert_int_equal(trainer_plan(&fake.b, &s, 2000, &m, NULL), 0);
	return m.total;
}

static void the_layout_that_was_parked_is_taken_again(void **state)
{
	struct pool *p = pool(NO_LIMIT, LIMIT_PARKED);
	struct pool_trainer list[LIMIT_TRAINERS];
	struct pool_stats s;
	struct trainer *a, *b;
	int reused;

	a = take(p, 1, 32768, 11, &reused, NULL);
	assert_true(a && !reused);
	b = take(p, 2, 32768, 11, &reused, NULL);
	assert_true(b && !reused && b != a); /* the other one is in use */
	pool_park(p, a);
	pool_park(p, b);
	assert_int_equal(pool_list(p, list), 2);
	assert_true(list[0].parked && list[0].job == 1 && list[1].job == 2);
	assert_true(list[0].used.arena > 0 && list[0].used.arena == list[1].used.arena);
	assert_ptr_equal(take(p, 3, 32768, 11, &reused, NULL), b); /* parked last: most likely still in caches */
	assert_true(reused);
	assert_ptr_not_equal(take(p, 4, 32768, 12, &reused, NULL), a); /* another layout */
	assert_false(reused);
	pool_stats(p, &s);
	assert_true(s.live == 2 && s.parked == 1 && s.made == 3 && s.reused == 1 && s.evicted == 0);
	assert_true(s.live_bytes > s.parked_bytes && s.parked_bytes >= list[0].used.arena);
	pool_free(p);
	assert_int_equal(free_now(), ROOM);
}

static void parked_trainers_make_room_before_anybody_is_refused(void **state)
{
	struct pool *p = pool(NO_LIMIT, LIMIT_PARKED);
	struct pool_stats s;
	struct fh_status st = FH_STATUS_INIT;
	struct memory_plan large = {.total = ROOM - (4 << 20)};
	struct trainer *t;
	int reused;

	for (int atoms = 11; atoms < 15; atoms++) /* 4 of about 13 MiB */
		pool_park(p, take(p, (uint64_t)atoms, 32768, atoms, &reused, NULL));
	assert_true(free_now() < plan_bytes(65536, 11));
	assert_int_equal(pool_admits(p, &large, &st), 0); /* what is parked counts as free */
	t = take(p, 20, 65536, 11, &reused, &st);
	assert_non_null(t);
	pool_stats(p, &s);
	assert_true(s.evicted >= 1 && s.evicted <= 2 && s.parked == 4 - s.evicted);
	assert_ptr_not_equal(take(p, 21, 32768, 14, &reused, NULL), NULL); /* the one parked last is still there */
	assert_true(reused);
	pool_free(p);
	assert_int_equal(free_now(), ROOM);
}

static void what_the_driver_refuses_is_tried_again_without_parked_ones(void **state)
{
	struct pool *p = pool(NO_LIMIT, LIMIT_PARKED);
	struct pool_stats s;
	int reused;

	pool_park(p, take(p, 1, 1024, 11, &reused, NULL));
	pool_park(p, take(p, 2, 1024, 12, &reused, NULL));
	fake.refuse = 1;
	assert_non_null(take(p, 3, 1024, 13, &reused, NULL));
	pool_stats(p, &s);
	assert_true(s.evicted == 1 && s.parked == 1 && s.live == 1);
	pool_free(p);
}

static void a_refusal_names_what_was_asked_and_what_was_free(void **state)
{
	struct pool *p = pool(NO_LIMIT, LIMIT_PARKED);
	struct fh_status st = FH_STATUS_INIT;
	struct pool_stats s;
	char asked[32], there[32];
	struct trainer *live;
	int reused;

	live = take(p, 1, 32768, 11, &reused, NULL);
	assert_non_null(live);
	others_come((size_t)40 << 20);
	snprintf(asked, sizeof asked, "needs %zu bytes", plan_bytes(65536, 11));
	snprintf(there, sizeof there, "%zu are free", free_now());
	size_t before = free_now();
	int made = fake.made;
	assert_null(take(p, 2, 65536, 11, &reused, &st));
	assert_int_equal(st.code, FH_EXHAUSTED);
	assert_non_null(strstr(st.text, asked));
	assert_non_null(strstr(st.text, there));
	assert_non_null(strstr(st.text, "others hold 56.0 MiB"));
	assert_true(free_now() == before && fake.made == made);
	pool_stats(p, &s);
	assert_true(s.live == 1 && s.parked == 0 && s.live_bytes == plan_bytes(32768, 11));
	pool_free(p);
}

static void admission_looks_at_what_is_free_now_and_at_what_trainers_would_give_back(void **state)
{
	struct pool *p = pool(NO_LIMIT, LIMIT_PARKED);
	struct memory_plan m = {.total = (size_t)48 << 20};
	struct fh_status st = FH_STATUS_INIT;
	struct trainer *t;
	int reused;

	assert_int_equal(pool_admits(p, &m, &st), 0);
	t = take(p, 1, 32768, 11, &reused, NULL);
	assert_int_equal(pool_admits(p, &m, &st), 0); /* the job before it will have ended */
	others_come((size_t)30 << 20);
	pool_park(p, t); /* the device is looked at */
	assert_int_equal(pool_admits(p, &m, &st), FH_EXHAUSTED);
	assert_non_null(strstr(st.text, "48.0 MiB"));
	assert_true(pool_budget(p) < m.total && pool_budget(p) > free_now());
	pool_free(p);
}

/* The device is looked at without any trainer coming or going. */
static void the_device_is_looked_at_once_a_second(void **state)
{
	struct pool *p = pool(NO_LIMIT, LIMIT_PARKED);
	struct device_memory d;
	uint64_t first = pool_device(p, &d), end = time_mono_ns() + 20000000000ull;

	assert_true(first > 0 && d.free == ROOM);
	while (pool_device(p, &d) == first && time_mono_ns() < end)
		sched_yield();
	assert_true(pool_device(p, &d) > first);
	pool_free(p);
}

static void the_setting_memory_is_a_limit(void **state)
{
	struct memory_plan m = {.total = 1 << 20};
	struct fh_status st = FH_STATUS_INIT;
	struct pool *p = pool(m.total, LIMIT_PARKED);

	assert_int_equal(pool_admits(p, &m, &st), 0);
	m.total++;
	assert_int_equal(pool_admits(p, &m, &st), FH_EXHAUSTED);
	assert_non_null(strstr(st.text, "setting memory"));
	pool_free(p);
}

static void park_0_gives_everything_back_and_more_than_park_evicts_the_oldest(void **state)
{
	struct pool *p = pool(NO_LIMIT, 0);
	struct pool_stats s;
	int reused;

	pool_park(p, take(p, 1, 1024, 11, &reused, NULL));
	assert_int_equal(free_now(), ROOM);
	pool_free(p);
	p = pool(NO_LIMIT, 2);
	for (int atoms = 11; atoms < 14; atoms++)
		pool_park(p, take(p, (uint64_t)atoms, 1024, atoms, &reused, NULL));
	pool_stats(p, &s);
	assert_true(s.parked == 2 && s.evicted == 1);
	pool_drop(p, take(p, 20, 1024, 13, &reused, NULL));
	assert_true(reused);
	assert_non_null(take(p, 21, 1024, 11, &reused, NULL)); /* the one parked first is gone */
	assert_false(reused);
	pool_free(p);
	assert_int_equal(fake.made, fake.freed);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(the_layout_that_was_parked_is_taken_again, make_fake),
		cmocka_unit_test_setup(parked_trainers_make_room_before_anybody_is_refused, make_fake),
		cmocka_unit_test_setup(what_the_driver_refuses_is_tried_again_without_parked_ones, make_fake),
		cmocka_unit_test_setup(a_refusal_names_what_was_asked_and_what_was_free, make_fake),
		cmocka_unit_test_setup(admission_looks_at_what_is_free_now_and_at_what_trainers_would_give_back, make_fake),
		cmocka_unit_test_setup(the_device_is_looked_at_once_a_second, make_fake),
		cmocka_unit_test_setup(the_setting_memory_is_a_limit, make_fake),
		cmocka_unit_test_setup(park_0_gives_everything_back_and_more_than_park_evicts_the_oldest, make_fake),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
