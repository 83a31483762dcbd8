/* The job specification between its three forms: protobuf JobSpec, struct fh_spec, and text by dotted key.
 *
 * The key tables (gpu/spec_keys.c, gpu/dqn/spec_keys.c) decide everything (type, range, default, help); a key's dotted path is the path of fields in
 * JobSpec. Client and daemon run exactly this code. Pure functions, any thread. */
#ifndef FH_PROTO_SPEC_H
#define FH_PROTO_SPEC_H

#include <stddef.h>
#include "gpu/spec.h"
#include "proto/wire.h"

/* Missing keys take their default; enum numbers, ranges and the rules between keys are checked (spec_check), and a key
 * this build does not know (unknown field) is refused. FH_INVALID with the key in `field`. NULL m: all defaults. */
int fh_spec_from_message(const Fh__V1__JobSpec *m, struct fh_spec *out, struct fh_status *st);
/* Complete: every key present; everything lives in `a`. FH_EXHAUSTED at its cap. */
int fh_spec_to_message(const struct fh_spec *spec, struct fh_arena *a, Fh__V1__JobSpec **out, struct fh_status *st);
/* One key by dotted path from text, as --set and job files do. An unknown key is refused with the nearest one. */
int fh_spec_set(struct fh_spec *spec, const char *path, const char *text, struct fh_status *st);
/* "learn.lr=3e-4". */
int fh_spec_set_pair(struct fh_spec *spec, const char *pair, struct fh_status *st);
/* The known key nearest to `path`, or NULL when none is near enough to be meant. */
const char *fh_spec_nearest(const char *path);
/* The first key whose value differs, or NULL when the two are equal. */
const struct spec_key *fh_spec_difference(const struct fh_spec *a, const struct fh_spec *b);
/* A number that reads back to the same bits, without an exponent where people would write none. */
void fh_real_text(double x, char *text, size_t size);
/* Edit distance with transpositions, ignoring case; for other tables' "did you mean". */
int fh_edit_distance(const char *a, const char *b);
/* FH_INVALID "unknown key, did you mean …?" for `path` with the given nearest word (NULL: without). */
int fh_unknown_key(const char *path, const char *nearest, struct fh_status *st);

#endif
