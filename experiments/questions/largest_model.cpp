#include "experiments/questions/largest_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "experiments/questions/largest_that_holds.hpp"
#include "experiments/questions/micro_batch_fit.hpp"

namespace spillway {

namespace {

constexpr std::int64_t most_layers = 5000;  // of a model (docs/machine-files.md)

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

  MicroBatchFit fit(const Problem& problem) const {
    // Few tasks show what is too large for any batch.
    Problem least = problem;
    Workload& workload = least.workload;
    workload.batch = workload.ranks * (planner_.choose_micro_batch ? 1 : workload.micro_batch);
    if (workload.batch < problem.workload.batch) {
      MicroBatchFit nearest = fit_in_some_micro_batch(planner_, least);
      if (nearest.fit && !nearest.fits() && !nearest.cut_short) return nearest;
    }
    return fit_in_some_micro_batch(planner_, problem);
  }

  bool fits_layers(std::int64_t layers) {
    const auto [at, is_new] = known_.try_emplace(layers);
    if (is_new) {
      say(fmt::format("trying {} with {} layers", problem_.model.name, layers));
      at->second = fit(with_layers(layers));
    }
    return at->second.fits();
  }

  // In micro-batches of one size: a fraction of the work, where it does not fit.
  bool fits_layers_in(std::int64_t layers, std::int64_t size) {
    const auto known = known_.find(layers);
    if (known != known_.end()) return known->second.fits();
    say(fmt::format("trying {} with {} layers", problem_.model.name, layers));
    Problem problem = with_layers(layers);
    problem.workload.micro_batch = size;
    planner_.begin();
    std::optional<Fit> found = planner_.fit(problem);
    if (!found || !found->need.fits()) return false;
    known_[layers] = {size, std::move(found), false};
    return true;
  }

  // Of the few counts above, one that fits in micro-batches of another size; 0: none does.
  std::int64_t next_that_fits(std::int64_t layers, std::int64_t most) {
    for (std::int64_t more = layers + 1; more <= std::min(most, layers + neighbours_tried);
         ++more) {
      if (fits_layers(more)) return more;
    }
    return 0;
  }

  std::optional<Candidate> plan_of(Problem problem, const MicroBatchFit& found) const {
    if (!found.fits()) return {};
    problem.workload.micro_batch = found.micro_batch;
    return planner_.fitted(problem, *found.fit);
  }

  void find_in_family() {
    answer_.family = family_of(problem_.model);
    for (std::size_t i = answer_.family.size(); i-- > 0;) {
      say(fmt::format("trying {}", answer_.family[i].name));
      const Problem problem = with(answer_.family[i]);
      const MicroBatchFit found = fit(problem);
      answer_.of_family_plan = plan_of(problem, found);
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
      const MicroBatchFit& one = known_[1];
      answer_.cut_short = one.cut_short;
      if (one.fit) answer_.full = full_tiers(one.fit->need);
      return;
    }
    std::int64_t layers = fits_layers(problem_.model.layers) ? problem_.model.layers : 1;
    for (std::int64_t from = layers; from > 0; from = next_that_fits(layers, most)) {
      const std::int64_t size = known_[from].micro_batch;
      layers = largest_that_holds(from, most,
                                  [&](std::int64_t count) { return fits_layers_in(count, size); });
    }
    for (; layers > 0 && !answer_.plan; --layers) {
      if (!fits_layers(layers)) continue;
      answer_.plan = plan_of(with_layers(layers), known_[layers]);
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
  std::map<std::int64_t, MicroBatchFit> known_;
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
