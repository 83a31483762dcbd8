/* The promise of following: every sample in order, none twice, whatever the publisher and the daemon do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "client/fhclient.h"
#include "client/wait.h"
#include "tests/unit/fake_daemon.h"

#define SAMPLES_MAX 64

/* A job's series as the daemon keeps it. */
struct series {
	pthread_mutex_t lock;
	Fh__V1__Sample sample[SAMPLES_MAX], *page[SAMPLES_MAX];
	size_t n, page_max;
	int publisher, missing; /* missing: the job is not there */
	Fh__V1__JobState state;
	atomic_int polls;
};

static void series_init(struct series *s, int publisher)
{
	memset(s, 0, sizeof *s);
	pthread_mutex_init(&s->lock, NULL);
	s->publisher = publisher;
	s->state = FH__V1__JOB_STATE__RUNNING;
	s->page_max = SAMPLES_MAX;
	for (size_t i = 0; i < SAMPLES_MAX; i++) {
		fh__v1__sample__init(&s->sample[i]);
		s->sample[i].has_seq = s->sample[i].has_kind = s->sample[i].has_step = 1;
		s->sample[i].seq = i + 1;
		s->sample[i].kind = FH__V1__SAMPLE_KIND__REPORT;
		s->sample[i].step = 10 * (i + 1);
	}
}

/* n more samples; `end` ends the job with the last of them. */
static void series_grow(struct series *s, size_t n, int end)
{
	pthread_mutex_lock(&s->lock);
	s->n += n;
	if (end) {
		s->state = FH__V1__JOB_STATE__DONE;
		s->sample[s->n - 1].kind = FH__V1__SAMPLE_KIND__STATE_CHANGE;
		s->sample[s->n - 1].has_state = 1;
		s->sample[s->n - 1].state = FH__V1__JOB_STATE__DONE;
	}
	pthread_mutex_unlock(&s->lock);
}

static void publish(struct fake *f, const Fh__V1__Sample *sample)
{
	Fh__V1__Event e = FH__V1__EVENT__INIT;
	char buf[4096] = "job/7/";
	size_t n;

	e.sample = (Fh__V1__Sample *)sample;
	n = 6 + fh_pack(&e.base, buf + 6);
	assert_int_equal(nng_send(f->pub, buf, n, 0), 0);
}

static int answer_metrics(struct series *s, const Fh__V1__MetricsRequest *q, Fh__V1__Reply *reply)
{
	static Fh__V1__MetricsReply m;

	fh__v1__metrics_reply__init(&m);
	pthread_mutex_lock(&s->lock);
	m.sample = s->page;
	for (size_t i = 0; i < s->n; i++)
		if (s->sample[i].seq > q->since) {
			if (m.n_sample == s->page_max) {
				m.has_more = m.more = 1;
				break;
			}
			s->page[m.n_sample++] = &s->sample[i];
		}
	m.has_last_seq = m.has_state = 1;
	m.last_seq = s->n;
	m.state = s->state;
	pthread_mutex_unlock(&s->lock);
	reply->result_case = FH__V1__REPLY__RESULT_METRICS;
	reply->metrics = &m;
	return 0;
}

static int answer(struct fake *f, const Fh__V1__Request *req, Fh__V1__Reply *reply)
{
	static Fh__V1__InfoReply info = FH__V1__INFO_REPLY__INIT;
	static Fh__V1__Error error;
	static struct fh_status st;
	struct series *s = f->test;

	if (req->call_case == FH__V1__REQUEST__CALL_INFO) {
		info.publish_url = s->publisher ? f->pub_url : NULL;
		reply->result_case = FH__V1__REPLY__RESULT_INFO;
		reply->info = &info;
		return 0;
	}
	atomic_fetch_add(&s->polls, 1);
	if (s->missing) {
		fh_fail(&st, FH_NOT_FOUND, "no job 7");
		fh_error_from_status(&error, &st);
		reply->error = &error;
		return 0;
	}
	return answer_metrics(s, req->metrics, reply);
}

struct rig { struct fake fake; struct series series; struct fh_client *client; struct fh_follow *follow; };

static void rig_up(struct rig *r, int publisher, uint64_t since, int64_t patience_ms)
{
	series_init(&r->series, publisher);
	fake_start(&r->fake, answer, &r->series);
	assert_int_equal(fh_client_new(r->fake.url, "test", &r->client, NULL), 0);
	assert_int_equal(fh_follow_new(r->client, 7, since, patience_ms, &r->follow, NULL), 0);
}

static void rig_down(struct rig *r, int fake_is_up)
{
	fh_follow_free(r->follow);
	fh_client_free(r->client);
	if (!fake_is_up)
		fake_up(&r->fake);
	fake_stop(&r->fake);
}

/* The next `n` samples are those after `*seq`. */
static void expect(struct rig *r, uint64_t *seq, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct fh_status st = FH_STATUS_INIT;
		const Fh__V1__Sample *s = NULL;
		int rc = fh_follow_next(r->follow, 10000, &s, &st);

		if (rc != 1)
			fail_msg("after %llu: %d %s", (unsigned long long)*seq, rc, st.text);
		assert_int_equal(s->seq, *seq + 1);
		*seq = s->seq;
	}
}

static void a_finished_job_is_read_to_its_end(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	const Fh__V1__Sample *s;
	struct rig r;
	uint64_t seq = 0;

	for (int publisher = 0; publisher < 2; publisher++) {
		rig_up(&r, publisher, 0, 1000);
		r.series.page_max = 3; /* several pages */
		wait_give();
		series_grow(&r.series, 10, 1);
		seq = 0;
		expect(&r, &seq, 10);
		assert_int_equal(fh_follow_next(r.follow, 10000, &s, &st), 0);
		assert_true(fh_follow_done(r.follow));
		assert_int_equal(fh_follow_state(r.follow), FH__V1__JOB_STATE__DONE);
		rig_down(&r, 1);
	}
	/* From the middle, and from beyond the end. */
	rig_up(&r, 0, 6, 1000);
	series_grow(&r.series, 10, 1);
	seq = 6;
	expect(&r, &seq, 4);
	rig_down(&r, 1);
	rig_up(&r, 0, 1000, 1000);
	series_grow(&r.series, 10, 1);
	assert_int_equal(fh_follow_next(r.follow, 10000, &s, &st), 0);
	assert_true(fh_follow_done(r.follow));
	rig_down(&r, 1);
}

static void without_a_publisher_polls_find_everything(void **state)
{
	struct rig r;
	uint64_t seq = 0;

	rig_up(&r, 0, 0, 1000);
	series_grow(&r.series, 3, 0);
	expect(&r, &seq, 3);
	series_grow(&r.series, 2, 0);
	expect(&r, &seq, 2);
	series_grow(&r.series, 1, 1);
	expect(&r, &seq, 1);
	rig_down(&r, 1);
}

/* Of what is published some is lost, some comes twice, some is nonsense. */
static void gaps_and_repeats_of_the_publisher_do_not_show(void **state)
{
	struct rig r;
	uint64_t seq = 0;

	rig_up(&r, 1, 0, 1000);
	series_grow(&r.series, 2, 0);
	expect(&r, &seq, 2);
	for (int round = 0; round < 8; round++) {
		series_grow(&r.series, 4, 0);
		publish(&r.fake, &r.series.sample[seq]);     /* the next one */
		publish(&r.fake, &r.series.sample[seq]);     /* again */
		publish(&r.fake, &r.series.sample[seq + 3]); /* two are lost */
		assert_int_equal(nng_send(r.fake.pub, "job/7/\xff\xff\xff", 9, 0), 0);
		assert_int_equal(nng_send(r.fake.pub, "job/7/", 6, 0), 0);
		publish(&r.fake, &r.series.sample[0]); /* long known */
		expect(&r, &seq, 4);
	}
	series_grow(&r.series, 1, 1);
	expect(&r, &seq, 1);
	rig_down(&r, 1);
}

static void a_restart_is_ridden_out(void **state)
{
	struct rig r;
	uint64_t seq = 0;

	for (int publisher = 0; publisher < 2; publisher++) {
		struct fh_status st = FH_STATUS_INIT;
		const Fh__V1__Sample *s;

		rig_up(&r, publisher, 0, 20000);
		series_grow(&r.series, 3, 0);
		seq = 0;
		expect(&r, &seq, 3);
		fake_down(&r.fake);
		/* Until the follower has noticed. */
		while (!fh_follow_away(r.follow))
			assert_int_equal(fh_follow_next(r.follow, 200, &s, &st), 0);
		series_grow(&r.series, 3, 1);
		fake_up(&r.fake);
		expect(&r, &seq, 3);
		assert_false(fh_follow_away(r.follow));
		rig_down(&r, 1);
	}
}

/* A daemon that was killed had not stored its newest samples; it gives their numbers again. */
static void numbers_given_again_are_not_missed(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	const Fh__V1__Sample *s;
	struct rig r;
	uint64_t seq = 0;

	rig_up(&r, 0, 0, 20000);
	series_grow(&r.series, 5, 0);
	expect(&r, &seq, 5);
	pthread_mutex_lock(&r.series.lock);
	r.series.n = 3;
	pthread_mutex_unlock(&r.series.lock);
	/* One poll in between, so that the follower sees the shorter series. */
	int before = atomic_load(&r.series.polls);

	while (atomic_load(&r.series.polls) < before + 2)
		assert_int_equal(fh_follow_next(r.follow, 20, &s, &st), 0);
	series_grow(&r.series, 3, 1);
	seq = 3;
	expect(&r, &seq, 3);
	rig_down(&r, 1);
}

static void patience_ends(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	const Fh__V1__Sample *s;
	struct rig r;
	uint64_t seq = 0;
	int64_t start;
	int rc;

	rig_up(&r, 1, 0, 600);
	series_grow(&r.series, 1, 0);
	expect(&r, &seq, 1);
	fake_down(&r.fake);
	start = wait_now_ns();
	do
		rc = fh_follow_next(r.follow, 500, &s, &st);
	while (rc == 0 && wait_now_ns() - start < 20000000000);
	assert_int_equal(rc, FH_UNAVAILABLE);
	assert_int_equal(fh_follow_seq(r.follow), 1);
	rig_down(&r, 0);
}

static void a_job_that_is_gone_is_told(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	const Fh__V1__Sample *s;
	struct rig r;

	rig_up(&r, 0, 0, 1000);
	r.series.missing = 1;
	wait_give();
	assert_int_equal(fh_follow_next(r.follow, 5000, &s, &st), FH_NOT_FOUND);
	rig_down(&r, 1);
}

/* A job so fast that a sample is always ready must not hide the interrupt. */
static void an_interrupt_goes_before_samples(void **state)
{
	static const volatile int raised = 1;
	struct fh_status st = FH_STATUS_INIT;
	const Fh__V1__Sample *s;
	struct rig r;
	uint64_t seq = 0;

	rig_up(&r, 0, 0, 1000);
	series_grow(&r.series, 10, 0);
	expect(&r, &seq, 2);
	fh_client_interrupt(r.client, &raised);
	assert_int_equal(fh_follow_next(r.follow, 5000, &s, &st), FH_INTERRUPTED);
	rig_down(&r, 1);
}

static void a_timeout_is_kept(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	const Fh__V1__Sample *s;
	struct rig r;
	int64_t start;

	for (int publisher = 0; publisher < 2; publisher++) {
		rig_up(&r, publisher, 0, 1000);
		start = wait_now_ns();
		assert_int_equal(fh_follow_next(r.follow, 300, &s, &st), 0);
		assert_true(wait_now_ns() - start >= 250000000 && wait_now_ns() - start < 3000000000);
		/* A server that does not hold polls is not hammered. */
		assert_in_range(atomic_load(&r.series.polls), 1, 40);
		rig_down(&r, 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_finished_job_is_read_to_its_end), cmocka_unit_test(without_a_publisher_polls_find_everything),
		cmocka_unit_test(gaps_and_repeats_of_the_publisher_do_not_show), cmocka_unit_test(a_restart_is_ridden_out),
		cmocka_unit_test(numbers_given_again_are_not_missed), cmocka_unit_test(patience_ends),
		cmocka_unit_test(a_job_that_is_gone_is_told), cmocka_unit_test(a_timeout_is_kept),
		cmocka_unit_test(an_interrupt_goes_before_samples),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);

	nng_fini();
	return failed;
}
