#include "policies/workload/backend.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "policies/model/model.hpp"

namespace spillway {

const char* to_string(Backend backend) { return backend == Backend::cpu ? "cpu" : "cuda"; }

Precision usual_precision(Backend backend) {
  return backend == Backend::cpu ? Precision::fp32 : Precision::bf16;
}

std::uint64_t gradient_scratch_bytes(Backend backend, const ModelSpec& model, std::int64_t sequence,
                                     std::uint64_t element_bytes) {
  const auto bytes = [](std::int64_t elements, std::uint64_t each) {
    return static_cast<std::uint64_t>(elements) * each;
  };
  const std::int64_t t = sequence;
  const std::int64_t wide = std::max(model.fc_width(), model.qkv_width());
  const std::int64_t narrow = std::max(model.hidden, model.attention_width());
  const std::uint64_t gradients = bytes(t * (wide + narrow), element_bytes);
  switch (backend) {
    case Backend::cpu:
      return gradients + bytes(2 * std::min(attention_chunk_rows, t) * t, element_bytes);
    case Backend::cuda:
      return gradients + bytes(t * model.heads, sizeof(float));
  }
  SPILLWAY_ASSERT(false);
}

}  // namespace spillway
