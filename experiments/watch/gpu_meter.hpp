// Power and clock of a GPU, by NVIDIA's management library where the machine has it (NVML, which
// comes with the driver): loaded at run time, so nothing is needed to build, and where it is
// missing or refuses, nothing is measured.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace spillway {

struct GpuReading {
  std::optional<double> power_watts;
  std::optional<double> clock_mhz;  // of the multiprocessors
};

// Reads both a few times a second, on a thread of its own: the driver may take milliseconds.
class GpuMeter {
 public:
  static constexpr const char* usual_library = "libnvidia-ml.so.1";

  // `pci_bus`: which GPU, e.g. "0000:3b:00.0". `library`: a name that the dynamic loader finds, or
  // a path.
  explicit GpuMeter(const std::string& pci_bus, const std::string& library = usual_library);
  ~GpuMeter();
  GpuMeter(const GpuMeter&) = delete;
  GpuMeter& operator=(const GpuMeter&) = delete;

  // Whether there is anything to measure.
  bool measures() const { return meter_ != nullptr; }
  // The mean since the last call; where nothing was read since then, the last reading.
  GpuReading read();

 private:
  struct Meter;
  std::unique_ptr<Meter> meter_;
};

}  // namespace spillway
