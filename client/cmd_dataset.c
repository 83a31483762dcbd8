/* fhctl dataset import | synth | list | show | drop. One thread.
 *
 * The file is read here and its bars are sent; the daemon checks them again. stdout gets the result, stderr the progress
 * and the notices. */
#include <stdlib.h>
#include <string.h>

#include "client/dataset_args.h"
#include "client/import/timestamp.h"
#include "client/output.h"
#include "client/table.h"
#include "client/upload.h"
#include "gpu/instruments.h"

#define GAPS_SHOWN 6
#define CONTRACTS_SHOWN 5
#define HOURS 24
#define PROGRESS_NS 1000000000
#define SYNTH_BARS_MAX 50000000
#define SYNTH_TIMEOUT_MS 600000

/* ---- what a data set looks like */

static const Fh__V1__DatasetReply *reply_dataset(const Fh__V1__Reply *r)
{
	return r->result_case == FH__V1__REPLY__RESULT_UPLOAD ? r->upload->dataset : r->dataset;
}

static const char *const block[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

/* Closes as a row of block characters, lowest to highest. */
static void sparkline(const float *v, size_t n, char *out, size_t size)
{
	float lo = n ? v[0] : 0, hi = lo;
	size_t used = 0;

	out[0] = '\0';
	for (size_t i = 0; i < n; i++) {
		lo = v[i] < lo ? v[i] : lo;
		hi = v[i] > hi ? v[i] : hi;
	}
	for (size_t i = 0; i < n && used + 4 < size; i++) {
		int k = hi > lo ? (int)((v[i] - lo) / (hi - lo) * 7.99f) : 0;
		k = k < 0 ? 0 : k > 7 ? 7 : k;
		used += (size_t)snprintf(out + used, size - used, "%s", block[k]);
	}
}

static void line(const char *what, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void line(const char *what, const char *fmt, ...)
{
	va_list ap;

	printf("%-12s ", what);
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
}

static void print_gaps(const Fh__V1__Dataset *d)
{
	char span[TIMESTAMP_TEXT_MAX], text[256] = "";
	size_t used = 0;

	for (size_t i = 0; i < d->n_gap && i < GAPS_SHOWN; i++)
		used += (size_t)snprintf(text + used, sizeof text - used, "%s%llu x %s", i ? ", " : "",
					 (unsigned long long)d->gap[i]->count, span_format(d->gap[i]->length_ns, span));
	if (d->bar_ns)
		line("bar", "%s", span_format(d->bar_ns, span));
	if (d->n_gap)
		line("gaps", "%llu: %s%s", (unsigned long long)d->gaps, text, d->n_gap > GAPS_SHOWN ? ", ..." : "");
	else
		line("gaps", "none");
}

/* One row a day of the week: an hour is a block as high as it has bars, a dot without any. */
static void print_sessions(const Fh__V1__Dataset *d)
{
	static const char *const day[] = {"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"};
	uint32_t top = 0;
	char text[HOURS * 4 + 1];

	for (size_t i = 0; i < d->n_week_hour; i++)
		top = d->week_hour[i] > top ? d->week_hour[i] : top;
	for (size_t i = 0; i < 7 && d->n_week_hour == 7 * HOURS && top; i++) {
		size_t used = 0;
		for (size_t h = 0; h < HOURS; h++) {
			uint32_t n = d->week_hour[i * HOURS + h];
			used += (size_t)snprintf(text + used, sizeof text - used, "%s", n ? block[(uint64_t)(n - 1) * 8 / top] : ".");
		}
		line(i ? "" : "hours UTC", "%s %s", day[i], text);
	}
}

static void print_contracts(const Fh__V1__Dataset *d)
{
	char text[256] = "", name[80];
	size_t used = 0;

	for (size_t i = 0; i < d->n_contract && i < CONTRACTS_SHOWN; i++)
		used += (size_t)snprintf(text + used, sizeof text - used, "%s%.40s", i ? ", " : ": ",
					 d->contract[i][0] ? text_clean(d->contract[i], name, sizeof name) : "unknown");
	line("contracts", "%zu after each other%s%s", d->n_roll + 1, text, d->n_contract > CONTRACTS_SHOWN ? ", ..." : "");
}

static const char *plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}

static void print_dataset(const Fh__V1__Dataset *d)
{
	char t0[TIMESTAMP_TEXT_MAX], t1[TIMESTAMP_TEXT_MAX], a[OUT_TEXT], b[OUT_TEXT], file[OUT_TEXT], text[512];

	line("data set", "%s", text_clean(d->name ? d->name : "", text, sizeof text));
	line("bars", "%lld, %s to %s", (long long)d->bars, timestamp_format(d->first_ts, t0), timestamp_format(d->last_ts, t1));
	line("bars a year", "%s", text_real(d->bars_per_year, a));
	print_gaps(d);
	line("close", "%s to %s%s", text_real(d->close_min, a), text_real(d->close_max, b), d->has_volume ? "" : ", no volume");
	if (d->n_spark) {
		sparkline(d->spark, d->n_spark, text, sizeof text);
		line("", "%s", text);
	}
	print_sessions(d);
	if (d->n_roll)
		print_contracts(d);
	if (d->n_version)
		line("appended to", "%zu time%s", d->n_version, plural(d->n_version));
	if (d->duplicates || d->dropped)
		line("left out", "%llu duplicate%s, %llu bad row%s", (unsigned long long)d->duplicates, plural(d->duplicates),
		     (unsigned long long)d->dropped, plural(d->dropped));
	if (d->repaired || d->moved)
		line("repaired", "%llu bar%s widened, %llu row%s put in order", (unsigned long long)d->repaired, plural(d->repaired),
		     (unsigned long long)d->moved, plural(d->moved));
	if (!d->has_memory_host) /* registered by an earlier release */
		line("file", "%s", text_bytes(d->bytes, file));
	else
		line("memory", "%s on the host, %s on a device, file %s", text_bytes(d->memory_host, a), text_bytes(d->memory_device, b),
		     text_bytes(d->bytes, file));
	if (d->tick > 0)
		line("tick", "%s", text_real(d->tick, a));
	if (d->source && d->source[0])
		line("source", "%s", text_clean(d->source, text, sizeof text));
	line("hash", "%s", d->hash ? d->hash : "");
	if (d->created_ns)
		line("created", "%s", text_time(d->created_ns, a));
	if (d->jobs)
		line("in use by", "%u job%s", d->jobs, plural(d->jobs));
	for (size_t i = 0; i < d->n_note; i++)
		line("notice", "%s", text_clean(d->note[i], text, sizeof text));
}

/* Prints the data set of a reply as -o asks; EXIT_DONE. */
static int dataset_print(struct ctx *c, const Fh__V1__Reply *reply)
{
	const Fh__V1__DatasetReply *r = reply_dataset(reply);

	if (output_message(c, &r->base))
		return EXIT_DONE;
	if (r->dataset)
		print_dataset(r->dataset);
	if (r->existed)
		ctx_note(c, "the same bars were registered under this name already");
	return EXIT_DONE;
}

void dataset_source(const char *path, const struct import_options *o, char source[DATASET_SOURCE_SIZE])
{
	const char *base = strrchr(path, '/');

	snprintf(source, DATASET_SOURCE_SIZE, "%s%s%s", !strcmp(path, "-") ? "standard input" : base ? base + 1 : path, o->member ? ":" : "",
		 o->member ? o->member : "");
}

int dataset_end(struct ctx *c, struct progress *bar, int rc, struct fh_answer *a, const struct fh_status *st)
{
	progress_clear(bar);
	if (rc)
		return ctx_fail(c, st);
	rc = dataset_print(c, a->reply);
	fh_answer_release(a);
	return rc;
}

/* ---- import */

void dataset_progress(const struct ctx *c, struct progress *bar)
{
	int asked = opt_flag(c, "progress");

	progress_init(bar, c->quiet);
	if (asked)
		bar->plain_ns = PROGRESS_NS;
	progress_update(bar, 0, bar->tty || asked, "reading"); /* a log needs no line at 0 % unless one is asked for */
}

int dataset_import_progress(void *arg, uint64_t read, uint64_t bytes, int64_t bars)
{
	progress_update(arg, bytes ? (double)read / (double)bytes : -1, 0, "reading, %lld bars", (long long)bars);
	return signal_seen;
}

/* "/data/EURUSD 1h.csv.gz" -> "EURUSD-1h": a name that the daemon takes. */
static void default_name(const char *path, char name[65])
{
	static const char *const ending[] = {".gz", ".zst", ".zip", ".csv", ".txt", ".json", ".tsv", ".dbn", ".safetensors", ".parquet", NULL};
	const char *base = strrchr(path, '/');
	size_t n;

	base = base ? base + 1 : path;
	n = strlen(base);
	for (int again = 1; again;) {
		again = 0;
		for (int i = 0; ending[i]; i++) {
			size_t k = strlen(ending[i]);
			if (n > k && !strncmp(base + n - k, ending[i], k)) {
				n -= k;
				again = 1;
			}
		}
	}
	n = n < 64 ? n : 64;
	for (size_t i = 0; i < n; i++) {
		char ch = base[i];
		int good = (ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || ch == '.' || ch == '_';
		name[i] = good ? ch : '-';
	}
	name[n] = '\0';
}

/* One of a few words, or FH_INVALID naming the option. */
int dataset_word(const struct ctx *c, const char *name, const char *const *word, int *out, struct fh_status *st)
{
	const char *v = opt_text(c, name);
	char all[96] = "", option[32];
	size_t used = 0;

	if (!v)
		return 0;
	for (int i = 0; word[i]; i++) {
		if (!strcmp(word[i], v)) {
			*out = i;
			return 0;
		}
		used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", word[i]);
	}
	snprintf(option, sizeof option, "--%s", name);
	return fh_fail_field(st, FH_INVALID, option, "'%.40s' is none of %s", v, all);
}

/* A preset fills in what was not said: where sessions begin, and the tick. */
static int dataset_instrument(const struct ctx *c, struct import_options *o, double *tick, struct fh_status *st)
{
	const char *name = opt_text(c, "instrument");
	const struct instrument *i = name ? instrument_find(name) : NULL;
	char list[FH_TEXT_MAX / 2];

	if (name && !i) {
		instrument_names(list, sizeof list);
		return fh_fail_field(st, FH_INVALID, "--instrument", "there is no preset '%.40s'; there are %s", name, list);
	}
	if (i && o->bar && !o->session)
		o->session = i->session;
	if (i && tick)
		*tick = i->tick;
	return 0;
}

int dataset_import_options(const struct ctx *c, struct import_options *o, struct fh_status *st)
{
	static const char *const bad[] = {"refuse", "drop", "repair", NULL};
	static const char *const dup[] = {"refuse", "first", "last", NULL};
	static const char *const fold[] = {"refuse", "first", "second", NULL};
	static const char *const point[] = {"auto", "point", "comma", NULL};
	int b = 0, d = 0, f = 0, p = 0;
	int rc = dataset_word(c, "on-bad-row", bad, &b, st);

	if (!rc)
		rc = dataset_word(c, "on-duplicate", dup, &d, st);
	if (!rc)
		rc = dataset_word(c, "dst", fold, &f, st);
	if (!rc)
		rc = dataset_word(c, "decimal", point, &p, st);
	if (!rc)
		rc = opt_real(c, "price-scale", 1e-12, 1e12, &o->price_scale, st);
	o->columns = opt_text(c, "columns");
	o->tz = opt_text(c, "tz");
	o->date = opt_text(c, "date");
	o->member = opt_text(c, "member");
	o->symbol = opt_text(c, "symbol");
	o->has_instrument_id = opt_text(c, "instrument-id") != NULL;
	int64_t id = 0;
	if (!rc)
		rc = opt_int(c, "instrument-id", 0, UINT32_MAX, &id, st);
	o->instrument_id = (uint32_t)id;
	o->bar = opt_text(c, "bar");
	o->session = opt_text(c, "session");
	if (!rc)
		rc = dataset_instrument(c, o, NULL, st);
	o->sort = opt_flag(c, "sort");
	o->on_bad_row = (enum on_bad_row)b;
	o->on_duplicate = (enum on_duplicate)d;
	o->fold = (enum zone_fold)f;
	o->point = "\0.,"[p];
	return rc;
}

static int run_import(struct ctx *c)
{
	struct fh_status st = FH_STATUS_INIT;
	struct import_options o = {.progress = dataset_import_progress};
	struct progress bar;
	struct import *m = NULL;
	struct fh_answer a;
	char name[65], source[DATASET_SOURCE_SIZE];
	const char *path = c->argv[0], *given = opt_text(c, "name");
	double tick = 0;
	int rc = dataset_import_options(c, &o, &st);

	if (!rc)
		rc = dataset_instrument(c, &o, &tick, &st);
	if (!rc)
		rc = opt_real(c, "tick", 1e-12, 1e12, &tick, &st);
	if (rc)
		return ctx_fail(c, &st);
	if (!strcmp(path, "-") && !given) {
		fh_fail_field(&st, FH_INVALID, "--name", "standard input has no name: give one");
		return ctx_fail(c, &st);
	}
	default_name(path, name);
	given = given ? given : name;
	if (fh_name_check("--name", given, &st)) /* before the file is read, not after */
		return ctx_fail(c, &st);
	dataset_progress(c, &bar);
	o.progress_arg = &bar;
	rc = import_file(path, &o, &m, &st);
	if (rc == FH_NOT_FOUND)
		st.code = FH_INVALID; /* a file of the person's, not an object of the daemon's */
	dataset_source(path, &o, source);
	if (!rc)
		rc = upload_bars(c, m, given, source, tick, &bar, &a, &st);
	progress_clear(&bar);
	for (int i = 0; !rc && i < m->notes && c->output != OUT_TABLE; i++)
		ctx_note(c, "%s", m->note[i]);
	import_free(m);
	return dataset_end(c, &bar, rc, &a, &st);
}

/* ---- synth */

static int run_synth(struct ctx *c)
{
	struct fh_status st = FH_STATUS_INIT;
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__SynthDatasetRequest s = FH__V1__SYNTH_DATASET_REQUEST__INIT;
	struct fh_answer a;
	const char *kind = opt_text(c, "kind"), *name = opt_text(c, "name");
	char made[65];
	int64_t bars = 20000, seed = 1;
	int rc = opt_int(c, "bars", 2, SYNTH_BARS_MAX, &bars, &st);

	if (!rc)
		rc = opt_int(c, "seed", INT64_MIN, INT64_MAX, &seed, &st);
	if (!rc)
		rc = opt_real(c, "phi", -0.999, 0.999, &s.phi, &st);
	if (!rc)
		rc = opt_real(c, "sigma", 1e-9, 1, &s.sigma, &st);
	if (!rc)
		rc = opt_real(c, "start", 1e-9, 1e12, &s.start, &st);
	if (rc)
		return ctx_fail(c, &st);
	kind = kind ? kind : "momentum";
	snprintf(made, sizeof made, "%.24s-%lld-s%lld", kind, (long long)bars, (long long)seed);
	s.name = (char *)(name ? name : made);
	s.kind = (char *)kind;
	s.has_bars = s.has_seed = 1;
	s.bars = bars;
	s.seed = (uint64_t)seed;
	s.has_phi = opt_text(c, "phi") != NULL;
	s.has_sigma = opt_text(c, "sigma") != NULL;
	s.has_start = opt_text(c, "start") != NULL;
	req.call_case = FH__V1__REQUEST__CALL_SYNTH_DATASET;
	req.synth_dataset = &s;
	rc = ctx_call(c, &req, c->timeout_given ? 0 : SYNTH_TIMEOUT_MS, &a, &st);
	if (rc)
		return ctx_fail(c, &st);
	rc = dataset_print(c, a.reply);
	fh_answer_release(&a);
	return rc;
}

/* ---- list, show, drop */

static int run_list(struct ctx *c)
{
	static const char *const heads[] = {"NAME", "BARS", "FIRST", "LAST", "BARS/YEAR", "SIZE", "JOBS", NULL};
	struct fh_status st = FH_STATUS_INIT;
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__ListDatasetsRequest l = FH__V1__LIST_DATASETS_REQUEST__INIT;
	struct fh_answer a;
	struct table t;

	req.call_case = FH__V1__REQUEST__CALL_LIST_DATASETS;
	req.list_datasets = &l;
	if (ctx_call(c, &req, 0, &a, &st))
		return ctx_fail(c, &st);
	const Fh__V1__ListDatasetsReply *r = a.reply->datasets;
	if (!output_message(c, &r->base)) {
		table_init(&t, heads, "lrllrrr");
		for (size_t i = 0; i < r->n_dataset; i++) {
			const Fh__V1__Dataset *d = r->dataset[i];
			char x[OUT_TEXT], ts[TIMESTAMP_TEXT_MAX];
			table_add(&t, "%s", d->name ? d->name : "");
			table_add(&t, "%lld", (long long)d->bars);
			table_add(&t, "%.16s", timestamp_format(d->first_ts, ts));
			table_add(&t, "%.16s", timestamp_format(d->last_ts, ts));
			table_add(&t, "%.0f", d->bars_per_year);
			table_add(&t, "%s", text_bytes(d->bytes, x));
			table_add(&t, "%u", d->jobs);
		}
		if (r->n_dataset)
			table_print(&t, stdout);
		else
			ctx_note(c, "no data sets; `fhctl dataset import FILE` or `fhctl dataset synth` makes one");
		table_release(&t);
	}
	fh_answer_release(&a);
	return EXIT_DONE;
}

static int run_show(struct ctx *c)
{
	struct fh_status st = FH_STATUS_INIT;
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__ShowDatasetRequest s = FH__V1__SHOW_DATASET_REQUEST__INIT;
	struct fh_answer a;

	s.name = c->argv[0];
	req.call_case = FH__V1__REQUEST__CALL_SHOW_DATASET;
	req.show_dataset = &s;
	if (ctx_call(c, &req, 0, &a, &st))
		return ctx_fail(c, &st);
	int rc = dataset_print(c, a.reply);
	fh_answer_release(&a);
	return rc;
}

static int run_drop(struct ctx *c)
{
	struct fh_status st = FH_STATUS_INIT;

	for (int i = 0; i < c->argc; i++) {
		Fh__V1__Request req = FH__V1__REQUEST__INIT;
		Fh__V1__DropDatasetRequest d = FH__V1__DROP_DATASET_REQUEST__INIT;
		struct fh_answer a;
		d.name = c->argv[i];
		req.call_case = FH__V1__REQUEST__CALL_DROP_DATASET;
		req.drop_dataset = &d;
		if (ctx_call(c, &req, 0, &a, &st))
			return ctx_fail(c, &st);
		fh_answer_release(&a);
		ctx_note(c, "data set %s dropped", c->argv[i]);
	}
	return EXIT_DONE;
}

/* ---- the tables */

static const struct opt import_opts[] = {
	{"name", 'n', "NAME", "name of the data set (default: from the file's name)"},
	DATASET_IMPORT_OPTS,
	{"tick", 0, "PRICE", "smallest price step (matters for prices near or below 0)"},
	{NULL, 0, NULL, NULL}
};
static const struct opt synth_opts[] = {
	{"kind", 'k', "KIND", "momentum (default), regime or walk"},
	{"bars", 'b', "N", "number of one-minute bars (default 20000)"},
	{"seed", 's', "S", "any whole number (default 1)"},
	{"phi", 0, "X", "momentum: correlation of successive returns (default 0.3)"},
	{"sigma", 0, "X", "standard deviation of a return (default 0.001)"},
	{"start", 0, "PRICE", "first price (default 100)"},
	{"name", 'n', "NAME", "name of the data set (default: KIND-N-sS)"},
	{NULL, 0, NULL, NULL}
};

const struct command cmds_dataset[] = {
	{"dataset import", GROUP_DATA, "FILE", "register the bars of a file",
	 "FILE is delimited text with a header (time, open, high, low, close, volume in any order and case; more columns do no\n"
	 "harm), an exchange's kline file without header, a JSON array of arrays, DBN (ohlcv schemas, versions 1 to 3), or what\n"
	 "dataset export wrote (safetensors, and Parquet where it is built in). .gz, .zst and .zip are read as they are, - is\n"
	 "standard input. Times: ISO 8601, DD.MM.YYYY HH:MM:SS, YYYYMMDD HH:MM, epoch in s, ms, us or ns.\n"
	 "Bad data is refused with its line and column, and nothing is registered. A lost connection is made anew; after a\n"
	 "longer one, or when fhctl was killed, the same command goes on where it stopped. Ctrl-C throws away what was sent.\n\n"
	 "  fhctl dataset import EURUSD_1H.csv --name eurusd\n"
	 "  fhctl dataset import bars.zip --member es.csv --columns ts,open,high,low,close,volume --tz America/Chicago\n",
	 import_opts, 1, 1, OUT_ALL, run_import},
	{"dataset synth", GROUP_DATA, "", "make a market with a known structure",
	 "momentum: returns follow their predecessor (AR(1)); regime: trends that switch; walk: nothing to learn.\n\n"
	 "  fhctl dataset synth --kind momentum --bars 20000 --seed 1 --name momentum\n",
	 synth_opts, 0, 0, OUT_ALL, run_synth},
	{"dataset list", GROUP_DATA, "", "all data sets", NULL, NULL, 0, 0, OUT_ALL, run_list},
	{"dataset show", GROUP_DATA, "NAME", "one data set: range, bars, gaps, notices, prices", NULL, NULL, 1, 1, OUT_ALL, run_show},
	{"dataset drop", GROUP_DATA, "NAME...", "remove data sets that no job uses", NULL, NULL, 1, 64, OUT_TABLE, run_drop},
	{.name = NULL}
};
