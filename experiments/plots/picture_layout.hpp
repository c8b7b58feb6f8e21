// Where the parts of a picture stand: from top to bottom its title, the settings, the legend, the
// plot, the labels of its x axis, a note.
//
// Every line of text is measured (text_size.hpp) and broken where the canvas ends, and the canvas
// is as high as its parts take: nothing is cut off, and nothing is written over anything else.
// Lengths are pixels of the SVG; a PNG has two of its own for each.
#pragma once

#include <string>
#include <vector>

#include "experiments/plots/gnuplot.hpp"
#include "experiments/plots/plot_axis.hpp"

namespace spillway {

inline constexpr double canvas_width = 900;

// A sample of what is drawn, and its name.
struct LegendEntry {
  std::string text;
  std::string colour = "#000000";
  int dash = 0;        // of a line, as experiments/plots/common.gp numbers them; 0: no line
  int point = 0;       // type of a point on it; 0: none
  bool box = false;    // a filled box instead
  double width = 2.4;  // of the line
};

// Entries behind a caption, which may be empty, on lines of their own.
struct LegendGroup {
  std::string caption;
  std::vector<LegendEntry> entries;
};

// A number or a name at an axis.
struct Tick {
  double at = 0;     // on the axis
  double place = 0;  // 0: at the axis' beginning, 1: at its end
  std::string text;
};

// At these numbers.
std::vector<Tick> ticks_at(const std::vector<double>& values, const AxisRange& range);
// At round numbers within the range.
std::vector<Tick> round_ticks(const AxisRange& range);

struct PictureParts {
  std::string title, settings, note;
  std::vector<LegendGroup> legend;
  std::string x_label, y_label;
  double plot_height = 360;
  double room_above = 0;  // for labels that stand on top of the plot
};

class PictureLayout {
 public:
  // `y_ticks` stand on the left of the plot, all of them. Those of the x axis are all drawn, too,
  // slanted or upright where there is no room for them side by side (`x_are_names`), or only as
  // many as have room (numbers).
  PictureLayout(PictureParts parts, std::vector<Tick> y_ticks, std::vector<Tick> x_ticks,
                bool x_are_names);

  double plot_width() const { return right_ - left_; }
  double left() const { return left_; }  // of the plot, from the canvas' left edge

  // Adds the size of the canvas, the margins, the ticks and every text to the picture's commands.
  void add_to(Picture& picture) const;

 private:
  void arrange_names();
  void thin_numbers();

  PictureParts parts_;
  std::vector<Tick> y_ticks_, x_ticks_;
  bool x_are_names_;
  double left_ = 0, right_ = 0;
  int x_angle_ = 0;
  double x_labels_height_ = 0;
};

// Lines of text that stand on top of the plot at a place of its x axis, as gnuplot's labels: left,
// center or right of it. They take line_height() pixels each of PictureParts::room_above.
std::vector<std::string> labels_above(const std::vector<std::string>& lines, double at,
                                      double plot_height, double font_size,
                                      const std::string& alignment);

// A text no wider than this: a path without its beginning, any other text without its end.
std::string shortened(const std::string& text, double width, double font_size);

inline constexpr double tick_font = 13, small_font = 12;

}  // namespace spillway
