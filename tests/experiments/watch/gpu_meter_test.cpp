// Power and clock of a GPU, by a management library that is not NVIDIA's.
#include "experiments/watch/gpu_meter.hpp"

#include <catch2/catch.hpp>

#include "test_paths.hpp"

namespace spillway {

TEST_CASE("A GPU's power and clock are those that the driver's library tells") {
  GpuMeter meter("0000:3B:00.0", SPILLWAY_FAKE_NVML);
  REQUIRE(meter.measures());
  const GpuReading first = meter.read();
  CHECK(*first.power_watts >= 100);
  CHECK(*first.clock_mhz == 1980);
  // Nothing read since then is no reason to say nothing, and power only rises.
  CHECK(*meter.read().power_watts >= *first.power_watts);
}

TEST_CASE(
    "Without the driver's library, or with a GPU that it does not know, nothing is measured") {
  for (const auto& [bus, library] :
       {std::pair("0000:3B:00.0", "libnot-there.so.1"), {"0000:99:00.0", SPILLWAY_FAKE_NVML}}) {
    GpuMeter meter(bus, library);
    CHECK_FALSE(meter.measures());
    CHECK_FALSE(meter.read().power_watts);
    CHECK_FALSE(meter.read().clock_mhz);
  }
}

}  // namespace spillway
