/* Promises of the series: numbers 1, 2, 3, … per job, also across restarts; what is seen is durable; polls never skip a sample
 * that is kept; old reports are thinned, the rest stays; held polls are answered by the next sample, by time, or by the stop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <nng/nng.h>
#include <nng/protocol/pubsub0/sub.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "daemon/publish.h"
#include "daemon/series.h"
#include "daemon/store.h"
#include "proto/status.h"
#include "tests/unit/loop.h"

static char dir[64], path[128];
static uv_loop_t loop;
static struct store *store;
static struct series *series;
static struct publish *publish;

static void open_all(void)
{
	struct fh_status st = FH_STATUS_INIT;

	assert_int_equal(uv_loop_init(&loop), 0);
	if (store_open(path, &store, &st))
		fail_msg("%s", st.text);
	assert_int_equal(series_new(&loop, store, publish, &series, NULL), 0);
	assert_int_equal(series_load(series, NULL), 0);
	assert_int_equal(store_start(store, &loop, NULL), 0);
}

static void close_all(void)
{
	series_stop(series);
	store_stop(store);
	series_free(series);
	for (int i = 0; i < 4; i++) /* a uv_stop may be left over */
		uv_run(&loop, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&loop), 0);
	store_free(store);
}

static int setup(void **state)
{
	snprintf(dir, sizeof dir, "/tmp/fhd-series-XXXXXX");
	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/fhd.db", dir);
	open_all();
	return 0;
}

static int teardown(void **state)
{
	close_all();
	publish_close(publish);
	publish = NULL;
	return folder_remove(dir);
}

static void set_flag(void *arg, int code, const struct fh_status *st)
{
	assert_int_equal(code, 0);
	*(int *)arg = 1;
}

/* Everything handed over so far is durable and visible. */
static void settle(void)
{
	int done = 0;

	for (int i = 0; i < 3; i++) { /* the open batch goes out when the one before has come back */
		done = 0;
		store_commit(store, store_begin(store), set_flag, &done);
		loop_await(&loop, &done, 1);
	}
}

static void change(uint64_t job, int state)
{
	struct store_txn *t = store_begin(store);
	char name[32];

	snprintf(name, sizeof name, "job-%llu", (unsigned long long)job);
	store_put_job(t, &(struct store_job){.id = job, .name = name, .state = state});
	assert_true(series_state_change(series, t, job, (Fh__V1__JobState)state, "a reason", 1, 2, 3) > 0);
	store_commit(store, t, NULL, NULL);
}

static uint64_t sample(uint64_t job, int kind, uint64_t step)
{
	Fh__V1__Sample m = FH__V1__SAMPLE__INIT;
	Fh__V1__MetricValue v = FH__V1__METRIC_VALUE__INIT, *list = &v;

	m.has_kind = m.has_step = 1;
	m.kind = (Fh__V1__SampleKind)kind;
	m.step = step;
	v.name = "loss";
	v.has_value = 1;
	v.value = 0.5 * (double)step;
	m.n_value = 1;
	m.value = &list;
	return series_append(series, job, &m);
}
#define REPORT FH__V1__SAMPLE_KIND__REPORT
#define VALIDATION FH__V1__SAMPLE_KIND__VALIDATION

struct poll { int done, code, more, state, from_disk; size_t n; uint64_t first, last, last_seq, first_seq, seq[SERIES_LIMIT_MAX]; uint64_t last_step; };
static void on_page(void *arg, int code, const struct series_page *page)
{
	struct poll *p = arg;

	p->done = 1;
	p->code = code;
	p->n = page->n;
	p->more = page->more;
	p->from_disk = page->from_disk;
	p->state = page->state;
	p->last_seq = page->last_seq;
	p->first_seq = page->first_seq;
	for (size_t i = 0; i < page->n; i++) {
		Fh__V1__Sample *m = fh__v1__sample__unpack(NULL, page->row[i].bytes, page->row[i].packed);

		assert_non_null(m);
		assert_true(m->seq == page->row[i].seq);
		if (i)
			assert_true(m->seq > p->seq[i - 1]);
		p->seq[i] = m->seq;
		p->last_step = m->step;
		fh__v1__sample__free_unpacked(m, NULL);
	}
	p->first = page->n ? page->row[0].seq : 0;
	p->last = page->n ? page->row[page->n - 1].seq : 0;
}

static struct poll polled;
static void poll_now(uint64_t job, uint64_t since, uint32_t limit)
{
	memset(&polled, 0, sizeof polled);
	series_poll(series, job, since, limit, 0, on_page, &polled);
	loop_await(&loop, &polled.done, 1);
	assert_int_equal(polled.code, 0);
}

static void test_numbers_go_on_across_restarts(void **state)
{
	Fh__V1__Sample *m;

	change(1, 1);
	change(2, 1);
	for (int i = 1; i <= 10; i++)
		assert_int_equal(sample(1, REPORT, (uint64_t)i), i + 1);
	assert_int_equal(sample(2, VALIDATION, 9), 2);
	settle();
	assert_int_equal(series_last_seq(series, 1), 11);
	poll_now(1, 0, 100);
	assert_int_equal(polled.n, 11);
	assert_int_equal(polled.from_disk, 0); /* memory has them as they were packed */
	close_all();
	open_all();
	assert_int_equal(series_last_seq(series, 1), 11);
	poll_now(1, 0, 100);
	assert_int_equal(polled.n, 11);
	assert_int_equal(polled.from_disk, 1); /* whoever reads these looks whether they are whole */
	assert_int_equal(series_first_seq(series, 1), 1);
	assert_int_equal(series_last_seq(series, 2), 2);
	assert_int_equal(series_last_seq(series, 3), 0);
	m = series_newest(series, 1, 0);
	assert_non_null(m);
	assert_int_equal(m->step, 10);
	assert_true(m->value[0]->value == 5.0);
	fh__v1__sample__free_unpacked(m, NULL);
	assert_null(series_newest(series, 1, 1));
	m = series_newest(series, 2, 1);
	assert_int_equal(m->step, 9);
	fh__v1__sample__free_unpacked(m, NULL);
	assert_int_equal(sample(1, REPORT, 11), 12);
	settle();
	poll_now(1, 0, 100); /* the first eleven from the disk */
	assert_int_equal(polled.n, 12);
	for (size_t i = 0; i < 12; i++)
		assert_int_equal(polled.seq[i], i + 1);
	poll_now(1, 11, 100);
	assert_int_equal(polled.n, 1);
	assert_int_equal(polled.last_step, 11);
}

/* What `show` calls the last validation is one of the validation split, though those of the test split come after it. */
static void test_last_validation_is_of_the_validation_split(void **state)
{
	static char *const split[] = {"validation", "test", "validation", "test"};
	Fh__V1__Sample *m;

	change(1, 1);
	for (int i = 0; i < 4; i++) {
		Fh__V1__Sample v = FH__V1__SAMPLE__INIT;

		v.has_kind = v.has_step = 1;
		v.kind = VALIDATION;
		v.split = split[i];
		v.step = (uint64_t)i;
		assert_int_equal(series_append(series, 1, &v), i + 2);
	}
	{
		Fh__V1__Sample v = FH__V1__SAMPLE__INIT; /* the other network's */

		v.has_kind = 1;
		v.kind = VALIDATION;
		v.split = "validation";
		assert_int_equal(series_append_aside(series, 1, &v), 6);
	}
	settle();
	for (int restart = 0; restart < 2; restart++) {
		m = series_newest(series, 1, 1);
		assert_non_null(m);
		assert_int_equal(m->step, 2);
		assert_string_equal(m->split, "validation");
		fh__v1__sample__free_unpacked(m, NULL);
		poll_now(1, 0, 10);
		assert_int_equal(polled.n, 6); /* all of them are in the series */
		assert_int_equal(polled.state, restart ? 0 : 1);
		close_all();
		open_all();
	}
}

static void test_nothing_is_seen_before_it_is_durable(void **state)
{
	change(1, 1);
	settle();
	assert_int_equal(sample(1, REPORT, 1), 2);
	assert_int_equal(series_last_seq(series, 1), 1);
	poll_now(1, 1, 100);
	assert_int_equal(polled.n, 0);
	assert_int_equal(polled.last_seq, 1);
	settle();
	assert_int_equal(series_last_seq(series, 1), 2);
	poll_now(1, 1, 100);
	assert_int_equal(polled.n, 1);
	assert_int_equal(polled.more, 0);
}

static void test_state_changes_keep_their_place(void **state)
{
	change(1, 1);
	for (uint64_t i = 1; i <= 5; i++)
		sample(1, REPORT, i);
	change(1, FH__V1__JOB_STATE__PAUSED);
	for (uint64_t i = 6; i <= 10; i++)
		sample(1, REPORT, i);
	change(1, FH__V1__JOB_STATE__DONE);
	settle();
	poll_now(1, 0, 100);
	assert_int_equal(polled.n, 13);
	assert_int_equal(polled.state, FH__V1__JOB_STATE__DONE);
	for (size_t i = 0; i < 13; i++)
		assert_int_equal(polled.seq[i], i + 1);
}

static uint64_t evaluation(uint64_t job, uint64_t step, const char *split, Fh__V1__Policy policy)
{
	Fh__V1__Sample m = FH__V1__SAMPLE__INIT;

	m.has_kind = m.has_step = m.has_policy = 1;
	m.kind = VALIDATION;
	m.step = step;
	m.split = (char *)split;
	m.policy = policy;
	return series_append(series, job, &m);
}

/* A job that goes on from an older checkpoint, in this process or after a restart, makes again what is there already. */
static void test_what_is_made_again_is_not_kept_twice(void **state)
{
	const Fh__V1__Policy target = FH__V1__POLICY__TARGET, online = FH__V1__POLICY__ONLINE;
	struct series_stats stats;

	change(1, 1);
	for (uint64_t step = 20; step <= 100; step += 20)
		assert_true(sample(1, REPORT, step) > 0);
	assert_true(evaluation(1, 100, "validation", target) > 0);
	assert_true(evaluation(1, 100, "validation", online) > 0);
	assert_true(evaluation(1, 100, "test", target) > 0);
	assert_int_equal(sample(1, REPORT, 80), 0);
	settle();
	close_all();
	open_all();
	assert_int_equal(series_last_seq(series, 1), 9);
	change(1, 1);
	assert_int_equal(sample(1, REPORT, 60), 0);
	assert_int_equal(sample(1, REPORT, 100), 0);
	assert_int_equal(evaluation(1, 100, "validation", target), 0);
	assert_int_equal(evaluation(1, 100, "validation", online), 0);
	assert_int_equal(evaluation(1, 100, "test", target), 0);
	assert_int_equal(evaluation(1, 100, "test", online), 11); /* the crash came before this one */
	assert_int_equal(sample(1, REPORT, 120), 12);
	series_stats(series, &stats);
	assert_int_equal(stats.repeated, 5);
	settle();
}

static void test_limits_and_pages(void **state)
{
	change(1, 1);
	for (int i = 0; i < 3000; i++)
		sample(1, REPORT, (uint64_t)i);
	settle();
	while (series_last_seq(series, 1) < 3001)
		settle();
	for (uint64_t since = 0, want = 1; since < 3001; since = polled.last) { /* memory has the newest SERIES_TAIL only */
		poll_now(1, since, 700);
		assert_true(polled.n > 0 && polled.n <= 700);
		assert_int_equal(polled.more, polled.last < 3001);
		for (size_t i = 0; i < polled.n; i++)
			assert_int_equal(polled.seq[i], want++);
	}
	poll_now(1, 99999, 10); /* beyond the end: nothing, no harm */
	assert_int_equal(polled.n, 0);
	assert_int_equal(polled.last_seq, 3001);
}

static void test_old_reports_are_thinned_the_rest_stays(void **state)
{
	uint64_t total = SERIES_KEPT_FULL + 6000, reports = 0, others = 0, since = 0, last = 0;

	change(1, 1);
	for (uint64_t i = 2; i <= total; i++) {
		sample(1, i % 100 ? REPORT : VALIDATION, i);
		if (i % 500 == 0)
			settle();
	}
	while (series_last_seq(series, 1) < total)
		settle();
	settle();
	do {
		poll_now(1, since, 5000);
		for (size_t i = 0; i < polled.n; i++) {
			uint64_t seq = polled.seq[i];

			if (seq > total - SERIES_KEPT_FULL)
				assert_int_equal(seq, last + 1 > total - SERIES_KEPT_FULL ? last + 1 : seq);
			else if (seq % 100 && seq != 1)
				reports++;
			else
				others++;
			last = seq;
		}
		since = polled.last;
	} while (polled.more);
	assert_int_equal(last, total);
	assert_int_equal(polled.first_seq, 1);
	assert_int_equal(others, 1 + 6000 / 100);                 /* the state change and every validation */
	assert_true(reports >= 6000 / SERIES_STRIDE - 10);        /* thinned down to one of sixteen … */
	assert_true(reports < 6000 / SERIES_STRIDE + 1100);       /* … but for the end that the next pass takes */
}

static void test_memory_is_bounded(void **state)
{
	struct series_stats stats;
	char *text = malloc(200001);

	memset(text, 'x', 200000);
	text[200000] = 0;
	for (uint64_t job = 1; job <= 4; job++) {
		change(job, 1);
		for (int i = 0; i < 120; i++) { /* 24 MB each */
			Fh__V1__Sample m = FH__V1__SAMPLE__INIT;

			m.has_kind = 1;
			m.kind = REPORT;
			m.split = text;
			assert_true(series_append(series, job, &m) > 0);
		}
		settle();
		while (series_last_seq(series, job) < 121)
			settle();
	}
	series_stats(series, &stats);
	assert_true(stats.bytes <= SERIES_BYTES_MAX);
	assert_true(stats.bytes > SERIES_BYTES_MAX / 2);
	for (uint64_t job = 1, since = 0; job <= 4; job++, since = 0) { /* all of it is still there for who asks */
		do {
			poll_now(job, since, 1000);
			assert_int_equal(polled.first, since + 1);
			since = polled.last;
		} while (polled.more);
		assert_int_equal(since, 121);
	}
	free(text);
}

static void test_held_polls(void **state)
{
	static struct poll p, q, r[SERIES_WAITERS_MAX];
	struct series_stats stats;
	uint64_t begin;

	memset(&p, 0, sizeof p);
	memset(&q, 0, sizeof q);
	memset(r, 0, sizeof r);
	change(1, 1);
	settle();
	series_poll(series, 1, 1, 10, 10000, on_page, &p);
	assert_int_equal(p.done, 0);
	sample(1, REPORT, 5);
	loop_await(&loop, &p.done, 1); /* answered by the sample */
	assert_int_equal(p.n, 1);
	assert_int_equal(p.last, 2);
	begin = uv_hrtime();
	series_poll(series, 1, 2, 10, 60, on_page, &q);
	loop_await(&loop, &q.done, 1); /* answered by time */
	assert_int_equal(q.n, 0);
	assert_int_equal(q.last_seq, 2);
	assert_true(uv_hrtime() - begin >= 55000000);
	for (int i = 0; i < SERIES_WAITERS_MAX; i++)
		series_poll(series, 1, 2, 10, 10000, on_page, &r[i]);
	series_stats(series, &stats);
	assert_int_equal(stats.waiters, SERIES_WAITERS_MAX);
	memset(&q, 0, sizeof q);
	series_poll(series, 1, 2, 10, 10000, on_page, &q); /* one too many: at once */
	assert_int_equal(q.done, 1);
	assert_int_equal(q.n, 0);
	series_stop(series);
	for (int i = 0; i < SERIES_WAITERS_MAX; i++)
		assert_int_equal(r[i].done, 1);
}

static void test_too_many_reports_are_dropped_state_changes_are_not(void **state)
{
	struct series_stats stats;
	uint64_t last = 1;

	change(1, 1);
	for (uint64_t i = 1; i < SERIES_PENDING_MAX; i++)
		last = sample(1, REPORT, i);
	assert_int_equal(last, SERIES_PENDING_MAX);
	assert_int_equal(sample(1, REPORT, SERIES_PENDING_MAX), 0);
	series_stats(series, &stats);
	assert_int_equal(stats.dropped, 1);
	change(1, 4);
	while (series_last_seq(series, 1) < SERIES_PENDING_MAX + 1)
		settle();
	poll_now(1, SERIES_PENDING_MAX, 10);
	assert_int_equal(polled.state, 4);
	assert_true(sample(1, REPORT, SERIES_PENDING_MAX + 1) > 0);
	settle();
}

static void test_subscribers_get_topic_and_event(void **state)
{
	char url[128];
	nng_socket sub;
	nng_listener listener;
	uint64_t want = 1;

	close_all();
	snprintf(url, sizeof url, "inproc://series-%d", (int)getpid());
	assert_int_equal(publish_open(url, &publish, NULL), 0);
	assert_string_equal(publish_url(publish), url);
	assert_string_equal(publish_url(NULL), "");
	assert_int_equal(nng_listen(publish_socket(publish), url, &listener, 0), 0);
	open_all();
	assert_int_equal(nng_sub0_open(&sub), 0);
	assert_int_equal(nng_socket_set(sub, NNG_OPT_SUB_SUBSCRIBE, "job/1/", 6), 0);
	assert_int_equal(nng_socket_set_ms(sub, NNG_OPT_RECVTIMEO, 20000), 0);
	assert_int_equal(nng_dial(sub, url, NULL, 0), 0);
	/* The pipe may not be in the publisher's list yet: send until the first one arrives. */
	change(1, 1);
	change(11, 1); /* another job's topic must not match "job/1/" */
	settle();
	nng_socket_set_ms(sub, NNG_OPT_RECVTIMEO, 100);
	for (int i = 0, rv = 1; rv && i < 200; i++) {
		nng_msg *m;

		sample(11, REPORT, 1);
		sample(1, REPORT, 1);
		settle();
		if (!(rv = nng_recvmsg(sub, &m, 0))) {
			Fh__V1__Event *e;

			assert_memory_equal(nng_msg_body(m), "job/1/", 6);
			e = fh__v1__event__unpack(NULL, nng_msg_len(m) - 6, (uint8_t *)nng_msg_body(m) + 6);
			assert_non_null(e);
			assert_int_equal(e->sample->job, 1);
			want = e->sample->seq + 1;
			fh__v1__event__free_unpacked(e, NULL);
			nng_msg_free(m);
		}
	}
	assert_true(want > 1);
	for (uint64_t last = series_last_seq(series, 1); want <= last; want++) {
		nng_msg *m;
		Fh__V1__Event *e;

		assert_int_equal(nng_recvmsg(sub, &m, 0), 0);
		e = fh__v1__event__unpack(NULL, nng_msg_len(m) - 6, (uint8_t *)nng_msg_body(m) + 6);
		assert_int_equal(e->sample->seq, want);
		fh__v1__event__free_unpacked(e, NULL);
		nng_msg_free(m);
	}
	nng_close(sub);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_numbers_go_on_across_restarts, setup, teardown),
		cmocka_unit_test_setup_teardown(test_last_validation_is_of_the_validation_split, setup, teardown),
		cmocka_unit_test_setup_teardown(test_nothing_is_seen_before_it_is_durable, setup, teardown),
		cmocka_unit_test_setup_teardown(test_state_changes_keep_their_place, setup, teardown),
		cmocka_unit_test_setup_teardown(test_what_is_made_again_is_not_kept_twice, setup, teardown),
		cmocka_unit_test_setup_teardown(test_limits_and_pages, setup, teardown),
		cmocka_unit_test_setup_teardown(test_old_reports_are_thinned_the_rest_stays, setup, teardown),
		cmocka_unit_test_setup_teardown(test_memory_is_bounded, setup, teardown),
		cmocka_unit_test_setup_teardown(test_held_polls, setup, teardown),
		cmocka_unit_test_setup_teardown(test_too_many_reports_are_dropped_state_changes_are_not, setup, teardown),
		cmocka_unit_test_setup_teardown(test_subscribers_get_topic_and_event, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
