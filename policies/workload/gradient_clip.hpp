// What is done about a gradient that is too large, or not finite: part of the workload, so every
// policy does the same.
//
//   off            the gradient is applied as it is
//   global=LIMIT   the gradient of the whole model is scaled to a 2-norm of at most LIMIT, so no
//                  update may start before the gradients of all units are complete
//   layer=LIMIT    the gradient of each unit (a layer, or the embedding with the head) is scaled by
//                  itself, so a unit's update waits for its own gradient only
//
// The factor is that of torch.nn.utils.clip_grad_norm_: LIMIT / (norm + 1e-6), at most 1.
#pragma once

#include <cstdint>
#include <string>

namespace spillway {

enum class ClipScope : std::uint8_t { off, global, layer };

struct GradientClip {
  ClipScope scope = ClipScope::off;
  double limit = 0;  // above 0; 0 with off
  bool operator==(const GradientClip&) const = default;
};

enum class OnNonFinite : std::uint8_t {
  stop,  // training ends and names the layer
  skip   // no update of the step is applied, so every update waits until all gradients are known
};

std::string to_string(const GradientClip& clip);  // "off", "global=1", "layer=0.5"
const char* to_string(OnNonFinite action);        // "stop"

// The inverse. Throws InputError that names the setting, gradient_clip or on_nonfinite.
GradientClip parse_gradient_clip(const std::string& text);
OnNonFinite parse_on_nonfinite(const std::string& text);

}  // namespace spillway
