// Which GPU calibrate and bench open, on machines without one too.
#include "experiments/calibrate/gpu_under_test.hpp"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "base/errors.hpp"

namespace spillway {
namespace {

TEST_CASE(
    "A GPU to measure is numbered as nvidia-smi numbers it, unless the user orders otherwise") {
  setenv("SPILLWAY_CUDA_MODULE", "/there/is/none.so", 1);
  unsetenv("CUDA_DEVICE_ORDER");
  CHECK_THROWS_AS(open_gpu(0, 1), InputError);
  // CUDA reads it when it is loaded, which is after this.
  REQUIRE(std::getenv("CUDA_DEVICE_ORDER") != nullptr);
  CHECK(std::string(std::getenv("CUDA_DEVICE_ORDER")) == "PCI_BUS_ID");
  setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST", 1);
  CHECK_THROWS_AS(open_gpu(0, 1), InputError);
  CHECK(std::string(std::getenv("CUDA_DEVICE_ORDER")) == "FASTEST_FIRST");
  unsetenv("CUDA_DEVICE_ORDER");
  unsetenv("SPILLWAY_CUDA_MODULE");
}

}  // namespace
}  // namespace spillway
