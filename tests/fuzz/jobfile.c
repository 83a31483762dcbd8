/* Any bytes as a job file: refused with a text, or a specification that prints and reads back to the same bits. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec.h"
#include "proto/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_job_file job, again;
	char *text = NULL;
	size_t len = 0;
	FILE *f;

	fh_job_file_init(&job);
	if (fh_job_file_parse((const char *)data, size, "fuzz", &job, &st)) {
		if (!st.text[0])
			abort();
		return 0;
	}
	f = open_memstream(&text, &len);
	if (!f || fh_spec_print(f, &job.spec, &st) || fclose(f))
		abort();
	fh_job_file_init(&again);
	if (fh_job_file_parse(text, len, "printed", &again, &st) || fh_spec_difference(&job.spec, &again.spec))
		abort();
	free(text);
	return 0;
}
