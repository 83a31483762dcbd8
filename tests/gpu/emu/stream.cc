/* Streams, events, graphs, launches: what is enqueued becomes an operation that knows which ones must come before it.
 *
 * With seed 0 an operation is done as it is enqueued. Else it is done when somebody waits for it, and where several may
 * come next the seed decides: host code that does not wait, and streams that are not joined by an event, show. A launch that
 * may overlap with the one in front of it has a cluster begun before that one runs, where that one lets it. */
#include "stream.h"

#include <algorithm>
#include <map>
#include <set>

std::recursive_mutex emu_lock;

struct operation {
	std::function<void()> act;
	std::shared_ptr<struct emu_kernel> kernel;         /* else act */
	std::vector<std::shared_ptr<struct operation>> before;
	std::weak_ptr<struct operation> behind;            /* a dependent launch that comes next */
	struct emu_cluster *early = nullptr;
	bool done = false;
	~operation() { emu_forget(early); }
};
typedef std::shared_ptr<struct operation> op_ref;

struct node { std::function<void()> act; std::shared_ptr<struct emu_kernel> kernel; std::vector<int> before; };
struct emu_graph {
	cudaStreamCaptureMode mode;
	std::vector<struct node> node;
	std::set<struct emu_stream *> streams;
	struct emu_stream *origin;
	bool bad = false;
};
struct emu_graph_exec { std::vector<struct node> node; };
struct emu_stream {
	bool non_blocking = false;
	op_ref tail;                    /* everything enqueued before the next */
	std::vector<op_ref> waits;      /* of events, for the next */
	struct emu_graph *graph = nullptr; /* that it is captured into */
	std::vector<int> last;          /* nodes that the next one follows */
};
struct emu_event { op_ref op; struct emu_graph *graph = nullptr; std::vector<int> nodes; };

static std::set<struct emu_stream *> streams;
static std::set<struct emu_event *> events;
static struct emu_stream legacy; /* stream 0 */
static thread_local int capturing;
static int capturing_all; /* captures that nobody may disturb */

bool emu_capturing(void) { return capturing > 0 || capturing_all > 0; }

/* What a driver keeps for them, in memory of the device. */
enum { STREAM_BYTES = 64 << 10, NODE_BYTES = 2 << 10 };

/* ---------------------------------------------------------------- doing */

static void run_kernel(struct operation *o)
{
	const op_ref next = o->behind.lock();

	if (const cudaError_t e = emu_fault("kernel"))
		emu_break(e);
	if (emu_broken())
		return;
	if (next && !next->done && next->before.size() == 1 && emu_lets_next(o->kernel->function))
		next->early = emu_begin(next->kernel.get());
	emu_run(o->kernel.get(), o->early);
	o->early = nullptr;
}

/* o, after everything that must come before it. */
static void complete(const op_ref &o)
{
	std::vector<op_ref> open;

	if (!o)
		return;
	open.push_back(o);
	while (!open.empty()) {
		const op_ref at = open.back();
		std::vector<op_ref> &b = at->before;

		b.erase(std::remove_if(b.begin(), b.end(), [](const op_ref &p) { return p->done; }), b.end());
		if (!at->done && !b.empty()) {
			open.push_back(b[emu_choice((unsigned)b.size())]);
			continue;
		}
		open.pop_back();
		if (at->done)
			continue;
		if (at->kernel)
			run_kernel(at.get());
		else if (at->act && !emu_broken())
			at->act();
		at->done = true;
		at->act = nullptr;
		at->kernel.reset();
	}
}

void emu_complete_all(void)
{
	for (struct emu_stream *s : streams)
		complete(s->tail);
	complete(legacy.tail);
}

/* ---------------------------------------------------------------- enqueueing */

static struct emu_stream *stream_of(cudaStream_t s) { return s ? s : &legacy; }
static bool known(cudaStream_t s) { return !s || streams.count(s); }

static op_ref append(struct emu_stream *s, std::function<void()> act, std::shared_ptr<struct emu_kernel> kernel)
{
	op_ref o = std::make_shared<struct operation>();

	o->act = std::move(act);
	o->kernel = std::move(kernel);
	if (s->tail && !s->tail->done) {
		o->before.push_back(s->tail);
		if (o->kernel && o->kernel->dependent && s->tail->kernel && s->waits.empty())
			s->tail->behind = o;
	}
	for (const op_ref &w : s->waits)
		if (!w->done)
			o->before.push_back(w);
	s->waits.clear();
	s->tail = o;
	return o;
}

static cudaError_t enqueue(cudaStream_t stream, std::function<void()> act, std::shared_ptr<struct emu_kernel> kernel)
{
	struct emu_stream *s = stream_of(stream);

	if (!known(stream))
		return emu_result(cudaErrorInvalidResourceHandle);
	if (emu_broken())
		return emu_result(cudaSuccess);
	if (s->graph) {
		s->graph->node.push_back({std::move(act), std::move(kernel), s->last});
		s->last = {(int)s->graph->node.size() - 1};
		return emu_result(cudaSuccess);
	}
	const op_ref o = append(s, std::move(act), std::move(kernel));
	if (!emu_seed())
		complete(o);
	return emu_result(cudaSuccess);
}

/* ---------------------------------------------------------------- launches */

static std::map<const void *, int> allowed; /* dynamic shared memory by kernel */

size_t emu_allowed_shared(const void *function)
{
	auto at = allowed.find(function);

	return at == allowed.end() ? 48 << 10 : (size_t)std::max(at->second, 48 << 10);
}
cudaError_t emu_func_attribute(const void *kernel, cudaFuncAttribute a, int value)
{
	std::lock_guard<std::recursive_mutex> hold(emu_lock);

	if (a != cudaFuncAttributeMaxDynamicSharedMemorySize)
		return emu_result(cudaSuccess);
	if (value < 0 || (size_t)value > emu_device()->shared_optin)
		return emu_result(cudaErrorInvalidValue);
	/* One number of the process: a thread that has set it and not launched yet would find another's. */
	const auto before = allowed.find(kernel);
	if (before != allowed.end() && before->second != value)
		emu_fail("a kernel may have %d bytes of shared memory and then %d: launches of other threads rely on it", before->second, value);
	allowed[kernel] = value;
	return emu_result(cudaSuccess);
}
cudaError_t emu_occupancy(int *blocks, int threads, size_t shared)
{
	const int by_threads = 2048 / threads, by_shared = shared ? (int)(emu_device()->shared_total / (shared + 1024)) : 32;

	*blocks = std::min(32, std::min(by_threads, by_shared));
	return emu_result(cudaSuccess);
}

static cudaError_t take_attributes(const struct cudaLaunchConfig_t *c, struct emu_kernel *k)
{
	k->dependent = false;
	k->cluster = 1;
	for (unsigned i = 0; i < c->numAttrs; i++) {
		const union cudaLaunchAttributeValue *v = &c->attrs[i].val;

		if (c->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
			k->dependent = v->programmaticStreamSerializationAllowed != 0;
		if (c->attrs[i].id != cudaLaunchAttributeClusterDimension)
			continue;
		if (v->clusterDim.y != 1 || v->clusterDim.z != 1)
			emu_fail("a cluster of %u x %u x %u blocks: here they are neighbours in x", v->clusterDim.x, v->clusterDim.y, v->clusterDim.z);
		k->cluster = v->clusterDim.x;
		if (emu_device()->sm < 90)
			return cudaErrorNotSupported;
		if (!k->cluster || k->cluster > EMU_CLUSTER_MAX || k->grid.x % k->cluster)
			return cudaErrorInvalidClusterSize;
	}
	return k->dependent && emu_device()->sm < 90 ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t emu_launch(const struct cudaLaunchConfig_t *c, const void *function, const char *type, std::function<void()> body)
{
	std::lock_guard<std::recursive_mutex> hold(emu_lock);
	auto k = std::make_shared<struct emu_kernel>();
	const uint64_t threads = (uint64_t)c->blockDim.x * c->blockDim.y * c->blockDim.z;

	if (const cudaError_t e = emu_fault("cudaLaunchKernelExC"))
		return emu_result(e);
	if (!threads || threads > EMU_THREADS_MAX || !c->gridDim.x || !c->gridDim.y || !c->gridDim.z || c->gridDim.x > 0x7fffffffu ||
	    c->gridDim.y > 65535 || c->gridDim.z > 65535)
		return emu_result(cudaErrorInvalidConfiguration);
	if (c->dynamicSmemBytes > emu_allowed_shared(function))
		return emu_result(cudaErrorInvalidValue);
	k->function = function, k->type = type, k->body = std::move(body);
	k->grid = c->gridDim, k->block = c->blockDim, k->shared = c->dynamicSmemBytes;
	if (const cudaError_t e = take_attributes(c, k.get()))
		return emu_result(e);
	return enqueue(c->stream, nullptr, k);
}

/* ---------------------------------------------------------------- copies */

static bool places_fit(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
	const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
	const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;

	return emu_is_device(to, bytes) == to_device && emu_is_device(from, bytes) == from_device;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s)
{
	EMU_CALL();

	if (!bytes)
		return emu_result(cudaSuccess);
	if (!places_fit(to, from, bytes, kind))
		return emu_result(cudaErrorInvalidValue);
	if (kind == cudaMemcpyHostToDevice && !emu_is_pinned(from, bytes) && !stream_of(s)->graph) { /* memory of the host may change at once */
		auto held = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);

		return enqueue(s, [to, held] { memcpy(to, held->data(), held->size()); }, nullptr);
	}
	const cudaError_t e = enqueue(s, [to, from, bytes] { memcpy(to, from, bytes); }, nullptr);
	if (kind == cudaMemcpyDeviceToHost && !emu_is_pinned(to, bytes) && !stream_of(s)->graph)
		complete(stream_of(s)->tail); /* a copy to such memory returns when it is there */
	return e;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t s)
{
	EMU_CALL();

	if (!bytes)
		return emu_result(cudaSuccess);
	if (!emu_is_device(to, bytes))
		return emu_result(cudaErrorInvalidValue);
	return enqueue(s, [to, value, bytes] { memset(to, value, bytes); }, nullptr);
}

/* Stream 0 waits for streams that block, not for the others. */
static void legacy_waits(void)
{
	for (struct emu_stream *s : streams)
		if (!s->non_blocking)
			complete(s->tail);
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
	EMU_CALL();

	legacy_waits();
	const cudaError_t e = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
	complete(legacy.tail);
	return e;
}
cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
	EMU_CALL();

	legacy_waits();
	const cudaError_t e = cudaMemsetAsync(to, value, bytes, nullptr);
	complete(legacy.tail);
	return e;
}

/* ---------------------------------------------------------------- streams */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
	EMU_CALL();

	*out = new emu_stream();
	emu_driver_takes(STREAM_BYTES);
	(*out)->non_blocking = flags & cudaStreamNonBlocking;
	streams.insert(*out);
	return emu_result(cudaSuccess);
}
cudaError_t cudaStreamCreate(cudaStream_t *out) { return cudaStreamCreateWithFlags(out, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int) { return cudaStreamCreateWithFlags(out, flags); }
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
	EMU_CALL();

	if (!s || !known(s))
		return emu_result(cudaErrorInvalidResourceHandle);
	complete(s->tail);
	streams.erase(s);
	emu_driver_gives(STREAM_BYTES);
	delete s;
	return emu_result(cudaSuccess);
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
	EMU_CALL();

	if (!known(s))
		return emu_result(cudaErrorInvalidResourceHandle);
	if (stream_of(s)->graph) {
		stream_of(s)->graph->bad = true;
		return emu_result(cudaErrorStreamCaptureUnsupported);
	}
	complete(stream_of(s)->tail);
	return emu_result(cudaSuccess);
}
/* One step towards o: somebody who asks again and again gets there. */
static cudaError_t query(const op_ref &o)
{
	if (!o || o->done || emu_broken())
		return emu_result(cudaSuccess);
	op_ref at = o;
	for (;;) {
		std::vector<op_ref> &b = at->before;
		auto open = std::find_if(b.begin(), b.end(), [](const op_ref &p) { return !p->done; });

		if (open == b.end())
			break;
		at = *open;
	}
	complete(at);
	return emu_result(o->done ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaStreamQuery(cudaStream_t s)
{
	EMU_CALL();

	return known(s) ? query(stream_of(s)->tail) : emu_result(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaDeviceSynchronize(void)
{
	EMU_CALL();

	emu_complete_all();
	return emu_result(cudaSuccess);
}
cudaError_t cudaDeviceReset(void) { return cudaDeviceSynchronize(); }

/* ---------------------------------------------------------------- events */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned)
{
	EMU_CALL();

	*out = new emu_event();
	events.insert(*out);
	return emu_result(cudaSuccess);
}
cudaError_t cudaEventCreate(cudaEvent_t *out) { return cudaEventCreateWithFlags(out, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
	EMU_CALL();

	if (!events.erase(e))
		return emu_result(cudaErrorInvalidResourceHandle);
	delete e;
	return emu_result(cudaSuccess);
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream)
{
	EMU_CALL();
	struct emu_stream *s = stream_of(stream);

	if (!events.count(e) || !known(stream))
		return emu_result(cudaErrorInvalidResourceHandle);
	e->graph = s->graph;
	if (s->graph) {
		e->nodes = s->last;
		return emu_result(cudaSuccess);
	}
	e->op = s->waits.empty() ? s->tail : append(s, nullptr, nullptr);
	if (!emu_seed())
		complete(e->op);
	return emu_result(cudaSuccess);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned)
{
	EMU_CALL();
	struct emu_stream *s = stream_of(stream);

	if (!events.count(e) || !known(stream))
		return emu_result(cudaErrorInvalidResourceHandle);
	if (!e->graph) {
		if (s->graph)
			return emu_result(cudaErrorStreamCaptureIsolation);
		if (e->op && !e->op->done)
			s->waits.push_back(e->op);
		return emu_result(cudaSuccess);
	}
	if (s->graph && s->graph != e->graph)
		return emu_result(cudaErrorStreamCaptureIsolation);
	if (!s->graph) { /* taken into the capture */
		s->graph = e->graph;
		s->graph->streams.insert(s);
		s->last.clear();
	}
	for (int n : e->nodes)
		if (std::find(s->last.begin(), s->last.end(), n) == s->last.end())
			s->last.push_back(n);
	return emu_result(cudaSuccess);
}
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
	EMU_CALL();

	if (!events.count(e))
		return emu_result(cudaErrorInvalidResourceHandle);
	if (e->graph)
		return emu_result(cudaErrorCapturedEvent);
	if (emu_capturing())
		return emu_result(cudaErrorStreamCaptureUnsupported);
	complete(e->op);
	return emu_result(cudaSuccess);
}
cudaError_t cudaEventQuery(cudaEvent_t e)
{
	EMU_CALL();

	if (!events.count(e))
		return emu_result(cudaErrorInvalidResourceHandle);
	if (emu_capturing())
		return emu_result(cudaErrorStreamCaptureUnsupported);
	return e->graph ? emu_result(cudaErrorCapturedEvent) : query(e->op);
}

/* ---------------------------------------------------------------- graphs */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode)
{
	EMU_CALL();

	if (!s || !known(s))
		return emu_result(cudaErrorInvalidResourceHandle);
	if (s->graph)
		return emu_result(cudaErrorStreamCaptureUnsupported);
	s->graph = new emu_graph();
	s->graph->mode = mode;
	s->graph->origin = s;
	s->graph->streams.insert(s);
	s->last.clear();
	capturing += mode != cudaStreamCaptureModeRelaxed;
	capturing_all += mode == cudaStreamCaptureModeGlobal;
	return emu_result(cudaSuccess);
}

static bool joined(const struct emu_graph *g)
{
	std::vector<bool> reached(g->node.size());
	std::vector<int> open = g->origin->last;

	while (!open.empty()) {
		const int n = open.back();

		open.pop_back();
		if (reached[(size_t)n])
			continue;
		reached[(size_t)n] = true;
		open.insert(open.end(), g->node[(size_t)n].before.begin(), g->node[(size_t)n].before.end());
	}
	return std::find(reached.begin(), reached.end(), false) == reached.end();
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
	EMU_CALL();
	cudaError_t e = cudaSuccess;

	*out = nullptr;
	if (!s || !known(s) || !s->graph || s->graph->origin != s)
		return emu_result(cudaErrorStreamCaptureUnmatched);
	struct emu_graph *g = s->graph;
	capturing -= g->mode != cudaStreamCaptureModeRelaxed;
	capturing_all -= g->mode == cudaStreamCaptureModeGlobal;
	e = g->bad ? cudaErrorStreamCaptureInvalidated : !joined(g) ? cudaErrorStreamCaptureUnjoined : cudaSuccess;
	for (struct emu_stream *k : g->streams)
		if (streams.count(k))
			k->graph = nullptr, k->last.clear();
	for (struct emu_event *k : events)
		if (k->graph == g)
			k->graph = nullptr, k->nodes.clear(), k->op.reset();
	if (e != cudaSuccess)
		delete g;
	else
		*out = g;
	return emu_result(e);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long)
{
	EMU_CALL();

	emu_driver_takes(g->node.size() * NODE_BYTES);
	*out = new emu_graph_exec{g->node};
	return emu_result(cudaSuccess);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
	EMU_CALL();
	return emu_result(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t stream)
{
	EMU_CALL();
	struct emu_stream *s = stream_of(stream);
	std::vector<op_ref> made;

	if (!known(stream))
		return emu_result(cudaErrorInvalidResourceHandle);
	if (s->graph) {
		s->graph->bad = true;
		return emu_result(cudaErrorStreamCaptureUnsupported);
	}
	if (emu_broken())
		return emu_result(cudaSuccess);
	const op_ref start = append(s, nullptr, nullptr);
	const op_ref end = std::make_shared<struct operation>();
	for (const struct node &n : x->node) {
		op_ref o = std::make_shared<struct operation>();

		o->act = n.act;
		o->kernel = n.kernel;
		for (int b : n.before)
			o->before.push_back(made[(size_t)b]);
		if (n.before.empty())
			o->before.push_back(start);
		if (n.kernel && n.kernel->dependent && n.before.size() == 1 && made[(size_t)n.before[0]]->kernel)
			made[(size_t)n.before[0]]->behind = o;
		made.push_back(o);
		end->before.push_back(o);
	}
	if (made.empty())
		end->before.push_back(start);
	s->tail = end;
	if (!emu_seed())
		for (const op_ref &o : made) /* in the order of capture */
			complete(o);
	if (!emu_seed())
		complete(end);
	return emu_result(cudaSuccess);
}
cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
	EMU_CALL();

	delete g;
	return emu_result(cudaSuccess);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
	EMU_CALL();

	emu_driver_gives(x->node.size() * NODE_BYTES);
	delete x;
	return emu_result(cudaSuccess);
}
