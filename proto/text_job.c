/* Job files: name, labels and the sections of the specification, laid over what is there already; and the commented
 * default that `fhctl spec` prints. Pure functions, any thread. */
#include "proto/text.h"

#include <math.h>
#include <string.h>

#include "gpu/instruments.h"
#include "proto/spec.h"

#define JOB_ARENA_MAX (16u << 20)
#define PATH_MAX_KEY 280   /* section and key, both bounded by the reader */
#define COMMENT_COLUMN 30
#define RANGE_MAX 96

void fh_job_file_init(struct fh_job_file *j)
{
	memset(j, 0, sizeof *j);
	spec_defaults(&j->spec);
}

/* Puts "what:line: " in front of what went wrong with a key. */
static int at_line(struct fh_status *st, const char *what, const struct fh_node *n)
{
	return fh_prefix(st, "%.128s:%d", what, n->line);
}

static const char *kind_word(const struct fh_node *n)
{
	return n->kind == FH_NODE_LIST ? "a list" : "a mapping";
}

static int is_null(const struct fh_node *n)
{
	return !n->quoted && (!strcmp(n->text, "null") || !strcmp(n->text, "Null") || !strcmp(n->text, "NULL") ||
			      !strcmp(n->text, "~"));
}

/* A single value that is there. */
static int need_scalar(const char *path, const struct fh_node *n, struct fh_status *st)
{
	if (n->kind != FH_NODE_SCALAR)
		return fh_fail_field(st, FH_INVALID, path, "%.80s is %s, a single value is needed", path, kind_word(n));
	if (is_null(n))
		return fh_fail_field(st, FH_INVALID, path, "%.80s is null: leave the key out for its default", path);
	return 0;
}

int fh_job_file_label(struct fh_job_file *j, const char *key, const char *value, struct fh_status *st)
{
	Fh__V1__Label one = FH__V1__LABEL__INIT, *list = &one;
	int i, rc;

	one.key = (char *)key;
	one.value = (char *)value;
	rc = fh_labels_check(&list, 1, st);
	if (rc)
		return rc;
	for (i = 0; i < j->labels; i++)
		if (!strcmp(j->label[i].key, key))
			break;
	if (i == FH_LABELS_MAX)
		return fh_fail_field(st, FH_INVALID, "labels", "more than %d labels", FH_LABELS_MAX);
	strcpy(j->label[i].key, key);
	strcpy(j->label[i].value, value);
	if (i == j->labels)
		j->labels++;
	return 0;
}

static int take_labels(struct fh_job_file *j, const struct fh_node *n, const char *what, struct fh_status *st)
{
	if (n->kind == FH_NODE_SCALAR && !n->text[0])
		return 0;
	if (n->kind != FH_NODE_MAP) {
		fh_fail_field(st, FH_INVALID, "labels", "labels is %s, lines like \"team: a\" are needed",
			      n->kind == FH_NODE_LIST ? "a list" : "a single value");
		return at_line(st, what, n);
	}
	for (const struct fh_node *c = n->child; c; c = c->next) {
		char path[PATH_MAX_KEY];
		int rc;

		snprintf(path, sizeof path, "labels.%s", c->key);
		rc = need_scalar(path, c, st);
		if (rc == 0)
			rc = fh_job_file_label(j, c->key, c->text, st);
		if (rc)
			return at_line(st, what, c);
	}
	return 0;
}

static int is_section(const char *word)
{
	int n;
	const struct spec_key *key = spec_keys(&n);
	size_t len = strlen(word);

	for (int i = 0; i < n; i++)
		if (!strncmp(key[i].path, word, len) && key[i].path[len] == '.')
			return 1;
	return 0;
}

/* The nearest word that may stand at the top of a job file, or NULL. */
static const char *nearest_top(const char *word, char buf[FH_NAME_MAX])
{
	int n, best = 3, d;
	const struct spec_key *key = spec_keys(&n);
	const char *found = NULL;

	for (int i = -3; i < n; i++) {
		char top[FH_NAME_MAX];
		const char *path = i == -3 ? "instrument" : i == -2 ? "name" : i == -1 ? "labels" : key[i].path;

		snprintf(top, sizeof top, "%.*s", (int)strcspn(path, "."), path);
		d = fh_edit_distance(word, top);
		if (d < best) {
			best = d;
			strcpy(buf, top);
			found = buf;
		}
	}
	return found;
}

static int take_section(struct fh_job_file *j, const struct fh_node *n, const char *what, struct fh_status *st)
{
	if (n->kind == FH_NODE_SCALAR && !n->text[0])
		return 0;
	if (n->kind != FH_NODE_MAP) {
		fh_fail_field(st, FH_INVALID, n->key, "%.80s is %s, lines like \"key: value\" below it are needed", n->key,
			      n->kind == FH_NODE_LIST ? "a list" : "a single value");
		return at_line(st, what, n);
	}
	for (const struct fh_node *c = n->child; c; c = c->next) {
		char path[PATH_MAX_KEY];
		int rc = 0;

		snprintf(path, sizeof path, "%s.%s", n->key, c->key);
		if (spec_key_find(path))
			rc = need_scalar(path, c, st);
		if (rc == 0)
			rc = fh_spec_set(&j->spec, path, c->text, st);
		if (rc)
			return at_line(st, what, c);
	}
	return 0;
}

static int take_unknown(const struct fh_node *n, const char *what, struct fh_status *st)
{
	char buf[FH_NAME_MAX], path[PATH_MAX_KEY];
	const char *top = nearest_top(n->key, buf);

	if (n->kind == FH_NODE_MAP && n->child && (!top || is_section(top))) {
		/* A misspelt section: its first key says better what was meant. */
		snprintf(path, sizeof path, "%s.%s", top ? top : n->key, n->child->key);
		if (fh_spec_nearest(path)) {
			const char *meant = fh_spec_nearest(path);

			snprintf(path, sizeof path, "%s.%s", n->key, n->child->key);
			fh_unknown_key(path, meant, st);
			return at_line(st, what, n->child);
		}
	}
	fh_unknown_key(n->key, top ? top : fh_spec_nearest(n->key), st);
	return at_line(st, what, n);
}

static int find_instrument(const char *name, const struct instrument **out, struct fh_status *st)
{
	char list[FH_TEXT_MAX / 2];

	*out = instrument_find(name);
	if (*out)
		return 0;
	instrument_names(list, sizeof list);
	return fh_fail_field(st, FH_INVALID, "instrument", "there is no preset \"%.40s\"; there are %s", name, list);
}

int fh_job_file_instrument(struct fh_job_file *j, const char *name, struct fh_status *st)
{
	const struct instrument *i;
	int rc = find_instrument(name, &i, st);

	if (rc)
		return rc;
	instrument_apply(i, &j->spec);
	return 0;
}

/* Whether the file itself gives every key that a preset would: what `fhctl spec` prints does. */
static int env_is_complete(const struct fh_node *root)
{
	static const char *const key[] = {"tick", "multiplier", "half_spread", "fee", "lot"};
	size_t found = 0;

	for (const struct fh_node *n = root->child; n; n = n->next)
		for (const struct fh_node *c = !strcmp(n->key, "env") ? n->child : NULL; c; c = c->next)
			for (size_t i = 0; i < sizeof key / sizeof *key; i++)
				found += c->key && !strcmp(c->key, key[i]);
	return found == sizeof key / sizeof *key;
}

/* `instrument: ES` sets its keys of env before any other line does, wherever it stands. */
static int take_instrument(struct fh_job_file *j, const struct fh_node *root, const char *what, struct fh_status *st)
{
	const struct fh_node *n = root->child;
	const struct instrument *i;
	int rc;

	while (n && strcmp(n->key, "instrument") != 0)
		n = n->next;
	if (!n)
		return 0;
	rc = need_scalar("instrument", n, st);
	if (rc == 0)
		rc = find_instrument(n->text, &i, st);
	if (rc == 0 && env_is_complete(root))
		rc = fh_fail_field(st, FH_INVALID, "instrument", "instrument %s would set nothing: env has tick, multiplier, half_spread, fee and lot; "
				   "leave out those that it shall set", i->name);
	if (rc)
		return at_line(st, what, n);
	instrument_apply(i, &j->spec);
	return 0;
}

/* What `fhctl spec -o json|yaml` prints is a job file too, and carries the version of its schema. */
static int take_version(const struct fh_node *n, const char *what, struct fh_status *st)
{
	char ours[16];
	int rc = need_scalar("schema_version", n, st);

	snprintf(ours, sizeof ours, "%d", FH_SCHEMA_VERSION);
	if (rc == 0 && strcmp(n->text, ours) != 0)
		rc = fh_fail_field(st, FH_INVALID, "schema_version", "schema_version is %.20s, this program reads %s", n->text, ours);
	return rc ? at_line(st, what, n) : 0;
}

static int take_top(struct fh_job_file *j, const struct fh_node *n, const char *what, struct fh_status *st)
{
	int rc;

	if (!strcmp(n->key, "instrument"))
		return 0; /* done */
	if (!strcmp(n->key, "schema_version"))
		return take_version(n, what, st);
	if (!strcmp(n->key, "labels"))
		return take_labels(j, n, what, st);
	if (is_section(n->key))
		return take_section(j, n, what, st);
	if (strcmp(n->key, "name") != 0 && !spec_key_find(n->key))
		return take_unknown(n, what, st);
	rc = need_scalar(n->key, n, st);
	if (rc == 0 && strcmp(n->key, "name") != 0)
		rc = fh_spec_set(&j->spec, n->key, n->text, st);
	else if (rc == 0 && n->text[0]) {
		rc = fh_job_name_check("name", n->text, st);
		if (rc == 0)
			strcpy(j->name, n->text);
	}
	return rc ? at_line(st, what, n) : 0;
}

int fh_job_file_parse(const char *text, size_t len, const char *what, struct fh_job_file *j, struct fh_status *st)
{
	struct fh_job_file out = *j;
	struct fh_arena a;
	struct fh_node *root;
	int rc;

	fh_arena_init(&a, JOB_ARENA_MAX);
	rc = fh_tree_read(text, len, what, &a, &root, st);
	if (rc == 0)
		rc = take_instrument(&out, root, what, st);
	for (const struct fh_node *n = rc ? NULL : root->child; n && rc == 0; n = n->next)
		rc = take_top(&out, n, what, st);
	fh_arena_release(&a);
	if (rc == 0)
		*j = out;
	return rc;
}

/* ---------------------------------------------------------------- the commented default */

/* Round bounds are shorter with an exponent, others are written out. */
static int digits(double bound)
{
	return fabs(bound) >= 1e8 ? 6 : 15;
}

static void range_text(const struct spec_key *k, char out[RANGE_MAX])
{
	const char *pow2 = k->flags & SPEC_POW2 ? ", power of two" : "", *or_auto = k->flags & SPEC_AUTO ? " or auto" : "";
	char words[RANGE_MAX] = "";
	size_t at = 0;

	if (k->type == SPEC_NAME) {
		snprintf(out, RANGE_MAX, "%s", k->flags & SPEC_REQUIRED ? "[required]" : "[name]");
	} else if (k->type == SPEC_ENUM) {
		for (const struct spec_choice *c = k->choice; c->word && at < sizeof words; c++)
			at += (size_t)snprintf(words + at, sizeof words - at, "%s%s", at ? "|" : "", c->word);
		snprintf(out, RANGE_MAX, "[%.90s]", words);
	} else if (k->type == SPEC_INT && k->lo <= -9e18 && k->hi >= 9e18) {
		snprintf(out, RANGE_MAX, "[any 64-bit integer]");
	} else {
		snprintf(out, RANGE_MAX, "%s%.*g .. %.*g%s%s]", k->flags & SPEC_OPEN_LO ? "(" : "[", digits(k->lo), k->lo, digits(k->hi),
			 k->hi, pow2, or_auto);
	}
}

static void print_key(FILE *f, const struct fh_spec *spec, const struct spec_key *k, const char *word, int indent)
{
	char value[2 * FH_NAME_MAX], range[RANGE_MAX];
	int n;

	spec_get(spec, k, value, sizeof value);
	if (k->type == SPEC_REAL && strcmp(value, "auto") != 0)
		fh_real_text(*(const double *)((const char *)spec + k->offset), value, sizeof value);
	n = fprintf(f, "%*s%s:", indent, "", word);
	if (value[0]) {
		fputc(' ', f);
		n += 1 + fh_print_yaml_word(f, value, k->type == SPEC_NAME);
	}
	range_text(k, range);
	fprintf(f, "%*s# %s %s\n", n < COMMENT_COLUMN ? COMMENT_COLUMN - n : 1, "", k->help, range);
}

int fh_spec_print(FILE *f, const struct fh_spec *spec, struct fh_status *st)
{
	int n;
	const struct spec_key *key = spec_keys(&n);
	const char *section = "";
	size_t len = 0;

	fprintf(f, "# A job of fhd: every key with its value, what it means and what it may be. Keys left out keep the default.\n"
		   "# At the top may also stand\n"
		   "#   name: my-job            your own name for the job; starting it again attaches to the same job\n"
		   "#   labels: {team: a}       for fhctl list --label\n"
		   "#   instrument: ES          tick, multiplier, half_spread, fee and lot of a known one, where env does not set them\n");
	for (int i = 0; i < n; i++) {
		const char *dot = strchr(key[i].path, '.');

		if (dot && ((size_t)(dot - key[i].path) != len || strncmp(section, key[i].path, len) != 0)) {
			section = key[i].path;
			len = (size_t)(dot - section);
			fprintf(f, "\n%.*s:\n", (int)len, section);
		}
		print_key(f, spec, key + i, dot ? dot + 1 : key[i].path, dot ? 2 : 0);
	}
	return fflush(f) || ferror(f) ? fh_fail(st, FH_IO, "cannot write the specification") : 0;
}
