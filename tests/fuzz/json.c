/* Any bytes as a JSON array of arrays. The first byte chooses columns and length of bars; the outer bracket is put in front. */
#include "tests/fuzz/import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 1)
		return 0;
	judge_import("[", data + 1, size - 1, &(struct import_options){
		.on_bad_row = data[0] % 3, .on_duplicate = data[0] / 3 % 3, .sort = data[0] / 9 % 2,
		.columns = data[0] & 64 ? "ts,open,high,low,close,-,volume" : NULL, .session = data[0] & 32 ? "17:00" : NULL,
		.bar = data[0] & 32 ? "1d" : NULL,
	});
	return 0;
}
