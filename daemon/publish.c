/* See publish.h. The event is put together by hand around the packed sample: it is packed once for store, poll and PUB. */
#include "daemon/publish.h"
#include "proto/status.h"

#include <nng/protocol/pubsub0/pub.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct publish {
	nng_socket socket;
	char *url;
	struct publish_stats stats;
};

int publish_open(const char *url, struct publish **out, struct fh_status *st)
{
	struct publish *p = calloc(1, sizeof *p);
	int rv;

	if (!p || !(p->url = strdup(url))) {
		free(p);
		return fh_fail(st, FH_EXHAUSTED, "no memory for the publisher");
	}
	if ((rv = nng_pub0_open(&p->socket))) {
		free(p->url);
		free(p);
		return fh_fail(st, FH_EXHAUSTED, "publisher: %s", nng_strerror(rv));
	}
	/* Subscribers say nothing: anything they send is bounded all the same. */
	nng_socket_set_size(p->socket, NNG_OPT_RECVMAXSZ, 1024);
	nng_socket_set_int(p->socket, NNG_OPT_SENDBUF, PUBLISH_SEND_QUEUE);
	*out = p;
	return 0;
}

void publish_close(struct publish *p)
{
	if (!p)
		return;
	nng_close(p->socket);
	free(p->url);
	free(p);
}

nng_socket publish_socket(const struct publish *p)
{
	return p->socket;
}

const char *publish_url(const struct publish *p)
{
	return p ? p->url : "";
}

/* Event { sample = 1 }: tag 0x0a, length, bytes. */
static size_t event_head(unsigned char head[12], size_t bytes)
{
	size_t n = 0;

	head[n++] = 0x0a;
	for (; bytes >= 0x80; bytes >>= 7)
		head[n++] = (unsigned char)(bytes | 0x80);
	head[n++] = (unsigned char)bytes;
	return n;
}

void publish_sample(struct publish *p, uint64_t job, const void *sample, size_t bytes)
{
	unsigned char head[12];
	char topic[32];
	nng_msg *m = NULL;
	int rv;

	if (!p)
		return;
	snprintf(topic, sizeof topic, "job/%llu/", (unsigned long long)job);
	rv = nng_msg_alloc(&m, 0);
	if (!rv)
		rv = nng_msg_append(m, topic, strlen(topic));
	if (!rv)
		rv = nng_msg_append(m, head, event_head(head, bytes));
	if (!rv)
		rv = nng_msg_append(m, sample, bytes);
	if (!rv)
		rv = nng_sendmsg(p->socket, m, NNG_FLAG_NONBLOCK);
	if (rv) {
		nng_msg_free(m);
		p->stats.failed++;
		return;
	}
	p->stats.sent++;
}

void publish_stats(const struct publish *p, struct publish_stats *out)
{
	if (p)
		*out = p->stats;
	else
		memset(out, 0, sizeof *out);
}
