/* The metadata of a DBN file: version, schema, symbols and the instruments they were. Pure data, one thread. */
#ifndef FH_IMPORT_DBN_META_H
#define FH_IMPORT_DBN_META_H

#include <stddef.h>
#include <stdint.h>

struct fh_status;

#define DBN_PRELUDE 8                /* "DBN", version, bytes of metadata */
#define DBN_METADATA_MAX (64u << 20)
#define DBN_SYMBOL_MAX 72
#define DBN_RECORDS_UNKNOWN UINT64_MAX
#define DBN_SCHEMA_MIXED 0xFFFF

/* A symbol was an instrument from one time on, up to another. */
struct dbn_interval { int64_t from, to; uint32_t id; char name[DBN_SYMBOL_MAX]; /* of the contract, "" unknown */ };
struct dbn_mapping { char symbol[DBN_SYMBOL_MAX]; struct dbn_interval *interval; uint32_t intervals; };

struct dbn_meta {
	int version, ts_out;         /* ts_out: each record has 8 bytes more */
	int raw;                     /* symbols are those of instruments themselves, which may have another number every day */
	unsigned schema;
	uint64_t records;            /* version 1 may say; DBN_RECORDS_UNKNOWN */
	char dataset[17];
	struct dbn_mapping *mapping;
	uint32_t mappings;
};

/* From the first 8 bytes: version and how many bytes of metadata follow. FH_INVALID a version that is not read. */
int dbn_prelude(const unsigned char *p, struct dbn_meta *m, size_t *bytes, struct fh_status *st);
/* FH_CORRUPT names what cannot be; FH_INVALID: a schema without bars. */
int dbn_metadata(const unsigned char *p, size_t bytes, struct dbn_meta *m, struct fh_status *st);
void dbn_meta_release(struct dbn_meta *m);

/* Record type of the bars of a schema, 0 for a mixed file. */
int dbn_schema_type(unsigned schema);
const char *dbn_schema_name(unsigned schema);
/* The mapping of a symbol, asked for by its own name or that of a contract in it; NULL. */
const struct dbn_mapping *dbn_mapping_find(const struct dbn_meta *m, const char *symbol);
/* The mapping that an instrument belongs to at that time, when its intervals are one after the other; NULL. */
const struct dbn_mapping *dbn_mapping_of(const struct dbn_meta *m, uint32_t id, int64_t ts);
/* Is instrument `id` at `ts` one of it? from..to: how long the answer holds for this instrument. */
int dbn_mapping_has(const struct dbn_mapping *g, uint32_t id, int64_t ts, int64_t *from, int64_t *to);
/* A name of the instrument: 1 found. */
int dbn_name_of(const struct dbn_meta *m, uint32_t id, char name[DBN_SYMBOL_MAX]);
/* What tells the contract of an instrument from others, also in other files: its own name, else the name it was asked for by and its
 * number (a continuous symbol is one contract after the other), else its number. */
void dbn_contract_of(const struct dbn_meta *m, uint32_t id, char name[DBN_SYMBOL_MAX + 12]);
/* "ESU4, NQU4, ...": what can be chosen. */
void dbn_symbols(const struct dbn_meta *m, char *list, size_t size);

#endif
