/* A stand-in for cuBLASLt: products in F32 by one thread an element, in the order of k, as launches of the emulator; so they wait their turn on a
 * stream, are captured and fail like any other. Inputs of TF32 are rounded; workspaces and algorithms are none: an algorithm must be one that the
 * heuristic gave for the same kind of product. FH_EMU_FAULT knows cublasLtMatmul and cublasLtMatmulAlgoGetHeuristic. */
#include <cuda_bf16.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "stream.h"
#include "gpu/cuda/lt.h"

struct lt_opaque {
	int compute, trans[2], epilogue, bias_type; /* a product */
	const float *bias;
	int64_t bias_batch;
	int type;                                   /* a layout */
	uint64_t rows, cols;
	int64_t ld, offset;
	int batch;
};

namespace {

enum { SUCCESS = 0, INVALID = 7, NOT_SUPPORTED = 15, EXECUTION_FAILED = 13 };
const uint64_t ALGORITHM = 0x656d756c61746564u;

struct operand { const void *p; int64_t ld, batch; int bf16, trans; };
struct product { struct operand a, b; void *d; int64_t ldd, d_batch; int m, n, k, d_bf16, tf32, relu; const float *bias; int64_t bias_batch; };

__device__ float value(const struct operand &x, int64_t z, int64_t row, int64_t col)
{
	const int64_t at = z * x.batch + (x.trans ? col + row * x.ld : row + col * x.ld);

	return x.bf16 ? (float)((const __nv_bfloat16 *)x.p)[at] : ((const float *)x.p)[at];
}
__device__ float rounded(float v)
{
	uint32_t u;

	memcpy(&u, &v, 4);
	u = (u + 0x1000) & 0xffffe000u;
	memcpy(&v, &u, 4);
	return v;
}

/* Columns first, as the library has them. */
__global__ void k_lt_product(const struct product p)
{
	const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, z = blockIdx.z;

	if (i >= (int64_t)p.m * p.n)
		return;
	const int row = (int)(i % p.m), col = (int)(i / p.m);
	float sum = 0.f;
	for (int k = 0; k < p.k; k++) {
		const float a = value(p.a, z, row, k), b = value(p.b, z, k, col);

		sum = fmaf(p.tf32 ? rounded(a) : a, p.tf32 ? rounded(b) : b, sum);
	}
	if (p.bias)
		sum += p.bias[z * p.bias_batch + row];
	if (p.relu && sum < 0.f)
		sum = 0.f;
	if (p.d_bf16)
		((__nv_bfloat16 *)p.d)[z * p.d_batch + row + col * p.ldd] = __float2bfloat16(sum);
	else
		((float *)p.d)[z * p.d_batch + row + col * p.ldd] = sum;
}

int make(lt_handle_t *out) { *out = (lt_handle_t)calloc(1, sizeof **out); return *out ? SUCCESS : 3; }
int release(lt_handle_t x) { free(x); return SUCCESS; }

int create(lt_handle_t *out) { return make(out); }
size_t version(void) { return 130000; }
const char *status_name(int s) { return s == INVALID ? "CUBLAS_STATUS_INVALID_VALUE" : s == NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_EXECUTION_FAILED"; }

int desc_create(lt_desc_t *out, int compute, int scale)
{
	if (make(out))
		return 3;
	(*out)->compute = compute, (*out)->epilogue = 1, (*out)->bias_type = -1;
	return scale == LT_F32 ? SUCCESS : NOT_SUPPORTED;
}
template <typename T> int take(T *to, const void *from, size_t bytes)
{
	if (bytes != sizeof *to)
		return INVALID;
	memcpy(to, from, bytes);
	return SUCCESS;
}
int desc_set(lt_desc_t x, int attribute, const void *from, size_t bytes)
{
	switch (attribute) {
	case LT_TRANSA: return take(&x->trans[0], from, bytes);
	case LT_TRANSB: return take(&x->trans[1], from, bytes);
	case LT_EPILOGUE: return take(&x->epilogue, from, bytes);
	case LT_BIAS: return take(&x->bias, from, bytes);
	case LT_BIAS_BATCH: return take(&x->bias_batch, from, bytes);
	case LT_BIAS_TYPE: return take(&x->bias_type, from, bytes);
	default: return INVALID;
	}
}
int layout_create(lt_layout_t *out, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
	if (make(out))
		return 3;
	(*out)->type = type, (*out)->rows = rows, (*out)->cols = cols, (*out)->ld = ld, (*out)->batch = 1;
	return ld >= (int64_t)rows ? SUCCESS : INVALID;
}
int layout_set(lt_layout_t x, int attribute, const void *from, size_t bytes)
{
	return attribute == LT_BATCH_COUNT ? take(&x->batch, from, bytes) : attribute == LT_BATCH_OFFSET ? take(&x->offset, from, bytes) : INVALID;
}
int preference_create(lt_preference_t *out) { return make(out); }
int preference_set(lt_preference_t, int attribute, const void *, size_t bytes)
{
	return attribute == LT_MAX_WORKSPACE ? (bytes == 8 ? SUCCESS : INVALID) : bytes == 4 ? SUCCESS : INVALID;
}

int describe(lt_desc_t x, lt_layout_t a, lt_layout_t b, lt_layout_t c, lt_layout_t d, struct product *p)
{
	const uint64_t m = x->trans[0] ? a->cols : a->rows, k = x->trans[0] ? a->rows : a->cols;
	const int has_bias = x->epilogue & 4, bf16 = a->type == LT_BF16;

	if (d->rows != m || d->cols != (x->trans[1] ? b->rows : b->cols) || k != (x->trans[1] ? b->cols : b->rows) || c->rows != m || a->batch != b->batch ||
	    a->batch != d->batch || a->type != b->type)
		return INVALID;
	if ((x->epilogue & ~6) > 1 || (bf16 ? x->compute != LT_COMPUTE_F32 : d->type == LT_BF16) || (has_bias && x->bias_type != LT_F32))
		return NOT_SUPPORTED;
	*p = {};
	p->a = {NULL, a->ld, a->offset, bf16, x->trans[0]}, p->b = {NULL, b->ld, b->offset, bf16, x->trans[1]};
	p->ldd = d->ld, p->d_batch = d->offset, p->d_bf16 = d->type == LT_BF16;
	p->m = (int)m, p->n = (int)d->cols, p->k = (int)k;
	p->tf32 = x->compute == LT_COMPUTE_TF32, p->relu = x->epilogue & 2;
	p->bias = has_bias ? x->bias : NULL, p->bias_batch = x->bias_batch;
	return SUCCESS;
}
uint64_t kind(const struct product *p)
{
	return (uint64_t)p->m | (uint64_t)(p->k & 0x7ffff) << 40 | (uint64_t)p->relu << 60 | (uint64_t)p->d_bf16 << 62;
}

int heuristic(lt_handle_t, lt_desc_t x, lt_layout_t a, lt_layout_t b, lt_layout_t c, lt_layout_t d, lt_preference_t, int asked, struct lt_found *out, int *found)
{
	std::lock_guard<std::recursive_mutex> hold(emu_lock);
	struct product p;
	const int rc = describe(x, a, b, c, d, &p);

	*found = 0;
	if (rc || asked < 1 || emu_fault("cublasLtMatmulAlgoGetHeuristic") != cudaSuccess)
		return rc ? rc : NOT_SUPPORTED;
	*out = {};
	out->algo.data[0] = ALGORITHM, out->algo.data[1] = kind(&p);
	*found = 1;
	return SUCCESS;
}

int matmul(lt_handle_t, lt_desc_t x, const void *alpha, const void *a, lt_layout_t la, const void *b, lt_layout_t lb, const void *beta, const void *c, lt_layout_t lc,
           void *d, lt_layout_t ld, const struct lt_algo *algo, void *, size_t, cudaStream_t stream)
{
	std::lock_guard<std::recursive_mutex> hold(emu_lock);
	struct product p;
	const int rc = describe(x, la, lb, lc, ld, &p);
	struct cudaLaunchConfig_t config = {};

	if (rc)
		return rc;
	if (emu_fault("cublasLtMatmul") != cudaSuccess)
		return EXECUTION_FAILED;
	if (*(const float *)alpha != 1.f || *(const float *)beta != 0.f || c != d || algo->data[0] != ALGORITHM || algo->data[1] != kind(&p))
		return INVALID;
	p.a.p = a, p.b.p = b, p.d = d;
	config.gridDim = dim3((unsigned)(((int64_t)p.m * p.n + 255) / 256), 1, (unsigned)la->batch);
	config.blockDim = dim3(256);
	config.stream = stream;
	return cudaLaunchKernelEx(&config, k_lt_product, p) == cudaSuccess ? SUCCESS : EXECUTION_FAILED;
}

} // namespace

void *emu_lt_symbol(const char *name)
{
	static const struct { const char *name; void *function; } all[] = {
		{"cublasLtCreate", (void *)create}, {"cublasLtGetVersion", (void *)version}, {"cublasLtGetStatusName", (void *)status_name},
		{"cublasLtMatmulDescCreate", (void *)desc_create}, {"cublasLtMatmulDescSetAttribute", (void *)desc_set}, {"cublasLtMatmulDescDestroy", (void *)release},
		{"cublasLtMatrixLayoutCreate", (void *)layout_create}, {"cublasLtMatrixLayoutSetAttribute", (void *)layout_set}, {"cublasLtMatrixLayoutDestroy", (void *)release},
		{"cublasLtMatmulPreferenceCreate", (void *)preference_create}, {"cublasLtMatmulPreferenceSetAttribute", (void *)preference_set},
		{"cublasLtMatmulPreferenceDestroy", (void *)release}, {"cublasLtMatmulAlgoGetHeuristic", (void *)heuristic}, {"cublasLtMatmul", (void *)matmul},
	};

	for (const auto &s : all)
		if (!strcmp(s.name, name))
			return s.function;
	return NULL;
}
