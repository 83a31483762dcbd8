/* fhctl metrics --list: what the numbers of reports and evaluations mean, from the tables that make them. Needs no daemon. One thread. */
#include "client/metric_list.h"

#include <math.h>
#include <stdio.h>

#include "client/output.h"
#include "client/table.h"
#include "gpu/eval_metrics.h"
#include "gpu/program.h"
#include "proto/text.h"

#define MODEL "dqn" /* the only one */

static const char *const better[] = {[METRIC_NEUTRAL] = "-", [METRIC_HIGHER] = "higher", [METRIC_LOWER] = "lower"};

/* Row n of both tables, NULL behind the last; *of says where its values are. */
static const struct metric *metric_at(int n, const char **of)
{
	const struct metric *m = metric_table(MODEL);
	int reports = 0;

	while (m[reports].name)
		reports++;
	*of = n < reports ? "report" : "evaluation";
	return n < reports ? m + n : n < reports + EVAL_METRICS ? eval_metric + (n - reports) : NULL;
}

/* "below 0.5", "above 0.05" or "": when a person is warned. */
static void limits(const struct metric *m, char text[OUT_TEXT])
{
	text[0] = 0;
	if (m->warning && isfinite(m->warn_below))
		snprintf(text, OUT_TEXT, "below %g", m->warn_below);
	else if (m->warning && isfinite(m->warn_above))
		snprintf(text, OUT_TEXT, "above %g", m->warn_above);
}

static void print_table(int csv)
{
	static const char *const head[] = {"METRIC", "OF", "UNIT", "BETTER", "WARNS", "MEANING", NULL};
	const struct metric *m;
	const char *of;
	char text[OUT_TEXT];
	struct table t;

	table_init(&t, head, "llllll");
	for (int n = 0; (m = metric_at(n, &of)); n++) {
		limits(m, text);
		table_add(&t, "%s", m->name);
		table_add(&t, "%s", of);
		table_add(&t, "%s", m->unit);
		table_add(&t, "%s", better[m->better]);
		table_add(&t, "%s", csv || *text ? text : "-");
		table_add(&t, "%s", m->help);
	}
	if (csv)
		table_print_csv(&t, stdout);
	else
		table_print(&t, stdout);
	table_release(&t);
}

/* No message of the protocol has them: they are tables of this program. */
static void write_list(int json)
{
	const struct metric *m;
	const char *of;
	char text[OUT_TEXT];

	printf(json ? "{\n  \"schema_version\": %d,\n  \"metric\": [" : "schema_version: %d\nmetric:\n", FH_SCHEMA_VERSION);
	for (int n = 0; (m = metric_at(n, &of)); n++) {
		const struct { const char *key, *value; } field[] = {
			{"name", m->name}, {"of", of}, {"unit", m->unit}, {"better", better[m->better]}, {"meaning", m->help},
			{"warns", text}, {"warning", m->warning},
		};

		limits(m, text);
		for (size_t k = 0; k < sizeof field / sizeof *field - (m->warning ? 0 : 2); k++) {
			if (json)
				printf("%s\"%s\": ", k ? ", " : n ? ",\n    {" : "\n    {", field[k].key);
			else
				printf("%s%s: ", k ? "    " : "  - ", field[k].key);
			fh_print_quoted(stdout, field[k].value);
			printf("%s", json ? "" : "\n");
		}
		printf("%s", json ? "}" : "");
	}
	printf("%s", json ? "\n  ]\n}\n" : "");
}

void metric_list(const struct ctx *c)
{
	if (c->output == OUT_TABLE || c->output == OUT_CSV)
		print_table(c->output == OUT_CSV);
	else
		write_list(c->output == OUT_JSON);
}
