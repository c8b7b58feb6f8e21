// Values and ticks of a picture's axes.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace spillway {

// A setting as a number in the unit that people read it in: "256GB" is 256 on an axis in GB.
struct AxisValue {
  double number = 0;
  std::string unit;  // "GB", "GB/s", "TFLOPS", ...; empty: a plain number
};
// Nothing: it is no quantity.
std::optional<AxisValue> axis_value(const std::string& text);

// Words for a column: "SSDs" for ssd.count; the column itself where none are known.
std::string column_label(const std::string& column);

// The same before a value: "micro-batch" for micro_batch.
std::string setting_label(const std::string& key);

// Ticks 1, 2, 5 x 10^k that cover low .. high.
std::vector<double> logarithmic_ticks(double low, double high);

// `set xtics (...)` with these values, as they are.
std::string set_ticks(const std::string& axis, const std::vector<double>& values);

// Lines of at most `width` characters, broken at spaces.
std::string wrapped(const std::string& text, std::size_t width);

// A bold title over smaller lines of settings, as a gnuplot expression.
std::string title_of(const std::string& title, const std::string& settings);

// Smaller text, wrapped at `width` characters.
std::string small_text(const std::string& text, std::size_t width);

}  // namespace spillway
