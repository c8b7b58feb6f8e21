#include "experiments/pipelines/what_if.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/errors.hpp"

namespace spillway {

namespace {

constexpr std::size_t most_centers = 8;
constexpr std::size_t most_choices = 100'000;

// An order of the data centres in which each has a link to the next, the largest as early as that
// allows; false: there is none.
bool put_in_a_row(const DataCenters& all, std::vector<DataCenter>& left,
                  std::vector<DataCenter>& row) {
  if (left.empty()) return true;
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (!row.empty() && all.link(row.back().name, left[i].name) == nullptr) continue;
    row.push_back(left[i]);
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
    if (put_in_a_row(all, left, row)) return true;
    left.insert(left.begin() + static_cast<std::ptrdiff_t>(i), row.back());
    row.pop_back();
  }
  return false;
}

// Every set but the empty one that links join to a row.
std::vector<DataCenters> sets_of(const DataCenters& all) {
  if (all.centers.size() > most_centers)
    throw InputError(
        fmt::format("what-if: {} data centres are more than {}", all.centers.size(), most_centers),
        "describe fewer");
  DataCenters sorted = all;
  std::stable_sort(sorted.centers.begin(), sorted.centers.end(),
                   [](const DataCenter& a, const DataCenter& b) { return a.nodes > b.nodes; });
  std::vector<DataCenters> sets;
  for (std::size_t bits = 1; bits < (std::size_t{1} << sorted.centers.size()); ++bits) {
    std::vector<DataCenter> left;
    for (std::size_t c = 0; c < sorted.centers.size(); ++c) {
      if ((bits >> c & 1) != 0) left.push_back(sorted.centers[c]);
    }
    DataCenters one = sorted;
    one.centers.clear();
    if (put_in_a_row(all, left, one.centers)) sets.push_back(std::move(one));
  }
  return sets;
}

// Whether each of them is needed: without the last one the pipelines have no room.
bool uses_all(const DataCenters& centers, const std::vector<int>& places) {
  return places.back() + 1 == static_cast<int>(centers.centers.size());
}

}  // namespace

WhatIf what_if(const PipelineRequest& request, const PipelineOrder& order,
               const std::vector<std::int64_t>& micro_batches, const WhatIfProgress& progress) {
  if (request.tensor < 1 || request.problem.machine.cluster.gpus % request.tensor != 0)
    throw InputError(fmt::format("what-if: {} GPUs of a node do not divide into workers of {}",
                                 request.problem.machine.cluster.gpus, request.tensor),
                     "give a divisor of cluster.gpus");
  const int workers_per_node =
      static_cast<int>(request.problem.machine.cluster.gpus) / request.tensor;
  std::vector<PipelineRequest> all;
  for (const DataCenters& centers : sets_of(request.centers)) {
    const std::int64_t workers = centers.nodes() * workers_per_node;
    for (int gpus = 1; gpus <= request.problem.model.layers; ++gpus) {
      if (request.problem.model.layers % order.shape(gpus, gpus).stages() != 0) continue;
      for (const std::int64_t micro_batch : micro_batches) {
        const std::int64_t batches = request.problem.workload.batch / micro_batch;
        if (request.problem.workload.batch % micro_batch != 0) continue;
        for (std::int64_t replicas = 1; replicas * gpus <= workers && replicas <= batches;
             ++replicas) {
          if (batches % replicas != 0 || !order.suits(gpus, static_cast<int>(batches / replicas)))
            continue;
          PipelineRequest one = request;
          one.centers = centers;
          one.gpus = gpus;
          one.replicas = static_cast<int>(replicas);
          one.problem.workload.micro_batch = micro_batch;
          if (one.cell > 0 && replicas % one.cell != 0) continue;
          const auto places = place_stages(centers, gpus, one.replicas, workers_per_node);
          if (!places || !uses_all(centers, *places)) continue;
          all.push_back(std::move(one));
          if (all.size() > most_choices)
            throw InputError(
                fmt::format("what-if: more than {} choices", most_choices),
                "describe fewer data centres, a smaller batch, or fewer micro-batches");
        }
      }
    }
  }
  WhatIf result;
  for (const PipelineRequest& one : all) {
    if (progress) progress(result.tried, all.size());
    ++result.tried;
    const PipelinePlan plan = plan_pipeline(one, order);
    if (!plan.result) continue;
    PipelineChoice choice;
    for (const DataCenter& center : one.centers.centers) choice.centers.push_back(center.name);
    choice.gpus = one.gpus;
    choice.replicas = one.replicas;
    choice.micro_batch = one.problem.workload.micro_batch;
    choice.cell = plan.cell;
    choice.recomputes = plan.recomputes;
    choice.step_seconds = static_cast<double>(plan.result->step_ns) * 1e-9;
    choice.tokens_per_second = plan.tokens_per_second();
    choice.busy = plan.result->busy;
    choice.wan_forwards = plan.wan_forwards;
    choice.workers = std::int64_t{one.gpus} * one.replicas;
    result.choices.push_back(std::move(choice));
  }
  std::stable_sort(result.choices.begin(), result.choices.end(),
                   [](const PipelineChoice& a, const PipelineChoice& b) {
                     return a.tokens_per_second > b.tokens_per_second;
                   });
  return result;
}

}  // namespace spillway
