/* Transactions as the loop sees them: building, handing over, answers. See store.h.
 *
 * A transaction is a byte string of statements with their values, built by the loop and read by the writer
 * (store_writer.c), so nothing in it is shared. Thread: loop. */
#include "daemon/store.h"
#include "daemon/need.h"
#include "daemon/store_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void store_list_push(struct store_list *l, struct store_txn *t)
{
	t->next = NULL;
	if (l->tail)
		l->tail->next = t;
	else
		l->head = t;
	l->tail = t;
}

/* ---------------------------------------------------------------- building */

static void txn_free(struct store_txn *t)
{
	free(t->code);
	free(t->sample);
	free(t);
}

struct store_txn *store_begin(struct store *s)
{
	return need(calloc(1, sizeof(struct store_txn)));
}

static unsigned char *grow(struct store_txn *t, size_t n)
{
	unsigned char *p;

	if (t->bytes + n > t->room) {
		t->room = (t->bytes + n) * 2;
		t->code = need(realloc(t->code, t->room));
	}
	p = t->code + t->bytes;
	t->bytes += n;
	return p;
}

/* One statement: its number, then for each value 'i' + 8 bytes, or 't' / 'b' + length + bytes. `sig` lists the kinds:
 * i (uint64_t), t (const char *), b (const void *, size_t). */
static void put(struct store_txn *t, enum store_stmt stmt, const char *sig, ...)
{
	va_list ap;

	*grow(t, 1) = (unsigned char)stmt;
	va_start(ap, sig);
	for (; *sig; sig++) {
		*grow(t, 1) = (unsigned char)*sig;
		if (*sig == 'i') {
			uint64_t v = va_arg(ap, uint64_t);

			memcpy(grow(t, sizeof v), &v, sizeof v);
		} else {
			const char *p = va_arg(ap, const char *);
			size_t n = *sig == 'b' ? va_arg(ap, size_t) : p ? strlen(p) : 0;

			assert(n <= STORE_BLOB_MAX);
			memcpy(grow(t, sizeof n), &n, sizeof n);
			if (n)
				memcpy(grow(t, n), p, n);
		}
	}
	va_end(ap);
	*grow(t, 1) = 0;
}

void store_put_job(struct store_txn *t, const struct store_job *j)
{
	put(t, STMT_PUT_JOB, "itititt" "bbtiii" "iiiiii" "tttt", j->id, j->name, (uint64_t)j->state, j->reason,
	    (uint64_t)j->error_code, j->error_field, j->error_text, j->spec, j->spec_bytes, j->labels, j->labels_bytes,
	    j->request_id, j->created_ns, j->started_ns, j->ended_ns, j->step, j->planned_steps, j->epoch, j->vector_step,
	    (uint64_t)j->interruptions, (uint64_t)j->queue_order, j->dataset_hash, j->last_checkpoint, j->resume_note,
	    j->device);
}

void store_put_dataset(struct store_txn *t, const struct store_dataset *d)
{
	put(t, STMT_PUT_DATASET, "ttib", d->name, d->hash, d->created_ns, d->info, d->info_bytes);
}

void store_drop_dataset(struct store_txn *t, const char *name)
{
	put(t, STMT_DROP_DATASET, "t", name);
}

void store_put_checkpoint(struct store_txn *t, const struct store_checkpoint *c)
{
	put(t, STMT_PUT_CHECKPOINT, "tiiiitti", c->id, c->job, c->step, c->created_ns, c->bytes, c->reason, c->sha256,
	    (uint64_t)c->pinned);
}

void store_drop_checkpoint(struct store_txn *t, const char *id)
{
	put(t, STMT_DROP_CHECKPOINT, "t", id);
}

void store_put_sample(struct store_txn *t, const struct store_sample *m)
{
	put(t, STMT_PUT_SAMPLE, "iiib", m->job, m->seq, (uint64_t)m->kind, m->packed, m->bytes);
}

void store_put_request(struct store_txn *t, const struct store_request *r)
{
	put(t, STMT_PUT_REQUEST, "ttiib", r->request_id, r->call, r->job, r->time_ns, r->reply, r->reply_bytes);
	put(t, STMT_TRIM_REQUESTS, "i", (uint64_t)STORE_REQUESTS_KEPT);
}

void store_thin_samples(struct store_txn *t, uint64_t job, uint64_t keep_from, uint64_t stride, uint64_t drop_below)
{
	put(t, STMT_THIN_REPORTS, "iii", job, keep_from, stride);
	put(t, STMT_THIN_ALL, "ii", job, drop_below);
}

void store_on_done(struct store_txn *t, store_done done, void *arg)
{
	assert(t->hooks < TXN_HOOKS_MAX - 1); /* the last place is store_commit's */
	t->hook[t->hooks++] = (struct txn_hook){done, arg};
}

/* ---------------------------------------------------------------- handing over and answers */

static void answer(struct store *s, struct store_txn *t)
{
	if (t->kind == TXN_SAMPLES)
		t->samples_done(t->arg, t->result, t->sample, t->rows, t->more);
	for (int i = 0; i < t->hooks; i++)
		t->hook[i].done(t->hook[i].arg, t->result, &t->status);
	txn_free(t);
}

static void submit(struct store *s, struct store_txn *t)
{
	if (!s->running) { /* after store_stop: nobody is left to write it */
		t->result = fh_fail(&t->status, FH_UNAVAILABLE, "the store is closed");
		answer(s, t);
		return;
	}
	s->pending++;
	pthread_mutex_lock(&s->lock);
	if (s->pending > STORE_PENDING_MAX) {
		t->result = fh_fail(&t->status, FH_EXHAUSTED, "%d transactions are waiting for the disk", STORE_PENDING_MAX);
		store_list_push(&s->done, t);
		uv_async_send(s->async);
	} else {
		store_list_push(&s->todo, t);
		pthread_cond_signal(&s->work);
	}
	pthread_mutex_unlock(&s->lock);
}

void store_commit(struct store *s, struct store_txn *t, store_done done, void *arg)
{
	t->kind = TXN_WRITE;
	if (done)
		t->hook[t->hooks++] = (struct txn_hook){done, arg};
	submit(s, t);
}

void store_read_samples(struct store *s, uint64_t job, uint64_t since, uint32_t limit, store_samples done, void *arg)
{
	struct store_txn *t = store_begin(s);

	t->kind = TXN_SAMPLES;
	t->job = job;
	t->since = since;
	t->limit = limit;
	t->samples_done = done;
	t->arg = arg;
	submit(s, t);
}

void store_drain(struct store *s)
{
	struct store_txn *t;

	pthread_mutex_lock(&s->lock);
	t = s->done.head;
	s->done.head = s->done.tail = NULL;
	pthread_mutex_unlock(&s->lock);
	while (t) {
		struct store_txn *next = t->next;

		s->pending--;
		s->transactions++;
		answer(s, t);
		t = next;
	}
}

void store_stats(const struct store *cs, struct store_stats *out)
{
	struct store *s = (struct store *)cs;

	pthread_mutex_lock(&s->lock);
	out->groups = s->groups;
	out->failed = s->failed;
	memcpy(out->error, s->error, sizeof out->error);
	pthread_mutex_unlock(&s->lock);
	out->transactions = s->transactions;
	out->pending = s->pending;
}
