// Which CUDA devices there are. C linkage: looked up by name in the loaded module.
#include <cuda_runtime.h>

#include <cstdio>

// Writes one line per device, or the reason why there is none, to `text` (always terminated).
// Returns the number of devices, or -1 when CUDA reports an error.
extern "C" int spillway_cuda_devices(char* text, int capacity) {
  int count = 0;  // left unwritten on error
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    std::snprintf(text, static_cast<size_t>(capacity), "%s: %s", cudaGetErrorName(error),
                  cudaGetErrorString(error));
    return -1;
  }
  int used = 0;
  text[0] = '\0';
  for (int device = 0; device < count && used < capacity; ++device) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) continue;
    used += std::snprintf(text + used, static_cast<size_t>(capacity - used), "%s%d: %s, %.1f GB",
                          device ? "\n" : "", device, properties.name,
                          static_cast<double>(properties.totalGlobalMem) / 1e9);
  }
  return count;
}
