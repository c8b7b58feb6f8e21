// A whole training step on the CUDA backend with everything resident: the twin of
// tests/exec/cpu/model_fixture.hpp, whose problems, parameters and results it shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "exec/cuda/model/model_cuda.hpp"
#include "exec/cuda/model/token_order.hpp"
#include "policies/model/scratch.hpp"
#include "policies/model/weight_operands.hpp"
#include "tests/cuda/device_memory.hpp"
#include "tests/exec/cpu/model_fixture.hpp"

namespace spillway::cuda {

// The same problem in the precision of Element.
template <class Element>
Problem in_precision_of(Problem problem, std::int64_t sequences_at_once) {
  problem.workload.precision = std::is_same_v<Element, float> ? Precision::fp32 : Precision::bf16;
  problem.workload.sequences_at_once = sequences_at_once;
  return problem;
}

template <class Element>
std::vector<Element> rounded(const std::vector<float>& values) {
  std::vector<Element> result;
  for (const float value : values) result.push_back(from_float<Element>(value));
  return result;
}

// What rounding parameters to Element makes of them.
template <class Element>
Units rounded_units(Units units) {
  for (auto& unit : units)
    for (float& value : unit) value = to_float(from_float<Element>(value));
  return units;
}

// A step's model and text.
struct ModelCase {
  Problem problem;  // in fp32, for the CPU
  Units parameters;
  std::vector<std::int32_t> tokens, targets;
};
// Matrices of wider models are smaller, so that activations are of the same size for all.
inline ModelCase make_model_case(const Problem& problem, std::uint64_t seed = 5) {
  ModelCase test{problem, random_parameters(problem.model, seed), random_tokens(problem, seed + 1),
                 random_tokens(problem, seed + 2)};
  const float factor = std::min(1.0f, std::sqrt(24.0f / static_cast<float>(problem.model.hidden)));
  for (std::size_t layer = 0; layer < static_cast<std::size_t>(problem.model.layers); ++layer) {
    for (const TensorLayout& tensor : unit_layout(problem.model, 0)) {
      if (!tensor.decay) continue;
      float* const values = test.parameters[layer].data() + tensor.offset;
      std::for_each(values, values + tensor.rows * tensor.columns, [&](float& w) { w *= factor; });
    }
  }
  return test;
}

// All device memory of a step, each buffer of just the size that a schedule plans, poisoned, and
// between guards.
template <class Element>
class ModelStep {
 public:
  // `workspace`: model_workspace_bytes(problem), which many steps may use, one after the other.
  ModelStep(const Problem& problem, const DeviceArray<std::byte>& workspace,
            const Units& parameters, const std::vector<std::int32_t>& tokens,
            const std::vector<std::int32_t>& targets, const StepOptions& options = {},
            GeluBackward gelu_backward = GeluBackward::kernel)
      : problem_(problem),
        options_(options),
        available_(options.available.value_or(saved_all(problem.model))),
        layers_(static_cast<std::size_t>(problem.model.layers)),
        rows_(static_cast<std::size_t>(problem.workload.micro_batch * problem.workload.sequence)),
        forward_scratch_(forward_scratch_bytes(problem, available_)),
        head_scratch_(head_scratch_bytes(problem)),
        backward_scratch_(options.weights_later ? input_gradient_scratch_bytes(problem, available_)
                                                : backward_scratch_bytes(problem, available_)),
        activation_gradient_(activation()),
        token_losses_(tokens.size()),
        losses_(static_cast<std::size_t>(problem.workload.batch)),
        step_noise_(1),
        carved_(ModelWorkspace::carve(problem, workspace.data())),
        model_(make_model_cuda<Element>(problem, carved_, stream_, AttentionKernels::mma_sync,
                                        gelu_backward)) {
    for (const std::vector<float>& unit : parameters) {
      given_.push_back(rounded<Element>(unit));
      parameters_.emplace_back(given_.back());
    }
    const auto gradient_bytes = [&](std::int64_t unit) {
      return static_cast<std::size_t>(trained_elements(problem.model, unit)) *
             problem.gradient_bytes();
    };
    for (std::int64_t unit = 0; unit <= problem.model.layers; ++unit)
      gradients_.emplace_back(gradient_bytes(unit));
    head_gradient_ = std::make_unique<Bytes>(gradient_bytes(head_unit(problem.model)));
    *step_noise_.data() = options.step_noise;
    for (std::size_t layer = 0; layer <= layers_; ++layer) x_.emplace_back(activation());
    for (std::size_t layer = 0; layer < layers_; ++layer)
      saved_.emplace_back(saved_bytes(problem, available_));
    for (std::size_t layer = 0; options.weights_later && layer < layers_; ++layer)
      operands_.emplace_back(weight_operand_bytes(problem, available_));
    for (std::size_t first = 0; first < tokens.size(); first += rows_)
      texts_.emplace_back(tokens.data() + first, targets.data() + first,
                          options.starts ? options.starts->data() + first : nullptr, rows_,
                          problem.workload.sequence, counted(targets));
    counted_ = counted(targets);
  }

  // Enqueues one step and returns.
  void enqueue() {
    const std::int64_t micro_batches = problem_.workload.micro_batches();
    for (std::int64_t m = 0; m < micro_batches; ++m) enqueue_micro_batch(m);
  }
  // Makes every product of the step before it. Waits.
  void rehearse() { model_->rehearse(Bytes(model_->rehearsal_bytes()).data()); }
  // Dropout's of what is enqueued, or replayed, from now on. Nothing may be under way.
  void set_noise(NoiseKey step) { *step_noise_.data() = step; }
  // From now on, logits are kept of every chunk of the head.
  void keep_logits() {
    logits_ = std::make_unique<DeviceArray<Element>>(
        token_losses_.size() * static_cast<std::size_t>(model_->logits_stride()));
  }
  // Those of the latest step, (B T, V); what follows them in their rows is left out.
  std::vector<float> logits() const {
    const std::vector<Element> all = logits_->download();
    const auto stride = static_cast<std::size_t>(model_->logits_stride());
    const auto v = static_cast<std::size_t>(problem_.model.vocabulary);
    std::vector<float> values;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (i % stride < v) values.push_back(to_float(all[i]));
    return values;
  }
  // What lies in the scratch of a layer's backward when all that was enqueued is done.
  std::vector<std::byte> backward_scratch() const { return backward_scratch_.download(); }
  TestStream& stream() { return stream_; }
  const ModelCuda<Element>& model() const { return *model_; }

  // Waits; losses and gradients of what was enqueued last. Fails the test where memory beyond a
  // buffer, or a parameter, was written.
  ModelStepResult result() {
    stream_.wait();
    ModelStepResult result;
    for (const double loss : losses_.wait()) result.loss += loss;
    result.loss /= static_cast<double>(counted_);
    result.token_losses = token_losses_.download();
    for (const Bytes& gradient : gradients_) result.gradients.push_back(floats(gradient));
    result.head_gradient = floats(*head_gradient_);
    for (const Bytes* scratch : {&forward_scratch_, &head_scratch_, &backward_scratch_})
      scratch->download();
    for (const auto& x : x_) x.download();
    for (const auto& saved : saved_) saved.download();
    for (const auto& operands : operands_) operands.download();
    activation_gradient_.download();
    for (std::size_t unit = 0; unit < given_.size(); ++unit)
      result.memory_respected &= same_bits(parameters_at(unit).download(), given_[unit]);
    return result;
  }

 private:
  using Bytes = DeviceArray<std::byte>;
  struct DeviceText {
    DeviceText(const std::int32_t* host_tokens, const std::int32_t* host_targets,
               const std::int32_t* host_starts, std::size_t rows, std::int64_t sequence,
               std::int64_t counted)
        : tokens(host_tokens, rows),
          targets(std::vector(host_targets, host_targets + rows)),
          scale(std::vector{static_cast<float>(1.0 / static_cast<double>(counted))}) {
      if (host_starts != nullptr) borders.emplace(host_starts, rows, sequence);
    }
    Text text() const {
      Text text;
      text.tokens = tokens.numbers.data();
      text.order = tokens.order();
      text.targets = targets.data();
      text.scale = scale.data();
      if (borders) text.starts = borders->starts.data();
      return text;
    }
    Text positions() const {
      Text text;
      text.tokens = borders->positions.numbers.data();
      text.order = borders->positions.order();
      return text;
    }
    // Numbers of rows, and their order.
    struct Ordered {
      Ordered(const std::int32_t* host, std::size_t rows)
          : numbers(std::vector(host, host + rows)), sorted(rows), begins(rows + 1), runs(1) {
        std::vector<std::int32_t> in_order(rows), begin(rows + 1), count(1);
        order_tokens(host, static_cast<std::int64_t>(rows), in_order.data(), begin.data(),
                     count.data());
        sorted.upload(in_order);
        begins.upload(begin);
        runs.upload(count);
      }
      TokenOrder order() const { return {sorted.data(), begins.data(), runs.data()}; }
      DeviceArray<std::int32_t> numbers, sorted, begins, runs;
    };
    struct Borders {
      Borders(const std::int32_t* host, std::size_t rows, std::int64_t sequence)
          : starts(std::vector(host, host + rows)),
            ends(rows),
            positions(positions_of(host, rows, sequence).data(), rows) {
        std::vector<std::int32_t> end(rows);
        find_ends(host, static_cast<std::int64_t>(rows), sequence, end.data());
        ends.upload(end);
      }
      static std::vector<std::int32_t> positions_of(const std::int32_t* starts, std::size_t rows,
                                                    std::int64_t sequence) {
        std::vector<std::int32_t> positions;
        for (std::size_t row = 0; row < rows; ++row)
          positions.push_back(static_cast<std::int32_t>(row % static_cast<std::size_t>(sequence)) -
                              starts[row]);
        return positions;
      }
      DeviceArray<std::int32_t> starts, ends;
      Ordered positions;
    };
    Ordered tokens;
    DeviceArray<std::int32_t> targets;
    DeviceArray<float> scale;
    std::optional<Borders> borders;
  };

  std::size_t activation() const { return rows_ * static_cast<std::size_t>(problem_.model.hidden); }
  template <class Array>
  static Array& at(std::list<Array>& list, std::size_t i) {
    return *std::next(list.begin(), static_cast<std::ptrdiff_t>(i));
  }
  DeviceArray<Element>& parameters_at(std::size_t unit) { return at(parameters_, unit); }

  void enqueue_micro_batch(std::int64_t m) {
    const bool first = m == 0;
    const DeviceText& of_micro_batch = at(texts_, static_cast<std::size_t>(m));
    const Text text = of_micro_batch.text();
    AttentionBorders borders;
    if (of_micro_batch.borders)
      borders = {of_micro_batch.borders->starts.data(), of_micro_batch.borders->ends.data()};
    const SavedMask mask = available_;
    const auto saved = [&](std::size_t layer) {
      return mask != saved_none ? at(saved_, layer).data() : nullptr;
    };
    const auto x = [&](std::size_t layer) { return at(x_, layer).data(); };
    const auto place = [&](std::size_t layer) {
      return StepPlace{step_noise_.data(), static_cast<int>(layer),
                       m * problem_.workload.micro_batch, borders};
    };
    model_->embed_forward(parameters_at(layers_).data(), text, x(0));
    for (std::size_t layer = 0; layer < layers_; ++layer) {
      model_->layer_forward(parameters_at(layer).data(), x(layer), x(layer + 1), saved(layer), mask,
                            forward_scratch_.data(), place(layer));
    }
    if (logits_ != nullptr) enqueue_logits(m);
    Element* const dx = activation_gradient_.data();
    copy(dx, x(layers_), activation() * sizeof(Element));
    model_->head(parameters_.back().data(), text, dx,
                 head_gradient_->size() > 0 ? head_gradient_->data() : nullptr, first,
                 losses_.data() + m * problem_.workload.micro_batch, head_scratch_.data());
    copy(token_losses_.data() + static_cast<std::size_t>(m) * rows_, carved_.token_losses,
         rows_ * sizeof(double));
    const auto first_trained = static_cast<std::size_t>(problem_.model.frozen_layers);
    for (std::size_t layer = layers_; options_.weights_later && layer-- > first_trained;) {
      model_->layer_input_gradient(parameters_at(layer).data(), x(layer), saved(layer), mask,
                                   options_.recomputes_output, dx, at(operands_, layer).data(),
                                   backward_scratch_.data(), place(layer));
    }
    for (std::size_t layer = layers_; options_.weights_later && layer-- > first_trained;) {
      model_->layer_weight_gradient(saved(layer), mask, at(operands_, layer).data(),
                                    at(gradients_, layer).data(), first);
    }
    for (std::size_t layer = layers_; !options_.weights_later && layer-- > first_trained;) {
      model_->layer_backward(parameters_at(layer).data(), x(layer), saved(layer), mask,
                             options_.recomputes_output, dx, at(gradients_, layer).data(), first,
                             backward_scratch_.data(), place(layer));
    }
    Bytes& gradient = at(gradients_, layers_);
    if (gradient.size() == 0) return;
    model_->embed_backward(text, dx, gradient.data(), first);
    if (of_micro_batch.borders && model_->has_position_table())
      model_->embed_backward_positions(of_micro_batch.positions(), dx, gradient.data());
  }
  // Of the chunks that the head cuts a micro-batch into, the last one smaller.
  void enqueue_logits(std::int64_t m) {
    const auto all = static_cast<std::int64_t>(rows_);
    const std::int64_t stride = model_->logits_stride();
    for (std::int64_t first = 0; first < all; first += model_->head_rows()) {
      const std::int64_t rows = std::min(model_->head_rows(), all - first);
      const Element* const logits = model_->logits(
          parameters_.back().data(), at(x_, layers_).data() + first * problem_.model.hidden, rows,
          head_scratch_.data());
      copy(logits_->data() + (m * all + first) * stride, logits,
           static_cast<std::size_t>(rows * stride) * sizeof(Element));
    }
  }
  void copy(void* to, const void* from, std::size_t bytes) {
    SPILLWAY_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_));
  }
  std::vector<float> floats(const Bytes& gradient) const {
    const std::vector<std::byte> bytes = gradient.download();
    std::vector<float> values;
    for (std::size_t i = 0; i < bytes.size(); i += problem_.gradient_bytes()) {
      float value = 0;
      if (problem_.gradient_bytes() == sizeof(bf16)) {
        bf16 narrow{};
        std::memcpy(&narrow, bytes.data() + i, sizeof narrow);
        value = to_float(narrow);
      } else {
        std::memcpy(&value, bytes.data() + i, sizeof value);
      }
      values.push_back(value);
    }
    return values;
  }

  Problem problem_;
  StepOptions options_;
  SavedMask available_;
  std::size_t layers_, rows_;  // rows of a micro-batch
  TestStream stream_;
  Bytes forward_scratch_, head_scratch_, backward_scratch_;
  DeviceArray<Element> activation_gradient_;
  DeviceArray<double> token_losses_;
  PinnedArray<double> losses_;
  PinnedArray<NoiseKey> step_noise_;
  std::vector<std::vector<Element>> given_;  // the parameters, rounded
  std::list<DeviceArray<Element>> parameters_, x_;
  std::list<Bytes> gradients_, saved_;
  std::list<Bytes> operands_;  // by layer, of backward in two passes
  std::unique_ptr<Bytes> head_gradient_;
  std::unique_ptr<DeviceArray<Element>> logits_;  // (B T, stride), where they are kept
  std::list<DeviceText> texts_;
  std::int64_t counted_ = 0;  // targets
  ModelWorkspace carved_;
  std::unique_ptr<ModelCuda<Element>> model_;
};

// A step captured into a graph, which launch() runs again and again.
template <class Element>
class CapturedStep {
 public:
  explicit CapturedStep(ModelStep<Element>& step) : step_(step) {
    SPILLWAY_CUDA(cudaStreamBeginCapture(step.stream(), cudaStreamCaptureModeGlobal));
    step.enqueue();
    SPILLWAY_CUDA(cudaStreamEndCapture(step.stream(), &graph_));
    SPILLWAY_CUDA(cudaGraphInstantiate(&captured_, graph_, 0));
  }
  ~CapturedStep() {
    static_cast<void>(cudaGraphExecDestroy(captured_));
    static_cast<void>(cudaGraphDestroy(graph_));
  }
  CapturedStep(const CapturedStep&) = delete;
  CapturedStep& operator=(const CapturedStep&) = delete;

  ModelStepResult launch() {
    SPILLWAY_CUDA(cudaGraphLaunch(captured_, step_.stream()));
    return step_.result();
  }

 private:
  ModelStep<Element>& step_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t captured_ = nullptr;
};

template <class Element>
ModelStepResult run_cuda_step(const Problem& problem, const Units& parameters,
                              const std::vector<std::int32_t>& tokens,
                              const std::vector<std::int32_t>& targets,
                              const StepOptions& options = {}) {
  const DeviceArray<std::byte> workspace(model_workspace_bytes(problem));
  ModelStep<Element> step(problem, workspace, parameters, tokens, targets, options);
  step.enqueue();
  const ModelStepResult result = step.result();
  workspace.download();
  return result;
}

}  // namespace spillway::cuda
