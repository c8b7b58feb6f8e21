// The largest model that can be trained at all: among the built-in ones of a family, and of one
// shape with more layers or fewer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/questions/planner.hpp"

namespace spillway {

// Built-in models of the same family, the smallest first: those whose name begins alike, up to the
// first dash ("gpt-13b", "gpt-30b"); where there are none, those of the same architecture.
std::vector<ModelSpec> family_of(const ModelSpec& model);

struct LargestModel {
  std::vector<ModelSpec> family;
  std::optional<std::size_t> of_family;  // in `family`; none: not one fits
  std::optional<Candidate> of_family_plan;
  bool family_cut_short = false;  // some larger one took too long to try in every micro-batch
  std::int64_t layers = 0;        // of the problem's model; 0: not one fits
  std::int64_t parameters = 0;    // with so many
  bool reached_end = false;       // as many as a model may have
  bool cut_short = false;         // more may fit: they took too long to try in every micro-batch
  std::vector<Tier> full;         // tiers that are too small for one layer more, or for one
  std::optional<Candidate> plan;  // with so many layers
};

// At the problem's batch, in the largest micro-batches that fit where none is set. Unless it says
// that it was cut short, one layer more does not fit, nor the few counts above that. What does not
// fit with one sequence a step, or with one micro-batch where its size is set, is taken not to fit
// with more.
LargestModel largest_model(const Problem& problem, const Planner& planner,
                           const std::function<void(const std::string&)>& say = {});

}  // namespace spillway
