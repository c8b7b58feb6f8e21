// Parts of SymbolicRun: what norms and copies take, and which compute tasks there have to be.
// Included by symbolic_run.hpp alone.
#pragma once

#include "tests/policies/symbolic_run.hpp"

namespace spillway::test {

// Of all units where updates wait, of its own where there is a norm at all.
inline void SymbolicRun::reads_norms(const Task& task) {
  if (!problem_.workload.needs_norms()) return require(!find(Role::norms), "reads a norm");
  const bool all = problem_.workload.updates_wait();
  const int units = all ? head_ + 1 : 1;
  Access slot =
      operand(Role::norms, static_cast<std::uint64_t>(units) * norm_slot_bytes, Tier::host);
  slot.bytes = norm_slot_bytes;
  for (int k = 0; k < units; ++k, slot.offset += norm_slot_bytes) {
    const int unit = all ? k : task.layer;
    Value whole = norm(unit, task.update);
    if (joint_) whole.elements = trained(unit);
    if (trained(unit) > 0) reads(slot, whole, 0);
  }
}

inline void SymbolicRun::copy(Tier from, Tier to, Lane lane, const Task& task) {
  // One stream may serve both ways over PCIe.
  const bool shares = lane == Lane::pcie_d2h && task.lane == Lane::pcie_h2d;
  require(task.lane == lane || shares, "a copy on another lane");
  const Access& source = operand(Role::source, task.bytes, from);
  const Access& destination = operand(Role::destination, task.bytes, to);
  require(source.mode == Mode::read && destination.mode == Mode::write, "a copy reads and writes");
  const BufferInfo& info = schedule_.buffers()[source.buffer];
  for (std::uint64_t done = 0; done < task.bytes;) {
    const ShadowMemory::Run run = memory(info).at(info.offset + source.offset + done);
    if (run.value.held == Held::nothing || run.value.held == Held::scratch) {
      fail("copies " + to_string(run.value));
    }
    const std::uint64_t bytes = std::min(run.end - run.begin, task.bytes - done);
    put({{destination.buffer}, destination.offset + done, bytes}, run.value, run.from);
    done += bytes;
  }
}

inline void SymbolicRun::check_counts() const {
  std::size_t expected = 0;
  const auto expect = [&](int step, TaskKind kind, int unit, int m) {
    check_count(step, kind, unit, m);
    ++expected;
  };
  for (int step = 0; step < schedule_.steps(); ++step) {
    for (int m = 0; m < micro_batches_; ++m) {
      if (has_embedding(problem_.model)) expect(step, TaskKind::embed_forward, layers_, m);
      if (has_head(problem_.model)) expect(step, TaskKind::head, head_, m);
      for (int l = 0; l < layers_; ++l) expect(step, TaskKind::forward, l, m);
      if (schedule_.evaluates()) continue;
      if (trained(layers_) > 0 && has_embedding(problem_.model))
        expect(step, TaskKind::embed_backward, layers_, m);
      for (int l = 0; l < layers_; ++l) {
        if (trained(l) == 0) continue;
        const bool in_two = count_.count({step, TaskKind::input_gradient, l, m}) > 0;
        expect(step, in_two ? TaskKind::input_gradient : TaskKind::backward, l, m);
        if (in_two) expect(step, TaskKind::weight_gradient, l, m);
      }
    }
    const bool has_norms = problem_.workload.needs_norms() && !schedule_.evaluates();
    for (int unit = 0; has_norms && unit <= head_; ++unit) {
      if (trained(unit) > 0) expect(step, TaskKind::gradient_norm, unit, 0);
    }
  }
  if (count_.size() != expected) throw Violation{"compute tasks outside the steps"};
}

inline void SymbolicRun::check_count(int step, TaskKind kind, int layer, int micro_batch) const {
  const auto found = count_.find({step, kind, layer, micro_batch});
  const int times = found == count_.end() ? 0 : found->second;
  // What the embedding gives may be made anew for backward instead of kept.
  if (times == 1 || (times == 2 && kind == TaskKind::embed_forward)) return;
  const bool is_forward = kind == TaskKind::embed_forward || kind == TaskKind::forward;
  if (times > 0 && is_forward && forward_again_) return;
  throw Violation{rank_text() + fmt::format("{} layer {} micro-batch {} runs {} times in step {}",
                                            spillway::to_string(kind), layer, micro_batch, times,
                                            step)};
}

}  // namespace spillway::test
