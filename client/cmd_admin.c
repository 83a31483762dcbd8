/* fhctl info, ping, version, drain and shutdown. One thread. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/cmd.h"
#include "client/output.h"
#include "client/wait.h"
#include "proto/text.h"

static int call_ping(struct ctx *c, struct fh_answer *a, struct fh_status *st)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__PingRequest ping = FH__V1__PING_REQUEST__INIT;

	req.call_case = FH__V1__REQUEST__CALL_PING;
	req.ping = &ping;
	return ctx_call(c, &req, 0, a, st);
}

static int run_ping(struct ctx *c)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_answer a;
	int64_t begin = wait_now_ns();

	if (call_ping(c, &a, &st))
		return ctx_fail(c, &st);
	if (!output_message(c, &a.reply->ping->base))
		printf("fhd %s at %s answered in %.1f ms\n", a.reply->ping->version ? a.reply->ping->version : "?",
		       fh_client_address(c->client), (double)(wait_now_ns() - begin) * 1e-6);
	fh_answer_release(&a);
	return EXIT_DONE;
}

/* Who holds the device's memory; together it is all of it. */
static void print_memory(const Fh__V1__InfoReply *i)
{
	char t[OUT_TEXT], u[OUT_TEXT];

	printf("Memory       %s free of %s", text_bytes(i->memory_free, t), text_bytes(i->memory_total, u));
	for (size_t k = 0; k < i->n_memory; k++)
		if (i->memory[k]->bytes && i->memory[k]->owner && strcmp(i->memory[k]->owner, "free"))
			printf("; %s %s", i->memory[k]->owner, text_bytes(i->memory[k]->bytes, t));
	putchar('\n');
	if (i->pinned_bytes)
		printf("             %s of the host page-locked\n", text_bytes(i->pinned_bytes, t));
}

/* What a trainer takes, by role. */
static void print_trainer(const Fh__V1__TrainerUse *t)
{
	char a[OUT_TEXT], b[OUT_TEXT], c[OUT_TEXT], d[OUT_TEXT], e[OUT_TEXT], f[OUT_TEXT];
	const Fh__V1__MemoryUse *m = t->planned;

	printf("  %s job %-6" PRIu64 " %s", t->parked ? "parked, last" : "training    ", t->job, text_bytes(t->device_bytes, a));
	if (m)
		printf(": replay %s, parameters %s, optimizer %s, environments %s, scratch %s", text_bytes(m->replay, b),
		       text_bytes(m->parameters, c), text_bytes(m->optimizer, d), text_bytes(m->environments, e), text_bytes(m->scratch, f));
	if (t->graphs)
		printf("; %" PRIu32 " graph%s, %s", t->graphs, t->graphs == 1 ? "" : "s", text_bytes(t->graph_bytes, a));
	putchar('\n');
}

static void print_jobs(const Fh__V1__InfoReply *i)
{
	char t[OUT_TEXT];

	printf("Jobs         %" PRIu32 " running, %" PRIu32 " queued, %" PRIu32 " in all; %" PRIu32 " slot%s\n", i->jobs_running,
	       i->jobs_queued, i->jobs_total, i->slots, i->slots == 1 ? "" : "s");
	if (i->jobs_finishing)
		printf("             %" PRIu32 " more write their last checkpoint\n", i->jobs_finishing);
	printf("Trainers     %" PRIu32 " parked, %s held; %" PRIu64 " made, %" PRIu64 " used again, %" PRIu64 " evicted\n", i->trainers_parked,
	       text_bytes(i->trainer_bytes, t), i->trainers_made, i->trainers_reused, i->trainers_evicted);
	for (size_t k = 0; k < i->n_trainer; k++)
		print_trainer(i->trainer[k]);
}

static void print_info(const Fh__V1__InfoReply *i, const char *url)
{
	char t[OUT_TEXT], u[OUT_TEXT];

	printf("Daemon       fhd %s at %s, %s\n", i->version ? i->version : "?", url, i->state ? i->state : "?");
	printf("Since        %s  (%s)\n", text_time(i->started_ns, t), text_age(i->started_ns, u));
	printf("Backend      %s%s%s%s%s%s%s\n", i->backend ? i->backend : "?", i->device && *i->device ? ": " : "", i->device ? i->device : "",
	       i->driver && *i->driver ? ", driver " : "", i->driver ? i->driver : "", i->compute_capability ? ", compute capability " : "",
	       i->compute_capability ? i->compute_capability : "");
	if (i->device_note && *i->device_note)
		printf("             %s\n", i->device_note);
	print_memory(i);
	print_jobs(i);
	printf("Data sets    %" PRIu32 ", %s resident\n", i->datasets, text_bytes(i->dataset_bytes, t));
	printf("Connections  %" PRIu32 "; %" PRIu64 " samples dropped, %" PRIu64 " listeners revived, %" PRIu32 " threads\n", i->connections,
	       i->samples_dropped, i->relistens, i->threads);
	printf("State        %s\n", i->state_dir ? i->state_dir : "?");
	if (i->publish_url && *i->publish_url)
		printf("Publishes    %s\n", i->publish_url);
}

static int run_info(struct ctx *c)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__InfoRequest info = FH__V1__INFO_REQUEST__INIT;
	struct fh_status st = FH_STATUS_INIT;
	struct fh_answer a;

	req.call_case = FH__V1__REQUEST__CALL_INFO;
	req.info = &info;
	if (ctx_call(c, &req, 0, &a, &st))
		return ctx_fail(c, &st);
	if (!output_message(c, &a.reply->info->base))
		print_info(a.reply->info, fh_client_address(c->client));
	fh_answer_release(&a);
	return EXIT_DONE;
}

/* Both versions; daemon is NULL where none answers. */
static void print_versions(const struct ctx *c, const char *daemon)
{
	const char *quote = c->output == OUT_JSON ? "\"" : "", *comma = c->output == OUT_JSON ? ",\n  " : "\n";

	if (c->output == OUT_TABLE) {
		printf("fhctl %s (protocol %u)\n", FH_VERSION_TEXT, FH_PROTOCOL);
		if (daemon)
			printf("fhd   %s at %s\n", daemon, fh_client_address(c->client));
		return;
	}
	printf("%s%sschema_version%s: %d%s%sfhctl%s: \"%s\"%s%sprotocol%s: %u", c->output == OUT_JSON ? "{\n  " : "", quote, quote,
	       FH_SCHEMA_VERSION, comma, quote, quote, FH_VERSION_TEXT, comma, quote, quote, FH_PROTOCOL);
	if (daemon) {
		printf("%s%sfhd%s: ", comma, quote, quote);
		fh_print_quoted(stdout, daemon);
	}
	printf("%s", c->output == OUT_JSON ? "\n}\n" : "\n");
}

/* Its own version needs no daemon; a daemon of another protocol is worth an exit code. */
static int run_version(struct ctx *c)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_answer a;
	int rc = call_ping(c, &a, &st);

	print_versions(c, rc ? NULL : a.reply->ping->version ? a.reply->ping->version : "?");
	if (rc == 0) {
		fh_answer_release(&a);
		return EXIT_DONE;
	}
	if (rc == FH_VERSION || rc == FH_INVALID)
		return ctx_fail(c, &st);
	ctx_note(c, "%s", st.text);
	return EXIT_DONE;
}

static int run_drain(struct ctx *c)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__DrainRequest drain = FH__V1__DRAIN_REQUEST__INIT;
	Fh__V1__EmptyReply empty = FH__V1__EMPTY_REPLY__INIT;
	struct fh_status st = FH_STATUS_INIT;
	struct fh_answer a;

	drain.has_off = 1;
	drain.off = opt_flag(c, "off");
	req.call_case = FH__V1__REQUEST__CALL_DRAIN;
	req.drain = &drain;
	if (ctx_call(c, &req, 0, &a, &st))
		return ctx_fail(c, &st);
	fh_answer_release(&a);
	if (output_message(c, &empty.base))
		return EXIT_DONE;
	ctx_note(c, drain.off ? "fhd starts jobs again" : "fhd is draining: running jobs go on, queued ones stay queued");
	return EXIT_DONE;
}

static int run_shutdown(struct ctx *c)
{
	Fh__V1__Request req = FH__V1__REQUEST__INIT;
	Fh__V1__ShutdownRequest down = FH__V1__SHUTDOWN_REQUEST__INIT;
	Fh__V1__EmptyReply empty = FH__V1__EMPTY_REPLY__INIT;
	struct fh_status st = FH_STATUS_INIT;
	struct fh_answer a;

	down.has_now = 1;
	down.now = opt_flag(c, "now");
	req.call_case = FH__V1__REQUEST__CALL_SHUTDOWN;
	req.shutdown = &down;
	if (ctx_call(c, &req, 0, &a, &st))
		return ctx_fail(c, &st);
	fh_answer_release(&a);
	if (output_message(c, &empty.base))
		return EXIT_DONE;
	ctx_note(c, down.now ? "fhd is stopping: a running job goes on from its last checkpoint when fhd is back"
			     : "fhd is stopping: a running job gets a checkpoint and goes on when fhd is back");
	return EXIT_DONE;
}

static const struct opt drain_opts[] = {
	{"off", 0, NULL, "start jobs again"},
	{NULL, 0, NULL, NULL},
};
static const struct opt shutdown_opts[] = {
	{"now", 0, NULL, "without a checkpoint: the running job goes on from its last one"},
	{NULL, 0, NULL, NULL},
};

const struct command cmds_admin[] = {
	{"info", GROUP_DAEMON, "", "version, device, memory, jobs and data sets of the daemon", NULL, NULL, 0, 0, OUT_ALL, run_info},
	{"ping", GROUP_DAEMON, "", "is the daemon there, and how fast does it answer", NULL, NULL, 0, 0, OUT_ALL, run_ping},
	{"version", GROUP_DAEMON, "", "version of fhctl, and of the daemon where one answers", NULL, NULL, 0, 0, OUT_ALL, run_version},
	{"drain", GROUP_DAEMON, "", "start no more jobs; running ones go on", NULL, drain_opts, 0, 0, OUT_ALL, run_drain},
	{"shutdown", GROUP_DAEMON, "", "stop the daemon; the running job is kept and goes on after a restart", NULL, shutdown_opts, 0, 0,
	 OUT_ALL, run_shutdown},
	{.name = NULL},
};
