// gpipe, 1f1b, interleaved, zb-h1: orders of a pipeline (orders.hpp) as policies of training. A
// stage runs its passes one after the other, and updates once all of them are done.
//
// Sources: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "Memory-Efficient
// Pipeline-Parallel DNN Training", ICML 2021 (1F1B with a flush, as in Megatron-LM); Narayanan et
// al., SC 2021, Sec. 2.2 (interleaved); Qi et al., ICLR 2024 (ZB-H1). Where a stage's state rests,
// on its GPU, in host memory or on the SSD, is ours: in the papers all of it is on the GPU.
#include <fmt/format.h>

#include "policies/common/policy.hpp"
#include "policies/common/resident_options.hpp"
#include "policies/movement/step.hpp"
#include "policies/pipeline/orders.hpp"

namespace spillway {

namespace {

const Choice<Share> places{{"gpu", {.gpu = 1}}, {"host", {.host = 1}}, {"ssd", {.ssd = 1}}};

class PipelinePolicy : public Policy {
 public:
  PipelinePolicy(const char* order, const char* paper, const char* idea)
      : Policy(order, paper, idea), order_(order) {
    declare_for_pipelines();
  }

  Plan plan(const Problem& problem, const Costs&) const override {
    Plan plan = resident_.plan(problem);
    plan.parameters.rest = Share(parameters_);
    plan.optimizer_state.rest = Share(optimizer_state_);
    // The GPU updates parameters that are there.
    if (optimizer_state_->gpu > 0 && parameters_->gpu == 0)
      plan.optimizer_state.rest = Share{.host = 1};
    plan.checkpoints.rest = Share(checkpoints_);
    plan.activation_gradients.on_gpu = 1;
    return plan;
  }

  void step(Step& step) const override {
    const Workload& workload = step.problem().workload;
    const int stages = static_cast<int>(workload.pipeline);
    // One stage has one run of layers.
    const PipelineOrder order(stages > 1 || chunks() == 1 ? text() : "1f1b");
    const PipelineShape shape = order.shape(stages, step.micro_batches());
    const int layers = step.layers() / shape.chunks;  // of a chunk
    const int stage = workload.pipeline > 1 ? step.problem().rank : 0;
    const std::vector<PassOrder> passes = order.passes(shape, {});
    for (const Pass& pass : passes[0][static_cast<std::size_t>(stage)]) {
      const int first = pass.stage / stages * layers, last = first + layers - 1;
      for (int k = 0; k < layers; ++k) {
        switch (pass.kind) {
          case PassKind::forward:
            step.forward(first + k, pass.micro_batch);
            break;
          case PassKind::input_gradient:
            step.input_gradient(last - k, pass.micro_batch);
            break;
          case PassKind::weight_gradient:
            step.weight_gradient(last - k, pass.micro_batch);
            break;
          case PassKind::backward:
          case PassKind::recompute:
            step.backward(last - k, pass.micro_batch);
            break;
        }
      }
    }
    for (const int layer : step.upward()) step.update(layer);
    for (const int unit : step.outer()) step.update(unit);
  }

 protected:
  virtual std::string text() const { return order_; }

 private:
  std::string order_;
  Option<Share> parameters_ = option("parameters", "gpu", places, {"host", "ssd"},
                                     "gpu | host | ssd: where a stage's 16-bit parameters rest");
  Option<Share> optimizer_state_ =
      option("optimizer_state", "gpu", places, {"host", "ssd"},
             "gpu | host | ssd: where its optimizer state rests; in host memory at least where the "
             "parameters do not rest on the GPU");
  Option<Share> checkpoints_ = option(
      "checkpoints", "gpu", places, {"host", "ssd"},
      "gpu | host | ssd: where the inputs of its layers, and what they keep, wait for backward");
  ResidentOptions resident_{*this};
};

class Interleaved : public PipelinePolicy {
 public:
  Interleaved()
      : PipelinePolicy("interleaved", "Narayanan et al., SC 2021, Sec. 2.2",
                       "1F1B over several runs of layers on each GPU: shorter waits at both ends, "
                       "more messages") {}
  int chunks() const override { return chunks_; }

 private:
  std::string text() const override {
    return fmt::format("interleaved:chunks={}", static_cast<int>(chunks_));
  }
  Option<int> chunks_ =
      option("chunks", "2", count(2, 64), {}, "runs of consecutive layers that a GPU has");
};

}  // namespace

std::unique_ptr<Policy> make_gpipe() {
  return std::make_unique<PipelinePolicy>(
      "gpipe", "GPipe (NeurIPS 2019)",
      "all forward passes of a stage, then all backward passes: every activation waits");
}
std::unique_ptr<Policy> make_1f1b() {
  return std::make_unique<PipelinePolicy>(
      "1f1b", "PipeDream-flush (ICML 2021), Megatron-LM",
      "one forward pass, one backward pass in turns: a stage holds as many micro-batches as there "
      "are stages from it on");
}
std::unique_ptr<Policy> make_zb_h1() {
  return std::make_unique<PipelinePolicy>(
      "zb-h1", "Zero Bubble Pipeline Parallelism (ICLR 2024), ZB-H1",
      "1f1b whose gradients of weights wait until a stage would: what stages wait for comes "
      "sooner, and more is held");
}
std::unique_ptr<Policy> make_interleaved() { return std::make_unique<Interleaved>(); }

}  // namespace spillway
