/* The metric tables by model, apart from the programs behind them: a client prints names, units and warnings without
 * linking a backend. A new model is a row here as well. Pure data, any thread. */
#include <string.h>

#include "gpu/dqn/model.h"

static const struct { const char *model; const struct metric *metric; } tables[] = {{"dqn", dqn_metric}};

const struct metric *metric_table(const char *model)
{
	for (unsigned i = 0; i < sizeof tables / sizeof tables[0]; i++)
		if (strcmp(tables[i].model, model) == 0)
			return tables[i].metric;
	return NULL;
}
