// The table of a sweep: one row a point, results.csv.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "experiments/sweep/sweep_points.hpp"

namespace spillway {

struct SweepTable {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // cells by column; "": has no value
  std::vector<std::string> points;             // by row: SweepPoint::identity

  // Index of a column; columns.size(): there is none.
  std::size_t find(const std::string& column) const;
};

// A JSON object as (dotted key, text), in its order: {"a": {"b": 1}} -> ("a.b", "1"). An array is
// one cell, its JSON; null and an array of nothing are empty ones.
std::vector<std::pair<std::string, std::string>> flatten(const nlohmann::ordered_json& object);

// One row for each point that has a result: the axes, status, reason, hint, then every key of the
// results. These are the union over all rows in the order of the results themselves: a key that
// some rows lack stands after the key that precedes it where it occurs. `model`, `machine` and
// `policy` of a result are `result.model` and so on, since settings have these names too. Times the
// evaluation itself took are left out: they differ from run to run.
SweepTable make_table(const SweepPlan& plan,
                      const std::unordered_map<std::string, std::string>& results);

// RFC 4180: a header, lines ended by CR LF, quotes where needed.
std::string to_csv(const SweepTable& table);

}  // namespace spillway
