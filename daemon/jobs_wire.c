/* The forms of a job: its row in the store and its message. See jobs.h. */
#include "daemon/jobs_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"
#include "daemon/queue.h"
#include "daemon/rpc.h"
#include "daemon/series.h"
#include "daemon/store.h"
#include "proto/spec.h"

#define ROW_ARENA_BYTES (256u << 10)

/* ---------------------------------------------------------------- row */

static Fh__V1__Label **labels_to_wire(const struct job *j, struct fh_arena *a)
{
	Fh__V1__Label **list = fh_arena_array(a, (size_t)j->labels + 1, sizeof *list);

	for (int i = 0; list && i < j->labels; i++) {
		list[i] = fh_arena_alloc(a, sizeof **list);
		if (!list[i])
			return NULL;
		fh__v1__label__init(list[i]);
		list[i]->key = j->label[i].key;
		list[i]->value = j->label[i].value;
	}
	return list;
}

/* Packed into the arena; NULL when it does not fit, which bounds on all parts rule out. */
static void *pack(const ProtobufCMessage *m, struct fh_arena *a, size_t *bytes)
{
	void *data;

	*bytes = protobuf_c_message_get_packed_size(m);
	data = fh_arena_alloc(a, *bytes + 1);
	if (data)
		protobuf_c_message_pack(m, data);
	return data;
}

void job_put_row(struct store_txn *t, const struct job *j)
{
	Fh__V1__StartJobRequest labels = FH__V1__START_JOB_REQUEST__INIT;
	Fh__V1__JobSpec *spec = NULL;
	struct fh_arena a;
	struct store_job row = {
		.id = j->id, .name = j->name, .state = (int)j->state, .reason = j->reason,
		.error_code = j->error ? -j->error->code : 0,
		.error_field = j->error ? j->error->field : NULL, .error_text = j->error ? j->error->text : NULL,
		.request_id = j->request_id, .created_ns = j->created_ns, .started_ns = j->started_ns,
		.ended_ns = j->ended_ns, .step = (uint64_t)j->step, .planned_steps = (uint64_t)j->planned,
		.epoch = (uint64_t)j->epoch, .vector_step = (uint64_t)j->vector_step,
		.interruptions = j->interruptions, .queue_order = (int64_t)j->id, .dataset_hash = j->dataset_hash,
		.last_checkpoint = j->last_checkpoint, .resume_note = j->resume_note, .device = j->device,
	};

	fh_arena_init(&a, ROW_ARENA_BYTES);
	labels.label = labels_to_wire(j, &a);
	labels.n_label = labels.label ? (size_t)j->labels : 0;
	row.labels = pack(&labels.base, &a, &row.labels_bytes);
	if (!fh_spec_to_message(&j->spec, &a, &spec, NULL))
		row.spec = pack(&spec->base, &a, &row.spec_bytes);
	store_put_job(t, &row);
	fh_arena_release(&a);
}

static int copy_labels(const Fh__V1__StartJobRequest *labels, struct job *j, struct fh_status *st)
{
	if (!labels->n_label)
		return 0;
	if (labels->n_label > FH_LABELS_MAX || !(j->label = calloc(labels->n_label, sizeof *j->label)))
		return fh_fail(st, FH_CORRUPT, "%zu labels", labels->n_label);
	for (size_t i = 0; i < labels->n_label; i++) {
		snprintf(j->label[i].key, sizeof j->label[i].key, "%s", labels->label[i]->key ? labels->label[i]->key : "");
		snprintf(j->label[i].value, sizeof j->label[i].value, "%s",
			 labels->label[i]->value ? labels->label[i]->value : "");
	}
	j->labels = (int)labels->n_label;
	return 0;
}

static int labels_from_row(const struct store_job *row, struct job *j, struct fh_status *st)
{
	struct fh_arena a = {0};
	ProtobufCMessage *m;
	int rc = fh_message_unpack(&fh__v1__start_job_request__descriptor, row->labels, row->labels_bytes, 0, &a, &m, st);

	if (!rc)
		rc = copy_labels((Fh__V1__StartJobRequest *)m, j, st);
	fh_arena_release(&a);
	return rc;
}

static int spec_from_row(const struct store_job *row, struct job *j, struct fh_status *st)
{
	struct fh_arena a = {0};
	ProtobufCMessage *m;
	int rc = fh_message_unpack(&fh__v1__job_spec__descriptor, row->spec, row->spec_bytes, 0, &a, &m, st);

	if (!rc)
		rc = fh_spec_from_message((Fh__V1__JobSpec *)m, &j->spec, st);
	fh_arena_release(&a);
	return rc;
}

static void text(char *to, size_t size, const char *from)
{
	snprintf(to, size, "%s", from ? from : "");
}

int job_from_row(const struct store_job *row, struct job **out, struct fh_status *st)
{
	struct job *j = calloc(1, sizeof *j);
	int rc = 0;

	if (!j)
		return fh_fail(st, FH_EXHAUSTED, "no memory for job %llu", (unsigned long long)row->id);
	if (row->state < JOB_QUEUED || row->state > JOB_STOPPED)
		rc = fh_fail(st, FH_CORRUPT, "state %d", row->state);
	if (!rc)
		rc = labels_from_row(row, j, st);
	if (!rc)
		rc = spec_from_row(row, j, st);
	if (rc) {
		fh_prefix(st, "stored job %llu", (unsigned long long)row->id);
		free(j->label);
		free(j);
		return rc;
	}
	j->id = row->id;
	j->state = (enum job_state)row->state;
	j->worker = -1;
	text(j->name, sizeof j->name, row->name);
	text(j->reason, sizeof j->reason, row->reason);
	text(j->request_id, sizeof j->request_id, row->request_id);
	text(j->dataset_hash, sizeof j->dataset_hash, row->dataset_hash);
	text(j->last_checkpoint, sizeof j->last_checkpoint, row->last_checkpoint);
	text(j->resume_note, sizeof j->resume_note, row->resume_note);
	text(j->device, sizeof j->device, row->device);
	j->created_ns = row->created_ns;
	j->started_ns = row->started_ns;
	j->ended_ns = row->ended_ns;
	j->step = (int64_t)row->step;
	j->planned = (int64_t)row->planned_steps;
	j->epoch = (int64_t)row->epoch;
	j->vector_step = (int64_t)row->vector_step;
	j->interruptions = row->interruptions;
	if (row->error_code && (j->error = calloc(1, sizeof *j->error))) {
		j->error->code = -row->error_code;
		text(j->error->field, sizeof j->error->field, row->error_field);
		text(j->error->text, sizeof j->error->text, row->error_text);
	}
	*out = j;
	return 0;
}

/* ---------------------------------------------------------------- message */

Fh__V1__MemoryUse *memory_to_wire(const struct memory_plan *m, struct rpc_call *c)
{
	Fh__V1__MemoryUse *u = rpc_alloc(c, sizeof *u);

	fh__v1__memory_use__init(u);
	u->has_parameters = u->has_optimizer = u->has_replay = u->has_environments = u->has_scratch = u->has_market = 1;
	u->has_total = u->has_overhead = 1;
	u->parameters = m->parameters;
	u->optimizer = m->optimizer;
	u->replay = m->replay;
	u->environments = m->environments;
	u->scratch = m->scratch;
	u->market = m->market;
	u->overhead = m->overhead;
	u->total = m->total;
	return u;
}

/* A copy in the call's arena: the series' own is malloc'ed. */
static Fh__V1__Sample *newest_sample(struct jobs *js, const struct job *j, int validation, struct rpc_call *c)
{
	Fh__V1__Sample *s = series_newest(js->daemon->series, j->id, validation);
	ProtobufCMessage *copy = NULL;
	size_t bytes;
	void *data;

	if (!s)
		return NULL;
	data = pack(&s->base, &c->arena, &bytes);
	fh__v1__sample__free_unpacked(s, NULL);
	if (!data)
		return NULL;
	copy = protobuf_c_message_unpack(&fh__v1__sample__descriptor, rpc_allocator(c), bytes, data);
	return (Fh__V1__Sample *)copy;
}

static const char *phase_name(enum trainer_phase p)
{
	static const char *const name[] = {"warmup", "learn", "validate", "done"};

	return name[p];
}

static void progress_to_wire(const struct job *j, Fh__V1__Job *out)
{
	out->has_step = out->has_planned_steps = out->has_epoch = out->has_vector_step = 1;
	out->step = (uint64_t)j->step;
	out->planned_steps = (uint64_t)j->planned;
	out->epoch = (uint64_t)j->epoch;
	out->vector_step = (uint64_t)j->vector_step;
	out->has_first_step_ns = j->first_step_ns != 0;
	out->first_step_ns = j->first_step_ns;
	if (j->shown != JOB_RUNNING)
		return;
	out->has_progress_ns = j->progress_ns != 0;
	out->progress_ns = j->progress_ns;
	out->phase = (char *)(j->sent ? phase_name(j->phase) : "start");
	if (j->steps_per_second <= 0)
		return;
	out->has_steps_per_second = out->has_eta_seconds = 1;
	out->steps_per_second = j->steps_per_second;
	out->eta_seconds = (double)(j->planned - j->step) / j->steps_per_second;
}

void jobs_to_wire(struct jobs *js, const struct job *j, int full, struct rpc_call *c, Fh__V1__Job *out)
{
	struct daemon *d = js->daemon;

	fh__v1__job__init(out);
	out->has_id = out->has_state = out->has_created_ns = out->has_interruptions = out->has_last_seq = 1;
	out->id = j->id;
	out->name = (char *)j->name;
	/* A change that is not on the disk yet has not happened as far as clients can tell. */
	out->state = (Fh__V1__JobState)j->shown;
	out->reason = j->shown == j->state ? rpc_strdup(c, j->reason) : NULL;
	if (j->error && j->shown == JOB_FAILED) {
		out->error = rpc_alloc(c, sizeof *out->error);
		fh__v1__error__init(out->error);
		fh_error_from_status(out->error, j->error);
	}
	if (full && fh_spec_to_message(&j->spec, &c->arena, &out->spec, NULL))
		out->spec = NULL;
	out->label = labels_to_wire(j, &c->arena);
	out->n_label = out->label ? (size_t)j->labels : 0;
	out->created_ns = j->created_ns;
	out->has_started_ns = j->started_ns != 0;
	out->started_ns = j->started_ns;
	out->has_ended_ns = j->ended_ns != 0 && job_is_final(j->shown);
	out->ended_ns = j->ended_ns;
	progress_to_wire(j, out);
	out->interruptions = j->interruptions;
	if (j->queued) {
		out->has_position = 1;
		out->position = queue_position(d->queue, j);
	}
	out->last_seq = series_last_seq(d->series, j->id);
	out->device = (char *)(j->device[0] ? j->device : NULL);
	out->dataset_hash = (char *)j->dataset_hash;
	out->last_checkpoint = (char *)(j->last_checkpoint[0] ? j->last_checkpoint : NULL);
	out->resume_note = rpc_strdup(c, j->resume_note);
	if (!full)
		return;
	out->memory = memory_to_wire(&j->memory, c);
	out->last_report = newest_sample(js, j, 0, c);
	out->last_validation = newest_sample(js, j, 1, c);
}
