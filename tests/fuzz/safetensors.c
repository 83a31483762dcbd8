/* Any bytes as a safetensors file: refused, or every tensor lies inside the file and can be read to its last byte. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/safetensors.h"
#include "proto/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fh_status st = FH_STATUS_INIT;
	struct st_file *f;
	uint8_t *copy = malloc(size ? size : 1); /* exactly as long as the file, so that the sanitizer sees one byte more */
	volatile unsigned sum = 0;

	if (!copy)
		abort();
	memcpy(copy, data, size);
	if (!st_open_memory(copy, size, &f, &st)) {
		for (int i = 0; i < st_count(f); i++) {
			const struct st_tensor *t = st_at(f, i);

			for (size_t k = 0; k < t->bytes; k++)
				sum += ((const uint8_t *)t->data)[k];
			if (!st_find(f, t->name))
				abort();
		}
		st_meta(f, "format");
		st_close(f);
	}
	free(copy);
	return 0;
}
