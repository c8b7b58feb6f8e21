#include "policies/pipeline/orders.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "policies/movement/domains.hpp"
#include "policies/pipeline/planned_order.hpp"

namespace spillway {

namespace {

constexpr int most_chunks = 64;
constexpr int most_held_micro_batches = 1 << 20;

TextDomain whole_numbers(int least, int most) { return of_texts(Numbers<int>{least, most}); }

const char* const held_help =
    "micro-batches whose activations a GPU holds at once, per chunk; auto: as many as there are "
    "GPUs "
    "in the pipeline, what the first of them holds with 1f1b";
const char* const held_by_memory_help =
    "micro-batches whose activations a GPU holds at once; auto: as many as its memory holds or, "
    "where that is not known, as there are GPUs in the pipeline";

PolicyOption held_option(const char* help) {
  return {"held",
          "auto",
          help,
          {},
          of_texts(WordOr<Numbers<int>>{"auto", {1, most_held_micro_batches}})};
}

Pass forward(int stage, int m) { return {PassKind::forward, stage, m}; }
Pass backward(int stage, int m) { return {PassKind::backward, stage, m}; }

// Huang et al., "GPipe", NeurIPS 2019, Fig. 2: all forward passes, then all backward passes.
std::vector<Pass> gpipe(const PipelineShape& shape, int gpu) {
  std::vector<Pass> passes;
  for (int m = 0; m < shape.micro_batches; ++m) passes.push_back(forward(gpu, m));
  for (int m = 0; m < shape.micro_batches; ++m) passes.push_back(backward(gpu, m));
  return passes;
}

// Narayanan et al., "PipeDream-2BW", ICML 2021, with a flush: as few micro-batches in flight as
// keep all GPUs busy. `weights_later`: micro-batches by which the gradient of the weights comes
// after that of the input; negative: both are one pass.
std::vector<Pass> one_forward_one_backward(const PipelineShape& shape, int gpu, int weights_later) {
  std::vector<Pass> passes;
  const int all = shape.micro_batches, ahead = std::min(all, shape.gpus - 1 - gpu);
  const auto add_backward = [&](int m) {
    if (weights_later < 0) return passes.push_back(backward(gpu, m));
    passes.push_back({PassKind::input_gradient, gpu, m});
    if (m >= weights_later) passes.push_back({PassKind::weight_gradient, gpu, m - weights_later});
  };
  for (int m = 0; m < ahead; ++m) passes.push_back(forward(gpu, m));
  for (int m = 0; m < all; ++m) {
    if (m + ahead < all) passes.push_back(forward(gpu, m + ahead));
    add_backward(m);
  }
  for (int m = std::max(0, all - weights_later); weights_later >= 0 && m < all; ++m)
    passes.push_back({PassKind::weight_gradient, gpu, m});
  return passes;
}

// Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
// Megatron-LM", SC 2021, Sec. 2.2.2: micro-batches go through a chunk in groups of as many as there
// are GPUs.
std::vector<Pass> interleaved(const PipelineShape& shape, int gpu) {
  const int in_group = shape.gpus * shape.chunks, all = shape.micro_batches * shape.chunks;
  const auto pass = [&](PassKind kind, int k) {
    const int chunk = k % in_group / shape.gpus;
    const int from_end = kind == PassKind::forward ? chunk : shape.chunks - 1 - chunk;
    return Pass{kind, from_end * shape.gpus + gpu,
                k / in_group * shape.gpus + k % in_group % shape.gpus};
  };
  const int ahead = std::min(all, 2 * (shape.gpus - 1 - gpu) + (shape.chunks - 1) * shape.gpus);
  std::vector<Pass> passes;
  for (int k = 0; k < ahead; ++k) passes.push_back(pass(PassKind::forward, k));
  for (int k = 0; k < all; ++k) {
    if (k + ahead < all) passes.push_back(pass(PassKind::forward, k + ahead));
    passes.push_back(pass(PassKind::backward, k));
  }
  return passes;
}

template <class OfGpu>
std::vector<PassOrder> alike(const PipelineShape& shape, int pipelines, const OfGpu& of_gpu) {
  PassOrder order;
  for (int gpu = 0; gpu < shape.gpus; ++gpu) order.push_back(of_gpu(gpu));
  return std::vector<PassOrder>(static_cast<std::size_t>(pipelines), order);
}

// The order that ends first of those that rules of list scheduling give. CrossPipe's own solver
// (mixed-integer programming) finds the optimum; this looks at some tens of orders.
std::vector<PassOrder> first_to_end(const PipelineShape& shape, const PipelineTimes& times,
                                    PlanningRule rule) {
  std::optional<PlannedOrders> best;
  for (const double forward_waits : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    for (const double weights_wait : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      rule.forward_waits = forward_waits;
      rule.weights_wait = weights_wait;
      PlannedOrders orders = planned_orders(shape, times, rule);
      if (!best || orders.end_ns < best->end_ns) best = std::move(orders);
    }
  }
  return std::move(best->orders);
}

// ZB-H1 of Qi et al.: the gradient of the weights waits for as many micro-batches as the GPU has
// before it, so that all hold as much as the first one.
std::vector<Pass> zb_h1(const PipelineShape& shape, int gpu) {
  return one_forward_one_backward(shape, gpu, gpu);
}
std::vector<Pass> whole_backward(const PipelineShape& shape, int gpu) {
  return one_forward_one_backward(shape, gpu, -1);
}

}  // namespace

// What is known of an order beside what people are told. It is planned where `of_gpu` is null.
struct PipelineOrder::Kind {
  PipelineOrderInfo info;
  std::vector<Pass> (*of_gpu)(const PipelineShape&, int gpu) = nullptr;
  PlanningRule rule = {};
  bool tries_rules = false;      // the order that ends first of several rules
  bool holds_by_memory = false;  // with `held` left at auto
  bool in_turns = false;         // on links that pipelines share
  bool in_groups = false;        // micro-batches go through in groups of as many as GPUs
};

const std::vector<PipelineOrder::Kind>& PipelineOrder::kinds() {
  static const PolicyOption chunks = {"chunks",
                                      "2",
                                      "chunks of the model on a GPU, each a stage",
                                      {},
                                      whole_numbers(2, most_chunks)};
  static const PolicyOption turns = {
      "turns",
      "off",
      "on: two chunks on a GPU, that go down and up again | off: one",
      {},
      of_texts(Choice<bool>{{"on", true}, {"off", false}})};
  PlanningRule recomputing, splitting;
  recomputing.recomputes_apart = true;
  splitting.splits_backward = true;
  static const std::vector<Kind> all = {
      {.info =
           {"gpipe", "GPipe (NeurIPS 2019)", "all forward passes, then all backward passes", {}},
       .of_gpu = gpipe},
      {.info = {"1f1b",
                "PipeDream-2BW (ICML 2021), Megatron-LM",
                "a forward and a backward pass in turns, with as few micro-batches held as that "
                "needs",
                {}},
       .of_gpu = whole_backward},
      {.info =
           {"interleaved",
            "Megatron-LM (SC 2021)",
            "1f1b over several chunks of the model on each GPU: shorter bubbles, more transfers",
            {chunks}},
       .of_gpu = interleaved,
       .in_groups = true},
      {.info = {"zb-h1",
                "Zero Bubble Pipeline Parallelism (ICLR 2024), ZB-H1",
                "1f1b with gradients of weights apart, which fill bubbles; it holds what 1f1b does",
                {}},
       .of_gpu = zb_h1},
      {.info = {"varuna",
                "Varuna (EuroSys 2022)",
                "what can run first runs, backward before forward; recomputes while it would wait",
                {held_option(held_by_memory_help)}},
       .rule = recomputing,
       .holds_by_memory = true},
      {.info =
           {"atlas",
            "ATLAS (arXiv 2411.14458), reconstructed: its text is not public",
            "backward before forward, as many micro-batches as memory holds; pipelines take turns "
            "on the WAN, each with the rate of all",
            {held_option(held_by_memory_help)}},
       .holds_by_memory = true,
       .in_turns = true},
      {.info = {"crosspipe",
                "CrossPipe (USENIX ATC 2025); list scheduling in place of its solver",
                "planned for the links' latency and rate, gradients of weights apart",
                {held_option(held_help), turns}},
       .rule = splitting,
       .tries_rules = true}};
  return all;
}

const std::vector<PipelineOrderInfo>& pipeline_orders() {
  static const std::vector<PipelineOrderInfo> all = [] {
    std::vector<PipelineOrderInfo> infos;
    for (const PipelineOrder::Kind& kind : PipelineOrder::kinds()) infos.push_back(kind.info);
    return infos;
  }();
  return all;
}

PipelineOrder::PipelineOrder(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  std::vector<std::string> names;
  for (const Kind& kind : kinds()) {
    if (kind.info.name == name) kind_ = &kind;
    names.push_back(kind.info.name);
  }
  if (kind_ == nullptr)
    throw InputError("unknown order of a pipeline " + name, unknown_name_hint(name, names));
  std::vector<std::string> options;
  for (const PolicyOption& option : kind_->info.options) {
    values_.push_back(option.default_value);
    options.push_back(option.name);
  }
  std::istringstream rest(colon == std::string::npos ? "" : text.substr(colon + 1));
  for (std::string part; std::getline(rest, part, ',');) {
    const std::size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const auto found = std::find(options.begin(), options.end(), key);
    if (found == options.end())
      throw InputError(fmt::format("order {} has no option {}", name, key),
                       options.empty() ? "it has none" : unknown_name_hint(key, options));
    const auto at = static_cast<std::size_t>(found - options.begin());
    const std::string given = equals == std::string::npos ? "" : part.substr(equals + 1);
    const PolicyOption& option = kind_->info.options[at];
    if (!option.domain.holds(given))
      throw InputError(
          fmt::format("order {}: option {}={} is not {}", name, key, given, option.domain.values),
          fmt::format("{}: {}", key, option.help));
    values_[at] = given;
  }
  text_ = name;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (values_[i] != kind_->info.options[i].default_value)
      text_ += fmt::format("{}{}={}", text_ == name ? ":" : ",", options[i], values_[i]);
  }
}

const std::string& PipelineOrder::name() const { return kind_->info.name; }

const std::string* PipelineOrder::value(const char* option) const {
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (kind_->info.options[i].name == option) return &values_[i];
  }
  return nullptr;
}

int PipelineOrder::count(const char* option, int otherwise) const {
  const std::string* const text = value(option);
  int number = 0;
  return text != nullptr && read_number(*text, number) ? number : otherwise;
}

int PipelineOrder::held(const PipelineShape& shape, const PipelineTimes& times) const {
  const bool by_memory = holds_by_memory() && times.memory_holds > 0;
  return count("held", by_memory ? std::min(times.memory_holds, shape.micro_batches) : shape.gpus);
}

bool PipelineOrder::holds_by_memory() const {
  const std::string* const held = value("held");
  return kind_->holds_by_memory && held != nullptr && *held == "auto";
}

bool PipelineOrder::suits(int gpus, int micro_batches) const {
  return !kind_->in_groups || micro_batches % gpus == 0;
}

bool PipelineOrder::turns() const {
  const std::string* const turns = value("turns");
  return turns != nullptr && *turns == "on";
}

int PipelineOrder::chunks() const { return turns() ? 2 : count("chunks", 1); }

PipelineShape PipelineOrder::shape(int gpus, int micro_batches) const {
  if (!suits(gpus, micro_batches))
    throw InputError(fmt::format("order {}: {} micro-batches do not divide into groups of {}, one "
                                 "for each GPU of the pipeline",
                                 name(), micro_batches, gpus),
                     "choose a batch of a multiple of as many micro-batches, or another order");
  return {gpus, chunks(), micro_batches, turns()};
}

bool PipelineOrder::shares_links_in_turns() const { return kind_->in_turns; }

std::vector<PassOrder> PipelineOrder::passes(const PipelineShape& shape,
                                             const PipelineTimes& times) const {
  if (kind_->of_gpu != nullptr)
    return alike(shape, times.pipelines, [&](int gpu) { return kind_->of_gpu(shape, gpu); });
  PlanningRule rule = kind_->rule;
  rule.most_held = held(shape, times);
  if (kind_->tries_rules) return first_to_end(shape, times, rule);
  return planned_orders(shape, times, rule).orders;
}

}  // namespace spillway
