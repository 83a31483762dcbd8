/* Promises of the data sets: what is registered was checked bar by bar, is whole on the disk and is found after a restart; other
 * bars never take a name; hostile uploads change nothing; memory is bounded; a lost or damaged file is reported, not fatal. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "gpu/safetensors.h"
#include "gpu/synth.h"
#include "tests/unit/datasets_rig.h"

static unsigned users;
static uint64_t cache_bytes;
static uint32_t upload_idle_ms;

static unsigned jobs_using(void *arg, const char *name)
{
	return users;
}

static void open_all(void)
{
	sets_open((struct datasets_config){.cache_bytes = cache_bytes, .upload_idle_ms = upload_idle_ms, .jobs_using = jobs_using});
}

static int setup(void **state)
{
	users = 0;
	cache_bytes = upload_idle_ms = 0;
	sets_folder("dataset");
	open_all();
	return 0;
}

static int teardown(void **state)
{
	close_all();
	return folder_remove(dir);
}

static int exists(const char *file)
{
	char p[256];
	struct stat s;

	snprintf(p, sizeof p, "%s/%s", sets, file);
	return stat(p, &s) == 0;
}

static void touch(const char *file, const char *text)
{
	char p[256];
	FILE *f;

	snprintf(p, sizeof p, "%s/%s", sets, file);
	f = fopen(p, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

/* ---- waiting for one answer */

struct answer { int done, code, existed; const struct dataset *d; struct market *m; struct fh_status st; };
static struct answer got;

static void on_registered(void *arg, int code, const struct dataset *d, int existed, const struct fh_status *st)
{
	got = (struct answer){.done = 1, .code = code, .existed = existed, .d = d};
	if (code)
		got.st = *st;
}

static void on_loaded(void *arg, int code, struct market *m, const struct fh_status *st)
{
	struct answer *a = arg;

	*a = (struct answer){.done = 1, .code = code, .m = m};
	if (code)
		a->st = *st;
}

static int synth(const char *name, int64_t bars, uint64_t seed)
{
	struct dataset_origin o = {.name = name, .source = "synth", .has_volume = 1};
	struct synth s;

	synth_init(&s, SYNTH_MOMENTUM, bars, seed);
	memset(&got, 0, sizeof got);
	datasets_synth(ds, &o, &s, on_registered, NULL);
	loop_await(&loop, &got.done, 1);
	return got.code;
}

static int drop(const char *name)
{
	memset(&got, 0, sizeof got);
	datasets_drop(ds, name, on_registered, NULL);
	loop_await(&loop, &got.done, 1);
	return got.code;
}

static struct market *acquire(const char *name, double tick, int code)
{
	struct answer a = {0};

	datasets_acquire(ds, name, NULL, tick, on_loaded, &a);
	assert_int_equal(a.done, 0); /* always later */
	loop_await(&loop, &a.done, 1);
	if (a.code != code)
		fail_msg("code %d: %s", a.code, a.st.text);
	got = a;
	return a.m;
}

/* ---- bars */

#define N 400
static int64_t ts[N];
static double o[N], h[N], l[N], c[N], v[N];

static struct market_bars bars(void)
{
	for (int i = 0; i < N; i++) {
		ts[i] = 1700000000000000000 + i * 60000000000 + (i >= 100 ? 3600000000000 : 0) + (i >= 200 ? 3600000000000 : 0) +
			(i >= 300 ? 7200000000000 : 0);
		o[i] = 100 + sin(i);
		c[i] = 100 + sin(i + 1);
		h[i] = fmax(o[i], c[i]) + 0.5;
		l[i] = fmin(o[i], c[i]) - 0.5;
		v[i] = 10 + i;
	}
	return (struct market_bars){N, ts, o, h, l, c, v};
}

static struct market_bars part(const struct market_bars *b, int64_t first, int64_t n)
{
	return (struct market_bars){n, b->ts + first, b->open + first, b->high + first, b->low + first, b->close + first,
				    b->volume ? b->volume + first : NULL};
}

static int begin(const char *name, const char *hash, int64_t n, char *id, struct fh_status *st)
{
	struct dataset_origin og = {.name = name, .source = "file.csv", .hash = hash, .has_volume = 1, .duplicates = 3};
	const struct dataset *existed;

	return upload_begin(ds, &og, n, id, &existed, st);
}

static int commit(const char *id)
{
	memset(&got, 0, sizeof got);
	upload_commit(ds, id, on_registered, NULL);
	loop_await(&loop, &got.done, 1);
	return got.code;
}

static int upload_all(const char *name)
{
	struct market_bars b = bars(), p = part(&b, 0, 150), q = part(&b, 150, N - 150);
	char id[UPLOAD_ID_MAX];
	int64_t next;

	assert_int_equal(begin(name, NULL, N, id, NULL), 0);
	assert_int_equal(upload_chunk(ds, id, 0, &p, &next, NULL), 0);
	assert_int_equal(next, 150);
	assert_int_equal(upload_chunk(ds, id, 150, &q, &next, NULL), 0);
	assert_int_equal(next, N);
	return commit(id);
}

/* ---------------------------------------------------------------- tests */

static void test_upload_is_registered_and_survives(void **state)
{
	const struct dataset *d;
	const Fh__V1__Dataset *info;
	struct datasets_stats stats;
	struct market *m;
	char hash[65];

	assert_int_equal(upload_all("eur"), 0);
	d = datasets_find(ds, "eur");
	assert_non_null(d);
	snprintf(hash, sizeof hash, "%s", dataset_hash(d));
	assert_int_equal(strlen(hash), 64);
	close_all();
	open_all();
	d = datasets_find(ds, "eur");
	assert_non_null(d);
	assert_string_equal(dataset_hash(d), hash);
	assert_int_equal(dataset_bars(d), N);
	assert_null(dataset_broken(d));
	info = dataset_info(d);
	assert_int_equal(info->first_ts, ts[0]);
	assert_int_equal(info->last_ts, ts[N - 1]);
	assert_string_equal(info->source, "file.csv");
	assert_int_equal(info->duplicates, 3);
	assert_int_equal(info->n_spark, DATASET_SPARK);
	assert_true(info->spark[0] == (float)c[0] && info->spark[63] == (float)c[N - 1]);
	assert_int_equal(info->n_gap, 2); /* by count: 1 h 1 min twice, 2 h 1 min once; a minute is no gap */
	assert_int_equal(info->gap[0]->length_ns, 3660000000000);
	assert_int_equal(info->gap[0]->count, 2);
	assert_int_equal(info->gap[1]->length_ns, 7260000000000);
	assert_int_equal(info->gap[1]->count, 1);
	assert_true(fabs(info->bars_per_year - (N - 1) / (double)(ts[N - 1] - ts[0]) * 365.25 * 86400e9) < 1e-6);
	m = acquire("eur", 0.01, 0);
	assert_int_equal(m->bars, N);
	assert_memory_equal(m->close, c, sizeof c);
	assert_memory_equal(m->volume, v, sizeof v);
	datasets_stats(ds, &stats);
	assert_int_equal(stats.resident, 1);
	assert_true(stats.resident_bytes >= N * 200);
	market_unref(m);
}

static void test_same_bars_existed_other_bars_conflict(void **state)
{
	char id[UPLOAD_ID_MAX] = "", hash[65];
	struct dataset_origin og = {.name = "eur"};
	const struct dataset *existed = NULL;
	struct fh_status st = FH_STATUS_INIT;

	assert_int_equal(upload_all("eur"), 0);
	assert_int_equal(got.existed, 0);
	assert_int_equal(upload_all("eur"), 0);
	assert_int_equal(got.existed, 1);
	snprintf(hash, sizeof hash, "%s", dataset_hash(datasets_find(ds, "eur")));
	og.hash = hash;
	assert_int_equal(upload_begin(ds, &og, N, id, &existed, NULL), 0); /* known by its hash: nothing to send */
	assert_ptr_equal(existed, datasets_find(ds, "eur"));
	assert_string_equal(id, "");
	hash[0] = hash[0] == 'a' ? 'b' : 'a';
	assert_int_equal(upload_begin(ds, &og, N, id, &existed, &st), FH_CONFLICT);
	assert_int_equal(synth("eur", 500, 1), FH_CONFLICT);
	assert_string_equal(got.st.field, "name");
	assert_int_equal(synth("mom", 500, 1), 0);
	assert_int_equal(synth("mom", 500, 1), 0);
	assert_int_equal(got.existed, 1);
	assert_int_equal(synth("mom", 500, 2), FH_CONFLICT);
}

/* One wrong number in a good chunk, by column; nothing is taken and nothing is registered. */
static void test_bad_bars_are_refused_by_place(void **state)
{
	static const struct { const char *field; double *column; double value; } bad[] = {
		{"open[17]", o, NAN}, {"high[17]", h, INFINITY}, {"low[17]", l, -INFINITY}, {"close[17]", c, 1e300},
		{"volume[17]", v, -1}, {"volume[17]", v, NAN}, {"high[17]", h, 50}, {"low[17]", l, 200}, {"high[17]", c, 150}, {"high[17]", o, 150},
		{"low[17]", o, 50},
	};
	static const int64_t times[] = {1700000000000000000, 0, INT64_MAX, INT64_MIN};
	struct fh_status st;
	struct market_bars b;
	char id[UPLOAD_ID_MAX];
	int64_t next;

	b = bars();
	assert_int_equal(begin("eur", NULL, N, id, NULL), 0);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		b = bars();
		bad[i].column[17] = bad[i].value;
		st = (struct fh_status)FH_STATUS_INIT;
		assert_int_equal(upload_chunk(ds, id, 0, &b, &next, &st), FH_INVALID);
		assert_string_equal(st.field, bad[i].field);
	}
	for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
		b = bars();
		ts[17] = times[i];
		st = (struct fh_status)FH_STATUS_INIT;
		assert_int_equal(upload_chunk(ds, id, 0, &b, &next, &st), FH_INVALID);
		assert_memory_equal(st.field, "ts[1", 4);
	}
	b = bars();
	{ /* across chunks: the second does not go on in time */
		struct market_bars p = part(&b, 0, 100), q = part(&b, 100, 100);

		assert_int_equal(upload_chunk(ds, id, 0, &p, &next, NULL), 0);
		ts[100] = ts[99];
		st = (struct fh_status)FH_STATUS_INIT;
		assert_int_equal(upload_chunk(ds, id, 100, &q, &next, &st), FH_INVALID);
		assert_string_equal(st.field, "ts[100]");
	}
	assert_int_equal(commit(id), FH_CONFLICT); /* bars are missing */
	assert_null(datasets_find(ds, "eur"));
	assert_int_equal(exists("eur.safetensors"), 0);
	assert_int_equal(upload_abort(ds, id, NULL), 0);
	assert_int_equal(upload_abort(ds, id, &st), FH_NOT_FOUND);
}

static void test_chunks_come_in_order_or_again(void **state)
{
	struct market_bars b = bars(), p = part(&b, 0, 200), q = part(&b, 200, 200), r = part(&b, 100, 200);
	struct fh_status st = FH_STATUS_INIT;
	char id[UPLOAD_ID_MAX];
	int64_t next = 0;

	assert_int_equal(begin("eur", NULL, N, id, NULL), 0);
	assert_int_equal(upload_chunk(ds, "u1-1", 0, &p, &next, &st), FH_NOT_FOUND);
	assert_int_equal(upload_chunk(ds, NULL, 0, &p, &next, &st), FH_NOT_FOUND);
	assert_int_equal(upload_chunk(ds, id, 200, &q, &next, &st), FH_CONFLICT);  /* a hole */
	assert_int_equal(upload_chunk(ds, id, -1, &p, &next, &st), FH_CONFLICT);
	assert_int_equal(upload_chunk(ds, id, INT64_MAX, &p, &next, &st), FH_CONFLICT);
	assert_int_equal(upload_chunk(ds, id, 0, &p, &next, &st), 0);
	assert_int_equal(upload_chunk(ds, id, 0, &p, &next, &st), 0);              /* the answer was lost */
	assert_int_equal(next, 200);
	assert_int_equal(upload_chunk(ds, id, 100, &r, &next, &st), FH_CONFLICT);  /* half old, half new */
	c[3] += 0.01;
	assert_int_equal(upload_chunk(ds, id, 0, &p, &next, &st), FH_CONFLICT);    /* other bars this time */
	c[3] -= 0.01;
	q.bars = 201;
	assert_int_equal(upload_chunk(ds, id, 200, &q, &next, &st), FH_INVALID);   /* more than announced */
	q.bars = 0;
	assert_int_equal(upload_chunk(ds, id, 200, &q, &next, &st), FH_INVALID);
	q.bars = UPLOAD_CHUNK_BARS_MAX + 1;
	assert_int_equal(upload_chunk(ds, id, 200, &q, &next, &st), FH_INVALID);
	q.bars = 200;
	assert_int_equal(upload_chunk(ds, id, 200, &q, &next, &st), 0);
	assert_int_equal(commit(id), 0);
	assert_int_equal(commit(id), FH_NOT_FOUND);
}

static void test_upload_bounds(void **state)
{
	struct fh_status st = FH_STATUS_INIT;
	struct datasets_stats stats;
	char id[UPLOADS_MAX][UPLOAD_ID_MAX], more[UPLOAD_ID_MAX], *text = malloc(4096);
	const char *notes[DATASET_NOTES_MAX + 1];
	const struct dataset *existed;
	struct dataset_origin og = {.name = "x", .note = notes};

	assert_int_equal(begin("a", NULL, 1, more, &st), FH_INVALID);
	assert_int_equal(begin("a", NULL, 0, more, &st), FH_INVALID);
	assert_int_equal(begin("a", NULL, -5, more, &st), FH_INVALID);
	assert_int_equal(begin("a", NULL, INT64_MAX, more, &st), FH_INVALID);
	assert_int_equal(begin("a", NULL, DATASET_BARS_MAX + 1, more, &st), FH_INVALID);
	for (int i = 0; i < UPLOADS_MAX; i++)
		assert_int_equal(begin("a", NULL, 1000, id[i], &st), 0);
	assert_int_equal(begin("a", NULL, 1000, more, &st), FH_EXHAUSTED);
	datasets_stats(ds, &stats);
	assert_int_equal(stats.uploads, UPLOADS_MAX);
	assert_int_equal(stats.upload_bytes, UPLOADS_MAX * 48000);
	for (int i = 0; i < UPLOADS_MAX; i++)
		assert_int_equal(upload_abort(ds, id[i], NULL), 0);
	assert_int_equal(begin("a", NULL, DATASET_BARS_MAX, id[0], &st), 0);
	assert_int_equal(begin("a", NULL, DATASET_BARS_MAX, id[1], &st), 0);
	assert_int_equal(begin("a", NULL, DATASET_BARS_MAX, more, &st), FH_EXHAUSTED); /* bytes together */
	upload_abort(ds, id[0], NULL);
	upload_abort(ds, id[1], NULL);
	datasets_stats(ds, &stats);
	assert_int_equal(stats.upload_bytes, 0);
	memset(text, 'x', 4095);
	text[4095] = 0;
	for (int i = 0; i <= DATASET_NOTES_MAX; i++)
		notes[i] = "a note";
	og.notes = DATASET_NOTES_MAX + 1;
	assert_int_equal(upload_begin(ds, &og, 100, more, &existed, &st), FH_INVALID);
	og.notes = 1;
	notes[0] = text;
	assert_int_equal(upload_begin(ds, &og, 100, more, &existed, &st), FH_INVALID);
	og.notes = 0;
	og.source = text;
	assert_int_equal(upload_begin(ds, &og, 100, more, &existed, &st), FH_INVALID);
	og.source = NULL;
	og.tick = NAN;
	assert_int_equal(upload_begin(ds, &og, 100, more, &existed, &st), FH_INVALID);
	og.tick = -1;
	assert_int_equal(upload_begin(ds, &og, 100, more, &existed, &st), FH_INVALID);
	free(text);
}

static void test_idle_upload_is_thrown_away(void **state)
{
	struct market_bars b = bars(), p = part(&b, 0, 10);
	struct datasets_stats stats;
	char id[UPLOAD_ID_MAX];
	int64_t next;

	close_all();
	upload_idle_ms = 30;
	open_all();
	assert_int_equal(begin("eur", NULL, N, id, NULL), 0);
	assert_int_equal(upload_chunk(ds, id, 0, &p, &next, NULL), 0);
	for (datasets_stats(ds, &stats); stats.uploads; datasets_stats(ds, &stats))
		uv_run(&loop, UV_RUN_ONCE); /* until its timer */
	assert_int_equal(stats.upload_bytes, 0);
	assert_int_equal(upload_chunk(ds, id, 10, &p, &next, NULL), FH_NOT_FOUND);
}

/* A client whose connection broke begins the same upload again; another set of bars, name, tick or size is another upload. */
static void test_the_same_upload_is_found_again(void **state)
{
	static const char hash[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
	struct market_bars b = bars(), p = part(&b, 0, 150);
	const struct dataset *existed;
	struct datasets_stats stats;
	char id[UPLOAD_ID_MAX], again[UPLOAD_ID_MAX];
	struct dataset_origin og = {.name = "eur", .hash = hash, .tick = 0.5};
	int64_t next;

	assert_int_equal(begin("eur", hash, N, id, NULL), 0);
	assert_int_equal(upload_chunk(ds, id, 0, &p, &next, NULL), 0);
	assert_int_equal(begin("eur", hash, N, again, NULL), 0);
	assert_string_equal(again, id);
	assert_int_equal(upload_next(ds, again), 150);
	assert_int_equal(begin("usd", hash, N, again, NULL), 0);
	assert_string_not_equal(again, id);
	assert_int_equal(upload_next(ds, again), 0);
	assert_int_equal(begin("eur", hash, N - 1, again, NULL), 0);
	assert_string_not_equal(again, id);
	assert_int_equal(upload_begin(ds, &og, N, again, &existed, NULL), 0);
	assert_string_not_equal(again, id);
	assert_int_equal(begin("eur", NULL, N, again, NULL), 0); /* without a hash nothing is known to be the same */
	assert_string_not_equal(again, id);
	datasets_stats(ds, &stats);
	assert_int_equal(stats.uploads, 5);
	assert_int_equal(upload_next(ds, "u1-1"), 0);
}

/* Given up between commit and row: no set, no file; begun again meanwhile: said to be under way. */
static void test_an_upload_is_given_up_while_it_is_registered(void **state)
{
	struct market_bars b = bars();
	struct datasets_stats stats;
	struct fh_status st = FH_STATUS_INIT;
	char id[UPLOAD_ID_MAX], again[UPLOAD_ID_MAX], hash[65];
	int64_t next;

	assert_int_equal(market_hash(&b, NULL, 0, hash, NULL), 0);
	assert_int_equal(begin("eur", hash, N, id, NULL), 0);
	assert_int_equal(upload_chunk(ds, id, 0, &b, &next, NULL), 0);
	got.done = 0;
	upload_commit(ds, id, on_registered, NULL);
	assert_int_equal(begin("eur", hash, N, again, &st), FH_UNAVAILABLE);
	assert_string_equal(st.field, "name");
	assert_int_equal(upload_abort(ds, id, NULL), 0);
	loop_await(&loop, &got.done, 1);
	assert_int_equal(got.code, FH_INTERRUPTED);
	while (datasets_busy(ds))
		uv_run(&loop, UV_RUN_ONCE);
	assert_null(datasets_find(ds, "eur"));
	assert_int_equal(exists("eur.safetensors"), 0);
	datasets_stats(ds, &stats);
	assert_int_equal(stats.upload_bytes, 0);
	assert_int_equal(upload_abort(ds, id, NULL), FH_NOT_FOUND);
	assert_int_equal(upload_all("eur"), 0);
	assert_int_equal(upload_abort(ds, id, NULL), FH_NOT_FOUND);
	assert_non_null(datasets_find(ds, "eur"));
}

static void test_wrong_hash_is_refused(void **state)
{
	struct market_bars b = bars();
	char id[UPLOAD_ID_MAX];
	int64_t next;

	assert_int_equal(begin("eur", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", N, id, NULL), 0);
	assert_int_equal(upload_chunk(ds, id, 0, &b, &next, NULL), 0);
	assert_int_equal(commit(id), FH_CORRUPT);
	assert_null(datasets_find(ds, "eur"));
	assert_int_equal(exists("eur.safetensors"), 0);
}

static void test_drop(void **state)
{
	assert_int_equal(synth("mom", 500, 1), 0);
	assert_int_equal(drop("mon"), FH_NOT_FOUND);
	assert_non_null(strstr(got.st.text, "did you mean \"mom\""));
	users = 2;
	assert_int_equal(drop("mom"), FH_CONFLICT);
	assert_non_null(strstr(got.st.text, "2 live jobs"));
	assert_non_null(datasets_find(ds, "mom"));
	users = 0;
	assert_int_equal(drop("mom"), 0);
	assert_null(datasets_find(ds, "mom"));
	assert_int_equal(exists("mom.safetensors"), 0);
	assert_int_equal(synth("mom", 500, 2), 0); /* the name is free */
	close_all();
	open_all();
	assert_non_null(datasets_find(ds, "mom"));
	assert_int_equal(exists("mom.safetensors"), 1);
}

static void test_names_in_work_are_taken(void **state)
{
	struct dataset_origin og = {.name = "mom"};
	struct synth s;

	synth_init(&s, SYNTH_WALK, 20000, 1);
	memset(&got, 0, sizeof got);
	datasets_synth(ds, &og, &s, on_registered, NULL);
	assert_int_equal(got.done, 0);
	datasets_synth(ds, &og, &s, on_registered, NULL);
	assert_int_equal(got.done, 1);
	assert_int_equal(got.code, FH_CONFLICT);
	got.done = 0;
	loop_await(&loop, &got.done, 1);
	assert_int_equal(got.code, 0);
}

/* Many at once: each is answered, no more wait than may, their bytes count until they end, and a stop answers the rest. */
static int ended, refused;
static void on_one_of_many(void *arg, int code, const struct dataset *d, int existed, const struct fh_status *st)
{
	ended++;
	refused += code != 0;
}

static void test_registrations_are_bounded(void **state)
{
	struct dataset_origin og = {0};
	struct datasets_stats stats;
	struct synth s;
	char name[16];

	ended = refused = 0;
	synth_init(&s, SYNTH_WALK, 3000, 1);
	for (int i = 0; i < REGISTRATIONS_MAX + 3; i++) {
		snprintf(name, sizeof name, "w%d", i);
		og.name = name;
		datasets_synth(ds, &og, &s, on_one_of_many, NULL);
	}
	assert_int_equal(ended, 3);
	assert_int_equal(refused, 3);
	datasets_stats(ds, &stats);
	assert_int_equal(stats.upload_bytes, REGISTRATIONS_MAX * 3000 * 48);
	while (ended < REGISTRATIONS_MAX + 3)
		uv_run(&loop, UV_RUN_ONCE);
	assert_int_equal(refused, 3);
	datasets_stats(ds, &stats);
	assert_int_equal(stats.registered, REGISTRATIONS_MAX);
	assert_int_equal(stats.upload_bytes, 0);
	ended = refused = 0;
	for (int i = 0; i < 12; i++) {
		synth_init(&s, SYNTH_WALK, 2000, (uint64_t)i);
		snprintf(name, sizeof name, "v%d", i);
		og.name = name;
		datasets_synth(ds, &og, &s, on_one_of_many, NULL);
	}
	datasets_stop(ds);
	assert_int_equal(ended, 12 - REGISTRATIONS_RUNNING);
	while (datasets_busy(ds))
		uv_run(&loop, UV_RUN_ONCE);
	assert_int_equal(ended, 12);
	assert_int_equal(refused, 12 - REGISTRATIONS_RUNNING);
}

static void test_cache_is_bounded_and_shared(void **state)
{
	struct datasets_stats stats;
	struct market *a, *b;
	char name[16];

	close_all();
	cache_bytes = 5 * 1000 * 212; /* four and a bit of the sets below */
	open_all();
	for (int i = 0; i < 8; i++) {
		snprintf(name, sizeof name, "set%d", i);
		assert_int_equal(synth(name, 1000, (uint64_t)i), 0);
		datasets_stats(ds, &stats);
		assert_true(stats.resident_bytes <= cache_bytes);
	}
	assert_true(stats.resident >= 4);
	a = acquire("set0", 0.01, 0);
	b = acquire("set0", 0.02, 0); /* prices far above both ticks: the same features, the same copy */
	assert_ptr_equal(a, b);
	market_unref(b);
	for (int i = 1; i < 8; i++) { /* pushes everything out that nobody uses */
		snprintf(name, sizeof name, "set%d", i);
		market_unref(acquire(name, 0.01, 0));
	}
	b = acquire("set0", 0.01, 0);
	assert_ptr_equal(a, b); /* in use: it stayed */
	market_unref(a);
	market_unref(b);
	a = acquire("set0", 1000, 0); /* a tick above the prices reaches the features: another copy */
	b = acquire("set0", 0.01, 0);
	assert_ptr_not_equal(a, b);
	assert_true(a->tick == 1000 && b->tick == 0.01);
	market_unref(a);
	market_unref(b);
}

static void test_load_is_shared_by_those_who_wait(void **state)
{
	struct answer a[20];
	struct datasets_stats stats;

	assert_int_equal(synth("mom", 5000, 1), 0);
	close_all();
	open_all();
	memset(a, 0, sizeof a);
	for (int i = 0; i < 20; i++)
		datasets_acquire(ds, "mom", NULL, 0.01, on_loaded, &a[i]);
	for (int i = 0; i < 20; i++) {
		loop_await(&loop, &a[i].done, 1);
		assert_int_equal(a[i].code, 0);
		assert_ptr_equal(a[i].m, a[0].m);
	}
	datasets_stats(ds, &stats);
	assert_int_equal(stats.resident, 1);
	for (int i = 0; i < 20; i++)
		market_unref(a[i].m);
	acquire("moom", 0.01, FH_NOT_FOUND);
	assert_non_null(strstr(got.st.text, "mom"));
	memset(&a[0], 0, sizeof a[0]);
	datasets_acquire(ds, "mom", "0000", 0.01, on_loaded, &a[0]); /* another set has this name now */
	loop_await(&loop, &a[0].done, 1);
	assert_int_equal(a[0].code, FH_CONFLICT);
}

static void test_lost_and_damaged_files_are_reported(void **state)
{
	const struct dataset *d;
	struct fh_status st = FH_STATUS_INIT;
	struct datasets_stats stats;
	char file[256];
	FILE *f;

	assert_int_equal(synth("lost", 500, 1), 0);
	assert_int_equal(synth("bent", 500, 2), 0);
	assert_int_equal(synth("fine", 500, 3), 0);
	assert_int_equal(synth("cut", 500, 4), 0);
	close_all();
	snprintf(file, sizeof file, "%s/lost.safetensors", sets);
	unlink(file);
	snprintf(file, sizeof file, "%s/cut.safetensors", sets);
	assert_int_equal(truncate(file, 2000), 0);
	snprintf(file, sizeof file, "%s/bent.safetensors", sets);
	f = fopen(file, "r+"); /* one price changed in the middle of the file */
	assert_int_equal(fseek(f, 2000 + 500 * 8, SEEK_SET), 0);
	fputc(0x55, f);
	fclose(f);
	open_all();
	assert_int_equal(datasets_need(ds, "lost", &d, &st), FH_CORRUPT);
	assert_non_null(dataset_broken(datasets_find(ds, "lost")));
	assert_non_null(dataset_broken(datasets_find(ds, "cut")));
	datasets_stats(ds, &stats);
	assert_int_equal(stats.registered, 4);
	assert_int_equal(stats.broken, 2);
	acquire("bent", 0.01, FH_CORRUPT); /* found when its bars are read */
	assert_non_null(dataset_broken(datasets_find(ds, "bent")));
	market_unref(acquire("fine", 0.01, 0));
	assert_int_equal(synth("lost", 500, 9), FH_CONFLICT); /* other bars do not slip in under the name */
	assert_int_equal(synth("lost", 500, 1), 0);           /* the same bars mend it */
	market_unref(acquire("lost", 0.01, 0));
	assert_int_equal(drop("cut"), 0);
}

static void test_orphans_go_and_a_lost_database_loses_nothing(void **state)
{
	assert_int_equal(synth("mom", 500, 1), 0);
	touch("x.safetensors.tmp", "half");
	touch("crash.safetensors", "no row");
	touch("README", "not ours");
	close_all();
	open_all();
	assert_int_equal(exists("x.safetensors.tmp"), 0);
	assert_int_equal(exists("crash.safetensors"), 0);
	assert_int_equal(exists("README"), 1);
	assert_int_equal(exists("mom.safetensors"), 1);
	close_all();
	unlink(path); /* somebody moved the database away */
	open_all();
	assert_null(datasets_find(ds, "mom"));
	assert_int_equal(exists("mom.safetensors"), 0);
	assert_int_equal(exists("unregistered/mom.safetensors"), 1);
}

static void test_file_opens_as_safetensors(void **state)
{
	struct st_file *f;
	const struct st_tensor *t;
	char file[256];
	int64_t shape[1] = {500};

	assert_int_equal(synth("mom", 500, 1), 0);
	snprintf(file, sizeof file, "%s/mom.safetensors", sets);
	assert_int_equal(st_open(file, &f, NULL), 0);
	assert_int_equal(st_need(f, "close", ST_F64, 1, shape, &t, NULL), 0);
	assert_null(st_find(f, "features")); /* made when it is loaded */
	assert_string_equal(st_meta(f, "name"), "mom");
	assert_string_equal(st_meta(f, "hash"), dataset_hash(datasets_find(ds, "mom")));
	st_close(f);
}

static void test_stop_answers_everybody(void **state)
{
	struct answer a = {0};
	char id[UPLOAD_ID_MAX];
	struct fh_status st = FH_STATUS_INIT;

	assert_int_equal(synth("mom", 500, 1), 0);
	assert_int_equal(begin("eur", NULL, N, id, NULL), 0);
	datasets_acquire(ds, "mom", NULL, 0.01, on_loaded, &a);
	datasets_stop(ds);
	assert_int_equal(a.done, 1);
	market_unref(a.m);
	memset(&a, 0, sizeof a);
	datasets_acquire(ds, "mom", NULL, 0.01, on_loaded, &a);
	assert_int_equal(a.code, FH_UNAVAILABLE);
	assert_int_equal(begin("eur", NULL, N, id, &st), FH_UNAVAILABLE);
	assert_int_equal(synth("other", 500, 1), FH_UNAVAILABLE);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_upload_is_registered_and_survives), T(test_same_bars_existed_other_bars_conflict),
		T(test_bad_bars_are_refused_by_place), T(test_chunks_come_in_order_or_again), T(test_upload_bounds),
		T(test_idle_upload_is_thrown_away),
		T(test_the_same_upload_is_found_again),
		T(test_an_upload_is_given_up_while_it_is_registered),
		T(test_wrong_hash_is_refused), T(test_drop), T(test_names_in_work_are_taken),
		T(test_registrations_are_bounded), T(test_cache_is_bounded_and_shared),
		T(test_load_is_shared_by_those_who_wait), T(test_lost_and_damaged_files_are_reported),
		T(test_orphans_go_and_a_lost_database_loses_nothing), T(test_file_opens_as_safetensors), T(test_stop_answers_everybody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
