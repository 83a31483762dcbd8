/* The metrics call: samples of a job since a number, now or when there are some. Loop thread. */
#include "daemon/daemon.h"
#include "daemon/jobs.h"
#include "daemon/rpc.h"
#include "daemon/series.h"
#include "proto/status.h"
#include "proto/wire.h"

#include <string.h>

#define SAMPLE_FIELD 1 /* MetricsReply.sample in proto/fh.proto */
#define VARINT_MAX 10

struct metrics_call { struct daemon *d; struct rpc_call *call; uint64_t job; };

/* A sample as the reply's bytes have it: its length, then what was packed when it was made. So nobody unpacks and packs it again, and
 * what a disk has damaged is left out. */
static ProtobufCMessageUnknownField field_of(struct rpc_call *c, const struct series_row *row)
{
	uint8_t *data = rpc_alloc(c, VARINT_MAX + row->bytes), *p = data;
	size_t n = row->bytes;

	for (; n > 0x7f; n >>= 7)
		*p++ = (uint8_t)(n | 0x80);
	*p++ = (uint8_t)n;
	memcpy(p, row->packed, row->bytes);
	return (ProtobufCMessageUnknownField){SAMPLE_FIELD, PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED, (size_t)(p - data) + row->bytes, data};
}

/* The job's state as the series tells it: a client that has seen the last sample of a finished job also saw why it ended. */
static Fh__V1__JobState state_of(struct daemon *d, uint64_t job, const struct series_page *page)
{
	struct job *j = jobs_by_id(d->jobs, job);

	return page->state ? page->state : j ? (Fh__V1__JobState)j->state : FH__V1__JOB_STATE__JOB_STATE_UNSPECIFIED;
}

static void on_page(void *arg, int code, const struct series_page *page)
{
	struct metrics_call *m = arg;
	Fh__V1__MetricsReply r = FH__V1__METRICS_REPLY__INIT;
	Fh__V1__Reply reply = FH__V1__REPLY__INIT;
	struct fh_status st = FH_STATUS_INIT;

	if (code) {
		fh_fail(&st, code, "the samples of job %llu could not be read", (unsigned long long)m->job);
		rpc_fail(m->call, &st);
		return;
	}
	r.base.unknown_fields = rpc_alloc(m->call, (page->n + 1) * sizeof *r.base.unknown_fields);
	for (size_t i = 0; i < page->n; i++)
		if (!page->from_disk || !fh_message_check(&fh__v1__sample__descriptor, page->row[i].packed, page->row[i].bytes, 0, NULL))
			r.base.unknown_fields[r.base.n_unknown_fields++] = field_of(m->call, &page->row[i]);
	r.has_last_seq = r.has_first_seq = r.has_more = r.has_state = 1;
	r.last_seq = page->last_seq;
	r.first_seq = page->first_seq;
	r.more = page->more;
	r.state = state_of(m->d, m->job, page);
	reply.result_case = FH__V1__REPLY__RESULT_METRICS;
	reply.metrics = &r;
	rpc_reply(m->call, &reply);
}

void rpc_metrics(struct daemon *d, struct rpc_call *c)
{
	const Fh__V1__MetricsRequest *q = c->request->metrics;
	struct fh_status st = FH_STATUS_INIT;
	struct metrics_call *m;
	struct job *j;

	if (q->has_limit && (!q->limit || q->limit > SERIES_LIMIT_MAX)) {
		fh_fail_field(&st, FH_INVALID, "limit", "limit is %u, 1 to %d are allowed", q->limit, SERIES_LIMIT_MAX);
		rpc_fail(c, &st);
		return;
	}
	if (q->has_wait_ms && q->wait_ms > SERIES_WAIT_MS_MAX) {
		fh_fail_field(&st, FH_INVALID, "wait_ms", "wait_ms is %u, at most %d is allowed", q->wait_ms, SERIES_WAIT_MS_MAX);
		rpc_fail(c, &st);
		return;
	}
	if (jobs_lookup(d->jobs, q->job, "job", &j, &st)) {
		rpc_fail(c, &st);
		return;
	}
	m = rpc_alloc(c, sizeof *m);
	*m = (struct metrics_call){d, c, j->id};
	series_poll(d->series, j->id, q->since, q->limit, q->wait_ms, on_page, m);
}
