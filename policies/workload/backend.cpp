#include "policies/workload/backend.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "policies/model/model.hpp"

namespace spillway {

const char* to_string(Backend backend) { return backend == Backend::cpu ? "cpu" : "cuda"; }

Precision usual_precision(Backend backend) {
  return backend == Backend::cpu ? Precision::fp32 : Precision::bf16;
}

bool computes_in(Backend backend, Precision precision) {
  return backend == Backend::cuda || precision == Precision::fp32;
}

std::int64_t gradient_scratch_elements(Backend backend, const ModelSpec& model,
                                       std::int64_t sequence) {
  const std::int64_t t = sequence, c = model.hidden, f = model.ffn;
  switch (backend) {
    case Backend::cpu:
      return t * (std::max(f, 3 * c) + c) + 2 * std::min(attention_chunk_rows, t) * t;
    case Backend::cuda:
      return t * (f + 3 * c + 3 * c);
  }
  SPILLWAY_ASSERT(false);
}

}  // namespace spillway
