/* The writer thread: groups of transactions into the file, reads in between. See store.h.
 *
 * Invariant: an item is the loop's until it is in `todo`, the writer's until it is in `done`, the loop's again from there. */
#include "daemon/store.h"
#include "daemon/store_internal.h"
#include "daemon/crashpoint.h"
#include "daemon/need.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const store_sql[STMT_COUNT] = {
	[STMT_PUT_JOB] =
		"INSERT INTO jobs VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20,?21,?22,?23)"
		" ON CONFLICT(id) DO UPDATE SET name=?2, state=?3, reason=?4, error_code=?5, error_field=?6, error_text=?7, spec=?8,"
		" labels=?9, request_id=?10, created_ns=?11, started_ns=?12, ended_ns=?13, step=?14, planned_steps=?15, epoch=?16,"
		" vector_step=?17, interruptions=?18, queue_order=?19, dataset_hash=?20, last_checkpoint=?21, resume_note=?22,"
		" device=?23",
	[STMT_PUT_DATASET] = "INSERT INTO datasets VALUES(?1,?2,?3,?4)"
			     " ON CONFLICT(name) DO UPDATE SET hash=?2, created_ns=?3, info=?4",
	[STMT_DROP_DATASET] = "DELETE FROM datasets WHERE name=?1",
	[STMT_PUT_CHECKPOINT] = "INSERT INTO checkpoints VALUES(?1,?2,?3,?4,?5,?6,?7,?8)"
				" ON CONFLICT(id) DO UPDATE SET pinned=?8",
	[STMT_DROP_CHECKPOINT] = "DELETE FROM checkpoints WHERE id=?1",
	[STMT_PUT_SAMPLE] = "INSERT INTO samples VALUES(?1,?2,?3,?4)",
	[STMT_THIN_REPORTS] = "DELETE FROM samples WHERE job=?1 AND seq < ?2 AND kind=1 AND seq % ?3 <> 0",
	[STMT_THIN_ALL] = "DELETE FROM samples WHERE job=?1 AND seq < ?2",
	[STMT_PUT_REQUEST] = "INSERT INTO requests(request_id, call, job, time_ns, reply) VALUES(?1,?2,?3,?4,?5)"
			     " ON CONFLICT(request_id) DO NOTHING",
	[STMT_TRIM_REQUESTS] = "DELETE FROM requests WHERE n <= (SELECT max(n) FROM requests) - ?1",
	[STMT_READ_SAMPLES] = "SELECT seq, kind, packed FROM samples WHERE job=?1 AND seq>?2 ORDER BY seq LIMIT ?3",
};

static int statement(struct store *s, enum store_stmt n, sqlite3_stmt **out)
{
	int rc = SQLITE_OK;

	if (!s->stmt[n])
		rc = sqlite3_prepare_v3(s->db, store_sql[n], -1, SQLITE_PREPARE_PERSISTENT, &s->stmt[n], NULL);
	*out = s->stmt[n];
	return rc;
}

/* Binds the values at p and steps; returns the place behind them, or NULL with *rc. */
static const unsigned char *run_one(struct store *s, const unsigned char *p, int *rc)
{
	sqlite3_stmt *q;
	int at = 1;

	if ((*rc = statement(s, (enum store_stmt)*p++, &q)) != SQLITE_OK)
		return NULL;
	for (; *p; at++) {
		unsigned char kind = *p++;
		uint64_t v;

		memcpy(&v, p, sizeof v); /* a number, or the length of what follows */
		p += sizeof v;
		if (kind == 'i') {
			sqlite3_bind_int64(q, at, (sqlite3_int64)v);
			continue;
		}
		if (kind == 't')
			sqlite3_bind_text(q, at, (const char *)p, (int)v, SQLITE_STATIC);
		else
			sqlite3_bind_blob(q, at, v ? (const void *)p : "", (int)v, SQLITE_STATIC);
		p += v;
	}
	*rc = sqlite3_step(q);
	sqlite3_reset(q);
	sqlite3_clear_bindings(q);
	return *rc == SQLITE_DONE ? p + 1 : NULL;
}

static int run_all(struct store *s, struct store_txn *t)
{
	const unsigned char *p = t->code, *end = t->code + t->bytes;
	int rc = SQLITE_OK;

	while (p && p < end)
		p = run_one(s, p, &rc);
	if (p)
		return 0;
	t->result = store_fail(s, rc, "write", &t->status);
	return t->result;
}

static int sql(struct store *s, const char *text, struct store_txn *t)
{
	int rc = sqlite3_exec(s->db, text, NULL, NULL, NULL);

	if (rc == SQLITE_OK)
		return 0;
	t->result = store_fail(s, rc, text, &t->status);
	return t->result;
}

static int commit(struct store *s)
{
	int rc;

	FHD_CRASH_POINT("store-before-commit");
	rc = sqlite3_exec(s->db, "COMMIT", NULL, NULL, NULL);
	FHD_CRASH_POINT("store-after-commit");
	return rc;
}

/* A transaction by itself. */
static void write_alone(struct store *s, struct store_txn *t)
{
	t->result = 0;
	t->status = (struct fh_status)FH_STATUS_INIT;
	if (!sql(s, "BEGIN IMMEDIATE", t) && !run_all(s, t)) {
		int rc = commit(s);

		if (rc != SQLITE_OK)
			t->result = store_fail(s, rc, "commit", &t->status);
	}
	if (!sqlite3_get_autocommit(s->db))
		sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
}

/* All of the list under one sync, each inside its savepoint. When the database ends the transaction by itself (full disk,
 * I/O error) or the commit fails, nobody is durable yet and each is tried alone: a neighbour's bad luck is not theirs. */
static void write_group(struct store *s, struct store_txn *first)
{
	struct store_txn *t = first;

	if (!first->next) {
		write_alone(s, first);
		return;
	}
	if (sql(s, "BEGIN IMMEDIATE", first))
		goto alone;
	for (; t; t = t->next) {
		if (sql(s, "SAVEPOINT one", t))
			goto alone;
		if (run_all(s, t) && (sqlite3_get_autocommit(s->db) || sqlite3_exec(s->db, "ROLLBACK TO one", NULL, NULL, NULL)))
			goto alone;
		if (sqlite3_exec(s->db, "RELEASE one", NULL, NULL, NULL))
			goto alone;
	}
	if (commit(s) == SQLITE_OK)
		return;
alone:
	if (!sqlite3_get_autocommit(s->db))
		sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
	for (t = first; t; t = t->next)
		write_alone(s, t);
}

/* Rows into one block: the array, then the bytes. Ends early at STORE_READ_BYTES so that a reply stays bounded. */
#define STORE_READ_BYTES (4 << 20)
static void read_samples(struct store *s, struct store_txn *t)
{
	size_t room = 0, used = 0;
	unsigned char *bytes = NULL;
	sqlite3_stmt *q;
	int rc = statement(s, STMT_READ_SAMPLES, &q);

	if (rc == SQLITE_OK) {
		sqlite3_bind_int64(q, 1, (sqlite3_int64)t->job);
		sqlite3_bind_int64(q, 2, (sqlite3_int64)t->since);
		sqlite3_bind_int64(q, 3, (sqlite3_int64)t->limit + 1);
		t->sample = need(calloc((size_t)t->limit + 1, sizeof *t->sample));
		while ((rc = sqlite3_step(q)) == SQLITE_ROW) {
			struct store_sample *m = &t->sample[t->rows];
			size_t n = (size_t)sqlite3_column_bytes(q, 2);

			if (t->rows == t->limit || (t->rows && used + n > STORE_READ_BYTES)) {
				t->more = 1;
				rc = SQLITE_DONE;
				break;
			}
			if (!bytes || used + n > room) {
				room = (used + n + 64) * 2;
				bytes = need(realloc(bytes, room));
			}
			if (n)
				memcpy(bytes + used, sqlite3_column_blob(q, 2), n);
			/* the offset: the block may still move */
			*m = (struct store_sample){t->job, (uint64_t)sqlite3_column_int64(q, 0), sqlite3_column_int(q, 1),
						   (const void *)used, n};
			used += n;
			t->rows++;
		}
		sqlite3_reset(q);
	}
	if (rc != SQLITE_DONE) {
		t->result = store_fail(s, rc, "read", &t->status);
		t->rows = 0;
	}
	for (size_t i = 0; i < t->rows; i++)
		t->sample[i].packed = bytes + (size_t)t->sample[i].packed;
	t->code = bytes; /* freed with the transaction */
}

/* The next items that go together: one read, or writes up to the next read. Called with the lock held. */
static struct store_txn *take_group(struct store *s)
{
	struct store_txn *first = s->todo.head, *last = first;

	if (first->kind == TXN_WRITE)
		for (int n = 1; n < STORE_GROUP_MAX && last->next && last->next->kind == TXN_WRITE; n++)
			last = last->next;
	s->todo.head = last->next;
	if (!s->todo.head)
		s->todo.tail = NULL;
	last->next = NULL;
	return first;
}

static void finish_group(struct store *s, struct store_txn *t)
{
	pthread_mutex_lock(&s->lock);
	s->groups++;
	while (t) {
		struct store_txn *next = t->next;

		if (t->result) {
			s->failed++;
			snprintf(s->error, sizeof s->error, "%.250s", t->status.text);
		}
		store_list_push(&s->done, t);
		t = next;
	}
	uv_async_send(s->async);
	pthread_cond_signal(&s->answered);
}

static void *writer(void *arg)
{
	struct store *s = arg;

	pthread_mutex_lock(&s->lock);
	for (;;) {
		struct store_txn *t;

		while (!s->todo.head && !s->ending)
			pthread_cond_wait(&s->work, &s->lock);
		if (!s->todo.head)
			break;
		t = take_group(s);
		pthread_mutex_unlock(&s->lock);
		if (t->kind == TXN_SAMPLES)
			read_samples(s, t);
		else
			write_group(s, t);
		finish_group(s, t); /* returns with the lock held */
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* ---------------------------------------------------------------- start and stop (loop thread) */

static void on_async(uv_async_t *h)
{
	store_drain(h->data);
}

/* The store may be gone by then. */
static void on_async_closed(uv_handle_t *h)
{
	free(h);
}

int store_start(struct store *s, uv_loop_t *loop, struct fh_status *st)
{
	int e;

	assert(!s->running);
	s->loop = loop;
	s->async = need(calloc(1, sizeof *s->async));
	s->async->data = s;
	e = uv_async_init(loop, s->async, on_async);
	if (e) {
		free(s->async);
		return fh_fail(st, FH_INTERNAL, "store: %s", uv_strerror(e));
	}
	e = pthread_create(&s->thread, NULL, writer, s);
	if (e) {
		uv_close((uv_handle_t *)s->async, on_async_closed);
		return fh_fail(st, FH_EXHAUSTED, "store: no thread: %s", strerror(e));
	}
	s->running = 1;
	return 0;
}

void store_stop(struct store *s)
{
	if (!s || !s->running)
		return;
	for (;;) { /* callbacks may commit again: until nothing is left */
		store_drain(s);
		if (!s->pending)
			break;
		pthread_mutex_lock(&s->lock);
		while (!s->done.head)
			pthread_cond_wait(&s->answered, &s->lock);
		pthread_mutex_unlock(&s->lock);
	}
	pthread_mutex_lock(&s->lock);
	s->ending = 1;
	pthread_cond_signal(&s->work);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->thread, NULL);
	s->running = 0;
	uv_close((uv_handle_t *)s->async, on_async_closed);
}
