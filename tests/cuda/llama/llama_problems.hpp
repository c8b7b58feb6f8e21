// Llamas of shapes that a GPU computes: those of tests/exec/cpu/model_fixture.hpp, with widths that
// are multiples of 8.
#pragma once

#include "tests/cuda/model/model_step.hpp"

namespace spillway::cuda {

// Four heads of 8 to 24. A head's width times the heads is more than the hidden width for qwen3 and
// mistral, the latter has a window of a third of the sequence.
inline Problem small_llama(const std::string& kind, std::int64_t vocabulary, std::int64_t layers,
                           std::int64_t sequence, std::int64_t batch, std::int64_t micro_batch) {
  Problem problem = llama_problem(kind, vocabulary, layers, 32, 4, sequence, batch, micro_batch);
  problem.model.ffn = 72;
  if (problem.model.head_width > 0) problem.model.head_width = kind == "mistral" ? 24 : 16;
  return problem;
}

}  // namespace spillway::cuda
