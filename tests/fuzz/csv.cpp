// Tables of results, as CSV: read, written and read again.
#include "experiments/sweep/csv_reader.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace spillway;

SPILLWAY_FUZZ_TARGET(csv) {
  SweepTable table;
  if (!fuzz::accepted([&] { table = parse_csv(fuzz::text_of(input), "results.csv"); })) return;
  for (const auto& row : table.rows)
    fuzz::require(row.size() == table.columns.size(), "a row has a cell for every column");
  const SweepTable again = parse_csv(to_csv(table), "again.csv");
  fuzz::require(again.columns == table.columns && again.rows == table.rows,
                "written and read again, it is the same table");
}
