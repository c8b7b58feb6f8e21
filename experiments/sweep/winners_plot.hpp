// A map of winners: over two axes of a sweep, the fastest of the other policies, and by how much
// policy spillway beats it.
#pragma once

#include <string>
#include <vector>

#include "experiments/plots/gnuplot.hpp"

namespace spillway {

// One point of the sweep.
struct Contest {
  std::string x, y, policy;      // as the axes write them
  double tokens_per_second = 0;  // 0: no result
};

// Adds `data` and the variables that winners.gp takes of them. Axes' values come in the order of
// the contests. `rival`: the policy that is held against the fastest of the others; its contests
// may be missing. Returns the names in the legend.
std::vector<std::string> draw_winners(Picture& picture, const std::vector<Contest>& contests,
                                      const std::string& rival);

}  // namespace spillway
