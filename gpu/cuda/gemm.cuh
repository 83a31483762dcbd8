/* Groups of small matrix products in one launch: every product of one step of the network that depends on nothing
 * between. The tiles of all products and all trials are one list, which the blocks of the launch go through.
 *
 *   C[m, n] = epilogue( sum_k A(m, k) * B(n, k) )
 *
 * A is stored [m, k] or, with a_t, [k, m]; B is stored [n, k] or, with b_t, [k, n]. The sum over k may run through
 * several segments (heads whose weights lie apart). Inputs are F32 or BF16; accumulation is F32 in a fixed order, so the
 * same inputs give the same bits. */
#ifndef FH_GPU_CUDA_GEMM_CUH
#define FH_GPU_CUDA_GEMM_CUH

#include "gpu/cuda/exec.h"

enum gemm_mode { GEMM_F32, GEMM_TF32, GEMM_BF16 };
#define GEMM_SEGMENTS (1 + FH_BRANCH_MAX)
#define GEMM_GROUP 20

struct gemm_segment { const void *b; int k, a; }; /* k elements of the sum; A's part starts at column (row with a_t) a */

struct gemm {
	const void *a;                 /* low precision */
	void *c;                       /* F32 when c_f32, else low precision */
	const float *bias;             /* [n] F32 or NULL */
	const void *mask;              /* low [m, n], NULL: none; else C is kept where mask > 0 (relu's derivative) */
	size_t a_trial, b_trial, c_trial, bias_trial, mask_trial; /* bytes from trial to trial */
	int m, n, lda, ldb, ldc, ldmask;
	int store_n;                   /* > n: C has so many columns, those behind n take zeros; 0: n */
	int segments;
	struct gemm_segment seg[GEMM_SEGMENTS];
	unsigned char a_t, b_t, relu, c_f32;
	unsigned char early;           /* B is not written by the launch before: ask for it ahead */
	unsigned char a_early;         /* nor is A, where the layers' gradients are found in one launch: weight_few.cu */
	float *column;                 /* with a_t: [m] gets sum_k A(m, k) (a bias gradient), NULL: none */
	double *part;                  /* with c_f32: each tile leaves the sum of squares of what it wrote (column included) */
	size_t column_trial, part_trial; /* bytes */
	int tiles_n;                   /* filled by gemm_launch */
};

/* slices > 1: the sum over k (of products with one segment) is cut into so many parts of slice_k elements, a grid plane
 * each; part y goes to c + y * slice_bytes (column likewise), and whoever reads adds them up in order. */
struct gemm_group {
	int count;
	int first[GEMM_GROUP];         /* first tile of each product, side by side: blocks look themselves up. By gemm_launch */
	int tiles;                     /* by gemm_launch */
	int trials;                    /* 0: all of the exec's, by gemm_launch */
	int slices, slice_k;
	size_t slice_bytes;
	struct gemm g[GEMM_GROUP];
};

/* tile: 32, 64 or (plain epilogues only) 128, 0 chooses (the choice changes no bit of C, but it does change the partition behind `part`). `what` names
 * the launch in errors. */
int gemm_launch(struct cuda_exec *c, struct gemm_group *g, int tile, const char *what, struct fh_status *st);

#endif
