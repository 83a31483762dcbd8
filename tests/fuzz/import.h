/* What csv.c, dbn.c and json.c ask of any bytes read as a market data file: refused with a text, or bars that are finite,
 * ordered in time and consistent. */
#ifndef TESTS_FUZZ_IMPORT_H
#define TESTS_FUZZ_IMPORT_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/import/import.h"
#include "proto/status.h"

static inline void judge_bars(const struct market_bars *b)
{
	for (int64_t i = 0; i < b->bars; i++) {
		if (!isfinite(b->open[i]) || !isfinite(b->high[i]) || !isfinite(b->low[i]) || !isfinite(b->close[i]) || !(b->volume[i] >= 0))
			abort();
		if (b->high[i] < b->low[i] || b->close[i] > b->high[i] || b->open[i] < b->low[i] || (i && b->ts[i] <= b->ts[i - 1]))
			abort();
	}
	if (b->bars < 1)
		abort();
}

/* `front` is put in front of the bytes, so that no input is spent on finding it. */
static inline void judge_import(const char *front, const uint8_t *data, size_t size, const struct import_options *o)
{
	struct fh_status st = FH_STATUS_INIT;
	struct import *m = NULL;
	char path[64];
	int fd = memfd_create("fuzz", 0);

	if (fd < 0 || write(fd, front, strlen(front)) != (ssize_t)strlen(front) || write(fd, data, size) != (ssize_t)size)
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (!import_file(path, o, &m, &st)) {
		struct market_bars b = bars_view(&m->bars);

		judge_bars(&b);
	} else if (!st.text[0] || m) {
		abort();
	}
	import_free(m);
	close(fd);
}

#endif
