#include "experiments/report/sweep_sections.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "experiments/plots/plot_axis.hpp"
#include "experiments/report/packed.hpp"

namespace spillway {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t most_picture_bytes = std::uint64_t{4} << 20;
constexpr std::size_t most_pictures = 40;
constexpr std::size_t most_fastest = 15, most_reasons = 20;

std::optional<double> number_of(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// A sweep's table, by the names of its columns.
class Results {
 public:
  explicit Results(const SweepTable& table) : table_(table), status_(table.find("status")) {}

  const SweepTable& table() const { return table_; }
  std::vector<std::string> axes() const {
    return {table_.columns.begin(), table_.columns.begin() + static_cast<std::ptrdiff_t>(status_)};
  }
  const std::string& text(const std::vector<std::string>& row, const std::string& column) const {
    static const std::string nothing;
    const std::size_t at = table_.find(column);
    return at < row.size() ? row[at] : nothing;
  }
  std::optional<double> number(const std::vector<std::string>& row,
                               const std::string& column) const {
    return number_of(text(row, column));
  }
  std::size_t count(const std::string& status) const {
    return static_cast<std::size_t>(
        std::count_if(table_.rows.begin(), table_.rows.end(),
                      [&](const auto& row) { return row[status_] == status; }));
  }
  // Those with a result, the most tokens/s first.
  std::vector<const std::vector<std::string>*> fastest() const {
    std::vector<std::pair<double, const std::vector<std::string>*>> found;
    for (const auto& row : table_.rows) {
      if (const auto speed = number(row, "tokens_per_second")) found.emplace_back(*speed, &row);
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<const std::vector<std::string>*> rows;
    for (const auto& [speed, row] : found) rows.push_back(row);
    return rows;
  }
  // How many of these rows, the fastest first, are alike from `first` on: the same plan, as fast.
  std::size_t alike(const std::vector<const std::vector<std::string>*>& rows,
                    std::size_t first) const {
    constexpr double same = 1 - 1e-6;
    const auto speed = [&](std::size_t i) { return *number(*rows[i], "tokens_per_second"); };
    std::size_t end = first + 1;
    while (end < rows.size() && speed(end) >= same * speed(first) &&
           text(*rows[end], "result.policy") == text(*rows[first], "result.policy") &&
           text(*rows[end], "workload.micro_batch") == text(*rows[first], "workload.micro_batch"))
      ++end;
    return end - first;
  }
  // "policy fuyou, batch 32"
  std::string place(const std::vector<std::string>& row) const {
    std::string text;
    for (std::size_t axis = 0; axis < status_; ++axis) {
      if (row[axis].empty()) continue;
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", setting_label(table_.columns[axis]),
                          row[axis]);
    }
    return text;
  }

 private:
  const SweepTable& table_;
  std::size_t status_;
};

Facts facts_of(const Results& results) {
  Facts facts;
  const auto add_count = [&](const char* key, const char* label, std::size_t count) {
    facts.push_back({key, label, number_text(static_cast<double>(count), 9), count});
  };
  add_count("points", "points", results.table().rows.size());
  add_count("ok", "with a result", results.count("ok"));
  add_count("does_not_fit", "do not fit", results.count("does not fit"));
  add_count("invalid", "invalid", results.count("invalid"));
  const auto fastest = results.fastest();
  if (fastest.empty()) return facts;
  const double speed = *results.number(*fastest.front(), "tokens_per_second");
  facts.push_back({"fastest_tokens_per_second", "fastest, tokens/s", number_text(speed), speed,
                   results.place(*fastest.front())});
  return facts;
}

// "ssd.count=4, host.memory=128GB": keys set by hand that all points have which were looked at.
std::string shared_overrides(const Results& results) {
  std::optional<std::vector<std::string>> shared;
  for (const std::vector<std::string>& row : results.table().rows) {
    const auto json = nlohmann::json::parse(results.text(row, "overrides"), nullptr, false);
    if (!json.is_array()) continue;  // invalid, or an older table
    std::set<std::string> theirs;
    for (const auto& one : json)
      if (one.is_string()) theirs.insert(one.get<std::string>());
    if (!shared) shared.emplace(theirs.begin(), theirs.end());
    std::erase_if(*shared, [&](const std::string& one) { return !theirs.contains(one); });
  }
  return shared ? fmt::format("{}", fmt::join(*shared, ", ")) : "";
}

// "10,752 points of gpt-65b on rtx4090-12ssd, batch 128, sequence 1024": what all results share.
std::string subtitle_of(const Results& results) {
  std::string text = count_text(results.table().rows.size(), "point");
  const auto shared = results.fastest();
  const auto add = [&](const char* before, const char* column) {
    if (shared.empty()) return;
    const std::string& value = results.text(*shared.front(), column);
    const bool is_shared = std::all_of(shared.begin(), shared.end(), [&](const auto* row) {
      return results.text(*row, column) == value;
    });
    if (is_shared && !value.empty()) text += before + value;
  };
  add(" of ", "result.model");
  add(" on ", "result.machine");
  add(", batch ", "workload.batch");
  add(", micro-batch ", "workload.micro_batch");
  add(", sequence ", "workload.sequence");
  if (const std::string by_hand = shared_overrides(results); !by_hand.empty())
    text += "; set by hand: " + by_hand;
  return text;
}

std::string fastest_html(const Results& results) {
  const auto fastest = results.fastest();
  if (fastest.empty()) return notes_html({"No point has a result."});
  PageTable table;
  for (const std::string& axis : results.axes()) table.columns.push_back({column_label(axis)});
  table.columns.push_back({"micro-batch", true});
  table.columns.push_back({"step", true});
  table.columns.push_back({"tokens/s", true});
  table.columns.push_back({"model TFLOPS", true});
  table.columns.push_back({"bound by"});
  table.columns.push_back({"of the bound", true});
  table.columns.push_back({"as run"});
  table.columns.push_back({"others alike", true, "points with the same plan, as fast to 1e-6"});
  const double best = *results.number(*fastest.front(), "tokens_per_second");
  std::size_t listed = 0;
  while (listed < fastest.size() && table.rows.size() < most_fastest) {
    const std::vector<std::string>& row = *fastest[listed];
    const std::size_t alike = results.alike(fastest, listed);
    listed += alike;
    std::vector<Cell> cells;
    for (std::size_t axis = 0; axis < results.axes().size(); ++axis) {
      const auto value = axis_value(row[axis]);
      cells.push_back({row[axis], value ? std::optional(value->number) : std::nullopt});
    }
    const auto cell = [&](const char* column, const auto& words) {
      const auto number = results.number(row, column);
      return number ? number_cell(*number, words(*number)) : Cell{};
    };
    cells.push_back(cell("workload.micro_batch", [](double n) { return number_text(n, 9); }));
    cells.push_back(cell("step_seconds", format_seconds));
    Cell speed = cell("tokens_per_second", [](double n) { return number_text(n); });
    if (best > 0) speed.share = *speed.value / best;
    cells.push_back(std::move(speed));
    cells.push_back(cell("model_tflops", [](double n) { return number_text(n); }));
    cells.push_back({results.text(row, "bound_by")});
    cells.push_back(cell("efficiency", percentage_text));
    cells.push_back({results.text(row, "result.policy")});
    cells.push_back(alike > 1
                        ? number_cell(static_cast<double>(alike - 1), std::to_string(alike - 1))
                        : Cell{});
    table.rows.push_back(std::move(cells));
  }
  std::string text = table_html(table);
  if (fastest.size() > listed)
    text += fmt::format("<p class=\"note\">{} of {}; the table of all points is below.</p>\n",
                        listed, escaped(count_text(fastest.size(), "result")));
  return text;
}

// Points without a result for one reason, whatever its numbers are.
struct Reason {
  std::string status, first;  // of the first such point
  std::size_t points = 0;
  bool differs = false;  // the numbers do
};

// "gpu needs 48.81 GB" as "gpu needs # B".
std::string without_numbers(const std::string& text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!is_digit(text[i])) {
      out += text[i];
      continue;
    }
    while (i + 1 < text.size() && (is_digit(text[i + 1]) || text[i + 1] == '.')) ++i;
    out += '#';
    const std::string_view unit = std::string_view(text).substr(i + 1, 3);
    if (unit == " kB" || unit == " MB" || unit == " GB" || unit == " TB") {
      out += " B";
      i += unit.size();
    }
  }
  return out;
}

// Why points have no result, the most frequent reasons first.
std::string reasons_html(const Results& results) {
  std::map<std::pair<std::string, std::string>, Reason> reasons;
  for (const auto& row : results.table().rows) {
    const std::string& status = results.text(row, "status");
    if (status == "ok") continue;
    const std::string& text = results.text(row, "reason");
    Reason& reason = reasons[{status, without_numbers(text)}];
    if (reason.points++ == 0) reason = {status, text, 1};
    reason.differs |= reason.first != text;
  }
  if (reasons.empty()) return "";
  std::vector<Reason> sorted;
  for (auto& [key, reason] : reasons) sorted.push_back(std::move(reason));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Reason& a, const Reason& b) { return a.points > b.points; });
  PageTable table;
  table.columns = {{"points", true}, {"status"}, {"reason"}};
  for (std::size_t i = 0; i < std::min(sorted.size(), most_reasons); ++i)
    table.rows.push_back(
        {number_cell(static_cast<double>(sorted[i].points), std::to_string(sorted[i].points)),
         {sorted[i].status},
         {(sorted[i].differs ? "for example: " : "") + sorted[i].first}});
  std::string text = table_html(table);
  if (sorted.size() > most_reasons)
    text += notes_html({fmt::format("and {} more reasons", sorted.size() - most_reasons)});
  return text;
}

// Columns in which all rows have the same, as a table of their own; they are left out of the large
// one.
std::string shared_html(const SweepTable& table, std::size_t first, SweepTable& rest) {
  PageTable shared;
  shared.columns = {{"the same in all points"}, {"value"}};
  std::vector<std::size_t> kept;
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    const bool same = c >= first && table.rows.size() > 1 &&
                      std::all_of(table.rows.begin(), table.rows.end(),
                                  [&](const auto& row) { return row[c] == table.rows[0][c]; });
    if (!same) {
      kept.push_back(c);
    } else if (!table.rows[0][c].empty()) {
      shared.rows.push_back({{table.columns[c]}, {table.rows[0][c]}});
    }
  }
  for (const std::size_t c : kept) rest.columns.push_back(table.columns[c]);
  for (const auto& row : table.rows) {
    std::vector<std::string>& cells = rest.rows.emplace_back();
    for (const std::size_t c : kept) cells.push_back(row[c]);
  }
  if (shared.rows.empty()) return "";
  return fmt::format("<details><summary>{} with one value in all points</summary>\n{}</details>\n",
                     escaped(count_text(shared.rows.size(), "column")), table_html(shared));
}

// Names of the pictures of a sweep: SVG where there is one, else PNG.
std::map<std::string, std::string> pictures_in(const fs::path& folder) {
  std::map<std::string, std::string> pictures;  // name -> file
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const fs::path file = entry->path().filename();
    const std::string extension = file.extension().string();
    if (extension == ".svg" || (extension == ".png" && !pictures.contains(file.stem().string())))
      pictures[file.stem().string()] = file.string();
  }
  return pictures;
}

std::string pictures_html(const Directory& folder) {
  const auto plots = folder.status("plots");
  if (!plots || !S_ISDIR(plots->st_mode)) return "";
  const Directory inner(folder, "plots");
  std::string text;
  std::size_t count = 0;
  std::vector<std::string> notes;
  for (const auto& [name, file] : pictures_in(inner.path())) {
    if (++count > most_pictures) {
      notes.push_back(fmt::format("Pictures after the first {} are left out.", most_pictures));
      break;
    }
    try {
      const auto bytes = inner.read(file, most_picture_bytes);
      if (!bytes) continue;
      text += fmt::format(
          "<figure class=\"picture\"><img alt=\"{0}\" src=\"data:image/{1};base64,{2}\">"
          "<figcaption>{0}</figcaption></figure>\n",
          escaped(name), file.ends_with(".svg") ? "svg+xml" : "png", base64(*bytes));
    } catch (const InputError& error) {
      notes.push_back("A picture is left out: " + std::string(error.what()));
    }
  }
  if (text.empty() && notes.empty()) return "";
  return "<div class=\"pictures\">\n" + text + "</div>\n" + notes_html(notes);
}

}  // namespace

SweepPages sweep_pages(const Directory& folder, const SweepTable& table) {
  const Results results(table);
  SweepPages pages;
  pages.subtitle = subtitle_of(results);
  pages.facts = facts_of(results);
  const std::vector<std::string> axes = results.axes();
  pages.sections.push_back({"fastest", "Fastest points", fastest_html(results)});
  if (std::string pictures = pictures_html(folder); !pictures.empty())
    pages.sections.push_back({"pictures", "Pictures", std::move(pictures)});
  DataTable all = {"points", {}, {}, "", "tokens_per_second", {}};
  const std::string shared = shared_html(table, axes.size(), all.table);
  all.shown = axes;
  for (const char* column :
       {"status", "workload.micro_batch", "step_seconds", "tokens_per_second", "model_tflops",
        "bound_by", "efficiency", "memory.gpu.peak_bytes", "memory.host.peak_bytes",
        "memory.ssd.peak_bytes", "ssd_bytes_written_per_step", "extrapolated", "reason"})
    all.shown.emplace_back(column);
  // Of the axes that are quantities the one with the most values goes along x; the others tell the
  // lines apart.
  std::size_t most = 0;
  for (const std::string& axis : axes) {
    const std::size_t c = table.find(axis);
    std::set<std::string> values;
    for (const auto& row : table.rows) values.insert(row[c]);
    const bool is_quantity = std::all_of(values.begin(), values.end(), [](const std::string& text) {
      return axis_value(text).has_value();
    });
    if (!is_quantity || values.size() <= most) continue;
    all.x = axis;
    most = values.size();
  }
  for (const std::string& axis : axes) {
    if (axis != all.x) all.by.push_back(axis);
  }
  pages.sections.push_back({"points", "All points", place_html(all) + shared});
  if (std::string reasons = reasons_html(results); !reasons.empty())
    pages.sections.push_back({"reasons", "Points without a result", std::move(reasons)});
  pages.tables.push_back(std::move(all));
  return pages;
}

}  // namespace spillway
