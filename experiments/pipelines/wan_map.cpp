#include "experiments/pipelines/wan_map.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "policies/pipeline/orders.hpp"
#include "sim/pipeline.hpp"

namespace spillway {

namespace {

constexpr std::int64_t forward_ns = 1'000'000;

std::int64_t in_ns(double forwards) {
  return std::llround(forwards * static_cast<double>(forward_ns));
}

struct WanSetting {
  double transfer = 0;  // of one pipeline's output over the WAN, alone, in forward passes
  int pipelines = 1;
};

PipelineTimes times_of(const WanMapAxes& axes, int centers, const WanSetting& setting) {
  PipelineTimes times;
  StageTimes stage;
  stage.forward_ns = forward_ns;
  stage.backward_ns = 2 * forward_ns;
  stage.weight_ns = forward_ns;
  stage.recompute_ns = axes.recomputes ? forward_ns : 0;
  times.stages.assign(static_cast<std::size_t>(centers * axes.stages_of_center), stage);
  times.outputs.resize(times.stages.size() - 1);
  times.gradients = times.outputs;
  times.pipelines = setting.pipelines;
  times.links = {{"WAN out", 0, true, 0}, {"WAN back", 0, true, 0}};
  for (int c = 1; c < centers; ++c) {
    const auto at = static_cast<std::size_t>(c * axes.stages_of_center - 1);
    const StageHop hop{0, 1, 1e9 / static_cast<double>(in_ns(setting.transfer)),
                       in_ns(axes.latency)};
    times.outputs[at] = times.gradients[at] = hop;
    times.gradients[at].link = 1;
  }
  return times;
}

struct TimedStep {
  double forwards = 0, busy = 0;
};

std::optional<TimedStep> run(const WanMapAxes& axes, const std::string& text, const WanMapRow& row,
                             const WanSetting& setting) {
  const PipelineOrder order(text);
  const PipelineShape shape = order.shape(row.centers * axes.stages_of_center, row.micro_batches);
  PipelineTimes times = times_of(axes, row.centers, setting);
  times.memory_holds = row.held > 0 ? row.held : row.micro_batches;
  const std::vector<PassOrder> passes = order.passes(shape, times);
  for (const PassOrder& of_pipeline : passes) {
    for (const int held : most_held(of_pipeline)) {
      if (held > times.memory_holds) return std::nullopt;
    }
  }
  const PipelineResult result = simulate_pipelines(shape, times, passes);
  return TimedStep{static_cast<double>(result.step_ns) / static_cast<double>(forward_ns),
                   result.busy};
}

std::optional<double> forwards_of(const std::optional<TimedStep>& timed) {
  return timed ? std::optional(timed->forwards) : std::nullopt;
}

WanMapRow row_at(const WanMapAxes& axes, WanMapRow row) {
  row.cell = std::clamp(static_cast<int>(std::lround(row.ratio)), 1, axes.most_cell);
  // A cell sends with the connections of all its pipelines, one pipeline at a time.
  const std::optional<TimedStep> atlas = run(axes, "atlas", row, {row.ratio / row.cell, row.cell});
  row.atlas = forwards_of(atlas);
  row.atlas_busy = atlas ? atlas->busy : 0;
  for (const char* order : {"gpipe", "1f1b", "varuna"})
    row.baselines.push_back({order,
                             forwards_of(run(axes, order, row, {row.ratio * axes.flows_gain, 1})),
                             forwards_of(run(axes, order, row, {row.ratio, 1}))});
  return row;
}

template <class Better>
std::optional<double> over(const WanMapRow& row, std::optional<double> WanMapRow::Baseline::*time,
                           Better better) {
  std::optional<double> best;
  for (const WanMapRow::Baseline& one : row.baselines) {
    const std::optional<double>& its = one.*time;
    if (its && (!best || better(*its, *best))) best = its;
  }
  if (!best || !row.atlas) return std::nullopt;
  return *best / *row.atlas;
}

}  // namespace

std::optional<double> WanMapRow::over_fastest() const {
  return over(*this, &Baseline::one_flow, std::less<>());
}
std::optional<double> WanMapRow::over_slowest() const {
  return over(*this, &Baseline::one_flow, std::greater<>());
}
std::optional<double> WanMapRow::over_many_flows() const {
  return over(*this, &Baseline::many_flows, std::less<>());
}

std::vector<WanMapRow> wan_map(const WanMapAxes& axes,
                               const std::function<void(std::size_t, std::size_t)>& progress) {
  std::vector<WanMapRow> rows;
  const std::size_t all =
      axes.ratios.size() * axes.micro_batches.size() * axes.centers.size() * axes.held.size();
  for (const int centers : axes.centers) {
    for (const int held : axes.held) {
      for (const int micro_batches : axes.micro_batches) {
        for (const double ratio : axes.ratios) {
          if (progress) progress(rows.size(), all);
          WanMapRow row;
          row.ratio = ratio;
          row.micro_batches = micro_batches;
          row.centers = centers;
          row.held = held;
          rows.push_back(row_at(axes, row));
        }
      }
    }
  }
  return rows;
}

}  // namespace spillway
