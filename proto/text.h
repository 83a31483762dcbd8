/* YAML and JSON: a careful reader of small files, job files, and messages printed as JSON or YAML by reflection.
 *
 * The reader takes libfyaml's events, never its documents: no recursion, no aliases, no tags, every bound below is
 * checked while reading. JSON is read as the YAML it is. The writers need no library. Pure functions, any thread. */
#ifndef FH_PROTO_TEXT_H
#define FH_PROTO_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "gpu/spec.h"
#include "proto/wire.h"

#define FH_TEXT_FILE_MAX (256u << 10) /* bytes of a job or configuration file */
#define FH_TEXT_DEPTH_MAX 8           /* mappings in mappings */
#define FH_TEXT_NODES_MAX 4096
#define FH_SCHEMA_VERSION 1           /* of -o json and -o yaml */

/* ---- reading */
enum fh_node_kind { FH_NODE_SCALAR, FH_NODE_MAP, FH_NODE_LIST };
struct fh_node {
	enum fh_node_kind kind;
	int line;                     /* from 1 */
	int quoted;                   /* scalar in quotes: surely a text */
	const char *key;              /* in a mapping */
	const char *text;             /* scalar: UTF-8 without NUL; "" for an empty value */
	struct fh_node *child, *next; /* first child; next in the same mapping or list */
	int children;
};
/* `what` names the source in messages ("job.yaml"). One document whose root is a mapping, or empty (a mapping without
 * keys). FH_INVALID "what:line: …" for syntax, aliases, anchors, tags, a key twice, too deep, too many;
 * FH_EXHAUSTED too large. The tree lives in `a`. */
int fh_tree_read(const char *text, size_t len, const char *what, struct fh_arena *a, struct fh_node **root,
		 struct fh_status *st);
/* A whole file or "-" (stdin) of at most FH_TEXT_FILE_MAX bytes into `a`. FH_INVALID when it cannot be read. */
int fh_file_read(const char *path, struct fh_arena *a, char **text, size_t *len, struct fh_status *st);

struct fh_job_file {
	char name[FH_NAME_MAX]; /* "" when absent */
	struct fh_spec spec;
	struct { char key[FH_NAME_MAX]; char value[FH_LABEL_VALUE_MAX + 1]; } label[FH_LABELS_MAX];
	int labels;
};
void fh_job_file_init(struct fh_job_file *j); /* all defaults, no name, no labels */
/* Lays the file over *j: top level name, labels, instrument (a preset of gpu/instruments.h: keys of env that the file does not
 * give; refused where it gives all of them), and the sections of the specification. Unknown keys are refused by
 * dotted name with the nearest match and the line. Ranges are checked per key; spec_check() is the caller's, after
 * --set. *j untouched on failure. */
int fh_job_file_parse(const char *text, size_t len, const char *what, struct fh_job_file *j, struct fh_status *st);
/* The preset's keys of env over what is there, as an option does: after the file, before --set. FH_INVALID lists the presets. */
int fh_job_file_instrument(struct fh_job_file *j, const char *name, struct fh_status *st);
int fh_job_file_label(struct fh_job_file *j, const char *key, const char *value, struct fh_status *st);

/* ---- writing. Both return 0 or FH_IO. */
/* The complete commented default as YAML; reads back to the same bits. */
int fh_spec_print(FILE *f, const struct fh_spec *spec, struct fh_status *st);
/* protobuf's JSON mapping with the field names of fh.proto (not camelCase): 64-bit integers and non-finite numbers as
 * strings, enums by name, bytes in base64, absent fields left out; first key "schema_version" when `version`. */
int fh_print_json(FILE *f, const ProtobufCMessage *m, int version, struct fh_status *st);
int fh_print_yaml(FILE *f, const ProtobufCMessage *m, int version, struct fh_status *st);
/* A string as a JSON string with its quotes. */
void fh_print_quoted(FILE *f, const char *s);
/* A value as YAML: as it stands, or for a `text` that other readers would take for something else in quotes. Returns
 * its width. */
int fh_print_yaml_word(FILE *f, const char *s, int text);

#endif
