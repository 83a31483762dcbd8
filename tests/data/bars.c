/* bars FILE [--option[=value]]...: what `fhctl dataset import` would read, as text on stdout, without a daemon.
 *
 * A tool of the Python tests and benches: lines "ts,open,high,low,close,volume" with 17 digits, notices on stderr after "note: ";
 * a refusal is one line on stderr and exit status 1. --count prints the number of bars only. One thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/import/import.h"
#include "proto/status.h"

static const char *value(const char *arg, const char *name)
{
	size_t n = strlen(name);

	return !strncmp(arg, name, n) && arg[n] == '=' ? arg + n + 1 : NULL;
}

static int word(const char *text, const char *first, const char *second)
{
	return !strcmp(text, first) ? 1 : !strcmp(text, second) ? 2 : 0;
}

static int set(struct import_options *o, const char *arg)
{
	const char *v;

	if ((v = value(arg, "--columns")))
		o->columns = v;
	else if ((v = value(arg, "--tz")))
		o->tz = v;
	else if ((v = value(arg, "--dst")))
		o->fold = (enum zone_fold)word(v, "first", "second");
	else if ((v = value(arg, "--date")))
		o->date = v;
	else if ((v = value(arg, "--member")))
		o->member = v;
	else if ((v = value(arg, "--symbol")))
		o->symbol = v;
	else if ((v = value(arg, "--instrument-id"))) {
		o->has_instrument_id = 1;
		o->instrument_id = (uint32_t)strtoul(v, NULL, 10);
	} else if ((v = value(arg, "--price-scale")))
		o->price_scale = strtod(v, NULL);
	else if ((v = value(arg, "--bar")))
		o->bar = v;
	else if ((v = value(arg, "--session")))
		o->session = v;
	else if ((v = value(arg, "--decimal")))
		o->point = *v == 'c' ? ',' : '.';
	else if ((v = value(arg, "--on-bad-row")))
		o->on_bad_row = (enum on_bad_row)word(v, "drop", "repair");
	else if ((v = value(arg, "--on-duplicate")))
		o->on_duplicate = (enum on_duplicate)word(v, "first", "last");
	else if (!strcmp(arg, "--sort"))
		o->sort = 1;
	else
		return -1;
	return 0;
}

int main(int argc, char **argv)
{
	struct import_options o = {0};
	struct fh_status st = FH_STATUS_INIT;
	struct import *m;
	int count = 0;

	for (int i = 2; i < argc; i++)
		if (!strcmp(argv[i], "--count"))
			count = 1;
		else if (set(&o, argv[i])) {
			fprintf(stderr, "bars: no option %s\n", argv[i]);
			return 2;
		}
	if (argc < 2)
		return 2;
	if (import_file(argv[1], &o, &m, &st)) {
		fprintf(stderr, "%s%s%s\n", st.field, st.field[0] ? ": " : "", st.text);
		return 1;
	}
	struct market_bars b = bars_view(&m->bars);
	for (int i = 0; i < m->notes; i++)
		fprintf(stderr, "note: %s\n", m->note[i]);
	if (count)
		printf("%lld\n", (long long)b.bars);
	for (int64_t i = 0; !count && i < b.bars; i++)
		printf("%lld,%.17g,%.17g,%.17g,%.17g,%.17g\n", (long long)b.ts[i], b.open[i], b.high[i], b.low[i], b.close[i], b.volume[i]);
	import_free(m);
	return 0;
}
