/* Calls about data sets: list, show, drop, synth, upload, read. Loop thread; answers come when the row is durable. */
#include "daemon/daemon.h"
#include "daemon/dataset.h"
#include "daemon/jobs.h"
#include "daemon/rpc.h"
#include "gpu/synth.h"
#include "proto/status.h"

#include <stdio.h>
#include <string.h>

#define LIST_USERS_MAX 2000000 /* data sets times jobs up to which a list counts the users of each set */

/* A view for one reply: the registry's message plus what changes. */
static Fh__V1__Dataset *view(struct daemon *d, struct rpc_call *c, const struct dataset *set, int full, int users)
{
	Fh__V1__Dataset *v = rpc_alloc(c, sizeof *v);

	*v = *dataset_info(set);
	if (!full) {
		v->n_gap = v->n_spark = v->n_note = v->n_version = v->n_roll = v->n_week_hour = v->n_contract = 0;
	} else if (dataset_broken(set)) {
		char **note = rpc_alloc(c, (v->n_note + 1) * sizeof *note);

		if (v->n_note)
			memcpy(note, v->note, v->n_note * sizeof *note);
		note[v->n_note++] = rpc_strdup(c, dataset_broken(set));
		v->note = note;
	}
	v->has_jobs = users;
	if (users)
		v->jobs = jobs_using_dataset(d->jobs, dataset_name(set));
	return v;
}

static void fill(struct daemon *d, struct rpc_call *c, const struct dataset *set, int existed, Fh__V1__DatasetReply *r)
{
	fh__v1__dataset_reply__init(r);
	r->dataset = view(d, c, set, 1, 1);
	r->has_existed = 1;
	r->existed = existed;
}

static void reply_dataset(struct daemon *d, struct rpc_call *c, const struct dataset *set, int existed)
{
	Fh__V1__Reply reply = FH__V1__REPLY__INIT;
	Fh__V1__DatasetReply r;

	fill(d, c, set, existed, &r);
	reply.result_case = FH__V1__REPLY__RESULT_DATASET;
	reply.dataset = &r;
	rpc_reply(c, &reply);
}

/* In these calls the name is the request's own, not a job's. */
static void fail_name(struct rpc_call *c, const struct fh_status *st)
{
	struct fh_status own = *st;

	if (!strcmp(own.field, "data.dataset"))
		snprintf(own.field, sizeof own.field, "name");
	rpc_fail(c, &own);
}

/* ---------------------------------------------------------------- list, show, drop */

void rpc_list_datasets(struct daemon *d, struct rpc_call *c)
{
	Fh__V1__ListDatasetsReply r = FH__V1__LIST_DATASETS_REPLY__INIT;
	Fh__V1__Reply reply = FH__V1__REPLY__INIT;
	const struct dataset *set;
	struct datasets_stats stats;
	int users;

	datasets_stats(d->datasets, &stats);
	users = jobs_count(d->jobs) * stats.registered <= LIST_USERS_MAX;
	r.dataset = rpc_alloc(c, DATASETS_MAX * sizeof *r.dataset);
	for (size_t i = 0; r.n_dataset < DATASETS_MAX && (set = datasets_at(d->datasets, i)); i++)
		r.dataset[r.n_dataset++] = view(d, c, set, 0, users);
	reply.result_case = FH__V1__REPLY__RESULT_DATASETS;
	reply.datasets = &r;
	rpc_reply(c, &reply);
}

void rpc_show_dataset(struct daemon *d, struct rpc_call *c)
{
	const char *name = c->request->show_dataset->name;
	struct fh_status st = FH_STATUS_INIT;
	const struct dataset *set;

	if (!fh_name_check("name", name, &st) && (set = datasets_find(d->datasets, name))) { /* a broken one is shown, too */
		reply_dataset(d, c, set, 0);
		return;
	}
	if (!st.code)
		datasets_need(d->datasets, name, &set, &st);
	fail_name(c, &st);
}

static void on_dropped(void *arg, int code, const struct dataset *set, int existed, const struct fh_status *st)
{
	if (code)
		rpc_fail(arg, st);
	else
		rpc_reply_empty(arg);
}

void rpc_drop_dataset(struct daemon *d, struct rpc_call *c)
{
	const char *name = c->request->drop_dataset->name;
	struct fh_status st = FH_STATUS_INIT;

	if (fh_name_check("name", name, &st))
		rpc_fail(c, &st);
	else
		datasets_drop(d->datasets, name, on_dropped, c);
}

/* ---------------------------------------------------------------- synth */

struct data_call { struct daemon *d; struct rpc_call *call; const char *upload; int64_t bars, first, count, stride; };

static struct data_call *data_call(struct daemon *d, struct rpc_call *c)
{
	struct data_call *x = rpc_alloc(c, sizeof *x);

	x->d = d;
	x->call = c;
	return x;
}

static void on_synth(void *arg, int code, const struct dataset *set, int existed, const struct fh_status *st)
{
	struct data_call *x = arg;

	if (code)
		rpc_fail(x->call, st);
	else
		reply_dataset(x->d, x->call, set, existed);
}

static int synth_from(const Fh__V1__SynthDatasetRequest *q, struct synth *s, struct fh_status *st)
{
	enum synth_kind kind = q->kind ? synth_kind_find(q->kind) : 0;

	if (fh_name_check("name", q->name, st))
		return st->code;
	if (!kind)
		return fh_fail_field(st, FH_INVALID, "kind", "kind \"%.64s\" is none of momentum, regime, walk", q->kind ? q->kind : "");
	if (q->bars < 2 || q->bars > DATASET_BARS_MAX)
		return fh_fail_field(st, FH_INVALID, "bars", "%lld bar%s; a data set has 2 to %lld", (long long)q->bars, q->bars == 1 ? "" : "s",
				     (long long)DATASET_BARS_MAX);
	synth_init(s, kind, q->bars, q->seed);
	if (q->has_phi)
		s->phi = q->phi;
	if (q->has_sigma)
		s->sigma = q->sigma;
	if (q->has_start)
		s->start = q->start;
	if (q->has_bar_ns)
		s->bar_ns = q->bar_ns;
	if (s->bar_ns < 1 || s->bar_ns > (MARKET_TS_MAX - SYNTH_FIRST_TS) / s->bars)
		return fh_fail_field(st, FH_INVALID, "bar_ns", "%lld bars of %lld ns do not fit into the calendar", (long long)s->bars,
				     (long long)s->bar_ns);
	return 0;
}

void rpc_synth_dataset(struct daemon *d, struct rpc_call *c)
{
	const Fh__V1__SynthDatasetRequest *q = c->request->synth_dataset;
	struct fh_status st = FH_STATUS_INIT;
	char source[DATASET_SOURCE_BYTES_MAX];
	struct dataset_origin o = {.name = q->name, .source = source, .has_volume = 1};
	struct synth s = {0};

	if (synth_from(q, &s, &st)) {
		rpc_fail(c, &st);
		return;
	}
	snprintf(source, sizeof source, "synth %s bars=%lld seed=%llu phi=%g sigma=%g start=%g", synth_kind_name(s.kind), (long long)s.bars,
		 (unsigned long long)s.seed, s.kind == SYNTH_MOMENTUM ? s.phi : 0, s.sigma, s.start);
	datasets_synth(d->datasets, &o, &s, on_synth, data_call(d, c));
}

/* ---------------------------------------------------------------- upload */

static void reply_upload(struct data_call *x, int64_t next, const struct dataset *set, int existed)
{
	Fh__V1__Reply reply = FH__V1__REPLY__INIT;
	Fh__V1__UploadReply r = FH__V1__UPLOAD_REPLY__INIT;
	Fh__V1__DatasetReply sub;

	r.upload = (char *)x->upload;
	r.has_next_bar = 1;
	r.next_bar = next;
	if (set) {
		fill(x->d, x->call, set, existed, &sub);
		r.dataset = &sub;
	}
	reply.result_case = FH__V1__REPLY__RESULT_UPLOAD;
	reply.upload = &r;
	rpc_reply(x->call, &reply);
}

void rpc_begin_upload(struct daemon *d, struct rpc_call *c)
{
	const Fh__V1__BeginUploadRequest *q = c->request->begin_upload;
	struct dataset_origin o = {
		.name = q->name, .source = q->source, .hash = q->hash, .tick = q->has_tick ? q->tick : 0,
		.has_volume = q->has_has_volume && q->has_volume, .duplicates = q->duplicates, .dropped = q->dropped,
		.repaired = q->repaired, .moved = q->moved,
		.note = (const char *const *)q->note, .notes = q->n_note, .append = q->append, .base = q->base_hash,
		.roll = q->roll, .rolls = q->n_roll, .contract = (const char *const *)q->contract, .contracts = q->n_contract,
	};
	struct data_call *x = data_call(d, c);
	struct fh_status st = FH_STATUS_INIT;
	const struct dataset *existed;
	char id[UPLOAD_ID_MAX];

	if (fh_name_check("name", q->name, &st) || upload_begin(d->datasets, &o, q->bars, id, &existed, &st)) {
		fail_name(c, &st);
		return;
	}
	x->upload = existed ? NULL : id;
	reply_upload(x, existed ? dataset_bars(existed) : upload_next(d->datasets, id), existed, 1);
}

void rpc_upload_chunk(struct daemon *d, struct rpc_call *c)
{
	const Fh__V1__UploadChunkRequest *q = c->request->upload_chunk;
	struct market_bars b = {(int64_t)q->n_ts, q->ts, q->open, q->high, q->low, q->close, q->n_volume ? q->volume : NULL};
	struct data_call *x = data_call(d, c);
	struct fh_status st = FH_STATUS_INIT;
	int64_t next;

	if (q->n_open != q->n_ts || q->n_high != q->n_ts || q->n_low != q->n_ts || q->n_close != q->n_ts ||
	    (q->n_volume && q->n_volume != q->n_ts)) {
		fh_fail_field(&st, FH_INVALID, "ts", "columns of different lengths: ts %zu, open %zu, high %zu, low %zu, close %zu, volume %zu",
			      q->n_ts, q->n_open, q->n_high, q->n_low, q->n_close, q->n_volume);
		rpc_fail(c, &st);
	} else if (upload_chunk(d->datasets, q->upload, q->first_bar, &b, &next, &st)) {
		rpc_fail(c, &st);
	} else {
		x->upload = q->upload;
		reply_upload(x, next, NULL, 0);
	}
}

static void on_committed(void *arg, int code, const struct dataset *set, int existed, const struct fh_status *st)
{
	struct data_call *x = arg;

	if (code)
		fail_name(x->call, st);
	else
		reply_upload(x, dataset_bars(set), set, existed);
}

void rpc_commit_upload(struct daemon *d, struct rpc_call *c)
{
	struct data_call *x = data_call(d, c);

	x->upload = c->request->commit_upload->upload;
	upload_commit(d->datasets, x->upload, on_committed, x);
}

void rpc_abort_upload(struct daemon *d, struct rpc_call *c)
{
	struct fh_status st = FH_STATUS_INIT;

	if (upload_abort(d->datasets, c->request->abort_upload->upload, &st))
		rpc_fail(c, &st);
	else
		rpc_reply_empty(c);
}

/* ---------------------------------------------------------------- read */

static double *pick(struct rpc_call *c, const double *from, const struct data_call *x)
{
	double *to = rpc_alloc(c, (size_t)(x->count ? x->count : 1) * sizeof *to);

	for (int64_t i = 0; i < x->count; i++)
		to[i] = from[x->first + i * x->stride];
	return to;
}

static void on_bars(void *arg, int code, struct market *m, const struct fh_status *st)
{
	struct data_call *x = arg;
	Fh__V1__ReadBarsReply r = FH__V1__READ_BARS_REPLY__INIT;
	Fh__V1__Reply reply = FH__V1__REPLY__INIT;
	int64_t left;

	if (code) {
		fail_name(x->call, st);
		return;
	}
	left = x->first < m->bars ? (m->bars - x->first + x->stride - 1) / x->stride : 0;
	if (x->count > left)
		x->count = left;
	r.n_ts = r.n_open = r.n_high = r.n_low = r.n_close = r.n_volume = (size_t)x->count;
	r.ts = rpc_alloc(x->call, (size_t)(x->count ? x->count : 1) * sizeof *r.ts);
	for (int64_t i = 0; i < x->count; i++)
		r.ts[i] = m->ts[x->first + i * x->stride];
	r.open = pick(x->call, m->open, x);
	r.high = pick(x->call, m->high, x);
	r.low = pick(x->call, m->low, x);
	r.close = pick(x->call, m->close, x);
	r.volume = pick(x->call, m->volume, x);
	r.has_bars = 1;
	r.bars = m->bars;
	market_unref(m);
	reply.result_case = FH__V1__REPLY__RESULT_BARS;
	reply.bars = &r;
	rpc_reply(x->call, &reply);
}

void rpc_read_bars(struct daemon *d, struct rpc_call *c)
{
	const Fh__V1__ReadBarsRequest *q = c->request->read_bars;
	struct fh_status st = FH_STATUS_INIT;
	struct data_call *x = data_call(d, c);

	x->first = q->first;
	x->count = q->has_count ? q->count : READ_BARS_MAX;
	x->stride = q->has_stride ? q->stride : 1;
	if (fh_name_check("name", q->name, &st))
		;
	else if (x->first < 0 || x->first > DATASET_BARS_MAX)
		fh_fail_field(&st, FH_INVALID, "first", "first is %lld, not in 0 to %lld", (long long)x->first, (long long)DATASET_BARS_MAX);
	else if (x->count < 1 || x->count > READ_BARS_MAX)
		fh_fail_field(&st, FH_INVALID, "count", "count is %lld, not in 1 to %d", (long long)x->count, READ_BARS_MAX);
	else if (x->stride < 1 || x->stride > DATASET_BARS_MAX)
		fh_fail_field(&st, FH_INVALID, "stride", "stride is %lld, not in 1 to %lld", (long long)x->stride, (long long)DATASET_BARS_MAX);
	if (st.code)
		rpc_fail(c, &st);
	else
		datasets_acquire(d->datasets, q->name, NULL, 0, on_bars, x);
}
