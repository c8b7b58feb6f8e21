#include "policies/pipeline/pipeline_times.hpp"

#include <cmath>

#include "base/errors.hpp"

namespace spillway {

std::int64_t StageTimes::of(const Pass& pass) const {
  const std::int64_t again = pass.finds_all ? 0 : recompute_ns;
  switch (pass.kind) {
    case PassKind::forward:
      return forward_ns;
    case PassKind::backward:
      return again + backward_ns;
    case PassKind::input_gradient:
      return again + backward_ns - weight_ns;
    case PassKind::weight_gradient:
      return weight_ns;
    case PassKind::recompute:
      return recompute_ns;
  }
  SPILLWAY_ASSERT(false);
}

std::int64_t StageHop::transfer_ns() const {
  return link < 0 ? 0 : static_cast<std::int64_t>(std::llround(bytes / rate * 1e9));
}

const StageHop* PipelineTimes::hop_after(const Pass& pass) const {
  const auto at = static_cast<std::size_t>(pass.stage);
  if (pass.kind == PassKind::forward) return at < outputs.size() ? &outputs[at] : nullptr;
  const bool gives = pass.kind == PassKind::backward || pass.kind == PassKind::input_gradient;
  return gives && at > 0 ? &gradients[at - 1] : nullptr;
}

}  // namespace spillway
