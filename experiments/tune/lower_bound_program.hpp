// The linear program of docs/lower-bound.md, for one micro-batch and one way to group
// micro-batches.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/tune/linear_program.hpp"
#include "experiments/tune/lower_bound.hpp"
#include "experiments/tune/lower_bound_amounts.hpp"

namespace spillway {

// How the micro-batches of a step are grouped: the first group, the ones between, and the last. Of
// several ways at once these are the smallest of each, and together fewer than there are.
struct MicroBatchGroups {
  int groups = 1;
  double first = 1, middle = 0, last = 1;  // micro-batches
};

// Where the GPU's updates take optimizer state from.
enum class GpuUpdates : std::uint8_t {
  of_state_there,   // state that rests on the GPU; all other updates run on the CPU
  of_state_in_host  // Plan::optimizer.gpu_stride: all state rests in host memory, all parameters on
                    // the GPU, and no update is delayed
};

class BoundProgram {
 public:
  // Keeps a reference to the amounts.
  BoundProgram(const StepAmounts& amounts, const MicroBatchGroups& groups, GpuUpdates gpu_updates);

  // All but micro_batch and row. Nothing: no plan fits.
  std::optional<BoundCase> solve();

 private:
  // A step, in periods of time from one instant of the GPU's work to the next.
  enum Part { forward, middle, last_layer, backward, update, part_count };
  // Some of them, by bit.
  using Parts = unsigned;
  static constexpr Parts only(Part part) { return 1u << part; }
  enum Memory { gpu_memory, host_memory, ssd_memory };
  enum class Who { cpu, gpu };
  enum class When { before, after };  // a step begins
  // Optimizer state on its way from or to the SSD crosses it while updates run, up to the first
  // turn of a step, or in between.
  enum Crossing { at_updates, in_first, in_middle, crossing_count };
  // The columns that say where something is at an instant.
  struct Resting {
    int gpu = 0, host = 0, ssd = 0;
  };
  // Parameters that are elsewhere than at home at an instant: on the GPU, of those at home in host
  // memory or on the SSD, and in host memory, of those at home on the SSD. Fractions of the
  // layers'.
  struct Copies {
    int of_host = 0, of_ssd = 0, in_host = 0;
  };
  // What memories hold at an instant, in bytes.
  struct Instant {
    Expression gpu, host, ssd;
  };

  void add_compute();
  void add_updates();
  void add_embedding();
  void add_head();
  void add_first_layer();
  void add_state();
  void add_state_on_ssd();
  void add_homes();
  void add_begin();
  struct Turn {
    double micro_batches = 1;
    double times = 1;     // in a step
    Parts before, after;  // of the group's forward and backward
    bool sums = false;    // whether there are sums of gradients of groups before
    Expression state_waiting;
  };
  void add_turn(const Turn& turn);
  void add_turns();
  void add_later_begins();
  void add_delayed_gradients(Instant& instant);
  Copies add_copies(Instant& instant);
  Expression not_on_gpu(const Copies& copies) const;
  Expression not_in_memory(const Copies& copies) const;
  Instant begin_instant() const;
  Instant turn_instant(bool sums) const;
  Resting activations(Instant& instant, const Turn& turn);
  void hand_over(const Turn& turn);
  Expression sums(Instant& instant, double fraction);
  Expression waiting(std::initializer_list<int> columns) const;
  void finish_instant(Instant& instant, const Expression& state_waiting);
  void finish_windows();
  void finish_parts();

  bool may_rest(Who who, int memory) const;
  Resting rest();
  Expression updated(Who who, std::optional<When> when) const;
  Expression state_of(Who who, int memory) const;
  Expression state_on_ssd(When when) const;
  double all_state() const;
  double all_parameters() const;
  void must(Flow flow, Parts parts, const Expression& amount);
  void at_most(const Expression& less, const Expression& more);
  void limit(const Expression& expression, const std::string& name, int worth_of);
  std::string limiting() const;
  BoundCase result() const;

  const StepAmounts& amounts_;
  const MicroBatchGroups groups_;
  const GpuUpdates gpu_updates_;
  const double unit_seconds_;  // of the columns that are times
  LinearProgram program_;
  std::array<int, part_count> seconds_{};
  std::array<Expression, part_count> compute_;
  std::array<double, part_count> norms_{};  // seconds
  std::array<std::array<Expression, part_count>, flow_count> flows_;
  std::map<std::pair<Flow, Parts>, Expression> windows_;
  std::vector<int> saves_;           // fractions of the layers, by choice
  int layer_updates_[2][3][2] = {};  // by Who, memory and When: fractions of the elements
  // By Who and memory: fractions of the embedding, and of an untied head.
  int embedding_updates_[2][3] = {}, head_updates_[2][3] = {};
  // Bytes of optimizer state, by When and Crossing, as fractions of all of it.
  int state_reads_[2][crossing_count] = {}, state_writes_[2][crossing_count] = {};
  int first_on_cpu_ = 0;  // of all layers' elements: those of layer 0 that it updates
  Resting homes_;         // of the layers' parameters
  // Of the elements that the CPU updates: those at home on the GPU, before and after a step begins;
  // and those at home elsewhere that are not updated yet when it begins.
  int to_gpu_before_ = 0, to_gpu_after_ = 0, stale_in_host_ = 0, stale_on_ssd_ = 0;
  // Parameters written home to the SSD: before a step begins, before its first turn, before its
  // last turn, after that.
  std::array<int, 4> written_{};
  Resting activations_turn_;
  struct Limit {
    int row = 0, worth_of = 0;  // 0: of a memory
    std::string name;
  };
  std::vector<Limit> limits_;
};

}  // namespace spillway
