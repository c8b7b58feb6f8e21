#include "policies/machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "base/errors.hpp"
#include "policies/field_problem.hpp"
#include "policies/machine_drives.hpp"

namespace spillway {

Machine::Ssd::Row bandwidth_with(const Machine::Ssd& ssd, std::int64_t count) {
  SPILLWAY_ASSERT(!ssd.by_count.empty() && count >= 0);
  const auto above = ssd.by_count.lower_bound(count);
  if (above == ssd.by_count.end()) return ssd.by_count.rbegin()->second;
  // Below the first row the table starts at no drives and no bandwidth.
  const bool first = above == ssd.by_count.begin();
  const std::int64_t low_count = first ? 0 : std::prev(above)->first;
  const Machine::Ssd::Row low = first ? Machine::Ssd::Row{} : std::prev(above)->second;
  const Machine::Ssd::Row& high = above->second;
  if (count == above->first) return high;
  const double share =
      static_cast<double>(count - low_count) / static_cast<double>(above->first - low_count);
  const auto between = [share](double a, double b) { return a + (b - a) * share; };
  return {between(low.read, high.read), between(low.write, high.write),
          between(low.total, high.total)};
}

namespace {

std::optional<FieldProblem> find_zero(const Machine& machine) {
  struct Positive {
    const char* key;
    double value;
    const char* example;
  };
  std::vector<Positive> positive = {
      {"gpu.memory", static_cast<double>(machine.gpu.memory), "24GB"},
      {"gpu.flops", machine.gpu.flops, "160TFLOPS"},
      {"gpu.adam_rate", machine.gpu.adam_params_per_second, "30Gparam/s"},
      {"pcie.h2d", machine.pcie.h2d, "21GB/s"},
      {"pcie.d2h", machine.pcie.d2h, "21GB/s"},
      {"host.memory", static_cast<double>(machine.host.memory), "256GB"},
      {"host.bandwidth", machine.host.bandwidth, "150GB/s"},
      {"host.cores", machine.host.cores, "32"},
      {"host.adam_rate", machine.host.adam_params_per_second, "5Gparam/s"},
      {"host.adam_bytes_per_param", machine.host.adam_bytes_per_param, "28"},
  };
  if (machine.ssd.count > 0) {
    positive.push_back({"ssd.capacity", static_cast<double>(machine.ssd.capacity), "4TB"});
    positive.push_back({"ssd.read", machine.ssd.read, "7GB/s"});
    positive.push_back({"ssd.write", machine.ssd.write, "4GB/s"});
  }
  for (const auto& [key, value, example] : positive) {
    if (!(value > 0))
      return FieldProblem{key, "it is zero", fmt::format("give for example {}", example)};
  }
  return std::nullopt;
}

}  // namespace

std::optional<FieldProblem> find_problem(const Machine& machine) {
  if (machine.name.empty()) return FieldProblem{"name", "it is empty", "give the machine a name"};
  if (auto problem = find_zero(machine)) return problem;
  const auto too_many = [&](const char* key, double cores) -> std::optional<FieldProblem> {
    if (cores <= machine.host.cores) return std::nullopt;
    return FieldProblem{key,
                        fmt::format("{} is more than host.cores = {}", cores, machine.host.cores),
                        "lower it, or raise host.cores"};
  };
  if (auto problem = too_many("host.adam_cores", machine.host.adam_cores)) return problem;
  if (auto problem = too_many("ssd.cores", machine.ssd.cores)) return problem;
  if (machine.ssd.count > 1'000'000) {
    return FieldProblem{"ssd.count", fmt::format("{} drives are too many", machine.ssd.count), ""};
  }
  return std::nullopt;
}

}  // namespace spillway
