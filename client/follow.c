/* Every sample of a job, in order, none twice: subscription for speed, polling for certainty; see fhclient.h.
 *
 * The publisher may lose messages (slow reader, restart), the series of the daemon does not: a gap in the sequence
 * numbers, silence for POLL_NS, a state that ends the job and every (re)connection lead to a poll from the last sequence
 * number handed out. Without a subscription the poll is held by the daemon until something is there. Invariant: seq is
 * the number of the last sample handed out; samples in `answer` from `next` on are newer. */
#include "client/fhclient.h"

#include <nng/nng.h>
#include <nng/protocol/pubsub0/sub.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/wait.h"

#define POLL_NS 2000000000         /* silence of the subscription after which we ask */
#define POLL_LEAST_NS 20000000     /* between two polls without subscription, should the daemon not hold them */
#define HOLD_MS 1000               /* how long a poll without subscription is held by the daemon */
#define POLL_CALL_MS 5000          /* deadline of a poll beyond what it is held */
#define AWAY_PAUSE_NS 250000000    /* between two tries while the daemon is away */
#define POLL_LIMIT 1000            /* samples of one poll */
#define EVENT_MAX (1u << 20)       /* bytes of one published message */
#define SUB_QUEUE 256              /* messages held for us */
#define TOPIC_MAX 32

struct fh_follow {
	struct fh_client *client;
	uint64_t job, seq;
	char job_text[24], topic[TOPIC_MAX];
	int64_t patience_ns, away_since_ns, poll_at_ns; /* away_since_ns: 0 when the daemon is there */
	Fh__V1__JobState state;
	int caught_up;                 /* the last poll had nothing beyond what was handed out */
	struct fh_answer answer;       /* of the last poll */
	size_t next;
	struct fh_arena event_arena;   /* of the event handed out last */
	nng_socket sub;
	int sub_open, sub_fd;
	atomic_int sub_pipes;          /* NNG's callback counts connections */
};

static void on_sub_pipe(nng_pipe p, nng_pipe_ev ev, void *arg)
{
	struct fh_follow *f = arg;

	(void)p;
	wait_take();
	atomic_fetch_add(&f->sub_pipes, ev == NNG_PIPE_EV_ADD_POST ? 1 : -1);
	wait_give();
}

static int sub_setup(struct fh_follow *f, const char *url)
{
	int rc = nng_socket_set_size(f->sub, NNG_OPT_RECVMAXSZ, EVENT_MAX);

	if (!rc)
		rc = nng_socket_set_int(f->sub, NNG_OPT_RECVBUF, SUB_QUEUE);
	if (!rc)
		rc = nng_socket_set_ms(f->sub, NNG_OPT_RECONNMINT, 100);
	if (!rc)
		rc = nng_socket_set_ms(f->sub, NNG_OPT_RECONNMAXT, 1000);
	if (!rc)
		rc = nng_socket_set(f->sub, NNG_OPT_SUB_SUBSCRIBE, f->topic, strlen(f->topic));
	if (!rc)
		rc = nng_socket_get_int(f->sub, NNG_OPT_RECVFD, &f->sub_fd);
	wait_give();
	if (!rc)
		rc = nng_pipe_notify(f->sub, NNG_PIPE_EV_ADD_POST, on_sub_pipe, f);
	if (!rc)
		rc = nng_pipe_notify(f->sub, NNG_PIPE_EV_REM_POST, on_sub_pipe, f);
	/* Connects in the background, again after a restart of the daemon. */
	return rc ? rc : nng_dial(f->sub, url, NULL, NNG_FLAG_NONBLOCK);
}

/* A daemon without publisher, or one we cannot reach, is followed by polling: no failure. */
static void subscribe(struct fh_follow *f)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__InfoRequest info = FH__V1__INFO_REQUEST__INIT;
	struct fh_answer a;

	req.call_case = FH__V1__REQUEST__CALL_INFO;
	req.info = &info;
	if (fh_client_call(f->client, &req, POLL_CALL_MS, &a, NULL))
		return;
	if (a.reply->info->publish_url && *a.reply->info->publish_url && nng_sub0_open(&f->sub) == 0) {
		f->sub_open = sub_setup(f, a.reply->info->publish_url) == 0;
		if (!f->sub_open)
			wait_close(f->sub);
	}
	fh_answer_release(&a);
}

int fh_follow_new(struct fh_client *c, uint64_t job, uint64_t since, int64_t patience_ms, struct fh_follow **out,
		  struct fh_status *st)
{
	struct fh_follow *f = calloc(1, sizeof *f);

	if (!f)
		return fh_fail(st, FH_EXHAUSTED, "no memory to follow a job");
	f->client = c;
	f->job = job;
	f->seq = since;
	f->patience_ns = patience_ms * 1000000;
	snprintf(f->job_text, sizeof f->job_text, "%llu", (unsigned long long)job);
	snprintf(f->topic, sizeof f->topic, "job/%llu/", (unsigned long long)job);
	subscribe(f);
	*out = f;
	return 0;
}

void fh_follow_free(struct fh_follow *f)
{
	if (!f)
		return;
	fh_answer_release(&f->answer);
	fh_arena_release(&f->event_arena);
	if (f->sub_open && wait_close(f->sub))
		return; /* NNG may still call on_sub_pipe() */
	free(f);
}

/* ---------------------------------------------------------------- the two sources */

static int is_final(Fh__V1__JobState s)
{
	return s == FH__V1__JOB_STATE__DONE || s == FH__V1__JOB_STATE__FAILED || s == FH__V1__JOB_STATE__STOPPED;
}

static int poll_series(struct fh_follow *f, int64_t hold_ms, struct fh_status *st)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__MetricsRequest m = FH__V1__METRICS_REQUEST__INIT;
	struct fh_answer a;
	int rc;

	m.job = f->job_text;
	m.has_since = m.has_limit = m.has_wait_ms = 1;
	m.since = f->seq;
	m.limit = POLL_LIMIT;
	m.wait_ms = (uint32_t)(hold_ms > 0 ? hold_ms : 0);
	req.call_case = FH__V1__REQUEST__CALL_METRICS;
	req.metrics = &m;
	rc = fh_client_call(f->client, &req, hold_ms + POLL_CALL_MS, &a, st);
	if (rc)
		return rc;
	fh_answer_release(&f->answer);
	f->answer = a;
	f->next = 0;
	f->state = a.reply->metrics->state;
	/* A daemon that was killed may have lost its newest samples; their numbers will be given again. */
	if (a.reply->metrics->has_last_seq && a.reply->metrics->last_seq < f->seq)
		f->seq = a.reply->metrics->last_seq;
	f->caught_up = !a.reply->metrics->more;
	/* Newer ones that the daemon no longer has: nothing to wait for. */
	if (f->caught_up && a.reply->metrics->n_sample == 0 && a.reply->metrics->last_seq > f->seq)
		f->seq = a.reply->metrics->last_seq;
	return 0;
}

/* The next sample of the last poll that is new, or NULL. */
static const Fh__V1__Sample *from_poll(struct fh_follow *f)
{
	const Fh__V1__MetricsReply *m = f->answer.reply ? f->answer.reply->metrics : NULL;

	while (m && f->next < m->n_sample) {
		const Fh__V1__Sample *s = m->sample[f->next++];

		if (s->seq > f->seq)
			return s;
	}
	return NULL;
}

static int poll_pending(const struct fh_follow *f)
{
	return f->answer.reply && f->next < f->answer.reply->metrics->n_sample;
}

/* A published message that is waiting. 1: *out is new and the very next one; 0: nothing of use. A gap asks for a poll. */
static int from_subscription(struct fh_follow *f, const Fh__V1__Sample **out)
{
	nng_msg *msg;
	Fh__V1__Event *e = NULL;
	size_t skip = strlen(f->topic);
	int rc = FH_CORRUPT;

	if (nng_recvmsg(f->sub, &msg, NNG_FLAG_NONBLOCK))
		return 0;
	fh_arena_release(&f->event_arena);
	if (nng_msg_len(msg) > skip)
		rc = fh_message_unpack(&fh__v1__event__descriptor, (char *)nng_msg_body(msg) + skip, nng_msg_len(msg) - skip, 0,
				       &f->event_arena, (ProtobufCMessage **)&e, NULL);
	nng_msg_free(msg);
	if (rc || !e->sample || e->sample->seq <= f->seq)
		return 0;
	if (e->sample->seq != f->seq + 1) {
		f->poll_at_ns = 0;
		return 0;
	}
	*out = e->sample;
	return 1;
}

/* ---------------------------------------------------------------- the next one */

static int subscribed(struct fh_follow *f)
{
	return f->sub_open && atomic_load(&f->sub_pipes) > 0;
}

/* When to ask again, after everything the last poll had was handed out. */
static int64_t next_poll_ns(struct fh_follow *f)
{
	return is_final(f->state) || !f->caught_up ? 0 : wait_now_ns() + (subscribed(f) ? POLL_NS : POLL_LEAST_NS);
}

static void hand_out(struct fh_follow *f, const Fh__V1__Sample *s)
{
	f->seq = s->seq;
	if (s->has_state)
		f->state = s->state;
	if (!poll_pending(f))
		f->poll_at_ns = next_poll_ns(f);
}

/* Asks the daemon. 0, or an error once the patience with an absent one is over. */
static int ask(struct fh_follow *f, int64_t deadline_ns, struct fh_status *st)
{
	int64_t now = wait_now_ns(), hold_ms = 0;
	int rc;

	/* Held by the daemon only where nothing else would tell us. */
	if (f->caught_up && !is_final(f->state) && !subscribed(f)) {
		hold_ms = (deadline_ns - now) / 1000000;
		hold_ms = hold_ms > HOLD_MS ? HOLD_MS : hold_ms < 0 ? 0 : hold_ms;
	}
	rc = poll_series(f, hold_ms, st);
	now = wait_now_ns();
	if (rc == 0) {
		f->away_since_ns = 0;
		f->poll_at_ns = poll_pending(f) ? 0 : next_poll_ns(f);
		return 0;
	}
	if (rc != FH_UNAVAILABLE && rc != FH_DEADLINE)
		return rc;
	if (!f->away_since_ns)
		f->away_since_ns = now;
	f->caught_up = 0;
	if (now - f->away_since_ns >= f->patience_ns)
		return rc;
	f->poll_at_ns = now + AWAY_PAUSE_NS;
	return 0;
}

int fh_follow_next(struct fh_follow *f, int64_t timeout_ms, const Fh__V1__Sample **out, struct fh_status *st)
{
	int64_t deadline_ns = wait_now_ns() + timeout_ms * 1000000;
	const volatile int *interrupt = wait_interrupt_of(f->client);

	for (;;) {
		const Fh__V1__Sample *s;
		int64_t now = wait_now_ns(), until;
		struct pollfd fd = {.events = POLLIN};
		int rc;

		/* Before any sample: a fast job has always one ready. */
		if (wait_interrupted(interrupt))
			return fh_fail(st, FH_INTERRUPTED, "interrupted");
		s = from_poll(f);
		if (s || (f->sub_open && !f->away_since_ns && f->caught_up && from_subscription(f, &s))) {
			hand_out(f, s);
			*out = s;
			return 1;
		}
		if (fh_follow_done(f))
			return 0;
		if (now >= f->poll_at_ns) {
			rc = ask(f, deadline_ns, st);
			if (rc)
				return rc;
			if (poll_pending(f) || fh_follow_done(f))
				continue;
		}
		now = wait_now_ns();
		if (now >= deadline_ns)
			return 0;
		until = f->poll_at_ns < deadline_ns ? f->poll_at_ns : deadline_ns;
		if (until <= now)
			continue;
		fd.fd = f->sub_open ? f->sub_fd : -1;
		wait_fds(&fd, f->sub_open && !f->away_since_ns, until, interrupt);
	}
}

Fh__V1__JobState fh_follow_state(const struct fh_follow *f)
{
	return f->state;
}

int fh_follow_away(const struct fh_follow *f)
{
	return f->away_since_ns != 0;
}

int fh_follow_done(const struct fh_follow *f)
{
	return is_final(f->state) && f->caught_up && !poll_pending(f) && f->answer.reply &&
	       f->seq >= f->answer.reply->metrics->last_seq && is_final(f->answer.reply->metrics->state);
}

uint64_t fh_follow_seq(const struct fh_follow *f)
{
	return f->seq;
}
