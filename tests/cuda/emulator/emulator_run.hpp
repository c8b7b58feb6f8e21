// Running a kernel of a test on the emulated device.
#pragma once

#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <string>

#include "exec/cuda/device/launch.hpp"
#include "tests/emulator/emulator.hpp"

namespace emulator::test {

// Launches it on the default stream under the name kernel_under_test, and waits; returns what went
// wrong on the device, "" if nothing did. After a failure: emulator::reset().
template <class... Parameters, class... Arguments>
std::string run(void (*kernel)(Parameters...), const spillway::cuda::Launch& shape,
                Arguments... arguments) {
  spillway::cuda::launch("kernel_under_test", kernel, shape, nullptr, arguments...);
  const cudaError_t result = cudaDeviceSynchronize();
  std::string failure = device_failure();
  REQUIRE((result == cudaSuccess) == failure.empty());
  return failure;
}

}  // namespace emulator::test
