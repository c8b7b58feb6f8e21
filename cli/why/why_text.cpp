#include "cli/why/why_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.hpp"
#include "cli/options/problem_options.hpp"
#include "cli/text/assumptions_text.hpp"
#include "cli/text/explanation_text.hpp"
#include "cli/text/plan_text.hpp"

namespace spillway::cli {

namespace {

constexpr std::size_t rows_at_most = 8;
constexpr double too_small_for_a_row = 0.001;  // of the longer step

// Times in one unit and with as many digits everywhere, so that columns add up.
class Times {
 public:
  explicit Times(double longest) {
    if (longest < 1) {
      per_second_ = 1000;
      unit_ = "ms";
    }
    digits_ = longest * per_second_ >= 100 ? 2 : 3;
  }
  double rounded(double seconds) const {
    const double scale = per_second_ * std::pow(10, digits_);
    return std::round(seconds * scale) / scale;
  }
  std::string operator()(double seconds) const {
    // Not "-0.000".
    const double shown = rounded(seconds) == 0 ? 0 : seconds;
    return fmt::format("{:.{}f} {}", shown * per_second_, digits_, unit_);
  }
  std::string change(double seconds) const {
    return rounded(seconds) > 0 ? "+" + (*this)(seconds) : (*this)(seconds);
  }

 private:
  double per_second_ = 1;
  const char* unit_ = "s";
  int digits_ = 3;
};

std::string bytes_text(double bytes) { return bytes > 0 ? format_bytes(bytes) : "-"; }

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

const SimulationResult& result_of(const PlanProfile& profile) {
  return *profile.plan.evaluation.result;
}

std::string plan_line(const char* letter, const PlanProfile& profile, const Times& times) {
  const Schedule& schedule = profile.plan.evaluation.schedule;
  const SimulationResult& result = result_of(profile);
  const Workload& workload = schedule.problem().workload;
  return fmt::format(
      "{} {}\n  {} a step, {:.1f} tokens/s, {} micro-batch{} of {}; {} sets the bound, {:.0f} % "
      "of it reached\n",
      letter, schedule.policy(), times(result.step_seconds), result.tokens_per_second,
      workload.micro_batches(), workload.micro_batches() == 1 ? "" : "es", workload.micro_batch,
      result.bound_by, 100 * result.efficiency);
}

std::string head_text(const Why& why, const Times& times) {
  const Problem& problem = why.a.plan.evaluation.schedule.problem();
  std::string text =
      fmt::format("{} on {}: {} sequences of {} tokens a step\n{}\n", problem.model.name,
                  problem.machine.name, problem.workload.batch, problem.workload.sequence,
                  assumptions_text(problem, why.a.plan.evaluation.schedule.steps()));
  if (const std::string ranks = ranks_text(problem); !ranks.empty()) text += ranks + "\n";
  std::vector<std::string> extrapolates;
  for (const PlanProfile* profile : {&why.a, &why.b}) {
    for (const std::string& one : profile->plan.evaluation.result->extrapolates) {
      if (std::find(extrapolates.begin(), extrapolates.end(), one) == extrapolates.end())
        extrapolates.push_back(one);
    }
  }
  text += extrapolation_text(extrapolates);
  text += plan_line("A", why.a, times) + plan_line("B", why.b, times);
  const double a = why.a_seconds(), b = why.b_seconds();
  if (times.rounded(a) == times.rounded(b)) return text + "both take as long\n";
  const bool b_is_faster = b < a;
  return text + fmt::format("{} is {:.2f} times as fast: {} a step less, {} of {}'s\n",
                            b_is_faster ? "B" : "A", b_is_faster ? a / b : b / a,
                            times(std::abs(times.rounded(a) - times.rounded(b))),
                            percent(std::abs(a - b) / std::max(a, b)), b_is_faster ? "A" : "B");
}

std::string in_words(BufferKind kind) {
  std::string text = to_string(kind);
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

const KindPlaces* places_of(const PlanProfile& profile, BufferKind kind) {
  for (const KindPlaces& one : profile.places) {
    if (one.kind == kind) return &one;
  }
  return nullptr;
}

std::string tiers_row(const TierAmounts* bytes) {
  std::string text;
  std::array<std::uint64_t, 3> columns{};  // all sets of drives are one
  for (std::size_t tier = 0; bytes && tier < bytes->size(); ++tier)
    columns[std::min<std::size_t>(tier, 2)] += (*bytes)[tier];
  for (const std::uint64_t column : columns)
    text += fmt::format(" {:>10}", bytes ? bytes_text(static_cast<double>(column)) : "");
  return text;
}

std::string places_text(const Why& why) {
  const auto heading = [](const char* what) {
    return fmt::format("{:<34} {:>10} {:>10} {:>10}   {:>10} {:>10} {:>10}\n", what, "A gpu",
                       "host", "ssd", "B gpu", "host", "ssd");
  };
  std::string text = heading("at home between steps");
  std::string most = heading("most at once, with what passes");
  for (int k = 0; k < buffer_kind_count; ++k) {
    const auto kind = static_cast<BufferKind>(k);
    const KindPlaces *a = places_of(why.a, kind), *b = places_of(why.b, kind);
    if (!a && !b) continue;
    const auto row = [&](const TierAmounts* of_a, const TierAmounts* of_b) {
      return fmt::format("  {:<32}{}  {}\n", in_words(kind), tiers_row(of_a), tiers_row(of_b));
    };
    const auto home = [](const KindPlaces* one) {
      return one && one->home ? &*one->home : nullptr;
    };
    if (home(a) || home(b)) text += row(home(a), home(b));
    most += row(a ? &a->most : nullptr, b ? &b->most : nullptr);
  }
  return text + most;
}

struct LaneRow {
  double seconds = 0, bytes = 0;
  void add(const ClassWork& work) {
    seconds += work.seconds;
    bytes += work.bytes;
  }
};

std::string lane_cells(const LaneRow& row, double step, const Times& times) {
  if (row.seconds == 0) return fmt::format(" {:>10} {:>12} {:>7}", "-", "-", "");
  return fmt::format(" {:>10} {:>12} {:>7}", bytes_text(row.bytes), times(row.seconds),
                     percent(row.seconds / step));
}

// Each lane, and below it what it moves where it moves more than one thing.
std::string lanes_text(const Why& why, const Times& times) {
  std::string text = fmt::format("{:<34} {:>10} {:>12} {:>7}   {:>10} {:>12} {:>7}\n",
                                 "lanes, a step", "A bytes", "busy", "", "B bytes", "busy", "");
  const auto sum = [](const PlanProfile& profile, const auto& counts) {
    LaneRow row;
    for (const ClassWork& work : profile.work) {
      if (counts(work.of)) row.add(work);
    }
    return row;
  };
  const auto add = [&](const std::string& name, const auto& counts) {
    text +=
        fmt::format("{:<34}{}  {}\n", name, lane_cells(sum(why.a, counts), why.a_seconds(), times),
                    lane_cells(sum(why.b, counts), why.b_seconds(), times));
  };
  for (int l = 0; l < lane_count; ++l) {
    const auto lane = static_cast<Lane>(l);
    std::vector<TaskClass> classes;
    for (const PlanProfile* profile : {&why.a, &why.b}) {
      for (const ClassWork& work : profile->work) {
        const bool is_new = std::find(classes.begin(), classes.end(), work.of) == classes.end();
        if (work.of.lane == lane && work.seconds > 0 && is_new) classes.push_back(work.of);
      }
    }
    if (classes.empty()) continue;
    add(fmt::format("  {}", to_string(lane)), [&](const TaskClass& of) { return of.lane == lane; });
    if (classes.size() == 1) continue;
    for (const TaskClass& one : classes)
      add(fmt::format("    {}", to_string(one)), [&](const TaskClass& of) { return of == one; });
  }
  return text;
}

// Rows of what differs most; what is left is one row; the last is the sum.
std::string differences_text(const std::string& title, const std::vector<TimeDifference>& all,
                             const char* sum_name, const Times& times) {
  std::string text = fmt::format("{:<48} {:>12} {:>12} {:>13}\n", title, "A", "B", "B less");
  const auto line = [&](const std::string& name, double a, double b) {
    // Of the figures that are shown, so that rows add up to within a last digit.
    text += fmt::format("  {:<46} {:>12} {:>12} {:>13}\n", name, times(a), times(b),
                        times(times.rounded(a) - times.rounded(b)));
  };
  double a = 0, b = 0, others_a = 0, others_b = 0;
  const std::size_t shown = all.size() > rows_at_most + 1 ? rows_at_most : all.size();
  for (std::size_t i = 0; i < all.size(); ++i) {
    a += all[i].a;
    b += all[i].b;
    if (i >= shown) {
      others_a += all[i].a;
      others_b += all[i].b;
      continue;
    }
    std::string name = to_string(all[i].of);
    if (const char* wait = all[i].wait ? spillway::in_words(*all[i].wait) : ""; *wait != '\0')
      name += fmt::format(", {}", wait);
    line(name, all[i].a, all[i].b);
  }
  if (shown < all.size()) line(fmt::format("{} others", all.size() - shown), others_a, others_b);
  line(sum_name, a, b);
  return text;
}

std::string change_text(const PlanSetting& setting) {
  return fmt::format("{}: {} -> {}", setting.name, setting.from, setting.to);
}

class AblationText {
 public:
  AblationText(const Why& why, const Times& times) : why_(why), times_(times) {}

  std::string text() {
    const Ablation& ablation = why_.ablation;
    if (!ablation.why_not.empty())
      return fmt::format(
          "from A to B one setting at a time: not told. For that both are written as plans of "
          "policy {}, and one of these does not fit, cannot be run, or is another plan, such as "
          "that of an order of work that is its policy's own (a step() of a plugin, a "
          "pipeline's):\n  {}\n",
          why_.settings.policy(), ablation.why_not);
    if (why_.settings.all().empty()) return "no setting differs\n";
    head();
    add_row("", "A", {}, why_.a_seconds(), {}, {});
    residual("what A takes beside its plan", why_.residual_of_a(), ablation.a_seconds);
    for (std::size_t i = 0; i < ablation.steps.size(); ++i) step(i);
    flush_small();
    residual("what B takes beside its plan", why_.residual_of_b(), why_.b_seconds());
    const double gain = times_.rounded(why_.a_seconds()) - times_.rounded(why_.b_seconds());
    add_row("", "B", gain, why_.b_seconds(), {}, {});
    notes();
    return text_;
  }

 private:
  // "no plan" where nothing would say, with the number of the reason, which notes() lists.
  std::string gain_text(const SettingEffect::Gain& gain) {
    if (gain.seconds) return times_(*gain.seconds);
    const auto known = std::find(reasons_.begin(), reasons_.end(), gain.why_not);
    const auto number = known - reasons_.begin() + 1;
    if (known == reasons_.end()) reasons_.push_back(gain.why_not);
    return fmt::format("no plan ({})", number);
  }
  void head() {
    const Ablation& ablation = why_.ablation;
    std::string order = ablation.given == 0
                            ? "or with those that it needs in A, each time what gains most"
                            : "those asked for first, then what gains most";
    if (!ablation.ranked) order += "; the last by what they gain alone";
    text_ += fmt::format(
        "from A to B, one setting of policy {} at a time, {}\n{:<3} {:<52} {:>12} {:>13} {:>8} "
        "{:>12} {:>12}\n",
        why_.settings.policy(), order, "", "", "step", "gains", "of A's", "alone", "last");
  }

  void add_row(const std::string& number, const std::string& name, std::optional<double> gain,
               double after, const std::string& alone, const std::string& last) {
    // Long values have the figures on the next line, where they can be read.
    constexpr std::size_t name_width = 52;
    if (name.size() > name_width) text_ += fmt::format("{:>3} {}\n", number, name);
    const bool fits = name.size() <= name_width;
    std::string line =
        fmt::format("{:>3} {:<52} {:>12} {:>13} {:>8} {:>12} {:>12}", fits ? number : "",
                    fits ? name : "", times_(after), gain ? times_(*gain) : "",
                    gain ? percent(*gain / why_.a_seconds()) : "", alone, last);
    line.erase(line.find_last_not_of(' ') + 1);
    text_ += line + "\n";
  }

  // Of the figures that are shown, so that the column adds up.
  double shown_gain(const AblationStep& step) const {
    return times_.rounded(step.before_seconds) - times_.rounded(step.after_seconds);
  }

  void step(std::size_t index) {
    const AblationStep& one = why_.ablation.steps[index];
    const bool is_small =
        std::abs(one.gain()) < too_small_for_a_row * std::max(why_.a_seconds(), why_.b_seconds());
    if (is_small && index >= why_.ablation.given) {
      small_.push_back(index);
      return;
    }
    flush_small();
    const std::vector<PlanSetting>& all = why_.settings.all();
    for (std::size_t k = 0; k + 1 < one.settings.size(); ++k)
      text_ += fmt::format("{:>3} {}, with\n", k == 0 ? std::to_string(index + 1) : "",
                           change_text(all[one.settings[k]]));
    const std::size_t last = one.settings.back();
    const bool is_alone = one.settings.size() == 1;
    const SettingEffect& effect = why_.ablation.effects[last];
    const std::string alone = is_alone ? gain_text(effect.alone) : "";
    const std::string last_gain = is_alone ? gain_text(effect.last) : "";
    add_row(is_alone ? std::to_string(index + 1) : "", change_text(all[last]), shown_gain(one),
            one.after_seconds, alone, last_gain);
    explain(one);
  }

  // What the settings of a step are, and why they were changed together.
  void explain(const AblationStep& one) {
    const std::vector<PlanSetting>& all = why_.settings.all();
    for (const std::size_t k : one.settings) text_ += fmt::format("      {}\n", all[k].help);
    if (one.why_together.empty()) return;
    text_ += fmt::format("      together: the first has no plan by itself, {}\n", one.why_together);
    for (const std::size_t k : one.settings) add_effects("of these", k, 0);
  }

  // What a setting gains alone and last, where that is known and no less than `least`.
  void add_effects(const char* begin, std::size_t setting, double least) {
    const SettingEffect& effect = why_.ablation.effects[setting];
    for (const auto& [name, gain] :
         {std::pair{"alone", &effect.alone}, std::pair{"last", &effect.last}}) {
      if (!gain->seconds || std::abs(*gain->seconds) < least) continue;
      text_ += fmt::format("      {} {} {}: {}\n", begin, why_.settings.all()[setting].name, name,
                           times_(*gain->seconds));
    }
  }

  // Steps in a row that change next to nothing, as one.
  void flush_small() {
    if (small_.empty()) return;
    const std::vector<AblationStep>& steps = why_.ablation.steps;
    const AblationStep &first = steps[small_.front()], &last = steps[small_.back()];
    const AblationStep together{{}, "", first.before_seconds, last.after_seconds, last.bound_by};
    constexpr std::size_t line_width = 110;
    std::string names;
    std::size_t width = 0;  // of the last line
    for (const std::size_t i : small_) {
      for (const std::size_t k : steps[i].settings) {
        const std::string& name = why_.settings.all()[k].name;
        const bool wraps = width + name.size() > line_width;
        if (!names.empty()) names += wraps ? ",\n    " : ", ";
        width = wraps ? name.size() : width + name.size() + 2;
        names += name;
      }
    }
    const std::string number = small_.size() == 1
                                   ? std::to_string(small_.front() + 1)
                                   : fmt::format("{}-{}", small_.front() + 1, small_.back() + 1);
    text_ += fmt::format("{:>3} {}\n", number, names);
    add_row("", "next to nothing each", shown_gain(together), together.after_seconds, "", "");
    add_large_effects();
    small_.clear();
  }

  // Of the settings of small steps, those that would matter elsewhere.
  void add_large_effects() {
    const double least = too_small_for_a_row * std::max(why_.a_seconds(), why_.b_seconds());
    for (const std::size_t i : small_) {
      for (const std::size_t k : why_.ablation.steps[i].settings) add_effects("but", k, least);
    }
  }

  void residual(const char* what, double gain, double after) {
    if (times_.rounded(gain) != 0) add_row("", what, gain, after, "", "");
  }

  void notes() {
    text_ +=
        "gains depend on what was changed before: `alone` is the gain in A, `last` what B loses "
        "without it\n";
    for (std::size_t k = 0; k < reasons_.size(); ++k)
      text_ += fmt::format("({}) {}\n", k + 1, reasons_[k]);
    if (has_moot_order())
      text_ +=
          "both run one micro-batch a step, so that orders of micro-batches change nothing here; "
          "of "
          "several a step (`--micro-batch`), where both fit with it, they may\n";
  }

  // Whether what differs is in which order micro-batches run, of which there is one.
  bool has_moot_order() const {
    const auto has_one = [](const Candidate& candidate) {
      const Workload& workload = candidate.evaluation.schedule.problem().workload;
      return workload.micro_batches() == 1 && workload.batch > 1;
    };
    const std::vector<PlanSetting>& all = why_.settings.all();
    return has_one(why_.a.plan) && has_one(why_.b.plan) &&
           std::any_of(all.begin(), all.end(), [](const PlanSetting& setting) {
             return setting.name == "order.row" || setting.name == "order.snake";
           });
  }

  const Why& why_;
  const Times& times_;
  std::string text_;
  std::vector<std::size_t> small_;
  std::vector<std::string> reasons_;  // why there is no plan, as numbered in the text
};

}  // namespace

std::string why_text(const Why& why) {
  const Times times(std::max(why.a_seconds(), why.b_seconds()));
  return head_text(why, times) + "\n" + places_text(why) + "\n" + lanes_text(why, times) + "\n" +
         differences_text("critical path, a step", why.critical_path, "the step", times) + "\n" +
         differences_text("gpu idle, a step, while it waits for", why.stalls, "idle in all",
                          times) +
         "\n" + AblationText(why, times).text();
}

}  // namespace spillway::cli
