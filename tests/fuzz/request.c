/* Any bytes as a request, a reply and an event: never a crash, never more memory than the cap, and what was accepted
 * packs again and is accepted again. */
#include <stdint.h>
#include <stdlib.h>

#include "proto/spec.h"
#include "proto/wire.h"

static void repack(const ProtobufCMessage *m)
{
	struct fh_status st = FH_STATUS_INIT;
	size_t size;
	uint8_t *buf;

	if (fh_pack_size(m, &size, &st))
		return;
	buf = malloc(size ? size : 1);
	if (!buf)
		abort();
	if (fh_pack(m, buf) != size)
		abort();
	free(buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fh_status st = FH_STATUS_INIT;
	struct fh_peek peek;
	struct fh_arena a;
	Fh__V1__Request *request;
	Fh__V1__Reply *reply;
	ProtobufCMessage *event;

	fh_peek(data, size, &peek, &st);
	if (!fh_request_unpack(data, size, &a, &request, &st)) {
		struct fh_spec spec;

		if (a.used > a.cap)
			abort();
		repack(&request->base);
		if (request->call_case == FH__V1__REQUEST__CALL_START_JOB)
			fh_spec_from_message(request->start_job->spec, &spec, &st);
	}
	fh_arena_release(&a);
	if (!fh_reply_unpack(data, size, &a, &reply, &st))
		repack(&reply->base);
	fh_arena_release(&a);
	if (!fh_message_unpack(&fh__v1__event__descriptor, data, size, 0, &a, &event, &st))
		repack(event);
	fh_arena_release(&a);
	return 0;
}
