/* Where the key table of gpu/spec.h comes from: the shell's own sections and one row per model. Pure data, any thread. */
#ifndef FH_GPU_SPEC_KEYS_H
#define FH_GPU_SPEC_KEYS_H

#include "gpu/spec.h"

/* What a model adds to the specification: its keys and the rules between them. */
struct spec_model {
	const char *name;
	const struct spec_key *key;
	int keys;
	/* After every single key has passed its range. FH_INVALID names the field and both values. */
	int (*check)(const struct fh_spec *spec, struct fh_status *st);
};

extern const struct spec_model spec_model_dqn; /* gpu/dqn/spec_keys.c */
const struct spec_model *spec_model_find(const char *name); /* NULL when unknown */

#define SPEC_KEY_MAX 96
#define KEY_AT(field) offsetof(struct fh_spec, field)

#endif
