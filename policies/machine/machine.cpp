#include "policies/machine/machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/errors.hpp"
#include "policies/machine/field_problem.hpp"
#include "policies/machine/machine_drives.hpp"

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

std::map<double, double> Machine::Ssd::gains_at_queue_depth() const {
  if (read_share_by_depth.empty()) return by_read_share;
  std::map<double, std::map<double, double>> by_share;  // gains by depth
  for (const auto& [depth, gains] : read_share_by_depth) {
    for (const auto& [share, gain] : gains) by_share[share][depth] = gain;
  }
  std::map<double, double> gains;
  const auto at = static_cast<double>(queue_depth);
  for (const auto& [share, by_depth] : by_share) {
    const auto above = by_depth.lower_bound(at);
    if (above == by_depth.end()) {
      gains[share] = by_depth.rbegin()->second;
    } else if (above == by_depth.begin()) {
      gains[share] = above->second;
    } else {
      const auto below = std::prev(above);
      const double way = (at - below->first) / (above->first - below->first);
      gains[share] = below->second + (above->second - below->second) * way;
    }
  }
  return gains;
}

bool Machine::Ssd::extrapolated() const {
  if (count == 0 || by_count.empty()) return false;
  if (count >= by_count.begin()->first && count <= by_count.rbegin()->first) return false;
  const Row row = interpolate(by_count, count);
  return read == row.read || write == row.write;
}

void rescale_queue_depths(Machine::Ssd& ssd, std::int64_t count_before) {
  if (count_before <= 0 || ssd.count <= 0) return;
  const double scale = static_cast<double>(ssd.count) / static_cast<double>(count_before);
  std::map<double, Row> moved;
  for (const auto& [depth, row] : ssd.by_queue_depth) moved.emplace(depth * scale, row);
  ssd.by_queue_depth = std::move(moved);
  std::map<double, std::map<double, double>> mixes;
  for (const auto& [depth, gains] : ssd.read_share_by_depth) mixes.emplace(depth * scale, gains);
  ssd.read_share_by_depth = std::move(mixes);
}

Machine with_drives_together(Machine machine) {
  if (machine.drive_sets() < 2) return machine;
  Machine::Ssd all;
  all.law = SsdLaw::capped;
  for (int set = 0; set < machine.drive_sets(); ++set) {
    const Machine::Ssd& ssd = machine.drives(set);
    const Row rates = ssd.at_queue_depth();
    const double faster = std::max(rates.read, rates.write), both = rates.read + rates.write;
    double total = faster;  // reads and writes in turns
    if (ssd.law == SsdLaw::duplex) total = both;
    if (ssd.law == SsdLaw::capped && rates.total > 0) total = std::min(rates.total, both);
    if (ssd.law == SsdLaw::mixed) {
      double gain = ssd.mixed_gain;
      for (const auto& [share, of_row] : ssd.gains_at_queue_depth()) gain = std::max(gain, of_row);
      total = std::min(faster * gain, both);
    }
    all.count += ssd.count;
    all.capacity += ssd.capacity;
    all.tbw += ssd.tbw * static_cast<std::uint64_t>(ssd.count);
    all.read += rates.read;
    all.write += rates.write;
    all.total += total;
    const auto less = [set](std::int64_t& least, std::int64_t one) {
      least = set == 0 ? one : std::min(least, one);
    };
    less(all.read_latency_ns, ssd.read_latency_ns);
    less(all.write_latency_ns, ssd.write_latency_ns);
  }
  all.tbw /= static_cast<std::uint64_t>(all.count);
  machine.ssd = std::move(all);
  machine.more_ssd = {};
  return machine;
}

namespace {

std::optional<FieldProblem> find_zero(const Machine& machine) {
  struct Positive {
    std::string key;
    double value;
    const char* example;
  };
  std::vector<Positive> positive = {
      {"gpu.memory", static_cast<double>(machine.gpu.memory), "24GB"},
      {"gpu.flops", machine.gpu.flops, "160TFLOPS"},
      {"gpu.clock", machine.gpu.clock, "1"},
      {"gpu.adam_rate", machine.gpu.adam_params_per_second, "30Gparam/s"},
      {"pcie.h2d", machine.pcie.h2d, "21GB/s"},
      {"pcie.d2h", machine.pcie.d2h, "21GB/s"},
      {"host.memory", static_cast<double>(machine.host.memory), "256GB"},
      {"host.bandwidth", machine.host.bandwidth, "150GB/s"},
      {"host.cores", machine.host.cores, "32"},
      {"host.adam_rate", machine.host.adam_params_per_second, "5Gparam/s"},
      {"host.adam_bytes_per_param", machine.host.adam_bytes_per_param, "28"},
  };
  for (int set = 0; set < most_drive_sets; ++set) {
    const Machine::Ssd& ssd = machine.drives(set);
    const auto key = [&](const char* name) { return drive_set_key(set, name); };
    if (ssd.count == 0 && ssd.capacity > 0) {
      return FieldProblem{
          key("capacity"),
          fmt::format("there is no drive that could have it: {} is 0", key("count")),
          "leave it out, or give the drives' number and rates"};
    }
    if (ssd.count == 0) continue;
    if (set > 0 && machine.drives(set - 1).count == 0) {
      return FieldProblem{key("count"),
                          fmt::format("there are no drives {}", drive_set_name(set - 1)),
                          "sets of drives are ssd, ssd2, ssd3 and ssd4, none left out"};
    }
    positive.push_back({key("capacity"), static_cast<double>(ssd.capacity), "4TB"});
    positive.push_back({key("read"), ssd.read, "7GB/s"});
    positive.push_back({key("write"), ssd.write, "4GB/s"});
  }
  for (const auto& [key, value, example] : positive) {
    if (!(value > 0))
      return FieldProblem{key, "it is zero", fmt::format("give for example {}", example)};
  }
  return std::nullopt;
}

// What no machine has, and what no sum or quotient of the simulator overflows with: a value of 0 is
// one that is not given.
struct Range {
  std::string key;
  double value, least, most;
};
constexpr double least_rate = 1, most_rate = 1e21;  // a second
constexpr double most_bytes = 1e18, most_ns = 1e12;

std::vector<Range> rates_of(const Machine& machine) {
  const Machine::Ssd& ssd = machine.ssd;
  std::vector<Range> ranges;
  const auto rate = [&](const std::string& key, double value) {
    ranges.push_back({key, value, least_rate, most_rate});
  };
  rate("gpu.flops", machine.gpu.flops);
  rate("gpu.memory_bandwidth", machine.gpu.memory_bandwidth);
  rate("gpu.adam_rate", machine.gpu.adam_params_per_second);
  rate("pcie.h2d", machine.pcie.h2d);
  rate("pcie.d2h", machine.pcie.d2h);
  rate("pcie.total", machine.pcie.total);
  rate("pcie.pageable_h2d", machine.pcie.pageable_h2d);
  rate("pcie.pageable_d2h", machine.pcie.pageable_d2h);
  rate("gpu.attention_flops", machine.gpu.attention_flops);
  rate("host.bandwidth", machine.host.bandwidth);
  rate("host.core_bandwidth", machine.host.core_bandwidth);
  rate("host.io_bandwidth", machine.host.io_bandwidth);
  rate("host.adam_rate", machine.host.adam_params_per_second);
  for (int set = 0; set < most_drive_sets; ++set) {
    rate(drive_set_key(set, "read"), machine.drives(set).read);
    rate(drive_set_key(set, "write"), machine.drives(set).write);
    rate(drive_set_key(set, "total"), machine.drives(set).total);
  }
  rate("ssd.cache_write", ssd.cache_write);
  rate("ssd.cache_recovery", ssd.cache_recovery);
  rate("cluster.nvlink", machine.cluster.nvlink);
  rate("cluster.switch_link", machine.cluster.switch_link);
  rate("cluster.nic", machine.cluster.nic);
  rate("cluster.spine", machine.cluster.spine);
  for (const Machine::Cluster::Collective& row : machine.cluster.collectives)
    rate("cluster.collectives", row.bandwidth);
  for (const auto& [count, row] : ssd.by_count) {
    for (const double value : {row.read, row.write, row.total}) rate("ssd.by_count", value);
    ranges.push_back({"ssd.by_count", static_cast<double>(count), 1, 1e6});
  }
  return ranges;
}

std::vector<Range> ranges_of(const Machine& machine) {
  std::vector<Range> ranges = rates_of(machine);
  const auto at_most = [&](const std::string& key, auto value, double most) {
    ranges.push_back({key, static_cast<double>(value), 0, most});
  };
  at_most("gpu.memory", machine.gpu.memory, most_bytes);
  at_most("host.memory", machine.host.memory, most_bytes);
  at_most("host.reserved", machine.host.reserved, most_bytes);
  at_most("ssd.cache", machine.ssd.cache, most_bytes);
  at_most("gpu.multiprocessors", machine.gpu.multiprocessors, 1e6);
  at_most("gpu.launch", machine.gpu.launch_ns, most_ns);
  at_most("pcie.latency", machine.pcie.latency_ns, most_ns);
  at_most("host.sync", machine.host.sync_ns, most_ns);
  at_most("host.wake", machine.host.wake_ns, most_ns);
  at_most("cluster.nvlink_latency", machine.cluster.nvlink_latency_ns, most_ns);
  at_most("cluster.nic_latency", machine.cluster.nic_latency_ns, most_ns);
  for (const Machine::Cluster::Collective& row : machine.cluster.collectives)
    at_most("cluster.collectives", row.bytes, most_bytes);
  ranges.push_back({"gpu.clock", machine.gpu.clock, 1e-3, 1});
  ranges.push_back({"gpu.product_gain", machine.gpu.product_gain, 1, 2});
  ranges.push_back({"host.cores", machine.host.cores, 1e-3, 1e6});
  ranges.push_back({"gpu.cores", machine.gpu.cores, 1e-6, 1e6});
  ranges.push_back({"cluster.cores", machine.cluster.cores, 1e-6, 1e6});
  ranges.push_back({"host.adam_cores", machine.host.adam_cores, 1e-6, 1e6});
  ranges.push_back({"host.adam_bytes_per_param", machine.host.adam_bytes_per_param, 1, 1e6});
  for (int set = 0; set < most_drive_sets; ++set) {
    const Machine::Ssd& ssd = machine.drives(set);
    const auto key = [&](const char* name) { return drive_set_key(set, name); };
    at_most(key("capacity"), ssd.capacity, most_bytes);
    at_most(key("read_latency"), ssd.read_latency_ns, most_ns);
    at_most(key("write_latency"), ssd.write_latency_ns, most_ns);
    ranges.push_back({key("cores"), ssd.cores, 1e-6, 1e6});
    for (const auto& [depth, shares] : ssd.by_queue_depth) {
      ranges.push_back({key("by_queue_depth"), depth, 1e-9, 1e12});
      for (const double share : {shares.read, shares.write, shares.total})
        ranges.push_back({key("by_queue_depth"), share, 1e-9, 1});
    }
    for (const auto& [depth, gains] : ssd.read_share_by_depth)
      ranges.push_back({key("by_read_share"), depth, 1e-9, 1e12});
  }
  for (const KernelTime& kernel : machine.kernels) {
    ranges.push_back({"kernel", kernel.flops, 1, 1e24});
    at_most("kernel", kernel.median_ns, 1e15);
  }
  for (const KernelTime& reference : machine.references)
    at_most("reference", reference.median_ns, 1e15);
  for (const TrialTime& trial : machine.trials) {
    for (const std::int64_t ns : {trial.predicted_ns, trial.median_ns}) at_most("trial", ns, 1e15);
  }
  return ranges;
}

std::optional<FieldProblem> find_out_of_range(const Machine& machine) {
  for (const auto& [key, value, least, most] : ranges_of(machine)) {
    if (value == 0 || (value >= least && value <= most)) continue;
    return FieldProblem{key, fmt::format("{:g} is outside {:g} .. {:g}", value, least, most),
                        "no machine is like that: check the number and its unit"};
  }
  return std::nullopt;
}

}  // namespace

namespace {

std::optional<FieldProblem> find_cluster_problem(const Machine::Cluster& cluster) {
  constexpr std::int64_t most_nodes = 100'000, most_gpus = 1024;
  const auto outside = [](const char* key, std::int64_t value, std::int64_t most,
                          const char* what) -> std::optional<FieldProblem> {
    if (value >= 1 && value <= most) return std::nullopt;
    return FieldProblem{key, fmt::format("{} is outside 1 .. {}", value, most), what};
  };
  if (auto problem = outside("cluster.nodes", cluster.nodes, most_nodes, "1: a single server"))
    return problem;
  if (auto problem = outside("cluster.gpus", cluster.gpus, most_gpus, "give those of one node"))
    return problem;
  if (auto problem = outside("cluster.sharing", cluster.sharing, most_gpus,
                             "leave it out: host and drives are those of a node"))
    return problem;
  if (cluster.nodes > 1 && cluster.nic <= 0)
    return FieldProblem{"cluster.nic",
                        fmt::format("{} nodes do not reach each other without it", cluster.nodes),
                        "give what all network cards of a node do each way, e.g. \"100GB/s\""};
  if (cluster.switch_gpus < 0 || cluster.switch_gpus > cluster.gpus)
    return FieldProblem{
        "cluster.switch_gpus",
        fmt::format("{} is outside 0 .. {}, the GPUs of a node", cluster.switch_gpus, cluster.gpus),
        "0: each has its own way to the host"};
  if ((cluster.switch_gpus > 0) != (cluster.switch_link > 0))
    return FieldProblem{cluster.switch_gpus > 0 ? "cluster.switch_gpus" : "cluster.switch_link",
                        "GPUs that share a way to the host, and how fast it is, go together",
                        "give cluster.switch_gpus and cluster.switch_link, e.g. 2 and \"25GB/s\""};
  if (cluster.spine > 0 && cluster.leaf_nodes == 0)
    return FieldProblem{"cluster.spine", "it is of a leaf switch, and there is none",
                        "give cluster.leaf_nodes, too"};
  if (cluster.leaf_nodes < 0 || cluster.leaf_nodes > most_nodes)
    return FieldProblem{"cluster.leaf_nodes",
                        fmt::format("{} is outside 0 .. {}", cluster.leaf_nodes, most_nodes),
                        "0: all nodes reach each other alike"};
  for (const Machine::Cluster::Collective& row : cluster.collectives) {
    if (row.gpus > cluster.gpus || row.nodes > cluster.nodes)
      return FieldProblem{"cluster.collectives",
                          fmt::format("a row is of {} GPUs of {} nodes, of which there are {} and "
                                      "{}",
                                      row.gpus, row.nodes, cluster.gpus, cluster.nodes),
                          "leave the row out, or raise cluster.gpus and cluster.nodes"};
  }
  return std::nullopt;
}

std::optional<FieldProblem> find_drive_problem(int set, const Machine::Ssd& ssd) {
  const auto key = [&](const char* name) { return drive_set_key(set, name); };
  if (ssd.count > 1'000'000)
    return FieldProblem{key("count"), fmt::format("{} drives are too many", ssd.count), ""};
  if (ssd.mixed_gain < least_mixed_gain || ssd.mixed_gain > most_mixed_gain) {
    return FieldProblem{key("mixed_gain"), fmt::format("{} is outside 1 .. 2", ssd.mixed_gain),
                        "1: times of reads and writes add, as where they take turns; 2: neither "
                        "slows the other"};
  }
  const std::int64_t depth = ssd.queue_depth;
  if (depth < 1 || depth > deepest_queue) {
    return FieldProblem{
        key("queue_depth"), fmt::format("{} requests are not possible", depth),
        fmt::format("give 1 to {}; the executor has {}", deepest_queue, executor_queue_depth)};
  }
  if (depth != executor_queue_depth && ssd.by_queue_depth.empty()) {
    return FieldProblem{
        key("queue_depth"), fmt::format("nothing is known of the drives at depth {}", depth),
        fmt::format("add [[{}]] rows to the file; `spillway calibrate` measures them",
                    key("by_queue_depth"))};
  }
  return std::nullopt;
}

}  // namespace

std::optional<FieldProblem> find_problem(const Machine& machine) {
  if (machine.name.empty()) return FieldProblem{"name", "it is empty", "give the machine a name"};
  if (auto problem = find_bad_name(machine.name)) return problem;
  if (auto problem = find_zero(machine)) return problem;
  if (auto problem = find_out_of_range(machine)) return problem;
  const auto too_many = [&](const std::string& key, double cores) -> std::optional<FieldProblem> {
    if (cores <= machine.host.cores) return std::nullopt;
    return FieldProblem{key,
                        fmt::format("{} is more than host.cores = {}", cores, machine.host.cores),
                        "lower it, or raise host.cores"};
  };
  if (auto problem = too_many("gpu.cores", machine.gpu.cores)) return problem;
  if (auto problem = too_many("host.adam_cores", machine.host.adam_cores)) return problem;
  for (int set = 0; set < most_drive_sets; ++set) {
    const std::string cores = drive_set_key(set, "cores");
    if (auto problem = too_many(cores, machine.drives(set).cores)) return problem;
    if (auto problem = find_drive_problem(set, machine.drives(set))) return problem;
  }
  if (machine.ssd.cache > 0 && machine.ssd.cache_write == 0) {
    return FieldProblem{"ssd.cache", "how fast it is written is not given",
                        "give ssd.cache_write, too"};
  }
  return find_cluster_problem(machine.cluster);
}

}  // namespace spillway
