#include "experiments/testbed/throttled_machine.hpp"

#include "base/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

namespace spillway {

namespace {

// The part of a core that stays busy when work that keeps `cores` busy at `full` is slowed down.
double busy_cores(double cores, double rate, double full) {
  return full > 0 ? cores * std::min(1.0, rate / full) : cores;
}

void throttle_compute(Machine& machine, double rate) {
  machine.gpu.cores =
      busy_cores(machine.gpu.cores > 0 ? machine.gpu.cores : 1, rate, machine.gpu.flops);
  machine.gpu.flops = rate;
  for (KernelTime& kernel : machine.kernels) {
    if (!(kernel.flops > 0)) continue;
    kernel.median_ns = std::llround(kernel.flops / rate * 1e9);
    kernel.spread = 0;
    kernel.samples_ns.clear();
  }
}

void throttle_optimizers(Machine& machine, const ThrottleRates& throttle) {
  Machine::Host& host = machine.host;
  const double cores = host.adam_cores > 0 ? host.adam_cores : 1;
  if (throttle.optimizer > 0) {
    host.adam_cores = busy_cores(cores, throttle.optimizer, host.adam_params_per_second);
    host.adam_params_per_second = throttle.optimizer;
  }
  if (throttle.gpu_optimizer > 0) machine.gpu.adam_params_per_second = throttle.gpu_optimizer;
}

void throttle_links(Machine& machine, const ThrottleRates& throttle) {
  Machine::Pcie& pcie = machine.pcie;
  if (throttle.h2d > 0) pcie.h2d = throttle.h2d;
  if (throttle.d2h > 0) pcie.d2h = throttle.d2h;
  if (throttle.h2d > 0 && throttle.d2h > 0) {
    pcie.total = 0;
    pcie.latency_ns = machine.gpu.launch_ns;
  }
}

void throttle_drives(Machine& machine, int set, const ThrottledDrives& throttle) {
  Machine::Ssd& ssd = machine.drives(set);
  if (!throttle.any() || (set > 0 && ssd.count == 0)) return;
  const Machine::Ssd::Row real = ssd.at_queue_depth();
  const double read = throttle.read > 0 ? throttle.read : real.read;
  const double write = throttle.write > 0 ? throttle.write : real.write;
  ssd.cores = busy_cores(ssd.cores, std::max(read, write), std::max(real.read, real.write));
  ssd.by_queue_depth.clear();
  ssd.by_count.clear();
  ssd.queue_depth = executor_queue_depth;
  ssd.read = read;
  ssd.write = write;
  if (throttle.read > 0) ssd.read_latency_ns = machine.gpu.launch_ns;
  if (throttle.write > 0) ssd.write_latency_ns = machine.gpu.launch_ns;
  if (throttle.read > 0 && throttle.write > 0) {
    ssd.law = throttle.total > 0 ? SsdLaw::capped : SsdLaw::duplex;
    ssd.total = throttle.total;
  } else {
    ssd.total = real.total;
  }
}

}  // namespace

Machine throttled_machine(const Machine& base, const ThrottleRates& throttle) {
  Machine machine = base;
  if (!throttle.any()) return machine;
  // They say how fast this machine is, and how well it is known, not the one stood for.
  machine.references.clear();
  machine.trials.clear();
  if (throttle.gpu > 0) throttle_compute(machine, throttle.gpu);
  throttle_optimizers(machine, throttle);
  throttle_links(machine, throttle);
  for (int set = 0; set < most_drive_sets; ++set)
    throttle_drives(machine, set, throttle.drives[static_cast<std::size_t>(set)]);
  if (throttle.nvlink > 0) {
    machine.cluster.cores =
        busy_cores(machine.cluster.cores, throttle.nvlink, machine.cluster.nvlink);
    machine.cluster.nvlink = throttle.nvlink;
    machine.cluster.nvlink_latency_ns = 0;
    machine.cluster.collectives.clear();
  }
  std::vector<std::pair<std::string, double>> given = {{"gpu.flops", throttle.gpu},
                                                       {"gpu.adam_rate", throttle.gpu_optimizer},
                                                       {"host.adam_rate", throttle.optimizer},
                                                       {"pcie.h2d", throttle.h2d},
                                                       {"pcie.d2h", throttle.d2h},
                                                       {"cluster.nvlink", throttle.nvlink}};
  for (int set = 0; set < most_drive_sets; ++set) {
    const ThrottledDrives& drives = throttle.drives[static_cast<std::size_t>(set)];
    if (set > 0 && machine.drives(set).count == 0) continue;
    given.emplace_back(drive_set_key(set, "read"), drives.read);
    given.emplace_back(drive_set_key(set, "write"), drives.write);
    given.emplace_back(drive_set_key(set, "total"), drives.total);
  }
  for (const auto& [key, rate] : given) {
    if (rate > 0) machine.sources[key] = "as throttled";
  }
  constexpr std::string_view mark = ", throttled";
  const std::string_view name = base.name;
  if (name.size() < mark.size() || name.substr(name.size() - mark.size()) != mark)
    machine.name += mark;
  machine.description = fmt::format("{}, throttled to {}", base.description, to_text(throttle));
  return machine;
}

ThrottleRates recorded_throttle(const Trace& trace) {
  const std::string* text = trace.find_metadata("throttle");
  if (text == nullptr) return {};
  const auto throttle = nlohmann::json::parse(*text);
  if (!throttle.is_string()) {
    throw InputError("damaged metadata: throttle is not a string", "record the trace again");
  }
  return parse_throttle(throttle.get<std::string>());
}

}  // namespace spillway
