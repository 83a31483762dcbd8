/* Initial parameters: uniform in +-1/sqrt(fan_in), a pure function of the seed.
 *
 * Any thread. Draw n of stream `init` is position n of the unpadded flat order, so padding never shifts a value. */
#include <math.h>
#include <string.h>

#include "gpu/dqn/dqn.h"
#include "gpu/philox.h"

#define INIT_GROUP_NET 0 /* the Philox step of the network's own tensors */

static float value_of(uint32_t word, float scale)
{
	return (2.0f * philox_uniform(word) - 1.0f) * scale; /* 2U - 1 is exact */
}

/* n values scaled by 1/sqrt(fan_in) to `to`; returns the next draw. A block of the generator is four draws: this is on the
 * way from `start` to the first learn step. */
static uint64_t fill(float *to, int64_t n, int fan_in, uint64_t seed, uint64_t draw)
{
	float scale = (float)(1.0 / sqrt((double)fan_in));
	int64_t i = 0;

	for (; i < n && (draw & 3); i++, draw++)
		to[i] = value_of(philox_word(seed, PHILOX_INIT, INIT_GROUP_NET, draw), scale);
	for (; i + 4 <= n; i += 4, draw += 4) {
		struct philox_words b = philox_block(seed, PHILOX_INIT, INIT_GROUP_NET, draw >> 2);

		for (int k = 0; k < 4; k++)
			to[i + k] = value_of(b.w[k], scale);
	}
	for (; i < n; i++, draw++)
		to[i] = value_of(philox_word(seed, PHILOX_INIT, INIT_GROUP_NET, draw), scale);
	return draw;
}

void dqn_init_params(const struct dqn_dims *d, uint64_t seed, float *flat)
{
	uint64_t draw = 0;

	memset(flat, 0, (size_t)d->params * sizeof(*flat));
	for (int i = 0; i < d->layers; i++) {
		const struct dqn_layer *l = &d->layer[i];

		draw = fill(flat + l->w, (int64_t)l->out * l->in, l->in, seed, draw);
		draw = fill(flat + l->b, l->out, l->in, seed, draw);
	}
}
