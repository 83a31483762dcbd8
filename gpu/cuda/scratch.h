/* What the CUDA stages keep between each other: offsets into T_SCRATCH, from the dimensions alone.
 *
 * Plain C, shared by the planner (which must know the bytes before a device is touched) and the kernels' host code.
 * Every array has the trial axis P in front: offset + trial * (stride of the array). Activations and gradients that are
 * GEMM inputs are BF16 in bf16 runs and F32 else ("low" below); their rows are padded to 16 elements so that a
 * row starts on a 16-byte boundary and 16-byte loads need no care. */
#ifndef FH_GPU_CUDA_SCRATCH_H
#define FH_GPU_CUDA_SCRATCH_H

#include <stddef.h>
#include "gpu/dqn/dqn.h"

/* The resident market as kernels see it; rolled is NULL for bars of one contract. It lies in device memory, so a captured graph stays valid when the next job
 * brings another market. Device pointers, [T] or [T, features]. */
struct cuda_tape_view { const double *open, *high, *low, *close; const float *feature, *sigma; const int64_t *ts; const uint8_t *rolled; };

/* Written by ADVANCE, so that the optimizer may run beside the end of the step, which moves the clock on. */
struct cuda_step { float lr, decay, tau, scale1, scale2; int32_t stuck, hard, copy; double max_grad_norm; };

struct cuda_array { size_t offset, stride; /* bytes: from the start of T_SCRATCH, from trial to trial */ };

struct cuda_scratch {
	int low;                 /* bytes of a low-precision element: 2 or 4 */
	int ldx, ldh1, ldh2, ldhead, ldo; /* row lengths in elements */
	int rows;                /* learn rows: [0,B) s online, [B,2B) s' online, [2B,3B) s' target */
	int seg[1 + FH_BRANCH_MAX]; /* first column of V, Adv_0, … in a row of outputs or of their gradients, padded */
	struct cuda_array x;     /* low [2B, ldx] s then s' */
	struct cuda_array h1, h2, head; /* low [3B, ld*] after relu */
	struct cuda_array out;   /* F32 [3B, ldo] V, Adv */
	struct cuda_array dout;  /* low [B, ldo] */
	struct cuda_array dhead, dh2, dh1; /* low [B, ld*] */
	int grad_tile, parts;    /* tile of the weight gradients; how many sums of squares they leave */
	int slices;              /* parts of the batch whose weight gradients are summed apart, 1: none */
	struct cuda_array slice; /* F32 [slices, params] their gradients, when there are several */
	struct cuda_array part;  /* F64 [parts] sum of squares of each tile of the gradient */
	struct cuda_array q, edge; /* F32 [B] mean Q of the taken actions, mass on the edge atoms */
	struct cuda_array wraw, wtop; /* F64 [B] importance weights before normalisation, [ceil(B/CUDA_WALK_SAMPLES)] maxima */
	struct cuda_array step;  /* struct cuda_step, this step's numbers for the optimizer */
	struct cuda_array sums;  /* F64 [5] means of the batch, see k_sums */
	struct cuda_array old;   /* F32 [B + 1] leaves before the update (CUDA_NOT_MINE: another row's), and the largest priority: a skipped step puts them back */
	struct cuda_array winner; /* I32 [C] highest batch row that names a leaf; all -1 but within the update of priorities */
	struct cuda_array ticket; /* U32 [1] blocks of a launch that are done; 0 between launches */
	struct cuda_array stack; /* low [ldhead, ldh2] weights of the heads' first layers one under another, for cuBLASLt */
	struct cuda_array work;  /* U8 [CUDA_WORK] what it works in, of the exec */
	struct cuda_array wide_rows; /* F32 [wide] what a layer of BF16 gives before its bias, some rows at a time, of the exec */
	size_t wide;
	struct cuda_array px, ph1, ph2, phead; /* low [N, ld*] the policy's forward */
	struct cuda_array pout;  /* F32 [N, ldo] */
	struct cuda_array count, first; /* I32 [N] transitions an environment stores this step, and where */
	struct cuda_array next;  /* F32 [N, 8] portfolio features of s', before a restart */
	struct cuda_array next_t, done; /* I32 [N] its bar; 0 goes on, 1 truncated, 2 terminated */
	/* Acting for evaluations: rows of any trials, as many as are asked, so without the trial axis. */
	struct cuda_array vrow;  /* [CUDA_ACT_ROWS] of each: portfolio features [8], bar, place, as asked */
	struct cuda_array vx;    /* low [CUDA_ACT_PLACES, ldx] */
	struct cuda_array vaction; /* I32 [CUDA_ACT_PLACES, D] */
	struct cuda_array vh1, vh2, vhead; /* low [CUDA_ACT_LAYERS, ld*], where the network goes layer by layer */
	struct cuda_array vout;  /* F32 [CUDA_ACT_LAYERS, ldo] */
	int kept;                /* trials whose networks are kept while they act, of all or of none */
	struct cuda_array vparam, vparam_lp; /* F32 and BF16 [kept, params] */
	struct cuda_array tape;  /* struct cuda_tape_view, of trial 0: which market all trials read */
	struct cuda_array estat; /* F64 [ceil(N/CUDA_ENV_FEW), CUDA_ENV_STATS] sums of a block of environments (CUDA_ENV_FEW or CUDA_ENV_BLOCK) */
	size_t bytes;            /* of one trial; the arena holds P of these */
};
enum { CUDA_SUM_THREADS = 256 }; /* block of the kernels that sum over the batch or the parameters */
enum { CUDA_SLICE_ROWS = 512 };
enum { CUDA_WORK = 1 << 16, CUDA_WIDE = 1 << 22 }; /* bytes; F32: a third of an H200's L2 */
enum { CUDA_CHUNK = 1024 };    /* leaves whose subtree one block recomputes */
enum { CUDA_WALK_SAMPLES = 8 }; /* samples that a block of the sampler draws, a warp each */
/* Rows of one call of act(); places for them, since trials that go together have as many each as the one with most; and those that
 * go through the layers at once: there so many take little longer than one. */
enum { CUDA_ACT_ROWS = 8192, CUDA_ACT_PLACES = 2 * CUDA_ACT_ROWS, CUDA_ACT_LAYERS = 2048 };
enum { CUDA_ACT_TRIALS = 128, CUDA_ACT_LEAST = CUDA_ACT_ROWS / CUDA_ACT_TRIALS }; /* side by side, and a trial's rows then: a block of mlp.cu */
/* A copy of the networks that act lets training go on meanwhile. Of larger populations it would be much memory for little: their evaluations
 * are long, and the trainer lets only short ones wait (validate.c). */
enum { CUDA_KEPT_TRIALS = 16 };
struct cuda_act_rows { float portfolio[CUDA_ACT_ROWS][FH_PORTFOLIO_FEATURES]; int32_t bar[CUDA_ACT_ROWS], place[CUDA_ACT_ROWS]; };
enum { CUDA_ENV_STATS = 8 }; /* reward, reward^2, episodes, return, steps, ruins, fills, exits */
enum { CUDA_ENV_FEW = 8, CUDA_ENV_BLOCK = 128 }; /* environments of a block: a warp each where they are few, else a thread each */

/* Networks that only go layer by layer, whoever has how many rows of them: their products may go through cuBLASLt (product.cuh), the bits of
 * all others are those of mlp.cu. */
static inline int cuda_layered(const struct dqn_dims *d)
{
	return d->precision != FH_PRECISION_BF16 || d->SD > 256 || d->H1 > 256 || d->H2 > 256;
}

static inline int cuda_tiles(int n, int tile) { return (n + tile - 1) / tile; }
static inline int cuda_pad16(int n) { return (n + 15) / 16 * 16; }

static inline void cuda_array_at(struct cuda_array *a, size_t bytes, int P, size_t *at)
{
	a->stride = (bytes + 255) / 256 * 256;
	a->offset = *at;
	*at += a->stride * (size_t)P;
}

static inline void cuda_scratch_make(const struct dqn_dims *d, struct cuda_scratch *s)
{
	size_t at = 0, B = (size_t)d->B, N = (size_t)d->N;
	int low = d->precision == FH_PRECISION_BF16 ? 2 : 4, o = 0;

	s->low = low;
	s->rows = 3 * d->B;
	s->ldx = cuda_pad16(d->SD);
	s->ldh1 = cuda_pad16(d->H1);
	s->ldh2 = cuda_pad16(d->H2);
	s->ldhead = cuda_pad16(d->VH) + d->D * cuda_pad16(d->AH);
	s->seg[0] = 0;
	o = cuda_pad16(d->NA);
	for (int b = 0; b < d->D; b++) {
		s->seg[1 + b] = o;
		o += cuda_pad16(d->A[b] * d->NA);
	}
	s->ldo = o;
	cuda_array_at(&s->x, 2 * B * s->ldx * low, d->P, &at);
	cuda_array_at(&s->h1, 3 * B * s->ldh1 * low, d->P, &at);
	cuda_array_at(&s->h2, 3 * B * s->ldh2 * low, d->P, &at);
	cuda_array_at(&s->head, 3 * B * s->ldhead * low, d->P, &at);
	cuda_array_at(&s->out, 3 * B * s->ldo * 4, d->P, &at);
	cuda_array_at(&s->dout, B * s->ldo * low, d->P, &at);
	cuda_array_at(&s->dhead, B * s->ldhead * low, d->P, &at);
	cuda_array_at(&s->dh2, B * s->ldh2 * low, d->P, &at);
	cuda_array_at(&s->dh1, B * s->ldh1 * low, d->P, &at);
	/* By the batch alone: the partition of sums, and so their bits, must not depend on how many trials run. A large
	 * batch is cut into slices, or a few tiles would each sum thousands of rows. */
	s->slices = d->B <= 1024 ? 1 : cuda_tiles(d->B, CUDA_SLICE_ROWS);
	s->grad_tile = s->slices == 1 ? 32 : 64;
	s->parts = 0;
	if (s->slices > 1)
		s->parts = (int)((d->params / 4 + CUDA_SUM_THREADS - 1) / CUDA_SUM_THREADS);
	else
		for (int l = 0; l < d->layers; l++)
			s->parts += cuda_tiles(d->layer[l].out, s->grad_tile) * cuda_tiles(d->layer[l].in, s->grad_tile);
	cuda_array_at(&s->slice, s->slices > 1 ? (size_t)s->slices * d->params * 4 : 4, d->P, &at);
	cuda_array_at(&s->part, (size_t)s->parts * 8, d->P, &at);
	cuda_array_at(&s->q, B * 4, d->P, &at);
	cuda_array_at(&s->edge, B * 4, d->P, &at);
	cuda_array_at(&s->wraw, B * 8, d->P, &at);
	cuda_array_at(&s->wtop, (size_t)cuda_tiles(d->B, CUDA_WALK_SAMPLES) * 8, d->P, &at);
	cuda_array_at(&s->step, sizeof(struct cuda_step), d->P, &at);
	cuda_array_at(&s->sums, 5 * 8, d->P, &at);
	cuda_array_at(&s->old, (B + 1) * 4, d->P, &at);
	cuda_array_at(&s->ticket, 4, d->P, &at);
	cuda_array_at(&s->winner, (size_t)d->C * 4, d->P, &at);
	cuda_array_at(&s->stack, cuda_layered(d) ? (size_t)s->ldhead * s->ldh2 * low : 4, d->P, &at);
	cuda_array_at(&s->work, cuda_layered(d) ? CUDA_WORK : 4, 1, &at);
	s->wide = 0;
	if (cuda_layered(d) && low == 2) {
		const int heads = d->VH > d->AH ? d->VH : d->AH, trunk = d->H1 > d->H2 ? d->H1 : d->H2;

		s->wide = (3 * B > N ? 3 * B : N) * (size_t)cuda_pad16(heads > trunk ? heads : trunk);
		if (s->wide > CUDA_WIDE)
			s->wide = CUDA_WIDE;
	}
	cuda_array_at(&s->wide_rows, s->wide ? s->wide * 4 : 4, 1, &at);
	cuda_array_at(&s->px, N * s->ldx * low, d->P, &at);
	cuda_array_at(&s->ph1, N * s->ldh1 * low, d->P, &at);
	cuda_array_at(&s->ph2, N * s->ldh2 * low, d->P, &at);
	cuda_array_at(&s->phead, N * s->ldhead * low, d->P, &at);
	cuda_array_at(&s->pout, N * s->ldo * 4, d->P, &at);
	cuda_array_at(&s->count, N * 4, d->P, &at);
	cuda_array_at(&s->first, N * 4, d->P, &at);
	cuda_array_at(&s->tape, sizeof(struct cuda_tape_view), d->P, &at);
	cuda_array_at(&s->next, N * FH_PORTFOLIO_FEATURES * 4, d->P, &at);
	cuda_array_at(&s->next_t, N * 4, d->P, &at);
	cuda_array_at(&s->done, N * 4, d->P, &at);
	cuda_array_at(&s->estat, (N + CUDA_ENV_FEW - 1) / CUDA_ENV_FEW * CUDA_ENV_STATS * 8, d->P, &at);
	cuda_array_at(&s->vrow, sizeof(struct cuda_act_rows), 1, &at);
	cuda_array_at(&s->vx, (size_t)CUDA_ACT_PLACES * s->ldx * low, 1, &at);
	cuda_array_at(&s->vaction, (size_t)CUDA_ACT_PLACES * d->D * 4, 1, &at);
	cuda_array_at(&s->vh1, (size_t)CUDA_ACT_LAYERS * s->ldh1 * low, 1, &at);
	cuda_array_at(&s->vh2, (size_t)CUDA_ACT_LAYERS * s->ldh2 * low, 1, &at);
	cuda_array_at(&s->vhead, (size_t)CUDA_ACT_LAYERS * s->ldhead * low, 1, &at);
	cuda_array_at(&s->vout, (size_t)CUDA_ACT_LAYERS * s->ldo * 4, 1, &at);
	s->kept = d->P <= CUDA_KEPT_TRIALS ? d->P : 0;
	cuda_array_at(&s->vparam, (size_t)s->kept * d->params * 4, 1, &at);
	cuda_array_at(&s->vparam_lp, d->precision == FH_PRECISION_BF16 ? (size_t)s->kept * d->params * 2 : 0, 1, &at);
	s->bytes = (at + d->P - 1) / d->P; /* P of these hold it all */
}

#endif
