/* A driver of a GPU made of this CPU, by the declarations of NVIDIA's own header: a kernel is a function `launch` whose place
   in memory is its program, and runs its threads one after the other. */
#include <cuda.h>
#include <stdlib.h>
#include <string.h>

int launches, fails, memory;

static int busy, current;

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
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *found = 65536; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return known(device == 0);
}

CUresult CUDAAPI cuDeviceTotalMem(size_t *bytes, CUdevice device) {
  *bytes = (size_t)1 << 30;
  return known(device == 0);
}

CUresult CUDAAPI cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options, void **values, unsigned int count,
                                   CUlibraryOption *others, void **other_values, unsigned int other_count) {
  *library = (CUlibrary)strtoull(code, NULL, 10);
  return known(current && count == 1 && options[0] == CU_JIT_OPTIMIZATION_LEVEL && values[0] == (void *)1 && !other_count);
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary library) { return known(library != NULL); }

CUresult CUDAAPI cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
  *kernel = (CUkernel)library;
  return known(!strcmp(name, "run"));
}

/* As many registers as leave room for two blocks of a loop. */
CUresult CUDAAPI cuKernelGetAttribute(int *found, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
  *found = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 500 : attribute == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES ? memory : -1;
  return known(current && *found >= 0 && device == 0);
}

CUresult CUDAAPI cuLaunchKernel(CUfunction kernel, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
                                unsigned int bz, unsigned int shared, CUstream stream, void **params, void **extra) {
  while (__sync_lock_test_and_set(&busy, 1)) {}
  launches++;
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
