/* Promises of uploads whose features and file are made while their bars come: the set is the very one that one import makes, whatever the
 * pieces; until it is registered its file has a temporary name; an upload that is given up, stopped or wrong leaves no file. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/unit/datasets_rig.h"

#define N 60000
#define TICK 0.01

static int64_t ts[N];
static double o[N], h[N], l[N], c[N], v[N];
static char hash[65];
static struct market *want;

static void open_all(void)
{
	sets_open((struct datasets_config){0});
}

static int setup(void **state)
{
	sets_folder("grow");
	open_all();
	return 0;
}

static int teardown(void **state)
{
	close_all();
	return folder_remove(dir);
}

static struct market_bars part(int64_t first, int64_t n)
{
	return (struct market_bars){n, ts + first, o + first, h + first, l + first, c + first, v + first};
}

static const int64_t roll[2] = {777, 40000};

static int make(void **state)
{
	struct market_bars b = part(0, N);

	for (int i = 0; i < N; i++) {
		ts[i] = 1700000000000000000 + i * 60000000000 + i / 390 * 63000000000000;
		o[i] = i ? c[i - 1] : 100;
		c[i] = 100 + 3 * sin(i / 17.0) + 0.1 * sin(i * 7.3);
		h[i] = fmax(o[i], c[i]) + 0.25;
		l[i] = fmin(o[i], c[i]) - 0.25;
		v[i] = i % 97;
	}
	assert_int_equal(market_build_rolls(&b, TICK, roll, 2, &want, NULL), 0);
	snprintf(hash, sizeof hash, "%s", want->hash);
	return 0;
}

static int unmake(void **state)
{
	market_unref(want);
	return 0;
}

/* How many files are there, and how many of them temporary. */
static int files(int *temporary)
{
	DIR *d = opendir(sets);
	struct dirent *e;
	int n = 0;

	*temporary = 0;
	assert_non_null(d);
	while ((e = readdir(d))) {
		n += e->d_name[0] != '.';
		*temporary += strstr(e->d_name, ".tmp") != NULL;
	}
	closedir(d);
	return n;
}

/* Waits until a file lies there; 1: under a temporary name. */
static int await_file(void)
{
	int temporary = 0;

	for (int i = 0; i < 60000 && !files(&temporary); i++) {
		uv_run(&loop, UV_RUN_NOWAIT);
		usleep(1000);
	}
	return temporary;
}

struct answer { int done, code; struct market *m; struct fh_status st; };
static struct answer got;

static void on_registered(void *arg, int code, const struct dataset *d, int existed, const struct fh_status *st)
{
	got.done = 1;
	got.code = code;
	if (code)
		got.st = *st;
}

static void on_loaded(void *arg, int code, struct market *m, const struct fh_status *st)
{
	on_registered(arg, code, NULL, 0, st);
	got.m = m;
}

static void begin(const char *name, const char *digest, char id[UPLOAD_ID_MAX])
{
	struct dataset_origin og = {.name = name, .source = "f.csv", .has_volume = 1, .tick = TICK, .hash = digest, .roll = roll, .rolls = 2};
	const struct dataset *existed = NULL;

	memset(&got, 0, sizeof got);
	assert_int_equal(upload_begin(ds, &og, N, id, &existed, &got.st), 0);
	assert_null(existed);
}

static void put(const char *id, int64_t first, int64_t n)
{
	struct market_bars b = part(first, n);
	int64_t next;

	assert_int_equal(upload_chunk(ds, id, first, &b, &next, &got.st), 0);
	assert_int_equal(next, first + n);
}

static int commit(const char *id)
{
	upload_commit(ds, id, on_registered, NULL);
	loop_await(&loop, &got.done, 1);
	return got.code;
}

static void same(const char *name)
{
	memset(&got, 0, sizeof got);
	datasets_acquire(ds, name, NULL, TICK, on_loaded, NULL);
	loop_await(&loop, &got.done, 1);
	assert_int_equal(got.code, 0);
	assert_string_equal(got.m->hash, hash);
	assert_int_equal(got.m->rolls, 2);
	assert_memory_equal(got.m->ts, want->ts, N * 8);
	assert_memory_equal(got.m->volume, want->volume, N * 8);
	assert_memory_equal(got.m->feature, want->feature, N * FH_MARKET_FEATURES * sizeof(float));
	assert_memory_equal(got.m->sigma, want->sigma, N * sizeof(float));
	market_unref(got.m);
}

static void pieces_of_any_length(void **state)
{
	static const int64_t piece[] = {N, 25000, 5000, 4095, 700};
	int temporary;

	for (size_t i = 0; i < sizeof piece / sizeof *piece; i++) {
		char id[UPLOAD_ID_MAX], name[16];

		snprintf(name, sizeof name, "set%zu", i);
		begin(name, i % 2 ? NULL : hash, id);
		for (int64_t first = 0; first < N; first += piece[i]) {
			put(id, first, piece[i] < N - first ? piece[i] : N - first);
			uv_run(&loop, UV_RUN_NOWAIT);
		}
		assert_int_equal(commit(id), 0);
		same(name);
		assert_int_equal(files(&temporary), i + 1);
		assert_int_equal(temporary, 0);
	}
	close_all(); /* and from the files */
	open_all();
	for (size_t i = 0; i < sizeof piece / sizeof *piece; i++) {
		char name[16];

		snprintf(name, sizeof name, "set%zu", i);
		same(name);
	}
}

static void no_name_before_its_time(void **state)
{
	char id[UPLOAD_ID_MAX];
	int temporary;

	begin("late", hash, id);
	put(id, 0, 30000);
	assert_int_equal(await_file(), 1);
	assert_null(datasets_find(ds, "late"));
	put(id, 30000, N - 30000);
	assert_int_equal(commit(id), 0);
	assert_int_equal(files(&temporary), 1);
	assert_int_equal(temporary, 0);
	same("late");
}

static void what_ends_early_leaves_no_file(void **state)
{
	char id[UPLOAD_ID_MAX];
	int temporary;

	begin("gone", hash, id); /* given up */
	put(id, 0, 30000);
	assert_int_equal(await_file(), 1);
	assert_int_equal(upload_abort(ds, id, NULL), 0);
	for (int i = 0; i < 60000 && files(&temporary); i++) {
		uv_run(&loop, UV_RUN_NOWAIT);
		usleep(1000);
	}
	assert_int_equal(files(&temporary), 0);

	memset(&got, 0, sizeof got); /* other bars than were announced */
	begin("wrong", "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", id);
	put(id, 0, N);
	assert_int_equal(await_file(), 1);
	assert_int_equal(commit(id), FH_CORRUPT);
	close_all();
	assert_int_equal(files(&temporary), 0);

	open_all(); /* stopped while they come */
	begin("stopped", hash, id);
	put(id, 0, 50000);
	assert_int_equal(await_file(), 1);
	close_all();
	assert_int_equal(files(&temporary), 0);
	open_all();
}

/* More uploads at once than may grow: the others are made at their commits, and all are right. */
static void more_than_may_grow(void **state)
{
	char id[REGISTRATIONS_RUNNING + 2][UPLOAD_ID_MAX], name[16];

	for (int i = 0; i < REGISTRATIONS_RUNNING + 2; i++) {
		snprintf(name, sizeof name, "n%d", i);
		begin(name, hash, id[i]);
	}
	for (int64_t first = 0; first < N; first += 15000)
		for (int i = 0; i < REGISTRATIONS_RUNNING + 2; i++)
			put(id[i], first, 15000);
	for (int i = REGISTRATIONS_RUNNING + 1; i >= 0; i--) {
		snprintf(name, sizeof name, "n%d", i);
		memset(&got, 0, sizeof got);
		assert_int_equal(commit(id[i]), 0);
		same(name);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(pieces_of_any_length, setup, teardown),
		cmocka_unit_test_setup_teardown(no_name_before_its_time, setup, teardown),
		cmocka_unit_test_setup_teardown(what_ends_early_leaves_no_file, setup, teardown),
		cmocka_unit_test_setup_teardown(more_than_may_grow, setup, teardown),
	};

	return cmocka_run_group_tests(tests, make, unmake);
}
