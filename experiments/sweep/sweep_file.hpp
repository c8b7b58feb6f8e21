// A sweep file: settings, axes, points to leave out, pictures to draw (docs/sweep.md).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "experiments/sweep/sweep_settings.hpp"

namespace spillway {

// One axis: values of one key, or of several keys that move together.
struct SweepAxis {
  std::vector<std::string> keys;
  std::vector<std::vector<std::string>> values;  // [position][key], as written
  std::vector<std::string> places;               // file:line:column of each position
};

// Points where every key has one of its values are left out.
struct SkipRule {
  std::vector<std::pair<std::string, std::vector<std::string>>> values;
  std::string place;
};

// A picture of the results; experiments/sweep/sweep_plots.hpp draws it.
struct PlotRequest {
  std::string kind;   // "roofline", "lines", "phases", "winners"
  std::string name;   // of its files
  std::string title;  // empty: the name of the sweep
  std::string x, y;   // columns of results.csv
  std::string x_label, y_label;
  bool log_x = false, log_y = false;
  std::vector<std::pair<std::string, std::vector<std::string>>> where;  // rows that are drawn
  std::string place;
};

struct SweepFile {
  std::string name;
  std::string origin;    // where it was read
  bool explain = false;  // the table has critical paths and stalls; takes whole schedules
  SweepSettings fixed;
  std::map<std::string, std::string> fixed_places;  // key -> file:line:column
  std::vector<SweepAxis> axes;                      // the first varies slowest
  std::vector<SkipRule> skips;
  std::vector<PlotRequest> plots;
};

// Throws InputError with file:line:column: syntax, unknown keys (with near names), values that
// their key does not take, a key that is set twice, lists of different lengths in one axis. Without
// an origin the text is of no file, and errors name no place.
SweepFile parse_sweep(const std::string& toml_text, const std::string& origin);
SweepFile load_sweep(const std::string& path);

}  // namespace spillway
