#include "experiments/sweep/sweep_points.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "base/errors.hpp"
#include "base/suggest.hpp"

namespace spillway {

namespace {

std::string policy_name(const std::string& policy) { return policy.substr(0, policy.find(':')); }

class Planner {
 public:
  Planner(SweepFile file, std::string program) : program_(std::move(program)) {
    plan_.file = std::move(file);
    for (const SweepAxis& axis : plan_.file.axes) {
      plan_.keys.insert(plan_.keys.end(), axis.keys.begin(), axis.keys.end());
    }
  }

  SweepPlan plan() {
    require_settings();
    require_count();
    check_rules();
    std::vector<std::size_t> at(plan_.file.axes.size(), 0);
    do {
      add_point(at);
    } while (advance(at));
    check_use();
    return std::move(plan_);
  }

 private:
  bool is_set(const std::string& key) const {
    return plan_.file.fixed.count(key) > 0 ||
           std::find(plan_.keys.begin(), plan_.keys.end(), key) != plan_.keys.end();
  }

  void require_settings() const {
    for (const auto& [key, example] :
         {std::pair{"model", "gpt-13b"}, {"machine", "rtx4090-12ssd"}, {"policy", "greedysnake"}}) {
      if (is_set(key)) continue;
      throw InputError(
          plan_.file.origin, 0, fmt::format("{} is not set", key),
          fmt::format("add {} = \"{}\" under [fixed], or an [[axis]] of it", key, example));
    }
  }

  void require_count() const {
    std::size_t count = 1;
    for (const SweepAxis& axis : plan_.file.axes) {
      if (count <= most_sweep_points) count *= axis.values.size();
    }
    if (count <= most_sweep_points) return;
    throw InputError(plan_.file.origin, 0,
                     fmt::format("the axes make more than {} combinations", most_sweep_points),
                     "shorten an axis, or split the sweep into several files");
  }

  void check_rules() {
    rule_matches_.assign(plan_.file.skips.size(), 0);
    for (const SkipRule& rule : plan_.file.skips) {
      for (const auto& [key, values] : rule.values) {
        if (std::find(plan_.keys.begin(), plan_.keys.end(), key) != plan_.keys.end()) continue;
        throw InputError(rule.place, 0, fmt::format("a skip rule names {}, which is no axis", key),
                         unknown_name_hint(key, plan_.keys));
      }
    }
  }

  // The next combination, the last axis first; false after the last one.
  bool advance(std::vector<std::size_t>& at) const {
    for (std::size_t i = at.size(); i-- > 0;) {
      if (++at[i] < plan_.file.axes[i].values.size()) return true;
      at[i] = 0;
    }
    return false;
  }

  void add_point(const std::vector<std::size_t>& at) {
    SweepSettings settings = plan_.file.fixed;
    for (std::size_t i = 0; i < at.size(); ++i) {
      const SweepAxis& axis = plan_.file.axes[i];
      for (std::size_t k = 0; k < axis.keys.size(); ++k) {
        settings[axis.keys[k]] = axis.values[at[i]][k];
      }
    }
    const std::string policy = policy_name(settings.at("policy"));
    used_policies_.insert(policy);
    for (auto it = settings.begin(); it != settings.end();) {
      const auto owner = policy_of_key(it->first);
      it = owner && *owner != policy ? settings.erase(it) : std::next(it);
    }
    SweepPoint point;
    for (const std::string& key : plan_.keys) {
      const auto it = settings.find(key);
      point.cells.push_back(it == settings.end() ? "" : it->second);
    }
    if (is_left_out(settings)) {
      ++plan_.left_out;
      return;
    }
    // Combinations that differ in options of other policies only are one.
    std::string row;
    for (const std::string& cell : point.cells) row += cell + "\n";
    if (!rows_.insert(std::move(row)).second) return;
    resolve(settings, point);
    if (seen_.insert(point.identity).second) {
      plan_.points.push_back(std::move(point));
    } else {
      ++plan_.same;
    }
  }

  bool is_left_out(const SweepSettings& settings) {
    bool left_out = false;
    for (std::size_t r = 0; r < plan_.file.skips.size(); ++r) {
      const SkipRule& rule = plan_.file.skips[r];
      const bool all =
          std::all_of(rule.values.begin(), rule.values.end(), [&](const auto& condition) {
            const auto it = settings.find(condition.first);
            const std::vector<std::string>& values = condition.second;
            return it != settings.end() &&
                   std::find(values.begin(), values.end(), it->second) != values.end();
          });
      if (all) ++rule_matches_[r];
      left_out = left_out || all;
    }
    return left_out;
  }

  void resolve(const SweepSettings& settings, SweepPoint& point) {
    try {
      point.settings = resolver_.resolve(settings);
      // A result without an explanation is none for a sweep that asks for it.
      point.explains = plan_.file.explain;
      point.identity = hash_of(program_ + "\n" + point.settings.identity +
                               (point.explains ? "\nexplained" : ""));
    } catch (const InputError& error) {
      point.invalid = error.what();
      point.hint = error.hint();
      std::string all = program_ + "\ninvalid\n";
      for (const auto& [key, value] : settings) all += key + "=" + value + "\n";
      point.identity = hash_of(all);
    }
  }

  void check_use() const {
    const SweepFile& file = plan_.file;
    for (std::size_t r = 0; r < file.skips.size(); ++r) {
      if (rule_matches_[r] > 0) continue;
      throw InputError(file.skips[r].place, 0, "this skip rule matches no point",
                       "write its values as they stand in the axes, or take it out");
    }
    const auto check = [&](const std::string& key, const std::string& place) {
      const auto policy = policy_of_key(key);
      if (!policy || used_policies_.count(*policy) > 0) return;
      throw InputError(place, 0,
                       fmt::format("{} is set, but no point has the policy {}", key, *policy),
                       "take it out, or add the policy to the axis of policies");
    };
    for (const auto& [key, place] : file.fixed_places) check(key, place);
    for (const SweepAxis& axis : file.axes) {
      for (const std::string& key : axis.keys) check(key, axis.places.front());
    }
    if (plan_.points.empty()) {
      throw InputError(file.origin, 0, "the skip rules leave no point", "take one of them out");
    }
    if (plan_.invalid() == plan_.points.size()) {
      throw InputError(
          file.origin, 0,
          fmt::format("no point has valid settings; the first: {}", plan_.points.front().invalid),
          plan_.points.front().hint);
    }
  }

  std::string program_;
  SweepPlan plan_;
  SettingsResolver resolver_;
  std::vector<std::size_t> rule_matches_;
  std::unordered_set<std::string> used_policies_, seen_, rows_;
};

}  // namespace

std::size_t SweepPlan::invalid() const {
  return static_cast<std::size_t>(
      std::count_if(points.begin(), points.end(),
                    [](const SweepPoint& point) { return !point.invalid.empty(); }));
}

SweepPlan plan_sweep(SweepFile file, const std::string& program) {
  return Planner(std::move(file), program).plan();
}

}  // namespace spillway
