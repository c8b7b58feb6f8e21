// With or without a CUDA toolkit, driver or GPU, asking for devices gives an answer a person can
// read.
#include "exec/run/cuda_module.hpp"

#include <catch2/catch.hpp>

namespace spillway {
namespace {

TEST_CASE("asking for CUDA devices never throws and always says something") {
  const CudaDevices devices = find_cuda_devices();
  INFO(devices.text);
  CHECK_FALSE(devices.text.empty());
  CHECK(devices.count >= 0);
  if (!devices.module_loaded) CHECK(devices.count == 0);
}

}  // namespace
}  // namespace spillway
