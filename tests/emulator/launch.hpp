// Starting a kernel on a stream; cudaLaunchKernelEx of <cuda_runtime.h> is made of this.
#pragma once

#include <driver_types.h>

#include <functional>

namespace emulator {

// Names the kernel that this thread launches next, for messages and counts. Without it a kernel is
// known by its address.
void name_next_launch(const char* name);

// `body` runs one thread of the kernel. Checks the limits of the device; counts as
// cudaLaunchKernelEx.
cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel,
                   std::function<void()> body);

}  // namespace emulator
