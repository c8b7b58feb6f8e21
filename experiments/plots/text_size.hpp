// How wide text is in a picture, so that it is broken and placed before gnuplot draws it.
//
// Widths are those of DejaVu Sans, which `sans-serif` is on Debian and which is about as wide as
// any font that stands for it elsewhere (Verdana is as wide, Arial and Liberation Sans are some
// 12 % narrower): what has room in it has room in the others.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace spillway {

// Pixels that one line of UTF-8 text takes in a font of `font_size` pixels. Text has no markup.
double text_width(std::string_view text, double font_size, bool bold = false);

// Height of a line of text, with the space to the next.
constexpr double line_height(double font_size) { return 1.35 * font_size; }

// The lines of a text, none wider than `width` pixels: broken at spaces, and a word that is wider
// than a line behind a sign that ends a part of it (, / = : + -) or, without one, anywhere. A line
// break in the text stays one. At least one line.
std::vector<std::string> wrapped(const std::string& text, double width, double font_size,
                                 bool bold = false);

}  // namespace spillway
