// Charts of a page, drawn by page/charts.js: lines or points over two axes, with values to be read
// off with the mouse.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/report/html.hpp"

namespace spillway {

struct Series {
  enum class Style { line, thin_line, dashed_line, points };
  std::string name;
  Style style = Style::line;
  std::vector<std::pair<double, double>> points;  // those that are not finite are left out
  std::vector<std::string> labels = {};           // of points, as many, or none
};

struct Chart {
  std::string id;  // letters and dashes
  std::string title;
  std::string x_label, y_label;
  std::vector<Series> series;
  bool log_x = false, log_y = false;
  bool from_zero = false;  // the y axis begins at 0
  bool diagonal = false;   // a line of equal values is drawn
};

// Where it is drawn.
std::string place_html(const Chart& chart);

// What page/charts.js draws.
Blob charts_blob(const std::vector<Chart>& charts);

}  // namespace spillway
