// What a page says of the folder of a sweep: its table, its pictures, its fastest points.
#pragma once

#include <string>
#include <vector>

#include "base/directory.hpp"
#include "experiments/report/data_table.hpp"
#include "experiments/report/facts.hpp"

namespace spillway {

struct SweepPages {
  std::string subtitle;
  Facts facts;
  std::vector<Section> sections;
  std::vector<DataTable> tables;
};

// `table` is what results.csv holds; pictures are those in the folder `plots` of `folder`, of which
// each is taken as an image: whatever is in the file, it runs no script and loads nothing. Throws
// InputError where the table is none of a sweep.
SweepPages sweep_pages(const Directory& folder, const SweepTable& table);

}  // namespace spillway
