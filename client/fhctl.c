/* The command line client of fhd: finds the command in the tables, runs it, turns what happened into an exit code.
 *
 * Options and help come from the tables (options.c, usage.c); a command lives in a cmd_*.c file. One thread; NNG has its
 * own. SIGINT and SIGTERM only raise a flag that every wait looks at; a second one ends the program at once. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/options.h"

static void on_signal(int number)
{
	if (signal_seen)
		_exit(number == SIGTERM ? EXIT_SIGTERM : EXIT_SIGINT);
	__atomic_store_n(&signal_seen, number, __ATOMIC_RELAXED); /* any thread may run this */
}

static void catch_signals(void)
{
	struct sigaction a = {.sa_handler = on_signal};

	sigemptyset(&a.sa_mask);
	sigaction(SIGINT, &a, NULL);
	sigaction(SIGTERM, &a, NULL);
}

/* fhctl help, fhctl help dataset, fhctl help dataset import, fhctl start --help. */
static int help(struct ctx *c)
{
	int words;

	if (!c->cmd && c->argc > 0)
		c->cmd = command_find(c->argv, c->argc, &words);
	if (c->cmd)
		usage_command(stdout, c->cmd);
	else if (c->argc == 0)
		usage_all(stdout);
	else if (!usage_group(stdout, c->argv[0])) {
		fprintf(stderr, "fhctl help: no command %.60s; fhctl help lists them\n", c->argv[0]);
		return EXIT_USAGE;
	}
	return EXIT_DONE;
}

static int usage_error(struct ctx *c, const struct fh_status *st)
{
	ctx_fail(c, st);
	if (c->cmd)
		fprintf(stderr, "Usage: fhctl %s%s%s%s    (fhctl help %s tells more)\n", c->cmd->name,
			c->cmd->opts && c->cmd->opts->name ? " [OPTION]..." : "", c->cmd->args && *c->cmd->args ? " " : "",
			c->cmd->args ? c->cmd->args : "", c->cmd->name);
	else if (!strstr(st->text, "fhctl help"))
		fputs("fhctl help lists the commands.\n", stderr);
	return EXIT_USAGE;
}

/* What could not be printed (a full disk, a closed pipe) is a failure even of a command that went well. */
static int close_output(int code)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return code;
	fprintf(stderr, "fhctl: cannot write the output\n");
	return code ? code : EXIT_JOB;
}

int main(int argc, char **argv)
{
	struct fh_status st = FH_STATUS_INIT;
	struct ctx c;
	enum ask ask;
	int code;

	catch_signals();
	if (options_parse(argc, argv, &c, &ask, &st))
		return usage_error(&c, &st);
	if (ask == ASK_HELP)
		return close_output(help(&c));
	if (ask == ASK_VERSION) {
		printf("fhctl %s (protocol %u)\n", FH_VERSION_TEXT, FH_PROTOCOL);
		return close_output(EXIT_DONE);
	}
	code = c.cmd->run(&c);
	fh_client_free(c.client);
	return close_output(code);
}
