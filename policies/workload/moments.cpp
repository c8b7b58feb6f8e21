#include "policies/workload/moments.hpp"

#include "base/errors.hpp"

namespace spillway {

const char* to_string(MomentWidth moments) {
  return moments == MomentWidth::bf16 ? "bf16" : "fp32";
}

MomentWidth parse_moments(const std::string& text) {
  if (text == "fp32") return MomentWidth::fp32;
  if (text == "bf16") return MomentWidth::bf16;
  throw InputError(Setting{"moments", text} + ": neither fp32 nor bf16",
                   "fp32: 12 bytes of optimizer state a parameter; bf16: 8, the moments rounded "
                   "stochastically");
}

}  // namespace spillway
