#include "policies/workload/gradient_clip.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "base/errors.hpp"

namespace spillway {

std::string to_string(const GradientClip& clip) {
  switch (clip.scope) {
    case ClipScope::off:
      return "off";
    case ClipScope::global:
      return fmt::format("global={}", clip.limit);
    case ClipScope::layer:
      return fmt::format("layer={}", clip.limit);
  }
  SPILLWAY_ASSERT(false);
}

const char* to_string(OnNonFinite action) { return action == OnNonFinite::stop ? "stop" : "skip"; }

GradientClip parse_gradient_clip(const std::string& text) {
  if (text == "off") return {};
  const char* const name = "gradient_clip";
  const std::size_t equals = text.find('=');
  const std::string scope = text.substr(0, equals);
  GradientClip clip;
  if (scope == "global") clip.scope = ClipScope::global;
  if (scope == "layer") clip.scope = ClipScope::layer;
  if (clip.scope == ClipScope::off || equals == std::string::npos) {
    throw InputError(Setting{name, text} + ": not off, global=LIMIT or layer=LIMIT",
                     Setting{name, "global=1.0"} +
                         ": the norm of the whole gradient is at most 1; layer=1.0: that "
                         "of each layer's");
  }
  const char* const begin = text.data() + equals + 1;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(begin, end, clip.limit);
  if (error != std::errc() || stopped != end || !(clip.limit > 0) || !std::isfinite(clip.limit)) {
    throw InputError(Setting{name, text} + ": the limit is not a number above 0",
                     "for example " + Setting{name, scope + "=1.0"} +
                         "; without clipping: " + Setting{name, "off"});
  }
  return clip;
}

OnNonFinite parse_on_nonfinite(const std::string& text) {
  if (text == "stop") return OnNonFinite::stop;
  if (text == "skip") return OnNonFinite::skip;
  throw InputError(Setting{"on_nonfinite", text} + ": neither stop nor skip",
                   "stop: training ends and names the layer; skip: the step's update is left out");
}

}  // namespace spillway
