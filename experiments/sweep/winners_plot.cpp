#include "experiments/sweep/winners_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "experiments/plots/plot_axis.hpp"
#include "experiments/plots/plot_style.hpp"
#include "experiments/plots/text_size.hpp"
#include "policies/common/registry.hpp"

namespace spillway {

namespace {

std::string name_of(const std::string& policy) { return policy.substr(0, policy.find(':')); }

// Place of a text among distinct ones in the order in which they come, from 1.
std::size_t place_among(std::vector<std::string>& texts, const std::string& text) {
  const auto at = std::find(texts.begin(), texts.end(), text);
  const auto place = static_cast<std::size_t>(at - texts.begin());
  if (at == texts.end()) texts.push_back(text);
  return place + 1;
}

// Where the legend names a policy: in the order of the registry.
std::size_t rank_of(const std::string& policy) {
  const std::vector<PolicyInfo> all = known_policies();
  const auto at = std::find_if(all.begin(), all.end(),
                               [&](const PolicyInfo& info) { return info.name == policy; });
  return static_cast<std::size_t>(at - all.begin());
}

struct Cell {
  const Contest* winner = nullptr;  // of the others
  const Contest* rival = nullptr;   // the fastest of the rival's, if it has a result
  const Contest* second = nullptr;  // the fastest of all other policies than the winner's
};

// What stands in a cell, whose area has the colour of its name.
struct Tile {
  std::size_t rank = 0;
  std::string name, colour, text;
};

constexpr double share_of_colour = 0.42;  // so that black text can be read on it

// Whether another policy is as fast within what predictions are worth.
bool is_close(const Cell& cell) {
  constexpr double close = 0.98;
  return cell.winner && cell.second &&
         cell.second->tokens_per_second >= close * cell.winner->tokens_per_second;
}

Tile tile_of(const Cell& cell, const std::string& rival) {
  constexpr std::size_t last = 1000;
  const bool extrapolated =
      (cell.winner && cell.winner->extrapolated) || (cell.rival && cell.rival->extrapolated);
  const std::string star = extrapolated ? "*" : "";
  const auto colour = [](const std::string& policy) {
    return tinted(policy_style(policy).colour, share_of_colour);
  };
  if (cell.winner) {
    const std::string name = name_of(cell.winner->policy);
    const std::string text =
        cell.rival
            ? fmt::format("{:.2f}×{}",
                          cell.rival->tokens_per_second / cell.winner->tokens_per_second, star)
            : (is_close(cell) ? "≈" : "") + star;
    return {rank_of(name), name, colour(name), text};
  }
  if (cell.rival) return {last, "only " + rival, colour(rival), "fits" + star};
  return {last + 1, "nothing fits", "#FFFFFF", "–"};
}

std::vector<Tick> ticks_of(const std::vector<std::string>& texts) {
  std::vector<Tick> ticks;
  const AxisRange range{0.5, static_cast<double>(texts.size()) + 0.5, false};
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const double at = static_cast<double>(i + 1);
    ticks.push_back({at, range.place(at), readable_value(texts[i])});
  }
  return ticks;
}

}  // namespace

void draw_winners(Picture& picture, PictureParts parts, const std::vector<Contest>& contests,
                  const std::string& rival) {
  std::vector<std::string> xs, ys;
  std::map<std::pair<std::size_t, std::size_t>, Cell> cells;
  for (const Contest& one : contests) {
    const std::size_t x = place_among(xs, one.x), y = place_among(ys, one.y);
    Cell& cell = cells[{y, x}];
    if (one.tokens_per_second <= 0) continue;
    const bool is_rival = name_of(one.policy) == rival;
    const Contest*& best = is_rival ? cell.rival : cell.winner;
    const bool is_faster = !best || one.tokens_per_second > best->tokens_per_second;
    if (!is_rival && best && name_of(one.policy) != name_of(best->policy)) {
      const Contest* const slower = is_faster ? best : &one;
      if (!cell.second || slower->tokens_per_second > cell.second->tokens_per_second)
        cell.second = slower;
    }
    if (is_faster) best = &one;
  }
  // In the order of the policies; then cells where the rival alone has a result, then empty ones.
  std::map<std::pair<std::size_t, std::string>, std::pair<std::string, std::string>> blocks;
  bool any_extrapolated = false, any_rival = false, any_close = false;
  for (const auto& [place, cell] : cells) {
    const Tile tile = tile_of(cell, rival);
    any_extrapolated = any_extrapolated || tile.text.ends_with("*");
    any_rival = any_rival || cell.rival != nullptr;
    any_close = any_close || tile.text.starts_with("≈");
    auto& [colour, lines] = blocks[{tile.rank, tile.name}];
    colour = tile.colour;
    lines += fmt::format("{} {} \"{}\"\n", place.second, place.first, tile.text);
  }
  std::vector<std::string> colours;
  LegendGroup legend;
  for (const auto& [of, block] : blocks) {
    colours.push_back(block.first);
    legend.entries.push_back({of.second, block.first, 0, 0, true});
    picture.data += block.second + "\n\n";
  }
  constexpr double row_height = 30, least_height = 300;
  parts.legend = {legend};
  parts.plot_height = std::max(least_height, row_height * static_cast<double>(ys.size()));
  parts.note =
      (any_rival ? "Colour: the fastest of all but " + rival + ". Number: the speed of " + rival +
                       " against it."
                 : std::string("Colour: the fastest policy.")) +
      (any_close ? " ≈: another is within 2 %." : "") +
      (any_extrapolated ? " *: extrapolated, beyond what the machine file has measured." : "");
  auto& variables = picture.variables;
  variables.emplace_back("series", std::to_string(colours.size()));
  variables.emplace_back("colours", text_array(colours));
  picture.commands = AxisRange{0.5, static_cast<double>(xs.size()) + 0.5, false}.commands("x");
  for (std::string& command :
       AxisRange{0.5, static_cast<double>(ys.size()) + 0.5, false}.commands("y"))
    picture.commands.push_back(std::move(command));
  const PictureLayout layout(std::move(parts), ticks_of(ys), ticks_of(xs), true);
  // Numbers as large as cells leave room for.
  const double cell_width = layout.plot_width() / static_cast<double>(xs.size());
  const double widest = text_width("00.00×*", 1);
  variables.emplace_back(
      "cell_font",
      gnuplot_text(fmt::format(",{:.1f}", std::min(small_font, (cell_width - 4) / widest))));
  layout.add_to(picture);
}

}  // namespace spillway
