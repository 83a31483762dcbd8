/* A result code with a sentence for the person who has to act on it.
 *
 * Every function that can fail returns 0 or a negative enum fh_code and takes `struct fh_status *st` last.
 * On success `st` is untouched; on failure it holds the code and a text that names the object, the field and the
 * value. Outputs of a failed function are untouched. Lower layers fill it, the top logs or prints it once.
 * `st` may be NULL where the caller does not care. Any thread; the struct is owned by the caller, nothing to free. */
#ifndef FH_STATUS_H
#define FH_STATUS_H

#include <stdarg.h>

/* The same numbers travel on the wire (fh.proto ErrorCode, positive there). 0 is success. */
enum fh_code {
	FH_OK = 0,
	FH_INVALID = -1,       /* the request or specification is wrong; `field` names the place */
	FH_NOT_FOUND = -2,     /* no such job, data set, checkpoint */
	FH_DENIED = -3,        /* the caller's role does not allow it */
	FH_CONFLICT = -4,      /* name taken by something else, state does not allow it, object in use */
	FH_EXHAUSTED = -5,     /* a bound of limits.h, memory of the device or the host, disk */
	FH_UNAVAILABLE = -6,   /* daemon unreachable, draining, device missing */
	FH_VERSION = -7,       /* protocol versions do not match */
	FH_DEADLINE = -8,      /* the time given is over; the outcome is known not to have happened or does not matter */
	FH_UNIMPLEMENTED = -9, /* a call this build does not know */
	FH_CORRUPT = -10,      /* a file or message fails its own check */
	FH_IO = -11,           /* the operating system refused a read, write, sync or rename */
	FH_DEVICE = -12,       /* a CUDA or cuBLAS call failed; the text has its name */
	FH_DEVICE_LOST = -13,  /* the same, and the device context is beyond repair: the process must end */
	FH_DIVERGED = -14,     /* training produced non-finite values ten steps in a row */
	FH_INTERRUPTED = -15,  /* stopped by a signal or a stop request; resumable */
	FH_UNKNOWN = -16,      /* the request was sent and no answer came: it may or may not have happened */
	FH_INTERNAL = -17      /* our mistake */
};

#define FH_FIELD_MAX 96
#define FH_TEXT_MAX 512

struct fh_status {
	int code;                  /* enum fh_code */
	char field[FH_FIELD_MAX];  /* dotted path of the offending key, "" when there is none */
	char text[FH_TEXT_MAX];    /* one sentence, no newline, UTF-8 */
};

#define FH_STATUS_INIT {0, "", ""}

/* Fills `st` (NULL allowed) and returns `code`, so that `return fh_fail(st, FH_IO, "…", …);` reads well. */
int fh_fail(struct fh_status *st, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The same with the dotted path of the key at fault. */
int fh_fail_field(struct fh_status *st, int code, const char *field, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
#ifdef __clang_analyzer__ /* tells the analyzer that a failure is never 0 */
#define fh_fail(st, code, ...) (fh_fail(st, code, __VA_ARGS__), (code))
#define fh_fail_field(st, code, field, ...) (fh_fail_field(st, code, field, __VA_ARGS__), (code))
#endif
/* Puts "prefix: " in front of the text already there; returns st's code. */
int fh_prefix(struct fh_status *st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* "invalid", "not found", … for logs and tables. Static storage. */
const char *fh_code_name(int code);

#endif
