/* A driver of a GPU made of this CPU, by the declarations of NVIDIA's own header: a kernel is a function `launch` whose place
   in memory is its program, and runs its threads one after the other. */
#include <cuda.h>
#include <stdlib.h>
#include <string.h>

int launches, fails, memory, refuses, unloaded;

static int busy, current, synchronized;

static CUresult known(int is) { return is ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  *context = (CUcontext)&current;
  return known(device == 0);
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext context) {
  current++;
  return known(context == (CUcontext)&current);
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext *context) {
  *context = (CUcontext)&current;
  current--;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetAttribute(int *found, CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *found = 1; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *found = 12; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *found = 0; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *found = 2048; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return known(device == 0);
}

CUresult CUDAAPI cuDeviceTotalMem(size_t *bytes, CUdevice device) {
  *bytes = (size_t)1 << 30;
  return known(device == 0);
}

/* Wants its first level of optimisation, and a place for what it says. */
CUresult CUDAAPI cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options, void **values, unsigned int count,
                                   CUlibraryOption *others, void **other_values, unsigned int other_count) {
  int is = current && count == 3 && !other_count;
  is = is && options[0] == CU_JIT_OPTIMIZATION_LEVEL && values[0] == (void *)1;
  is = is && options[1] == CU_JIT_ERROR_LOG_BUFFER && options[2] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
  if (!is) return CUDA_ERROR_INVALID_VALUE;
  if (refuses) {
    strncpy(values[1], "line 7: I do not like it", (size_t)values[2]);
    return CUDA_ERROR_INVALID_PTX;
  }
  *library = (CUlibrary)strtoull(code, NULL, 10);
  return CUDA_SUCCESS;
}

/* Only when all work is done. */
CUresult CUDAAPI cuLibraryUnload(CUlibrary library) {
  unloaded++;
  return known(library != NULL && synchronized);
}

CUresult CUDAAPI cuCtxSynchronize(void) {
  synchronized = 1;
  return known(current);
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
  *kernel = (CUkernel)library;
  return known(!strcmp(name, "run"));
}

CUresult CUDAAPI cuKernelGetAttribute(int *found, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
  *found = memory;
  return known(current && attribute == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES && device == 0);
}

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int *found, CUfunction kernel, int threads, size_t shared) {
  *found = 2;
  return known(current && (threads == 64 || threads == 128) && !shared);
}

CUresult CUDAAPI cuLaunchKernel(CUfunction kernel, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
                                unsigned int bz, unsigned int shared, CUstream stream, void **params, void **extra) {
  while (__sync_lock_test_and_set(&busy, 1)) {}
  launches++;
  synchronized = 0;
  ((void (*)(void **, long long))kernel)(params, (long long)gx * bx);
  __sync_lock_release(&busy);
  return fails ? (CUresult)fails : known(gy == 1 && gz == 1 && by == 1 && bz == 1 && !shared && !extra);
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr place, unsigned char value, size_t size, CUstream stream) {
  memset((void *)place, value, size);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size, CUstream stream) {
  memcpy(to, (void *)from, size);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
  memcpy((void *)to, from, size);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream stream) { return CUDA_SUCCESS; }

CUresult CUDAAPI cuGetErrorString(CUresult error, const char **text) {
  *text = "out of patience";
  return CUDA_SUCCESS;
}
