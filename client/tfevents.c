/* Event files of TensorBoard; see tfevents.h.
 *
 * A file is a row of records: length (8 bytes), CRC of those, data, CRC of the data, all little endian. The data is an Event of
 * tensorflow's event.proto, written by hand: 1 wall_time, 2 step, 3 file_version, 5 summary with 1 value, each 1 tag, 2 simple_value.
 * Invariant: `buf` holds one Event at most, and it fits: tags and values of one sample are bounded. */
#include "client/tfevents.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/output.h"

#define EVENT_MAX 65536
#define TAG_MAX 160
#define PATH_SIZE 4096

struct tfevents {
	FILE *f;
	char path[PATH_SIZE];
	int64_t scalars;
	size_t n;
	unsigned char buf[EVENT_MAX];
};

uint32_t crc32c(const void *data, size_t n)
{
	const unsigned char *p = data;
	uint32_t crc = ~(uint32_t)0;

	while (n--) {
		crc ^= *p++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (0x82f63b78u & (0u - (crc & 1)));
	}
	return ~crc;
}

uint32_t crc32c_masked(const void *data, size_t n)
{
	uint32_t crc = crc32c(data, n);

	return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void little(unsigned char *p, uint64_t v, int bytes)
{
	for (int i = 0; i < bytes; i++)
		p[i] = (unsigned char)(v >> 8 * i);
}

static size_t varint(unsigned char *p, uint64_t v)
{
	size_t n = 0;

	for (; v >= 128; v >>= 7)
		p[n++] = (unsigned char)(v | 128);
	p[n++] = (unsigned char)v;
	return n;
}

static size_t real(unsigned char *p, double v)
{
	uint64_t bits;

	memcpy(&bits, &v, sizeof bits);
	little(p, bits, 8);
	return 8;
}

/* The record around what buf holds. */
static int write_record(struct tfevents *t, struct fh_status *st)
{
	unsigned char head[12], tail[4];

	little(head, t->n, 8);
	little(head + 8, crc32c_masked(head, 8), 4);
	little(tail, crc32c_masked(t->buf, t->n), 4);
	if (fwrite(head, sizeof head, 1, t->f) != 1 || fwrite(t->buf, t->n, 1, t->f) != 1 || fwrite(tail, sizeof tail, 1, t->f) != 1 || fflush(t->f))
		return fh_fail_field(st, FH_IO, "--tensorboard", "%s: %s", t->path, strerror(errno));
	return 0;
}

static int begin(struct tfevents *t, double seconds, struct fh_status *st)
{
	static const char version[] = "brain.Event:2";

	t->buf[0] = 1 << 3 | 1;
	t->n = 1 + real(t->buf + 1, seconds);
	t->buf[t->n++] = 3 << 3 | 2;
	t->buf[t->n++] = sizeof version - 1;
	memcpy(t->buf + t->n, version, sizeof version - 1);
	t->n += sizeof version - 1;
	return write_record(t, st);
}

/* A folder of the person's: its parents are there, or it is refused like any other output. */
static int make_folder(const char *path, struct fh_status *st)
{
	if (mkdir(path, 0777) == 0 || errno == EEXIST)
		return 0;
	return fh_fail_field(st, FH_IO, "--tensorboard", "%s: %s", path, strerror(errno));
}

int tfevents_open(const char *dir, const Fh__V1__Job *job, struct tfevents **out, struct fh_status *st)
{
	struct tfevents *t = calloc(1, sizeof *t);
	char run[PATH_SIZE - 128];
	int n, rc;

	if (!t)
		return fh_fail(st, FH_EXHAUSTED, "no memory for an event file");
	if (job->name && *job->name)
		n = snprintf(run, sizeof run, "%s/%s", dir, job->name); /* names of jobs have no slash */
	else
		n = snprintf(run, sizeof run, "%s/job-%" PRIu64, dir, job->id);
	rc = n < 0 || (size_t)n >= sizeof run ? fh_fail_field(st, FH_INVALID, "--tensorboard", "the path is too long") : make_folder(dir, st);
	if (!rc)
		rc = make_folder(run, st);
	snprintf(t->path, sizeof t->path, "%s/events.out.tfevents.%010" PRIu64 ".fhd.%" PRIu64, run, job->created_ns / 1000000000, job->id);
	if (!rc)
		rc = output_place_check(t->path, "--tensorboard", st);
	if (!rc && !(t->f = fopen(t->path, "w")))
		rc = fh_fail_field(st, FH_IO, "--tensorboard", "%s: %s", t->path, strerror(errno));
	if (!rc)
		rc = begin(t, (double)job->created_ns * 1e-9, st);
	if (rc) {
		tfevents_close(t, NULL);
		return rc;
	}
	*out = t;
	return 0;
}

static void make_tag(const Fh__V1__Sample *s, const char *metric, char tag[TAG_MAX])
{
	int validation = s->kind == FH__V1__SAMPLE_KIND__VALIDATION;
	const char *split = !validation ? "report" : s->split && *s->split ? s->split : "validation";
	char trial[24] = "";

	if (s->trial)
		snprintf(trial, sizeof trial, "trial_%" PRIu32 "_", s->trial);
	snprintf(tag, TAG_MAX, "%s%.40s%s/%.60s", trial, split, validation && s->policy == FH__V1__POLICY__ONLINE ? "_online" : "", metric);
}

/* Summary.value: its length is known before it is written. */
static size_t put_value(unsigned char *p, const char *tag, float v)
{
	size_t len = strlen(tag), n = 0;
	uint32_t bits;

	memcpy(&bits, &v, sizeof bits);
	p[n++] = 1 << 3 | 2;
	n += varint(p + n, 1 + 1 + (len > 127) + len + 1 + 4);
	p[n++] = 1 << 3 | 2;
	n += varint(p + n, len);
	while (*tag)
		p[n++] = (unsigned char)*tag++;
	p[n++] = 2 << 3 | 5;
	little(p + n, bits, 4);
	return n + 4;
}

int tfevents_add(struct tfevents *t, const Fh__V1__Sample *s, struct fh_status *st)
{
	unsigned char summary[EVENT_MAX - 64];
	size_t n = 0;
	int64_t found = 0;

	if (s->kind == FH__V1__SAMPLE_KIND__STATE_CHANGE)
		return 0;
	for (size_t i = 0; i < s->n_value && n + TAG_MAX + 16 < sizeof summary; i++) {
		const Fh__V1__MetricValue *v = s->value[i];
		char tag[TAG_MAX];

		if (!v->name || !*v->name || !v->has_value || !isfinite((float)v->value))
			continue;
		make_tag(s, v->name, tag);
		n += put_value(summary + n, tag, (float)v->value);
		found++;
	}
	if (!found)
		return 0;
	t->buf[0] = 1 << 3 | 1;
	t->n = 1 + real(t->buf + 1, (double)s->time_ns * 1e-9);
	t->buf[t->n++] = 2 << 3;
	t->n += varint(t->buf + t->n, s->step);
	t->buf[t->n++] = 5 << 3 | 2;
	t->n += varint(t->buf + t->n, n);
	memcpy(t->buf + t->n, summary, n);
	t->n += n;
	t->scalars += found;
	return write_record(t, st);
}

const char *tfevents_path(const struct tfevents *t)
{
	return t->path;
}

int64_t tfevents_scalars(const struct tfevents *t)
{
	return t->scalars;
}

int tfevents_close(struct tfevents *t, struct fh_status *st)
{
	int rc = 0;

	if (t && t->f && fclose(t->f))
		rc = fh_fail_field(st, FH_IO, "--tensorboard", "%s: %s", t->path, strerror(errno));
	free(t);
	return rc;
}
