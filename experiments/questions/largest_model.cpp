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
  std::optional<Fit> fit;  // nothing: no policy can run the model, or it takes too long to say
  bool cut_short = false;  // some way was left untried that might fit

  bool fits() const { return fit && fit->need.fits(); }
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

  // Of another model as much is trained: adapters of as high a rank, or as many layers.
  Problem with(const ModelSpec& model) const {
    Problem problem = problem_;
    const ModelSpec& asked = problem_.model;
    problem.model = model;
    problem.model.lora_rank = asked.lora_rank;
    problem.model.lora_alpha = asked.lora_alpha;
    problem.model.lora_dropout = asked.lora_dropout;
    problem.model.lora_targets = asked.lora_targets;
    keep_trained_layers(problem);
    return problem;
  }
  Problem with_layers(std::int64_t layers) const {
    Problem problem = problem_;
    if (layers == problem_.model.layers) return problem;
    problem.model.layers = layers;
    override_with(problem, "model.layers", layers);
    keep_trained_layers(problem);
    return problem;
  }
  void keep_trained_layers(Problem& problem) const {
    const std::int64_t frozen = problem_.model.frozen_layers;
    if (frozen == 0) return;
    const std::int64_t trained = problem_.model.layers - frozen;
    problem.model.frozen_layers = std::max<std::int64_t>(0, problem.model.layers - trained);
    override_with(problem, "model.frozen_layers", problem.model.frozen_layers);
  }
  static void override_with(Problem& problem, const std::string& key, std::int64_t value) {
    std::erase_if(problem.overrides,
                  [&](const std::string& one) { return one.rfind(key + "=", 0) == 0; });
    problem.overrides.push_back(fmt::format("{}={}", key, value));
  }

  // Large micro-batches first: they make the fewest tasks. The fit that lacks least where none
  // fits.
  FitAt fit(Problem problem) {
    FitAt nearest;
    planner_.begin();
    // Few tasks show what is too large for any batch.
    const std::int64_t batch = problem.workload.batch;
    problem.workload.batch =
        problem.workload.ranks * (planner_.choose_micro_batch ? 1 : problem.workload.micro_batch);
    if (keep_nearest(problem, nearest) || !nearest.fit || planner_.cut_short()) {
      nearest.fit.reset();
      problem.workload.batch = batch;
      std::vector<std::int64_t> sizes = {problem.workload.micro_batch};
      if (planner_.choose_micro_batch)
        sizes = micro_batch_candidates(problem.workload.rank_batch());
      for (const std::int64_t size : sizes) {
        problem.workload.micro_batch = size;
        if (keep_nearest(problem, nearest)) break;
      }
    }
    nearest.cut_short = !nearest.fits() && planner_.cut_short();
    return nearest;
  }
  // Whether it fits.
  bool keep_nearest(Problem problem, FitAt& nearest) const {
    Workload& workload = problem.workload;
    workload.micro_batch = std::min(workload.micro_batch, workload.rank_batch());
    std::optional<Fit> one = planner_.fit(problem);
    if (!one) return false;
    if (nearest.fit && one->need.overshoot() >= nearest.fit->need.overshoot()) return false;
    nearest.micro_batch = workload.micro_batch;
    nearest.fit = std::move(one);
    return nearest.fits();
  }

  bool fits_layers(std::int64_t layers) {
    const auto [at, is_new] = known_.try_emplace(layers);
    if (is_new) {
      say(fmt::format("trying {} with {} layers", problem_.model.name, layers));
      at->second = fit(with_layers(layers));
    }
    return at->second.fits();
  }

  void find_in_family() {
    answer_.family = family_of(problem_.model);
    for (std::size_t i = answer_.family.size(); i-- > 0;) {
      say(fmt::format("trying {}", answer_.family[i].name));
      const Problem problem = with(answer_.family[i]);
      const FitAt found = fit(problem);
      if (found.fits())
        answer_.of_family_plan = best_plan(planner_, problem, planner_.choose_micro_batch);
      if (answer_.of_family_plan) {
        answer_.of_family = i;
        return;
      }
      // What fits by trial and has no plan took too long, too.
      if (found.cut_short || found.fits()) answer_.family_cut_short = true;
    }
  }

  void find_layers() {
    const std::int64_t most =
        std::min<std::int64_t>(most_layers, 99'000'000'000'000 / problem_.model.layer_parameters());
    if (!fits_layers(1)) {
      answer_.cut_short = known_[1].cut_short;
      return;
    }
    const std::int64_t start = fits_layers(problem_.model.layers) ? problem_.model.layers : 1;
    std::int64_t layers =
        largest_that_holds(start, most, [&](std::int64_t count) { return fits_layers(count); });
    for (; layers > 0 && !answer_.plan; --layers) {
      if (!fits_layers(layers)) continue;
      Problem problem = with_layers(layers);
      problem.workload.micro_batch = known_[layers].micro_batch;
      answer_.plan = best_plan(planner_, problem, false);
      if (answer_.plan) break;
      known_[layers] = {0, {}, true};
    }
    for (const auto& [count, at] : known_) answer_.cut_short |= count > layers && at.cut_short;
    if (!answer_.plan) return;
    answer_.layers = layers;
    answer_.parameters = with_layers(layers).model.parameters();
    answer_.reached_end = layers == most;
    const auto more = known_.find(layers + 1);
    if (more != known_.end() && more->second.fit) answer_.full = full_tiers(more->second.fit->need);
  }

  const Problem& problem_;
  const Planner& planner_;
  const std::function<void(const std::string&)>& say_;
  LargestModel answer_;
  std::map<std::int64_t, FitAt> known_;
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
