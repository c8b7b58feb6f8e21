#include "policies/movement/meetings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/errors.hpp"
#include "policies/model/stages.hpp"

namespace spillway {

namespace {

// What crosses the boundary below a layer of the whole model: up its input, or down the gradient of
// that.
struct Boundary {
  std::int64_t layer = 0;
  std::int32_t micro_batch = 0;
  bool down = false;
  auto operator<=>(const Boundary&) const = default;
};

// When a message is sent: no two are sent at the same moment.
struct SentAt {
  std::int64_t time = 0;
  int stage = 0;
  VisitId visit = 0;
  auto operator<=>(const SentAt&) const = default;
};

std::int64_t duration(const Visit& visit) {
  const std::int64_t forward = visit.kind == VisitKind::backward ? 0 : 1;
  return visit.kind == VisitKind::weights ? 1
         : !is_backward(visit)            ? forward
                                          : forward + (visit.weights_later ? 1 : 2);
}

// The visits of one step of all stages, in time.
class StepOfStages {
 public:
  // Each stage's visits from `begins` on.
  StepOfStages(const std::vector<StageWork>& stages, std::vector<VisitId> begins, int step)
      : stages_(stages), next_(begins), begins_(std::move(begins)), step_(step) {
    free_.resize(stages.size());
    starts_.resize(stages.size());
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (std::size_t s = 0; s < stages.size(); ++s) {
        while (run_next(s)) goes_on = true;
      }
    }
    for (std::size_t s = 0; s < stages.size(); ++s) {
      if (is_over(s)) continue;
      const Visit& visit = visits(s)[next_[s]];
      throw InputError(
          fmt::format(
              "the policy's order of work: stage {} waits for ever for what its {} of layer "
              "{}, micro-batch {}, needs from another stage",
              s, is_backward(visit) ? "backward" : "forward",
              whole_layer(stages[s].model, visit.layer), visit.micro_batch),
          "what a call of Step needs has been computed by calls of the stages before it");
    }
  }

  const std::vector<VisitId>& ends() const { return next_; }

  void add_meetings_of(std::size_t s, std::vector<Meeting>& all) const {
    std::vector<std::pair<SentAt, Meeting>> found;
    for (VisitId v = begins_[s]; v < next_[s]; ++v) {
      if (const auto needs = received(s, v)) {
        const SentAt& sent = sent_.at(*needs);
        // Before the first visit that begins no earlier.
        const auto begin = starts_[s].begin();
        const auto at = std::lower_bound(begin, starts_[s].end(), sent.time) - begin;
        const VisitId before = std::min(v, begins_[s] + static_cast<VisitId>(at));
        const bool first = before == begins_[s];
        found.emplace_back(sent, Meeting{v, false, first ? before : before - 1, first});
      }
      if (const auto gives = sent(s, v))
        found.emplace_back(sent_.at(*gives), Meeting{v, true, v, false});
    }
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
      return std::tuple(a.second.at, !a.second.first, a.first) <
             std::tuple(b.second.at, !b.second.first, b.first);
    });
    for (const auto& [moment, meeting] : found) all.push_back(meeting);
  }

 private:
  const std::vector<Visit>& visits(std::size_t s) const { return stages_[s].work.visits; }
  bool is_over(std::size_t s) const {
    return next_[s] == visits(s).size() || visits(s)[next_[s]].step != step_;
  }

  std::optional<Boundary> received(std::size_t s, VisitId v) const {
    const Visit& visit = visits(s)[v];
    const ModelSpec& model = stages_[s].model;
    if (visit.kind == VisitKind::weights) return {};
    const std::int64_t layer = whole_layer(model, visit.layer);
    if (visit.kind == VisitKind::backward) {
      if (!sends_output(model, visit.layer)) return {};
      return Boundary{layer + 1, visit.micro_batch, true};
    }
    if (!receives_input(model, visit.layer)) return {};
    return Boundary{layer, visit.micro_batch, false};
  }
  std::optional<Boundary> sent(std::size_t s, VisitId v) const {
    const Visit& visit = visits(s)[v];
    const ModelSpec& model = stages_[s].model;
    if (visit.kind == VisitKind::weights) return {};
    const std::int64_t layer = whole_layer(model, visit.layer);
    if (is_backward(visit)) {
      if (!receives_input(model, visit.layer)) return {};
      return Boundary{layer, visit.micro_batch, true};
    }
    if (!sends_output(model, visit.layer)) return {};
    return Boundary{layer + 1, visit.micro_batch, false};
  }

  // False where the stage's next visit cannot run yet, or there is none.
  bool run_next(std::size_t s) {
    if (is_over(s)) return false;
    const VisitId v = next_[s];
    std::int64_t start = free_[s];
    if (const auto needs = received(s, v)) {
      const auto found = sent_.find(*needs);
      if (found == sent_.end()) return false;
      start = std::max(start, found->second.time);
    }
    starts_[s].push_back(start);
    free_[s] = start + duration(visits(s)[v]);
    if (const auto gives = sent(s, v)) sent_[*gives] = {free_[s], static_cast<int>(s), v};
    ++next_[s];
    return true;
  }

  const std::vector<StageWork>& stages_;
  std::vector<VisitId> next_;  // by stage
  const std::vector<VisitId> begins_;
  const int step_;
  std::vector<std::int64_t> free_;                 // by stage
  std::vector<std::vector<std::int64_t>> starts_;  // by stage and visit, ascending
  std::map<Boundary, SentAt> sent_;
};

}  // namespace

std::vector<Meeting> meetings(const std::vector<StageWork>& stages, int stage) {
  std::vector<Meeting> all;
  std::vector<VisitId> begins(stages.size(), 0);
  // What is for a later step is received in that step, which a stop may leave out.
  for (int step = 0; step < stages.front().work.steps; ++step) {
    const StepOfStages one(stages, begins, step);
    one.add_meetings_of(static_cast<std::size_t>(stage), all);
    begins = one.ends();
  }
  return all;
}

}  // namespace spillway
