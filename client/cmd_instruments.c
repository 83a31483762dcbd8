/* fhctl instruments: the table of presets as it is compiled in. Needs no daemon. One thread. */
#include <stdio.h>

#include "client/cmd.h"
#include "client/output.h"
#include "client/table.h"
#include "gpu/instruments.h"
#include "proto/text.h"

/* 0.00005 and not 5e-05. */
static void add_plain(struct table *t, double x)
{
	char text[OUT_TEXT];
	int n = snprintf(text, sizeof text, "%.9f", x);

	while (text[n - 1] == '0')
		n--;
	if (text[n - 1] == '.')
		n--;
	table_add(t, "%.*s", n, text);
}

static void print_instruments(void)
{
	static const char *const head[] = {"NAME", "WHAT", "TICK", "MULTIPLIER", "HALF_SPREAD", "FEE", "LOT", "CURRENCY", "SESSION", NULL};
	const struct instrument *i;
	struct table t;

	table_init(&t, head, "llrrrrrll");
	for (int n = 0; (i = instrument_at(n)); n++) {
		table_add(&t, "%s", i->name);
		table_add(&t, "%s", i->what);
		add_plain(&t, i->tick);
		add_plain(&t, i->multiplier);
		add_plain(&t, i->half_spread);
		add_plain(&t, i->fee);
		add_plain(&t, i->lot);
		table_add(&t, "%s", i->currency);
		table_add(&t, "%s", i->session);
	}
	table_print(&t, stdout);
	table_release(&t);
}

/* No message of the protocol has them: they are a table of this program, and of the file format. */
static void write_instruments(int json)
{
	const struct instrument *i;

	printf(json ? "{\n  \"schema_version\": %d,\n  \"instrument\": [" : "schema_version: %d\ninstrument:\n", FH_SCHEMA_VERSION);
	for (int n = 0; (i = instrument_at(n)); n++) {
		const struct { const char *key, *text; double number; } field[] = {
			{"name", i->name, 0}, {"what", i->what, 0}, {"currency", i->currency, 0}, {"tick", NULL, i->tick},
			{"multiplier", NULL, i->multiplier}, {"half_spread", NULL, i->half_spread}, {"fee", NULL, i->fee}, {"lot", NULL, i->lot},
			{"session", i->session, 0}, {"hours", i->hours, 0},
		};
		if (json)
			printf("%s\n    {", n ? "," : "");
		for (size_t k = 0; k < sizeof field / sizeof *field; k++) {
			printf(json ? "%s\"%s\": " : "%s%s: ", json ? (k ? ", " : "") : (k ? "    " : "  - "), field[k].key);
			if (field[k].text)
				fh_print_quoted(stdout, field[k].text);
			else
				printf("%.10g", field[k].number);
			if (!json)
				printf("\n");
		}
		if (json)
			printf("}");
	}
	if (json)
		printf("\n  ]\n}\n");
}

static int run_instruments(struct ctx *c)
{
	if (c->output == OUT_TABLE)
		print_instruments();
	else
		write_instruments(c->output == OUT_JSON);
	return EXIT_DONE;
}

const struct command cmds_instruments[] = {
	{"instruments", GROUP_JOBS, "", "the presets that `instrument: ES` in a job file and --instrument know",
	 "tick, half_spread in prices; multiplier in money a point; fee in money a contract and side. Fees and spreads are\n"
	 "estimates: yours are on your statements. gpu/INSTRUMENTS.md says where every number is from. Needs no daemon.",
	 NULL, 0, 0, OUT_ALL, run_instruments},
	{.name = NULL},
};
