// Bars of forward, backward and optimizer time, in groups.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "experiments/plots/picture_layout.hpp"

namespace spillway {

struct PhaseBar {
  std::string group;  // bars of a group follow each other; empty: there are no groups
  std::string name;
  std::optional<std::array<double, 3>> seconds;  // forward, backward, optimizer; nothing: no result
  bool extrapolated = false;
};

// Adds data, commands and variables of phases.gp, with the legend and the axes, to a picture that
// has no more than its title, its settings, a note, and a label of the y axis or an empty one.
void draw_phases(Picture& picture, PictureParts parts, const std::vector<PhaseBar>& bars);

}  // namespace spillway
