/* Any bytes as a DBN file, under every rule and choice of instrument. The first byte chooses; the magic is put in front. */
#include "tests/fuzz/import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 1)
		return 0;
	judge_import("DBN", data + 1, size - 1, &(struct import_options){
		.on_bad_row = data[0] % 3, .on_duplicate = data[0] / 3 % 3, .sort = data[0] / 9 % 2,
		.symbol = data[0] & 64 ? "FHZ4" : NULL, .has_instrument_id = (data[0] & 192) == 128, .instrument_id = 77,
		.bar = (data[0] & 32) ? "1h" : NULL,
	});
	return 0;
}
