// Throughput over each resource as a picture: where more of it stops paying.
#pragma once

#include "experiments/plots/gnuplot.hpp"
#include "experiments/questions/knee.hpp"

namespace spillway {

// Throughput over what the machine has of each resource, as multiples of what it has now: a line
// for each resource of which two values fit, with a square at its knee. At least one resource has a
// curve.
Picture knee_picture(const Knees& knees, const std::string& title, const std::string& settings,
                     const std::string& name);

// Whether there is anything to draw.
bool has_curves(const Knees& knees);

// "number of SSDs", "host memory"
std::string resource_label(const std::string& resource);

}  // namespace spillway
