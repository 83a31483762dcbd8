/* Promises of the store: a transaction that was answered is on the disk whatever kills the process; those of one group do not
 * harm each other; files of newer builds and damaged files are refused and left alone; a thousand jobs take moments. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "daemon/store.h"
#include "proto/status.h"
#include "tests/unit/loop.h"

static char dir[64], path[128];
static uv_loop_t loop;

static int setup(void **state)
{
	snprintf(dir, sizeof dir, "/tmp/fhd-store-XXXXXX");
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/fhd.db", dir);
	return 0;
}

static int teardown(void **state)
{
	return folder_remove(dir);
}

static struct store *open_store(void)
{
	struct fh_status st = FH_STATUS_INIT;
	struct store *s = NULL;

	if (store_open(path, &s, &st))
		fail_msg("%s", st.text);
	return s;
}

static void start(struct store *s)
{
	assert_int_equal(uv_loop_init(&loop), 0);
	assert_int_equal(store_start(s, &loop, NULL), 0);
}

static void stop(struct store *s)
{
	store_stop(s);
	uv_run(&loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&loop), 0);
	store_free(s);
}

struct answers { int n, wanted, last, order[64]; struct fh_status st; };
static int order_next;

static void answered(void *arg, int code, const struct fh_status *st)
{
	struct answers *a = arg;

	a->last = code;
	if (a->n < 64)
		a->order[a->n] = order_next++;
	a->n++;
	if (code)
		a->st = *st;
	if (a->n == a->wanted)
		uv_stop(&loop);
}

static void await(struct answers *a)
{
	uv_timer_t deadline;

	if (a->n >= a->wanted)
		return;
	uv_timer_init(&loop, &deadline);
	uv_timer_start(&deadline, (uv_timer_cb)abort, 30000, 0);
	while (a->n < a->wanted)
		uv_run(&loop, UV_RUN_DEFAULT);
	uv_timer_stop(&deadline);
	uv_close((uv_handle_t *)&deadline, NULL);
	uv_run(&loop, UV_RUN_NOWAIT);
	assert_int_equal(a->n, a->wanted);
}

static struct store_job job(uint64_t id, const char *name, int state)
{
	return (struct store_job){.id = id, .name = name, .state = state, .reason = "because", .spec = "spec\0bytes", .spec_bytes = 10,
				  .labels = "x", .labels_bytes = 1, .request_id = "r-1", .created_ns = UINT64_C(1) << 63,
				  .step = 7, .planned_steps = 9, .queue_order = -3, .last_checkpoint = "1-7"};
}

static struct store_job seen[8];
static int seen_n;
static int see(void *arg, const struct store_job *j)
{
	if (seen_n < 8) {
		seen[seen_n] = *j;
		seen[seen_n].name = strdup(j->name);
	}
	if (!strcmp(j->name, "one")) {
		assert_int_equal(j->spec_bytes, 10);
		assert_memory_equal(j->spec, "spec\0bytes", 10);
		assert_string_equal(j->reason, "because");
		assert_string_equal(j->last_checkpoint, "1-7");
		assert_string_equal(j->dataset_hash, "");
		assert_true(j->created_ns == UINT64_C(1) << 63);
		assert_int_equal(j->queue_order, -3);
	}
	seen_n++;
	return 0;
}

static int load_jobs(struct store *s)
{
	struct fh_status st = FH_STATUS_INIT;

	for (int i = 0; i < 8; i++)
		free((char *)seen[i].name);
	memset(seen, 0, sizeof seen);
	seen_n = 0;
	if (store_load_jobs(s, see, NULL, &st))
		fail_msg("%s", st.text);
	return seen_n;
}

static void test_rows_come_back(void **state)
{
	struct store *s = open_store();
	struct answers a = {.wanted = 1};
	struct store_job j = job(1, "one", 2);
	struct store_txn *t;

	start(s);
	t = store_begin(s);
	store_put_job(t, &j);
	store_put_sample(t, &(struct store_sample){1, 1, 3, "queued", 6});
	store_put_dataset(t, &(struct store_dataset){"eur", "abc", 77, "info", 4});
	store_put_checkpoint(t, &(struct store_checkpoint){"1-7", 1, 7, 88, 1234, "final", "ff", 1});
	store_put_request(t, &(struct store_request){"r-1", "start_job", 1, 99, "reply", 5});
	store_commit(s, t, answered, &a);
	await(&a);
	assert_int_equal(a.last, 0);
	stop(s);

	s = open_store();
	assert_int_equal(load_jobs(s), 1);
	assert_string_equal(seen[0].name, "one");
	store_free(s);
}

static void test_answers_come_in_order(void **state)
{
	struct store *s = open_store();
	struct answers a = {.wanted = 50};

	start(s);
	order_next = 0;
	for (int i = 1; i <= 50; i++) {
		char name[16];
		struct store_job j = job((uint64_t)i, name, 1);
		struct store_txn *t = store_begin(s);

		snprintf(name, sizeof name, "j%d", i);
		store_put_job(t, &j);
		store_commit(s, t, answered, &a);
	}
	await(&a);
	for (int i = 0; i < 50; i++)
		assert_int_equal(a.order[i], i);
	stop(s);
	s = open_store();
	assert_int_equal(load_jobs(s), 50);
	store_free(s);
}

/* The second of three has a name that is taken, or a foreign key to nowhere: only it fails, whole. */
static void test_a_refused_neighbour_harms_nobody(void **state)
{
	struct store *s = open_store();
	struct answers good = {.wanted = 1}, bad = {.wanted = 1}, orphan = {.wanted = 1}, last = {.wanted = 1};
	struct store_job one = job(1, "one", 1), twin = job(2, "one", 1), extra = job(3, "three", 1), four = job(4, "four", 1);
	struct store_txn *t;

	start(s);
	t = store_begin(s);
	store_put_job(t, &one);
	store_commit(s, t, answered, &good);
	t = store_begin(s);
	store_put_job(t, &extra);
	store_put_job(t, &twin);
	store_commit(s, t, answered, &bad);
	t = store_begin(s);
	store_put_sample(t, &(struct store_sample){99, 1, 1, "x", 1});
	store_commit(s, t, answered, &orphan);
	t = store_begin(s);
	store_put_job(t, &four);
	store_commit(s, t, answered, &last);
	await(&last);
	assert_int_equal(good.last, 0);
	assert_int_equal(bad.last, FH_CONFLICT);
	assert_non_null(strstr(bad.st.text, "jobs.name"));
	assert_int_equal(orphan.last, FH_CONFLICT);
	assert_int_equal(last.last, 0);
	stop(s);
	s = open_store();
	assert_int_equal(load_jobs(s), 2);
	store_free(s);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void test_a_thousand_jobs_share_syncs(void **state)
{
	struct store *s = open_store();
	struct answers a = {.wanted = 1000};
	struct store_stats stats;
	double begin = now();

	start(s);
	for (int i = 1; i <= 1000; i++) {
		char name[16];
		struct store_job j = job((uint64_t)i, name, 1);
		struct store_txn *t = store_begin(s);

		snprintf(name, sizeof name, "j%d", i);
		store_put_job(t, &j);
		store_put_sample(t, &(struct store_sample){(uint64_t)i, 1, 3, "queued", 6});
		store_commit(s, t, answered, &a);
	}
	await(&a);
	store_stats(s, &stats);
	print_message("1000 jobs: %.3f s, %llu syncs\n", now() - begin, (unsigned long long)stats.groups);
	assert_true(stats.groups < 200);
	assert_int_equal(stats.failed, 0);
	assert_int_equal(stats.transactions, 1000);
	assert_true(now() - begin < 20);
	stop(s);
	s = open_store();
	assert_int_equal(load_jobs(s), 1000);
	store_free(s);
}

/* The child commits jobs for ever and writes every answered number into a pipe; it is killed in the middle. Every number that
 * came through the pipe must be there afterwards. */
static int answer_pipe[2];
static uint64_t child_next = 1;
static struct store *child_store;
static void child_commit(void);

static void child_answered(void *arg, int code, const struct fh_status *st)
{
	uint64_t id = (uint64_t)(uintptr_t)arg;

	if (code || write(answer_pipe[1], &id, sizeof id) != sizeof id)
		_exit(1);
	child_commit();
}

static void child_commit(void)
{
	char name[32];
	struct store_job j = job(child_next, name, 1);
	struct store_txn *t = store_begin(child_store);

	snprintf(name, sizeof name, "j%llu", (unsigned long long)child_next);
	store_put_job(t, &j);
	store_put_sample(t, &(struct store_sample){child_next, 1, 3, "queued", 6});
	store_commit(child_store, t, child_answered, (void *)(uintptr_t)child_next);
	child_next++;
}

/* The test runs itself again as the child: a forked copy of a process with threads may do next to nothing. */
static int run_child(char **argv)
{
	snprintf(path, sizeof path, "%s", argv[2]);
	answer_pipe[1] = atoi(argv[3]);
	child_next = strtoull(argv[4], NULL, 10);
	uv_loop_init(&loop);
	if (store_open(path, &child_store, NULL) || store_start(child_store, &loop, NULL))
		_exit(2);
	for (int i = 0; i < 8; i++)
		child_commit();
	uv_run(&loop, UV_RUN_DEFAULT);
	return 3;
}

static pid_t spawn_child(uint64_t next)
{
	char fd[16], from[32];
	pid_t pid;

	snprintf(fd, sizeof fd, "%d", answer_pipe[1]);
	snprintf(from, sizeof from, "%llu", (unsigned long long)next);
	pid = fork();
	if (!pid) {
		execl("/proc/self/exe", "child", "--child", path, fd, from, NULL);
		_exit(127);
	}
	assert_true(pid > 0);
	return pid;
}

static void test_killed_loses_nothing_that_was_answered(void **state)
{
	uint64_t highest = 0;

	for (int round = 0; round < 6; round++) {
		uint64_t id;
		int status, got = 0, wanted = 20 + 37 * round;
		struct store *s;
		pid_t pid;

		assert_int_equal(pipe(answer_pipe), 0);
		pid = spawn_child(highest + 1000); /* ids of killed rounds that were never answered may be there */
		close(answer_pipe[1]);
		while (got < wanted && read(answer_pipe[0], &id, sizeof id) == sizeof id) {
			highest = id > highest ? id : highest;
			got++;
		}
		kill(pid, SIGKILL);
		while (read(answer_pipe[0], &id, sizeof id) == sizeof id) {
			highest = id > highest ? id : highest;
			got++;
		}
		close(answer_pipe[0]);
		waitpid(pid, &status, 0);
		assert_true(WIFSIGNALED(status));
		assert_true(got >= wanted);
		s = open_store(); /* passes its integrity check */
		load_jobs(s);
		assert_true(seen_n >= got);
		{
			sqlite3 *db;
			sqlite3_stmt *q;

			assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
			/* answers come in order: everything of this round up to the highest is there, each with its sample */
			assert_int_equal(sqlite3_prepare_v2(db, "SELECT count(*), count(DISTINCT e.job) FROM jobs j JOIN samples e ON "
							    "e.job = j.id WHERE j.id <= ?1 AND j.id > ?2", -1, &q, NULL), SQLITE_OK);
			sqlite3_bind_int64(q, 1, (sqlite3_int64)highest);
			sqlite3_bind_int64(q, 2, (sqlite3_int64)highest - got);
			assert_int_equal(sqlite3_step(q), SQLITE_ROW);
			assert_int_equal(sqlite3_column_int(q, 0), got);
			assert_int_equal(sqlite3_column_int(q, 1), got);
			sqlite3_finalize(q);
			sqlite3_close(db);
		}
		store_free(s);
	}
}

static void raw(const char *sql)
{
	sqlite3 *db;

	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(db);
}

static void expect_refused(int code, const char *part)
{
	struct fh_status st = FH_STATUS_INIT;
	struct store *s = NULL;
	struct stat before, after;

	assert_int_equal(stat(path, &before), 0);
	assert_int_equal(store_open(path, &s, &st), code);
	assert_null(s);
	if (!strstr(st.text, part))
		fail_msg("\"%s\" does not say \"%s\"", st.text, part);
	assert_non_null(strstr(st.text, path));
	assert_int_equal(stat(path, &after), 0);
	assert_int_equal(before.st_size, after.st_size);
}

static void test_newer_schema_is_refused(void **state)
{
	store_free(open_store());
	raw("PRAGMA user_version = 7");
	expect_refused(FH_VERSION, "schema 7");
	raw("PRAGMA user_version = 2");
	store_free(open_store());
}

static void test_foreign_and_damaged_files_are_refused(void **state)
{
	char junk[4096];
	struct store *s;
	FILE *f;

	raw("CREATE TABLE other(x)");
	expect_refused(FH_CORRUPT, "another program");
	unlink(path);
	f = fopen(path, "w");
	memset(junk, 'x', sizeof junk);
	assert_int_equal(fwrite(junk, 1, sizeof junk, f), sizeof junk);
	fclose(f);
	expect_refused(FH_CORRUPT, "not a database");
	unlink(path);
	/* a page in the middle overwritten */
	s = open_store();
	start(s);
	{
		struct answers a = {.wanted = 200};

		for (int i = 1; i <= 200; i++) {
			char name[16];
			struct store_job j = job((uint64_t)i, name, 1);
			struct store_txn *t = store_begin(s);

			snprintf(name, sizeof name, "j%d", i);
			store_put_job(t, &j);
			store_commit(s, t, answered, &a);
		}
		await(&a);
	}
	stop(s);
	f = fopen(path, "r+");
	fseek(f, -8192, SEEK_END);
	assert_int_equal(fwrite(junk, 1, sizeof junk, f), sizeof junk);
	fclose(f);
	expect_refused(FH_CORRUPT, "damaged");
}

struct page { int n, more, got; uint64_t first, last; };
static void got_samples(void *arg, int code, const struct store_sample *row, size_t n, int more)
{
	struct page *p = arg;

	assert_int_equal(code, 0);
	p->got = 1;
	p->n = (int)n;
	p->more = more;
	if (n) {
		p->first = row[0].seq;
		p->last = row[n - 1].seq;
		assert_memory_equal(row[n - 1].packed, "abc", 3);
		assert_int_equal(row[n - 1].bytes, 3);
	}
	uv_stop(&loop);
}

static void test_samples_are_read_after_writes_and_thinned(void **state)
{
	struct store *s = open_store();
	struct answers a = {.wanted = 1};
	struct store_job j = job(1, "one", 1);
	struct page p = {0};
	struct store_txn *t;

	start(s);
	t = store_begin(s);
	store_put_job(t, &j);
	for (uint64_t i = 1; i <= 100; i++)
		store_put_sample(t, &(struct store_sample){1, i, i % 10 ? 1 : 2, "abc", 3});
	store_commit(s, t, NULL, NULL);
	store_read_samples(s, 1, 40, 20, got_samples, &p);
	uv_run(&loop, UV_RUN_DEFAULT);
	assert_true(p.got);
	assert_int_equal(p.n, 20);
	assert_int_equal(p.more, 1);
	assert_int_equal(p.first, 41);
	assert_int_equal(p.last, 60);
	t = store_begin(s);
	store_thin_samples(t, 1, 81, 16, 21); /* below 21 nothing; 21..80: 32, 48, 64 and the validations 30,40,…,80 */
	store_commit(s, t, answered, &a);
	await(&a);
	store_read_samples(s, 1, 0, 1000, got_samples, &p);
	uv_run(&loop, UV_RUN_DEFAULT);
	assert_int_equal(p.n, 3 + 6 + 20);
	assert_int_equal(p.first, 30);
	assert_int_equal(p.more, 0);
	store_read_samples(s, 1, 100, 1000, got_samples, &p);
	uv_run(&loop, UV_RUN_DEFAULT);
	assert_int_equal(p.n, 0);
	stop(s);
}

/* The answer of a query that gives one number. */
static sqlite3_int64 ask(const char *sql)
{
	sqlite3_int64 n = -1;
	sqlite3_stmt *q = NULL;
	sqlite3 *db = NULL;

	assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
	assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &q, NULL), SQLITE_OK);
	if (sqlite3_step(q) == SQLITE_ROW)
		n = sqlite3_column_int64(q, 0);
	sqlite3_finalize(q);
	sqlite3_close(db);
	return n;
}

/* A file of the first schema, which had a table more: what it holds is there afterwards, and the table is not. */
static void test_an_older_file_is_taken_over(void **state)
{
	struct store *s = open_store();
	struct answers a = {.wanted = 1};
	struct store_job j = job(1, "one", 1);
	struct store_txn *t = store_begin(s);

	start(s);
	store_put_job(t, &j);
	store_commit(s, t, answered, &a);
	await(&a);
	stop(s);
	raw("CREATE TABLE events(n INTEGER PRIMARY KEY, job INTEGER NOT NULL, time_ns INTEGER NOT NULL, state INTEGER NOT NULL, reason TEXT NOT NULL)");
	raw("INSERT INTO events VALUES(1, 1, 5, 1, 'queued')");
	raw("PRAGMA user_version = 1");
	s = open_store();
	assert_int_equal(load_jobs(s), 1);
	assert_string_equal(seen[0].name, "one");
	store_free(s);
	assert_int_equal(ask("SELECT count(*) FROM sqlite_master WHERE name = 'events'"), 0);
	assert_int_equal(ask("PRAGMA user_version"), STORE_SCHEMA);
}

/* No room for a large transaction: it fails with a reason, its neighbour of the same group and later ones are fine. The limit on the
 * file size stands for the disk's end. */
static void test_no_room_is_an_answer(void **state)
{
	struct store *s = open_store();
	struct answers bad = {.wanted = 1}, small = {.wanted = 1}, good = {.wanted = 1};
	struct store_job j = job(1, "large", 1), k = job(2, "two", 1);
	char *blob = calloc(1, STORE_BLOB_MAX);
	struct rlimit old, tight;
	struct store_txn *t;

	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
	tight = old;
	tight.rlim_cur = 600 << 10;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
	start(s);
	t = store_begin(s);
	store_put_job(t, &k);
	store_commit(s, t, answered, &small);
	j.spec = blob;
	j.spec_bytes = STORE_BLOB_MAX;
	t = store_begin(s);
	store_put_job(t, &j);
	store_commit(s, t, answered, &bad);
	await(&small);
	await(&bad);
	assert_int_equal(small.last, 0);
	assert_true(bad.last == FH_IO || bad.last == FH_EXHAUSTED);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	t = store_begin(s);
	store_put_job(t, &j);
	store_commit(s, t, answered, &good);
	await(&good);
	assert_int_equal(good.last, 0);
	stop(s);
	s = open_store();
	assert_int_equal(load_jobs(s), 2);
	store_free(s);
	free(blob);
}

static void test_closed_store_answers(void **state)
{
	struct store *s = open_store();
	struct answers a = {.wanted = 1};
	struct store_job j = job(1, "one", 1);
	struct store_txn *t;

	start(s);
	t = store_begin(s);
	store_put_job(t, &j);
	store_commit(s, t, NULL, NULL);
	store_stop(s);
	t = store_begin(s);
	store_put_job(t, &j);
	store_commit(s, t, answered, &a);
	assert_int_equal(a.n, 1);
	assert_int_equal(a.last, FH_UNAVAILABLE);
	uv_run(&loop, UV_RUN_DEFAULT); /* answered() stopped it */
	uv_run(&loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&loop), 0);
	store_free(s);
	s = open_store();
	assert_int_equal(load_jobs(s), 1); /* what was handed over before the stop is there */
	store_free(s);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_rows_come_back, setup, teardown),
		cmocka_unit_test_setup_teardown(test_answers_come_in_order, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_refused_neighbour_harms_nobody, setup, teardown),
		cmocka_unit_test_setup_teardown(test_a_thousand_jobs_share_syncs, setup, teardown),
		cmocka_unit_test_setup_teardown(test_killed_loses_nothing_that_was_answered, setup, teardown),
		cmocka_unit_test_setup_teardown(test_newer_schema_is_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_foreign_and_damaged_files_are_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_samples_are_read_after_writes_and_thinned, setup, teardown),
		cmocka_unit_test_setup_teardown(test_an_older_file_is_taken_over, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_room_is_an_answer, setup, teardown),
		cmocka_unit_test_setup_teardown(test_closed_store_answers, setup, teardown),
	};

	if (argc == 5 && !strcmp(argv[1], "--child"))
		return run_child(argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
