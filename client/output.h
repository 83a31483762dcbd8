/* What commands print: messages as JSON or YAML, tables, numbers for people. stdout is for results, stderr for the rest. */
#ifndef FH_CLIENT_OUTPUT_H
#define FH_CLIENT_OUTPUT_H

#include <stdint.h>
#include <stdio.h>
#include "client/cmd.h"

/* Prints `m` as JSON or YAML (with schema_version) when -o asks for one and returns 1; else returns 0 and the command
 * prints its own table. */
int output_message(const struct ctx *c, const ProtobufCMessage *m);

/* Texts for people, in a caller's buffer; all return buf. */
#define OUT_TEXT 48
char *text_bytes(uint64_t bytes, char buf[OUT_TEXT]);       /* "1.5 MiB" */
char *text_time(uint64_t unix_ns, char buf[OUT_TEXT]);      /* "2024-01-02T03:04:05Z", "-" for 0 */
char *text_duration(double seconds, char buf[OUT_TEXT]);    /* "1h02m", "3m05s", "4.2s" */
char *text_age(uint64_t unix_ns, char buf[OUT_TEXT]);       /* "3m ago", "-" for 0 */
char *text_real(double x, char buf[OUT_TEXT]);              /* six significant digits, no exponent where none is needed */
const char *text_state(Fh__V1__JobState s);                 /* "running" */
/* The same with a colour around it where output_color(1) was said. Static storage. Not for tables: it has no width. */
const char *text_state_painted(Fh__V1__JobState s);
void output_color(int on);
/* A metric of a sample by name, or NaN. */
double sample_value(const Fh__V1__Sample *s, const char *name);
/* A string safe for a terminal: control bytes become '?'. */
char *text_clean(const char *s, char *buf, size_t size);
/* Files are written beside their place and renamed into it. That would put a file where a device or a pipe was, or end a
 * link: FH_INVALID for a path that is anything but a plain file or free. */
int output_place_check(const char *path, const char *field, struct fh_status *st);

#endif
