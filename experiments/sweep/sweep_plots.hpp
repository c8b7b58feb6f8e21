// The pictures of a sweep: which rows and columns of its table go where.
//
// Rows are drawn as one series for each combination of the axes other than x. Points without a
// result (they do not fit, or are invalid) are gaps, named in a note under the picture.
#pragma once

#include <string>
#include <vector>

#include "experiments/plots/gnuplot.hpp"
#include "experiments/sweep/sweep_table.hpp"

namespace spillway {

// Draws every picture with stand-ins for the results. Throws InputError, before anything is run: a
// column x, or a key under `where`, that is no axis, values under `where` that no valid point has,
// a column that no result has or that holds no numbers, too many series or labels.
void check_plots(const SweepPlan& plan);

// Throws InputError: a column that is not in the table or holds no numbers, no row with a result.
Picture plot_of(const SweepPlan& plan, const SweepTable& table, const PlotRequest& request);

}  // namespace spillway
