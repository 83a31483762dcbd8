/* Printing for people and for programs; see output.h. One thread. */
#include "client/output.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "proto/text.h"

int output_message(const struct ctx *c, const ProtobufCMessage *m)
{
	if (c->output == OUT_JSON)
		fh_print_json(stdout, m, 1, NULL);
	else if (c->output == OUT_YAML)
		fh_print_yaml(stdout, m, 1, NULL);
	else
		return 0;
	return 1;
}

int output_place_check(const char *path, const char *field, struct fh_status *st)
{
	struct stat s;

	if (lstat(path, &s) == 0 && !S_ISREG(s.st_mode))
		return fh_fail_field(st, FH_INVALID, field, "%s is there already and is no plain file", path);
	return 0;
}

char *text_bytes(uint64_t bytes, char buf[OUT_TEXT])
{
	static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	double x = (double)bytes;
	size_t i = 0;

	while (x >= 1024 && i + 1 < sizeof unit / sizeof unit[0]) {
		x /= 1024;
		i++;
	}
	snprintf(buf, OUT_TEXT, i ? "%.1f %s" : "%.0f %s", x, unit[i]);
	return buf;
}

char *text_time(uint64_t unix_ns, char buf[OUT_TEXT])
{
	time_t s = (time_t)(unix_ns / 1000000000);
	struct tm tm;

	if (unix_ns == 0 || !gmtime_r(&s, &tm) || !strftime(buf, OUT_TEXT, "%Y-%m-%dT%H:%M:%SZ", &tm))
		strcpy(buf, "-");
	return buf;
}

char *text_duration(double seconds, char buf[OUT_TEXT])
{
	if (!(seconds >= 0) || seconds > 1e10) {
		strcpy(buf, "-");
	} else if (seconds < 9.95) {
		snprintf(buf, OUT_TEXT, "%.1fs", seconds);
	} else {
		long s = lround(seconds);

		if (s < 60)
			snprintf(buf, OUT_TEXT, "%lds", s);
		else if (s < 3600)
			snprintf(buf, OUT_TEXT, "%ldm%02lds", s / 60, s % 60);
		else if (s < 86400)
			snprintf(buf, OUT_TEXT, "%ldh%02ldm", s / 3600, s / 60 % 60);
		else
			snprintf(buf, OUT_TEXT, "%ldd%02ldh", s / 86400, s / 3600 % 24);
	}
	return buf;
}

char *text_age(uint64_t unix_ns, char buf[OUT_TEXT])
{
	struct timespec now;
	char d[OUT_TEXT];
	double age;

	if (unix_ns == 0) {
		strcpy(buf, "-");
		return buf;
	}
	clock_gettime(CLOCK_REALTIME, &now);
	age = (double)now.tv_sec + (double)now.tv_nsec * 1e-9 - (double)unix_ns * 1e-9;
	snprintf(buf, OUT_TEXT, "%.32s ago", text_duration(age < 0 ? 0 : age, d));
	return buf;
}

char *text_real(double x, char buf[OUT_TEXT])
{
	if (isnan(x))
		strcpy(buf, "-");
	else
		snprintf(buf, OUT_TEXT, "%.6g", x);
	return buf;
}

const char *text_state(Fh__V1__JobState s)
{
	switch (s) {
	case FH__V1__JOB_STATE__QUEUED: return "queued";
	case FH__V1__JOB_STATE__RUNNING: return "running";
	case FH__V1__JOB_STATE__PAUSED: return "paused";
	case FH__V1__JOB_STATE__DONE: return "done";
	case FH__V1__JOB_STATE__FAILED: return "failed";
	case FH__V1__JOB_STATE__STOPPED: return "stopped";
	default: return "unknown";
	}
}

static int color;

void output_color(int on)
{
	color = on;
}

const char *text_state_painted(Fh__V1__JobState s)
{
	if (!color)
		return text_state(s);
	switch (s) {
	case FH__V1__JOB_STATE__RUNNING: return "\033[36mrunning\033[0m";
	case FH__V1__JOB_STATE__PAUSED: return "\033[33mpaused\033[0m";
	case FH__V1__JOB_STATE__DONE: return "\033[32mdone\033[0m";
	case FH__V1__JOB_STATE__FAILED: return "\033[31mfailed\033[0m";
	case FH__V1__JOB_STATE__STOPPED: return "\033[33mstopped\033[0m";
	default: return text_state(s);
	}
}

double sample_value(const Fh__V1__Sample *s, const char *name)
{
	for (size_t i = 0; s && i < s->n_value; i++)
		if (s->value[i]->name && !strcmp(s->value[i]->name, name) && s->value[i]->has_value)
			return s->value[i]->value;
	return NAN;
}

char *text_clean(const char *s, char *buf, size_t size)
{
	size_t n = 0;

	for (; s && n + 1 < size && s[n]; n++)
		buf[n] = (unsigned char)s[n] < 0x20 || s[n] == 0x7f ? '?' : s[n];
	/* A cut must not leave half a character. */
	while (s && s[n] && n > 0 && ((unsigned char)s[n] & 0xc0) == 0x80)
		n--;
	buf[n] = 0;
	return buf;
}
