// Whether the texts of a picture can be read: each on the canvas, none over another.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace spillway::test {

// A text of an SVG that gnuplot wrote, and the corners of the box it takes.
//
// The box is as wide as the text is in DejaVu Sans (experiments/plots/text_size.hpp), and reaches
// from 0.74 of the font's size above the base line to 0.2 below it: letters with their stems and
// tails, without the space between lines.
struct TextBox {
  std::string text;
  std::array<std::array<double, 2>, 4> corners{};
};

std::vector<TextBox> text_boxes(const std::string& svg);

// "WORDS leaves the canvas at its left", "A lies over B"; empty: there is nothing to mend.
std::vector<std::string> flaws_of(const std::string& svg);

}  // namespace spillway::test
