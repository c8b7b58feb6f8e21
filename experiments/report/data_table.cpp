#include "experiments/report/data_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/text.hpp"
#include "experiments/plots/plot_axis.hpp"
#include "experiments/plots/plot_style.hpp"

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> there(const SweepTable& table, const std::vector<std::string>& columns) {
  std::vector<std::string> list;
  for (const std::string& column : columns) {
    if (table.find(column) < table.columns.size()) list.push_back(printable(column));
  }
  return list;
}

// The numbers that texts are, and their unit; nothing: some text is none, or has another unit.
// Empty texts have no number.
struct CellNumbers {
  Json values = Json::array();
  std::string unit;
};
std::optional<CellNumbers> numbers_of(const std::vector<std::string>& texts) {
  CellNumbers numbers;
  bool any = false;
  for (const std::string& text : texts) {
    if (text.empty()) {
      numbers.values.push_back(nullptr);
      continue;
    }
    const auto value = axis_value(text);
    if (!value || (any && value->unit != numbers.unit)) return std::nullopt;
    numbers.unit = value->unit;
    numbers.values.push_back(value->number);
    any = true;
  }
  return any ? std::optional(std::move(numbers)) : std::nullopt;
}

// Cells of a column, each text once: many rows have the same.
Json column_json(const SweepTable& table, std::size_t column) {
  std::vector<std::string> texts;
  for (const auto& row : table.rows) texts.push_back(row[column]);
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  Json places = Json::array(), shown = Json::array();
  for (const auto& row : table.rows)
    places.push_back(std::lower_bound(texts.begin(), texts.end(), row[column]) - texts.begin());
  for (const std::string& text : texts) shown.push_back(printable(text));
  const auto numbers = numbers_of(texts);
  const std::string unit = numbers ? numbers->unit : "";
  // The colours that pictures have.
  Json colours = nullptr;
  if (table.columns[column] == "policy") {
    colours = Json::array();
    for (const std::string& text : texts) colours.push_back(policy_style(text).colour);
  }
  // Plain numbers are read from their texts.
  return {{"name", printable(table.columns[column])},
          {"label", printable(column_label(table.columns[column]))},
          {"is_number", numbers.has_value()},
          {"unit", unit},
          {"numbers", unit.empty() ? Json(nullptr) : numbers->values},
          {"texts", shown},
          {"colours", colours},
          {"rows", places}};
}

}  // namespace

std::string place_html(const DataTable& table) {
  return fmt::format("<div class=\"data-table\" id=\"data-{}\"></div>\n", table.id);
}

Blob data_tables_blob(const std::vector<DataTable>& tables) {
  Json list = Json::array();
  for (const DataTable& one : tables) {
    Json columns = Json::array();
    for (std::size_t c = 0; c < one.table.columns.size(); ++c)
      columns.push_back(column_json(one.table, c));
    list.push_back({{"place", "data-" + one.id},
                    {"rows", one.table.rows.size()},
                    {"columns", columns},
                    {"shown", there(one.table, one.shown)},
                    {"x", printable(one.x)},
                    {"y", printable(one.y)},
                    {"by", there(one.table, one.by)}});
  }
  return {"data-tables", list.dump()};
}

}  // namespace spillway
