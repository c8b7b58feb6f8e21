// The head: final norm, logits against the token table, cross entropy, and all their gradients, in
// chunks of tokens, so that the logits of a whole sequence are never in memory.
#include <algorithm>

#include "base/errors.hpp"
#include "exec/cpu/gpt_cpu.hpp"
#include "exec/cpu/kernels_gemm.hpp"
#include "policies/model/scratch.hpp"

namespace spillway {

void GptCpu::head(const float* parameters, const std::int32_t* targets, float* hidden,
                  float* head_gradient, bool first_micro_batch, double* losses, std::byte* scratch,
                  double* token_losses) const {
  if (first_micro_batch) std::fill_n(head_gradient, embedding_elements_, 0.0f);
  const std::int64_t chunk = head_chunk_tokens(problem_);
  for (std::int64_t sequence = 0; sequence < b_; ++sequence) {
    losses[sequence] = 0;
    for (std::int64_t first = 0; first < t_; first += chunk) {
      const std::int64_t row = sequence * t_ + first;
      losses[sequence] += head_chunk(
          parameters, targets + row, hidden + row * c_, head_gradient, std::min(chunk, t_ - first),
          token_losses != nullptr ? token_losses + row : nullptr, scratch);
    }
  }
}

// `rows` tokens; returns the sum of their losses.
double GptCpu::head_chunk(const float* parameters, const std::int32_t* targets, float* hidden,
                          float* head_gradient, std::int64_t rows, double* token_losses,
                          std::byte* scratch) const {
  const std::uint64_t used = static_cast<std::uint64_t>(rows * (v_ + 2 * c_ + 2)) * sizeof(float);
  SPILLWAY_ASSERT(used <= head_scratch_bytes(problem_));
  float* logits = reinterpret_cast<float*>(scratch);  // (rows, V), then their gradient
  float* norm = logits + rows * v_;                   // (rows, C)
  float* norm_gradient = norm + rows * c_;            // (rows, C)
  float* mean = norm_gradient + rows * c_;            // (rows)
  float* rstd = mean + rows;                          // (rows)
  const float* table = parameters + embedding_.token_table;
  const float* weight = parameters + embedding_.norm_weight;

  kernels_.norm_statistics(hidden, mean, rstd, rows, c_);
  kernels_.norm_apply(hidden, mean, rstd, weight, parameters + embedding_.norm_bias, norm, rows,
                      c_);
  gemm(CblasNoTrans, CblasTrans, rows, v_, c_, 1.0f, {norm, c_}, {table, c_}, 0.0f, {logits, v_});

  const float scale =
      static_cast<float>(1.0 / static_cast<double>(problem_.workload.tokens_per_step()));
  double loss = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const double token_loss =
        kernels_.cross_entropy(logits + row * v_, checked(targets[row]), v_, scale);
    if (token_losses != nullptr) token_losses[row] = token_loss;
    loss += token_loss;
  }

  linear_weight_gradient(logits, norm, head_gradient + embedding_.token_table, rows, c_, v_);
  linear_input_gradient(logits, table, norm_gradient, rows, c_, v_);
  // In place: a row's gradient overwrites the row it was computed from.
  kernels_.norm_backward(norm_gradient, hidden, mean, rstd, weight, hidden, true,
                         head_gradient + embedding_.norm_weight,
                         head_gradient + embedding_.norm_bias, rows, c_);
  return loss;
}

}  // namespace spillway
