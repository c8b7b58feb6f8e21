#include "experiments/plots/plot_axis.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "policies/machine/drive_sets.hpp"
#include "policies/schedule/task.hpp"

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

std::string readable_value(const std::string& text) {
  const auto value = axis_value(text);
  if (!value || value->unit.empty()) return text;
  const std::size_t end = text.find_first_not_of("0123456789.");
  if (end == std::string::npos || end == 0) return text;
  const std::size_t unit = text.find_first_not_of(' ', end);
  return text.substr(0, end) + " " + text.substr(unit);
}

std::string unit_of_column(const std::string& column) {
  if (column.ends_with("_seconds") || column.starts_with("phases.")) return "s";
  if (column.ends_with("bytes") || column.starts_with("ssd_bytes_")) return "B";
  return "";
}

AxisScale readable_scale(const std::string& unit, double largest) {
  struct Step {
    const char* from;
    double least, divisor;
    const char* to;
  };
  // Of each unit the largest first.
  static constexpr std::array<Step, 13> steps = {{{"B", 1e12, 1e12, "TB"},
                                                  {"B", 1e9, 1e9, "GB"},
                                                  {"B", 1e6, 1e6, "MB"},
                                                  {"B", 1e3, 1e3, "kB"},
                                                  {"GB", 1e4, 1e3, "TB"},
                                                  {"GB", 1, 1, "GB"},
                                                  {"GB", 0, 1e-3, "MB"},
                                                  {"s", 0.5, 1, "s"},
                                                  {"s", 5e-4, 1e-3, "ms"},
                                                  {"s", 0, 1e-6, "us"},
                                                  {"us", 1e4, 1e3, "ms"},
                                                  {"GB/s", 1, 1, "GB/s"},
                                                  {"GB/s", 0, 1e-3, "MB/s"}}};
  for (const Step& step : steps) {
    if (unit == step.from && largest >= step.least) return {step.divisor, step.to};
  }
  return {1, unit};
}

std::string column_label(const std::string& column) {
  static const std::vector<std::pair<std::string, std::string>> labels = {
      {"batch", "batch (sequences per step)"},
      {"micro_batch", "micro-batch (sequences)"},
      {"sequence", "sequence (tokens)"},
      {"ssd.count", "number of SSDs"},
      {"ssd.read", "read bandwidth of the SSDs"},
      {"ssd.write", "write bandwidth of the SSDs"},
      {"host.memory", "host memory"},
      {"gpu.memory", "GPU memory"},
      {"gpu.flops", "GPU compute rate"},
      {"pcie.h2d", "PCIe bandwidth to the GPU"},
      {"pcie.d2h", "PCIe bandwidth from the GPU"},
      {"host.bandwidth", "DRAM bandwidth"},
      {"model.layers", "layers"},
      {"tokens_per_second", "throughput (tokens/s)"},
      {"step_seconds", "step time"},
      {"bound_seconds", "bound of the step time"},
      {"phases.forward", "forward"},
      {"phases.backward", "backward"},
      {"phases.optimizer", "optimizer"},
      {"model_tflops", "model TFLOP/s"},
      {"hardware_tflops", "hardware TFLOP/s"},
      {"efficiency", "bound / step time"},
      {"roofs.io_tokens_per_second", "I/O roof (tokens/s)"},
      {"roofs.compute_tokens_per_second", "compute roof (tokens/s)"},
      {"memory.gpu.peak_bytes", "GPU memory in use, at most"},
      {"memory.host.peak_bytes", "host memory in use, at most"},
      {"memory.ssd.peak_bytes", "space in use on the SSDs, at most"},
      {"ssd_bytes_written_per_step", "written to the SSDs per step"}};
  for (const auto& [name, label] : labels) {
    if (name == column) return label;
  }
  const std::string lanes = "lanes.", busy = ".busy_fraction", bytes = ".bytes";
  if (column.starts_with(lanes)) {
    for (const auto& [end, words] :
         {std::pair{busy, ": busy share of the step"}, std::pair{bytes, ": moved per step"}}) {
      if (!column.ends_with(end)) continue;
      return lane_label(column.substr(lanes.size(), column.size() - lanes.size() - end.size())) +
             words;
    }
  }
  // "number of SSDs of ssd2"
  for (int set = 1; set < most_drive_sets; ++set) {
    const std::string keys = drive_set_key(set, "");
    if (!column.starts_with(keys)) continue;
    const std::string first = drive_set_key(0, column.substr(keys.size()));
    const std::string label = column_label(first);
    return label == first ? column : label + " of " + drive_set_name(set);
  }
  return column;
}

std::string setting_label(const std::string& key) {
  static const std::vector<std::pair<std::string, std::string>> labels = {
      {"micro_batch", "micro-batch"},
      {"gradient_bits", "gradient bits"},
      {"sequences_at_once", "sequences at once"},
      {"gradient_clip", "gradient clipping"},
      {"ssd.count", "SSDs"},
      {"ssd.read", "SSD reads at"},
      {"ssd.write", "SSD writes at"},
      {"host.memory", "host memory"},
      {"gpu.memory", "GPU memory"},
      {"gpu.flops", "GPU"},
      {"pcie.h2d", "PCIe to the GPU"},
      {"pcie.d2h", "PCIe from the GPU"},
      {"host.bandwidth", "DRAM"},
      {"model.layers", "layers"}};
  for (const auto& [name, label] : labels) {
    if (name == key) return label;
  }
  return key;
}

std::string lane_label(const std::string& lane) {
  static const std::vector<std::pair<Lane, std::string>> labels = {
      {Lane::gpu_compute, "GPU compute"},
      {Lane::pcie_h2d, "PCIe to the GPU"},
      {Lane::pcie_d2h, "PCIe from the GPU"},
      {Lane::ssd_read, "SSD reads"},
      {Lane::ssd_write, "SSD writes"},
      {Lane::cpu_optimizer, "CPU optimizer"},
      {Lane::host_sync, "host thread"},
      {Lane::ranks_gather, "ranks: gather"},
      {Lane::ranks_reduce, "ranks: reduce"},
      {Lane::ranks_spread, "ranks: spread"},
      {Lane::stage_in, "stage: inputs come"},
      {Lane::stage_out, "stage: outputs go"},
      {Lane::stage_gradient_in, "stage: gradients come"},
      {Lane::stage_gradient_out, "stage: gradients go"}};
  for (const auto& [of, label] : labels) {
    if (lane == to_string(of)) return label;
  }
  return lane;
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

std::vector<double> linear_ticks(double high) {
  if (!(high > 0)) return {0};
  const double power = std::pow(10.0, std::floor(std::log10(high)));
  double step = power;
  for (const double part : std::array{0.1, 0.2, 0.5, 1.0}) {
    step = part * power;
    if (high / step < 9) break;
  }
  std::vector<double> ticks;
  for (int i = 0; step * i <= high * (1 + 1e-9); ++i) ticks.push_back(step * i);
  return ticks;
}

double AxisRange::place(double value) const {
  return log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
}

std::vector<std::string> AxisRange::commands(const std::string& axis) const {
  std::vector<std::string> lines = {fmt::format("set {}range [{:.9g}:{:.9g}]", axis, low, high)};
  if (log) lines.push_back("set logscale " + axis);
  return lines;
}

std::string tick_number(double value) { return fmt::format("{:.10g}", value); }

}  // namespace spillway
