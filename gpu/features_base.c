/* The loops of features.c for any processor. Pure, any thread. */
#include <math.h>
#include <string.h>

#include "gpu/env.h"
#include "gpu/features.h"
#include "gpu/features_chunk.inc"

void features_rows_base(struct feature_work *w)
{
	rows(w);
}
