/* What a file of commands needs: the table entry of a command, the context it runs in, options, calls, failing.
 *
 * A cmd_*.c file exports one table, `const struct command cmds_x[]`, ended by an entry without a name; client/fhctl.c
 * lists the tables. The entry is the one place for a command: usage text, option parsing and dispatch come from it.
 * Global options (--connect, --timeout, -o, …) are taken by fhctl.c wherever they stand and are in the context already.
 * One thread. Everything in the context lives until the command returns. */
#ifndef FH_CLIENT_CMD_H
#define FH_CLIENT_CMD_H

#include <stdint.h>
#include "client/fhclient.h"
#include "proto/status.h"

struct ctx;

/* Headings of `fhctl help`, in their order there. */
enum command_group { GROUP_JOBS, GROUP_DATA, GROUP_RESULTS, GROUP_DAEMON, COMMAND_GROUPS };

struct opt {
	const char *name;  /* long name without dashes; ends a table when NULL */
	char letter;       /* short form or 0 */
	const char *arg;   /* what the value is called in the help ("N", "FILE"); NULL: a flag */
	const char *help;  /* one line */
};

struct command {
	const char *name;        /* "start", or two words: "dataset import" */
	enum command_group group;
	const char *args;        /* operands in the usage line: "JOB", "[SPEC]", "FILE" */
	const char *help;        /* one line */
	const char *detail;      /* more paragraphs and examples for --help, or NULL */
	const struct opt *opts;  /* or NULL */
	int args_min, args_max;  /* number of operands */
	unsigned outputs;        /* OUT_* bits of the -o values it knows; the first of table, json, yaml, csv is default */
	int (*run)(struct ctx *c); /* returns the exit code */
};

enum { OUT_TABLE = 1, OUT_JSON = 2, OUT_YAML = 4, OUT_CSV = 8, OUT_ALL = OUT_TABLE | OUT_JSON | OUT_YAML };

/* The exit codes of fhctl. */
enum exit_code {
	EXIT_DONE = 0, EXIT_JOB = 1, EXIT_USAGE = 2, EXIT_MISSING = 3, EXIT_DENIED = 4, EXIT_CONFLICT = 5, EXIT_UNREACHABLE = 6,
	EXIT_VERSION = 7, EXIT_STREAM = 8, EXIT_RESUMABLE = 9, EXIT_DEADLINE = 124, EXIT_SIGINT = 130, EXIT_SIGTERM = 143,
	EXIT_UNKNOWN = 255
};
int exit_code_of(int fh_code);

#define OPT_SEEN_MAX 64 /* options on one command line */

struct ctx {
	const struct command *cmd;
	int argc;               /* operands only */
	char **argv;
	unsigned output;        /* one OUT_* bit */
	int quiet;
	const char *connect;    /* --connect or NULL */
	int64_t timeout_ms;     /* of one call; FH_CALL_TIMEOUT_MS unless --timeout */
	int timeout_given;
	struct fh_client *client; /* NULL until the first ctx_call() */
	struct { const struct opt *opt; const char *value; } seen[OPT_SEEN_MAX];
	int n_seen;
};

/* ---- options: `name` is the long name */
int opt_flag(const struct ctx *c, const char *name);
const char *opt_text(const struct ctx *c, const char *name);        /* the last one given, NULL when absent */
const char *opt_nth(const struct ctx *c, const char *name, int i);  /* the i-th given of a repeatable one, or NULL */
/* Absent: *out stays and 0. FH_INVALID names the option, the value and the range. */
int opt_int(const struct ctx *c, const char *name, int64_t lo, int64_t hi, int64_t *out, struct fh_status *st);
int opt_real(const struct ctx *c, const char *name, double lo, double hi, double *out, struct fh_status *st);

/* ---- calls: connect on first use, then fh_client_call() with the context's deadline (timeout_ms 0) or the given one.
 * 0: *out is the answer (fh_answer_release() it). Otherwise st says what is wrong, the daemon's own words included. */
int ctx_call(struct ctx *c, Fh__V1__Request *req, int64_t timeout_ms, struct fh_answer *out, struct fh_status *st);

/* Prints "fhctl CMD: field: text" and a hint for the person to stderr, returns the exit code:
 * `if (rc) return ctx_fail(c, &st);` */
int ctx_fail(struct ctx *c, const struct fh_status *st);
/* A notice on stderr unless -q. */
void ctx_note(const struct ctx *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- signals: SIGINT and SIGTERM set this number instead of ending the program; calls then return FH_INTERRUPTED.
 * Long loops of their own look at it. exit_code_of_signal(): 130, 143. */
extern volatile int signal_seen;
int exit_code_of_signal(void);

/* The tables, by file. */
extern const struct command cmds_job[];        /* cmd_job.c: stop pause resume list show wait */
extern const struct command cmds_start[];      /* cmd_start.c: start spec */
extern const struct command cmds_instruments[]; /* cmd_instruments.c: instruments */
extern const struct command cmds_metrics[];    /* cmd_metrics.c: metrics */
extern const struct command cmds_admin[];      /* cmd_admin.c: info ping version drain shutdown */
extern const struct command cmds_dataset[];    /* cmd_dataset.c: dataset import|synth|list|show|drop */
extern const struct command cmds_dataset_more[]; /* cmd_dataset_more.c: dataset append|merge|export */
extern const struct command cmds_evaluate[];   /* cmd_evaluate.c: evaluate act */
extern const struct command cmds_checkpoint[]; /* cmd_checkpoint.c: checkpoint list|save|get|drop */
extern const struct command cmds_plot[];       /* cmd_plot.c: plot */

#endif
