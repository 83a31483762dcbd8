/* The database file: opening, checks, schema, and what a starting daemon reads from it. See store.h. */
#include "daemon/store.h"
#include "daemon/store_internal.h"
#include "proto/status.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STORE_APPLICATION 0x46484431 /* "FHD1", PRAGMA application_id: tells our file from another program's */
#define STORE_WAL_BYTES (64 << 20)   /* the write-ahead log is cut back to this after a checkpoint */

/* migration[v] takes a file from schema v to v + 1. Never edit one that was released: add the next. */
static const char *const migration[STORE_SCHEMA] = {
	"CREATE TABLE jobs("
	"  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, state INTEGER NOT NULL, reason TEXT NOT NULL,"
	"  error_code INTEGER NOT NULL, error_field TEXT NOT NULL, error_text TEXT NOT NULL,"
	"  spec BLOB NOT NULL, labels BLOB NOT NULL, request_id TEXT NOT NULL,"
	"  created_ns INTEGER NOT NULL, started_ns INTEGER NOT NULL, ended_ns INTEGER NOT NULL,"
	"  step INTEGER NOT NULL, planned_steps INTEGER NOT NULL, epoch INTEGER NOT NULL, vector_step INTEGER NOT NULL,"
	"  interruptions INTEGER NOT NULL, queue_order INTEGER NOT NULL, dataset_hash TEXT NOT NULL,"
	"  last_checkpoint TEXT NOT NULL, resume_note TEXT NOT NULL, device TEXT NOT NULL);"
	"CREATE TABLE events(n INTEGER PRIMARY KEY, job INTEGER NOT NULL REFERENCES jobs(id), time_ns INTEGER NOT NULL,"
	"  state INTEGER NOT NULL, reason TEXT NOT NULL);"
	"CREATE INDEX events_job ON events(job, n);"
	"CREATE TABLE datasets(name TEXT PRIMARY KEY, hash TEXT NOT NULL, created_ns INTEGER NOT NULL, info BLOB NOT NULL);"
	"CREATE TABLE checkpoints(id TEXT PRIMARY KEY, job INTEGER NOT NULL REFERENCES jobs(id), step INTEGER NOT NULL,"
	"  created_ns INTEGER NOT NULL, bytes INTEGER NOT NULL, reason TEXT NOT NULL, sha256 TEXT NOT NULL,"
	"  pinned INTEGER NOT NULL);"
	"CREATE INDEX checkpoints_job ON checkpoints(job, step);"
	"CREATE TABLE samples(job INTEGER NOT NULL REFERENCES jobs(id), seq INTEGER NOT NULL, kind INTEGER NOT NULL,"
	"  packed BLOB NOT NULL, PRIMARY KEY(job, seq)) WITHOUT ROWID;"
	"CREATE TABLE requests(n INTEGER PRIMARY KEY, request_id TEXT NOT NULL UNIQUE, call TEXT NOT NULL,"
	"  job INTEGER NOT NULL, time_ns INTEGER NOT NULL, reply BLOB NOT NULL);",
	/* Every change of state is a sample of its job's series: nobody read these. */
	"DROP TABLE events;",
};

/* Code of an SQLite result: full disk, busy or foreign file, corruption, refused value, else FH_IO. */
static int store_code(int rc)
{
	switch (rc & 0xff) {
	case SQLITE_OK: case SQLITE_DONE: case SQLITE_ROW: return FH_OK;
	case SQLITE_FULL: case SQLITE_NOMEM: case SQLITE_TOOBIG: return FH_EXHAUSTED;
	case SQLITE_CORRUPT: case SQLITE_NOTADB: return FH_CORRUPT;
	case SQLITE_CONSTRAINT: return FH_CONFLICT;
	case SQLITE_BUSY: case SQLITE_LOCKED: return FH_UNAVAILABLE;
	default: return FH_IO;
	}
}

int store_fail(struct store *s, int rc, const char *what, struct fh_status *st)
{
	return fh_fail(st, store_code(rc), "%s: %s: %s", s->path, what, s->db ? sqlite3_errmsg(s->db) : sqlite3_errstr(rc));
}

static int store_exec(struct store *s, const char *sql, const char *what, struct fh_status *st)
{
	int rc = sqlite3_exec(s->db, sql, NULL, NULL, NULL);

	return rc == SQLITE_OK ? 0 : store_fail(s, rc, what, st);
}

/* The first column of the first row as a number. */
static int store_number(struct store *s, const char *sql, int64_t *out, struct fh_status *st)
{
	sqlite3_stmt *q = NULL;
	int rc = sqlite3_prepare_v2(s->db, sql, -1, &q, NULL);

	if (rc == SQLITE_OK)
		rc = sqlite3_step(q);
	if (rc != SQLITE_ROW) {
		int code = store_fail(s, rc, sql, st);

		sqlite3_finalize(q);
		return code ? code : fh_fail(st, FH_CORRUPT, "%s: %s gave no answer", s->path, sql);
	}
	*out = sqlite3_column_int64(q, 0);
	sqlite3_finalize(q);
	return 0;
}

/* The whole file is read once: a broken page is better found now than in the middle of a job. */
static int store_check(struct store *s, struct fh_status *st)
{
	sqlite3_stmt *q = NULL;
	int rc = sqlite3_prepare_v2(s->db, "PRAGMA quick_check(1)", -1, &q, NULL), code = 0;

	if (rc == SQLITE_OK)
		rc = sqlite3_step(q);
	if (rc != SQLITE_ROW)
		code = store_fail(s, rc, "integrity check", st);
	else if (strcmp((const char *)sqlite3_column_text(q, 0), "ok"))
		code = fh_fail(st, FH_CORRUPT, "%s is damaged: %.300s; restore it from a backup or move it away", s->path,
			       (const char *)sqlite3_column_text(q, 0));
	sqlite3_finalize(q);
	return code;
}

/* Whose file is it, and of which schema? A file without tables is new. */
static int store_identify(struct store *s, int64_t *schema, struct fh_status *st)
{
	int64_t application, tables;
	int code;

	if ((code = store_number(s, "PRAGMA application_id", &application, st)) ||
	    (code = store_number(s, "PRAGMA user_version", schema, st)) ||
	    (code = store_number(s, "SELECT count(*) FROM sqlite_master", &tables, st)))
		return code;
	if (application != STORE_APPLICATION && (application || tables || *schema))
		return fh_fail(st, FH_CORRUPT, "%s is a database of another program (application id %lld)", s->path,
			       (long long)application);
	if (*schema > STORE_SCHEMA)
		return fh_fail(st, FH_VERSION, "%s has schema %lld, this fhd knows schemas up to %d: start the newer fhd, or move "
			       "the file away", s->path, (long long)*schema, STORE_SCHEMA);
	if (*schema < 0)
		return fh_fail(st, FH_CORRUPT, "%s has schema %lld", s->path, (long long)*schema);
	return 0;
}

static int store_migrate(struct store *s, int64_t schema, struct fh_status *st)
{
	char version[96];
	int code;

	for (; schema < STORE_SCHEMA; schema++) {
		snprintf(version, sizeof version, "PRAGMA application_id = %d; PRAGMA user_version = %lld; COMMIT",
			 STORE_APPLICATION, (long long)schema + 1);
		if ((code = store_exec(s, "BEGIN IMMEDIATE", "migration", st)) ||
		    (code = store_exec(s, migration[schema], "migration", st)) ||
		    (code = store_exec(s, version, "migration", st))) {
			sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
			return code;
		}
	}
	return 0;
}

static int store_prepare_file(struct store *s, struct fh_status *st)
{
	char limit[64];
	int64_t schema;
	int code, rc;

	rc = sqlite3_open_v2(s->path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, NULL);
	if (rc != SQLITE_OK)
		return store_fail(s, rc, "open", st);
	sqlite3_extended_result_codes(s->db, 1);
	sqlite3_busy_timeout(s->db, STORE_BUSY_MS);
	snprintf(limit, sizeof limit, "PRAGMA journal_size_limit = %d", STORE_WAL_BYTES);
	if ((code = store_identify(s, &schema, st)) || (code = store_check(s, st)) ||
	    (code = store_exec(s, "PRAGMA journal_mode = WAL", "write-ahead log", st)) ||
	    (code = store_exec(s, "PRAGMA synchronous = FULL", "synchronous", st)) ||
	    (code = store_exec(s, "PRAGMA foreign_keys = ON", "foreign keys", st)) ||
	    (code = store_exec(s, limit, "log size", st)))
		return code;
	s->fresh = !schema;
	return store_migrate(s, schema, st);
}

int store_open(const char *path, struct store **out, struct fh_status *st)
{
	struct store *s = calloc(1, sizeof *s);
	int code;

	if (!s || !(s->path = strdup(path))) {
		free(s);
		return fh_fail(st, FH_EXHAUSTED, "no memory for the store");
	}
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->work, NULL);
	pthread_cond_init(&s->answered, NULL);
	code = store_prepare_file(s, st);
	if (code) {
		store_free(s);
		return code;
	}
	*out = s;
	return 0;
}

int store_fresh(const struct store *s)
{
	return s->fresh;
}

void store_free(struct store *s)
{
	if (!s)
		return;
	assert(!s->running);
	for (int i = 0; i < STMT_COUNT; i++)
		sqlite3_finalize(s->stmt[i]);
	sqlite3_close(s->db);
	pthread_cond_destroy(&s->answered);
	pthread_cond_destroy(&s->work);
	pthread_mutex_destroy(&s->lock);
	free(s->path);
	free(s);
}

/* ---------------------------------------------------------------- start-up reads */

static const char *text(sqlite3_stmt *q, int i)
{
	const char *t = (const char *)sqlite3_column_text(q, i);

	return t ? t : "";
}

/* Runs `sql` and hands every row to `row`, which returns 0 to go on. */
static int store_each(struct store *s, const char *sql, int (*row)(void *arg, sqlite3_stmt *q), void *arg, struct fh_status *st)
{
	sqlite3_stmt *q = NULL;
	int rc, code = 0;

	assert(!s->running);
	rc = sqlite3_prepare_v2(s->db, sql, -1, &q, NULL);
	while (rc == SQLITE_OK || rc == SQLITE_ROW) {
		rc = sqlite3_step(q);
		if (rc == SQLITE_ROW && (code = row(arg, q)))
			break;
	}
	if (!code && rc != SQLITE_DONE)
		code = store_fail(s, rc, "read", st);
	sqlite3_finalize(q);
	return code;
}

struct job_reader { int (*row)(void *arg, const struct store_job *j); void *arg; };

static int read_job(void *arg, sqlite3_stmt *q)
{
	struct job_reader *r = arg;
	struct store_job j = {
		.id = (uint64_t)sqlite3_column_int64(q, 0), .name = text(q, 1), .state = sqlite3_column_int(q, 2),
		.reason = text(q, 3), .error_code = sqlite3_column_int(q, 4), .error_field = text(q, 5),
		.error_text = text(q, 6), .spec = sqlite3_column_blob(q, 7), .spec_bytes = (size_t)sqlite3_column_bytes(q, 7),
		.labels = sqlite3_column_blob(q, 8), .labels_bytes = (size_t)sqlite3_column_bytes(q, 8),
		.request_id = text(q, 9), .created_ns = (uint64_t)sqlite3_column_int64(q, 10),
		.started_ns = (uint64_t)sqlite3_column_int64(q, 11), .ended_ns = (uint64_t)sqlite3_column_int64(q, 12),
		.step = (uint64_t)sqlite3_column_int64(q, 13), .planned_steps = (uint64_t)sqlite3_column_int64(q, 14),
		.epoch = (uint64_t)sqlite3_column_int64(q, 15), .vector_step = (uint64_t)sqlite3_column_int64(q, 16),
		.interruptions = (uint32_t)sqlite3_column_int64(q, 17), .queue_order = sqlite3_column_int64(q, 18),
		.dataset_hash = text(q, 19), .last_checkpoint = text(q, 20), .resume_note = text(q, 21), .device = text(q, 22),
	};

	return r->row(r->arg, &j);
}

int store_load_jobs(struct store *s, int (*row)(void *arg, const struct store_job *j), void *arg, struct fh_status *st)
{
	struct job_reader r = {row, arg};

	return store_each(s, "SELECT id, name, state, reason, error_code, error_field, error_text, spec, labels, request_id,"
			  " created_ns, started_ns, ended_ns, step, planned_steps, epoch, vector_step, interruptions, queue_order,"
			  " dataset_hash, last_checkpoint, resume_note, device FROM jobs ORDER BY id", read_job, &r, st);
}

struct dataset_reader { int (*row)(void *arg, const struct store_dataset *d); void *arg; };

static int read_dataset(void *arg, sqlite3_stmt *q)
{
	struct dataset_reader *r = arg;
	struct store_dataset d = {
		.name = text(q, 0), .hash = text(q, 1), .created_ns = (uint64_t)sqlite3_column_int64(q, 2),
		.info = sqlite3_column_blob(q, 3), .info_bytes = (size_t)sqlite3_column_bytes(q, 3),
	};

	return r->row(r->arg, &d);
}

int store_load_datasets(struct store *s, int (*row)(void *arg, const struct store_dataset *d), void *arg, struct fh_status *st)
{
	struct dataset_reader r = {row, arg};

	return store_each(s, "SELECT name, hash, created_ns, info FROM datasets ORDER BY name", read_dataset, &r, st);
}

struct checkpoint_reader { int (*row)(void *arg, const struct store_checkpoint *c); void *arg; };

static int read_checkpoint(void *arg, sqlite3_stmt *q)
{
	struct checkpoint_reader *r = arg;
	struct store_checkpoint c = {
		.id = text(q, 0), .job = (uint64_t)sqlite3_column_int64(q, 1), .step = (uint64_t)sqlite3_column_int64(q, 2),
		.created_ns = (uint64_t)sqlite3_column_int64(q, 3), .bytes = (uint64_t)sqlite3_column_int64(q, 4),
		.reason = text(q, 5), .sha256 = text(q, 6), .pinned = sqlite3_column_int(q, 7),
	};

	return r->row(r->arg, &c);
}

int store_load_checkpoints(struct store *s, int (*row)(void *arg, const struct store_checkpoint *c), void *arg,
			   struct fh_status *st)
{
	struct checkpoint_reader r = {row, arg};

	return store_each(s, "SELECT id, job, step, created_ns, bytes, reason, sha256, pinned FROM checkpoints"
			  " ORDER BY job, created_ns, step, id", read_checkpoint, &r, st);
}

struct request_reader { int (*row)(void *arg, const struct store_request *q); void *arg; };

static int read_request(void *arg, sqlite3_stmt *q)
{
	struct request_reader *r = arg;
	struct store_request x = {
		.request_id = text(q, 0), .call = text(q, 1), .job = (uint64_t)sqlite3_column_int64(q, 2),
		.time_ns = (uint64_t)sqlite3_column_int64(q, 3), .reply = sqlite3_column_blob(q, 4),
		.reply_bytes = (size_t)sqlite3_column_bytes(q, 4),
	};

	return r->row(r->arg, &x);
}

int store_load_requests(struct store *s, int (*row)(void *arg, const struct store_request *r), void *arg, struct fh_status *st)
{
	struct request_reader r = {row, arg};

	return store_each(s, "SELECT request_id, call, job, time_ns, reply FROM requests ORDER BY n", read_request, &r, st);
}

struct series_reader { int (*row)(void *arg, const struct store_series *q); void *arg; };

static int read_series(void *arg, sqlite3_stmt *q)
{
	struct series_reader *r = arg;
	struct store_series x = {
		.job = (uint64_t)sqlite3_column_int64(q, 0), .first_seq = (uint64_t)sqlite3_column_int64(q, 1),
		.last_seq = (uint64_t)sqlite3_column_int64(q, 2),
	};

	x.report = (struct store_sample){x.job, 0, 1, sqlite3_column_blob(q, 3), (size_t)sqlite3_column_bytes(q, 3)};
	x.validation = (struct store_sample){x.job, 0, 2, sqlite3_column_blob(q, 4), (size_t)sqlite3_column_bytes(q, 4)};
	x.aside = (struct store_sample){x.job, 0, 4, sqlite3_column_blob(q, 5), (size_t)sqlite3_column_bytes(q, 5)};
	return r->row(r->arg, &x);
}

int store_load_series(struct store *s, int (*row)(void *arg, const struct store_series *r), void *arg, struct fh_status *st)
{
	struct series_reader r = {row, arg};

	/* From the jobs' side, so that every look-up is a step along the primary key and not a pass over all samples.
	 * The newest report and validation are near the end: the thinned part is never reached. Other
	 * evaluations are made at the end of a job alone, and many a job has none: one looks among the newest samples. */
	return store_each(s, "SELECT id, first, last,"
			  " (SELECT packed FROM samples WHERE job = id AND kind = 1 ORDER BY seq DESC LIMIT 1),"
			  " (SELECT packed FROM samples WHERE job = id AND kind = 2 ORDER BY seq DESC LIMIT 1),"
			  " (SELECT packed FROM samples WHERE job = id AND kind = 4 AND seq > last - 8192 ORDER BY seq DESC LIMIT 1)"
			  " FROM (SELECT id, (SELECT min(seq) FROM samples WHERE job = id) AS first,"
			  "  (SELECT max(seq) FROM samples WHERE job = id) AS last FROM jobs)"
			  " WHERE last IS NOT NULL ORDER BY id", read_series, &r, st);
}
