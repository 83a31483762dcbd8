/* Dimensions of the DQN: layer shapes and offsets in the flat parameter buffer, and the host backend's scratch.
 *
 * Pure computation, any thread. Tensors start on 64-element boundaries; the padding between them holds zeros. */
#include <string.h>

#include "gpu/dqn/dqn.h"
#include "gpu/cuda/scratch.h"
#include "gpu/host/work.h"
#include "proto/status.h"

#define PARAM_ALIGN 64

static int64_t align_up(int64_t n)
{
	return (n + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
}

static void add_layer(struct dqn_dims *d, int out, int in)
{
	struct dqn_layer *l = &d->layer[d->layers++];

	l->out = out;
	l->in = in;
	l->w = d->params;
	d->params = align_up(d->params + (int64_t)out * in);
	l->b = d->params;
	d->params = align_up(d->params + out);
	d->params_unpadded += (int64_t)out * in + out;
}

int dqn_dims_make(const struct fh_spec *spec, int state_dim, const int *actions, int branches, struct dqn_dims *out,
		  struct fh_status *st)
{
	struct dqn_dims d;

	if (branches < 1 || branches > FH_BRANCH_MAX)
		return fh_fail(st, FH_INVALID, "%d action branches, 1 to %d are possible", branches, FH_BRANCH_MAX);
	if (state_dim < 1)
		return fh_fail(st, FH_INVALID, "a state has %d values, at least 1 is needed", state_dim);
	memset(&d, 0, sizeof(d));
	d.P = (int)spec->run.population;
	d.B = (int)spec->learn.batch;
	d.SD = state_dim;
	d.H1 = (int)spec->net.trunk1;
	d.H2 = (int)spec->net.trunk2;
	d.VH = (int)spec->net.value_hidden;
	d.AH = (int)spec->net.advantage_hidden;
	d.NA = (int)spec->net.atoms;
	d.D = branches;
	d.N = (int)spec->collect.envs;
	d.n = (int)spec->learn.n_step;
	d.C = spec->replay.capacity;
	d.precision = spec->run.precision;
	d.loss = spec->learn.loss;
	add_layer(&d, d.H1, d.SD);
	add_layer(&d, d.H2, d.H1);
	add_layer(&d, d.VH, d.H2);
	add_layer(&d, d.NA, d.VH);
	for (int b = 0; b < branches; b++) {
		if (actions[b] < 1)
			return fh_fail(st, FH_INVALID, "branch %d has %d actions, at least 1 is needed", b, actions[b]);
		d.A[b] = actions[b];
		d.sumA += actions[b];
		add_layer(&d, d.AH, d.H2);
		add_layer(&d, actions[b] * d.NA, d.AH);
	}
	d.head = d.VH + d.D * d.AH;
	d.outs = d.NA * (1 + d.sumA);
	*out = d;
	return 0;
}

size_t dqn_scratch_bytes(const struct dqn_dims *d, enum fh_device device)
{
	struct cuda_scratch s;

	if (device != FH_DEVICE_CUDA)
		return host_work_bytes(d);
	cuda_scratch_make(d, &s);
	return s.bytes;
}
