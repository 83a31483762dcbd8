/* SVG text: a growing buffer, escaped strings, panels with axes, lines, areas and marks. Knows no job and no trade.
 *
 * Everything is drawn with classes of one style sheet that has a light and a dark scheme and paints its own background, so
 * the file reads well on any page. One thread. Numbers that are not finite are left out, never written. */
#ifndef FH_CLIENT_SVG_H
#define FH_CLIENT_SVG_H

#include <stddef.h>
#include <stdint.h>

struct fh_status;

struct svg {
	char *text;
	size_t len, cap;
	int failed;           /* out of memory: svg_save() says so */
	double width, height;
};

void svg_begin(struct svg *s, double width, double height, const char *title);
void svg_end(struct svg *s);
/* Raw text; the caller keeps it well-formed. */
void svg_put(struct svg *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* anchor: "start", "middle", "end". The text is escaped. */
void svg_text(struct svg *s, double x, double y, const char *class, const char *anchor, const char *text);
/* Writes a temporary file beside `path` and renames it; "-" is standard output. FH_IO, FH_EXHAUSTED. */
int svg_save(const struct svg *s, const char *path, struct fh_status *st);
void svg_release(struct svg *s);

/* A plot area in pixels and what its edges mean. */
struct panel { double x, y, w, h, x0, x1, y0, y1; };

/* y0, y1 from the finite values of [n], widened a little; a flat series gets room around it. `zero` brings 0 in. */
void panel_fit(struct panel *p, const double *v, int64_t n);
void panel_include(struct panel *p, double v);
void panel_pad(struct panel *p, double share);
double panel_px(const struct panel *p, double x);
double panel_py(const struct panel *p, double y);

enum panel_unit { UNIT_REAL, UNIT_PERCENT };
/* Frame, horizontal grid with labels at round values, and a title at the top left. */
void panel_frame(struct svg *s, const struct panel *p, const char *title, enum panel_unit unit);
/* Vertical grid and labels at round values of x. */
void panel_x_numbers(struct svg *s, const struct panel *p, const char *title);
/* The same when x is an index into ts [n]: ticks where a bar begins another hour, day, month, …, whatever the span needs. */
void panel_x_times(struct svg *s, const struct panel *p, const int64_t *ts, int64_t n, int labels);
/* A line through (x[i], y[i]); x NULL: the index. More points than pixels are drawn as the range of each pixel. */
void panel_line(struct svg *s, const struct panel *p, const double *x, const double *y, int64_t n, const char *class);
/* The area between y and 0; steps: y[i] holds until the next index. */
void panel_area(struct svg *s, const struct panel *p, const double *y, int64_t n, int steps, const char *class);
/* Names of lines at the top right, last first. class, name, class, name, …, NULL. */
void panel_legend(struct svg *s, const struct panel *p, const char *const *item);

/* 1, 2, 2.5 or 5 times a power of ten, about `want` steps in lo..hi. */
double nice_step(double lo, double hi, int want);

#endif
