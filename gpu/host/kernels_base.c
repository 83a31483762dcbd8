/* The kernels in plain C with 16-byte vectors, for any CPU; products go to the BLAS library unless the build has none
 * (FH_NO_BLAS). The team calls it from several threads at once, so a BLAS that makes threads of its own is told not to. */
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "gpu/host/kernels.h"

#define VEC_BYTES 16
#define KERNELS_NAME "base"
#ifdef FH_NO_BLAS
#define KERNELS_PRODUCT product
#else
static void blas_product(const struct product *g);
#define KERNELS_PRODUCT blas_product
#endif
#include "gpu/host/kernels.inc"

#ifndef FH_NO_BLAS
/* cblas.h is not asked for: its place differs between distributions and three names are all that is used. */
enum { CBLAS_ROW_MAJOR = 101, CBLAS_NO_TRANS = 111, CBLAS_TRANS = 112 };
void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
		 const float *b, int ldb, float beta, float *c, int ldc);
__attribute__((weak)) void openblas_set_num_threads(int threads);

static pthread_once_t blas_once = PTHREAD_ONCE_INIT;

static void blas_quiet(void)
{
	if (openblas_set_num_threads)
		openblas_set_num_threads(1);
}

static void finish_row(const struct product *g, int i)
{
	float *c = g->c + i * g->c_row;

	for (int j = 0; j < g->n; j += VL) {
		int left = g->n - j;
		vf x = load_part(c + j, left);

		if (g->relu)
			x = rectified(x);
		if (g->gate)
			x = gated(x, load_part(g->gate + i * g->gate_row + j, left));
		store_part(c + j, v_round(x, g->round), left);
	}
}

static void blas_product(const struct product *g)
{
	int by_step = g->a_row == 1 && g->a_col != 1; /* a is stored transposed */

	if (g->pick || g->k < 1) {
		product(g);
		return;
	}
	pthread_once(&blas_once, blas_quiet);
	for (int i = 0; i < g->m; i++)
		for (int j = 0; j < g->n; j++)
			g->c[i * g->c_row + j] = (g->start ? g->start[i * g->start_row + j] : 0.0f) + (g->bias ? g->bias[i] : 0.0f);
	cblas_sgemm(CBLAS_ROW_MAJOR, by_step ? CBLAS_TRANS : CBLAS_NO_TRANS, CBLAS_NO_TRANS, g->m, g->n, g->k, 1.0f, g->a,
		    (int)(by_step ? g->a_col : g->a_row), g->b, (int)g->b_row, 1.0f, g->c, (int)g->c_row);
	for (int i = 0; i < g->m; i++)
		if (g->relu || g->gate || g->round)
			finish_row(g, i);
}
#endif

const struct kernels *host_kernels_base(void)
{
	return &table;
}
