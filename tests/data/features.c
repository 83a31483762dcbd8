/* features FILE TICK MAX_GAP: the 40 features and sigma of every bar of a file, in F64 with 17 digits, for tests in other languages. Changes of a
 * column `symbol` are changes of the contract.
 * One line a bar. One thread. */
#include <stdio.h>
#include <stdlib.h>

#include "client/import/import.h"
#include "proto/status.h"

int main(int argc, char **argv)
{
	struct fh_status st = FH_STATUS_INIT;
	struct import *m;

	if (argc != 4)
		return 2;
	if (import_file(argv[1], NULL, &m, &st)) {
		fprintf(stderr, "%s\n", st.text);
		return 1;
	}
	struct market_bars b = bars_view(&m->bars);
	double *feature = malloc((size_t)b.bars * (FH_MARKET_FEATURES + 1) * sizeof *feature);
	if (!feature)
		return 1;
	double *sigma = feature + b.bars * FH_MARKET_FEATURES;
	struct market_steps steps = {.max_gap = strtod(argv[3], NULL)};
	int64_t *roll;
	if (bars_rolls(&m->bars, &roll, &steps.rolls, &st)) {
		fprintf(stderr, "%s\n", st.text);
		return 1;
	}
	steps.roll = roll;
	market_features_steps64(&b, strtod(argv[2], NULL), &steps, feature, sigma);
	free(roll);
	for (int64_t t = 0; t < b.bars; t++) {
		for (int k = 0; k < FH_MARKET_FEATURES; k++)
			printf("%.17g,", feature[t * FH_MARKET_FEATURES + k]);
		printf("%.17g\n", sigma[t]);
	}
	free(feature);
	import_free(m);
	return 0;
}
