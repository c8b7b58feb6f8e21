#include "policies/cost/costs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/errors.hpp"
#include "policies/cost/collectives.hpp"
#include "policies/cost/shape_times.hpp"
#include "policies/machine/machine_drives.hpp"
#include "policies/model/operators.hpp"

namespace spillway {

namespace {

constexpr double unlimited = std::numeric_limits<double>::infinity();
constexpr double gpu_adam_bytes_per_param = 28;

// A pageable byte is read or written by the program, and crosses the driver's pinned buffer.
constexpr double pageable_dram_bytes = 3;

Work work_of(const Task& task) {
  switch (task.kind) {
    case TaskKind::embed_forward:
    case TaskKind::forward:
    case TaskKind::head:
    case TaskKind::backward:
    case TaskKind::input_gradient:
    case TaskKind::weight_gradient:
    case TaskKind::embed_backward:
      return Work::compute;
    case TaskKind::optimizer:
      return task.lane == Lane::gpu_compute ? Work::gpu_optimizer : Work::cpu_optimizer;
    case TaskKind::gradient_norm:
    case TaskKind::gradient_add:
      return task.lane == Lane::gpu_compute ? Work::gpu_norm : Work::cpu_norm;
    case TaskKind::h2d:
      return task.pageable ? Work::pageable_h2d : Work::h2d;
    case TaskKind::d2h:
      return task.pageable ? Work::pageable_d2h : Work::d2h;
    case TaskKind::read:
      return read_of(drive_set(task.lane));
    case TaskKind::write:
      return write_of(drive_set(task.lane));
    case TaskKind::broadcast:
    case TaskKind::all_gather:
    case TaskKind::reduce_scatter:
    case TaskKind::all_reduce:
    case TaskKind::norms_reduce:
    case TaskKind::send:
    case TaskKind::receive:
      return Work::collective;
    case TaskKind::barrier:
      return Work::nothing;
  }
  SPILLWAY_ASSERT(false);
}

// What AdamW moves per parameter of the problem, over what it moved when it was measured: master, m
// and v read and written, the gradient read, the parameter written. A machine without a measurement
// does not say how wide its gradients were: of its rate it is known only that the moments were
// fp32.
double adam_width_factor(const Problem& problem) {
  const Machine& machine = problem.machine;
  const bool measured =
      machine.host.adam_bytes_per_param > 0 &&
      std::any_of(machine.kernels.begin(), machine.kernels.end(), [](const KernelTime& kernel) {
        return kernel.kind == to_string(TaskKind::optimizer);
      });
  if (!measured) return problem.adam_share_of_fp32();
  return static_cast<double>(problem.adam_bytes()) / machine.host.adam_bytes_per_param;
}

// Our own framework adds nothing, and has no file to look into.
Framework framework_of(const Problem& problem) {
  return problem.framework == own_framework ? Framework{} : load_framework(problem.framework);
}

}  // namespace

Costs::Costs(const Problem& problem)
    : problem_(problem),
      machine_(problem.machine),
      framework_(framework_of(problem)),
      width_factor_(adam_width_factor(problem)),
      kernels_(problem),
      by_kind_(problem.model.has_adapters() || ShapeTimes(problem).known()),
      launches_(problem, framework_) {
  gpu_ = resource("gpu", 1);
  cores_ = resource("cores", machine_.host.cores);
  dram_ = resource("dram", machine_.host.bandwidth);
  h2d_ = resource("pcie.h2d", machine_.pcie.h2d);
  d2h_ = resource("pcie.d2h", machine_.pcie.d2h);
  io_ = machine_.host.io_bandwidth > 0 ? resource("io", machine_.host.io_bandwidth) : none;
  pcie_total_ = machine_.pcie.total > 0 ? resource("pcie.total", machine_.pcie.total) : none;
  for (int set = 0; set < std::max(1, machine_.drive_sets()); ++set) {
    const Machine::Ssd& ssd = machine_.drives(set);
    Drives& drives = drives_.emplace_back();
    drives.rates = drive_rates(ssd, ssd.at_queue_depth());
    for (DriveLimit& limit : drives.rates.limits) {
      limit.name.replace(0, 3, drive_set_name(set));  // "ssd.read"
      drives.resources.push_back(resource(limit.name, limit.capacity));
    }
  }
  const Machine::Cluster& cluster = machine_.cluster;
  const double of_switch = cluster.switch_link / static_cast<double>(cluster.ranks_of_switch());
  switch_in_ = of_switch > 0 ? resource("switch.in", of_switch) : none;
  switch_out_ = of_switch > 0 ? resource("switch.out", of_switch) : none;
  const bool several = problem.workload.processes() > 1;
  nvlink_ = several && cluster.nvlink > 0 ? resource("nvlink", cluster.nvlink) : none;
  nic_ = several && cluster.nic > 0 ? resource("nic", cluster.nic) : none;
  spine_ = several && spine_share(cluster) > 0 ? resource("spine", spine_share(cluster)) : none;
}

// A capacity that the machine does not give (0) does not limit; rates that must be given are
// checked by demand().
std::uint32_t Costs::resource(const std::string& name, double capacity) {
  resources_.push_back({name, capacity > 0 ? capacity : unlimited});
  return static_cast<std::uint32_t>(resources_.size() - 1);
}

// The key of the machine file that the rate of that work is missing, null where none is.
std::string Costs::missing_key(Work work) const {
  const auto without = [](double rate, const std::string& key) { return rate > 0 ? "" : key; };
  if (const auto [set, is_read] = drive_work(work); set >= 0) {
    if (static_cast<std::size_t>(set) >= drives_.size()) return drive_set_key(set, "count");
    const DriveRates& rates = drives_[static_cast<std::size_t>(set)].rates;
    return without(is_read ? rates.read : rates.write,
                   drive_set_key(set, is_read ? "read" : "write"));
  }
  switch (work) {
    case Work::compute:
      return times_kernels() && kernels_.any() ? "" : without(machine_.gpu.flops, "gpu.flops");
    case Work::gpu_optimizer:
      return without(gpu_optimizer_rate(), "gpu.adam_rate");
    case Work::cpu_optimizer:
      return without(machine_.host.adam_params_per_second, "host.adam_rate");
    case Work::gpu_norm:
      return without(norm_rate(true), "gpu.adam_rate");
    case Work::cpu_norm:
      return without(norm_rate(false), "host.adam_rate");
    case Work::h2d:
    case Work::pageable_h2d:
      return without(machine_.pcie.h2d, "pcie.h2d");
    case Work::d2h:
    case Work::pageable_d2h:
      return without(machine_.pcie.d2h, "pcie.d2h");
    case Work::collective:
      return without(inside_rate(), "cluster.nvlink");
    case Work::read:
    case Work::write:
    case Work::nothing:
      break;
  }
  SPILLWAY_ASSERT(false);
}

void Costs::fail_without(const std::string& key) const {
  throw InputError(
      fmt::format("machine {}: the schedule needs {}, which is not given", machine_.name, key),
      "give it in the machine file, or as " + Setting{key, "..."});
}

// Adds the host cores that a task keeps busy while it runs at its full rate, and on a CPU machine
// the weight that makes threads share cores equally.
Demand Costs::with_cores(Demand demand, double cores_at_full_rate) const {
  const double per_unit = cores_at_full_rate / demand.rate_cap;
  if (cores_at_full_rate > 0) demand.uses(cores_, per_unit);
  // A task of several threads gets several shares; one that mostly sleeps may use up to one.
  if (machine_.gpu.is_cpu) {
    demand.weight =
        cores_at_full_rate > 0 ? std::max(1.0, cores_at_full_rate) / per_unit : demand.rate_cap;
  }
  return demand;
}

Demand Costs::copy_demand(double rate, std::uint32_t link) const {
  Demand demand;
  demand.rate_cap = rate;
  demand.uses(link, 1);
  if (pcie_total_ != none) demand.uses(pcie_total_, 1);
  if (switch_in_ != none) demand.uses(link == h2d_ ? switch_in_ : switch_out_, 1);
  if (io_ != none) demand.uses(io_, 1);
  if (!machine_.gpu.is_cpu) return demand.uses(dram_, 1);
  demand.uses(dram_, 2);
  const double core_speed =
      machine_.host.cores > 0 ? machine_.host.bandwidth / 2 / machine_.host.cores : 0;
  return with_cores(demand, rate / std::max(rate, core_speed));
}

Demand Costs::pageable_demand(double rate, Demand pinned) const {
  if (rate <= 0 || machine_.gpu.is_cpu) return pinned;
  Demand demand = pinned;
  demand.rate_cap = std::min(rate, pinned.rate_cap);
  for (std::uint32_t u = 0; u < demand.usage_count; ++u) {
    if (demand.usages[u].resource == dram_) demand.usages[u].per_unit = pageable_dram_bytes;
  }
  // The driver's own copy, by the thread that asked for it.
  return shares_cores() ? demand.uses(cores_, 1 / demand.rate_cap) : demand;
}

// Whether the threads of a GPU machine compete for its cores, each of a known bandwidth.
bool Costs::shares_cores() const {
  return !machine_.gpu.is_cpu && machine_.host.core_bandwidth > 0 && machine_.host.cores > 0;
}

// Adds the cores of a pass over host memory that moves so many bytes a unit: as many as move them,
// or all that the optimizer has.
Demand Costs::with_pass_cores(Demand demand, double bytes_per_unit) const {
  if (!shares_cores()) return with_cores(demand, optimizer_cores());
  const double of_core = machine_.host.core_bandwidth;
  demand.rate_cap = std::min(demand.rate_cap, optimizer_cores() * of_core / bytes_per_unit);
  return demand.uses(cores_, bytes_per_unit / of_core);
}

Demand Costs::drive_demand(DriveWork work) const {
  const Drives& drives = drives_[static_cast<std::size_t>(work.set)];
  const double cores = machine_.drives(work.set).cores;
  Demand demand;
  demand.rate_cap = work.is_read ? drives.rates.read : drives.rates.write;
  for (std::size_t l = 0; l < drives.resources.size(); ++l) {
    const DriveLimit& limit = drives.rates.limits[l];
    demand.uses(drives.resources[l], work.is_read ? limit.per_read : limit.per_written);
  }
  demand.uses(dram_, 1);
  if (machine_.gpu.is_cpu) return with_cores(demand, cores);
  // The way over the root complex, and threads that wait for the drives.
  if (io_ != none) demand.uses(io_, 1);
  return shares_cores() ? demand.uses(cores_, cores / demand.rate_cap) : demand;
}

double Costs::gpu_optimizer_rate() const {
  const Machine::Gpu& gpu = machine_.gpu;
  if (gpu.adam_params_per_second > 0) return gpu.adam_params_per_second;
  if (gpu.is_cpu && machine_.host.adam_params_per_second > 0)
    return machine_.host.adam_params_per_second;
  return gpu.memory_bandwidth / gpu_adam_bytes_per_param;
}

Demand Costs::optimizer_demand(double rate, bool on_gpu_lane) const {
  const Machine::Host& host = machine_.host;
  Demand demand;
  demand.rate_cap = rate;
  if (on_gpu_lane) demand.uses(gpu_, 1 / rate);
  if (on_gpu_lane && !machine_.gpu.is_cpu) return demand;
  demand.uses(dram_, host.adam_bytes_per_param);
  if (host.adam_bytes_per_param > 0) demand.weight = 1 / host.adam_bytes_per_param;
  return with_pass_cores(demand, host.adam_bytes_per_param);
}

double Costs::optimizer_cores() const {
  const Machine::Host& host = machine_.host;
  const double cores =
      host.adam_cores > 0 ? host.adam_cores : (machine_.gpu.is_cpu ? 1 : host.cores);
  return host.cores > 0 ? std::min(cores, host.cores) : cores;
}

// Bytes per second: as measured, or byte by byte as fast as AdamW.
double Costs::norm_rate(bool on_gpu_lane) const {
  const double measured =
      kernels_.gradient_norm_rate(on_gpu_lane ? Lane::gpu_compute : Lane::cpu_optimizer);
  if (measured > 0) return measured;
  const bool is_gpu = on_gpu_lane && !machine_.gpu.is_cpu;
  const double adam_bytes = is_gpu || machine_.host.adam_bytes_per_param <= 0
                                ? gpu_adam_bytes_per_param
                                : machine_.host.adam_bytes_per_param;
  return adam_bytes * (on_gpu_lane ? gpu_optimizer_rate() : machine_.host.adam_params_per_second);
}

Demand Costs::norm_demand(bool on_gpu_lane) const {
  Demand demand;
  demand.rate_cap = norm_rate(on_gpu_lane);
  if (on_gpu_lane) demand.uses(gpu_, 1 / demand.rate_cap);
  if (on_gpu_lane && !machine_.gpu.is_cpu) return demand;
  demand.uses(dram_, 1);
  return with_pass_cores(demand, 1);
}

Demand Costs::demand(Work work) const {
  // What a compute task needs to be known depends on the task.
  const std::string key = work == Work::compute ? "" : missing_key(work);
  if (!key.empty()) fail_without(key);
  if (const DriveWork drives = drive_work(work); drives.set >= 0) return drive_demand(drives);
  switch (work) {
    case Work::compute: {
      Demand seconds;
      seconds.rate_cap = 1;
      seconds.uses(gpu_, 1);
      // On a GPU machine, of the thread that starts kernels.
      const double cores = machine_.gpu.cores > 0 ? machine_.gpu.cores : 1;
      if (shares_cores()) return seconds.uses(cores_, cores);
      return machine_.gpu.is_cpu ? with_cores(seconds, cores) : seconds;
    }
    case Work::gpu_optimizer:
      return optimizer_demand(gpu_optimizer_rate(), true);
    case Work::cpu_optimizer: {
      Demand update = optimizer_demand(machine_.host.adam_params_per_second, false);
      for (std::uint32_t u = 0; u < update.usage_count; ++u) {
        if (update.usages[u].resource == dram_) update.usages[u].per_unit *= moving_share();
      }
      return update;
    }
    case Work::gpu_norm:
      return norm_demand(true);
    case Work::cpu_norm:
      return norm_demand(false);
    case Work::h2d:
      return copy_demand(machine_.pcie.h2d, h2d_);
    case Work::d2h:
      return copy_demand(machine_.pcie.d2h, d2h_);
    case Work::pageable_h2d:
      return pageable_demand(machine_.pcie.pageable_h2d, demand(Work::h2d));
    case Work::pageable_d2h:
      return pageable_demand(machine_.pcie.pageable_d2h, demand(Work::d2h));
    case Work::read:
    case Work::write:
    case Work::collective:
    case Work::nothing:
      break;
  }
  SPILLWAY_ASSERT(false);
}

// Whether compute tasks take what kernels were measured to take.
bool Costs::times_kernels() const { return machine_.gpu.is_cpu || !machine_.kernels.empty(); }

// Of the GPU, which waits for the host where that takes longer to start the kernels.
KernelEstimate Costs::compute_time(const Task& task) const {
  KernelEstimate time = kernel_time(task);
  time.seconds *= framework_.compute_time;
  if (launches_.any()) time.seconds = std::max(time.seconds, launches_.seconds(task));
  return time;
}

KernelEstimate Costs::kernel_time(const Task& task) const {
  if (times_kernels()) return kernels_.estimate(task);
  if (task.flops > 0) {
    if (!knows(Work::compute)) fail_without("gpu.flops");
    // Known by kind of task, for its products take some counting.
    if (by_kind_) return {kernels_.estimate(task).seconds, false};
    return {task.flops / machine_.gpu.flops, false};
  }
  const double bandwidth = machine_.gpu.memory_bandwidth;
  return {bandwidth > 0 ? static_cast<double>(task.bytes) / bandwidth : 0, false};
}

// Time of an update over that at the machine's rate: AdamW, and passes beside it, go as fast as the
// AdamW of that rate, byte by byte, but for the framework's cpu.pass_time.
double Costs::optimizer_factor(const Task& task, Work work) const {
  if (task.pass_bytes == 0 || work != Work::cpu_optimizer) return width_factor_;
  return with_passes(task.pass_bytes, framework_.cpu_pass_time);
}

double Costs::with_passes(double pass_bytes, double pass_time) const {
  const double adam = machine_.host.adam_bytes_per_param;
  return adam > 0 ? width_factor_ + pass_time * pass_bytes / adam : width_factor_;
}

// Of an update on the CPU the share of its time, in bytes at AdamW's rate, that moves bytes: pages
// that passes touch for the first time take the cores longer, and DRAM no more.
double Costs::moving_share() const {
  const std::int64_t passes = pass_bytes(framework_, problem_);
  if (passes == 0) return 1;
  const auto bytes = static_cast<double>(passes);
  return with_passes(bytes, 1) / with_passes(bytes, framework_.cpu_pass_time);
}

std::int64_t Costs::latency_ns(Work work) const {
  if (const auto [set, is_read] = drive_work(work); set >= 0) {
    const Machine::Ssd& ssd = machine_.drives(set);
    return is_read ? ssd.read_latency_ns + framework_.read_operation_ns
                   : ssd.write_latency_ns + framework_.write_operation_ns;
  }
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
    case Work::write:
      break;
    case Work::collective:
      return 0;  // its steps'
    case Work::nothing:
      return machine_.host.sync_ns + framework_.sync_ns;
  }
  SPILLWAY_ASSERT(false);
}

TaskCost Costs::of(const Task& task, std::span<const RankGroup> groups) const {
  if (is_collective(task.kind)) return collective_cost(task, groups[task.group]);
  if (is_message(task.kind)) return message_cost(task);
  TaskCost cost;
  cost.work = work_of(task);
  cost.latency_ns = latency_ns(cost.work);
  if (cost.work == Work::nothing) {
    cost.latency_ns += static_cast<std::int64_t>(task.params);
    return cost;
  }
  if (cost.work == Work::compute) {
    const KernelEstimate time = compute_time(task);
    cost.amount = time.seconds;
    cost.extrapolated = time.extrapolated;
  } else if (task.kind == TaskKind::optimizer) {
    cost.amount = static_cast<double>(task.params) * optimizer_factor(task, cost.work);
  } else {
    cost.amount = static_cast<double>(task.bytes);
  }
  return cost;
}

double Costs::seconds(const Task& task) const {
  const TaskCost cost = of(task);
  const double latency = static_cast<double>(cost.latency_ns) * 1e-9;
  return cost.amount > 0 ? latency + cost.amount / rate(cost.work) : latency;
}

double Costs::forward_seconds() const {
  Task task;
  task.kind = TaskKind::forward;
  task.flops = forward_flops(problem_);
  return seconds(task);
}

double Costs::backward_seconds(SavedMask available, bool recomputes_output) const {
  Task task;
  task.kind = TaskKind::backward;
  task.available = available;
  task.recomputes_output = recomputes_output;
  task.flops = backward_flops(problem_, available, recomputes_output);
  return seconds(task);
}

double Costs::head_seconds() const {
  Task task;
  task.kind = TaskKind::head;
  task.flops = head_flops(problem_);
  return seconds(task);
}

double Costs::updates_per_second(Lane lane) const {
  SPILLWAY_ASSERT(lane == Lane::gpu_compute || lane == Lane::cpu_optimizer);
  return known_rate(lane == Lane::gpu_compute ? Work::gpu_optimizer : Work::cpu_optimizer) /
         width_factor_;
}

LinkRates Costs::links() const {
  return {known_rate(Work::h2d), known_rate(Work::d2h), machine_.pcie.total};
}

DriveRates Costs::drives() const {
  if (drives_.size() > 1) {
    const Machine::Ssd all = with_drives_together(machine_).ssd;
    return drive_rates(all, all.at_queue_depth());
  }
  return drive_rates(machine_.ssd, {known_rate(Work::read), known_rate(Work::write),
                                    machine_.ssd.at_queue_depth().total});
}

}  // namespace spillway
