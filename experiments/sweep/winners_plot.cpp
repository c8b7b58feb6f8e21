#include "experiments/sweep/winners_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "policies/common/registry.hpp"

namespace spillway {

namespace {

std::string name_of(const std::string& policy) { return policy.substr(0, policy.find(':')); }

// Distinct texts in the order in which they come.
std::size_t place_among(std::vector<std::string>& texts, const std::string& text) {
  const auto at = std::find(texts.begin(), texts.end(), text);
  const auto place = static_cast<std::size_t>(at - texts.begin());
  if (at == texts.end()) texts.push_back(text);
  return place + 1;
}

// Policies in order of their colours: those of one rank, each with a colour of its own, then those
// of several.
std::vector<PolicyInfo> in_colours() {
  std::vector<PolicyInfo> all = known_policies();
  std::stable_partition(all.begin(), all.end(),
                        [](const PolicyInfo& info) { return !info.for_several_ranks; });
  return all;
}

// Where nothing fits.
constexpr std::size_t empty_style = 8;

// The same colour for a policy in every picture.
std::size_t style_of(const std::string& policy) {
  const std::vector<PolicyInfo> all = in_colours();
  const auto at = std::find_if(
      all.begin(), all.end(), [&](const PolicyInfo& info) { return info.name == name_of(policy); });
  return static_cast<std::size_t>(at - all.begin()) % (empty_style - 1) + 1;
}

std::string tics(const char* axis, const std::vector<std::string>& texts) {
  std::string list;
  for (std::size_t k = 0; k < texts.size(); ++k) {
    list += fmt::format("{}{} {}", k == 0 ? "" : ", ", tick_text(texts[k]), k + 1);
  }
  return fmt::format("set {}tics ({})", axis, list);
}

struct Cell {
  const Contest* winner = nullptr;  // of the others
  double rival = 0;                 // tokens per second
};

}  // namespace

std::vector<std::string> draw_winners(Picture& picture, const std::vector<Contest>& contests,
                                      const std::string& rival) {
  std::vector<std::string> xs, ys;
  std::map<std::pair<std::size_t, std::size_t>, Cell> cells;
  for (const Contest& one : contests) {
    const std::size_t x = place_among(xs, one.x), y = place_among(ys, one.y);
    Cell& cell = cells[{y, x}];
    if (one.tokens_per_second <= 0) continue;
    if (name_of(one.policy) == rival) {
      cell.rival = std::max(cell.rival, one.tokens_per_second);
    } else if (!cell.winner || one.tokens_per_second > cell.winner->tokens_per_second) {
      cell.winner = &one;
    }
  }
  // In the order of the policies; then cells where the rival alone has a result, then empty ones.
  const std::string nothing_fits = "nothing fits";
  std::map<std::pair<std::size_t, std::string>, std::string> blocks;
  for (const auto& [place, cell] : cells) {
    const std::string winner = cell.winner      ? name_of(cell.winner->policy)
                               : cell.rival > 0 ? "only " + rival
                                                : nothing_fits;
    std::string text = cell.winner ? "" : "–";
    if (cell.winner && cell.rival > 0)
      text = fmt::format("{:.2f}×", cell.rival / cell.winner->tokens_per_second);
    if (!cell.winner && cell.rival > 0) text = "fits";
    const std::size_t style = cell.winner      ? style_of(winner)
                              : cell.rival > 0 ? style_of(rival)
                                               : empty_style;
    blocks[{style, winner}] += fmt::format("{} {} \"{}\"\n", place.second, place.first, text);
  }
  std::vector<std::string> names, styles;
  for (const auto& [of, lines] : blocks) {
    names.push_back(unmarked(of.second));
    styles.push_back(std::to_string(of.first));
    picture.data += lines + "\n\n";
  }
  auto& variables = picture.variables;
  variables.emplace_back("series", std::to_string(names.size()));
  variables.emplace_back("styles",
                         fmt::format("[{}] = [{}]", styles.size(), fmt::join(styles, ", ")));
  variables.emplace_back("series_names", text_array(names));
  variables.emplace_back("x_tics", gnuplot_text(tics("x", xs)));
  variables.emplace_back("y_tics", gnuplot_text(tics("y", ys)));
  variables.emplace_back(
      "ranges", gnuplot_text(fmt::format("set xrange [0.5:{}.5]; set yrange [0.5:{}.5]", xs.size(),
                                         ys.size())));
  return names;
}

}  // namespace spillway
