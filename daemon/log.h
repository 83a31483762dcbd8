/* The daemon's log: logfmt lines on stderr, one write() each. Any thread; a mutex guards the rate table only.
 * A line kind (its message) that comes more than LIMIT_LOG_BURST times in a second is counted and not written; the
 * next line of that kind says how many were left out. */
#ifndef FHD_LOG_H
#define FHD_LOG_H

struct fh_status;

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

void log_level_set(enum log_level level);
/* "debug", "info", "warn", "error" -> level, -1 when it is none of them. */
int log_level_parse(const char *word);

/* log_info("job started", "job=%llu name=%s", id, name): `msg` is a constant and names the kind of line; the rest is
 * logfmt text of the caller's making. Values that may contain spaces or quotes go through %s of log_quote(). */
void log_line(enum log_level level, const char *msg, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
#define log_debug(msg, ...) log_line(LOG_DEBUG, msg, __VA_ARGS__)
#define log_info(msg, ...) log_line(LOG_INFO, msg, __VA_ARGS__)
#define log_warn(msg, ...) log_line(LOG_WARN, msg, __VA_ARGS__)
#define log_error(msg, ...) log_line(LOG_ERROR, msg, __VA_ARGS__)
/* `text` as a quoted logfmt value; the buffer is the thread's own, four of them in turn. */
const char *log_quote(const char *text);
/* msg code="…" error="…" field=…, with st's content. */
void log_status(enum log_level level, const char *msg, const struct fh_status *st);

#endif
