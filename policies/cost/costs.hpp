// What a task, a copy, a request takes on a machine: the one place that knows. Policies and the
// tuner ask how long one takes alone; the simulator lets those that run at once share the
// resources.
//
// Resources: gpu (seconds), cores, dram (bytes/s), pcie.h2d, pcie.d2h, pcie.total where the machine
// limits both ways together, and io where it limits copies of the GPU and the drives together
// (host.io_bandwidth); for the SSDs by the machine's law (bytes/s):
//
//   capped    ssd.read <= R, ssd.write <= W, ssd.total <= RW, which defaults to max(R, W)
//             (SimGrid's disk model)
//   duplex    ssd.read <= R, ssd.write <= W
//   simplex   ssd.time <= 1 s/s: a byte read takes 1/R of it, a byte written 1/W
//             (times of reads and writes add up, as in GreedySnake's linear program)
//   mixed     ssd.read <= R, ssd.write <= W, and ssd.mixed as simplex, but up to mixed_gain times
//             as fast; with gains by read share one such limit for each edge of their hull
//             (drive_rates() in link_rates.hpp). Reads and writes that take turns have R and W
//
// R, W and RW are those of the machine at its queue depth (docs/machine-files.md).
//
// A machine built without host.bandwidth or host.cores (0; files must give them) is not limited by
// them.
//
// Tasks; alone, each takes latency + amount / rate:
//
//   compute      gpu.launch + FLOPs / gpu.flops; by the shapes of its products where the machine
//                file says more of the GPU (shape_times.hpp); the kernel's time where it has
//                measured ones (kernel_times.hpp). In place of either the starts of its kernels,
//                where these take longer (launch_times.hpp).
//                The embedding is bound by memory: bytes / gpu.memory_bandwidth (0 if not given)
//   h2d, d2h     pcie.latency + bytes / pcie rate; 1 byte of DRAM per byte
//                with pageable host memory pcie.pageable_h2d, _d2h and 3 bytes of DRAM per byte
//   read, write  ssd latency + the framework's time per operation + bytes / ssd rate; 1 byte of
//                DRAM per byte, so that a byte bounced between SSD and GPU costs two
//   optimizer    on cpu.optimizer: params / host.adam_rate; adam_bytes_per_param of DRAM each;
//                a task with pass_bytes moves that much more, and takes cpu.pass_time as long for
//                each as for a byte of AdamW.
//                28 are: fp32 master, m and v read and written (24), 16-bit gradient read and
//                parameter written (2 + 2). Keeps host.adam_cores busy (0: all). Starts host.wake
//                late: a thread of the host learns that its data is there.
//                On gpu.compute: gpu.launch + params / gpu.adam_rate, or memory_bandwidth / 28.
//                Where the machine file has measured optimizers, both rates are of an AdamW that
//                moves adam_bytes_per_param, and both times (and the DRAM) go with the bytes that
//                the problem's moves: 24 (16 with moments in bf16) + its gradient's + its
//                parameter's. Elsewhere they go with these bytes over those with fp32 moments
//   norm         of a gradient, on either lane: the optimizer's latency there + bytes / rate; on
//                the host 1 byte of DRAM per byte. The rate is the measured one, else that at which
//                AdamW passes over its bytes, on a GPU 28 per parameter
//   barrier      host.sync + the framework's
//   collectives  calls x steps x latency + bytes over the links between GPUs and the network cards
//                (collectives.hpp): nvlink and nic, and spine where leaves share one. Where there
//                is no nvlink, over PCIe both ways and through host memory
//   messages     between stages: latency + bytes over the sender's link or network card, or where
//                there is no nvlink by a copy of the sender and one of the receiver
//
// Fairness: equal bytes per second of what is shared; so the CPU optimizer weighs
// 1 / adam_bytes_per_param (docs/sharing.md).
//
// Cores of a GPU machine are shared where host.core_bandwidth is known. AdamW and norms then keep
// as many busy as move their bytes at that bandwidth, host.adam_cores at most; a compute task keeps
// gpu.cores busy (0: one, of the thread that starts its kernels), a pageable copy one, a read or
// write ssd.cores.
//
// With gpu.is_cpu the CPU backend stands in for the GPU, and everything runs on the host's cores:
//
//   compute      gpu.launch + the measured kernel, extrapolated where there is none; gpu.cores
//                (0: one; less than one where compute is throttled, for the core sleeps meanwhile)
//   h2d, d2h     a memcpy: 2 bytes of DRAM per byte (read and written); 1 core while it copies at
//                full speed. A link slower than one core copies (bandwidth / 2 / cores) is
//                throttled: the core sleeps the rest of the time and is not charged for it
//   read, write  ssd.cores while running
//   optimizer    gpu.launch + params / rate; adam_cores (0: one), on either lane
//   collectives  cluster.cores while they move
//
// Fairness there is by cores, for the operating system gives every thread the same share of them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "policies/cost/demand.hpp"
#include "policies/cost/kernel_times.hpp"
#include "policies/cost/launch_times.hpp"
#include "policies/cost/link_rates.hpp"
#include "policies/framework/framework.hpp"
#include "policies/model/saved.hpp"

namespace spillway {

// What sets the rate of a task; in units per second of
struct CollectiveTraffic;

enum class Work : std::uint8_t {
  compute,        // seconds of compute
  gpu_optimizer,  // parameters, at the machine's rate
  cpu_optimizer,
  gpu_norm,  // bytes, as all below
  cpu_norm,
  h2d,
  d2h,
  pageable_h2d,
  pageable_d2h,
  read,  // of the first set of drives; of the others: read_of()
  write,
  collective,  // bytes of the whole; and of messages between stages
  // Then reads and writes of each set of drives but the first.
  nothing = collective + 1 + 2 * (most_drive_sets - 1)  // a barrier: a latency, and no rate
};
inline constexpr std::size_t work_count = static_cast<std::size_t>(Work::nothing);
constexpr Work of_more_drives(int set, bool is_write) {
  return static_cast<Work>(static_cast<int>(Work::collective) + 1 + 2 * (set - 1) + is_write);
}
constexpr Work read_of(int set) { return set == 0 ? Work::read : of_more_drives(set, false); }
constexpr Work write_of(int set) { return set == 0 ? Work::write : of_more_drives(set, true); }
// Of drives: their set, and whether it reads; -1: another work.
struct DriveWork {
  int set = -1;
  bool is_read = false;
};
constexpr DriveWork drive_work(Work work) {
  const int more = static_cast<int>(work) - static_cast<int>(Work::collective) - 1;
  if (more >= 0 && work != Work::nothing) return {1 + more / 2, more % 2 == 0};
  return work == Work::read || work == Work::write ? DriveWork{0, work == Work::read} : DriveWork{};
}

struct TaskCost {
  Work work = Work::nothing;
  double amount = 0;  // units of that work
  std::int64_t latency_ns = 0;
  bool extrapolated = false;  // a compute time that was not measured at its shape
  // Of a collective, whose demand is its own: a number for each of those that differ.
  std::uint32_t variant = 0;
};

// The costs of a problem on its machine. Remembers compute times: not for several threads at once.
class Costs {
 public:
  // Keeps a reference to the problem.
  explicit Costs(const Problem& problem);
  Costs(const Costs&) = delete;
  Costs& operator=(const Costs&) = delete;

  // Throws InputError where nothing tells the time of a compute task. `groups`: of the schedule,
  // for its collectives.
  TaskCost of(const Task& task, std::span<const RankGroup> groups = {}) const;

  const std::vector<Resource>& resources() const { return resources_; }
  // How that work draws on the resources. Throws InputError where the machine file does not give
  // the rate.
  Demand demand(Work work) const;
  // Of a collective that of() gave that variant.
  const Demand& collective_demand(std::uint32_t variant) const { return collectives_[variant]; }

  // Whether the machine file says how fast that work is.
  bool knows(Work work) const { return missing_key(work).empty(); }
  // Of that work alone. Throws InputError where it is not known.
  double rate(Work work) const { return full_rate(resources_, demand(work)); }
  // Of a task alone, with its latency. Throws InputError where it is not known.
  double seconds(const Task& task) const;

  // The tasks of one micro-batch: a layer's forward that saves nothing; its backward, which
  // recomputes what is not `available`, and the layer's output only where it is told to; the head,
  // forward and backward.
  double forward_seconds() const;
  double backward_seconds(SavedMask available, bool recomputes_output) const;
  double head_seconds() const;

  // What follows has rates of 0 where the machine file does not give them.
  // Parameters per second that the problem's AdamW updates alone, on gpu.compute or cpu.optimizer.
  double updates_per_second(Lane lane) const;
  LinkRates links() const;
  // Of all sets of drives together (with_drives_together()).
  DriveRates drives() const;

 private:
  std::uint32_t resource(const std::string& name, double capacity);
  std::string missing_key(Work work) const;
  [[noreturn]] void fail_without(const std::string& key) const;
  Demand copy_demand(double rate, std::uint32_t link) const;
  Demand pageable_demand(double rate, Demand pinned) const;
  Demand drive_demand(DriveWork work) const;
  Demand with_pass_cores(Demand demand, double bytes_per_unit) const;
  bool shares_cores() const;
  Demand optimizer_demand(double rate, bool on_gpu_lane) const;
  Demand norm_demand(bool on_gpu_lane) const;
  double optimizer_cores() const;
  double gpu_optimizer_rate() const;
  double norm_rate(bool on_gpu_lane) const;
  bool times_kernels() const;
  KernelEstimate compute_time(const Task& task) const;
  KernelEstimate kernel_time(const Task& task) const;
  double optimizer_factor(const Task& task, Work work) const;
  double with_passes(double pass_bytes, double pass_time) const;
  double moving_share() const;
  std::int64_t latency_ns(Work work) const;
  double inside_rate() const;
  TaskCost collective_cost(const Task& task, const RankGroup& group) const;
  Demand demand_of(const CollectiveTraffic& traffic) const;
  TaskCost message_cost(const Task& task) const;
  TaskCost cost_between(const Task& task, Demand demand, std::int64_t latency_ns) const;
  Demand with_cores(Demand demand, double cores_at_full_rate) const;
  double known_rate(Work work) const { return knows(work) ? rate(work) : 0; }

  const Problem& problem_;
  const Machine& machine_;
  const Framework framework_;  // the problem's
  const double width_factor_;
  KernelTimes kernels_;
  const bool by_kind_;  // without measured kernels, compute tasks take more than FLOPs / gpu.flops
  LaunchTimes launches_;
  std::vector<Resource> resources_;
  std::uint32_t gpu_, cores_, dram_, io_, h2d_, d2h_, pcie_total_;
  std::uint32_t switch_in_, switch_out_;  // none where GPUs share no way to the host
  struct Drives {
    DriveRates rates;
    std::vector<std::uint32_t> resources;  // by limit
  };
  std::vector<Drives> drives_;               // by set
  std::uint32_t nvlink_, nic_, spine_;       // none where there is none
  mutable std::vector<Demand> collectives_;  // by variant
};

}  // namespace spillway
