// The points of a paper, by name; and the problem that each of them is.
#pragma once

#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "experiments/papers/paper.hpp"
#include "experiments/papers/paper_constants.hpp"
#include "experiments/papers/pipeline_points.hpp"
#include "sim/simulate.hpp"

namespace spillway {

// One system at one value of the axis of one experiment, by their places in Paper.
struct PointId {
  std::size_t experiment = 0, system = 0, value = 0;
  auto operator<=>(const PointId&) const = default;
};

// Those of which the paper says anything, in the order of the file.
std::vector<PointId> published_points(const Paper& paper);
const PublishedValue& published_at(const Paper& paper, const PointId& point);
const PaperSystem& system_of(const Paper& paper, const PointId& point);

// The system's framework, with what it says of this value of the axis.
std::string framework_at(const PaperSystem& system, std::size_t value);

std::string point_name(const Paper& paper, const PointId& point);  // "throughput/Ratel/32"
// What "EXPERIMENT", "EXPERIMENT/SYSTEM" or "EXPERIMENT/SYSTEM/VALUE" names, where the paper says
// anything of it. Throws InputError, with near names.
std::vector<PointId> points_named(const Paper& paper, const std::string& name);
// The point of another figure that is the same run and counts in place of this one.
std::optional<PointId> counted_elsewhere(const Paper& paper, const PointId& point);
// Whether it counts for errors and fits: it is not apart, and no other point counts in its place.
bool counts(const Paper& paper, const PointId& point);
// Throws InputError where `same_run_as` names no point, or one that does not count itself.
void check_points(const Paper& paper);

// The points that the constant was chosen with in view, each run once; and how many they are, where
// a ratio counts as one.
std::vector<PointId> points_seen(const Paper& paper, const PaperConstant& constant);
std::size_t seen_count(const Paper& paper, const PaperConstant& constant);

// Whether a choice between ways was made in view of it, which moves it (PaperConstant::moves).
bool is_chosen(const Paper& paper, const PointId& point);

// Settings of the machine, and those of the model without their "model.".
struct SettingLists {
  std::vector<std::string> machine, model;
};
SettingLists split_settings(const std::vector<std::string>& settings);

struct PointProblem {
  Problem problem;
  std::string policy;
};
// Throws InputError for what is wrong with it.
PointProblem problem_at(const Paper& paper, const PointId& point, const Tuning& tuning = {});

// Of an experiment of pipelines.
PipelineValue pipeline_value_at(const Paper& paper, const PointId& point,
                                const Tuning& tuning = {});

// All that a simulated step depends on, as text: points that are alike in it are one run, whatever
// their figures show of it. Sources of the machine's numbers are left out.
std::string run_of(const Paper& paper, const PointId& point);

// What the experiment measures of a simulated step.
double quantity_of(const SimulationResult& result, const Problem& problem,
                   const PaperExperiment& experiment);
// Of so many tokens a second, where it is one of throughput.
double throughput_of(double tokens_per_second, const Problem& problem,
                     const PaperExperiment& experiment);

// What an error is about, before what is wrong.
template <class Work>
auto naming(const std::string& where, Work work) {
  try {
    return work();
  } catch (const InputError& error) {
    throw InputError(where + ": " + error.message(), error.advice());
  }
}

}  // namespace spillway
