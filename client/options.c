/* Parsing the command line by the tables of the commands; options may stand before, between and after the words.
 *
 * Two passes: the first finds the command (skipping options and, for those known to take one, their values), the second
 * takes every option by the tables of that command and of fhctl itself. One thread. */
#include "client/options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/output.h"
#include "proto/spec.h"

#define TIMEOUT_MAX_S 1e7
#define COMMAND_NAME_MAX 32
#define NEAR_MAX 3 /* edit distance up to which a word is taken for a misspelt one */

const struct opt global_options[] = {
	{"connect", 0, "URL", "address of the daemon, ipc:///path or tcp://host:port (default: $FHD_URL, else the usual sockets)"},
	{"timeout", 0, "SECONDS", "how long the daemon may take to answer (default 10)"},
	{"output", 'o', "FORMAT", "table, json, yaml or csv, where the command has it"},
	{"no-color", 0, NULL, "no colours on a terminal"},
	{"quiet", 'q', NULL, "no notices and no progress, only results and errors"},
	{"help", 'h', NULL, "this help"},
	{"version", 0, NULL, "version of fhctl"},
	{NULL, 0, NULL, NULL},
};

static const struct command *const tables[] = {cmds_start, cmds_instruments, cmds_job, cmds_metrics, cmds_dataset, cmds_dataset_more, cmds_evaluate, cmds_plot,
					       cmds_checkpoint, cmds_admin};
#define TABLES ((int)(sizeof tables / sizeof tables[0]))

const struct command *command_at(int i)
{
	for (int t = 0; t < TABLES; t++)
		for (const struct command *c = tables[t]; c->name; c++)
			if (i-- == 0)
				return c;
	return NULL;
}

const struct command *command_find(char *const *word, int n, int *words)
{
	const struct command *c;

	for (int i = 0; (c = command_at(i)); i++) {
		size_t first = strcspn(c->name, " ");

		if (n < 1 || strlen(word[0]) != first || strncmp(c->name, word[0], first) != 0)
			continue;
		if (!c->name[first]) {
			*words = 1;
			return c;
		}
		if (n >= 2 && !strcmp(c->name + first + 1, word[1])) {
			*words = 2;
			return c;
		}
	}
	return NULL;
}

/* ---------------------------------------------------------------- finding options in the tables */

static const struct opt *by_name(const struct opt *table, const char *name, size_t len)
{
	for (; table && table->name; table++)
		if (strlen(table->name) == len && !strncmp(table->name, name, len))
			return table;
	return NULL;
}

static const struct opt *by_letter(const struct opt *table, char letter)
{
	for (; table && table->name; table++)
		if (table->letter == letter)
			return table;
	return NULL;
}

static const struct opt *find_long(const struct command *cmd, const char *name, size_t len)
{
	const struct opt *o = cmd ? by_name(cmd->opts, name, len) : NULL;

	return o ? o : by_name(global_options, name, len);
}

static const struct opt *find_short(const struct command *cmd, char letter)
{
	const struct opt *o = cmd ? by_letter(cmd->opts, letter) : NULL;

	return o ? o : by_letter(global_options, letter);
}

static int unknown_option(const struct command *cmd, const char *arg, struct fh_status *st)
{
	const struct opt *tables_of[2] = {cmd ? cmd->opts : NULL, global_options}, *near = NULL;
	int best = NEAR_MAX + 1;

	for (int t = 0; t < 2; t++)
		for (const struct opt *o = tables_of[t]; o && o->name; o++) {
			char word[64];
			int d;

			snprintf(word, sizeof word, "%.*s", (int)strcspn(arg, "="), arg);
			d = fh_edit_distance(word + (word[0] == '-' && word[1] == '-' ? 2 : 0), o->name);
			if (d < best) {
				best = d;
				near = o;
			}
		}
	if (near && !strncmp(arg, "--", 2))
		return fh_fail(st, FH_INVALID, "unknown option %.60s, did you mean --%s?", arg, near->name);
	return fh_fail(st, FH_INVALID, "unknown option %.60s", arg);
}

/* ---------------------------------------------------------------- first pass: the command */

/* The words of the line without options; the value of an option that some table says takes one is no word. */
static int find_words(int argc, char **argv, char **word, int max)
{
	int n = 0, only_words = 0;

	for (int i = 1; i < argc && n < max; i++) {
		const char *a = argv[i];
		const struct opt *o = NULL;

		if (only_words || a[0] != '-' || !a[1]) {
			word[n++] = argv[i];
			continue;
		}
		if (!strcmp(a, "--")) {
			only_words = 1;
			continue;
		}
		/* Options before the command's name are fhctl's own; the command's are behind it and do not matter here, as
		 * its name is one or two words that stand together. */
		if (a[1] == '-')
			o = strchr(a, '=') ? NULL : by_name(global_options, a + 2, strlen(a + 2));
		else if (!a[2])
			o = by_letter(global_options, a[1]);
		if (o && o->arg)
			i++;
	}
	return n;
}

/* The nearest name of a command, or of a group of them ("dataset"); "" when none is near. */
static void nearest_command(const char *word, char near[COMMAND_NAME_MAX])
{
	const struct command *c;
	int best = NEAR_MAX;

	near[0] = 0;
	for (int i = 0; (c = command_at(i)); i++) {
		size_t whole = strlen(c->name), group = strcspn(c->name, " ");

		for (size_t len = group;; len = whole) {
			char name[COMMAND_NAME_MAX];
			int d;

			snprintf(name, sizeof name, "%.*s", (int)len, c->name);
			d = fh_edit_distance(word, name);
			if (d < best) {
				best = d;
				strcpy(near, name);
			}
			if (len == whole)
				break;
		}
	}
}

static int unknown_command(char *const *word, int n, struct fh_status *st)
{
	const struct command *c;
	char both[64], list[256], near[COMMAND_NAME_MAX];
	size_t at = 0, len = strlen(word[0]);

	/* "dataset" alone, or with a second word that is none of its own. */
	for (int i = 0; (c = command_at(i)); i++)
		if (!strncmp(c->name, word[0], len) && c->name[len] == ' ' && at < sizeof list)
			at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", c->name + len + 1);
	if (at && n < 2)
		return fh_fail(st, FH_INVALID, "%.30s needs one of: %s", word[0], list);
	if (at)
		return fh_fail(st, FH_INVALID, "%.30s has no command %.30s, but: %s", word[0], word[1], list);
	snprintf(both, sizeof both, "%.30s", word[0]);
	nearest_command(both, near);
	if (!near[0] && n > 1) {
		snprintf(both, sizeof both, "%.30s %.30s", word[0], word[1]);
		nearest_command(both, near);
	}
	if (near[0])
		return fh_fail(st, FH_INVALID, "unknown command %.40s, did you mean %s?", word[0], near);
	return fh_fail(st, FH_INVALID, "unknown command %.40s; fhctl help lists them", word[0]);
}

/* An option in front of the first word that is none of fhctl's own: then that word may be its value and no command. */
static const char *early_unknown(char **argv, const char *first_word)
{
	for (int i = 1; argv[i] && argv[i] != first_word; i++) {
		const char *a = argv[i];

		if (!strncmp(a, "--", 2) && a[2] && !by_name(global_options, a + 2, strcspn(a + 2, "=")))
			return a;
	}
	return NULL;
}

/* ---------------------------------------------------------------- second pass: options and operands */

static int see(struct ctx *c, const struct opt *o, const char *value, struct fh_status *st)
{
	if (c->n_seen == OPT_SEEN_MAX)
		return fh_fail(st, FH_INVALID, "more than %d options", OPT_SEEN_MAX);
	c->seen[c->n_seen].opt = o;
	c->seen[c->n_seen++].value = value;
	return 0;
}

/* argv[*i] is a long option; *i moves over its value. */
static int take_long(struct ctx *c, int argc, char **argv, int *i, struct fh_status *st)
{
	const char *name = argv[*i] + 2, *eq = strchr(name, '=');
	const struct opt *o = find_long(c->cmd, name, eq ? (size_t)(eq - name) : strlen(name));

	if (!o)
		return unknown_option(c->cmd, argv[*i], st);
	if (!o->arg && eq)
		return fh_fail(st, FH_INVALID, "--%s takes no value", o->name);
	if (!o->arg || eq)
		return see(c, o, eq ? eq + 1 : NULL, st);
	if (*i + 1 == argc)
		return fh_fail(st, FH_INVALID, "--%s needs %s", o->name, o->arg);
	return see(c, o, argv[++*i], st);
}

/* argv[*i] is one or more short options: -q, -qf, -o json, -ojson. */
static int take_short(struct ctx *c, int argc, char **argv, int *i, struct fh_status *st)
{
	for (const char *p = argv[*i] + 1; *p; p++) {
		const struct opt *o = find_short(c->cmd, *p);
		int rc;

		if (!o)
			return unknown_option(c->cmd, argv[*i], st);
		if (!o->arg) {
			rc = see(c, o, NULL, st);
			if (rc)
				return rc;
			continue;
		}
		if (p[1])
			return see(c, o, p[1] == '=' ? p + 2 : p + 1, st);
		if (*i + 1 == argc)
			return fh_fail(st, FH_INVALID, "-%c needs %s", *p, o->arg);
		return see(c, o, argv[++*i], st);
	}
	return 0;
}

/* Operands move to the front of argv. `skip` words are the command's name. */
static int take_all(struct ctx *c, int argc, char **argv, int skip, struct fh_status *st)
{
	int only_words = 0, rc = 0;

	c->argv = argv;
	for (int i = 1; i < argc && rc == 0; i++) {
		char *a = argv[i];

		if (only_words || a[0] != '-' || !a[1]) {
			if (skip > 0)
				skip--;
			else
				c->argv[c->argc++] = a;
		} else if (!strcmp(a, "--")) {
			only_words = 1;
		} else if (a[1] == '-') {
			rc = take_long(c, argc, argv, &i, st);
		} else {
			rc = take_short(c, argc, argv, &i, st);
		}
	}
	return rc;
}

static int take_output(struct ctx *c, struct fh_status *st)
{
	static const struct { const char *word; unsigned bit; } format[] = {
		{"table", OUT_TABLE}, {"json", OUT_JSON}, {"yaml", OUT_YAML}, {"csv", OUT_CSV},
	};
	const char *word = opt_text(c, "output");
	unsigned has = c->cmd->outputs ? c->cmd->outputs : OUT_TABLE;
	char list[64] = "";
	size_t at = 0;

	c->output = has & -has;
	if (!word)
		return 0;
	for (size_t i = 0; i < sizeof format / sizeof format[0]; i++) {
		if (has & format[i].bit && !strcmp(word, format[i].word)) {
			c->output = format[i].bit;
			return 0;
		}
		if (has & format[i].bit)
			at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", format[i].word);
	}
	return fh_fail(st, FH_INVALID, "this command has no -o %.20s; it has %s", word, list);
}

static int take_globals(struct ctx *c, struct fh_status *st)
{
	double seconds = (double)FH_CALL_TIMEOUT_MS / 1000;
	int rc = opt_real(c, "timeout", 1e-3, TIMEOUT_MAX_S, &seconds, st);

	if (rc)
		return rc;
	c->timeout_ms = (int64_t)ceil(seconds * 1000);
	c->timeout_given = opt_text(c, "timeout") != NULL;
	c->connect = opt_text(c, "connect");
	c->quiet = opt_flag(c, "quiet");
	output_color(isatty(STDOUT_FILENO) && !opt_flag(c, "no-color") && !getenv("NO_COLOR"));
	return take_output(c, st);
}

static int check_operands(const struct ctx *c, struct fh_status *st)
{
	if (c->argc < c->cmd->args_min)
		return fh_fail(st, FH_INVALID, "%s is missing", c->cmd->args);
	if (c->argc > c->cmd->args_max)
		return fh_fail(st, FH_INVALID, "'%.60s' is one word too many: the command takes %s", c->argv[c->cmd->args_max],
			       c->cmd->args_max ? c->cmd->args : "none");
	return 0;
}

int options_parse(int argc, char **argv, struct ctx *c, enum ask *ask, struct fh_status *st)
{
	char *word[8];
	int n = find_words(argc, argv, word, 8), words = 0, rc, help;

	*c = (struct ctx){.output = OUT_TABLE, .timeout_ms = FH_CALL_TIMEOUT_MS};
	*ask = ASK_RUN;
	help = n > 0 && !strcmp(word[0], "help");
	if (n > 0 && !help)
		c->cmd = command_find(word, n, &words);
	/* An unknown command is said before an unknown option of it. */
	rc = take_all(c, argc, argv, help ? 1 : words, c->cmd || n == 0 || help ? st : NULL);
	if (opt_flag(c, "help") || help) {
		*ask = ASK_HELP;
		if (c->cmd)
			c->argc = 0;
		return 0;
	}
	if (n > 0 && !c->cmd)
		return early_unknown(argv, word[0]) ? unknown_option(NULL, early_unknown(argv, word[0]), st)
						    : unknown_command(word, n, st);
	if (rc)
		return rc;
	if (opt_flag(c, "version")) {
		*ask = ASK_VERSION;
		return 0;
	}
	if (n == 0)
		return fh_fail(st, FH_INVALID, "a command is missing");
	rc = take_globals(c, st);
	return rc ? rc : check_operands(c, st);
}

/* ---------------------------------------------------------------- what commands ask for */

const char *opt_nth(const struct ctx *c, const char *name, int i)
{
	for (int k = 0; k < c->n_seen; k++)
		if (!strcmp(c->seen[k].opt->name, name) && i-- == 0)
			return c->seen[k].value ? c->seen[k].value : "";
	return NULL;
}

int opt_flag(const struct ctx *c, const char *name)
{
	return opt_nth(c, name, 0) != NULL;
}

const char *opt_text(const struct ctx *c, const char *name)
{
	const char *last = NULL, *v;

	for (int i = 0; (v = opt_nth(c, name, i)); i++)
		last = v;
	return last;
}

int opt_int(const struct ctx *c, const char *name, int64_t lo, int64_t hi, int64_t *out, struct fh_status *st)
{
	const char *text = opt_text(c, name);
	long long x;
	char *end;

	if (!text)
		return 0;
	errno = 0;
	x = strtoll(text, &end, 10);
	if (end == text || *end)
		return fh_fail(st, FH_INVALID, "--%s %.40s: a whole number is needed", name, text);
	if (errno || x < lo || x > hi)
		return fh_fail(st, FH_INVALID, "--%s %.40s: allowed are %lld to %lld", name, text, (long long)lo, (long long)hi);
	*out = x;
	return 0;
}

int opt_real(const struct ctx *c, const char *name, double lo, double hi, double *out, struct fh_status *st)
{
	const char *text = opt_text(c, name);
	double x;
	char *end;

	if (!text)
		return 0;
	x = strtod(text, &end);
	if (end == text || *end || !isfinite(x))
		return fh_fail(st, FH_INVALID, "--%s %.40s: a number is needed", name, text);
	if (x < lo || x > hi)
		return fh_fail(st, FH_INVALID, "--%s %.40s: allowed are %g to %g", name, text, lo, hi);
	*out = x;
	return 0;
}
