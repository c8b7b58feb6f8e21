#include "experiments/sweep/sweep_table.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;
using Cells = std::vector<std::pair<std::string, std::string>>;

std::string text_of(const Json& value) {
  if (value.is_null() || (value.is_array() && value.empty())) return "";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void flatten_into(const Json& object, const std::string& prefix, Cells& cells) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      flatten_into(value, prefix + key + ".", cells);
    } else {
      cells.emplace_back(prefix + key, text_of(value));
    }
  }
}

// What every result begins with, and what stands behind the axes even where nothing has it.
constexpr std::array<const char*, 3> first_columns = {"status", "reason", "hint"};

bool is_first(const std::string& key) {
  return std::find(first_columns.begin(), first_columns.end(), key) != first_columns.end();
}

// Takes in the keys of one row: a new one goes behind the one before it in the row.
class ColumnOrder {
 public:
  void merge(const Cells& cells) {
    std::string all;
    for (const auto& [key, _] : cells) all += key + '\n';
    if (!seen_.insert(std::move(all)).second) return;
    std::size_t after = 0;
    for (const auto& [key, _] : cells) {
      if (is_first(key)) continue;
      const auto known = std::find(columns_.begin(), columns_.end(), key);
      if (known == columns_.end()) {
        columns_.insert(columns_.begin() + static_cast<std::ptrdiff_t>(after), key);
        ++after;
      } else {
        after = std::max(after, static_cast<std::size_t>(known - columns_.begin()) + 1);
      }
    }
  }

  // Without the keys that hold an object in other rows: "phases" where there is "phases.forward".
  std::vector<std::string> take() {
    std::vector<std::string> kept;
    for (const std::string& column : columns_) {
      const bool is_object =
          std::any_of(columns_.begin(), columns_.end(),
                      [&](const std::string& other) { return other.rfind(column + ".", 0) == 0; });
      if (!is_object) kept.push_back(column);
    }
    return kept;
  }

 private:
  std::vector<std::string> columns_;
  std::set<std::string> seen_;  // lists of keys that were merged
};

// The cells of one result, as columns.
Cells cells_of(const std::string& json) {
  static const std::set<std::string> of_settings = {"model", "machine", "policy", "framework"};
  static const std::set<std::string> left_out = {"schedule_seconds", "simulate_seconds"};
  Cells cells;
  for (auto& [key, value] : flatten(Json::parse(json))) {
    if (left_out.count(key) > 0) continue;
    cells.emplace_back(of_settings.count(key) > 0 ? "result." + key : key, std::move(value));
  }
  return cells;
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + "\"";
}

}  // namespace

std::size_t SweepTable::find(const std::string& column) const {
  return static_cast<std::size_t>(std::find(columns.begin(), columns.end(), column) -
                                  columns.begin());
}

Cells flatten(const Json& object) {
  Cells cells;
  flatten_into(object, "", cells);
  return cells;
}

SweepTable make_table(const SweepPlan& plan,
                      const std::unordered_map<std::string, std::string>& results) {
  std::vector<std::pair<const SweepPoint*, Cells>> rows;
  ColumnOrder order;
  for (const SweepPoint& point : plan.points) {
    const auto result = results.find(point.identity);
    if (result == results.end()) continue;
    rows.emplace_back(&point, cells_of(result->second));
    order.merge(rows.back().second);
  }
  SweepTable table;
  std::vector<std::string> of_results = order.take();
  std::erase_if(of_results, [&](const std::string& column) {  // `steps` may be an axis
    return std::find(plan.keys.begin(), plan.keys.end(), column) != plan.keys.end();
  });
  table.columns = plan.keys;
  table.columns.insert(table.columns.end(), first_columns.begin(), first_columns.end());
  table.columns.insert(table.columns.end(), of_results.begin(), of_results.end());
  std::unordered_map<std::string, std::size_t> place;
  for (std::size_t c = plan.keys.size(); c < table.columns.size(); ++c) place[table.columns[c]] = c;
  for (auto& [point, cells] : rows) {
    std::vector<std::string> row = point->cells;
    row.resize(table.columns.size());
    for (auto& [key, text] : cells) {
      const auto it = place.find(key);
      if (it != place.end()) row[it->second] = std::move(text);
    }
    table.rows.push_back(std::move(row));
    table.points.push_back(point->identity);
  }
  return table;
}

std::string to_csv(const SweepTable& table) {
  std::string text;
  const auto add = [&](const std::vector<std::string>& cells) {
    for (std::size_t c = 0; c < cells.size(); ++c) {
      if (c > 0) text += ',';
      text += csv_cell(cells[c]);
    }
    text += "\r\n";
  };
  add(table.columns);
  for (const auto& row : table.rows) add(row);
  return text;
}

}  // namespace spillway
