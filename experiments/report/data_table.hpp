// Tables of many rows, which page/data_table.js shows a part at a time: sorted, filtered, with the
// columns that are asked for, and as a chart of any two of them.
#pragma once

#include <string>
#include <vector>

#include "experiments/report/html.hpp"
#include "experiments/sweep/sweep_table.hpp"

namespace spillway {

struct DataTable {
  std::string id;  // letters and dashes
  SweepTable table;
  std::vector<std::string>
      shown;  // columns that are shown first; those that are not there are left out
  // What the chart begins with: columns of its axes, and those whose values tell its lines apart.
  std::string x, y;
  std::vector<std::string> by;
};

// Where it is shown.
std::string place_html(const DataTable& table);

// What page/data_table.js shows.
Blob data_tables_blob(const std::vector<DataTable>& tables);

}  // namespace spillway
