#include "policies/framework/rank_collectives.hpp"

#include <algorithm>

namespace spillway {

namespace {

std::uint64_t bytes_of(std::int64_t elements, std::uint64_t width) {
  return static_cast<std::uint64_t>(elements) * width;
}

std::uint64_t width_of_sums(const Framework& framework, const Problem& problem) {
  const auto bytes = static_cast<std::uint64_t>(framework.summed_gradient_bytes);
  return bytes > 0 ? bytes : problem.gradient_bytes();
}

}  // namespace

void JoinedCollectives::add(const Task& task, std::span<const Access> accesses) {
  if (most_ == 0) return again_.emit(task, accesses);
  constexpr std::size_t most_accesses = 200;
  const bool is_other = task_.kind != task.kind || task_.group != task.group;
  if (is_other || task_.bytes + task.bytes > most_ ||
      accesses_.size() + accesses.size() > most_accesses)
    flush();
  const std::uint64_t bytes = task_.bytes;
  task_ = task;
  task_.bytes += bytes;
  accesses_.insert(accesses_.end(), accesses.begin(), accesses.end());
}

void JoinedCollectives::flush() {
  if (accesses_.empty()) return;
  again_.emit(task_, accesses_);
  held_.clear();
  if (task_.kind == TaskKind::reduce_scatter) {
    for (const Access& access : accesses_) {
      if (access.role == Role::source) held_.push_back(access);
    }
  }
  accesses_.clear();
  task_ = {};
}

RankCollectives::RankCollectives(Rewriting& again, const Framework& framework,
                                 const Problem& problem)
    : again_(again),
      framework_(framework),
      problem_(problem),
      width_(problem.gradient_bytes()),
      summed_(width_of_sums(framework, problem)),
      reduced_(again, bytes_of(framework.reduce_bucket, summed_)),
      spread_(again, bytes_of(framework.spread_bucket, problem.parameter_bytes())) {}

void RankCollectives::shrink_gradients() {
  if (summed_ >= width_ || problem_.workload.ranks == 1) return;
  const auto buffers = again_.buffers();
  std::vector<std::uint64_t> wanted(buffers.size());
  for (BufferId id = 0; id < buffers.size(); ++id) {
    const BufferInfo& buffer = buffers[id];
    const bool is_gradient =
        buffer.kind == BufferKind::gradient || buffer.kind == BufferKind::head_gradient;
    if (buffer.tier == Tier::gpu && !buffer.persistent && is_gradient)
      wanted[id] = std::max<std::uint64_t>(1, buffer.bytes / width_ * summed_);
  }
  again_.shrink(wanted);
}

void RankCollectives::pass(HostPoint point) {
  if (point != HostPoint::optimizer_begins || framework_.step_ns == 0) return;
  reduced_.flush();
  again_.barrier({Lane::gpu_compute, Lane::ranks_reduce, Lane::ranks_spread}, {Lane::gpu_compute},
                 framework_.step_ns);
}

void RankCollectives::add(Task task, std::span<const Access> accesses) {
  if (task.kind == TaskKind::norms_reduce) {
    reduced_.flush();
    return again_.emit(task, accesses);
  }
  // Each from another rank, so that none is joined with the next.
  if (task.kind == TaskKind::broadcast) return again_.emit(task, accesses);
  const bool of_gradients = task.kind != TaskKind::all_gather;
  if (of_gradients) task.bytes = task.bytes / width_ * summed_;
  // After every micro-batch, or before every use.
  if (task.lane == Lane::ranks_gather || task.micro_batch >= 0) {
    task.available = static_cast<std::uint16_t>(framework_.layer_calls);
    return again_.emit(task, accesses);
  }
  (of_gradients ? reduced_ : spread_).add(task, accesses);
}

void RankCollectives::before(const Task& task) {
  const bool is_wait = task.kind == TaskKind::barrier;
  const bool uses_sums = task.kind == TaskKind::optimizer || task.kind == TaskKind::gradient_norm ||
                         task.lane == Lane::pcie_d2h;
  if (uses_sums || is_wait) reduced_.flush();
  if (uses_sums) reduced_.let_go();
  const bool waits_for_spread = is_wait && task.waits_for().contains(Lane::ranks_spread);
  if (waits_for_spread || (!uses_sums && !is_wait)) spread_.flush();
}

std::span<const Access> RankCollectives::holding(const Task& task,
                                                 std::span<const Access> accesses) {
  if (task.kind != TaskKind::backward || reduced_.held().empty()) return accesses;
  holding_.assign(accesses.begin(), accesses.end());
  holding_.insert(holding_.end(), reduced_.held().begin(), reduced_.held().end());
  return holding_;
}

void RankCollectives::flush() {
  reduced_.flush();
  spread_.flush();
}

}  // namespace spillway
