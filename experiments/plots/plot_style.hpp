// The look of what pictures show: a policy has one colour and one type of points in every picture.
#pragma once

#include <string>

namespace spillway {

struct PolicyStyle {
  std::string colour;  // "#0072B2"
  int point = 7;       // gnuplot's type of filled points; the hollow one of it is point - 1
};

// The look of a policy, named with or without its options. Policies that are built in have a colour
// each; any other has one of a few more, by its name.
PolicyStyle policy_style(const std::string& policy);

// A colour mixed with white, for areas that text stands on: `share` of it is the colour.
std::string tinted(const std::string& colour, double share);

// Dash types 1 .. dash_count of experiments/plots/common.gp, the first of which is a solid line.
inline constexpr int dash_count = 8;

}  // namespace spillway
