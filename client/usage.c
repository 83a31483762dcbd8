/* Help texts, all of them made from the tables of commands and options. One thread. */
#include "client/options.h"

#include <ctype.h>
#include <string.h>

#define NAME_COLUMN 22
#define OPTION_COLUMN 24

static const char *const group_title[COMMAND_GROUPS] = {"Jobs", "Data", "Results", "Daemon"};

static void print_command(FILE *f, const struct command *c)
{
	fprintf(f, "  %-*s  %s\n", NAME_COLUMN - 2, c->name, c->help);
}

void usage_all(FILE *f)
{
	const struct command *c;

	fputs("Usage: fhctl [OPTION]... COMMAND [ARGUMENT]...\n"
	      "Drives fhd, the training daemon: starts jobs, watches them, shows what came out.\n",
	      f);
	for (int g = 0; g < COMMAND_GROUPS; g++) {
		fprintf(f, "\n%s\n", group_title[g]);
		for (int i = 0; (c = command_at(i)); i++)
			if ((int)c->group == g)
				print_command(f, c);
	}
	fputs("\nOptions of every command\n", f);
	for (const struct opt *o = global_options; o->name; o++) {
		char left[64];

		snprintf(left, sizeof left, "%s%c%s--%s%s%s", o->letter ? "-" : " ", o->letter ? o->letter : ' ',
			 o->letter ? ", " : "  ", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
		fprintf(f, "  %-*s  %s\n", OPTION_COLUMN, left, o->help);
	}
	fputs("\nfhctl help COMMAND tells more. JOB is the number of a job or the name you gave it.\n"
	      "FHD_URL is the daemon's address, FHD_TOKEN the token where a daemon asks for one.\n"
	      "Exit codes: 0 done, 1 job failed or was stopped (or another failure), 2 usage or specification, 3 not found,\n"
	      "4 not allowed, 5 conflict, 6 daemon unreachable, 7 version mismatch, 8 stream ended early,\n"
	      "9 interrupted and resumable, 124 deadline passed, 130 and 143 signals, 255 outcome unknown.\n",
	      f);
}

void usage_command(FILE *f, const struct command *c)
{
	int any = c->opts && c->opts->name;

	fprintf(f, "Usage: fhctl %s%s%s%s\n\n%c%s%s\n", c->name, any ? " [OPTION]..." : "", c->args && *c->args ? " " : "",
		c->args ? c->args : "", toupper((unsigned char)c->help[0]), c->help + 1, strchr(".?!", c->help[strlen(c->help) - 1]) ? "" : ".");
	if (c->detail)
		fprintf(f, "\n%s%s", c->detail, c->detail[strlen(c->detail) - 1] == '\n' ? "" : "\n");
	if (any)
		fputs("\nOptions\n", f);
	for (const struct opt *o = c->opts; o && o->name; o++) {
		char left[64];

		snprintf(left, sizeof left, "%s%c%s--%s%s%s", o->letter ? "-" : " ", o->letter ? o->letter : ' ',
			 o->letter ? ", " : "  ", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
		fprintf(f, "  %-*s  %s\n", OPTION_COLUMN, left, o->help);
	}
	if (c->outputs & ~(unsigned)OUT_TABLE)
		fprintf(f, "\n-o takes%s%s%s%s.", c->outputs & OUT_TABLE ? " table" : "", c->outputs & OUT_JSON ? " json" : "",
			c->outputs & OUT_YAML ? " yaml" : "", c->outputs & OUT_CSV ? " csv" : "");
	fputs("\nfhctl help lists the options of every command (--connect, --timeout, -o, -q, ...).\n", f);
}

int usage_group(FILE *f, const char *group)
{
	const struct command *c;
	size_t len = strlen(group);
	int n = 0;

	for (int i = 0; (c = command_at(i)); i++) {
		if (strncmp(c->name, group, len) != 0 || c->name[len] != ' ')
			continue;
		if (!n++)
			fprintf(f, "Usage: fhctl %s COMMAND [ARGUMENT]...\n\n", group);
		print_command(f, c);
	}
	if (n)
		fprintf(f, "\nfhctl help %s COMMAND tells more.\n", group);
	return n > 0;
}
