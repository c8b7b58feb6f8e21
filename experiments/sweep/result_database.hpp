// The table of a sweep as a SQLite database, for questions that a CSV file leaves to its reader.
#pragma once

#include <string>

#include "experiments/sweep/sweep_table.hpp"

namespace spillway {

// The bytes of a database with one table, `results`: a row a point, as in results.csv.
//
// Its primary key is `point`, the hash of everything that a result comes from: model, machine,
// policy, workload, settings, framework, and the program. The other columns are those of the CSV,
// INTEGER or REAL where every cell that is not empty is a number or true (1) or false (0), else
// TEXT. An empty cell is NULL. Equal tables give equal bytes with one version of SQLite.
//
// Throws MachineError where SQLite fails (memory, a table it cannot hold).
std::string to_sqlite(const SweepTable& table);

}  // namespace spillway
