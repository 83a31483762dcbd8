/* What every command needs at run time: calls with the context's deadline, errors said with a hint, exit codes, signals.
 * One thread; the signal handler only writes signal_seen. */
#include "client/cmd.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

volatile int signal_seen;

int exit_code_of(int code)
{
	switch (code) {
	case FH_OK: return EXIT_DONE;
	case FH_INVALID: return EXIT_USAGE;
	case FH_NOT_FOUND: return EXIT_MISSING;
	case FH_DENIED: return EXIT_DENIED;
	/* What does not fit now: the daemon's bounds and memory are a state of its, like a name that is taken. */
	case FH_CONFLICT: case FH_EXHAUSTED: return EXIT_CONFLICT;
	case FH_UNAVAILABLE: return EXIT_UNREACHABLE;
	case FH_VERSION: case FH_UNIMPLEMENTED: return EXIT_VERSION;
	case FH_DEADLINE: return EXIT_DEADLINE;
	case FH_INTERRUPTED: return signal_seen ? exit_code_of_signal() : EXIT_RESUMABLE;
	case FH_UNKNOWN: return EXIT_UNKNOWN;
	default: return EXIT_JOB;
	}
}

int exit_code_of_signal(void)
{
	return signal_seen == SIGTERM ? EXIT_SIGTERM : EXIT_SIGINT;
}

static int ctx_connect(struct ctx *c, struct fh_status *st)
{
	char url[FH_URL_MAX];
	int rc;

	if (c->client)
		return 0;
	rc = fh_client_url(c->connect, url, st);
	if (rc == 0)
		rc = fh_client_new(url, "fhctl " FH_VERSION_TEXT, &c->client, st);
	if (rc == 0)
		fh_client_interrupt(c->client, &signal_seen);
	return rc;
}

int ctx_call(struct ctx *c, Fh__V1__Request *req, int64_t timeout_ms, struct fh_answer *out, struct fh_status *st)
{
	int rc = ctx_connect(c, st);

	return rc ? rc : fh_client_call(c->client, req, timeout_ms > 0 ? timeout_ms : c->timeout_ms, out, st);
}

/* What the person can do about it; NULL when the text says it all. */
static const char *hint_for(const struct ctx *c, const struct fh_status *st)
{
	const char *name = c->cmd ? c->cmd->name : "";
	int answered = c->client && fh_client_answered(c->client);

	switch (st->code) {
	case FH_UNAVAILABLE:
		if (answered || strstr(st->text, "closed the connection"))
			return NULL;
		if (strstr(st->text, "does not answer"))
			return "It hangs, or is too busy: --timeout SECONDS waits longer.";
		return "Is fhd running? Start it with 'fhd', or say where it is with --connect URL or FHD_URL.";
	case FH_VERSION: return "fhctl and fhd must be of the same release.";
	case FH_DENIED:
		if (answered && !strstr(st->text, "token"))
			return NULL; /* the user's own role */
		return answered ? "The token is what FHD_TOKEN holds." : "Is this user in the group of the daemon's socket?";
	case FH_UNKNOWN: return "Look with 'fhctl list' or 'fhctl show JOB' before you repeat it.";
	case FH_DEADLINE: return answered ? NULL : "--timeout SECONDS gives it more time.";
	case FH_NOT_FOUND:
		if (strstr(st->text, "there is no job"))
			return "'fhctl list' shows the jobs.";
		if (strstr(st->text, "there is no checkpoint"))
			return "'fhctl checkpoint list' shows what there is.";
		if (strstr(st->text, "has no checkpoint yet"))
			return "One is written at the end, every run.checkpoint_every steps, and by 'fhctl checkpoint save JOB' while it trains.";
		if (strstr(st->text, "has no checkpoint"))
			return NULL;
		if (!strncmp(name, "dataset", 7) || strstr(st->field, "dataset"))
			return "'fhctl dataset list' shows what there is.";
		return "'fhctl list' shows the jobs.";
	case FH_INVALID: return NULL;
	default: return NULL;
	}
}

int ctx_fail(struct ctx *c, const struct fh_status *st)
{
	const char *name = c->cmd ? c->cmd->name : "", *hint = hint_for(c, st);
	int with_field = st->field[0] && !strstr(st->text, st->field);

	if (st->code == FH_INTERRUPTED && signal_seen) {
		fprintf(stderr, "fhctl %s: interrupted\n", name);
		return exit_code_of_signal();
	}
	fprintf(stderr, "fhctl%s%s: %s%s%s\n", *name ? " " : "", name, with_field ? st->field : "", with_field ? ": " : "", st->text);
	if (hint && !c->quiet)
		fprintf(stderr, "%s\n", hint);
	return exit_code_of(st->code);
}

void ctx_note(const struct ctx *c, const char *fmt, ...)
{
	va_list ap;

	if (c->quiet)
		return;
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}
