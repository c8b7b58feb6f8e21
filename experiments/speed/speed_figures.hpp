// What Spillway reaches on this machine beside what the machine allows: each figure stands next to
// a roofline measured in the same run, and is held to a share of it.
//
// Figure and roofline are measured in turn, round by round, because a drive or a memory bus shared
// with other work changes from second to second: what counts is the ratio within a round, and the
// median of it over the rounds.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "exec/io/io_choice.hpp"
#include "experiments/calibrate/statistics.hpp"

namespace spillway {

struct SpeedFigure {
  std::string name;            // "ssd/read"
  std::string what;            // what was measured, in one line
  std::string unit;            // "GB/s"
  double value = 0;            // median over the rounds
  std::string roofline_what;   // what it is held against; empty: `value` against `target` itself
  double roofline = 0;         // median over the rounds, same unit; 0: not known
  std::vector<double> ratios;  // value / roofline of each round
  double target = 0;           // least ratio to reach; most value where there is no roofline
  // Of a matrix product: the fastest of cuBLASLt's first eight bare algorithms, where the roofline
  // is the first. Same unit; 0: not measured.
  double best_of_eight = 0;
  double best_of_eight_ratio = 0;  // value / that, median over the rounds
  std::string best_of_eight_what;
  std::string note;  // what the reader should know; may be empty

  double ratio() const;  // median of ratios; 0: not known
  // Whether the target is reached; true as well where there is nothing to hold the figure to.
  bool met() const;
};

struct FigureOptions {
  std::vector<std::filesystem::path> ssd = {"."};  // directories to measure
  IoChoice io = usual_io();                        // how they are read and written
  int rounds = 7;
  double seconds = 0.5;    // of each sample, about
  std::optional<int> gpu;  // which CUDA GPU; the first that can be used
  bool quick = false;      // of a GPU: fewer shapes
};

// One test makes several figures, because they need the same preparation.
struct FigureTest {
  std::string name;  // "ssd"
  std::string what;  // one line
  std::function<std::vector<SpeedFigure>(const FigureOptions&)> run;
  bool on_request = false;  // not run unless it, or its group, is named
};

// All of them, in the order of a report.
std::vector<FigureTest> figure_tests();

// One file each. They throw InputError for directories that are not there, MachineError where the
// machine cannot do what is measured.
std::vector<SpeedFigure> measure_ssd_lanes(const FigureOptions& options);
std::vector<SpeedFigure> measure_adam(const FigureOptions& options);
std::vector<SpeedFigure> measure_executor(const FigureOptions& options);
std::vector<SpeedFigure> measure_training(const FigureOptions& options);
std::vector<SpeedFigure> measure_pricing(const FigureOptions& options);
// Of schedules of about so many tasks each.
std::vector<SpeedFigure> measure_building(const FigureOptions& options,
                                          const std::vector<double>& tasks);

// The value below which a share `quantile` (0 to 1) of the values lies, the nearest one.
double quantile_of(std::vector<double> values, double quantile);

}  // namespace spillway
