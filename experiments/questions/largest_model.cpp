#include "experiments/questions/largest_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "experiments/questions/largest_that_holds.hpp"

namespace spillway {

namespace {

constexpr std::int64_t most_layers = 5000;  // of a model (docs/machine-files.md)

struct FitAt {
  std::int64_t micro_batch = 0;
  Fit fit;
};

class ModelSearch {
 public:
  ModelSearch(const Problem& problem, const Planner& planner,
              const std::function<void(const std::string&)>& say)
      : problem_(problem), planner_(planner), say_(say) {}

  LargestModel search() {
    find_in_family();
    find_layers();
    return std::move(answer_);
  }

 private:
  void say(const std::string& what) const {
    if (say_) say_(what);
  }

  Problem with(const ModelSpec& model) const {
    Problem problem = problem_;
    problem.model = model;
    return problem;
  }
  Problem with_layers(std::int64_t layers) const {
    Problem problem = problem_;
    if (layers == problem_.model.layers) return problem;
    problem.model.layers = layers;
    std::erase_if(problem.overrides,
                  [](const std::string& one) { return one.rfind("model.layers=", 0) == 0; });
    problem.overrides.push_back(fmt::format("model.layers={}", layers));
    return problem;
  }

  // Large micro-batches first: they make the fewest tasks. The fit that lacks least where none
  // fits.
  std::optional<FitAt> fit(Problem problem) {
    std::vector<std::int64_t> sizes = {problem.workload.micro_batch};
    if (planner_.choose_micro_batch) sizes = micro_batch_candidates(problem.workload.batch);
    std::optional<FitAt> nearest;
    for (const std::int64_t size : sizes) {
      problem.workload.micro_batch = size;
      std::optional<Fit> one = planner_.fit(problem);
      if (!one) continue;
      if (nearest && one->need.overshoot() >= nearest->fit.need.overshoot()) continue;
      nearest = {size, std::move(*one)};
      if (nearest->fit.need.fits()) break;
    }
    return nearest;
  }

  bool fits_layers(std::int64_t layers) {
    const auto [at, is_new] = known_.try_emplace(layers);
    if (is_new) {
      say(fmt::format("trying {} with {} layers", problem_.model.name, layers));
      at->second = fit(with_layers(layers));
    }
    return at->second && at->second->fit.need.fits();
  }

  void find_in_family() {
    answer_.family = family_of(problem_.model);
    for (std::size_t i = answer_.family.size(); i-- > 0;) {
      say(fmt::format("trying {}", answer_.family[i].name));
      const Problem problem = with(answer_.family[i]);
      const std::optional<FitAt> found = fit(problem);
      if (!found || !found->fit.need.fits()) continue;
      answer_.of_family_plan = best_plan(planner_, problem, planner_.choose_micro_batch);
      if (!answer_.of_family_plan) continue;
      answer_.of_family = i;
      return;
    }
  }

  void find_layers() {
    const std::int64_t most =
        std::min<std::int64_t>(most_layers, 99'000'000'000'000 / problem_.model.layer_parameters());
    if (!fits_layers(1)) return;
    const std::int64_t start = fits_layers(problem_.model.layers) ? problem_.model.layers : 1;
    std::int64_t layers =
        largest_that_holds(start, most, [&](std::int64_t count) { return fits_layers(count); });
    for (; layers > 0 && !answer_.plan; --layers) {
      if (!fits_layers(layers)) continue;
      Problem problem = with_layers(layers);
      problem.workload.micro_batch = known_[layers]->micro_batch;
      answer_.plan = best_plan(planner_, problem, false);
      if (answer_.plan) break;
      known_[layers].reset();
    }
    if (!answer_.plan) return;
    answer_.layers = layers;
    answer_.parameters = with_layers(layers).model.parameters();
    const auto more = known_.find(layers + 1);
    if (more != known_.end() && more->second) answer_.full = full_tiers(more->second->fit.need);
    answer_.reached_end = answer_.full.empty();
  }

  const Problem& problem_;
  const Planner& planner_;
  const std::function<void(const std::string&)>& say_;
  LargestModel answer_;
  std::map<std::int64_t, std::optional<FitAt>> known_;
};

}  // namespace

std::vector<ModelSpec> family_of(const ModelSpec& model) {
  const std::string prefix = model.name.substr(0, model.name.find('-') + 1);
  std::vector<ModelSpec> family;
  const auto keep = [&](const auto& belongs) {
    for (const ModelSpec& one : builtin_models()) {
      if (belongs(one)) family.push_back(one);
    }
  };
  if (!prefix.empty()) keep([&](const ModelSpec& one) { return one.name.rfind(prefix, 0) == 0; });
  if (family.empty())
    keep([&](const ModelSpec& one) { return one.architecture == model.architecture; });
  std::stable_sort(family.begin(), family.end(), [](const ModelSpec& a, const ModelSpec& b) {
    return a.parameters() < b.parameters();
  });
  return family;
}

LargestModel largest_model(const Problem& problem, const Planner& planner,
                           const std::function<void(const std::string&)>& say) {
  return ModelSearch(problem, planner, say).search();
}

}  // namespace spillway
