// Values, units, words and ticks of a picture's axes.
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

// A setting in a sentence: "256 GB" for "256GB". What is no quantity with a unit stays as it is.
std::string readable_value(const std::string& text);

// Unit of the numbers in a column of results: "B" of bytes, "s" of seconds, else "".
std::string unit_of_column(const std::string& column);

// What numbers are divided by so that the largest of them is easy to read, and the unit they have
// then: bytes up to 3e11 are shown in GB.
struct AxisScale {
  double divisor = 1;
  std::string unit;
};
AxisScale readable_scale(const std::string& unit, double largest);

// Words for a column: "number of SSDs" for ssd.count, "SSD reads: busy share of the step" for
// lanes.ssd.read.busy_fraction; the column itself where none are known.
std::string column_label(const std::string& column);

// The same before a value: "micro-batch" for micro_batch.
std::string setting_label(const std::string& key);

// A lane by its words: "PCIe to the GPU" for "pcie.h2d"; the name itself where none are known.
std::string lane_label(const std::string& lane);

// Ticks 1, 2, 5 x 10^k that cover low .. high.
std::vector<double> logarithmic_ticks(double low, double high);

// From 0 to `high` at most, at multiples of 1, 2 or 5 x 10^k: four to ten of them.
std::vector<double> linear_ticks(double high);

// What of its quantity an axis shows.
struct AxisRange {
  double low = 0, high = 1;
  bool log = false;

  double place(double value) const;  // 0: at its beginning, 1: at its end
  // gnuplot's commands, for axis "x" or "y".
  std::vector<std::string> commands(const std::string& axis) const;
};

// As ticks show it: no more digits than it has.
std::string tick_number(double value);

}  // namespace spillway
