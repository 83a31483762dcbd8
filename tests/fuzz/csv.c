/* Any bytes as a market data file, under every rule for bad rows and duplicates. The first byte chooses. */
#include "tests/fuzz/import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 1)
		return 0;
	judge_import("", data + 1, size - 1, &(struct import_options){
		.on_bad_row = data[0] % 3, .on_duplicate = data[0] / 3 % 3, .sort = data[0] / 9 % 2,
		.date = data[0] & 128 ? "2024-01-02" : NULL,
	});
	return 0;
}
