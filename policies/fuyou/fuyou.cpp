// fuyou: the optimizer runs during backward, group by group, as gradients arrive; all model states
// on the SSD; activations inside blocks are swapped where that is faster than recomputing them.
//
// Source: Liao et al., Fuyou (arXiv 2403.06504v1) = LoHan (v2) = Ratel (ICDE 2025), and the
// authors' code where the paper is silent (RC4ML/LoHan). Section IV-C, active gradient offloading:
// gradients never touch the SSD, whose order is R(i), R(i-1), W(i), R(i-2), W(i-1), ...: two places
// for optimizer state, so that the read of i-2 waits for the write of i, while the read of i-1 need
// not wait for its gradient. Section IV-D, activation swapping: policies/fuyou/swap_plan.hpp.
// The paper has one micro-batch per step; with several, gradients accumulate in host memory and the
// optimizer runs in the last one's backward.
#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "policies/common/builtin.hpp"
#include "policies/common/horizontal.hpp"
#include "policies/common/look_ahead.hpp"
#include "policies/common/options.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/step.hpp"
#include "policies/fuyou/optimizer_groups.hpp"
#include "policies/fuyou/swap_plan.hpp"

namespace spillway {

namespace {

enum class Pipeline { optimized, naive, serial };

// swap=auto | none | all | 0.5 | 60GiB
struct Swap {
  enum class Kind { automatic, none, fraction, bytes } kind = Kind::automatic;
  double amount = 0;
};

template <class Number>
std::optional<Number> number(const std::string& text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Swap read_swap(const OptionReader& read) {
  const std::string& text = read.text("swap");
  if (text == "auto") return {};
  if (text == "none") return {Swap::Kind::none, 0};
  if (text == "all") return {Swap::Kind::fraction, 1};
  if (const auto fraction = number<double>(text); fraction && *fraction >= 0 && *fraction <= 1)
    return {Swap::Kind::fraction, *fraction};
  try {
    if (!number<double>(text)) return {Swap::Kind::bytes, static_cast<double>(parse_bytes(text))};
  } catch (const InputError&) {
  }
  read.reject("swap", "auto, none, all, a number from 0 to 1, or a size with its unit");
}

// 0: one group for each block.
std::uint64_t read_group(const OptionReader& read) {
  const std::string& text = read.text("group");
  if (text == "block") return 0;
  if (const auto elements = number<double>(text);
      elements && *elements >= static_cast<double>(element_alignment) && *elements <= 1e15)
    return static_cast<std::uint64_t>(*elements);
  read.reject("group", fmt::format("block or a number of elements from {}", element_alignment));
}

class Fuyou : public Policy {
 public:
  explicit Fuyou(const PolicyOptions& options) {
    const PolicyInfo about = info();
    const OptionReader read(about, options);
    pipeline_ = static_cast<Pipeline>(read.choice("optimizer", {"optimized", "naive", "serial"}));
    overflow_auto_ = read.is_auto("checkpoints_ssd");
    if (!overflow_auto_) pass_.checkpoints_on_ssd = read.fraction("checkpoints_ssd");
    const bool whole_blocks = read.choice("recompute", {"full", "needed"}) == 0;
    swap_ = read_swap(read);
    most_elements_ = read_group(read);
    places_ = static_cast<std::size_t>(read.count("state_buffers", 1, 16));
    if (pipeline_ == Pipeline::naive) places_ = 1;
    pass_.gpu_ahead = static_cast<std::size_t>(read.count("forward_ahead", 0, 16));
    pass_.backward_gpu_ahead = static_cast<std::size_t>(read.count("backward_ahead", 0, 16));
    pass_.activations_gpu_ahead = static_cast<std::size_t>(read.count("activations_ahead", 0, 16));
    pass_.recomputes_output = swap_.kind == Swap::Kind::none && whole_blocks;
    pass_.checkpoints = Tier::host;
    pass_.gradients = Tier::host;
  }

  PolicyInfo info() const override {
    return {
        "fuyou",
        "Fuyou / LoHan / Ratel (arXiv 2403.06504, ICDE 2025)",
        "all model states on the SSD; the CPU optimizer runs under the GPU's backward",
        {{"optimizer", "optimized",
          "optimized: in backward, reading ahead, all under the GPU's work | naive: in backward, "
          "one group at a time, the GPU waiting for it | serial: after backward"},
         {"checkpoints_ssd",
          "auto",
          "fraction of the activations that wait in host memory, those between blocks and those "
          "swapped, that overflows to the SSD; auto: the least that fits",
          {"auto", "1"}},
         {"recompute",
          "full",
          "with swap=none, full: recompute whole blocks | needed: only what backward needs, as "
          "with any other swap",
          {"full"}},
         {"swap",
          "none",
          "activations inside blocks that leave the GPU in forward and come back, instead of being "
          "recomputed: none: as the published measurements look | auto: by the paper's cost model, "
          "as long as the step gets faster, which it does at large batches | all | a fraction of "
          "their bytes | bytes per micro-batch, e.g. 60GiB",
          {"none", "all"}},
         {"group",
          "block",
          "what the optimizer updates at a time: block | a number of elements, 7e8 in the authors' "
          "code",
          {"1e8", "1e7"}},
         {"state_buffers",
          "2",
          "groups whose optimizer state is in host memory at once, 1 to 16; naive has one",
          {"1"}},
         {"forward_ahead",
          "1",
          "blocks of parameters fetched to the GPU ahead of forward, 0 to 16 (the authors' code: "
          "three pieces that make one block)",
          {"0"}},
         {"backward_ahead",
          "1",
          "the same in backward (the authors' code: 0, which costs time that the paper's figures "
          "do not show)",
          {"0"}},
         {"activations_ahead", "1", "blocks whose activations come back ahead, 0 to 16", {"0"}}}};
  }

  std::vector<PolicyOptions> placements() const override {
    if (!overflow_auto_) return {{}};
    std::vector<PolicyOptions> all;
    for (int tenth = 0; tenth <= 10; ++tenth)
      all.push_back({{"checkpoints_ssd", fmt::format("{:g}", tenth / 10.0)}});
    return all;
  }

  bool derives() const override { return true; }
  Plan plan(const Problem& problem) const override {
    Plan plan;
    plan.parameters.rest = plan.optimizer_state.rest = {.ssd = 1};
    plan.parameters.gpu_ahead = static_cast<int>(pass_.gpu_ahead);
    plan.parameters.backward_gpu_ahead = static_cast<int>(*pass_.backward_gpu_ahead);
    plan.gradients = {.on_gpu = false, .head_waits = Tier::gpu};
    plan.optimizer_state.ahead = static_cast<int>(places_) - 1;
    plan.optimizer_state.slots = static_cast<int>(places_);
    plan.checkpoints.rest = {.host = 1 - pass_.checkpoints_on_ssd, .ssd = pass_.checkpoints_on_ssd};
    plan.checkpoints.gpu_ahead = static_cast<int>(pass_.activations_gpu_ahead);
    plan.saved.saves = saved_tensors(problem);
    plan.saved.slots = std::max(static_cast<int>(pass_.activations_gpu_ahead) + 1, 2);
    plan.saved.recomputes_output = pass_.recomputes_output;
    plan.optimizer.blocking = pipeline_ == Pipeline::naive;
    if (most_elements_ > 0) {
      plan.optimizer.group = UpdateGroup::at_most;
      plan.optimizer.elements = most_elements_;
    }
    return plan;
  }

  void step(Step& step) const override {
    for (const int m : step.ascending()) {
      const bool last = m + 1 == step.micro_batches();
      for (const int layer : step.upward()) step.forward(layer, m);
      for (const int layer : step.downward()) {
        step.backward(layer, m);
        if (last && pipeline_ != Pipeline::serial) step.update(layer);
      }
    }
    if (pipeline_ == Pipeline::serial) {
      step.wait();
      for (const int layer : step.downward()) step.update(layer);
    }
    step.update(step.embedding());
    if (pipeline_ == Pipeline::serial) step.wait();
  }

 private:
  // By block, what forward saves for backward.
  std::vector<std::uint8_t> saved_tensors(const Problem& problem) const {
    const std::int64_t blocks = problem.model.layers;
    const std::vector<SwapOperator> operators = by_benefit(swap_operators(problem));
    double all = 0;
    for (const SwapOperator& one : operators) all += one.bytes;
    switch (swap_.kind) {
      case Swap::Kind::none:
        return {};
      case Swap::Kind::fraction:
        return swap_masks(swaps_within(operators, swap_.amount * all), blocks);
      case Swap::Kind::bytes:
        return swap_masks(swaps_within(operators, swap_.amount), blocks);
      case Swap::Kind::automatic:
        break;
    }
    SwapModel model = swap_model(problem, host_memory_left(problem));
    model.overlap = problem.workload.updates_wait()    ? OptimizerOverlap::nothing
                    : pipeline_ == Pipeline::optimized ? OptimizerOverlap::all
                    : pipeline_ == Pipeline::naive     ? OptimizerOverlap::writes
                                                       : OptimizerOverlap::nothing;
    const double recomputed =
        static_cast<double>(blocks) * recompute_flops(problem, saved_none, false);
    return swap_masks(
        choose_swaps(model, that_fit_gpu(problem, operators), model.inter_block_bytes, recomputed),
        blocks);
  }

  // Bytes of optimizer state in host memory.
  double state_slots(const Problem& problem) const {
    std::vector<std::uint64_t> most(places_, 0);
    const auto groups = optimizer_groups(problem.model, most_elements_);
    for (std::size_t g = 0; g < groups.size(); ++g)
      most[g % places_] = std::max(most[g % places_], elements_of(groups[g]));
    double bytes = 0;
    for (const std::uint64_t elements : most) bytes += static_cast<double>(elements * problem.state_bytes());
    return bytes;
  }

  // Host memory first for parameters on their way, optimizer state and gradients (MEM_avail).
  double host_memory_left(const Problem& problem) const {
    const auto block = static_cast<double>(unit_elements(problem.model, 0));
    const auto width = static_cast<double>(problem.parameter_bytes());
    const auto gradient = static_cast<double>(problem.gradient_bytes());
    const bool keeps_gradients = problem.workload.micro_batches() > 1 ||
                                 pipeline_ == Pipeline::serial || problem.workload.updates_wait();
    double used = 0;
    used += state_slots(problem);
    const auto staged = static_cast<double>(pass_.host_ahead + pass_.gpu_ahead + 1);
    used += (staged + static_cast<double>(places_)) * block * width;
    used += (keeps_gradients ? static_cast<double>(problem.model.layers) : 3.0) * block * gradient;
    return static_cast<double>(problem.machine.host.memory) - used;
  }

  // The operators, in their order, that can be kept of each block within the GPU memory that the
  // rest of the step leaves: two blocks' worth, one in use and one on its way.
  std::vector<SwapOperator> that_fit_gpu(const Problem& problem,
                                         const std::vector<SwapOperator>& operators) const {
    const ModelSpec& model = problem.model;
    const auto block = static_cast<double>(unit_elements(model, 0));
    const auto embedding = static_cast<double>(unit_elements(model, model.layers));
    const auto width = static_cast<double>(problem.parameter_bytes());
    const auto gradient = static_cast<double>(problem.gradient_bytes());
    const auto ahead = static_cast<double>(std::max(pass_.gpu_ahead, *pass_.backward_gpu_ahead));
    const double scratch = static_cast<double>(
        std::max(backward_scratch_bytes(problem, saved_none), head_scratch_bytes(problem)));
    const double rest = embedding * (width + gradient) + (ahead + 1) * block * width +
                        3 * block * gradient + scratch +
                        4 * static_cast<double>(checkpoint_bytes(problem));
    const double places =
        static_cast<double>(std::max<std::size_t>(pass_.activations_gpu_ahead + 1, 2));
    const double most = (static_cast<double>(problem.machine.gpu.memory) - rest) / places;
    std::vector<double> used(static_cast<std::size_t>(model.layers), 0);
    std::vector<SwapOperator> fitting;
    for (const SwapOperator& one : operators) {
      double& bytes = used[static_cast<std::size_t>(one.block)];
      if (bytes + one.bytes > most) continue;
      bytes += one.bytes;
      fitting.push_back(one);
    }
    return fitting;
  }

  Pipeline pipeline_ = Pipeline::optimized;
  bool overflow_auto_ = true;
  Swap swap_;
  std::uint64_t most_elements_ = 0;
  std::size_t places_ = 2;
  HorizontalOptions pass_;
};

}  // namespace

std::unique_ptr<Policy> make_fuyou(const PolicyOptions& options) {
  return std::make_unique<Fuyou>(options);
}

}  // namespace spillway
