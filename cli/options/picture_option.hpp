// Options that name a picture to be drawn.
#pragma once

#include <string>

#include "experiments/plots/gnuplot.hpp"

namespace spillway::cli {

// Before any work is done: throws InputError where `path` is neither .svg nor .png or cannot become
// a picture, MachineError where there is no gnuplot; `option` is named in the message. An empty
// path is fine.
void check_picture_path(const std::string& option, const std::string& path);

// Draws it to a path that was checked, and writes what it is drawn from beside it: step.svg,
// step.gp, step.dat. Nothing where the path is empty.
void write_picture(Picture picture, const std::string& path);

}  // namespace spillway::cli
