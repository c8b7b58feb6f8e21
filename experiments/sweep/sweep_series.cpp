#include "experiments/sweep/sweep_series.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "experiments/plots/plot_axis.hpp"
#include "experiments/plots/plot_style.hpp"

namespace spillway {

namespace {

bool is_name_key(const std::string& key) {
  return key == "policy" || key == "model" || key == "machine";
}

void append(std::string& list, const std::string& text) {
  if (!text.empty()) list += (list.empty() ? "" : ", ") + text;
}

// Place of a text among distinct ones, to which it is added.
std::size_t slot_of(std::vector<std::string>& texts, const std::string& text) {
  const auto at = std::find(texts.begin(), texts.end(), text);
  const auto place = static_cast<std::size_t>(at - texts.begin());
  if (at == texts.end()) texts.push_back(text);
  return place;
}

std::vector<std::string> rests_of(const std::vector<SweepSeries>& series) {
  std::vector<std::string> rests;
  for (const SweepSeries& one : series) slot_of(rests, one.rest);
  return rests;
}

}  // namespace

std::string setting_text(const std::string& key, const std::string& value) {
  return is_name_key(key) ? value : setting_label(key) + " " + readable_value(value);
}

SweepSelection::SweepSelection(const SweepPlan& plan, const SweepTable& table,
                               const PlotRequest& request)
    : plan_(plan), table_(table), request_(request), status_(table.find("status")) {
  for (const SweepRow& row : table_.rows) {
    const bool wanted =
        std::all_of(request_.where.begin(), request_.where.end(), [&](const auto& condition) {
          const std::vector<std::string>& values = condition.second;
          const std::string& value = row[column(condition.first)];
          // Empty: an option of another policy, which says nothing about this row.
          return value.empty() || std::find(values.begin(), values.end(), value) != values.end();
        });
    if (wanted) rows_.push_back(&row);
  }
  const bool any = std::any_of(rows_.begin(), rows_.end(),
                               [&](const SweepRow* row) { return has_result(*row); });
  if (!any) {
    fail("no point that it draws has a result",
         "see the column reason of results.csv; settings that fit, or another `where`, help");
  }
}

void SweepSelection::fail(const std::string& what, const std::string& hint) const {
  throw InputError(request_.place, 0, fmt::format("plot {}: {}", request_.name, what), hint);
}

std::size_t SweepSelection::column(const std::string& name) const {
  const std::size_t found = table_.find(name);
  if (found < table_.columns.size()) return found;
  fail(fmt::format("there is no column {}", name), unknown_name_hint(name, table_.columns));
}

bool SweepSelection::is_extrapolated(const SweepRow& row) const {
  for (const char* name : {"extrapolated", "extrapolates"}) {
    const std::size_t c = table_.find(name);
    if (c < table_.columns.size() && !row[c].empty() && row[c] != "false") return true;
  }
  return false;
}

double SweepSelection::number(const SweepRow& row, std::size_t column) const {
  const auto value = axis_value(row[column]);
  return value ? value->number : std::nan("");
}

// Axes that vary among the rows, but for x and what moves together with it.
std::vector<std::size_t> SweepSelection::grouping() const {
  std::vector<std::size_t> keys;
  std::size_t begin = 0;
  for (const SweepAxis& axis : plan_.file.axes) {
    const bool is_x = std::find(axis.keys.begin(), axis.keys.end(), request_.x) != axis.keys.end();
    for (std::size_t k = 0; k < axis.keys.size() && !is_x; ++k) {
      const bool varies = std::any_of(rows_.begin(), rows_.end(), [&](const SweepRow* row) {
        return (*row)[begin + k] != rows_.front()->at(begin + k);
      });
      if (varies) keys.push_back(begin + k);
    }
    begin += axis.keys.size();
  }
  return keys;
}

// As the sweep sets it, by an axis or for all points.
std::string SweepSelection::policy_of(const SweepRow& row) const {
  const auto fixed = plan_.file.fixed.find("policy");
  return fixed != plan_.file.fixed.end() ? fixed->second : row[table_.find("policy")];
}

std::vector<SweepSeries> SweepSelection::series() const {
  const std::vector<std::size_t> keys = grouping();
  const bool one_policy_each = request_.x != "policy";
  std::vector<SweepSeries> all;
  for (const SweepRow* row : rows_) {
    SweepSeries found;
    for (const std::size_t key : keys) {
      const std::string& text = (*row)[key];
      if (text.empty()) continue;
      const std::string& of = table_.columns[key];
      append(found.name, setting_text(of, text));
      const std::size_t colon = text.find(':');
      if (of != "policy") append(found.rest, setting_text(of, text));
      if (of == "policy" && colon != std::string::npos) append(found.rest, text.substr(colon + 1));
    }
    if (one_policy_each) found.policy = policy_of(*row).substr(0, policy_of(*row).find(':'));
    if (found.name.empty()) found.name = one_policy_each ? policy_of(*row) : "";
    const auto known = std::find_if(all.begin(), all.end(),
                                    [&](const SweepSeries& one) { return one.name == found.name; });
    if (known == all.end()) {
      found.rows.push_back(row);
      all.push_back(std::move(found));
    } else {
      known->rows.push_back(row);
    }
  }
  return all;
}

std::string SweepSelection::settings() const {
  std::string text;
  for (const char* key : {"model", "machine"}) {
    const auto it = plan_.file.fixed.find(key);
    if (it != plan_.file.fixed.end()) append(text, setting_text(key, it->second));
  }
  for (const auto& [key, value] : plan_.file.fixed) {
    if (key != "model" && key != "machine") append(text, setting_text(key, value));
  }
  for (const auto& [key, values] : request_.where) {
    if (values.size() == 1) append(text, setting_text(key, values.front()));
  }
  return text;
}

std::string SweepSelection::missing_note(const std::string& begin) const {
  return note_of(begin + " (see the table): ",
                 [&](const SweepRow& row) { return !has_result(row); });
}

std::string SweepSelection::extrapolated_note(const std::string& mark) const {
  return note_of(mark + ": extrapolated, beyond what the machine file has measured: ",
                 [&](const SweepRow& row) { return has_result(row) && is_extrapolated(row); });
}

// Names the points of the picture for which this holds; empty: it does for none.
std::string SweepSelection::note_of(const std::string& begin,
                                    const std::function<bool(const SweepRow&)>& holds) const {
  std::vector<std::pair<std::string, std::string>> notes;  // where, names
  for (const SweepSeries& one : series()) {
    const std::optional<std::string> where = places_of(one, holds);
    if (!where) continue;
    const auto same = std::find_if(notes.begin(), notes.end(),
                                   [&](const auto& note) { return note.first == *where; });
    if (same == notes.end()) {
      notes.emplace_back(*where, one.name);
    } else {
      same->second += ", " + one.name;
    }
  }
  std::string text;
  for (const auto& [where, names] : notes) text += (text.empty() ? begin : "; ") + names + where;
  return text.empty() ? text : text + ". ";
}

// Where in a series this holds: "" is everywhere, nothing is nowhere.
std::optional<std::string> SweepSelection::places_of(
    const SweepSeries& series, const std::function<bool(const SweepRow&)>& holds) const {
  std::vector<std::string> places;
  std::size_t first = 0, last = 0;
  for (std::size_t i = 0; i < series.rows.size(); ++i) {
    const SweepRow& row = *series.rows[i];
    if (!holds(row)) continue;
    if (places.empty()) first = i;
    last = i;
    places.push_back(request_.x.empty() ? "" : readable_value(row[table_.find(request_.x)]));
  }
  if (places.empty()) return std::nullopt;
  if (request_.x.empty() || places.size() == series.rows.size()) return "";
  const std::string of = is_name_key(request_.x) ? "" : setting_label(request_.x) + " ";
  const bool is_run = places.size() > 2 && last - first + 1 == places.size();
  return (series.name.empty() ? "at " : " at ") + of +
         (is_run ? places.front() + " to " + places.back()
                 : fmt::format("{}", fmt::join(places, ", ")));
}

std::vector<LineStyle> line_styles(const SweepSelection& selection,
                                   const std::vector<SweepSeries>& series) {
  std::vector<std::string> rests;
  std::vector<LineStyle> styles;
  for (const SweepSeries& one : series) {
    const std::size_t dash = slot_of(rests, one.rest);
    if (dash >= static_cast<std::size_t>(dash_count)) {
      selection.fail(
          fmt::format("{} lines of one policy are too many to tell apart", rests_of(series).size()),
          "narrow it down to some values of an axis, e.g. where = { batch = 8 }");
    }
    const PolicyStyle of =
        one.policy.empty() ? PolicyStyle{"#000000", 7} : policy_style(one.policy);
    styles.push_back({of.colour, static_cast<int>(dash) + 1, of.point});
  }
  return styles;
}

std::vector<LegendGroup> legend_of(const std::vector<SweepSeries>& series,
                                   const std::vector<LineStyle>& styles) {
  LegendGroup whole, of_policies, of_rests;
  std::vector<std::string> policies, rests;
  for (std::size_t i = 0; i < series.size(); ++i) {
    const auto& [colour, dash, point] = styles[i];
    whole.entries.push_back({series[i].name, colour, dash, point});
    if (slot_of(policies, series[i].policy) == of_policies.entries.size())
      of_policies.entries.push_back({series[i].policy, colour, 1, point});
    if (slot_of(rests, series[i].rest) == of_rests.entries.size())
      of_rests.entries.push_back(
          {series[i].rest.empty() ? "as it is" : series[i].rest, "#000000", dash, 0});
  }
  const bool is_shorter =
      policies.size() > 1 && rests.size() > 1 && policies.size() + rests.size() < series.size();
  if (is_shorter) return {of_policies, of_rests};
  return {whole};
}

}  // namespace spillway
