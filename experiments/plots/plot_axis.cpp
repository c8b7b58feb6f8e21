#include "experiments/plots/plot_axis.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <sstream>
#include <utility>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "experiments/plots/gnuplot.hpp"

namespace spillway {

namespace {

std::optional<double> plain_number(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

template <class Parse>
std::optional<AxisValue> quantity(const std::string& text, Parse parse, double scale,
                                  const char* unit) {
  try {
    return AxisValue{static_cast<double>(parse(text)) / scale, unit};
  } catch (const InputError&) {
    return std::nullopt;
  }
}

}  // namespace

std::optional<AxisValue> axis_value(const std::string& text) {
  if (const auto number = plain_number(text)) return AxisValue{*number, ""};
  if (auto value = quantity(text, parse_bytes, 1e9, "GB")) return value;
  if (auto value = quantity(text, parse_bytes_per_second, 1e9, "GB/s")) return value;
  if (auto value = quantity(text, parse_flops_per_second, 1e12, "TFLOPS")) return value;
  if (auto value = quantity(text, parse_params_per_second, 1e9, "Gparam/s")) return value;
  return quantity(text, parse_nanoseconds, 1e3, "us");
}

std::string column_label(const std::string& column) {
  static const std::vector<std::pair<std::string, std::string>> labels = {
      {"batch", "batch (sequences per step)"},
      {"micro_batch", "micro-batch (sequences)"},
      {"sequence", "sequence (tokens)"},
      {"ssd.count", "number of SSDs"},
      {"host.memory", "host memory"},
      {"gpu.memory", "GPU memory"},
      {"gpu.flops", "GPU compute rate"},
      {"pcie.h2d", "PCIe bandwidth to the GPU"},
      {"pcie.d2h", "PCIe bandwidth from the GPU"},
      {"host.bandwidth", "DRAM bandwidth"},
      {"model.layers", "layers"},
      {"tokens_per_second", "throughput (tokens/s)"},
      {"step_seconds", "step time (s)"},
      {"bound_seconds", "bound of the step time (s)"},
      {"model_tflops", "model TFLOP/s"},
      {"hardware_tflops", "hardware TFLOP/s"},
      {"efficiency", "bound / step time"},
      {"ssd_bytes_written_per_step", "written to the SSDs per step (bytes)"}};
  for (const auto& [name, label] : labels) {
    if (name == column) return label;
  }
  return column;
}

std::string setting_label(const std::string& key) {
  static const std::vector<std::pair<std::string, std::string>> labels = {
      {"micro_batch", "micro-batch"}, {"gradient_bits", "gradient bits"}, {"ssd.count", "SSDs"},
      {"host.memory", "host memory"}, {"gpu.memory", "GPU memory"},       {"gpu.flops", "GPU"},
      {"model.layers", "layers"}};
  for (const auto& [name, label] : labels) {
    if (name == key) return label;
  }
  return key;
}

std::vector<double> logarithmic_ticks(double low, double high) {
  std::vector<double> ticks;
  const double from = std::floor(std::log10(low)), to = std::ceil(std::log10(high));
  for (double power = from; power <= to; ++power) {
    for (const double digit : std::array{1.0, 2.0, 5.0}) {
      const double tick = digit * std::pow(10.0, power);
      if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push_back(tick);
    }
  }
  return ticks;
}

std::string set_ticks(const std::string& axis, const std::vector<double>& values) {
  std::string list;
  for (const double value : values) {
    list += fmt::format("{}\"{:.10g}\" {:.10g}", list.empty() ? "" : ", ", value, value);
  }
  return fmt::format("set {}tics ({})", axis, list);
}

std::string wrapped(const std::string& text, std::size_t width) {
  std::string out;
  std::size_t column = 0;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (column > 0 && column + 1 + word.size() > width) {
      out += '\n';
      column = 0;
    } else if (column > 0) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out;
}

std::string small_text(const std::string& text, std::size_t width) {
  std::string out = "{/*0.8 ";
  for (const char c : unmarked(wrapped(text, width))) {
    out += c == '\n' ? std::string("}\n{/*0.8 ") : std::string(1, c);
  }
  return out + "}";
}

std::string title_of(const std::string& title, const std::string& settings) {
  constexpr std::size_t title_width = 60, settings_width = 82;
  std::string bold = "{/:Bold ";
  for (const char c : unmarked(wrapped(title, title_width))) {
    bold += c == '\n' ? std::string("}\n{/:Bold ") : std::string(1, c);
  }
  return gnuplot_text(bold + "}\n" + small_text(settings, settings_width));
}

}  // namespace spillway
