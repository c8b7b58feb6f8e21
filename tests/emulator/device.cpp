// The emulated device: one like an H100 in what programs may rely on, with as much memory as a test
// says. And starting kernels on it.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "tests/emulator/block.hpp"
#include "tests/emulator/calls.hpp"
#include "tests/emulator/launch.hpp"
#include "tests/emulator/stream.hpp"

namespace emulator {
namespace {

constexpr std::size_t shared_default = 48 * 1024, shared_of_system = 1024;
// A kernel's __shared__ arrays count, too; how large they are is not known here, so some is
// assumed.
constexpr std::size_t shared_arrays = 4 * 1024;
constexpr unsigned threads_most = 1024;

struct Kernels {
  std::mutex mutex;
  std::map<const void*, std::size_t> shared_limit;
};
Kernels& kernels() {
  static auto* one = new Kernels;
  return *one;
}

thread_local int device_of_thread = 0;
thread_local std::string next_launch;

bool within_limits(const cudaLaunchConfig_t& config) {
  const dim3 &grid = config.gridDim, &block = config.blockDim;
  const bool some =
      grid.x > 0 && grid.y > 0 && grid.z > 0 && block.x > 0 && block.y > 0 && block.z > 0;
  return some && grid.x <= 0x7fffffffu && grid.y <= 65535 && grid.z <= 65535 &&
         block.x <= threads_most && block.y <= threads_most && block.z <= 64 &&
         std::uint64_t{block.x} * block.y * block.z <= threads_most &&
         std::uint64_t{grid.x} * grid.y * grid.z < (std::uint64_t{1} << 32);
}

void run_kernel(const Grid& grid, const std::function<void()>& body) {
  cudaError_t code = cudaSuccess;
  if (kernel_ordered_to_fail(grid.kernel, code)) {
    fail_device(code, "kernel " + grid.kernel + " failed, as a test ordered");
    return;
  }
  try {
    run_grid(grid, body);
  } catch (const KernelFailure& failure) {
    fail_device(cudaErrorLaunchFailure, failure.what());
  }
}

}  // namespace

int current_device() { return device_of_thread; }

void name_next_launch(const char* name) { next_launch = name; }

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel,
                   std::function<void()> body) {
  std::string name = std::exchange(next_launch, "");
  return call("cudaLaunchKernelExC", [&] {
    CUstream_st* stream = find_stream(config.stream);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (!within_limits(config)) return cudaErrorInvalidConfiguration;
    if (config.numAttrs != 0) return cudaErrorNotSupported;
    {
      std::lock_guard lock(kernels().mutex);
      const auto found = kernels().shared_limit.find(kernel);
      const std::size_t limit =
          found == kernels().shared_limit.end() ? shared_default - shared_arrays : found->second;
      if (config.dynamicSmemBytes > limit) return cudaErrorInvalidValue;
    }
    if (name.empty()) {
      char text[32];
      std::snprintf(text, sizeof text, "%p", kernel);
      name = text;
    }
    if (recording()) {
      record_launch({name, kernel, config.gridDim, config.blockDim, config.dynamicSmemBytes});
      return cudaSuccess;
    }
    Grid grid{std::move(name), config.gridDim, config.blockDim, config.dynamicSmemBytes, 0};
    return submit(*stream, {[grid = std::move(grid), body = std::move(body)](std::uint64_t seed) {
      Grid seeded = grid;
      seeded.seed = seed;
      run_kernel(seeded, body);
    }});
  });
}

}  // namespace emulator

using emulator::call;

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return call("cudaFuncSetAttribute", [&] {
    if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        static_cast<std::size_t>(value) >
            emulator::machine().shared_bytes - emulator::shared_of_system)
      return cudaErrorInvalidValue;
    std::lock_guard lock(emulator::kernels().mutex);
    emulator::kernels().shared_limit[kernel] = static_cast<std::size_t>(value);
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceCount(int* count) {
  // Left unwritten on error, as CUDA leaves it.
  return call("cudaGetDeviceCount", [&] {
    if (count == nullptr) return cudaErrorInvalidValue;
    *count = emulator::machine().devices;
    return cudaSuccess;
  });
}
cudaError_t cudaGetDevice(int* device) {
  return call("cudaGetDevice", [&] {
    if (device == nullptr) return cudaErrorInvalidValue;
    *device = emulator::current_device();
    return cudaSuccess;
  });
}
cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", [&] {
    if (device < 0 || device >= emulator::machine().devices) return cudaErrorInvalidDevice;
    emulator::device_of_thread = device;
    return cudaSuccess;
  });
}
cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  return call("cudaInitDevice", [&] {
    return device < 0 || device >= emulator::machine().devices ? cudaErrorInvalidDevice
                                                               : cudaSuccess;
  });
}
cudaError_t cudaSetDeviceFlags(unsigned) {
  return call("cudaSetDeviceFlags", [] { return cudaSuccess; });
}
cudaError_t cudaDeviceReset() {
  return call("cudaDeviceReset", [] {
    emulator::drain_device(emulator::current_device());
    return emulator::device_state();
  });
}
cudaError_t cudaDriverGetVersion(int* version) {
  emulator::count_one("cudaDriverGetVersion");
  if (version == nullptr) return cudaErrorInvalidValue;
  *version = emulator::machine().driver ? CUDART_VERSION : 0;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  emulator::count_one("cudaRuntimeGetVersion");
  if (version == nullptr) return cudaErrorInvalidValue;
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call("cudaGetDeviceProperties", [&] {
    if (properties == nullptr) return cudaErrorInvalidValue;
    if (device < 0 || device >= emulator::machine().devices) return cudaErrorInvalidDevice;
    const emulator::Machine& machine = emulator::machine();
    *properties = {};
    machine.name.copy(properties->name, sizeof properties->name - 1);
    properties->uuid.bytes[15] = static_cast<char>(device);
    properties->totalGlobalMem = machine.memory_bytes;
    properties->sharedMemPerBlock = emulator::shared_default;
    properties->sharedMemPerBlockOptin = machine.shared_bytes - emulator::shared_of_system;
    properties->sharedMemPerMultiprocessor = machine.shared_bytes;
    properties->reservedSharedMemPerBlock = emulator::shared_of_system;
    properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
    properties->warpSize = emulator::warp_lanes;
    properties->maxThreadsPerBlock = static_cast<int>(emulator::threads_most);
    properties->maxThreadsPerMultiProcessor = 2048;
    const int threads[3] = {1024, 1024, 64}, blocks[3] = {0x7fffffff, 65535, 65535};
    std::copy(threads, threads + 3, properties->maxThreadsDim);
    std::copy(blocks, blocks + 3, properties->maxGridSize);
    properties->major = machine.major;
    properties->minor = machine.minor;
    properties->multiProcessorCount = machine.multiprocessors;
    properties->asyncEngineCount = 3;
    properties->concurrentKernels = properties->unifiedAddressing = properties->canMapHostMemory =
        properties->canUseHostPointerForRegisteredMem = properties->hostRegisterSupported = 1;
    properties->l2CacheSize = 50 << 20;
    properties->memoryBusWidth = 5120;
    properties->pciBusID = device + 1;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return call("cudaDeviceGetAttribute", [&] {
    if (value == nullptr) return cudaErrorInvalidValue;
    if (device < 0 || device >= emulator::machine().devices) return cudaErrorInvalidDevice;
    switch (attribute) {
      case cudaDevAttrMaxThreadsPerBlock:
        *value = emulator::threads_most;
        break;
      case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = emulator::shared_default;
        break;
      case cudaDevAttrWarpSize:
        *value = emulator::warp_lanes;
        break;
      case cudaDevAttrMultiProcessorCount:
        *value = emulator::machine().multiprocessors;
        break;
      case cudaDevAttrIntegrated:
      case cudaDevAttrPageableMemoryAccess:
        *value = 0;
        break;
      case cudaDevAttrCanMapHostMemory:
      case cudaDevAttrUnifiedAddressing:
      case cudaDevAttrCanUseHostPointerForRegisteredMem:
      case cudaDevAttrHostRegisterSupported:
        *value = 1;
        break;
      case cudaDevAttrAsyncEngineCount:
        *value = 3;
        break;
      case cudaDevAttrComputeCapabilityMajor:
        *value = emulator::machine().major;
        break;
      case cudaDevAttrComputeCapabilityMinor:
        *value = emulator::machine().minor;
        break;
      case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = static_cast<int>(emulator::machine().shared_bytes);
        break;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = static_cast<int>(emulator::machine().shared_bytes - emulator::shared_of_system);
        break;
      default:
        return cudaErrorInvalidValue;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int capacity, int device) {
  return call("cudaDeviceGetPCIBusId", [&] {
    if (text == nullptr || capacity < 13) return cudaErrorInvalidValue;
    if (device < 0 || device >= emulator::machine().devices) return cudaErrorInvalidDevice;
    std::snprintf(text, static_cast<std::size_t>(capacity), "0000:%02x:00.0", device + 1);
    return cudaSuccess;
  });
}
