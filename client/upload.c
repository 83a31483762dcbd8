/* Imported bars to the daemon (upload.h).
 *
 * The arrays of the import are sent as they lie: a chunk's message borrows a slice of each. One thread.
 * Invariant: after a refusal or a signal the daemon is told to forget the upload, so Ctrl-C leaves nothing behind; after a lost
 * connection it is not, and the same bars go on where they are, in this run or the next. */
#include <stdlib.h>
#include <string.h>

#include "client/output.h"
#include "client/upload.h"
#include "client/wait.h"
#include "gpu/hash.h"

#define PATIENCE_NS INT64_C(60000000000) /* without a step forward */
#define RETRY_NS 500000000
#define COMMIT_TIMEOUT_MS 600000 /* features of 50 million bars on a busy machine */

int bars_hash(const struct market_bars *b, const int64_t *roll, int64_t rolls, char hex[65], struct fh_status *st)
{
	const void *const array[] = {b->ts, b->open, b->high, b->low, b->close, b->volume};
	struct hash *h;
	int rc = hash_new(&h, st);

	if (rc)
		return rc;
	for (size_t i = 0; i < sizeof array / sizeof *array; i++)
		hash_add(h, array[i], (size_t)b->bars * 8); /* little-endian machines only, as everywhere here */
	if (rolls)
		hash_add(h, roll, (size_t)rolls * 8);
	hash_finish(h, hex);
	return 0;
}

/* What the bars are registered as; base NULL: not an append. */
struct set { const char *name, *base, *source; double tick; };

/* The name of the first bar's contract and of each one after it; none at all without names. */
static int contract_names(const struct bars *b, const int64_t *roll, int64_t rolls, char ***out, size_t *n, struct fh_status *st)
{
	*n = 0;
	if (!b->names)
		return 0;
	*out = malloc(((size_t)rolls + 1) * sizeof **out);
	if (!*out)
		return fh_fail(st, FH_EXHAUSTED, "no memory for %lld names", (long long)rolls + 1);
	(*out)[(*n)++] = (char *)bars_contract_name(b, 0);
	for (int64_t i = 0; i < rolls; i++)
		if (roll[i])
			(*out)[(*n)++] = (char *)bars_contract_name(b, roll[i]);
	return 0;
}

static int begin(struct ctx *c, const struct import *m, const struct set *set, struct fh_answer *out, struct fh_status *st)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__BeginUploadRequest b = FH__V1__BEGIN_UPLOAD_REQUEST__INIT;
	struct market_bars bars = bars_view(&m->bars);
	char hash[65];
	char *note[IMPORT_NOTES_MAX], **contract = NULL;
	int64_t *roll = NULL, rolls = 0;
	int rc = bars_rolls(&m->bars, &roll, &rolls, st);

	if (!rc)
		rc = contract_names(&m->bars, roll, rolls, &contract, &b.n_contract, st);

	if (!rc)
		rc = bars_hash(&bars, roll, rolls, hash, st);
	if (rc) {
		free(roll);
		free(contract);
		return rc;
	}
	b.contract = contract;
	b.n_roll = (size_t)rolls;
	b.roll = roll;
	for (int i = 0; i < m->notes; i++)
		note[i] = (char *)m->note[i];
	b.name = (char *)set->name;
	b.has_bars = 1;
	b.bars = bars.bars;
	b.hash = hash;
	b.source = (char *)set->source;
	b.has_append = set->base != NULL;
	b.append = set->base != NULL;
	b.base_hash = (char *)set->base;
	b.has_tick = set->tick > 0;
	b.tick = set->tick;
	b.has_has_volume = 1;
	b.has_volume = m->has_volume;
	b.has_duplicates = 1;
	b.duplicates = m->bars.repeats + m->bars.conflicts;
	b.has_dropped = 1;
	b.dropped = m->dropped;
	b.has_repaired = b.has_moved = 1;
	b.repaired = m->bars.repaired;
	b.moved = m->bars.moved;
	b.n_note = (size_t)m->notes;
	b.note = note;
	req.call_case = FH__V1__REQUEST__CALL_BEGIN_UPLOAD;
	req.begin_upload = &b;
	rc = ctx_call(c, &req, 0, out, st);
	free(roll);
	free(contract);
	return rc;
}

static int send_chunk(struct ctx *c, const char *upload, const struct market_bars *b, int64_t first, int64_t n, struct fh_status *st)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__UploadChunkRequest u = FH__V1__UPLOAD_CHUNK_REQUEST__INIT;
	struct fh_answer a;

	u.upload = (char *)upload;
	u.has_first_bar = 1;
	u.first_bar = first;
	u.n_ts = u.n_open = u.n_high = u.n_low = u.n_close = u.n_volume = (size_t)n;
	u.ts = (int64_t *)b->ts + first;
	u.open = (double *)b->open + first;
	u.high = (double *)b->high + first;
	u.low = (double *)b->low + first;
	u.close = (double *)b->close + first;
	u.volume = (double *)b->volume + first;
	req.call_case = FH__V1__REQUEST__CALL_UPLOAD_CHUNK;
	req.upload_chunk = &u;
	int rc = ctx_call(c, &req, 0, &a, st);
	if (!rc)
		fh_answer_release(&a);
	return rc;
}

static int commit(struct ctx *c, const char *upload, struct fh_answer *out, struct fh_status *st)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__CommitUploadRequest u = FH__V1__COMMIT_UPLOAD_REQUEST__INIT;

	u.upload = (char *)upload;
	req.call_case = FH__V1__REQUEST__CALL_COMMIT_UPLOAD;
	req.commit_upload = &u;
	return ctx_call(c, &req, c->timeout_given ? 0 : COMMIT_TIMEOUT_MS, out, st);
}

/* Best effort: an upload that nobody feeds is thrown away by the daemon in the end. */
static void abandon(struct ctx *c, const char *upload)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__AbortUploadRequest u = FH__V1__ABORT_UPLOAD_REQUEST__INIT;
	struct fh_answer a;
	struct fh_status ignored = FH_STATUS_INIT;
	int seen = signal_seen;

	signal_seen = 0; /* this last call is allowed to finish */
	u.upload = (char *)upload;
	req.call_case = FH__V1__REQUEST__CALL_ABORT_UPLOAD;
	req.abort_upload = &u;
	if (!ctx_call(c, &req, 0, &a, &ignored))
		fh_answer_release(&a);
	signal_seen = seen;
}

/* Where an upload stands: it survives its connection. */
struct effort { int begun, committing; int64_t next, end_ns; };

/* --timeout is the patience as well. */
static int64_t patience_end(const struct ctx *c)
{
	return wait_now_ns() + (c->timeout_given ? c->timeout_ms * 1000000 : PATIENCE_NS);
}

static int send_all(struct ctx *c, const char *upload, const struct market_bars *b, struct effort *e, struct progress *bar,
		    struct fh_status *st)
{
	while (e->next < b->bars) {
		int64_t next = e->next, n = b->bars - next < UPLOAD_CHUNK_BARS ? b->bars - next : UPLOAD_CHUNK_BARS;
		if (signal_seen)
			return fh_fail(st, FH_INTERRUPTED, "stopped after sending %lld of %lld bars", (long long)next, (long long)b->bars);
		progress_update(bar, (double)next / (double)b->bars, 0, "sending %lld of %lld bars", (long long)next, (long long)b->bars);
		int rc = send_chunk(c, upload, b, next, n, st);
		if (rc)
			return rc;
		e->next += n;
		e->end_ns = patience_end(c);
	}
	progress_update(bar, 1, bar->tty, "computing features of %lld bars", (long long)b->bars);
	return 0;
}

/* The answer did not come, or the daemon has lost the upload (it was restarted, or somebody else gave up the same one): the same
 * bars can be begun again, and go on where they are. */
static int broken(const struct fh_status *st)
{
	return st->code == FH_UNKNOWN || st->code == FH_UNAVAILABLE || st->code == FH_DEADLINE ||
	       (st->code == FH_NOT_FOUND && !strcmp(st->field, "upload"));
}

/* Somebody else's upload of the same bars is being registered: soon they are there. */
static int registering(const struct fh_status *st) { return st->code == FH_UNAVAILABLE && !strcmp(st->field, "name"); }

static int try_upload(struct ctx *c, const struct import *m, const struct set *set, struct effort *e, struct progress *bar,
		      struct fh_answer *out, struct fh_status *st)
{
	struct market_bars b = bars_view(&m->bars);
	struct fh_answer a;
	int rc = begin(c, m, set, &a, st);

	if (rc)
		return rc;
	e->begun = 1;
	if (a.reply->upload->dataset) { /* the same bars are registered under this name */
		*out = a;
		return 0;
	}
	const char *id = a.reply->upload->upload;
	e->next = a.reply->upload->next_bar;
	e->committing = 0;
	e->end_ns = patience_end(c);
	rc = send_all(c, id, &b, e, bar, st);
	if (!rc) {
		e->committing = 1;
		rc = commit(c, id, out, st);
	}
	if (rc && (signal_seen || !broken(st)))
		abandon(c, id);
	fh_answer_release(&a);
	return rc;
}

/* Goes on after a lost connection or a restarted daemon, until nothing has moved for PATIENCE_NS. */
static int upload(struct ctx *c, const struct import *m, const struct set *set, struct progress *bar, struct fh_answer *out, struct fh_status *st)
{
	struct effort e = {.end_ns = patience_end(c)};
	int rc;

	for (;;) {
		*st = (struct fh_status)FH_STATUS_INIT;
		rc = try_upload(c, m, set, &e, bar, out, st);
		if (!rc || signal_seen || !(e.begun || registering(st)) || !broken(st) || wait_now_ns() > e.end_ns)
			break;
		if (registering(st) || (e.committing && fh_client_answered(c->client)))
			e.end_ns = patience_end(c); /* it is registering what it has */
		progress_update(bar, (double)e.next / (double)m->bars.count, bar->tty, "%.80s; trying again", st->text);
		wait_fds(NULL, 0, wait_now_ns() + RETRY_NS, &signal_seen);
	}
	if (rc && signal_seen)
		return fh_fail(st, FH_INTERRUPTED, "stopped after sending %lld of %lld bars", (long long)e.next, (long long)m->bars.count);
	if (rc && e.begun && !e.committing && broken(st))
		return fh_fail(st, FH_UNAVAILABLE, "the daemon was lost after %lld of %lld bars; the same command goes on there",
			       (long long)e.next, (long long)m->bars.count);
	return rc;
}

int upload_bars(struct ctx *c, const struct import *m, const char *name, const char *source, double tick,
		struct progress *bar, struct fh_answer *out, struct fh_status *st)
{
	return upload(c, m, &(struct set){name, NULL, source, tick}, bar, out, st);
}

int upload_append(struct ctx *c, const struct import *m, const char *name, const char *base, const char *source,
		  struct progress *bar, struct fh_answer *out, struct fh_status *st)
{
	return upload(c, m, &(struct set){name, base, source, 0}, bar, out, st);
}
