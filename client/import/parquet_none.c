/* Parquet in a build without Arrow: a clear refusal (parquet.h). */
#include "client/import/parquet.h"
#include "proto/status.h"

#ifndef FH_ARROW

int parquet_there(struct fh_status *st)
{
	return fh_fail(st, FH_UNIMPLEMENTED, "this fhctl was built without Parquet: `pip install pyarrow`, then `make ARROW=$(python3 -c "
		       "'import pyarrow; print(pyarrow.get_include()[:-8])')`; or convert the file to CSV");
}

int parquet_read(const char *path, const struct import_options *o, struct import *out, char first_drop[PARQUET_DROP_TEXT],
		 struct fh_status *st)
{
	return parquet_there(st);
}

int parquet_write(const char *path, const struct market_bars *b, int has_volume, struct fh_status *st)
{
	return parquet_there(st);
}

#endif
