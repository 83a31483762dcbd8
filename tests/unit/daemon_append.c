/* Promises of appended data sets: bars put behind a set give the very set that one import of all would; who started with the
 * shorter one goes on with it, now, after a restart, and when the daemon died between the new file and its row; what does not fit
 * changes nothing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/unit/datasets_rig.h"

#define N 1500
#define TICK 0.01

static int64_t ts[N];
static double o[N], h[N], l[N], c[N], v[N];

static unsigned jobs_using(void *arg, const char *name)
{
	return 1; /* always one: appending must not mind */
}

static void open_all(void)
{
	sets_open((struct datasets_config){.jobs_using = jobs_using});
}

static int setup(void **state)
{
	sets_folder("append");
	for (int i = 0; i < N; i++) {
		ts[i] = 1700000000000000000 + i * 60000000000 + i / 390 * 63000000000000;
		o[i] = i ? c[i - 1] : 100;
		c[i] = 100 + 3 * sin(i / 17.0) + 0.1 * sin(i * 7.3);
		h[i] = fmax(o[i], c[i]) + 0.25;
		l[i] = fmin(o[i], c[i]) - 0.25;
		v[i] = i % 97;
	}
	open_all();
	return 0;
}

static int teardown(void **state)
{
	close_all();
	return folder_remove(dir);
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

static struct market_bars part(int64_t first, int64_t n)
{
	return (struct market_bars){n, ts + first, o + first, h + first, l + first, c + first, v + first};
}

/* Registers bars first..first+n as `name`, or puts them behind it. */
static int send_bars(const char *name, int64_t first, int64_t n, int append, const char *base, const char *hash)
{
	struct dataset_origin og = {.name = name, .source = "f.csv", .has_volume = 1, .duplicates = 2, .tick = append ? 0 : TICK,
				    .append = append, .base = base, .hash = hash};
	const struct dataset *existed = NULL;
	struct market_bars b = part(first, n);
	char id[UPLOAD_ID_MAX];
	int64_t next;

	memset(&got, 0, sizeof got);
	if (upload_begin(ds, &og, n, id, &existed, &got.st))
		return got.st.code;
	if (upload_chunk(ds, id, 0, &b, &next, &got.st)) {
		upload_abort(ds, id, NULL);
		return got.st.code;
	}
	upload_commit(ds, id, on_registered, NULL);
	loop_await(&loop, &got.done, 1);
	return got.code;
}

static struct market *acquire(const char *name, const char *hash)
{
	memset(&got, 0, sizeof got);
	datasets_acquire(ds, name, hash, TICK, on_loaded, NULL);
	loop_await(&loop, &got.done, 1);
	return got.m;
}

static void assert_same(const struct market *a, const struct market *b)
{
	size_t n = (size_t)a->bars;

	assert_non_null(a);
	assert_int_equal(a->bars, b->bars);
	assert_string_equal(a->hash, b->hash);
	assert_memory_equal(a->ts, b->ts, n * 8);
	assert_memory_equal(a->close, b->close, n * 8);
	assert_memory_equal(a->feature, b->feature, n * FH_MARKET_FEATURES * sizeof(float));
	assert_memory_equal(a->sigma, b->sigma, n * sizeof(float));
}

static void built(int64_t n, struct market **m)
{
	struct market_bars b = part(0, n);

	assert_int_equal(market_build(&b, TICK, m, NULL), 0);
}

static void hash_of(const char *name, char hash[65])
{
	const struct dataset *d = datasets_find(ds, name);

	assert_non_null(d);
	snprintf(hash, 65, "%s", dataset_hash(d));
}

/* ---- tests */

static void test_pieces_make_the_whole(void **state)
{
	struct market *whole, *now, *job, *again, *at400;
	char first[65], second[65], third[65], piece[65];
	struct market_bars b = part(400, 3);

	built(N, &whole);
	built(400, &at400);
	assert_int_equal(send_bars("es", 0, 400, 0, NULL, NULL), 0);
	hash_of("es", first);
	job = acquire("es", first);
	assert_same(job, at400);
	assert_int_equal(market_hash(&b, NULL, 0, piece, NULL), 0);
	assert_int_equal(send_bars("es", 400, 3, 1, first, piece), 0);
	hash_of("es", second);
	assert_string_not_equal(first, second);
	assert_int_equal(send_bars("es", 403, N - 403, 1, second, NULL), 0);
	hash_of("es", third);
	assert_string_equal(third, whole->hash);
	now = acquire("es", NULL);
	assert_same(now, whole);
	assert_same(job, at400); /* whoever held it holds it */
	market_unref(now);
	market_unref(job);

	close_all();
	open_all();
	job = acquire("es", first); /* from the file this time */
	assert_same(job, at400);
	market_unref(job);
	again = acquire("es", second);
	assert_int_equal(again->bars, 403);
	assert_string_equal(again->hash, second);
	market_unref(again);
	now = acquire("es", third);
	assert_same(now, whole);
	market_unref(now);
	assert_null(acquire("es", whole->hash + 1));
	assert_int_equal(got.code, FH_CONFLICT);

	const Fh__V1__Dataset *info = dataset_info(datasets_find(ds, "es"));
	assert_int_equal(info->bars, N);
	assert_int_equal(info->n_version, 2);
	assert_int_equal(info->version[0]->bars, 400);
	assert_string_equal(info->version[1]->hash, second);
	assert_int_equal(info->duplicates, 6);
	assert_int_equal(info->n_note, 2);
	assert_string_equal(info->note[1], "1097 bars appended from f.csv");
	market_unref(whole);
	market_unref(at400);
}

static void test_what_does_not_fit_changes_nothing(void **state)
{
	char hash[65], after[65];

	assert_int_equal(send_bars("es", 0, 400, 1, NULL, NULL), FH_NOT_FOUND);
	assert_int_equal(send_bars("es", 0, 400, 0, NULL, NULL), 0);
	hash_of("es", hash);
	assert_int_equal(send_bars("es", 399, 10, 1, hash, NULL), FH_INVALID); /* its first is the set's last */
	assert_non_null(strstr(got.st.text, "bar 400"));
	assert_int_equal(send_bars("es", 10, 10, 1, hash, NULL), FH_INVALID);
	assert_int_equal(send_bars("es", 400, 10, 1, "00", NULL), FH_CONFLICT);
	assert_int_equal(send_bars("es", 400, 10, 1, hash, hash), FH_CORRUPT);
	hash_of("es", after);
	assert_string_equal(hash, after);
	assert_int_equal(dataset_info(datasets_find(ds, "es"))->n_version, 0);
	assert_int_equal(send_bars("es", 400, 10, 1, hash, NULL), 0);
}

/* The file of an append is there, its row is not: the daemon died in between. */
static void test_a_file_ahead_of_its_row_is_fine(void **state)
{
	struct market *longer, *m, *at400, *whole;
	char file[256], hash[65];

	built(700, &longer);
	built(400, &at400);
	built(N, &whole);
	assert_int_equal(send_bars("es", 0, 400, 0, NULL, NULL), 0);
	hash_of("es", hash);
	close_all();
	snprintf(file, sizeof file, "%s/es.safetensors", sets);
	assert_int_equal(market_save(longer, file, NULL, NULL), 0);
	open_all();
	assert_null(dataset_broken(datasets_find(ds, "es")));
	m = acquire("es", hash);
	assert_same(m, at400);
	market_unref(m);
	assert_int_equal(send_bars("es", 400, N - 400, 1, hash, NULL), 0);
	m = acquire("es", NULL);
	assert_same(m, whole);
	market_unref(m);
	m = acquire("es", hash);
	assert_same(m, at400);
	market_unref(m);
	market_unref(longer);
	market_unref(at400);
	market_unref(whole);
}

static void test_the_number_of_earlier_states_is_bounded(void **state)
{
	char hash[65], last[65] = "";

	assert_int_equal(send_bars("es", 0, 400, 0, NULL, NULL), 0);
	hash_of("es", hash);
	for (int i = 0; i < DATASET_VERSIONS_MAX + 2; i++) {
		hash_of("es", last);
		assert_int_equal(send_bars("es", 400 + i, 1, 1, last, NULL), 0);
	}
	const struct dataset *d = datasets_find(ds, "es");
	assert_int_equal(dataset_info(d)->n_version, DATASET_VERSIONS_MAX);
	assert_int_equal(dataset_bars_of(d, hash), 0);
	assert_int_equal(dataset_bars_of(d, last), 400 + DATASET_VERSIONS_MAX + 1);
	assert_true(dataset_info(d)->n_note <= DATASET_NOTES_MAX);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_pieces_make_the_whole), T(test_what_does_not_fit_changes_nothing), T(test_a_file_ahead_of_its_row_is_fine),
		T(test_the_number_of_earlier_states_is_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
