/* Promises of the checkpoints: an answered one is whole on the disk and found after a restart, whatever kills the process; a row
 * always has its file; old ones go by the rule, never the newest, a pinned or a needed one; a file that is read stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "daemon/checkpoints.h"
#include "daemon/log.h"
#include "daemon/store.h"
#include "gpu/hash.h"
#include "proto/status.h"
#include "tests/unit/loop.h"

static char dir[64], path[128], folder[128];
static uv_loop_t loop;
static struct store *store;
static struct checkpoints *cs;
static char needed_id[FH_NAME_MAX];

static int needed(void *arg, const char *id, char *by)
{
	snprintf(by, FH_NAME_MAX, "trader");
	return !strcmp(id, needed_id);
}

static void paths(const char *root)
{
	snprintf(dir, sizeof dir, "%s", root);
	snprintf(path, sizeof path, "%s/fhd.db", dir);
	snprintf(folder, sizeof folder, "%s/checkpoints", dir);
}

static void open_all(void)
{
	struct fh_status st = FH_STATUS_INIT;
	struct checkpoints_config cfg = {.loop = &loop, .dir = folder, .needed = needed};

	uv_loop_init(&loop);
	if (store_open(path, &store, &st))
		fail_msg("%s", st.text);
	cfg.store = store;
	assert_int_equal(checkpoints_new(&cfg, &cs, NULL), 0);
	assert_int_equal(checkpoints_load(cs, NULL), 0);
	assert_int_equal(store_start(store, &loop, NULL), 0);
}

static void close_all(void)
{
	checkpoints_stop(cs);
	while (checkpoints_busy(cs))
		uv_run(&loop, UV_RUN_ONCE);
	store_stop(store);
	checkpoints_free(cs);
	store_free(store);
	uv_run(&loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&loop), 0);
}

static void add_jobs(void)
{
	struct store_txn *t = store_begin(store);

	for (uint64_t i = 1; i <= 3; i++) {
		char name[16];

		snprintf(name, sizeof name, "j%d", (int)i);
		store_put_job(t, &(struct store_job){.id = i, .name = name});
	}
	store_commit(store, t, NULL, NULL);
}

static int setup(void **state)
{
	char root[] = "/tmp/fhd-checkpoints-XXXXXX";

	log_level_set(LOG_ERROR);
	assert_non_null(mkdtemp(root));
	paths(root);
	needed_id[0] = 0;
	open_all();
	add_jobs();
	return 0;
}

static int teardown(void **state)
{
	close_all();
	return folder_remove(dir);
}

static struct { int done, code; struct checkpoint c; struct fh_status st; } got;
static void on_done(void *arg, int code, const struct checkpoint *c, const struct fh_status *st)
{
	got.done++;
	got.code = code;
	if (!code)
		got.c = *c;
	else
		got.st = *st;
}

static struct st_image image(uint64_t number, size_t bytes)
{
	struct st_image img = {malloc(bytes), bytes};

	for (size_t i = 0; i < bytes; i++)
		((unsigned char *)img.data)[i] = (unsigned char)(number * 31 + i * 7);
	return img;
}

static const char *add(uint64_t job, uint64_t step, const char *reason, int64_t keep)
{
	struct st_image img = image(step, 5000);

	memset(&got, 0, sizeof got);
	checkpoints_add(cs, job, step, reason, keep, &img, on_done, NULL);
	assert_null(img.data);
	assert_int_equal(got.done, 0);
	loop_await(&loop, &got.done, 1);
	assert_int_equal(got.code, 0);
	return got.c.id;
}

/* Rows and files that go are gone. */
static void settle(void)
{
	while (checkpoints_busy(cs))
		uv_run(&loop, UV_RUN_ONCE);
	while (uv_run(&loop, UV_RUN_NOWAIT) && loop.active_reqs.count)
		;
}

static int drop(const char *id)
{
	memset(&got, 0, sizeof got);
	checkpoints_drop(cs, id, on_done, NULL);
	loop_await(&loop, &got.done, 1);
	settle();
	return got.code;
}

static int files(void)
{
	DIR *d = opendir(folder);
	struct dirent *e;
	int n = 0;

	while ((e = readdir(d)))
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

static int file_is(const char *id, uint64_t number)
{
	struct st_image img = image(number, 5000);
	unsigned char back[5001];
	char p[256];
	FILE *f;
	int same;

	checkpoints_path(cs, id, p, sizeof p);
	f = fopen(p, "rb");
	same = f && fread(back, 1, sizeof back, f) == 5000 && !memcmp(back, img.data, 5000);
	if (f)
		fclose(f);
	free(img.data);
	return same;
}

static size_t count(uint64_t job)
{
	return checkpoints_list(cs, job, NULL, 0);
}

static void test_ids_order_and_restart(void **state)
{
	const struct checkpoint *list[10];
	char sha[65];
	struct st_image img = image(100, 5000);

	hash_bytes(img.data, img.bytes, sha, NULL);
	free(img.data);
	assert_string_equal(add(1, 100, "periodic", 10), "1-100");
	assert_string_equal(got.c.sha256, sha);
	assert_int_equal(got.c.bytes, 5000);
	assert_int_equal(got.c.pinned, 0);
	assert_string_equal(add(1, 100, "pause", 10), "1-100.2");
	assert_string_equal(add(1, 100, "request", 10), "1-100.3");
	assert_int_equal(got.c.pinned, 1);
	assert_string_equal(add(2, 100, "final", 10), "2-100");
	assert_int_equal(got.c.pinned, 1);
	assert_string_equal(add(1, 90, "periodic", 10), "1-90"); /* newest by age, though its step is smaller */
	assert_string_equal(checkpoints_latest(cs, 1)->id, "1-90");
	assert_null(checkpoints_latest(cs, 3));
	close_all();
	open_all();
	assert_int_equal(count(0), 5);
	assert_int_equal(checkpoints_list(cs, 1, list, 10), 4);
	assert_string_equal(list[0]->id, "1-100");
	assert_string_equal(list[3]->id, "1-90");
	assert_string_equal(list[0]->sha256, sha);
	assert_string_equal(list[1]->reason, "pause");
	assert_int_equal(list[2]->pinned, 1);
	assert_true(file_is("1-100", 100));
	assert_string_equal(checkpoints_latest(cs, 1)->id, "1-90");
	assert_null(checkpoints_find(cs, "1-91"));
	assert_null(checkpoints_find(cs, "nonsense"));
	assert_null(checkpoints_find(cs, NULL));
}

static void test_retention(void **state)
{
	for (uint64_t step = 100; step <= 1000; step += 100)
		add(1, step, step == 300 ? "request" : "periodic", 3);
	settle();
	assert_int_equal(count(1), 4); /* three and the pinned one */
	assert_non_null(checkpoints_find(cs, "1-300"));
	assert_non_null(checkpoints_find(cs, "1-800"));
	assert_null(checkpoints_find(cs, "1-700"));
	assert_int_equal(files(), 4);
	snprintf(needed_id, sizeof needed_id, "1-800");
	add(1, 1100, "periodic", 3); /* somebody starts from the oldest: the next one goes instead */
	settle();
	assert_non_null(checkpoints_find(cs, "1-800"));
	assert_null(checkpoints_find(cs, "1-900"));
	needed_id[0] = 0;
	add(1, 1200, "final", 1);
	settle();
	assert_int_equal(count(1), 3); /* 300 and 1200 pinned, and one */
	assert_non_null(checkpoints_find(cs, "1-1100"));
	assert_int_equal(files(), 3);
	add(2, 1, "periodic", 0); /* 0 keeps everything */
	add(2, 2, "periodic", 0);
	settle();
	assert_int_equal(count(2), 2);
	close_all();
	open_all();
	assert_int_equal(count(0), 5);
	assert_int_equal(files(), 5);
}

static void test_drop_and_readers(void **state)
{
	char id[FH_NAME_MAX];

	snprintf(id, sizeof id, "%s", add(1, 100, "periodic", 3));
	assert_int_equal(drop("1-101"), FH_NOT_FOUND);
	snprintf(needed_id, sizeof needed_id, "%s", id);
	assert_int_equal(drop(id), FH_CONFLICT);
	assert_non_null(strstr(got.st.text, "trader"));
	needed_id[0] = 0;
	checkpoints_hold(cs, id);
	assert_int_equal(drop(id), 0);
	assert_null(checkpoints_find(cs, id));
	assert_int_equal(drop(id), FH_NOT_FOUND);
	assert_true(file_is(id, 100)); /* somebody reads it */
	assert_string_equal(add(1, 100, "periodic", 3), "1-100.2");
	checkpoints_release(cs, id);
	settle();
	assert_int_equal(files(), 1);
	assert_int_equal(drop("1-100.2"), 0);
	assert_int_equal(files(), 0);
	assert_null(checkpoints_latest(cs, 1));
	close_all();
	open_all();
	assert_int_equal(count(0), 0);
}

static struct { int done, code; size_t bytes; unsigned char data[6000]; } part;
static void on_part(void *arg, int code, const struct checkpoint *c, const void *data, size_t bytes, const struct fh_status *st)
{
	part.done = 1;
	part.code = code;
	part.bytes = bytes;
	if (bytes)
		memcpy(part.data, data, bytes);
}

static int read_part(const char *id, uint64_t offset, uint32_t limit)
{
	memset(&part, 0, sizeof part);
	checkpoints_read(cs, id, offset, limit, on_part, NULL);
	loop_await(&loop, &part.done, 1);
	return part.code;
}

static void test_reading_in_parts(void **state)
{
	struct st_image img = image(100, 5000);
	char p[256];

	add(1, 100, "periodic", 3);
	assert_int_equal(read_part("1-100", 0, 3000), 0);
	assert_int_equal(part.bytes, 3000);
	assert_memory_equal(part.data, img.data, 3000);
	assert_int_equal(read_part("1-100", 3000, 3000), 0);
	assert_int_equal(part.bytes, 2000);
	assert_memory_equal(part.data, (char *)img.data + 3000, 2000);
	assert_int_equal(read_part("1-100", 5000, 10), 0);
	assert_int_equal(part.bytes, 0);
	assert_int_equal(read_part("1-100", 5001, 10), FH_INVALID);
	assert_int_equal(read_part("1-100", UINT64_MAX, 10), FH_INVALID);
	assert_int_equal(read_part("1-1", 0, 10), FH_NOT_FOUND);
	checkpoints_path(cs, "1-100", p, sizeof p);
	unlink(p);
	assert_int_equal(read_part("1-100", 0, 10), FH_CORRUPT);
	free(img.data);
}

static void test_lost_files_and_orphans(void **state)
{
	char p[256];
	FILE *f;

	add(1, 100, "periodic", 3);
	add(1, 200, "periodic", 3);
	add(1, 300, "periodic", 3);
	close_all();
	snprintf(p, sizeof p, "%s/1-300.safetensors", folder);
	unlink(p);
	snprintf(p, sizeof p, "%s/1-200.safetensors", folder);
	assert_int_equal(truncate(p, 100), 0);
	snprintf(p, sizeof p, "%s/1-400.safetensors.tmp", folder);
	f = fopen(p, "w");
	fclose(f);
	snprintf(p, sizeof p, "%s/1-400.safetensors", folder);
	f = fopen(p, "w");
	fclose(f);
	open_all();
	assert_int_equal(checkpoints_find(cs, "1-300")->missing, 1);
	assert_int_equal(checkpoints_find(cs, "1-200")->missing, 1);
	assert_string_equal(checkpoints_latest(cs, 1)->id, "1-100"); /* what a job can go on from */
	assert_int_equal(files(), 2);
}

static void test_bounds_and_failures(void **state)
{
	struct st_image img;
	char p[256];

	memset(&got, 0, sizeof got);
	for (int i = 0; i < CHECKPOINT_PENDING_MAX + 1; i++) {
		img = image(1, 100);
		checkpoints_add(cs, 1, (uint64_t)i, "periodic", 0, &img, on_done, NULL);
	}
	assert_int_equal(got.done, 0);
	while (got.done < CHECKPOINT_PENDING_MAX + 1)
		uv_run(&loop, UV_RUN_ONCE);
	assert_int_equal(count(1), CHECKPOINT_PENDING_MAX);
	/* no folder, no file: an answer, no row */
	snprintf(p, sizeof p, "%s-away", folder);
	assert_int_equal(rename(folder, p), 0);
	memset(&got, 0, sizeof got);
	img = image(1, 100);
	checkpoints_add(cs, 2, 1, "periodic", 0, &img, on_done, NULL);
	loop_await(&loop, &got.done, 1);
	assert_int_equal(got.code, FH_IO);
	assert_int_equal(count(2), 0);
	assert_int_equal(rename(p, folder), 0);
	/* a job that the store does not know: the row is refused, the file goes again */
	memset(&got, 0, sizeof got);
	img = image(1, 100);
	checkpoints_add(cs, 77, 1, "periodic", 0, &img, on_done, NULL);
	loop_await(&loop, &got.done, 1);
	settle();
	assert_int_equal(got.code, FH_CONFLICT);
	assert_null(checkpoints_find(cs, "77-1"));
	assert_int_equal(files(), CHECKPOINT_PENDING_MAX);
	checkpoints_stop(cs);
	memset(&got, 0, sizeof got);
	img = image(1, 100);
	checkpoints_add(cs, 1, 1000, "periodic", 0, &img, on_done, NULL);
	loop_await(&loop, &got.done, 1);
	assert_int_equal(got.code, FH_UNAVAILABLE);
}

/* ---------------------------------------------------------------- killed at any moment */

static uint64_t child_step;
static int child_pipe;
static void child_add(void);

static void child_done(void *arg, int code, const struct checkpoint *c, const struct fh_status *st)
{
	if (code || write(child_pipe, &c->step, sizeof c->step) != sizeof c->step)
		_exit(1);
	child_add();
}

static void child_add(void)
{
	struct st_image img = image(++child_step, 5000);

	checkpoints_add(cs, 1, child_step, "periodic", 2, &img, child_done, NULL);
}

static int run_child(char **argv)
{
	log_level_set(LOG_ERROR);
	paths(argv[2]);
	child_pipe = atoi(argv[3]);
	child_step = strtoull(argv[4], NULL, 10);
	open_all();
	child_add();
	uv_run(&loop, UV_RUN_DEFAULT);
	return 3;
}

static void test_killed_between_any_two_steps(void **state)
{
	uint64_t last = 0, seen;
	int status;

	settle();
	close_all();
	for (int round = 0; round < 12; round++) {
		const struct checkpoint *list[16];
		char fd[16], from[32];
		int ends[2], answered = 0;
		size_t n;
		pid_t pid;

		assert_int_equal(pipe(ends), 0);
		snprintf(fd, sizeof fd, "%d", ends[1]);
		snprintf(from, sizeof from, "%llu", (unsigned long long)last + 100);
		pid = fork();
		if (!pid) {
			execl("/proc/self/exe", "child", "--child", dir, fd, from, NULL);
			_exit(127);
		}
		close(ends[1]);
		while (answered < 3 + round && read(ends[0], &seen, sizeof seen) == sizeof seen) {
			last = seen;
			answered++;
		}
		usleep((useconds_t)(round * 313 % 2000)); /* another moment each time; what matters is asserted below */
		kill(pid, SIGKILL);
		while (read(ends[0], &seen, sizeof seen) == sizeof seen)
			last = seen;
		close(ends[0]);
		waitpid(pid, &status, 0);
		assert_true(WIFSIGNALED(status));
		open_all();
		n = checkpoints_list(cs, 1, list, 16);
		assert_true(n >= 2 && n <= 4); /* keep 2, and what a kill left of the last steps */
		assert_true(list[n - 1]->step >= last); /* what was answered is there … */
		for (size_t i = 0; i < n; i++) {
			char sha[65], p[256];

			assert_int_equal(list[i]->missing, 0);
			checkpoints_path(cs, list[i]->id, p, sizeof p);
			assert_int_equal(hash_file(p, sha, NULL), 0);
			assert_string_equal(sha, list[i]->sha256); /* … and whole */
			assert_true(file_is(list[i]->id, list[i]->step));
		}
		assert_int_equal(files(), n); /* and nothing else lies around */
		settle();
		close_all();
	}
	open_all();
}

int main(int argc, char **argv)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_ids_order_and_restart), T(test_retention), T(test_drop_and_readers), T(test_reading_in_parts),
		T(test_lost_files_and_orphans), T(test_bounds_and_failures), T(test_killed_between_any_two_steps),
	};

	if (argc == 5 && !strcmp(argv[1], "--child"))
		return run_child(argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
