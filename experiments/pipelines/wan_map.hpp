// Where ATLAS gains, and where not: its order on many TCP flows, with pipelines that take turns on
// the WAN, beside GPipe, Megatron's 1F1B and Varuna on one TCP flow each, over
//
//   C   the time of a transfer over the WAN on many flows, in forward passes of a stage
//   M   micro-batches of a pipeline
//   K   data centres, each with as many stages
//   memory: micro-batches whose activations a GPU holds
//
// In units of a forward pass, so that no model and no machine is in it: backward passes take two of
// them. What nobody has published (stages of a data centre, latency, how much slower one flow is)
// is given with each map.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace spillway {

struct WanMapAxes {
  std::vector<double> ratios = {0.25, 0.5, 1, 2, 4, 8, 16};
  std::vector<int> micro_batches = {4, 16, 64};
  std::vector<int> centers = {2, 3};
  std::vector<int> held = {0};  // 0: all micro-batches
  int stages_of_center = 4;
  // How often the rate of one flow goes into that of many.
  double flows_gain = 17;
  double latency = 0.1;  // one way, in forward passes
  int most_cell = 8;     // pipelines that take turns, at most; as near to C as that allows
  bool recomputes = false;
};

struct WanMapRow {
  double ratio = 0;
  int micro_batches = 0, centers = 0, held = 0, cell = 1;
  // In forward passes; nothing: the order holds more activations than memory does.
  std::optional<double> atlas;
  struct Baseline {
    std::string order;
    std::optional<double> one_flow, many_flows;
  };
  std::vector<Baseline> baselines;
  double atlas_busy = 0;  // share of the step in which GPUs compute

  // The time of the fastest baseline on one flow, of the slowest one, and of the fastest one on
  // many flows, over ATLAS'. Nothing where neither fits.
  std::optional<double> over_fastest() const, over_slowest() const, over_many_flows() const;
};

std::vector<WanMapRow> wan_map(const WanMapAxes& axes,
                               const std::function<void(std::size_t, std::size_t)>& progress = {});

}  // namespace spillway
