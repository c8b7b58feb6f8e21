#include "experiments/validate/kineto_import.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include "base/errors.hpp"
#include "experiments/validate/time_pieces.hpp"

namespace spillway {

namespace {

// Whether events meet conditions; what an expression says of a text is found out once.
class EventMatcher {
 public:
  EventMatcher(const EventConditions& conditions, const KinetoTrace& trace)
      : conditions_(conditions), trace_(trace) {}

  bool match(const KinetoEvent& event) {
    return holds(conditions_.category, categories_, event.category) &&
           holds(conditions_.name, names_, event.name) && thread_holds(event.thread) &&
           args_hold(event);
  }

 private:
  using Known = std::unordered_map<std::uint32_t, bool>;

  bool holds(const std::optional<NamePattern>& pattern, Known& known, std::uint32_t text) const {
    if (!pattern) return true;
    const auto [at, fresh] = known.emplace(text, false);
    if (fresh) at->second = pattern->matches(trace_.texts[text]);
    return at->second;
  }

  bool thread_holds(std::uint32_t thread) {
    if (!conditions_.thread) return true;
    const auto [at, fresh] = threads_.emplace(thread, false);
    const KinetoThread& of = trace_.threads[thread];
    if (fresh)
      at->second = conditions_.thread->matches(of.id) || conditions_.thread->matches(of.name);
    return at->second;
  }

  bool args_hold(const KinetoEvent& event) const {
    return std::all_of(conditions_.args.begin(), conditions_.args.end(), [&](const auto& wanted) {
      return std::any_of(event.args.begin(), event.args.end(), [&](const auto& given) {
        return trace_.texts[given.first] == wanted.first &&
               wanted.second.matches(trace_.texts[given.second]);
      });
    });
  }

  const EventConditions& conditions_;
  const KinetoTrace& trace_;
  Known categories_, names_, threads_;
};

struct Step {
  std::int64_t start_ns = 0, end_ns = 0;
};

double seconds_of(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

class Importer {
 public:
  Importer(const KinetoTrace& trace, const KinetoMapping& mapping, const std::string& origin)
      : trace_(trace), mapping_(mapping), origin_(origin) {
    for (const MappingRule& rule : mapping.rules) matchers_.emplace_back(rule.conditions, trace);
    result_.events_of_rules.assign(mapping.rules.size(), 0);
  }

  KinetoImport run() {
    find_steps();
    find_rules();
    for (std::uint32_t thread = 0; thread < trace_.threads.size(); ++thread) read_thread(thread);
    require_mapped();
    add_lanes();
    add_rest();
    return std::move(result_);
  }

 private:
  static constexpr std::size_t no_rule = ~std::size_t{0};

  void find_steps() {
    EventMatcher is_step(mapping_.steps, trace_);
    is_step_.assign(trace_.events.size(), false);
    for (std::size_t e = 0; e < trace_.events.size(); ++e) {
      const KinetoEvent& event = trace_.events[e];
      if (event.end_ns == event.start_ns || !is_step.match(event)) continue;
      is_step_[e] = true;
      steps_.push_back({event.start_ns, event.end_ns});
    }
    if (steps_.empty()) {
      throw InputError(
          origin_, 0,
          fmt::format(
              "no event is a step: name {}{}", mapping_.steps.name->expression(),
              mapping_.steps.category ? ", category " + mapping_.steps.category->expression() : ""),
          "call profiler.step() after every step, or name your annotation under [steps] of " +
              mapping_.origin);
    }
    std::sort(steps_.begin(), steps_.end(),
              [](const Step& a, const Step& b) { return a.start_ns < b.start_ns; });
    for (std::size_t s = 1; s < steps_.size(); ++s) {
      if (steps_[s].start_ns >= steps_[s - 1].end_ns) continue;
      throw InputError(origin_, 0,
                       fmt::format("two steps overlap: from {} us and from {} us",
                                   steps_[s - 1].start_ns / 1000, steps_[s].start_ns / 1000),
                       "narrow [steps] of " + mapping_.origin +
                           " down, by a category or a thread, to one event a step");
    }
    const auto left_out = static_cast<std::size_t>(mapping_.left_out);
    if (steps_.size() <= left_out) {
      throw InputError(
          origin_, 0,
          fmt::format("it has {} step{}, and {} left out", steps_.size(),
                      steps_.size() == 1 ? "" : "s",
                      left_out == 1 ? "the first is" : fmt::format("the first {} are", left_out)),
          "record more steps, or set leave_out under [steps] of " + mapping_.origin);
    }
    steps_.erase(steps_.begin(), steps_.begin() + mapping_.left_out);
    result_.left_out = left_out;
    for (const Step& step : steps_)
      result_.step_seconds.push_back(seconds_of(step.end_ns - step.start_ns));
    origin_ns_ = steps_.front().start_ns;
  }

  bool in_steps(const KinetoEvent& event) const {
    const auto after =
        std::upper_bound(steps_.begin(), steps_.end(), event.start_ns,
                         [](std::int64_t time, const Step& step) { return time < step.end_ns; });
    return after != steps_.end() && event.end_ns > after->start_ns;
  }

  // The event that spans all of a recording.
  bool is_profilers_own(const KinetoEvent& event) const {
    return trace_.texts[event.category] == "Trace";
  }

  void find_rules() {
    rules_.assign(trace_.events.size(), no_rule);
    events_of_threads_.resize(trace_.threads.size());
    for (std::size_t e = 0; e < trace_.events.size(); ++e) {
      const KinetoEvent& event = trace_.events[e];
      if (is_step_[e] || event.end_ns == event.start_ns || !in_steps(event)) continue;
      for (std::size_t r = 0; r < matchers_.size() && rules_[e] == no_rule; ++r) {
        if (matchers_[r].match(event)) rules_[e] = r;
      }
      if (rules_[e] != no_rule) ++result_.events_of_rules[rules_[e]];
      const bool ignored =
          rules_[e] == no_rule ? is_profilers_own(event) : mapping_.rules[rules_[e]].ignored;
      if (!ignored) events_of_threads_[event.thread].push_back(e);
    }
  }

  // What the thread does when: the event of the first rule; where none is mapped, the innermost.
  void read_thread(std::uint32_t thread) {
    std::vector<std::size_t>& events = events_of_threads_[thread];
    std::sort(events.begin(), events.end(), [&](std::size_t a, std::size_t b) {
      const KinetoEvent &x = trace_.events[a], &y = trace_.events[b];
      return std::tuple(x.start_ns, -x.end_ns, a) < std::tuple(y.start_ns, -y.end_ns, b);
    });
    std::vector<Interval> intervals;
    for (std::size_t i = 0; i < events.size(); ++i) {
      const KinetoEvent& event = trace_.events[events[i]];
      const std::size_t rule = rules_[events[i]];
      // Of unmapped ones, the later it begins the further inside it is.
      const std::size_t rank = rule == no_rule ? mapping_.rules.size() + events.size() - i : rule;
      intervals.push_back({event.start_ns, event.end_ns, rank, events[i]});
    }
    for (const Interval& piece : foremost(std::move(intervals))) {
      const std::size_t rule = rules_[piece.id];
      if (rule == no_rule) {
        unmapped_.push_back(piece);
      } else {
        mapped_[mapping_.rules[rule].lane].push_back({piece.start, piece.end, rule, rule});
      }
    }
  }

  void require_mapped() const {
    if (!mapped_.empty()) return;
    throw InputError(origin_, 0, "no event of its steps is mapped",
                     "the rules of " + mapping_.origin +
                         " match none; the names of events stand "
                         "in the trace, which opens in Perfetto");
  }

  // Parts of sorted, disjoint intervals within steps: calls `take(step, start, end, interval)`.
  template <class Take>
  void by_step(const std::vector<Interval>& intervals, const Take& take) const {
    std::size_t first = 0;
    for (const Interval& interval : intervals) {
      while (first < steps_.size() && steps_[first].end_ns <= interval.start) ++first;
      for (std::size_t s = first; s < steps_.size() && steps_[s].start_ns < interval.end; ++s) {
        take(s, std::max(interval.start, steps_[s].start_ns),
             std::min(interval.end, steps_[s].end_ns), interval);
      }
    }
  }

  std::vector<double> seconds_by_step(const std::vector<Interval>& intervals) const {
    std::vector<double> seconds(steps_.size(), 0);
    by_step(intervals, [&](std::size_t step, std::int64_t start, std::int64_t end,
                           const Interval&) { seconds[step] += seconds_of(end - start); });
    return seconds;
  }

  static std::uint16_t place_of(std::vector<std::string>& names, const std::string& name) {
    const auto at = std::find(names.begin(), names.end(), name);
    const auto place = static_cast<std::uint16_t>(at - names.begin());
    if (at == names.end()) names.push_back(name);
    return place;
  }

  void add_lanes() {
    Trace& trace = result_.trace;
    trace.phases = {"step"};
    std::vector<std::vector<double>> of_kinds;        // [kind][step]
    for (const MappingRule& rule : mapping_.rules) {  // in the file's order, used or not
      if (rule.ignored) continue;
      place_of(trace.lanes, rule.lane);
      place_of(trace.kinds, rule.kind());
    }
    of_kinds.assign(trace.kinds.size(), std::vector<double>(steps_.size(), 0));
    for (std::uint16_t lane = 0; lane < trace.lanes.size(); ++lane) {
      const std::vector<Interval> pieces = foremost(mapped_[trace.lanes[lane]]);
      result_.lanes.push_back({trace.lanes[lane], median(seconds_by_step(pieces))});
      by_step(pieces,
              [&](std::size_t step, std::int64_t start, std::int64_t end, const Interval& piece) {
                Span span;
                span.task = static_cast<std::uint32_t>(trace.spans.size());
                span.lane = lane;
                span.kind = place_of(trace.kinds, mapping_.rules[piece.id].kind());
                span.step = static_cast<std::int32_t>(step);
                span.start_ns = start - origin_ns_;
                span.end_ns = end - origin_ns_;
                of_kinds[span.kind][step] += seconds_of(end - start);
                trace.spans.push_back(span);
              });
      all_mapped_.insert(all_mapped_.end(), pieces.begin(), pieces.end());
    }
    for (std::size_t k = 0; k < of_kinds.size(); ++k)
      result_.kinds.push_back({trace.kinds[k], median(of_kinds[k])});
  }

  // Time in which something runs that is not mapped, and time in which nothing does.
  void add_rest() {
    for (Interval& piece : all_mapped_) piece.rank = piece.id = 0;
    std::vector<Interval> everything = all_mapped_;
    for (const Interval& piece : unmapped_) everything.push_back({piece.start, piece.end, 1, 1});
    const std::vector<double> mapped = seconds_by_step(foremost(all_mapped_));
    const std::vector<double> running = seconds_by_step(foremost(std::move(everything)));
    std::vector<double> unmapped, idle;
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      unmapped.push_back(running[s] - mapped[s]);
      idle.push_back(result_.step_seconds[s] - running[s]);
    }
    result_.unmapped_seconds = median(unmapped);
    result_.idle_seconds = median(idle);

    std::map<std::pair<std::uint32_t, std::uint32_t>, UnmappedEvents> by_name;
    std::sort(unmapped_.begin(), unmapped_.end(), [](const Interval& a, const Interval& b) {
      return std::tuple(a.start, a.end, a.id) < std::tuple(b.start, b.end, b.id);
    });
    std::set<std::size_t> counted;
    by_step(unmapped_,
            [&](std::size_t, std::int64_t start, std::int64_t end, const Interval& piece) {
              const KinetoEvent& event = trace_.events[piece.id];
              UnmappedEvents& of = by_name[{event.name, event.category}];
              of.name = trace_.texts[event.name];
              of.category = trace_.texts[event.category];
              if (counted.insert(piece.id).second) ++of.count;
              of.seconds += seconds_of(end - start) / static_cast<double>(steps_.size());
            });
    for (auto& [_, of] : by_name) result_.unmapped.push_back(std::move(of));
    std::sort(result_.unmapped.begin(), result_.unmapped.end(),
              [](const UnmappedEvents& a, const UnmappedEvents& b) {
                return std::tuple(-a.seconds, a.name, a.category) <
                       std::tuple(-b.seconds, b.name, b.category);
              });
  }

  const KinetoTrace& trace_;
  const KinetoMapping& mapping_;
  const std::string& origin_;
  std::vector<EventMatcher> matchers_;
  std::vector<Step> steps_;
  std::int64_t origin_ns_ = 0;
  std::vector<bool> is_step_;       // by event
  std::vector<std::size_t> rules_;  // by event
  std::vector<std::vector<std::size_t>> events_of_threads_;
  std::map<std::string, std::vector<Interval>> mapped_;  // by lane; the id is a rule
  std::vector<Interval> unmapped_, all_mapped_;          // the id of the first is an event
  KinetoImport result_;
};

}  // namespace

KinetoImport import_kineto(const KinetoTrace& trace, const KinetoMapping& mapping,
                           const std::string& origin) {
  return Importer(trace, mapping, origin).run();
}

}  // namespace spillway
