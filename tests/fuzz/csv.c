/* Any bytes as a market data file, under every rule for bad rows and duplicates: refused with a text, or bars that are
 * finite, ordered in time and consistent. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/import/import.h"
#include "proto/status.h"

static void judge(const struct import *m)
{
	struct market_bars b = bars_view(&m->bars);

	for (int64_t i = 0; i < b.bars; i++) {
		if (!isfinite(b.open[i]) || !isfinite(b.high[i]) || !isfinite(b.low[i]) || !isfinite(b.close[i]) || !(b.volume[i] >= 0))
			abort();
		if (b.high[i] < b.low[i] || b.close[i] > b.high[i] || b.open[i] < b.low[i] || (i && b.ts[i] <= b.ts[i - 1]))
			abort();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char path[64];
	int fd;

	if (size < 1)
		return 0;
	fd = memfd_create("fuzz", 0);
	if (fd < 0 || write(fd, data + 1, size - 1) != (ssize_t)(size - 1))
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);

	struct fh_status st = FH_STATUS_INIT;
	struct import *m = NULL;
	struct import_options o = {
		.on_bad_row = data[0] % 3, .on_duplicate = data[0] / 3 % 3, .sort = data[0] / 9 % 2,
		.date = data[0] & 128 ? "2024-01-02" : NULL,
	};

	if (!import_file(path, &o, &m, &st))
		judge(m);
	else if (!st.text[0])
		abort();
	import_free(m);
	close(fd);
	return 0;
}
