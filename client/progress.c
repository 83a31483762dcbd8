/* The progress line; see progress.h. One thread. */
#include "client/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "client/wait.h"

#define BAR_CELLS 24
#define REDRAW_NS 100000000
#define PLAIN_NS 2000000000
#define LINE_MAX_BYTES 512
#define COLUMNS_DEFAULT 100

void progress_init(struct progress *p, int quiet)
{
	const char *term = getenv("TERM");

	*p = (struct progress){.quiet = quiet, .plain_ns = PLAIN_NS};
	p->tty = isatty(STDERR_FILENO) && !(term && !strcmp(term, "dumb"));
	if (!p->tty)
		p->last_ns = wait_now_ns(); /* what is over before the first plain line is due says nothing in a log */
}

static int columns(void)
{
	struct winsize w;

	return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : COLUMNS_DEFAULT;
}

/* Cuts after `max` characters. */
static void cut(char *s, int max)
{
	int n = 0;

	for (; *s; s++) {
		n += ((unsigned char)*s & 0xc0) != 0x80;
		if (n > max) {
			*s = 0;
			return;
		}
	}
}

static void bar(char *out, size_t size, double fraction)
{
	char cells[BAR_CELLS + 1];
	int full;

	if (fraction < 0) {
		snprintf(out, size, "%s", "");
		return;
	}
	fraction = fraction > 1 ? 1 : fraction;
	full = (int)(fraction * BAR_CELLS);
	for (int i = 0; i < BAR_CELLS; i++)
		cells[i] = i < full ? '#' : '.';
	cells[BAR_CELLS] = 0;
	/* 100 % is said of what is complete, not of what rounds to it. */
	snprintf(out, size, "[%s] %3d %%  ", cells, (int)(fraction * 100));
}

int progress_due(const struct progress *p)
{
	return !p->quiet && (!p->last_ns || wait_now_ns() - p->last_ns >= (p->tty ? REDRAW_NS : p->plain_ns));
}

void progress_update(struct progress *p, double fraction, int force, const char *fmt, ...)
{
	char text[LINE_MAX_BYTES], line[2 * LINE_MAX_BYTES], cells[BAR_CELLS + 16];
	va_list ap;

	if (p->quiet || (!force && !progress_due(p)))
		return;
	p->last_ns = wait_now_ns();
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	bar(cells, sizeof cells, fraction);
	snprintf(line, sizeof line, "%s%s", cells, text);
	if (p->tty) {
		cut(line, columns() - 1);
		fprintf(stderr, "\r\033[K%s", line);
	} else {
		fprintf(stderr, "%s\n", line);
	}
	fflush(stderr);
	p->drawn = 1;
}

void progress_clear(struct progress *p)
{
	if (p->tty && p->drawn) {
		fputs("\r\033[K", stderr);
		fflush(stderr);
	}
	p->drawn = 0;
	p->last_ns = p->tty ? 0 : p->last_ns;
}

void progress_end(struct progress *p)
{
	if (p->tty && p->drawn)
		fputc('\n', stderr);
	p->drawn = 0;
}
