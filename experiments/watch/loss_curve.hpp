// RUN/loss.svg: the losses of a run as a picture that any browser shows, light or dark as the
// reader's is: training loss and its average, evaluation loss, and the learning rate below.
#pragma once

#include <string>

#include "experiments/watch/run_history.hpp"

namespace spillway {

// A whole SVG document without anything outside of it. Of many steps, each point of the picture
// stands for several: the loss as the range from lowest to highest, the average as its last.
std::string loss_curve_svg(const RunHistory& history, const std::string& title);

}  // namespace spillway
