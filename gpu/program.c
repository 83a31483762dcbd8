/* The list of models. A new one is a row here, one in spec_keys.c, one in metric_table.c and a folder beside dqn/. */
#include "gpu/program.h"

#include <string.h>

#include "gpu/dqn/dqn.h"

static const struct program *const programs[] = {&dqn_program};

const struct program *program_find(const char *name)
{
	for (unsigned i = 0; i < sizeof programs / sizeof programs[0]; i++)
		if (strcmp(programs[i]->name, name) == 0)
			return programs[i];
	return NULL;
}
