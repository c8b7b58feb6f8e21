// Launching kernels, checking calls, and what kernels share. Kernel bodies are ordinary CUDA C++,
// compiled by nvcc, and a second time by g++ for the emulator of tests/emulator, which brings its
// own <cuda_runtime.h>; launch() is the one way to start one.
//
// What kernels may use, so that both compile them: threadIdx, blockIdx, blockDim, gridDim,
// __shared__ arrays of fixed size, dynamic_shared(), __syncthreads(), __syncwarp(), the
// __shfl_*_sync family with full masks, and the functions of exec/cuda/attention/tensor_core.hpp;
// never warp-synchronous code without these.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace spillway::cuda {

// Throws MachineError with the name of the CUDA error, the call, and what to try.
void check(cudaError_t result, const char* call);
#define SPILLWAY_CUDA(call) ::spillway::cuda::check((call), #call)

constexpr int warp_size = 32;

// A block has 48 KB of shared memory without asking for more, a kernel's arrays of fixed size
// included: dynamic memory beyond this raises the limit, so those may take up to 8 KB beside it.
constexpr std::size_t shared_without_asking = 40 * 1024;

// How many blocks of `bytes` of shared memory each, dynamic and of fixed size, a multiprocessor of
// the current device has room for.
inline std::int64_t blocks_that_fit(std::int64_t bytes) {
  constexpr std::int64_t of_system = 1024;  // per block
  int device = 0, available = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&available, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device),
        "cudaDeviceGetAttribute");
  return available / (bytes + of_system);
}

struct Launch {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;  // dynamic
};

// Starts `kernel` on `stream`; arguments are converted to the kernel's parameter types. Throws
// MachineError, with `name`, when it cannot be started.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Launch& shape,
            cudaStream_t stream, Arguments... arguments) {
#ifdef SPILLWAY_EMULATED_GPU
  emulator::name_next_launch(name);
#endif
  if (shape.shared_bytes > shared_without_asking) {
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.shared_bytes)),
          name);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), name);
}

#ifdef __CUDACC__
// The block's dynamic shared memory, 16-byte aligned.
__device__ inline std::byte* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char spillway_dynamic_shared[];
  return reinterpret_cast<std::byte*>(spillway_dynamic_shared);
}
#elif defined(SPILLWAY_EMULATED_GPU)
inline std::byte* dynamic_shared() { return emulator::dynamic_shared(); }
#endif

}  // namespace spillway::cuda
