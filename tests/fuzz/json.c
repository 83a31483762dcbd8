/* Any bytes as a JSON array of arrays: refused with a text, or sound bars. The outer bracket is put in front. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/import/import.h"
#include "proto/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fh_status st = FH_STATUS_INIT;
	struct import *m = NULL;
	char path[64];
	int fd;

	if (size < 1)
		return 0;
	fd = memfd_create("fuzz", 0);
	if (fd < 0 || write(fd, "[", 1) != 1 || write(fd, data + 1, size - 1) != (ssize_t)(size - 1))
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);

	struct import_options o = {
		.on_bad_row = data[0] % 3, .on_duplicate = data[0] / 3 % 3, .sort = data[0] / 9 % 2,
		.columns = data[0] & 64 ? "ts,open,high,low,close,-,volume" : NULL, .session = data[0] & 32 ? "17:00" : NULL,
		.bar = data[0] & 32 ? "1d" : NULL,
	};

	if (import_file(path, &o, &m, &st)) {
		if (!st.text[0] || m)
			abort();
	} else {
		struct market_bars b = bars_view(&m->bars);

		for (int64_t i = 0; i < b.bars; i++)
			if (!isfinite(b.open[i]) || !isfinite(b.close[i]) || !(b.high[i] >= b.low[i]) || b.close[i] > b.high[i] ||
			    b.open[i] < b.low[i] || !(b.volume[i] >= 0) || (i && b.ts[i] <= b.ts[i - 1]))
				abort();
		if (b.bars < 1)
			abort();
	}
	import_free(m);
	close(fd);
	return 0;
}
