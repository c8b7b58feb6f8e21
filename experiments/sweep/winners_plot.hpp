// A map of winners: over two axes of a sweep, the fastest of the other policies, and by how much
// policy spillway beats it.
#pragma once

#include <string>
#include <vector>

#include "experiments/plots/picture_layout.hpp"

namespace spillway {

// One point of the sweep.
struct Contest {
  std::string x, y, policy;      // as the axes write them
  double tokens_per_second = 0;  // 0: no result
  bool extrapolated = false;
};

// Adds data, commands and variables of winners.gp, with the legend, the axes and a note, to a
// picture that has no more than its title, settings and labels. Axes' values come in the order of
// the contests. `rival`: the policy that is held against the fastest of the others; its contests
// may be missing.
void draw_winners(Picture& picture, PictureParts parts, const std::vector<Contest>& contests,
                  const std::string& rival);

}  // namespace spillway
