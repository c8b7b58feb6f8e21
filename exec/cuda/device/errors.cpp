#include <fmt/format.h>

#include "base/errors.hpp"
#include "exec/cuda/device/launch.hpp"

namespace spillway::cuda {

namespace {

Message remedy(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "lower " + Setting{"gpu.memory"} + " (or " + Setting{"host.memory"} +
             ", if it was pinned memory that was refused), end other programs on the GPU "
             "(nvidia-smi lists them), or choose another: " +
             Setting{"gpu"};
    case cudaErrorNoDevice:
      return "use " + Setting{"device", "cpu"} +
             "; if there is a GPU, check that nvidia-smi lists it and that "
             "CUDA_VISIBLE_DEVICES does not hide it";
    case cudaErrorInsufficientDriver:
      return "update the NVIDIA driver (`nvidia-smi` shows the CUDA version it supports), or use " +
             Setting{"device", "cpu"};
    case cudaErrorInvalidDevice:
      return "choose one of the devices that nvidia-smi lists: " + Setting{"gpu"};
    case cudaErrorNoKernelImageForDevice:
      return "this build has no code for this GPU: configure with "
             "-DCMAKE_CUDA_ARCHITECTURES=native and build again";
    case cudaErrorHostMemoryAlreadyRegistered:
    case cudaErrorOperatingSystem:
    case cudaErrorNotPermitted:
      return "pinning memory was refused: raise the limit (`ulimit -l unlimited`) or lower " +
             Setting{"host.memory"};
    case cudaErrorECCUncorrectable:
      return "the GPU reports a hardware fault: see `nvidia-smi -q` and the system's log, and use "
             "another GPU; training resumes from the last commit with " +
             Setting{"resume"};
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorMisalignedAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorAssert:
      return "this is a fault in Spillway or in the GPU: run once under `compute-sanitizer` and "
             "report what it says; training resumes from the last commit with " +
             Setting{"resume"};
    default:
      return "see the CUDA documentation of this error; " + Setting{"device", "cpu"} +
             " trains without the GPU";
  }
}

}  // namespace

void check(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  throw MachineError(
      fmt::format("{} ({}) in {}", cudaGetErrorName(result), cudaGetErrorString(result), call),
      remedy(result));
}

}  // namespace spillway::cuda
