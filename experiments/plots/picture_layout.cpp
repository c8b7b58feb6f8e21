#include "experiments/plots/picture_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "experiments/plots/text_size.hpp"

namespace spillway {

namespace {

constexpr double margin = 14, title_font = 17, label_font = 14, legend_font = 13;
constexpr double tick_gap = 12;    // between the plot and the names of ticks on its left
constexpr double label_drop = 16;  // between the plot and the names of ticks below it
constexpr double least_apart = 8;  // between neighbours
constexpr double right_margin = 24;
constexpr double longest_tick = 260;
constexpr double slant = 35;  // degrees

// What stands on the canvas outside of the plot, each at a place from the upper left corner.
class Canvas {
 public:
  // One line, whose middle is at `y`.
  void add_text(double x, double y, const std::string& text, double font_size,
                const char* alignment = "left", bool bold = false, bool upright = false) {
    const std::string plain = unmarked(text);
    texts_.push_back(
        {x, y, gnuplot_text(bold ? "{/:Bold " + plain + "}" : plain),
         fmt::format("{}{} font ',{:g}'", alignment, upright ? " rotate by 90" : "", font_size)});
  }
  // Lines below each other from `top` on. Returns where the next thing may begin.
  double add_lines(double x, double top, const std::vector<std::string>& lines, double font_size,
                   const char* alignment = "left", bool bold = false) {
    for (const std::string& line : lines) {
      if (!line.empty()) {
        add_text(x, top + line_height(font_size) / 2, line, font_size, alignment, bold);
      }
      top += line_height(font_size);
    }
    return top;
  }
  void add_line(double x, double y, double length, const LegendEntry& entry) {
    samples_.push_back({x, y, length, &entry});
  }

  std::vector<std::string> commands(double height) const {
    const auto at = [&](double x, double y) {
      return fmt::format("screen {:.5f}, screen {:.5f}", x / canvas_width, 1 - y / height);
    };
    std::vector<std::string> lines;
    // gnuplot's svg terminal draws arrows of one colour and one width as one path, with one dash;
    // so each is wider than the one before it by what nobody sees.
    double wider = 0;
    for (const auto& [x, y, length, entry] : samples_) {
      if (entry->box) {
        lines.push_back(
            fmt::format("set object rectangle from {} to {} fillcolor rgb '{}' "
                        "fillstyle solid 1 border rgb black linewidth 0.6",
                        at(x, y - 6), at(x + length, y + 6), entry->colour));
      }
      if (entry->dash > 0) {
        lines.push_back(fmt::format(
            "set arrow from {} to {} nohead linewidth {:g} dashtype {} linecolor rgb '{}'",
            at(x, y), at(x + length, y), entry->width + wider, entry->dash, entry->colour));
        wider += 0.001;
      }
      if (entry->point > 0) {
        lines.push_back(fmt::format(
            "set label '' at {} point pointtype {} pointsize 0.9 linewidth 2 linecolor rgb '{}'",
            at(x + length / 2, y), entry->point, entry->colour));
      }
    }
    for (const Text& text : texts_) {
      lines.push_back(
          fmt::format("set label {} at {} {}", text.quoted, at(text.x, text.y), text.how));
    }
    return lines;
  }

 private:
  struct Sample {
    double x, y, length;
    const LegendEntry* entry;
  };
  struct Text {
    double x, y;
    std::string quoted, how;  // the text as gnuplot takes it, and how it is written
  };
  std::vector<Sample> samples_;
  std::vector<Text> texts_;
};

double sample_length(const LegendEntry& entry) { return entry.box ? 16 : 36; }

// Entries side by side, and on as many lines as that takes. Returns where the next thing may begin.
double add_legend(Canvas& canvas, double top, const LegendGroup& group) {
  constexpr double gap = 6, between = 22;
  const double line = line_height(legend_font) + 2;
  const double end = canvas_width - margin;
  double x = margin;
  if (!group.caption.empty()) {
    const auto caption = wrapped(group.caption + ":", end - margin, legend_font);
    canvas.add_lines(x, top + 1, caption, legend_font);
    if (caption.size() > 1) {
      top += line * static_cast<double>(caption.size());
    } else {
      x += text_width(caption.front(), legend_font) + between / 2;
    }
  }
  for (const LegendEntry& entry : group.entries) {
    const double before = sample_length(entry) + gap;
    if (x > margin && x + before + text_width(entry.text, legend_font) > end) {
      x = margin;
      top += line;
    }
    const auto lines = wrapped(entry.text, end - x - before, legend_font);
    canvas.add_line(x, top + line / 2, sample_length(entry), entry);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (i > 0) top += line;
      canvas.add_text(x + before, top + line / 2, lines[i], legend_font);
    }
    x = lines.size() > 1 ? end : x + before + text_width(lines.front(), legend_font) + between;
  }
  return top + line;
}

std::string set_ticks(const char* axis, const std::vector<Tick>& ticks, const std::string& how) {
  std::string list;
  for (const Tick& tick : ticks) {
    list += fmt::format("{}{} {:.10g}", list.empty() ? "" : ", ", tick_text(tick.text), tick.at);
  }
  return fmt::format("set {}tics {}({}) font ',{:g}'", axis, how, list, tick_font);
}

double radians(double degrees) { return degrees * std::numbers::pi / 180; }

}  // namespace

std::string shortened(const std::string& text, double width, double font_size) {
  if (text_width(text, font_size) <= width) return text;
  const auto goes_on = [&](std::size_t at) {  // within a character of UTF-8
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0u) == 0x80u;
  };
  // Of a path the end says most, of a name with options the beginning.
  const bool keeps_end = text.find('/') != std::string::npos;
  for (std::size_t cut = 1; cut < text.size(); ++cut) {
    const std::size_t at = keeps_end ? cut : text.size() - cut;
    if (goes_on(at)) continue;
    const std::string rest = keeps_end ? "…" + text.substr(at) : text.substr(0, at) + "…";
    if (text_width(rest, font_size) <= width) return rest;
  }
  return "…";
}

std::vector<Tick> ticks_at(const std::vector<double>& values, const AxisRange& range) {
  std::vector<Tick> ticks;
  for (const double value : values)
    ticks.push_back({value, range.place(value), tick_number(value)});
  return ticks;
}

// On a logarithmic axis that is too short for 1, 2, 5 x 10^k, those of a linear one.
std::vector<Tick> round_ticks(const AxisRange& range) {
  std::vector<double> values =
      range.log ? logarithmic_ticks(range.low, range.high) : linear_ticks(range.high);
  if (values.size() < 2) values = linear_ticks(range.high);
  std::erase_if(values, [&](double value) { return value < range.low; });
  return ticks_at(values, range);
}

std::vector<std::string> labels_above(const std::vector<std::string>& lines, double at,
                                      double plot_height, double font_size,
                                      const std::string& alignment) {
  std::vector<std::string> commands;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const double up = line_height(font_size) * (static_cast<double>(lines.size() - i) - 0.4);
    commands.push_back(fmt::format(
        "set label {} at first {:.9g}, graph {:.5f} {} font ',{:g}' front",
        gnuplot_text(unmarked(lines[i])), at, 1 + up / plot_height, alignment, font_size));
  }
  return commands;
}

PictureLayout::PictureLayout(PictureParts parts, std::vector<Tick> y_ticks,
                             std::vector<Tick> x_ticks, bool x_are_names)
    : parts_(std::move(parts)),
      y_ticks_(std::move(y_ticks)),
      x_ticks_(std::move(x_ticks)),
      x_are_names_(x_are_names),
      right_(canvas_width - right_margin) {
  double widest = 0;
  for (auto* ticks : {&y_ticks_, &x_ticks_}) {
    for (Tick& tick : *ticks) tick.text = shortened(tick.text, longest_tick, tick_font);
  }
  for (const Tick& tick : y_ticks_) widest = std::max(widest, text_width(tick.text, tick_font));
  left_ = margin + widest + tick_gap;
  if (!parts_.y_label.empty()) {
    const auto lines = wrapped(parts_.y_label, parts_.plot_height, label_font);
    left_ += line_height(label_font) * static_cast<double>(lines.size()) + 12;
  }
  x_labels_height_ = line_height(tick_font);
  x_are_names_ ? arrange_names() : thin_numbers();
}

// Side by side; else slanted, as long as lines of text have room beside each other; else upright.
void PictureLayout::arrange_names() {
  double widest = 0, spacing = plot_width();
  bool side_by_side = true;
  for (std::size_t i = 0; i < x_ticks_.size(); ++i) {
    const double width = text_width(x_ticks_[i].text, tick_font);
    const double at = left_ + x_ticks_[i].place * plot_width();
    widest = std::max(widest, width);
    side_by_side = side_by_side && at - width / 2 >= margin && at + width / 2 <= canvas_width - 4;
    if (i == 0) continue;
    const double apart = (x_ticks_[i].place - x_ticks_[i - 1].place) * plot_width();
    const double both = (width + text_width(x_ticks_[i - 1].text, tick_font)) / 2;
    side_by_side = side_by_side && both + least_apart <= apart;
    spacing = std::min(spacing, apart);
  }
  if (side_by_side) return;
  const bool is_slanted = spacing * std::sin(radians(slant)) >= line_height(tick_font);
  x_angle_ = is_slanted ? static_cast<int>(slant) : 90;
  if (!is_slanted) {
    x_labels_height_ = widest + 6;
    return;
  }
  x_labels_height_ = widest * std::sin(radians(slant)) + tick_font * std::cos(radians(slant)) + 6;
  for (const Tick& tick : x_ticks_) {  // none begins left of the canvas
    const double reach = margin + text_width(tick.text, tick_font) * std::cos(radians(slant)) + 6;
    if (tick.place < 1 && left_ + tick.place * plot_width() < reach) {
      left_ = (reach - tick.place * right_) / (1 - tick.place);
    }
  }
}

// The first, the last, and of the others those that do not come too near to one that is kept.
void PictureLayout::thin_numbers() {
  if (x_ticks_.size() < 3) return;
  const auto near = [&](const Tick& a, const Tick& b) {
    const double both = (text_width(a.text, tick_font) + text_width(b.text, tick_font)) / 2;
    return std::abs(b.place - a.place) * plot_width() < both + least_apart;
  };
  std::vector<Tick> kept = {x_ticks_.front()};
  for (std::size_t i = 1; i + 1 < x_ticks_.size(); ++i) {
    if (!near(kept.back(), x_ticks_[i]) && !near(x_ticks_[i], x_ticks_.back()))
      kept.push_back(x_ticks_[i]);
  }
  if (!near(kept.back(), x_ticks_.back())) kept.push_back(x_ticks_.back());
  x_ticks_ = std::move(kept);
}

void PictureLayout::add_to(Picture& picture) const {
  constexpr double whole_line = canvas_width - 2 * margin;
  Canvas canvas;
  double y = margin;
  y = canvas.add_lines(margin, y, wrapped(parts_.title, whole_line, title_font, true), title_font,
                       "left", true);
  y = canvas.add_lines(margin, y + 2, wrapped(parts_.settings, whole_line, small_font), small_font);
  y += 8;
  for (const LegendGroup& group : parts_.legend) {
    if (!group.entries.empty()) y = add_legend(canvas, y, group);
  }
  const double top = y + 12 + parts_.room_above, bottom = top + parts_.plot_height;
  y = bottom + label_drop + x_labels_height_;
  if (!parts_.x_label.empty()) {
    y = canvas.add_lines(left_ + plot_width() / 2, y + 4,
                         wrapped(parts_.x_label, plot_width(), label_font), label_font, "center");
  }
  if (!parts_.note.empty()) {
    y = canvas.add_lines(margin, y + 10, wrapped(parts_.note, whole_line, small_font), small_font);
  }
  if (!parts_.y_label.empty()) {
    double x = margin + line_height(label_font) / 2 - 2;
    for (const std::string& line : wrapped(parts_.y_label, parts_.plot_height, label_font)) {
      canvas.add_text(x, (top + bottom) / 2, line, label_font, "center", false, true);
      x += line_height(label_font);
    }
  }
  const double height = std::ceil(y + margin);
  picture.variables.emplace_back("height", fmt::format("{:g}", height));
  auto& commands = picture.commands;
  commands.push_back(fmt::format("set lmargin at screen {:.5f}", left_ / canvas_width));
  commands.push_back(fmt::format("set rmargin at screen {:.5f}", right_ / canvas_width));
  commands.push_back(fmt::format("set tmargin at screen {:.5f}", 1 - top / height));
  commands.push_back(fmt::format("set bmargin at screen {:.5f}", 1 - bottom / height));
  commands.push_back(set_ticks("y", y_ticks_, ""));
  const std::string how =
      x_angle_ > 0 ? fmt::format("rotate by {} right ", x_angle_) : std::string();
  commands.push_back(set_ticks("x", x_ticks_, how));
  for (std::string& command : canvas.commands(height)) commands.push_back(std::move(command));
}

}  // namespace spillway
