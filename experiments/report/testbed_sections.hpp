// What a page says of the folder of a testbed: errors of the predictions, and every row.
#pragma once

#include <vector>

#include "experiments/report/charts.hpp"
#include "experiments/report/data_table.hpp"
#include "experiments/report/facts.hpp"
#include "experiments/testbed/testbed_run.hpp"

namespace spillway {

struct TestbedPages {
  Facts facts;
  std::vector<Section> sections;
  std::vector<Chart> charts;
  std::vector<DataTable> tables;
};

// `table` is what results.csv holds, `rows` the same as read by rows_from_csv.
TestbedPages testbed_pages(const SweepTable& table, const std::vector<TestbedRow>& rows);

}  // namespace spillway
