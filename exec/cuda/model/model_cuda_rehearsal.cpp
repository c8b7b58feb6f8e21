// Makes every matrix product of a step once, before training, so that each has its algorithm.
//
// It runs the very code that tasks run, on memory that nobody uses yet, so that shapes, alignments
// and the order in which shapes are met are those of training; there is no list of them to keep.
// What is computed on the way is of no use to anybody.
#include <algorithm>

#include "base/errors.hpp"
#include "exec/cuda/model/model_cuda.hpp"

namespace spillway::cuda {

namespace {

// Takes parts of `memory` one after the other, each on 256 bytes; of null, only counts.
class Carver {
 public:
  explicit Carver(std::byte* memory) : memory_(memory) {}
  template <class T>
  T* take(std::uint64_t count) {
    std::byte* const part = memory_ + used_;
    used_ += (count * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T*>(part);
  }
  std::uint64_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::uint64_t used_ = 0;
};

std::uint64_t count_of(std::int64_t n) { return static_cast<std::uint64_t>(n); }

}  // namespace

// A kernel batch through a layer, forward and backward.
template <class Element>
std::uint64_t ModelCuda<Element>::rehearse_layer(std::byte* memory, bool adds) {
  Carver carver(memory);
  // Parameters and the gradient lie in the same memory, because a plan with backward in two passes
  // may never hold both at once. Only the products of adapters read the one and write the other.
  const bool shares = !problem_.model.has_adapters();
  const std::uint64_t parameter_bytes =
      count_of(unit_elements(problem_.model, 0)) * sizeof(Element);
  const std::uint64_t gradient_bytes = count_of(layer_elements_) * problem_.gradient_bytes();
  auto* const first =
      carver.take<std::byte>(shares ? std::max(parameter_bytes, gradient_bytes) : parameter_bytes);
  const auto* const parameters = reinterpret_cast<const Element*>(first);
  const auto* const input = carver.take<Element>(count_of(s_ * t_ * c_));
  auto* const output = carver.take<Element>(count_of(s_ * t_ * c_));
  auto* const gradient = shares ? first : carver.take<std::byte>(gradient_bytes);
  auto* const scratch = carver.take<std::byte>(backward_scratch_bytes(problem_, saved_none));
  auto* const noise = carver.take<NoiseKey>(1);
  if (memory == nullptr) return carver.used();
  const StepPlace place{noise};
  begin_layer(place);
  const BackwardScratch parts = carve_backward(scratch, saved_none, place);
  const KernelBatch batch{parameters, input, activations(parts.recomputed), parts.adapters, {}};
  compute_activations(batch, saved_none);
  compute_output(batch, output);
  backward_layer(batch, {output, gradient, nullptr, !adds, false, parts.gradients});
  return carver.used();
}

// `rows` rows of a micro-batch through the head.
template <class Element>
std::uint64_t ModelCuda<Element>::rehearse_head(std::byte* memory, std::int64_t rows, bool adds) {
  const std::int64_t unit = unit_elements(problem_.model, head_unit(problem_.model));
  Carver carver(memory);
  const auto* const parameters = carver.take<Element>(count_of(unit));
  auto* const hidden = carver.take<Element>(count_of(b_ * t_ * c_));
  const bool trained = trained_elements(problem_.model, head_unit(problem_.model)) > 0;
  auto* const gradient =
      trained ? carver.take<std::byte>(count_of(unit) * problem_.gradient_bytes()) : nullptr;
  auto* const targets = carver.take<std::int32_t>(count_of(rows));
  auto* const scale = carver.take<float>(1);
  auto* const scratch = carver.take<std::byte>(head_scratch_bytes(problem_));
  if (memory == nullptr) return carver.used();
  SPILLWAY_CUDA(
      cudaMemsetAsync(targets, 0, static_cast<std::size_t>(rows) * sizeof(std::int32_t), stream_));
  SPILLWAY_CUDA(cudaMemsetAsync(scale, 0, sizeof(float), stream_));
  with_gradient(gradient, [&](auto* sums) {
    head_chunk(parameters, targets, scale, hidden, sums, !adds, rows, workspace_.token_losses,
               false, scratch);
  });
  return carver.used();
}

template <class Element>
std::uint64_t ModelCuda<Element>::rehearsal_bytes() {
  return std::max(rehearse_layer(nullptr, false), rehearse_head(nullptr, head_.rows, false));
}

template <class Element>
void ModelCuda<Element>::rehearse(std::byte* memory) {
  SPILLWAY_ASSERT(memory != nullptr);
  const bool several = problem_.workload.micro_batches() > 1;
  // The first contribution to a gradient overwrites, all others add.
  rehearse_layer(memory, false);
  if (several || b_ > s_) rehearse_layer(memory, true);
  const std::int64_t all = b_ * t_, last = all % head_.rows;
  rehearse_head(memory, head_.rows, false);
  if (several || all >= 2 * head_.rows) rehearse_head(memory, head_.rows, true);
  if (last > 0) rehearse_head(memory, last, true);
  SPILLWAY_CUDA(cudaStreamSynchronize(stream_));
}

#define SPILLWAY_REHEARSAL(Element)                                                         \
  template std::uint64_t ModelCuda<Element>::rehearse_layer(std::byte*, bool);              \
  template std::uint64_t ModelCuda<Element>::rehearse_head(std::byte*, std::int64_t, bool); \
  template std::uint64_t ModelCuda<Element>::rehearsal_bytes();                             \
  template void ModelCuda<Element>::rehearse(std::byte*);
SPILLWAY_REHEARSAL(float)
SPILLWAY_REHEARSAL(bf16)
#undef SPILLWAY_REHEARSAL

}  // namespace spillway::cuda
