/* SVG text (svg.h).
 *
 * Coordinates have one decimal. A series with more than two points a pixel column becomes first, lowest, highest and last of
 * each column: the picture is the same and the file stays small. One thread.
 * Invariant: every number that is written is finite. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/import/timestamp.h"
#include "client/output.h"
#include "client/svg.h"
#include "proto/status.h"

#define SVG_BYTES_MAX (256u << 20)
#define PATH_SIZE 4096
#define Y_TICKS 5
#define X_TICKS 8
#define X_TICKS_MAX 10     /* of times: what is left out where two touch is left out of these */
#define X_TICK_ROOM 58.0   /* pixels for a label */
#define LABEL_SIZE 40
#define POINTS_A_PIXEL 2
#define VALUE_MAX 1e200    /* larger values are left out like those that are not finite */
#define PIXEL_MAX 1e5
#define TICKS_MAX 64

static const char style[] =
	"<style>\n"
	"text{font:12px system-ui,-apple-system,'Segoe UI','DejaVu Sans',Helvetica,Arial,sans-serif;fill:#3b4654}\n"
	".bg{fill:#ffffff}.title{font-size:17px;font-weight:600;fill:#17202a}.sub{fill:#66717f}.facts{font-weight:600;fill:#3b4654}\n"
	".head{font-weight:600;fill:#17202a}.tick{font-size:11px;fill:#66717f}\n"
	".grid{stroke:#e3e7ec;stroke-width:1;fill:none}.zero{stroke:#9aa5b1;stroke-width:1;fill:none}.frame{stroke:#c3cad2;fill:none}\n"
	".a{stroke:#2563c9;fill:none;stroke-width:1.6;stroke-linejoin:round}.b{stroke:#8a95a3;fill:none;stroke-width:1.2;stroke-linejoin:round}\n"
	".c{stroke:#c2410c;fill:none;stroke-width:1.6;stroke-linejoin:round}.d{stroke:#0f766e;fill:none;stroke-width:1.6;stroke-linejoin:round}\n"
	".thin{stroke:#4b5563;fill:none;stroke-width:1.1;stroke-linejoin:round}\n"
	".loss{fill:#c0262d;fill-opacity:.18;stroke:#c0262d;stroke-width:1}.hold{fill:#2563c9;fill-opacity:.16;stroke:#2563c9;stroke-width:1}\n"
	".dense{fill:#2563c9;fill-opacity:.16}\n"
	".buy{fill:#15803d}.sell{fill:#c0262d}.exit{stroke:#a16207;stroke-width:1.6;fill:none}\n"
	"@media (prefers-color-scheme:dark){\n"
	"text{fill:#c5ced8}.bg{fill:#11181f}.title,.head,.facts{fill:#eef2f6}.sub,.tick{fill:#93a0ae}\n"
	".grid{stroke:#26303a}.zero{stroke:#5a6672}.frame{stroke:#3a4652}\n"
	".a{stroke:#6ea8ff}.b{stroke:#8a95a3}.c{stroke:#fb923c}.d{stroke:#2dd4bf}.thin{stroke:#aab4c0}\n"
	".loss{fill:#ff6b6b;stroke:#ff6b6b}.hold{fill:#6ea8ff;stroke:#6ea8ff}.dense{fill:#6ea8ff}.buy{fill:#4ade80}.sell{fill:#ff6b6b}.exit{stroke:#facc15}\n"
	"}\n</style>\n";

/* ---- the buffer */

static int reserve(struct svg *s, size_t more)
{
	if (s->failed)
		return 0;
	if (s->len + more + 1 > s->cap) {
		size_t cap = (s->len + more + 1) * 2;
		char *t = cap <= SVG_BYTES_MAX ? realloc(s->text, cap) : NULL;
		if (!t) {
			s->failed = 1;
			return 0;
		}
		s->text = t;
		s->cap = cap;
	}
	return 1;
}

void svg_put(struct svg *s, const char *fmt, ...)
{
	va_list ap, again;

	va_start(ap, fmt);
	va_copy(again, ap);
	int n = vsnprintf(NULL, 0, fmt, ap);
	if (n >= 0 && reserve(s, (size_t)n)) {
		vsnprintf(s->text + s->len, s->cap - s->len, fmt, again);
		s->len += (size_t)n;
	}
	va_end(again);
	va_end(ap);
}

static void put_escaped(struct svg *s, const char *t)
{
	for (; *t; t++) {
		unsigned char c = (unsigned char)*t;
		if (c == '&')
			svg_put(s, "&amp;");
		else if (c == '<')
			svg_put(s, "&lt;");
		else if (c == '>')
			svg_put(s, "&gt;");
		else if (c == '"')
			svg_put(s, "&quot;");
		else
			svg_put(s, "%c", c < ' ' ? ' ' : c); /* XML has no control characters */
	}
}

void svg_text(struct svg *s, double x, double y, const char *class, const char *anchor, const char *text)
{
	svg_put(s, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", class, x, y, anchor);
	put_escaped(s, text);
	svg_put(s, "</text>\n");
}

void svg_begin(struct svg *s, double width, double height, const char *title)
{
	memset(s, 0, sizeof *s);
	s->width = width;
	s->height = height;
	svg_put(s, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
		"viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n<title>", width, height, width, height);
	put_escaped(s, title);
	svg_put(s, "</title>\n%s<rect class=\"bg\" width=\"%.0f\" height=\"%.0f\" rx=\"6\"/>\n", style, width, height);
}

void svg_end(struct svg *s)
{
	svg_put(s, "</svg>\n");
}

int svg_save(const struct svg *s, const char *path, struct fh_status *st)
{
	char part[PATH_SIZE];

	if (s->failed || !s->text)
		return fh_fail(st, FH_EXHAUSTED, "no memory for the picture");
	if (!strcmp(path, "-"))
		return fwrite(s->text, 1, s->len, stdout) == s->len && !fflush(stdout) ? 0 : fh_fail(st, FH_IO, "writing: %s", strerror(errno));
	int rc = output_place_check(path, "FILE", st);
	if (rc)
		return rc;
	if ((size_t)snprintf(part, sizeof part, "%s.part-%ld", path, (long)getpid()) >= sizeof part)
		return fh_fail_field(st, FH_INVALID, "--out", "the path is too long");
	FILE *f = fopen(part, "w");
	if (!f)
		return fh_fail_field(st, FH_IO, "--out", "%s: %s", path, strerror(errno));
	int bad = fwrite(s->text, 1, s->len, f) != s->len;
	bad |= fclose(f) != 0;
	if (bad || rename(part, path)) {
		int e = errno;
		unlink(part);
		return fh_fail_field(st, FH_IO, "--out", "%s: %s", path, strerror(e));
	}
	return 0;
}

void svg_release(struct svg *s)
{
	free(s->text);
	memset(s, 0, sizeof *s);
}

/* ---- panels */

void panel_fit(struct panel *p, const double *v, int64_t n)
{
	p->y0 = INFINITY;
	p->y1 = -INFINITY;
	for (int64_t i = 0; i < n; i++)
		panel_include(p, v[i]);
	if (p->y0 > p->y1)
		p->y0 = p->y1 = 0;
}

void panel_include(struct panel *p, double v)
{
	if (!(fabs(v) < VALUE_MAX))
		return;
	p->y0 = v < p->y0 ? v : p->y0;
	p->y1 = v > p->y1 ? v : p->y1;
}

void panel_pad(struct panel *p, double share)
{
	double room = (p->y1 - p->y0) * share;

	if (!(room > fmax(fabs(p->y0), fabs(p->y1)) * 1e-9)) /* flat, or finer than a double can step */
		room = p->y1 != 0 ? fabs(p->y1) * 0.01 : 1;
	p->y0 -= room;
	p->y1 += room;
}

double panel_px(const struct panel *p, double x)
{
	return p->x + (p->x1 > p->x0 ? (x - p->x0) / (p->x1 - p->x0) : 0.5) * p->w;
}

double panel_py(const struct panel *p, double y)
{
	return p->y + p->h - (p->y1 > p->y0 ? (y - p->y0) / (p->y1 - p->y0) : 0.5) * p->h;
}

double nice_step(double lo, double hi, int want)
{
	static const double step[] = {10, 5, 2.5, 2, 1};
	double raw = (hi - lo) / want;

	if (!(raw > 0) || !isfinite(raw))
		return 1;
	double power = pow(10, floor(log10(raw)));
	for (size_t i = 0; i < sizeof step / sizeof *step; i++)
		if (step[i] * power <= raw * 1.2) /* a little too wide is nearer than the next one down */
			return step[i] * power;
	return power;
}

/* 1234567 -> "1,234,567"; as many decimals as the step shows. */
static void number_label(double v, double step, enum panel_unit unit, char text[LABEL_SIZE])
{
	char plain[LABEL_SIZE];
	double shown = unit == UNIT_PERCENT ? v * 100 : v, s = unit == UNIT_PERCENT ? step * 100 : step;
	int decimals = s >= 1 ? 0 : (int)ceil(-log10(s) - 1e-9), used = 0;
	double scaled = s * pow(10, decimals);

	decimals += fabs(scaled - rint(scaled)) > 1e-6; /* steps of 2.5 */
	if (fabs(shown) < s * 1e-6)
		shown = 0;
	if (fabs(shown) >= 1e15 || decimals > 12) {
		snprintf(text, LABEL_SIZE, "%.4g%s", shown, unit == UNIT_PERCENT ? " %" : "");
		return;
	}
	int n = snprintf(plain, sizeof plain, "%.*f", decimals, shown);
	const char *dot = strchr(plain, '.');
	int whole = dot ? (int)(dot - plain) : n;
	for (int i = 0; i < n && used < LABEL_SIZE - 4; i++) {
		int digits_left = whole - i;
		if (i && i < whole && digits_left % 3 == 0 && plain[i - 1] != '-')
			text[used++] = ',';
		text[used++] = plain[i];
	}
	snprintf(text + used, (size_t)(LABEL_SIZE - used), "%s", unit == UNIT_PERCENT ? " %" : "");
}

void panel_frame(struct svg *s, const struct panel *p, const char *title, enum panel_unit unit)
{
	double step = nice_step(p->y0, p->y1, p->h > 120 ? Y_TICKS : 3);
	char label[LABEL_SIZE];

	double k = ceil(p->y0 / step - 1e-9);
	for (int n = 0; n < TICKS_MAX && k * step <= p->y1 + step * 1e-9; n++, k++) {
		double y = panel_py(p, k * step);
		svg_put(s, "<path class=\"%s\" d=\"M%.1f %.1fH%.1f\"/>\n", fabs(k) < 0.5 && p->y0 < 0 ? "zero" : "grid", p->x, y, p->x + p->w);
		number_label(k * step, step, unit, label);
		svg_text(s, p->x - 8, y + 4, "tick", "end", label);
	}
	svg_put(s, "<rect class=\"frame\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", p->x, p->y, p->w, p->h);
	svg_text(s, p->x, p->y - 8, "head", "start", title);
}

static void x_tick(struct svg *s, const struct panel *p, double x, const char *label)
{
	double px = panel_px(p, x);

	svg_put(s, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>\n", px, p->y, p->y + p->h);
	if (label)
		svg_text(s, px, p->y + p->h + 16, "tick", "middle", label);
}

void panel_x_numbers(struct svg *s, const struct panel *p, const char *title)
{
	double step = nice_step(p->x0, p->x1, X_TICKS);
	char label[LABEL_SIZE];

	double k = ceil(p->x0 / step - 1e-9);
	for (int n = 0; n < TICKS_MAX && k * step <= p->x1 + step * 1e-9; n++, k++) {
		number_label(k * step, step, UNIT_REAL, label);
		x_tick(s, p, k * step, title ? label : NULL);
	}
	if (title)
		svg_text(s, p->x + p->w, p->y + p->h + 32, "sub", "end", title);
}

/* Round distances in time: seconds, or from MONTHS on negative numbers of months. */
static const int64_t round_span[] = {1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800,
				     604800, -1, -2, -3, -6, -12, -24, -60, -120};
#define ROUND_SPANS ((int)(sizeof round_span / sizeof *round_span))

/* Which span of its kind a time lies in: weeks begin on Mondays. */
static int64_t span_of(int64_t ts, int64_t span)
{
	int64_t s = ts / NS_PER_SECOND - (ts % NS_PER_SECOND < 0);
	char t[TIMESTAMP_TEXT_MAX];

	if (span == 604800)
		s += 3 * 86400; /* the epoch began on a Thursday */
	if (span > 0)
		return s / span - (s % span < 0);
	timestamp_format(ts, t);
	return (atoll(t) * 12 + atoi(t + 5) - 1) / (span < 0 ? -span : 1);
}

/* Bars that begin another span than the bar before: their indices, at most `max`; more than that is max + 1. */
static int begins(const int64_t *ts, int64_t n, int64_t span, int64_t *at, int max)
{
	int found = 0;
	int64_t day = INT64_MIN, here = 0, before = 0;

	for (int64_t i = 0; i < n; i++) {
		int64_t today = ts[i] / NS_PER_DAY;
		if (span > 0 || today != day) /* months change with days only: those are many fewer */
			here = span_of(ts[i], span);
		day = today;
		if (i && here != before) {
			if (found == max)
				return max + 1;
			at[found++] = i;
		}
		before = here;
	}
	return found;
}

/* As fine as what distinguishes two ticks: the day where it has changed, else the time. */
static void time_label(int64_t ts, int64_t before, int first, int64_t span, char label[LABEL_SIZE])
{
	char t[TIMESTAMP_TEXT_MAX], u[TIMESTAMP_TEXT_MAX];

	timestamp_format(ts, t);
	timestamp_format(before, u);
	if (span <= -12)
		snprintf(label, LABEL_SIZE, "%.4s", t);
	else if (span < 0)
		snprintf(label, LABEL_SIZE, "%.7s", t);
	else if (span >= 86400 || strncmp(t, u, 10) != 0)
		snprintf(label, LABEL_SIZE, "%.*s", first || strncmp(t, u, 4) != 0 ? 10 : 5, first || strncmp(t, u, 4) != 0 ? t : t + 5);
	else
		snprintf(label, LABEL_SIZE, "%.*s", span < 60 ? 8 : 5, t + 11);
}

void panel_x_times(struct svg *s, const struct panel *p, const int64_t *ts, int64_t n, int labels)
{
	int64_t at[X_TICKS_MAX];
	char label[LABEL_SIZE];
	int k = 0, found = X_TICKS_MAX + 1, first = 1;
	double last = -PIXEL_MAX;

	if (n < 2)
		return;
	while (k < ROUND_SPANS && (found = begins(ts, n, round_span[k], at, X_TICKS_MAX)) > X_TICKS_MAX)
		k++;
	if (k == ROUND_SPANS)
		return; /* millennia */
	for (int i = 0; i < found; i++) {
		double px = panel_px(p, (double)at[i]), next = i + 1 < found ? panel_px(p, (double)at[i + 1]) : PIXEL_MAX;
		int day = ts[at[i]] / NS_PER_DAY != ts[at[i] - 1] / NS_PER_DAY, next_day = i + 1 < found && ts[at[i + 1]] / NS_PER_DAY != ts[at[i]] / NS_PER_DAY;
		/* Sessions are not evenly long: of two ticks that would touch the day's begin is drawn. */
		if (px - last < X_TICK_ROOM || (!day && next_day && next - px < X_TICK_ROOM))
			continue;
		time_label(ts[at[i]], ts[at[i] - 1], first, round_span[k], label);
		x_tick(s, p, (double)at[i], labels ? label : NULL);
		last = px;
		first = first && strchr(label, ':'); /* the first date has its year */
	}
}

/* ---- series */

struct pen { struct svg *s; int down, steps; };

static void point(struct pen *pen, const struct panel *p, double x, double y)
{
	double px = panel_px(p, x), py = panel_py(p, y);

	if (!(fabs(px) < PIXEL_MAX) || !(fabs(py) < PIXEL_MAX)) {
		pen->down = 0;
		return;
	}
	if (pen->down && pen->steps)
		svg_put(pen->s, "H%.1fV%.1f", px, py);
	else
		svg_put(pen->s, "%s%.1f %.1f", pen->down ? "L" : "M", px, py);
	pen->down = 1;
}

/* First, lowest, highest and last of y[from, to), in the order they stand. */
static void column(struct pen *pen, const struct panel *p, const double *x, const double *y, int64_t from, int64_t to)
{
	int64_t lo = -1, hi = -1, pick[4], n = 0;

	for (int64_t i = from; i < to; i++) {
		if (!isfinite(y[i]))
			continue;
		lo = lo < 0 || y[i] < y[lo] ? i : lo;
		hi = hi < 0 || y[i] > y[hi] ? i : hi;
	}
	if (lo < 0)
		return;
	pick[n++] = from;
	pick[n++] = lo < hi ? lo : hi;
	pick[n++] = lo < hi ? hi : lo;
	pick[n++] = to - 1;
	for (int64_t k = 0; k < n; k++)
		if ((k == 0 || pick[k] != pick[k - 1]) && isfinite(y[pick[k]]))
			point(pen, p, x ? x[pick[k]] : (double)pick[k], y[pick[k]]);
}

static void trace_points(struct pen *pen, const struct panel *p, const double *x, const double *y, int64_t n)
{
	int64_t columns = (int64_t)p->w;

	if (n <= columns * POINTS_A_PIXEL) {
		for (int64_t i = 0; i < n; i++)
			point(pen, p, x ? x[i] : (double)i, y[i]);
		return;
	}
	for (int64_t c = 0; c < columns; c++)
		column(pen, p, x, y, n * c / columns, n * (c + 1) / columns);
}

void panel_line(struct svg *s, const struct panel *p, const double *x, const double *y, int64_t n, const char *class)
{
	struct pen pen = {s, 0, 0};
	size_t start = s->len;

	svg_put(s, "<path class=\"%s\" d=\"", class);
	size_t head = s->len;
	trace_points(&pen, p, x, y, n);
	if (s->len == head)
		s->len = start; /* no finite value: no path */
	else
		svg_put(s, "\"/>\n");
}

void panel_area(struct svg *s, const struct panel *p, const double *y, int64_t n, int steps, const char *class)
{
	struct pen pen = {s, 1, steps};
	double base = p->y0 > 0 ? p->y0 : p->y1 < 0 ? p->y1 : 0;

	if (!n)
		return;
	svg_put(s, "<path class=\"%s\" d=\"M%.1f %.1f", class, panel_px(p, 0), panel_py(p, base));
	trace_points(&pen, p, NULL, y, n);
	svg_put(s, "L%.1f %.1fZ\"/>\n", panel_px(p, (double)(n - 1)), panel_py(p, base));
}

/* About 6.6 pixels a character at 12 px. */
void panel_legend(struct svg *s, const struct panel *p, const char *const *item)
{
	int n = 0;
	double x = p->x + p->w;

	while (item[n])
		n += 2;
	for (n -= 2; n >= 0; n -= 2) {
		x -= 6.6 * (double)strlen(item[n + 1]);
		svg_text(s, x, p->y - 8, "sub", "start", item[n + 1]);
		x -= 8;
		if (!strcmp(item[n], "buy") || !strcmp(item[n], "sell")) {
			double up = strcmp(item[n], "buy") ? 1 : -1;
			svg_put(s, "<path class=\"%s\" d=\"M%.1f %.1fl4.5 %.1fh-9Z\"/>\n", item[n], x - 6, p->y - 12 + up * 5, -up * 9);
			x -= 26;
		} else if (!strcmp(item[n], "exit")) {
			svg_put(s, "<path class=\"exit\" d=\"M%.1f %.1fl7 7m0 -7l-7 7\"/>\n", x - 9, p->y - 16);
			x -= 26;
		} else {
			svg_put(s, "<path class=\"%s\" d=\"M%.1f %.1fh18\"/>\n", item[n], x - 18, p->y - 12);
			x -= 34;
		}
	}
}
