#include "policies/common/least_on_ssd.hpp"

namespace spillway {

std::vector<PolicyOptions> rising_on_ssd(const std::vector<OpenShare>& open,
                                         const std::function<std::string(double)>& value) {
  PolicyOptions now;
  for (const OpenShare& one : open) now[one.option] = value(0);
  std::vector<PolicyOptions> all = {now};
  for (const OpenShare& one : open) {
    for (int part = 1; part <= one.parts; ++part) {
      now[one.option] = value(static_cast<double>(part) / one.parts);
      all.push_back(now);
    }
  }
  return all;
}

}  // namespace spillway
