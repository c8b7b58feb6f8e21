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

namespace {

using Row = Machine::Ssd::Row;

// Linear between rows, in proportion to the first row below it, the last row beyond it.
template <class Key>
Row interpolate(const std::map<Key, Row>& table, Key at) {
  SPILLWAY_ASSERT(!table.empty() && at >= 0);
  const auto above = table.lower_bound(at);
  if (above == table.end()) return table.rbegin()->second;
  // Below the first row the table starts at nothing.
  const bool first = above == table.begin();
  const Key low_key = first ? Key{} : std::prev(above)->first;
  const Row low = first ? Row{} : std::prev(above)->second;
  const Row& high = above->second;
  if (at == above->first) return high;
  const double share =
      static_cast<double>(at - low_key) / static_cast<double>(above->first - low_key);
  const auto between = [share](double a, double b) { return a + (b - a) * share; };
  return {between(low.read, high.read), between(low.write, high.write),
          between(low.total, high.total)};
}

}  // namespace

Row bandwidth_with(const Machine::Ssd& ssd, std::int64_t count) {
  return interpolate(ssd.by_count, count);
}

Row Machine::Ssd::at_queue_depth() const {
  if (by_queue_depth.empty()) return {read, write, total};
  std::map<double, Row> shares = by_queue_depth;
  for (auto& [depth, row] : shares) {
    if (row.total == 0) row.total = std::max(row.read, row.write);
  }
  const Row share = interpolate(shares, static_cast<double>(queue_depth));
  return {read * share.read, write * share.write, total * share.total};
}

void rescale_queue_depths(Machine::Ssd& ssd, std::int64_t count_before) {
  if (count_before <= 0 || ssd.count <= 0) return;
  const double scale = static_cast<double>(ssd.count) / static_cast<double>(count_before);
  std::map<double, Row> moved;
  for (const auto& [depth, row] : ssd.by_queue_depth) moved.emplace(depth * scale, row);
  ssd.by_queue_depth = std::move(moved);
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
  if (auto problem = too_many("gpu.cores", machine.gpu.cores)) return problem;
  if (auto problem = too_many("host.adam_cores", machine.host.adam_cores)) return problem;
  if (auto problem = too_many("ssd.cores", machine.ssd.cores)) return problem;
  if (machine.ssd.count > 1'000'000) {
    return FieldProblem{"ssd.count", fmt::format("{} drives are too many", machine.ssd.count), ""};
  }
  const std::int64_t depth = machine.ssd.queue_depth;
  if (depth < 1 || depth > deepest_queue) {
    return FieldProblem{
        "ssd.queue_depth", fmt::format("{} requests are not possible", depth),
        fmt::format("give 1 to {}; the executor has {}", deepest_queue, executor_queue_depth)};
  }
  if (depth != executor_queue_depth && machine.ssd.by_queue_depth.empty()) {
    return FieldProblem{
        "ssd.queue_depth", fmt::format("nothing is known of the drives at depth {}", depth),
        "add [[ssd.by_queue_depth]] rows to the file; `spillway calibrate` measures them"};
  }
  return std::nullopt;
}

}  // namespace spillway
