#include "experiments/plan/machine_changes.hpp"

#include <fmt/format.h>

namespace spillway {

namespace {

std::string rate_text(double rate) { return fmt::format("{:g}GB/s", rate / 1e9); }

}  // namespace

std::vector<Setting> drive_settings(const Machine& machine, int set, std::int64_t count,
                                    bool in_proportion) {
  const Machine::Ssd& ssd = machine.drives(set);
  std::vector<Setting> changes = {{drive_set_key(set, "count"), std::to_string(count)}};
  if (!in_proportion) return changes;
  const double scale = static_cast<double>(count) / static_cast<double>(ssd.count) *
                       static_cast<double>(machine.cluster.sharing);
  changes.push_back({drive_set_key(set, "read"), rate_text(ssd.read * scale)});
  changes.push_back({drive_set_key(set, "write"), rate_text(ssd.write * scale)});
  if (ssd.total > 0) changes.push_back({drive_set_key(set, "total"), rate_text(ssd.total * scale)});
  return changes;
}

std::vector<Setting> link_settings(const Machine& machine, double factor) {
  const Machine::Pcie& pcie = machine.pcie;
  std::vector<Setting> changes = {{"pcie.h2d", rate_text(pcie.h2d * factor)},
                                  {"pcie.d2h", rate_text(pcie.d2h * factor)}};
  const auto scale = [&](const char* key, double rate) {
    if (rate > 0) changes.push_back({key, rate_text(rate * factor)});
  };
  scale("pcie.total", pcie.total);
  scale("pcie.pageable_h2d", pcie.pageable_h2d);
  scale("pcie.pageable_d2h", pcie.pageable_d2h);
  scale("cluster.switch_link", machine.cluster.switch_link);
  scale("host.io_bandwidth",
        machine.host.io_bandwidth * static_cast<double>(machine.cluster.sharing));
  return changes;
}

std::string assignment(const Setting& setting) { return setting.name + "=" + setting.value; }

}  // namespace spillway
