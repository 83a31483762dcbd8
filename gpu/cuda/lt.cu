/* Loading cuBLASLt; see lt.h. */
#include <dlfcn.h>
#include <stdio.h>
#include "gpu/cuda/lt.h"

#if defined(__CUDACC__) && __has_include(<cublasLt.h>)
#include <cublasLt.h>
static_assert(sizeof(struct lt_algo) == sizeof(cublasLtMatmulAlgo_t) && sizeof(struct lt_found) == sizeof(cublasLtMatmulHeuristicResult_t) &&
              offsetof(struct lt_found, state) == offsetof(cublasLtMatmulHeuristicResult_t, state), "what the heuristic gives");
static_assert((int)LT_F32 == (int)CUDA_R_32F && (int)LT_BF16 == (int)CUDA_R_16BF && (int)LT_COMPUTE_F32 == (int)CUBLAS_COMPUTE_32F &&
              (int)LT_COMPUTE_TF32 == (int)CUBLAS_COMPUTE_32F_FAST_TF32 && (int)LT_INVALID == (int)CUBLAS_STATUS_INVALID_VALUE &&
              (int)LT_NOT_SUPPORTED == (int)CUBLAS_STATUS_NOT_SUPPORTED, "types and statuses");
static_assert((int)LT_TRANSA == (int)CUBLASLT_MATMUL_DESC_TRANSA && (int)LT_TRANSB == (int)CUBLASLT_MATMUL_DESC_TRANSB &&
              (int)LT_EPILOGUE == (int)CUBLASLT_MATMUL_DESC_EPILOGUE && (int)LT_BIAS == (int)CUBLASLT_MATMUL_DESC_BIAS_POINTER &&
              (int)LT_BIAS_BATCH == (int)CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE && (int)LT_BIAS_TYPE == (int)CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE &&
              (int)LT_EPILOGUE_BIAS == (int)CUBLASLT_EPILOGUE_BIAS && (int)LT_EPILOGUE_RELU_BIAS == (int)CUBLASLT_EPILOGUE_RELU_BIAS, "attributes of a product");
static_assert((int)LT_BATCH_COUNT == (int)CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && (int)LT_BATCH_OFFSET == (int)CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET &&
              (int)LT_MAX_WORKSPACE == (int)CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && (int)LT_REDUCTIONS == (int)CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK &&
              (int)LT_ALIGN_A == (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES && (int)LT_ALIGN_D == (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
              "attributes of layouts and preferences");
#endif

#ifndef __CUDACC__ /* the emulator has one of its own: tests/gpu/emu/lt.cc */
void *emu_lt_symbol(const char *name);
#endif

namespace {

/* FH_GPU_CUBLASLT names another file; "none" stands for a machine without it. */
void *load(void)
{
	static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.12"};
	const char *asked = getenv("FH_GPU_CUBLASLT");
	void *handle = NULL;

	if (asked && *asked)
		return dlopen(asked, RTLD_NOW | RTLD_LOCAL);
	for (unsigned i = 0; !handle && i < sizeof names / sizeof names[0]; i++)
		handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	return handle;
}

void *symbol(void *handle, const char *name)
{
#ifndef __CUDACC__
	return emu_lt_symbol(name);
#else
	return dlsym(handle, name);
#endif
}

int find(void *handle, const char *name, void *to)
{
	return (*(void **)to = symbol(handle, name)) != NULL;
}

/* NULL: complete; else what is wrong. */
const char *complete(struct lt *l)
{
#ifndef __CUDACC__
	const char *asked = getenv("FH_GPU_CUBLASLT");
	void *handle = asked && !strcmp(asked, "none") ? NULL : (void *)load;
#else
	void *handle = load();
#endif
	if (!handle)
		return "libcublasLt is not there";
	if (!find(handle, "cublasLtCreate", &l->create) || !find(handle, "cublasLtGetVersion", &l->get_version) ||
	    !find(handle, "cublasLtGetStatusName", &l->status_name) || !find(handle, "cublasLtMatmulDescCreate", &l->desc_create) ||
	    !find(handle, "cublasLtMatmulDescSetAttribute", &l->desc_set) || !find(handle, "cublasLtMatmulDescDestroy", &l->desc_destroy) ||
	    !find(handle, "cublasLtMatrixLayoutCreate", &l->layout_create) || !find(handle, "cublasLtMatrixLayoutSetAttribute", &l->layout_set) ||
	    !find(handle, "cublasLtMatrixLayoutDestroy", &l->layout_destroy) || !find(handle, "cublasLtMatmulPreferenceCreate", &l->preference_create) ||
	    !find(handle, "cublasLtMatmulPreferenceSetAttribute", &l->preference_set) || !find(handle, "cublasLtMatmulPreferenceDestroy", &l->preference_destroy) ||
	    !find(handle, "cublasLtMatmulAlgoGetHeuristic", &l->heuristic) || !find(handle, "cublasLtMatmul", &l->matmul))
		return "libcublasLt lacks a function";
	if (l->create(&l->handle) != 0)
		return "cublasLtCreate failed";
	l->version = l->get_version();
	return NULL;
}

} // namespace

const struct lt *lt_open(const char **why)
{
	static struct lt library;
	static const char *wrong;
	static int tried;

	if (!tried)
		tried = 1, wrong = complete(&library);
	*why = wrong;
	return wrong ? NULL : &library;
}

int lt_fail(const struct lt *lt, struct fh_status *st, int status, const char *call)
{
	const cudaError_t e = cudaPeekAtLastError();

	return e != cudaSuccess ? cuda_fail(st, e, call) : fh_fail(st, FH_DEVICE, "%.120s: %s", call, lt->status_name(status));
}
