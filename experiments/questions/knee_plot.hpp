// Throughput over each resource as a picture: where more of it stops paying.
#pragma once

#include "experiments/plots/gnuplot.hpp"
#include "experiments/questions/knee.hpp"

namespace spillway {

// A panel for each resource of which two values fit: the curve, a dashed line at its knee, a circle
// around the machine as it is. At least one
// resource has a curve.
Picture knee_picture(const Knees& knees, const std::string& title, const std::string& settings,
                     const std::string& name);

// Whether there is anything to draw.
bool has_curves(const Knees& knees);

// "number of SSDs", "host memory"
std::string resource_label(const std::string& resource);

}  // namespace spillway
