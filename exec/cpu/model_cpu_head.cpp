// The head: final norm, logits against the head's matrix, cross entropy, and all their gradients,
// in chunks of tokens, so that the logits of a whole sequence are never in memory.
#include <algorithm>

#include "base/errors.hpp"
#include "exec/cpu/model_cpu.hpp"
#include "exec/data/batches.hpp"
#include "policies/model/scratch.hpp"

namespace spillway {

void ModelCpu::head(const float* parameters, const std::int32_t* targets, float* hidden,
                    float* head_gradient, bool first_micro_batch, double* losses,
                    std::byte* scratch, double* token_losses, std::int64_t counted_tokens,
                    bool loss_only) const {
  if (first_micro_batch) std::fill_n(head_gradient, head_elements_, 0.0f);
  const std::int64_t chunk = head_chunk_tokens(problem_);
  const std::int64_t counted =
      counted_tokens > 0 ? counted_tokens : problem_.workload.tokens_per_step();
  const auto scale = static_cast<float>(1.0 / static_cast<double>(counted));
  for (std::int64_t sequence = 0; sequence < b_; ++sequence) {
    losses[sequence] = 0;
    for (std::int64_t first = 0; first < t_; first += chunk) {
      const std::int64_t row = sequence * t_ + first;
      losses[sequence] += head_chunk(
          parameters, targets + row, hidden + row * c_, head_gradient, std::min(chunk, t_ - first),
          token_losses != nullptr ? token_losses + row : nullptr, scratch, scale, loss_only);
    }
  }
}

// `rows` tokens; returns the sum of their losses.
double ModelCpu::head_chunk(const float* parameters, const std::int32_t* targets, float* hidden,
                            float* head_gradient, std::int64_t rows, double* token_losses,
                            std::byte* scratch, float scale, bool loss_only) const {
  const std::int64_t v = problem_.model.vocabulary;
  const std::uint64_t used = static_cast<std::uint64_t>(rows * (v + 2 * c_ + 2)) * sizeof(float);
  SPILLWAY_ASSERT(used <= head_scratch_bytes(problem_));
  float* logits = reinterpret_cast<float*>(scratch);  // (rows, V), then their gradient
  float* norm = logits + rows * v;                    // (rows, C)
  float* norm_gradient = norm + rows * c_;            // (rows, C)
  float* statistics = norm_gradient + rows * c_;      // (2, rows)

  final_norm(parameters, hidden, statistics, norm, rows);
  head_.forward(kernels_, parameters, norm, nullptr, logits, rows, {});

  double loss = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    double token_loss = 0;
    if (targets[row] == no_target) {
      std::fill_n(logits + row * v, v, 0.0f);
    } else {
      token_loss = kernels_.cross_entropy(logits + row * v, checked(targets[row]), v, scale);
    }
    if (token_losses != nullptr) token_losses[row] = token_loss;
    loss += token_loss;
  }
  if (loss_only) return loss;

  head_.backward(kernels_, parameters, norm, logits, {norm_gradient, c_}, head_gradient, rows, {});
  final_norm_backward(parameters, norm_gradient, statistics, hidden, head_gradient, rows);
  return loss;
}

}  // namespace spillway
