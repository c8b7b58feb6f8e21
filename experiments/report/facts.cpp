#include "experiments/report/facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace spillway {

namespace {

// 1234567 -> 1,234,567
std::string grouped(std::string digits) {
  std::size_t at = std::min(digits.find('.'), digits.size());
  const std::size_t first = !digits.empty() && digits.front() == '-' ? 1 : 0;
  while (at > first + 3) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

}  // namespace

std::string facts_html(const Facts& facts) {
  std::string text = "<dl class=\"facts\">\n";
  for (const Fact& fact : facts) {
    text += fmt::format("<div id=\"fact-{}\"><dt>{}</dt><dd>{}", escaped(fact.key),
                        escaped(fact.label), escaped(fact.text));
    if (!fact.detail.empty())
      text += fmt::format("<span class=\"detail\">{}</span>", escaped(fact.detail));
    text += "</dd></div>\n";
  }
  return text + "</dl>\n";
}

PageTable facts_table(const std::vector<std::string>& names, const std::vector<Facts>& facts) {
  PageTable table;
  table.columns.push_back({"", false});
  for (const std::string& name : names) table.columns.push_back({name, true});
  std::vector<const Fact*> rows;
  const auto find = [](const auto& list, const std::string& key) {
    return std::find_if(list.begin(), list.end(), [&](const auto& one) { return one.key == key; });
  };
  for (const Facts& list : facts) {
    for (const Fact& fact : list) {
      const bool is_known = std::any_of(rows.begin(), rows.end(),
                                        [&](const Fact* known) { return known->key == fact.key; });
      if (!is_known) rows.push_back(&fact);
    }
  }
  for (const Fact* row : rows) {
    std::vector<Cell> cells = {{row->label}};
    for (const Facts& list : facts) {
      const auto fact = find(list, row->key);
      Cell cell;
      if (fact != list.end()) {
        cell.text = fact->text;
        if (fact->value.is_number()) cell.value = fact->value.get<double>();
      }
      cells.push_back(std::move(cell));
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

nlohmann::ordered_json to_json(const Facts& facts) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const Fact& fact : facts) json[fact.key] = fact.value;
  return json;
}

std::string percentage_text(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string signed_percent_text(double share) { return fmt::format("{:+.1f} %", 100 * share); }

std::string count_text(std::size_t count, const std::string& thing) {
  return grouped(std::to_string(count)) + " " + thing + (count == 1 ? "" : "s");
}

std::string number_text(double number, int digits) {
  if (!std::isfinite(number)) return fmt::format("{}", number);
  if (number == std::trunc(number) && std::abs(number) < 1e15)
    return grouped(fmt::format("{:.0f}", number));
  const int before = static_cast<int>(std::floor(std::log10(std::abs(number)))) + 1;
  return grouped(fmt::format("{:.{}f}", number, std::clamp(digits - before, 0, 12)));
}

}  // namespace spillway
