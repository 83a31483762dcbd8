/* Small vector kernels behind one table per instruction set: AVX-512, AVX2 with FMA, and plain C (with BLAS products
 * where it is linked). Pure functions on the caller's arrays, any thread.
 *
 * Every element of a result is summed in one fixed order, whatever the shape of the call around it, so a batch may be
 * cut anywhere. Bits may differ between instruction sets, never between calls. */
#ifndef FH_GPU_HOST_KERNELS_H
#define FH_GPU_HOST_KERNELS_H

#include <stdint.h>

#define PANEL 32 /* columns of a product; also the samples of a chunk */
#define PANEL_SLACK PANEL /* floats that may be read (never used) behind the last row of b */

/* c[i][j] = f(start[i][j] + bias[i] + sum_k a[i][k] b[k][j]), i < m, j < n <= PANEL. */
struct product {
	int m, n, k;
	const float *a;
	int64_t a_row, a_col;    /* a[i][k] = a[i*a_row + k*a_col]; one of them is 1 */
	const float *b;
	int64_t b_row;
	const int32_t *pick;     /* not NULL: step k stands for a's column and b's row pick[k]; a_row is 1 */
	float *c;
	int64_t c_row;
	const float *start;      /* NULL: 0. May be c */
	int64_t start_row;
	const float *bias;       /* NULL: 0 */
	const float *gate;       /* not NULL: elements with gate[i][j] <= 0 become 0 */
	int64_t gate_row;
	int relu;                /* max(., 0) */
	int round;               /* low bits rounded away: 0, 13 (TF32) or 16 (BF16) */
};

/* The same for a list of rows: i runs over row[0..m); a, c, start and gate are addressed by row[i]; the bias belongs to
 * columns. */
struct product_rows {
	int m, n, k;
	const int32_t *row;
	const float *a;
	int64_t a_row;
	const float *b;
	int64_t b_row;
	float *c;
	int64_t c_row;
	const float *start;
	int64_t start_row;
	const float *bias;       /* [n] or NULL */
	const float *gate;
	int64_t gate_row;
	int round;
};

/* A few rows at once through a layer whose weights lie packed for it: y[i][j] = f(start[i][j] + bias[j] + sum_k x[i][k] w[k][j])
 * with the sums of struct product, bit for bit. w: [ceil(n/FEW_PANEL)][k][FEW_PANEL], bias, start and y in rows that are
 * padded to whole panels (the padding of w and bias is 0). */
#define FEW_ROWS 6
#define FEW_PANEL 64
struct product_few {
	int m, n, k;             /* m <= FEW_ROWS */
	const float *x;
	int64_t x_row;
	const float *w;
	const float *bias;
	const float *start;      /* NULL: 0 */
	int64_t start_row;
	float *y;
	int64_t y_row;
	int relu, round;
};

struct adam_step {
	float grad_scale, lr, inv_bias1, inv_bias2, weight_decay, tau; /* tau 1: hard copy, 0: target stays */
};

struct kernels {
	const char *name;
	void (*product)(const struct product *g);
	/* The same by the loops of this file even where `product` is a library's, whose sums may depend on the shape. */
	void (*product_own)(const struct product *g);
	void (*product_rows)(const struct product_rows *g);
	void (*product_few)(const struct product_few *g);
	/* dst[j][i] = round(src[i][j]), i < rows, j < cols */
	void (*transpose)(const float *src, int64_t src_row, int rows, int cols, float *dst, int64_t dst_row, int round);
	/* dst[a*step + i] = src[a*step + i] - their mean over a < count, for i < n; dst may be src */
	void (*center)(const float *src, int64_t step, int count, int64_t n, float *dst);
	void (*round)(const float *src, int64_t n, int dropped, float *dst);
	/* q[j] = expected value of softmax over i of logit[i*row + j], at atoms middle + (i - (atoms - 1)/2) dz; j < PANEL.
	 * From the middle, because from v_min the small Q of a young network would cancel. */
	void (*expectation)(const float *logit, int64_t row, int atoms, float middle, float dz, float *q);
	/* p = softmax of y [n], returns ln of the sum of exp(y - top) and puts the top there */
	float (*softmax)(const float *y, int n, float *p, float *top);
	/* sum m ln m over [n], 0 ln 0 = 0 */
	float (*entropy)(const float *m, int n);
	/* sum m (y - shift), with y - shift floored so that 0 times it is 0 */
	float (*cross)(const float *m, const float *y, float shift, int n);
	float (*dot)(const float *a, const float *b, int n);
	/* x[i] = x[i]^power, x > 0 normal */
	void (*power)(float *x, int n, float power);
	double (*sum_squares)(const float *x, int64_t n);
	float (*sum)(const float *x, int n);
	void (*adam)(const struct adam_step *a, int64_t n, float *param, float *target, float *m, float *v, const float *grad);
};

const struct kernels *host_kernels(void); /* the best that this CPU runs; FH_HOST_KERNELS=avx512|avx2|base forces one */
const struct kernels *host_kernels_avx512(void); /* NULL where this build or CPU has none */
const struct kernels *host_kernels_avx2(void);
const struct kernels *host_kernels_base(void);

#endif
