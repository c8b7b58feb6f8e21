// What moves between GPUs that train together: collectives of ranks, messages between stages.
#include <algorithm>
#include <cmath>
#include <utility>

#include "policies/cost/collectives.hpp"
#include "policies/cost/costs.hpp"

namespace spillway {

// Bytes per second of a rank to the others of its node.
double Costs::inside_rate() const {
  const double nvlink = machine_.cluster.nvlink;
  return nvlink > 0 ? nvlink : std::min(machine_.pcie.h2d, machine_.pcie.d2h);
}

TaskCost Costs::collective_cost(const Task& task, const RankGroup& group) const {
  if (group.mesh.across > 1 && nic_ == none) fail_without("cluster.nic");
  if (group.mesh.inside > 1 && inside_rate() <= 0) fail_without("cluster.nvlink");
  const std::uint64_t calls = std::max<std::uint64_t>(task.available, 1);
  const CollectiveTraffic traffic = collective_traffic(
      machine_.cluster, task.kind, group, task.bytes / calls, inside_rate(), machine_.cluster.nic);
  const auto latency_ns = std::llround(traffic.steps_ns * static_cast<double>(calls));
  return cost_between(task, demand_of(traffic), latency_ns);
}

Demand Costs::demand_of(const CollectiveTraffic& traffic) const {
  Demand demand;
  if (traffic.bandwidth > 0) demand.rate_cap = traffic.bandwidth;
  if (nvlink_ != none) {
    demand.uses(nvlink_, traffic.inside);
  } else if (traffic.inside > 0) {
    demand.rate_cap = std::min(demand.rate_cap, inside_rate() / traffic.inside);
    demand.uses(h2d_, traffic.inside).uses(d2h_, traffic.inside);
    if (switch_in_ != none)
      demand.uses(switch_in_, traffic.inside).uses(switch_out_, traffic.inside);
    demand.uses(dram_, 2 * traffic.inside);
    if (pcie_total_ != none) demand.uses(pcie_total_, 2 * traffic.inside);
  }
  if (traffic.network > 0) demand.uses(nic_, traffic.network);
  if (traffic.spine > 0) demand.uses(spine_, traffic.spine);
  return demand;
}

// The way out of the sender limits a message: links between GPUs, and network cards, are as fast
// either way. Without such links both sides copy, over the host.
TaskCost Costs::message_cost(const Task& task) const {
  const std::int64_t of_node = problem_.gpus_of_node();
  const bool inside = task.group / of_node == problem_.rank / of_node;
  const Machine::Cluster& cluster = machine_.cluster;
  if (!inside && nic_ == none) fail_without("cluster.nic");
  if (inside && inside_rate() <= 0) fail_without("cluster.nvlink");
  const bool sends = task.kind == TaskKind::send;
  const bool copies = inside && nvlink_ == none;
  if (!sends && !copies) return {Work::nothing, 0, 0};
  Demand demand;
  if (copies) {
    demand.rate_cap = inside_rate();
    demand.uses(sends ? d2h_ : h2d_, 1).uses(dram_, 1);
    if (switch_in_ != none) demand.uses(sends ? switch_out_ : switch_in_, 1);
    if (pcie_total_ != none) demand.uses(pcie_total_, 1);
  } else {
    demand.uses(inside ? nvlink_ : nic_, 1);
  }
  return cost_between(task, std::move(demand),
                      sends ? (inside ? cluster.nvlink_latency_ns : cluster.nic_latency_ns) : 0);
}

TaskCost Costs::cost_between(const Task& task, Demand demand, std::int64_t latency_ns) const {
  // Of processes on cores, the lane's thread copies and adds up.
  if (machine_.gpu.is_cpu && machine_.cluster.cores > 0) {
    demand.rate_cap = full_rate(resources_, demand);
    demand = with_cores(std::move(demand), machine_.cluster.cores);
  }
  TaskCost cost;
  cost.work = Work::collective;
  cost.amount = static_cast<double>(task.bytes);
  cost.latency_ns = latency_ns;
  const auto same = [&](const Demand& known) {
    return known.rate_cap == demand.rate_cap &&
           std::equal(known.usages.begin(), known.usages.end(), demand.usages.begin(),
                      demand.usages.end(), [](const Usage& a, const Usage& b) {
                        return a.resource == b.resource && a.per_unit == b.per_unit;
                      });
  };
  const auto known = std::find_if(collectives_.begin(), collectives_.end(), same);
  cost.variant = static_cast<std::uint32_t>(known - collectives_.begin());
  if (known == collectives_.end()) collectives_.push_back(std::move(demand));
  return cost;
}

}  // namespace spillway
