#include "sim/cost_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/errors.hpp"
#include "policies/cost/kernel_times.hpp"

namespace spillway {

namespace {

constexpr double unlimited = std::numeric_limits<double>::infinity();
constexpr double gpu_adam_bytes_per_param = 28;

// What sets the rate of a task: one demand each.
enum class Work : std::uint8_t {
  compute,
  gpu_optimizer,
  cpu_optimizer,
  gpu_norm,
  cpu_norm,
  h2d,
  d2h,
  pageable_h2d,
  pageable_d2h,
  read,
  write
};
constexpr std::size_t work_count = 11;
// A pageable byte is read or written by the program, and crosses the driver's pinned buffer.
constexpr double pageable_dram_bytes = 3;

std::optional<Work> work_of(const Task& task) {
  switch (task.kind) {
    case TaskKind::embed_forward:
    case TaskKind::forward:
    case TaskKind::head:
    case TaskKind::backward:
    case TaskKind::embed_backward:
      return Work::compute;
    case TaskKind::optimizer:
      return task.lane == Lane::gpu_compute ? Work::gpu_optimizer : Work::cpu_optimizer;
    case TaskKind::gradient_norm:
      return task.lane == Lane::gpu_compute ? Work::gpu_norm : Work::cpu_norm;
    case TaskKind::h2d:
      return task.pageable ? Work::pageable_h2d : Work::h2d;
    case TaskKind::d2h:
      return task.pageable ? Work::pageable_d2h : Work::d2h;
    case TaskKind::read:
      return Work::read;
    case TaskKind::write:
      return Work::write;
    case TaskKind::barrier:
      return std::nullopt;
  }
  SPILLWAY_ASSERT(false);
}

// What AdamW moves per parameter of the problem, over what it moved when it was measured: master, m
// and v read and written, the gradient read, the parameter written. A machine without a measurement
// does not say how wide its gradients were, and on the CPU backend they are fp32 like all else: of
// these rates it is known only that the moments were fp32.
double adam_width_factor(const Problem& problem) {
  const Machine& machine = problem.machine;
  const bool measured =
      !machine.gpu.is_cpu && machine.host.adam_bytes_per_param > 0 &&
      std::any_of(machine.kernels.begin(), machine.kernels.end(), [](const KernelTime& kernel) {
        return kernel.kind == to_string(TaskKind::optimizer);
      });
  if (!measured) return problem.adam_share_of_fp32();
  return static_cast<double>(problem.adam_bytes()) / machine.host.adam_bytes_per_param;
}

class CostModel {
 public:
  explicit CostModel(const Problem& problem);
  Activity cost(const Task& task);
  void move_into(CostedSchedule& costed);

 private:
  std::uint32_t resource(const char* name, double capacity);
  double needed(double rate, const char* key) const;
  std::uint32_t demand_of(Work work);
  Demand make_demand(Work work) const;
  Demand copy_demand(double rate, std::uint32_t link) const;
  Demand pageable_demand(double rate, Demand pinned) const;
  Demand ssd_demand(bool is_read) const;
  Demand optimizer_demand(double rate, bool on_gpu_lane) const;
  Demand norm_demand(bool on_gpu_lane) const;
  double optimizer_cores() const;
  double gpu_optimizer_rate() const;
  double compute_seconds(const Task& task);
  double optimizer_factor(const Task& task, Work work) const;
  std::int64_t latency_ns(const Task& task, Work work) const;
  Demand with_cores(Demand demand, double cores_at_full_rate) const;

  const Machine& machine_;
  const Machine::Ssd::Row ssd_rates_;  // bytes/s at the machine's queue depth
  const double width_factor_;
  KernelTimes kernels_;
  std::vector<Resource> resources_;
  std::uint32_t gpu_, cores_, dram_, h2d_, d2h_, pcie_total_, ssd_read_, ssd_write_, ssd_total_,
      ssd_time_;
  std::vector<Demand> demands_;
  std::array<std::uint32_t, work_count> demand_index_;
  bool extrapolated_ = false;
};

CostModel::CostModel(const Problem& problem)
    : machine_(problem.machine),
      ssd_rates_(problem.machine.ssd.at_queue_depth()),
      width_factor_(adam_width_factor(problem)),
      kernels_(problem) {
  demand_index_.fill(none);
  gpu_ = resource("gpu", 1);
  cores_ = resource("cores", machine_.host.cores);
  dram_ = resource("dram", machine_.host.bandwidth);
  h2d_ = resource("pcie.h2d", machine_.pcie.h2d);
  d2h_ = resource("pcie.d2h", machine_.pcie.d2h);
  pcie_total_ = machine_.pcie.total > 0 ? resource("pcie.total", machine_.pcie.total) : none;
  const Machine::Ssd::Row& ssd = ssd_rates_;
  ssd_read_ = ssd_write_ = ssd_total_ = ssd_time_ = none;
  const SsdLaw law = machine_.ssd.law;
  if (law == SsdLaw::simplex) {
    ssd_time_ = resource("ssd.time", 1);
    return;
  }
  ssd_read_ = resource("ssd.read", ssd.read);
  ssd_write_ = resource("ssd.write", ssd.write);
  if (law == SsdLaw::capped) {
    ssd_total_ = resource("ssd.total", ssd.total > 0 ? ssd.total : std::max(ssd.read, ssd.write));
  }
}

// A capacity that the machine does not give (0) does not limit; rates that must be given are
// checked by needed().
std::uint32_t CostModel::resource(const char* name, double capacity) {
  resources_.push_back({name, capacity > 0 ? capacity : unlimited});
  return static_cast<std::uint32_t>(resources_.size() - 1);
}

double CostModel::needed(double rate, const char* key) const {
  if (rate > 0) return rate;
  throw InputError(
      fmt::format("machine {}: the schedule needs {}, which is not given", machine_.name, key),
      "give it in the machine file, or as " + Setting{key, "..."});
}

// Adds the host cores that a task keeps busy while it runs at its full rate, and on a CPU machine
// the weight that makes threads share cores equally.
Demand CostModel::with_cores(Demand demand, double cores_at_full_rate) const {
  const double per_unit = cores_at_full_rate / demand.rate_cap;
  if (cores_at_full_rate > 0) demand.uses(cores_, per_unit);
  // A task of several threads gets several shares; one that mostly sleeps may use up to one.
  if (machine_.gpu.is_cpu) {
    demand.weight =
        cores_at_full_rate > 0 ? std::max(1.0, cores_at_full_rate) / per_unit : demand.rate_cap;
  }
  return demand;
}

Demand CostModel::copy_demand(double rate, std::uint32_t link) const {
  Demand demand;
  demand.rate_cap = rate;
  demand.uses(link, 1);
  if (pcie_total_ != none) demand.uses(pcie_total_, 1);
  if (!machine_.gpu.is_cpu) return demand.uses(dram_, 1);
  demand.uses(dram_, 2);
  const double core_speed =
      machine_.host.cores > 0 ? machine_.host.bandwidth / 2 / machine_.host.cores : 0;
  return with_cores(demand, rate / std::max(rate, core_speed));
}

Demand CostModel::pageable_demand(double rate, Demand pinned) const {
  if (rate <= 0 || machine_.gpu.is_cpu) return pinned;
  Demand demand = pinned;
  demand.rate_cap = std::min(rate, pinned.rate_cap);
  for (std::uint32_t u = 0; u < demand.usage_count; ++u) {
    if (demand.usages[u].resource == dram_) demand.usages[u].per_unit = pageable_dram_bytes;
  }
  return demand;
}

Demand CostModel::ssd_demand(bool is_read) const {
  Demand demand;
  demand.rate_cap =
      is_read ? needed(ssd_rates_.read, "ssd.read") : needed(ssd_rates_.write, "ssd.write");
  if (ssd_time_ != none) {
    demand.uses(ssd_time_, 1 / demand.rate_cap);
  } else {
    demand.uses(is_read ? ssd_read_ : ssd_write_, 1);
    if (ssd_total_ != none) demand.uses(ssd_total_, 1);
  }
  demand.uses(dram_, 1);
  return machine_.gpu.is_cpu ? with_cores(demand, machine_.ssd.cores) : demand;
}

double CostModel::gpu_optimizer_rate() const {
  const Machine::Gpu& gpu = machine_.gpu;
  if (gpu.adam_params_per_second > 0) return gpu.adam_params_per_second;
  if (gpu.is_cpu && machine_.host.adam_params_per_second > 0)
    return machine_.host.adam_params_per_second;
  if (gpu.memory_bandwidth > 0) return gpu.memory_bandwidth / gpu_adam_bytes_per_param;
  return needed(0, "gpu.adam_rate");
}

Demand CostModel::optimizer_demand(double rate, bool on_gpu_lane) const {
  const Machine::Host& host = machine_.host;
  Demand demand;
  demand.rate_cap = rate;
  if (on_gpu_lane) demand.uses(gpu_, 1 / rate);
  if (on_gpu_lane && !machine_.gpu.is_cpu) return demand;
  demand.uses(dram_, host.adam_bytes_per_param);
  if (host.adam_bytes_per_param > 0) demand.weight = 1 / host.adam_bytes_per_param;
  return with_cores(demand, optimizer_cores());
}

double CostModel::optimizer_cores() const {
  const Machine::Host& host = machine_.host;
  const double cores =
      host.adam_cores > 0 ? host.adam_cores : (machine_.gpu.is_cpu ? 1 : host.cores);
  return host.cores > 0 ? std::min(cores, host.cores) : cores;
}

// As measured, or byte by byte as fast as AdamW.
Demand CostModel::norm_demand(bool on_gpu_lane) const {
  const bool is_gpu = on_gpu_lane && !machine_.gpu.is_cpu;
  const double adam_bytes = is_gpu || machine_.host.adam_bytes_per_param <= 0
                                ? gpu_adam_bytes_per_param
                                : machine_.host.adam_bytes_per_param;
  double rate = kernels_.gradient_norm_rate(on_gpu_lane ? Lane::gpu_compute : Lane::cpu_optimizer);
  if (rate <= 0) {
    rate =
        adam_bytes * (on_gpu_lane ? gpu_optimizer_rate()
                                  : needed(machine_.host.adam_params_per_second, "host.adam_rate"));
  }
  Demand demand;
  demand.rate_cap = rate;
  if (on_gpu_lane) demand.uses(gpu_, 1 / rate);
  if (is_gpu) return demand;
  demand.uses(dram_, 1);
  return with_cores(demand, optimizer_cores());
}

Demand CostModel::make_demand(Work work) const {
  switch (work) {
    case Work::compute: {
      Demand seconds;
      seconds.rate_cap = 1;
      seconds.uses(gpu_, 1);
      if (!machine_.gpu.is_cpu) return seconds;
      return with_cores(seconds, machine_.gpu.cores > 0 ? machine_.gpu.cores : 1);
    }
    case Work::gpu_optimizer:
      return optimizer_demand(gpu_optimizer_rate(), true);
    case Work::cpu_optimizer:
      return optimizer_demand(needed(machine_.host.adam_params_per_second, "host.adam_rate"),
                              false);
    case Work::gpu_norm:
      return norm_demand(true);
    case Work::cpu_norm:
      return norm_demand(false);
    case Work::h2d:
      return copy_demand(needed(machine_.pcie.h2d, "pcie.h2d"), h2d_);
    case Work::d2h:
      return copy_demand(needed(machine_.pcie.d2h, "pcie.d2h"), d2h_);
    case Work::pageable_h2d:
      return pageable_demand(machine_.pcie.pageable_h2d, make_demand(Work::h2d));
    case Work::pageable_d2h:
      return pageable_demand(machine_.pcie.pageable_d2h, make_demand(Work::d2h));
    case Work::read:
      return ssd_demand(true);
    case Work::write:
      return ssd_demand(false);
  }
  SPILLWAY_ASSERT(false);
}

std::uint32_t CostModel::demand_of(Work work) {
  std::uint32_t& index = demand_index_[static_cast<std::size_t>(work)];
  if (index == none) {
    index = static_cast<std::uint32_t>(demands_.size());
    demands_.push_back(make_demand(work));
  }
  return index;
}

double CostModel::compute_seconds(const Task& task) {
  if (machine_.gpu.is_cpu || !machine_.kernels.empty()) {
    const KernelEstimate estimate = kernels_.estimate(task);
    extrapolated_ = extrapolated_ || estimate.extrapolated;
    return estimate.seconds;
  }
  if (task.flops > 0) return task.flops / needed(machine_.gpu.flops, "gpu.flops");
  const double bandwidth = machine_.gpu.memory_bandwidth;
  return bandwidth > 0 ? static_cast<double>(task.bytes) / bandwidth : 0;
}

// Time of an update over that at the machine's rate: AdamW, and passes beside it, go as fast as the
// AdamW of that rate, byte by byte.
double CostModel::optimizer_factor(const Task& task, Work work) const {
  if (task.pass_bytes == 0 || work != Work::cpu_optimizer) return width_factor_;
  const double adam = machine_.host.adam_bytes_per_param;
  return adam > 0 ? width_factor_ + task.pass_bytes / adam : width_factor_;
}

std::int64_t CostModel::latency_ns(const Task& task, Work work) const {
  switch (work) {
    case Work::compute:
    case Work::gpu_optimizer:
    case Work::gpu_norm:
      return machine_.gpu.launch_ns;
    case Work::cpu_optimizer:
    case Work::cpu_norm:
      return machine_.gpu.is_cpu ? machine_.gpu.launch_ns : machine_.host.wake_ns;
    case Work::h2d:
    case Work::d2h:
    case Work::pageable_h2d:
    case Work::pageable_d2h:
      return machine_.pcie.latency_ns;
    case Work::read:
      return machine_.ssd.read_latency_ns;
    case Work::write:
      return machine_.ssd.write_latency_ns;
  }
  SPILLWAY_ASSERT(false, to_string(task.kind));
}

Activity CostModel::cost(const Task& task) {
  Activity activity;
  activity.lane = static_cast<std::uint32_t>(task.lane);
  const std::optional<Work> work = work_of(task);
  if (!work) {
    activity.latency_ns = machine_.host.sync_ns;
    return activity;
  }
  activity.demand = demand_of(*work);
  activity.latency_ns = latency_ns(task, *work);
  if (*work == Work::compute) {
    activity.amount = compute_seconds(task);
  } else if (task.kind == TaskKind::optimizer) {
    activity.amount = static_cast<double>(task.params) * optimizer_factor(task, *work);
  } else {
    activity.amount = static_cast<double>(task.bytes);
  }
  return activity;
}

void CostModel::move_into(CostedSchedule& costed) {
  costed.graph.resources = std::move(resources_);
  costed.graph.demands = std::move(demands_);
  costed.extrapolated = extrapolated_;
}

void copy_edges(const Schedule& schedule, ActivityGraph& graph) {
  const Schedule::Successors successors = schedule.successors();
  graph.successor_offsets.assign(successors.begins.begin(), successors.begins.end());
  graph.successors.assign(successors.all.begin(), successors.all.end());
  graph.predecessor_counts.assign(schedule.predecessor_counts().begin(),
                                  schedule.predecessor_counts().end());
}

// Time is counted in whole nanoseconds of 64 bits: refuses what would take years. A task alone
// takes its latency, and its work at its own rate or at that of the slowest resource it needs.
void require_countable_time(const Schedule& schedule, const ActivityGraph& graph) {
  constexpr double most_seconds = 1e8;
  std::vector<double> rates;
  for (const Demand& demand : graph.demands) rates.push_back(full_rate(graph.resources, demand));
  double seconds = 0;
  for (const Activity& activity : graph.activities) {
    seconds += static_cast<double>(activity.latency_ns) * 1e-9;
    if (activity.amount > 0) seconds += activity.amount / rates[activity.demand];
  }
  if (seconds <= most_seconds) return;
  const Problem& problem = schedule.problem();
  throw InputError(
      fmt::format("{} steps of model {} are {:.3g} years of work on machine {}: longer than the {} "
                  "years that are simulated",
                  schedule.steps(), problem.model.name, seconds / (365.25 * 86400),
                  problem.machine.name, std::floor(most_seconds / (365.25 * 86400))),
      "look for a rate of the machine that is too low, or take a smaller batch or model");
}

}  // namespace

CostedSchedule cost_schedule(const Schedule& schedule) {
  CostedSchedule costed;
  CostModel model(schedule.problem());
  costed.graph.activities.reserve(schedule.tasks().size());
  for (const Task& task : schedule.tasks()) costed.graph.activities.push_back(model.cost(task));
  model.move_into(costed);
  require_countable_time(schedule, costed.graph);
  for (int lane = 0; lane < lane_count; ++lane) {
    costed.graph.lanes.push_back({to_string(static_cast<Lane>(lane)), LaneOrder::index, 1});
  }
  copy_edges(schedule, costed.graph);
  costed.graph.describe = [schedule](std::uint32_t task) { return schedule.describe(task); };
  return costed;
}

}  // namespace spillway
