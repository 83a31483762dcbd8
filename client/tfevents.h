/* Samples as an event file of TensorBoard: a scalar per metric and sample, tagged report/loss, validation/sharpe, test_online/return.
 *
 * One file a job with a name that follows from the job, so that the same command again replaces it and never doubles a curve. The
 * file is complete after every sample (a viewer may read it meanwhile). One thread. */
#ifndef FH_CLIENT_TFEVENTS_H
#define FH_CLIENT_TFEVENTS_H

#include <stddef.h>
#include <stdint.h>

#include "proto/fh.pb-c.h"
#include "proto/status.h"

struct tfevents;

/* Makes DIR and its run folder (DIR/name, or DIR/job-ID). FH_IO, FH_EXHAUSTED; FH_INVALID where something else has the file's name. */
int tfevents_open(const char *dir, const Fh__V1__Job *job, struct tfevents **out, struct fh_status *st);
/* State changes and values that are not finite are left out. FH_IO. */
int tfevents_add(struct tfevents *t, const Fh__V1__Sample *s, struct fh_status *st);
/* Path of the file and scalars in it, also before it is closed. */
const char *tfevents_path(const struct tfevents *t);
int64_t tfevents_scalars(const struct tfevents *t);
/* FH_IO when the last bytes did not reach the file. NULL is fine. */
int tfevents_close(struct tfevents *t, struct fh_status *st);

/* CRC-32C and the form of it that records carry. */
uint32_t crc32c(const void *data, size_t n);
uint32_t crc32c_masked(const void *data, size_t n);

#endif
