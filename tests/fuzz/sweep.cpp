// Sweep files: any text, read as TOML; where it comes to few points, they are planned.
#include "experiments/sweep/sweep_file.hpp"

#include <set>
#include <string>

#include "experiments/sweep/sweep_points.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace spillway;

namespace {

constexpr std::size_t most_points = 32;

// Names of built-in models and machines only: others would be paths of any file.
bool names_files(const SweepFile& file) {
  const auto is_path = [](const std::string& value) {
    return value.find('/') != std::string::npos || value.ends_with(".toml");
  };
  for (const char* key : {"model", "machine"}) {
    const auto fixed = file.fixed.find(key);
    if (fixed != file.fixed.end() && is_path(fixed->second)) return true;
  }
  for (const SweepAxis& axis : file.axes) {
    for (const auto& position : axis.values) {
      for (const std::string& value : position) {
        if (is_path(value)) return true;
      }
    }
  }
  return false;
}

}  // namespace

SPILLWAY_FUZZ_TARGET(sweep) {
  SweepFile file;
  if (!fuzz::accepted([&] { file = parse_sweep(fuzz::text_of(input), "sweep.toml"); })) return;
  std::size_t combinations = 1;
  for (const SweepAxis& axis : file.axes) {
    fuzz::require(!axis.keys.empty() && !axis.values.empty(), "an axis has keys and values");
    fuzz::require(axis.places.size() == axis.values.size(), "every value has a place");
    if (combinations <= most_points) combinations *= axis.values.size();
  }
  if (combinations > most_points || names_files(file)) return;

  SweepPlan plan;
  if (!fuzz::accepted([&] { plan = plan_sweep(file, "program"); })) return;
  fuzz::require(plan.points.size() + plan.left_out + plan.same <= combinations,
                "there are at most as many points as combinations");
  std::set<std::string> identities;
  for (const SweepPoint& point : plan.points) {
    fuzz::require(identities.insert(point.identity).second, "points have identities of their own");
    fuzz::require(point.cells.size() == plan.keys.size(), "a point has a cell for every axis key");
    if (!point.invalid.empty()) continue;
    fuzz::require(fuzz::accepted([&] { point.settings.problem().validate(); }),
                  "the problem of a valid point is valid");
  }
}
