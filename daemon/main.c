/* fhd: options, then daemon_start and daemon_run. */
#include <argp.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/daemon.h"
#include "daemon/log.h"
#include "proto/wire.h"

enum { OPT_CONFIG = 'c', OPT_HELP = 'h', OPT_PRINT = 256, OPT_KEY };

/* Options that are settings: the option's name is the key with - for _. */
static const struct { const char *option, *key; } setting[] = {
	{"state-dir", "state_dir"}, {"listen", "listen"}, {"publish", "publish"}, {"device", "device"},
	{"slots", "slots"}, {"park", "park"}, {"threads", "threads"}, {"memory", "memory"}, {"stop-timeout", "stop_timeout"},
	{"token-file", "token_file"}, {"log-level", "log_level"},
};
#define SETTINGS ((int)(sizeof setting / sizeof setting[0]))
#define GIVEN_MAX 64

static const struct argp_option options[] = {
	{"config", OPT_CONFIG, "FILE", 0, "read settings from FILE (YAML); options win over it", 0},
	{NULL, OPT_HELP, NULL, OPTION_HIDDEN, NULL, 0},
	{"print-config", OPT_PRINT, NULL, 0, "print the commented default settings and exit", 0},
	{"state-dir", OPT_KEY + 0, "DIR", 0, "where jobs, data sets and checkpoints live", 1},
	{"listen", OPT_KEY + 1, "URL", 0, "ipc:///path or tcp://127.0.0.1:port; may be repeated", 1},
	{"publish", OPT_KEY + 2, "URL", 0, "where samples are published; none: nowhere", 1},
	{"device", OPT_KEY + 3, "DEVICE", 0, "auto, host, cuda or cuda:N", 1},
	{"slots", OPT_KEY + 4, "N", 0, "jobs that train at the same time", 1},
	{"park", OPT_KEY + 5, "N", 0, "trainers kept without a job for the next one of their layout", 1},
	{"threads", OPT_KEY + 6, "N", 0, "CPU threads for training, shared by the slots", 1},
	{"memory", OPT_KEY + 7, "BYTES", 0, "memory for training, suffix K, M, G or T", 1},
	{"stop-timeout", OPT_KEY + 8, "S", 0, "seconds that stopping may take", 1},
	{"token-file", OPT_KEY + 9, "FILE", 0, "lines \"read|submit|admin TOKEN\"", 1},
	{"log-level", OPT_KEY + 10, "LEVEL", 0, "debug, info, warn or error", 1},
	{"insecure-tcp", OPT_KEY + SETTINGS, NULL, 0, "allow tcp:// on addresses other than loopback", 1},
	{0},
};

/* Options come before or behind --config, so they are kept until the file has been read. */
struct given {
	const char *config;
	int n;
	struct { const char *key, *value; } set[GIVEN_MAX];
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct given *g = state->input;
	int i = key - OPT_KEY;

	if (key == OPT_CONFIG) {
		g->config = arg;
	} else if (key == OPT_HELP) {
		argp_state_help(state, stdout, ARGP_HELP_STD_HELP);
	} else if (key == OPT_PRINT) {
		config_print(stdout);
		exit(0);
	} else if (i >= 0 && i <= SETTINGS) {
		if (g->n == GIVEN_MAX)
			argp_error(state, "more than %d options", GIVEN_MAX);
		g->set[g->n].key = i < SETTINGS ? setting[i].key : "insecure_tcp";
		g->set[g->n++].value = i < SETTINGS ? arg : "true";
	} else if (key == ARGP_KEY_ARG) {
		argp_error(state, "unexpected argument %s", arg);
	} else {
		return ARGP_ERR_UNKNOWN;
	}
	return 0;
}

static int read_config(const struct given *g, struct config *c, struct fh_status *st)
{
	int rc = 0, listens = 0;

	config_defaults(c);
	if (g->config)
		rc = config_load(c, g->config, st);
	for (int i = 0; i < g->n && !rc; i++) {
		if (!strcmp(g->set[i].key, "listen") && !listens++)
			memset(c->listen, 0, sizeof c->listen); /* the command line's URLs replace the file's */
		rc = config_set(c, g->set[i].key, g->set[i].value, st);
	}
	return rc ? rc : config_finish(c, st);
}

/* As fhctl: 2 wrong settings, 4 not allowed, 5 somebody else has it, 1 anything else. */
static int exit_code(const struct fh_status *st)
{
	log_status(LOG_ERROR, "fhd cannot start", st);
	switch (st->code) {
	case FH_INVALID:
		return 2;
	case FH_DENIED:
		return 4;
	case FH_CONFLICT:
		return 5;
	default:
		return 1;
	}
}

/* Arenas, markets and checkpoint images come and go for as long as the process lives: each is a mapping of its own that the
 * system gets back, instead of a hole in a heap that grows. */
static void keep_heap_small(void)
{
	mallopt(M_MMAP_THRESHOLD, 1 << 20);
	mallopt(M_ARENA_MAX, 4);
}

int main(int argc, char **argv)
{
	static const struct argp argp = {options, parse, NULL,
					 "fhd trains agents on a GPU or the CPU; fhctl drives it.", NULL, NULL, NULL};
	static struct daemon daemon;
	static struct config config;
	struct given given = {0};
	struct fh_status st = FH_STATUS_INIT;
	int code;

	keep_heap_small();
	argp_err_exit_status = 2;
	argp_program_version = "fhd " FH_VERSION_TEXT; /* the C library's variable: one of our own would be hidden from it */
	argp_parse(&argp, argc, argv, 0, NULL, &given);
	if (read_config(&given, &config, &st))
		return exit_code(&st);
	log_level_set((enum log_level)log_level_parse(config.log_level));
	if (daemon_start(&daemon, &config, &st))
		return exit_code(&st);
	code = daemon_run(&daemon);
	fflush(NULL);
	if (code == DAEMON_EXIT_DEVICE_LOST)
		_exit(code); /* a driver whose device is lost may hang or fault when it is taken down */
	return code;
}
