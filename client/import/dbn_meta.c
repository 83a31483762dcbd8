/* The metadata of a DBN file (dbn_meta.h).
 *
 * Layout: 16 bytes dataset, u16 schema, u64 start, end, limit (version 1: and the number of records), two bytes of symbol
 * kinds, a byte ts_out, from version 2 on the length of a symbol as u16 (22 before), filled up to 100 bytes; u32 length of
 * a schema definition (0), then four lists with their u32 counts: symbols, partly resolved, not found, mappings. Version 3
 * may end with zeros. One thread.
 * Invariant: `at` never passes `bytes`; after a refusal nothing is owned. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/import/dbn_meta.h"
#include "client/import/timestamp.h"
#include "proto/status.h"

#define FIXED_BYTES 100
#define SYMBOL_V1 22
#define SYMBOL_BYTES_MAX 1024
#define INTERVAL_BYTES 8       /* its two dates */
#define STYPE_RAW 1            /* symbols asked for by an instrument's own name */

struct cursor { const unsigned char *p; size_t bytes, at; size_t symbol; };

static uint32_t get32(const unsigned char *p)
{
	uint32_t v;
	memcpy(&v, p, sizeof v);
	return v;
}

static uint64_t get64(const unsigned char *p)
{
	uint64_t v;
	memcpy(&v, p, sizeof v);
	return v;
}

static unsigned get16(const unsigned char *p)
{
	return p[0] | (unsigned)p[1] << 8;
}

int dbn_prelude(const unsigned char *p, struct dbn_meta *m, size_t *bytes, struct fh_status *st)
{
	uint32_t n = get32(p + 4);

	if (p[3] < 1 || p[3] > 3)
		return fh_fail(st, FH_INVALID, "the DBN file has version %d; 1, 2 and 3 are read", p[3]);
	if (n < FIXED_BYTES || n > DBN_METADATA_MAX)
		return fh_fail(st, FH_CORRUPT, "the DBN file says that it has %u bytes of metadata: it is damaged", n);
	m->version = p[3];
	*bytes = n;
	return 0;
}

/* ---- schemas */

static const char *const schemas[] = {
	"mbo", "mbp-1", "mbp-10", "tbbo", "trades", "ohlcv-1s", "ohlcv-1m", "ohlcv-1h", "ohlcv-1d", "definition", "statistics",
	"status", "imbalance", "ohlcv-eod", "cmbp-1", "cbbo-1s", "cbbo-1m", "tcbbo", "bbo-1s", "bbo-1m"
};

const char *dbn_schema_name(unsigned schema)
{
	return schema < sizeof schemas / sizeof *schemas ? schemas[schema] : schema == DBN_SCHEMA_MIXED ? "mixed" : "unknown";
}

int dbn_schema_type(unsigned schema)
{
	return schema >= 5 && schema <= 8 ? 0x20 + (int)schema - 5 : schema == 13 ? 0x24 : 0;
}

/* ---- lists of symbols */

static int short_of(const struct cursor *c, size_t n, const char *what, struct fh_status *st)
{
	if (n <= c->bytes - c->at)
		return 0;
	return fh_fail(st, FH_CORRUPT, "the DBN metadata is damaged: its %s end after %zu bytes", what, c->bytes);
}

/* A list's length; each entry takes at least `least` bytes. */
static int count_of(struct cursor *c, size_t least, const char *what, uint32_t *n, struct fh_status *st)
{
	int rc = short_of(c, 4, what, st);

	if (rc)
		return rc;
	*n = get32(c->p + c->at);
	c->at += 4;
	if (*n > (c->bytes - c->at) / least)
		return fh_fail(st, FH_CORRUPT, "the DBN metadata is damaged: %u %s do not fit into it", *n, what);
	return 0;
}

/* Names stand in messages: anything else than plain characters becomes a question mark. */
static void name_of(struct cursor *c, char out[DBN_SYMBOL_MAX])
{
	const unsigned char *p = c->p + c->at;
	size_t n = 0;

	for (; n < c->symbol && n + 1 < DBN_SYMBOL_MAX && p[n]; n++)
		out[n] = p[n] > ' ' && p[n] <= '~' ? (char)p[n] : '?';
	out[n] = '\0';
	c->at += c->symbol;
}

static int number_of(const char *text, uint32_t *id)
{
	uint64_t v = 0;

	if (!*text)
		return 0;
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return 0;
		v = v * 10 + (uint64_t)(*text - '0');
		if (v > UINT32_MAX)
			return 0;
	}
	*id = (uint32_t)v;
	return 1;
}

static int date_of(struct cursor *c, int64_t *ns, struct fh_status *st)
{
	uint32_t v = get32(c->p + c->at);
	unsigned year = v / 10000, month = v / 100 % 100, day = v % 100;

	c->at += 4;
	if (year < 1678 || year > 2261 || month < 1 || month > 12 || day < 1 || day > 31)
		return fh_fail(st, FH_CORRUPT, "the DBN metadata is damaged: %u is no date", v);
	*ns = days_from_civil(year, month, day) * NS_PER_DAY;
	return 0;
}

static int one_interval(struct cursor *c, struct dbn_mapping *g, struct fh_status *st)
{
	struct dbn_interval *v = &g->interval[g->intervals];
	char name[DBN_SYMBOL_MAX];
	int rc = date_of(c, &v->from, st);

	if (!rc)
		rc = date_of(c, &v->to, st);
	if (rc)
		return rc;
	name_of(c, name);
	if (number_of(name, &v->id))
		v->name[0] = '\0';
	else if (number_of(g->symbol, &v->id)) /* asked by number: the symbol is what came out */
		memcpy(v->name, name, sizeof name);
	else
		return 0; /* neither is a number (a name for a name, or nothing resolved): says nothing about instruments */
	g->intervals++;
	return 0;
}

static int one_mapping(struct cursor *c, struct dbn_mapping *g, struct fh_status *st)
{
	uint32_t n;
	int rc = short_of(c, c->symbol, "mappings", st);

	if (rc)
		return rc;
	name_of(c, g->symbol);
	rc = count_of(c, INTERVAL_BYTES + c->symbol, "intervals", &n, st);
	if (rc || !n)
		return rc;
	g->interval = calloc(n, sizeof *g->interval);
	if (!g->interval)
		return fh_fail(st, FH_EXHAUSTED, "no memory for the symbols of the file");
	for (uint32_t i = 0; !rc && i < n; i++)
		rc = one_interval(c, g, st);
	return rc;
}

static int lists(struct cursor *c, struct dbn_meta *m, struct fh_status *st)
{
	static const char *const what[] = {"symbols", "partly resolved symbols", "symbols not found"};
	uint32_t n;
	int rc = 0;

	for (int i = 0; i < 3; i++) {
		rc = count_of(c, c->symbol, what[i], &n, st);
		if (rc)
			return rc;
		c->at += (size_t)n * c->symbol;
	}
	rc = count_of(c, c->symbol + 4, "mappings", &n, st);
	if (rc || !n)
		return rc;
	m->mapping = calloc(n, sizeof *m->mapping);
	if (!m->mapping)
		return fh_fail(st, FH_EXHAUSTED, "no memory for the symbols of the file");
	while (!rc && m->mappings < n)
		rc = one_mapping(c, &m->mapping[m->mappings++], st);
	return rc;
}

int dbn_metadata(const unsigned char *p, size_t bytes, struct dbn_meta *m, struct fh_status *st)
{
	struct cursor c = {p, bytes, FIXED_BYTES, SYMBOL_V1};
	int old = m->version == 1;
	const unsigned char *q = p + 42 + (old ? 8 : 0); /* after start, end, limit */

	memcpy(m->dataset, p, 16);
	m->schema = get16(p + 16);
	m->records = old ? get64(p + 42) : DBN_RECORDS_UNKNOWN;
	m->raw = q[0] == STYPE_RAW;
	m->ts_out = q[2];
	if (!old)
		c.symbol = get16(q + 3);
	if (m->ts_out > 1)
		return fh_fail(st, FH_CORRUPT, "the DBN metadata is damaged: ts_out is %d", m->ts_out);
	if (c.symbol < 2 || c.symbol > SYMBOL_BYTES_MAX)
		return fh_fail(st, FH_CORRUPT, "the DBN metadata is damaged: symbols of %zu bytes", c.symbol);
	if (m->schema != DBN_SCHEMA_MIXED && !dbn_schema_type(m->schema))
		return fh_fail(st, FH_INVALID, "the DBN file has no bars: its schema is %s (%u); ohlcv-1s, -1m, -1h and -1d are read",
			       dbn_schema_name(m->schema), m->schema);
	int rc = short_of(&c, 4, "fixed fields", st);
	if (!rc && get32(p + c.at))
		rc = fh_fail(st, FH_INVALID, "the DBN file brings a schema definition of its own: that is not read");
	c.at += 4;
	if (!rc)
		rc = lists(&c, m, st);
	return rc;
}

void dbn_meta_release(struct dbn_meta *m)
{
	for (uint32_t i = 0; i < m->mappings; i++)
		free(m->mapping[i].interval);
	free(m->mapping);
	m->mapping = NULL;
	m->mappings = 0;
}

/* ---- look-ups */

static int has_name(const struct dbn_mapping *g, const char *name)
{
	for (uint32_t i = 0; i < g->intervals; i++)
		if (!strcmp(g->interval[i].name, name))
			return 1;
	return 0;
}

const struct dbn_mapping *dbn_mapping_find(const struct dbn_meta *m, const char *symbol)
{
	for (uint32_t i = 0; i < m->mappings; i++)
		if (!strcmp(m->mapping[i].symbol, symbol))
			return &m->mapping[i];
	for (uint32_t i = 0; i < m->mappings; i++)
		if (*symbol && has_name(&m->mapping[i], symbol))
			return &m->mapping[i];
	return NULL;
}

/* Two instruments at one time are no sequence of contracts. */
static int one_after_another(const struct dbn_mapping *g)
{
	for (uint32_t i = 1; i < g->intervals; i++)
		if (g->interval[i].from < g->interval[i - 1].to && g->interval[i].id != g->interval[i - 1].id)
			return 0;
	return 1;
}

const struct dbn_mapping *dbn_mapping_of(const struct dbn_meta *m, uint32_t id, int64_t ts)
{
	int64_t from, to;

	for (uint32_t i = 0; i < m->mappings; i++)
		if (dbn_mapping_has(&m->mapping[i], id, ts, &from, &to))
			return one_after_another(&m->mapping[i]) ? &m->mapping[i] : NULL;
	return NULL;
}

int dbn_mapping_has(const struct dbn_mapping *g, uint32_t id, int64_t ts, int64_t *from, int64_t *to)
{
	*from = INT64_MIN;
	*to = INT64_MAX;
	for (uint32_t i = 0; i < g->intervals; i++) {
		const struct dbn_interval *v = &g->interval[i];
		if (v->id != id)
			continue;
		if (ts >= v->from && ts < v->to) {
			*from = v->from;
			*to = v->to;
			return 1;
		}
		if (v->from > ts && v->from < *to)
			*to = v->from; /* not yet: asked again from there on */
		if (v->to <= ts && v->to > *from)
			*from = v->to;
	}
	return 0;
}

int dbn_name_of(const struct dbn_meta *m, uint32_t id, char name[DBN_SYMBOL_MAX])
{
	for (uint32_t i = 0; i < m->mappings; i++) {
		const struct dbn_mapping *g = &m->mapping[i];
		for (uint32_t k = 0; k < g->intervals; k++)
			if (g->interval[k].id == id) {
				snprintf(name, DBN_SYMBOL_MAX, "%s", g->interval[k].name[0] ? g->interval[k].name : g->symbol);
				return 1;
			}
	}
	return 0;
}

void dbn_contract_of(const struct dbn_meta *m, uint32_t id, char name[DBN_SYMBOL_MAX + 12])
{
	for (uint32_t i = 0; i < m->mappings; i++) {
		const struct dbn_mapping *g = &m->mapping[i];
		for (uint32_t k = 0; k < g->intervals; k++) {
			if (g->interval[k].id != id)
				continue;
			if (g->interval[k].name[0] || m->raw)
				snprintf(name, DBN_SYMBOL_MAX, "%s", g->interval[k].name[0] ? g->interval[k].name : g->symbol);
			else
				snprintf(name, DBN_SYMBOL_MAX + 12, "%s:%" PRIu32, g->symbol, id);
			return;
		}
	}
	snprintf(name, DBN_SYMBOL_MAX, "%" PRIu32, id);
}

void dbn_symbols(const struct dbn_meta *m, char *list, size_t size)
{
	size_t used = 0;

	list[0] = '\0';
	for (uint32_t i = 0; i < m->mappings; i++) {
		if (used + 32 > size) {
			snprintf(list + used, size - used, ", ...");
			return;
		}
		used += (size_t)snprintf(list + used, size - used, "%s%.24s", i ? ", " : "", m->mapping[i].symbol);
	}
}
