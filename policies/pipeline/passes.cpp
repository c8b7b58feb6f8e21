#include "policies/pipeline/passes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/errors.hpp"

namespace spillway {

namespace {

constexpr std::size_t kind_index(PassKind kind) { return static_cast<std::size_t>(kind); }

// Which passes are there, or have run: by stage, micro-batch and kind.
class PassSet {
 public:
  explicit PassSet(const PipelineShape& shape)
      : micro_batches_(static_cast<std::size_t>(shape.micro_batches)),
        has_(static_cast<std::size_t>(shape.stages()) * micro_batches_) {}
  bool contains(PassKind kind, int stage, int micro_batch) const {
    return has_[at(stage, micro_batch)][kind_index(kind)];
  }
  // Whether it is new.
  bool add(const Pass& pass) {
    bool& has = has_[at(pass.stage, pass.micro_batch)][kind_index(pass.kind)];
    return !std::exchange(has, true);
  }
  bool gives_input_gradient(int stage, int micro_batch) const {
    return contains(PassKind::backward, stage, micro_batch) ||
           contains(PassKind::input_gradient, stage, micro_batch);
  }

 private:
  std::size_t at(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage) * micro_batches_ + static_cast<std::size_t>(micro_batch);
  }
  std::size_t micro_batches_;
  std::vector<std::array<bool, pass_kind_count>> has_;
};

[[noreturn]] void fail(int gpu, const Pass& pass, const std::string& why) {
  throw InputError(fmt::format("order of a pipeline: GPU {}: {} of stage {} on micro-batch {}: {}",
                               gpu, to_string(pass.kind), pass.stage, pass.micro_batch, why),
                   "every GPU runs each pass of its stages once, after what it needs");
}

bool can_run(const PipelineShape& shape, const PassSet& done, const Pass& pass) {
  const int s = pass.stage, m = pass.micro_batch;
  switch (pass.kind) {
    case PassKind::forward:
      return s == 0 || done.contains(PassKind::forward, s - 1, m);
    case PassKind::recompute:
      return done.contains(PassKind::forward, s, m);
    case PassKind::backward:
    case PassKind::input_gradient:
      return done.contains(PassKind::forward, s, m) &&
             (s + 1 == shape.stages() || done.gives_input_gradient(s + 1, m));
    case PassKind::weight_gradient:
      return done.contains(PassKind::input_gradient, s, m);
  }
  SPILLWAY_ASSERT(false);
}

}  // namespace

const char* to_string(PassKind kind) {
  switch (kind) {
    case PassKind::forward:
      return "forward";
    case PassKind::backward:
      return "backward";
    case PassKind::input_gradient:
      return "input gradient";
    case PassKind::weight_gradient:
      return "weight gradient";
    case PassKind::recompute:
      return "recompute";
  }
  SPILLWAY_ASSERT(false);
}

void check_order(const PipelineShape& shape, const PassOrder& order) {
  SPILLWAY_ASSERT(static_cast<int>(order.size()) == shape.gpus);
  PassSet there(shape);
  for (int gpu = 0; gpu < shape.gpus; ++gpu) {
    for (const Pass& pass : order[static_cast<std::size_t>(gpu)]) {
      if (pass.stage < 0 || pass.stage >= shape.stages() || pass.micro_batch < 0 ||
          pass.micro_batch >= shape.micro_batches || shape.gpu_of(pass.stage) != gpu)
        fail(gpu, pass, "the GPU has no such pass");
      if (!there.add(pass)) fail(gpu, pass, "it is there twice");
    }
  }
  for (int s = 0; s < shape.stages(); ++s) {
    for (int m = 0; m < shape.micro_batches; ++m) {
      const auto has = [&](PassKind kind) { return there.contains(kind, s, m); };
      const bool parts = has(PassKind::input_gradient) && has(PassKind::weight_gradient);
      const bool any_part = has(PassKind::input_gradient) || has(PassKind::weight_gradient);
      if (!has(PassKind::forward))
        fail(shape.gpu_of(s), {PassKind::forward, s, m}, "it is missing");
      if (has(PassKind::backward) ? any_part : !parts)
        fail(shape.gpu_of(s), {PassKind::backward, s, m}, "it is missing, or there by half");
    }
  }
  PassSet done(shape);
  std::vector<std::size_t> next(order.size());
  for (bool any = true; any;) {
    any = false;
    for (std::size_t gpu = 0; gpu < order.size(); ++gpu) {
      for (; next[gpu] < order[gpu].size() && can_run(shape, done, order[gpu][next[gpu]]);
           ++next[gpu], any = true)
        done.add(order[gpu][next[gpu]]);
    }
  }
  for (std::size_t gpu = 0; gpu < order.size(); ++gpu) {
    if (next[gpu] < order[gpu].size())
      fail(static_cast<int>(gpu), order[gpu][next[gpu]],
           "it waits for a pass that comes after one that waits for it");
  }
}

std::vector<int> most_held(const PassOrder& order) {
  std::vector<int> most;
  for (const std::vector<Pass>& passes : order) {
    int held = 0, largest = 0;
    for (const Pass& pass : passes) {
      if (pass.kind == PassKind::forward) largest = std::max(largest, ++held);
      const bool is_last =
          pass.kind == PassKind::backward || pass.kind == PassKind::weight_gradient;
      if (is_last) --held;
    }
    most.push_back(largest);
  }
  return most;
}

std::vector<int> most_recomputed(const PassOrder& order) {
  std::vector<int> most;
  for (const std::vector<Pass>& passes : order) {
    // By stage and micro-batch: whether its backward finds all, and whether a pass recomputes it.
    std::set<std::pair<int, int>> found, recomputed;
    for (const Pass& pass : passes) {
      const std::pair<int, int> of{pass.stage, pass.micro_batch};
      if (pass.kind == PassKind::recompute) recomputed.insert(of);
      if (pass.finds_all) found.insert(of);
    }
    int now = 0, largest = 0;
    for (const Pass& pass : passes) {
      const std::pair<int, int> of{pass.stage, pass.micro_batch};
      const bool finds = found.contains(of);
      const bool begins = pass.kind == PassKind::recompute ||
                          (pass.kind == PassKind::forward && finds && !recomputed.contains(of)) ||
                          (pass.kind == PassKind::input_gradient && !finds);
      if (begins) largest = std::max(largest, ++now);
      const bool ends =
          pass.kind == PassKind::weight_gradient || (pass.kind == PassKind::backward && finds);
      if (ends) --now;
    }
    most.push_back(largest);
  }
  return most;
}

}  // namespace spillway
