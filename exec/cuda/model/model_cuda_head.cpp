// The head: final norm, logits against the head's matrix, cross entropy, and all their gradients,
// in chunks of rows, so that the logits of a micro-batch are never in memory.
//
// Logits have rows of round_up(V, 64) elements, for the tensor cores. The products run over these
// columns, not V, wherever the head's matrix is followed by enough other elements of the unit: what
// they take for the matrix's last rows is, in a GPT, the start of the position table, elsewhere the
// norm's weight and padding. Its logits mean nothing, the cross entropy makes their gradient zero,
// and so they add zero to every gradient. (Unless what follows is not finite; a position's
// embedding or a norm's weight has then reached the loss as well.)
#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "exec/cuda/model/model_cuda.hpp"

namespace spillway::cuda {

namespace {

std::int64_t round_down(std::int64_t value, std::int64_t to) { return value / to * to; }

constexpr std::int64_t row_grid = 128;  // rows that matrix products come in, where there are many

// Bytes of a row in the head's scratch: the norm's output and its gradient, logits, statistics.
std::int64_t row_bytes(const Problem& problem, std::int64_t stride) {
  return (2 * problem.model.hidden + stride) *
             static_cast<std::int64_t>(problem.activation_bytes()) +
         2 * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace

template <class Element>
typename ModelCuda<Element>::HeadShape ModelCuda<Element>::head_shape(const Problem& problem,
                                                                      std::int64_t head_table) {
  const ModelSpec& model = problem.model;
  const auto bytes = static_cast<std::int64_t>(head_scratch_bytes(problem));
  HeadShape shape;
  shape.stride = round_up(model.vocabulary, 64);
  // Scratch is planned for at least one row of V fp32 logits.
  if (row_bytes(problem, shape.stride) > bytes) shape.stride = round_up(model.vocabulary, 8);
  if (row_bytes(problem, shape.stride) > bytes) {
    throw InputError(
        fmt::format("sequences of {} tokens leave the head no room for a row of {} logits, which "
                    "the GPU pads",
                    problem.workload.sequence, model.vocabulary),
        "use longer sequences: " + Setting{"sequence", "2"} + " or more");
  }
  const bool table_is_followed =
      head_table + shape.stride * model.hidden <= unit_elements(model, head_unit(model));
  shape.columns = table_is_followed ? shape.stride : model.vocabulary;

  const std::int64_t all = problem.workload.micro_batch * problem.workload.sequence;
  std::int64_t most = bytes / row_bytes(problem, shape.stride);
  SPILLWAY_ASSERT(most > 0);
  if (most >= all) {
    shape.rows = all;
    return shape;
  }
  // Chunks of about the same size.
  const std::int64_t grid = most >= row_grid ? row_grid : 1;
  most = round_down(most, grid);
  const std::int64_t chunks = (all + most - 1) / most;
  shape.rows = round_up((all + chunks - 1) / chunks, grid);
  return shape;
}

template <class Element>
void ModelCuda<Element>::head(const Element* parameters, const Text& text, Element* hidden,
                              std::byte* head_gradient, bool first_micro_batch, double* losses,
                              std::byte* scratch, bool loss_only) {
  const std::int64_t rows = b_ * t_;
  with_gradient(head_gradient, [&](auto* sums) {
    if (first_micro_batch && sums != nullptr) {
      zero(sums, tables_.head + v_ * c_, unit_elements(problem_.model, head_unit(problem_.model)));
    }
    for (std::int64_t first = 0; first < rows; first += head_.rows) {
      head_chunk(parameters, text.targets + first, text.scale, hidden + first * c_, sums,
                 first_micro_batch && first == 0, std::min(head_.rows, rows - first),
                 workspace_.token_losses + first, loss_only, scratch);
    }
  });
  sum_losses(workspace_.token_losses, losses, b_, t_, stream_);
}

template <class Element>
typename ModelCuda<Element>::HeadChunk ModelCuda<Element>::carve_head(std::byte* scratch,
                                                                      std::int64_t rows) const {
  SPILLWAY_ASSERT(rows > 0 && rows <= head_.rows);
  HeadChunk chunk{};
  chunk.norm_output = reinterpret_cast<Element*>(scratch);
  chunk.norm_gradient = chunk.norm_output + rows * c_;
  chunk.logits = chunk.norm_gradient + rows * c_;
  float* const mean = reinterpret_cast<float*>(chunk.logits + rows * head_.stride);
  chunk.statistics = {mean, mean + rows, rows, rows};
  return chunk;
}

template <class Element>
Element* ModelCuda<Element>::logits(const Element* parameters, const Element* hidden,
                                    std::int64_t rows, std::byte* scratch) {
  const HeadChunk chunk = carve_head(scratch, rows);
  norm_forward(final_norm_, parameters, hidden, chunk.statistics, chunk.norm_output,
               NormParts::statistics_and_output, rows);
  matmul_.linear<Element>(chunk.norm_output, parameters + tables_.head, nullptr, nullptr,
                          chunk.logits, rows, c_, head_.columns, stream_,
                          {.y_stride = head_.stride});
  return chunk.logits;
}

template <class Element>
template <class Gradient>
void ModelCuda<Element>::head_chunk(const Element* parameters, const std::int32_t* targets,
                                    const float* scale, Element* hidden, Gradient* head_gradient,
                                    bool overwrites, std::int64_t rows, double* token_losses,
                                    bool loss_only, std::byte* scratch) {
  const HeadChunk chunk = carve_head(scratch, rows);
  Element* const gradient = logits(parameters, hidden, rows, scratch);  // what logits become
  cross_entropy<Element>(gradient, head_.stride, v_, targets, scale, token_losses, rows, stream_);
  if (loss_only) return;
  if (head_gradient != nullptr) {
    matmul_.weight_gradient<Element>(gradient, chunk.norm_output, head_gradient + tables_.head,
                                     rows, c_, head_.columns, stream_,
                                     {.y_stride = head_.stride, .adds = !overwrites});
  }
  matmul_.input_gradient<Element>(gradient, parameters + tables_.head, chunk.norm_gradient, rows,
                                  c_, head_.columns, stream_, {.y_stride = head_.stride});
  // In place: a row's gradient overwrites the row it was computed from.
  const NormSums<Gradient> sums{sum_at(head_gradient, final_norm_.weight),
                                sum_at(head_gradient, final_norm_.bias), overwrites};
  norm_backward(final_norm_, parameters, chunk.norm_gradient, hidden, chunk.statistics, hidden,
                false, sums, rows);
}

#define SPILLWAY_HEAD(Element)                                                                    \
  template ModelCuda<Element>::HeadShape ModelCuda<Element>::head_shape(const Problem&,           \
                                                                        std::int64_t);            \
  template Element* ModelCuda<Element>::logits(const Element*, const Element*, std::int64_t,      \
                                               std::byte*);                                       \
  template void ModelCuda<Element>::head(const Element*, const Text&, Element*, std::byte*, bool, \
                                         double*, std::byte*, bool);
SPILLWAY_HEAD(float)
SPILLWAY_HEAD(bf16)
#undef SPILLWAY_HEAD
#define SPILLWAY_HEAD_CHUNK(Element, Gradient)                                                    \
  template void ModelCuda<Element>::head_chunk(const Element*, const std::int32_t*, const float*, \
                                               Element*, Gradient*, bool, std::int64_t, double*,  \
                                               bool, std::byte*);
SPILLWAY_HEAD_CHUNK(float, float)
SPILLWAY_HEAD_CHUNK(bf16, float)
SPILLWAY_HEAD_CHUNK(bf16, bf16)
#undef SPILLWAY_HEAD_CHUNK

}  // namespace spillway::cuda
