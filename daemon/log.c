/* Logfmt lines; see log.h. The rate table has one entry per message constant (hashed by address): messages are string
 * constants, so the address names the kind. */
#include "daemon/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/limits.h"
#include "proto/status.h"

#define RATE_KINDS 128

struct rate {
	const char *msg;
	time_t second;
	unsigned lines, suppressed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rate rates[RATE_KINDS];
static int level_min = LOG_INFO;

void log_level_set(enum log_level level)
{
	__atomic_store_n(&level_min, (int)level, __ATOMIC_RELAXED);
}

static const char *const level_word[] = {"debug", "info", "warn", "error"};

int log_level_parse(const char *word)
{
	for (int i = 0; i < 4; i++)
		if (!strcmp(word, level_word[i]))
			return i;
	return -1;
}

/* 1 when the line may go out; *suppressed then says how many of its kind did not. */
static int rate_allows(const char *msg, time_t now, unsigned *suppressed)
{
	unsigned at = (unsigned)(((uintptr_t)msg >> 3) * 2654435761u) % RATE_KINDS;
	struct rate *r = &rates[at];
	int allowed = 1;

	pthread_mutex_lock(&lock);
	if (r->msg != msg || r->second != now) {
		*suppressed = r->msg == msg ? r->suppressed : 0;
		*r = (struct rate){.msg = msg, .second = now};
	}
	if (++r->lines > LIMIT_LOG_BURST) {
		r->suppressed++;
		allowed = 0;
	}
	pthread_mutex_unlock(&lock);
	return allowed;
}

void log_line(enum log_level level, const char *msg, const char *fmt, ...)
{
	char line[LIMIT_LOG_LINE];
	struct timespec now;
	struct tm tm;
	unsigned suppressed = 0;
	size_t n;
	va_list ap;

	if ((int)level < __atomic_load_n(&level_min, __ATOMIC_RELAXED))
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	if (!rate_allows(msg, now.tv_sec, &suppressed))
		return;
	gmtime_r(&now.tv_sec, &tm);
	n = strftime(line, sizeof line, "ts=%Y-%m-%dT%H:%M:%S", &tm);
	n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ level=%s msg=\"%s\"", now.tv_nsec / 1000000,
			      level_word[level], msg);
	if (*fmt) {
		int m;

		line[n++] = ' ';
		va_start(ap, fmt);
		m = vsnprintf(line + n, sizeof line - n, fmt, ap);
		va_end(ap);
		n += m < 0 ? 0 : (size_t)m < sizeof line - n ? (size_t)m : sizeof line - n - 1;
	}
	if (suppressed && n < sizeof line - 40)
		n += (size_t)snprintf(line + n, sizeof line - n, " suppressed=%u", suppressed);
	if (n > sizeof line - 2)
		n = sizeof line - 2;
	line[n++] = '\n';
	if (write(STDERR_FILENO, line, n) < 0)
		return; /* nobody listens: nothing to be done about it */
}

const char *log_quote(const char *text)
{
	static __thread char buffer[4][1100];
	static __thread unsigned turn;
	char *out = buffer[turn++ % 4];
	size_t n = 0;

	out[n++] = '"';
	for (; *text && n < sizeof buffer[0] - 4; text++) {
		unsigned char ch = (unsigned char)*text;

		if (ch == '"' || ch == '\\')
			out[n++] = '\\';
		out[n++] = ch < 0x20 || ch == 0x7f ? ' ' : (char)ch;
	}
	out[n++] = '"';
	out[n] = 0;
	return out;
}

void log_status(enum log_level level, const char *msg, const struct fh_status *st)
{
	if (st->field[0])
		log_line(level, msg, "code=%s field=%s error=%s", log_quote(fh_code_name(st->code)), st->field,
			 log_quote(st->text));
	else
		log_line(level, msg, "code=%s error=%s", log_quote(fh_code_name(st->code)), log_quote(st->text));
}
