/* Checkpoint files: safetensors with one tensor per named part of the state and the specification in the metadata.
 *
 * Any thread; a file may be hostile. Tensors carry the trial axis in front when run.population > 1. */
#ifndef FH_GPU_CHECKPOINT_H
#define FH_GPU_CHECKPOINT_H

#include "gpu/layout.h"

#define CHECKPOINT_FORMAT "fhd-checkpoint"
#define CHECKPOINT_VERSION "1"

struct st_file;

/* Opens, checks format and version, reads the specification (checked and resolved) from the metadata. */
int checkpoint_open(const char *path, struct st_file **out, struct fh_spec *spec, struct fh_status *st);
/* Fills `to` (all trials, plan->tensor[tensor].bytes, padding zero) from the file's tensors of that name. */
int checkpoint_read(const struct st_file *f, const struct plan *plan, int tensor, void *to, struct fh_status *st);
/* The specification as "key=value" lines and back. text of SPEC_TEXT_MAX bytes. */
#define SPEC_TEXT_MAX 8192
void spec_to_text(const struct fh_spec *spec, char *text);
int spec_from_text(const char *text, struct fh_spec *spec, struct fh_status *st);
/* The first key whose difference means another course of training; NULL when there is none. */
const struct spec_key *spec_course_difference(const struct fh_spec *a, const struct fh_spec *b);

#endif
