/* The header of a safetensors file, token by token. Used by safetensors.c alone; any thread, one cursor each.
 *
 * Functions that return int give 0 or FH_CORRUPT/FH_EXHAUSTED with a text that names the byte, except st_json_take. */
#ifndef FH_GPU_SAFETENSORS_JSON_H
#define FH_GPU_SAFETENSORS_JSON_H

#include <stdint.h>

struct fh_status;

struct st_json { const unsigned char *at, *end, *start; struct fh_status *st; };

/* 1 when [s, end) is well-formed UTF-8. */
int st_json_utf8_valid(const unsigned char *s, const unsigned char *end);
int st_json_bad(struct st_json *j, const char *what);
void st_json_space(struct st_json *j);
/* 1 and past it when the next token is `c`, else 0. */
int st_json_take(struct st_json *j, char c);
int st_json_expect(struct st_json *j, char c);
/* A string into fresh memory; free() it. Never holds a NUL. */
int st_json_string(struct st_json *j, char **out);
/* "[1, 2, 3]" of at most `max` whole numbers. */
int st_json_counts(struct st_json *j, int64_t *out, int max, int *n, const char *too_many);

#endif
