/* Bars to a file (export.h).
 *
 * Written beside the target under a name of its own, then renamed. One thread.
 * Invariant: whatever number_short() writes, strtod() reads to the same bits. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/export.h"
#include "client/import/parquet.h"
#include "client/import/timestamp.h"
#include "gpu/safetensors.h"

#define BUFFER (1u << 20)
#define NUMBER_SHORT_MAX 40
#define PLACES_MAX 9
#define EXACT_MAX 9007199254740992.0 /* 2^53 */

static int ends_with(const char *path, const char *ending)
{
	size_t n = strlen(path), k = strlen(ending);
	return n > k && !strcmp(path + n - k, ending);
}

/* Prices are decimals of a few places: the smallest number of places whose quotient is x itself. Division of two exact
 * doubles is what reading such a text does, too. */
static int few_places(double x, char text[NUMBER_SHORT_MAX])
{
	static const double power[PLACES_MAX + 1] = {1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9};
	double a = fabs(x);

	for (int k = 0; k <= PLACES_MAX && a * power[k] < EXACT_MAX; k++) {
		double n = rint(a * power[k]);
		if (n / power[k] != a)
			continue;
		uint64_t whole = (uint64_t)n, unit = (uint64_t)power[k];
		if (!k)
			return sprintf(text, "%s%llu", x < 0 ? "-" : "", (unsigned long long)whole);
		return sprintf(text, "%s%llu.%0*llu", x < 0 ? "-" : "", (unsigned long long)(whole / unit), k,
			       (unsigned long long)(whole % unit));
	}
	return 0;
}

/* The shortest decimal text that reads back to the same double. Returns its length. */
static int number_short(double x, char text[NUMBER_SHORT_MAX])
{
	int n = x == 0 ? sprintf(text, signbit(x) ? "-0" : "0") : few_places(x, text);

	for (int digits = 15; !n || (digits <= 17 && strtod(text, NULL) != x); digits++)
		n = snprintf(text, NUMBER_SHORT_MAX, "%.*g", digits, x);
	return n;
}

/* What the file says of contracts. Their names, when they are all known and tell neighbours apart; else numbers, so that the changes are
 * read again. */
struct symbols { const struct fetched *f; int named; char number[24]; };

static struct symbols symbols_of(const struct fetched *f)
{
	const struct bars *b = &f->part;
	struct symbols s = {.f = f, .named = b->names == f->rolls + 1};

	for (int32_t i = 0; s.named && i < b->names; i++)
		s.named = b->name[i][0] && !strpbrk(b->name[i], "\r\n") && !(i && !strcmp(b->name[i], b->name[i - 1]));
	return s;
}

static int has_symbols(const struct symbols *s)
{
	return s->named || s->f->rolls;
}

static const char *symbol_of(const void *arg, int64_t bar)
{
	struct symbols *s = (struct symbols *)arg;
	const struct bars *b = &s->f->part;

	if (s->named)
		return bars_contract_name(b, bar);
	snprintf(s->number, sizeof s->number, "contract%d", b->contract_of ? b->contract_of[bar] + 1 : 1);
	return s->number;
}

/* A field of text, in quotes where it needs them. */
static size_t put_symbol(char *to, const char *name)
{
	size_t n = 0;

	if (!strpbrk(name, ",;\t|\"'\r\n "))
		return (size_t)sprintf(to, ",%s", name);
	to[n++] = ',';
	to[n++] = '"';
	for (; *name; name++) {
		if (*name == '"')
			to[n++] = '"';
		to[n++] = *name;
	}
	to[n++] = '"';
	return n;
}

static int write_csv(FILE *out, const struct fetched *f, struct fh_status *st)
{
	struct market_bars b = bars_view(&f->part);
	struct symbols symbols = symbols_of(f);
	const double *const column[] = {b.open, b.high, b.low, b.close, b.volume};
	char line[7 * NUMBER_SHORT_MAX + 2 * CONTRACT_NAME_MAX];

	fprintf(out, "ts,open,high,low,close%s%s\n", f->has_volume ? ",volume" : "", has_symbols(&symbols) ? ",symbol" : "");
	for (int64_t i = 0; i < b.bars; i++) {
		timestamp_format(b.ts[i], line);
		size_t n = strlen(line);
		for (int k = 0; k < (f->has_volume ? 5 : 4); k++) {
			line[n++] = ',';
			n += (size_t)number_short(column[k][i], line + n);
		}
		if (has_symbols(&symbols))
			n += put_symbol(line + n, symbol_of(&symbols, i));
		line[n++] = '\n';
		fwrite(line, 1, n, out);
		if (!(i & 0xffff) && signal_seen)
			return fh_fail(st, FH_INTERRUPTED, "stopped while writing");
	}
	return 0;
}

static int export_csv(const struct fetched *f, const char *path, struct fh_status *st)
{
	char temporary[4096];
	int to_stdout = !strcmp(path, "-");

	if ((size_t)snprintf(temporary, sizeof temporary, "%s.%ld.part", path, (long)getpid()) >= sizeof temporary)
		return fh_fail(st, FH_INVALID, "the path is longer than %zu bytes", sizeof temporary);
	FILE *out = to_stdout ? stdout : fopen(temporary, "w");
	if (!out)
		return fh_fail(st, FH_IO, "%s: %s", temporary, strerror(errno));
	if (!to_stdout)
		setvbuf(out, NULL, _IOFBF, BUFFER);
	int rc = write_csv(out, f, st);
	int bad = fflush(out) || ferror(out);
	if (to_stdout)
		return rc ? rc : bad ? fh_fail(st, FH_IO, "standard output: %s", strerror(errno)) : 0;
	bad |= fsync(fileno(out));
	bad |= fclose(out);
	if (!rc && (bad || rename(temporary, path)))
		rc = fh_fail(st, FH_IO, "%s: %s", path, strerror(errno));
	if (rc)
		unlink(temporary);
	return rc;
}

static int export_tensors(const struct fetched *f, const char *path, struct fh_status *st)
{
	static const char *const name[] = {"ts", "open", "high", "low", "close", "volume"};
	struct market_bars b = bars_view(&f->part);
	const void *const data[] = {b.ts, b.open, b.high, b.low, b.close, b.volume};
	struct st_tensor t[7];
	char tick[NUMBER_SHORT_MAX], *names = calloc((size_t)f->part.names + 1, CONTRACT_NAME_MAX);
	const char *const meta[] = {"format", "fhd-bars", "name", f->name, "hash", f->hash, "tick", tick, "has_volume",
				    f->has_volume ? "1" : "0", "contracts", names, NULL};
	struct symbols symbols = symbols_of(f);
	char *end = names;

	if (!names)
		return fh_fail(st, FH_EXHAUSTED, "no memory");
	for (int32_t i = 0; symbols.named && i < f->part.names; i++)
		end += sprintf(end, "%s%s", i ? "\n" : "", f->part.name[i]);
	number_short(f->tick, tick);
	for (int i = 0; i < 6; i++) {
		t[i] = (struct st_tensor){.dtype = i ? ST_F64 : ST_I64, .rank = 1, .dim = {b.bars}, .bytes = (size_t)b.bars * 8, .data = data[i]};
		snprintf(t[i].name, sizeof t[i].name, "%s", name[i]);
	}
	t[6] = (struct st_tensor){.name = "roll", .dtype = ST_I64, .rank = 1, .dim = {f->rolls}, .bytes = (size_t)f->rolls * 8, .data = f->roll};
	int rc = st_save(t, f->rolls ? 7 : 6, meta, path, st);
	free(names);
	return rc;
}

int export_check(const char *path, struct fh_status *st)
{
	if (!strcmp(path, "-") || ends_with(path, ".csv") || ends_with(path, ".safetensors"))
		return 0;
	if (ends_with(path, ".parquet"))
		return parquet_there(st);
	return fh_fail(st, FH_INVALID, "%.200s: the ending says the form: .csv, .safetensors or .parquet", path);
}

int export_bars(const struct fetched *f, const char *path, struct fh_status *st)
{
	struct market_bars b = bars_view(&f->part);

	if (ends_with(path, ".safetensors"))
		return export_tensors(f, path, st);
	if (ends_with(path, ".parquet")) {
		struct symbols symbols = symbols_of(f);
		struct parquet_symbols column = {symbol_of, &symbols};
		return parquet_write(path, &b, f->has_volume, has_symbols(&symbols) ? &column : NULL, st);
	}
	return export_csv(f, path, st);
}
