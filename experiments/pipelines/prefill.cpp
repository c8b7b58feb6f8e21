#include "experiments/pipelines/prefill.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "policies/cost/costs.hpp"
#include "policies/model/units.hpp"
#include "policies/pipeline/seeded.hpp"

namespace spillway {

namespace {

struct IdleInterval {
  std::int64_t begin = 0, end = 0;
  bool operator<(const IdleInterval& other) const { return begin < other.begin; }
};

// When a worker is idle over all steps, less what was placed, in order.
class FreeTime {
 public:
  explicit FreeTime(std::vector<IdleInterval> idle) : idle_(std::move(idle)) {}

  // The first time from `from` on at which it is idle for `ns`; nothing: never.
  std::optional<std::int64_t> first(std::int64_t from, std::int64_t ns) const {
    auto at = std::upper_bound(idle_.begin(), idle_.end(), IdleInterval{from, from});
    if (at != idle_.begin() && std::prev(at)->end > from) --at;
    for (; at != idle_.end(); ++at) {
      const std::int64_t start = std::max(from, at->begin);
      if (start + ns <= at->end) return start;
    }
    return std::nullopt;
  }
  void take(std::int64_t start, std::int64_t end) {
    const auto after = std::upper_bound(idle_.begin(), idle_.end(), IdleInterval{start, start});
    SPILLWAY_ASSERT(after != idle_.begin());
    const auto it = std::prev(after);
    SPILLWAY_ASSERT(it->begin <= start && end <= it->end);
    const IdleInterval rest{end, it->end};
    it->end = start;
    if (rest.begin < rest.end) idle_.insert(after, rest);
  }

 private:
  std::vector<IdleInterval> idle_;
};

// Seconds of a layer's forward on prompts, whose tokens are rounded up to 64.
class PrefillTimes {
 public:
  PrefillTimes(const PipelinePlan& plan, const PrefillSettings& settings)
      : plan_(plan), settings_(settings) {}

  std::int64_t part_ns(std::int64_t tokens) {
    constexpr std::int64_t grid = 64;
    const std::int64_t whole = round_up(tokens, grid);
    const auto [known, is_new] = known_.try_emplace(whole, 0);
    if (is_new) known->second = seconds_of_layer(whole);
    const double layers = std::ceil(static_cast<double>(settings_.model.layers) / settings_.gpus);
    return std::llround(known->second * layers * 1e9);
  }

 private:
  double seconds_of_layer(std::int64_t tokens) const {
    Problem problem = plan_.request.problem;
    problem.model = settings_.model;
    problem.workload.batch = problem.workload.micro_batch = 1;
    problem.workload.ranks = 1;
    problem.workload.sequences_at_once = 1;
    problem.workload.sequence = tokens;
    return Costs(problem).forward_seconds() / plan_.request.tensor +
           tensor_sum_seconds(problem, plan_.request.tensor);
  }

  const PipelinePlan& plan_;
  const PrefillSettings& settings_;
  std::map<std::int64_t, double> known_;
};

class PrefillController {
 public:
  PrefillController(const PipelinePlan& plan, const PrefillSettings& settings)
      : plan_(plan),
        settings_(settings),
        replicas_(plan.request.replicas),
        step_(plan.result->step_ns),
        times_(plan, settings) {
    find_rows();
    for (int replica = 0; replica < replicas_; ++replica) {
      for (int gpu = 0; gpu < plan.shape.gpus; ++gpu) free_.emplace_back(idle_of(replica, gpu));
    }
  }

  PrefillResult place(const std::vector<PrefillRequest>& requests) {
    PrefillResult result;
    result.requests = requests.size();
    double busy = 0, tokens = 0, offered = 0;
    for (std::size_t r = 0; r < requests.size(); ++r) {
      offered += static_cast<double>(settings_.gpus * times_.part_ns(requests[r].tokens));
      std::optional<PlacedPrefill> best = first_fit(requests[r]);
      if (!best) continue;
      best->request = r;
      for (int k = 0; k < settings_.gpus; ++k) {
        const auto at = static_cast<std::size_t>(k);
        free_of(best->replica, best->first_gpu + k).take(best->start_ns[at], best->end_ns[at]);
        busy += static_cast<double>(best->end_ns[at] - best->start_ns[at]);
      }
      tokens += static_cast<double>(requests[r].tokens);
      result.placed.push_back(std::move(*best));
    }
    const double all = static_cast<double>(settings_.steps) * static_cast<double>(step_);
    result.step_ns = step_;
    result.training_busy = plan_.result->busy;
    const double workers = replicas_ * plan_.shape.gpus;
    result.all_busy = plan_.result->busy + busy / all / workers;
    result.offered_busy = std::min(1.0, plan_.result->busy + offered / all / workers);
    result.tokens_per_second = tokens / (all * 1e-9);
    const double weights =
        (static_cast<double>(unit_elements(settings_.model, 0)) *
             std::ceil(static_cast<double>(settings_.model.layers) / settings_.gpus) +
         static_cast<double>(outer_elements(settings_.model))) *
        static_cast<double>(plan_.request.problem.parameter_bytes());
    result.weight_bytes = weights / plan_.request.tensor;
    result.weights_fit = plan_.memory.needed + result.weight_bytes <= plan_.memory.capacity;
    simulate_with(result);
    return result;
  }

 private:
  // The first workers of rows in one data centre, each row beginning where the one before it ends.
  void find_rows() {
    const std::vector<int>& center_of = plan_.center_of;
    for (int first = 0; first + settings_.gpus <= plan_.shape.gpus;) {
      const int last = first + settings_.gpus - 1;
      if (center_of[static_cast<std::size_t>(first)] == center_of[static_cast<std::size_t>(last)]) {
        rows_.push_back(first);
        first += settings_.gpus;
      } else {
        ++first;
      }
    }
    if (rows_.empty())
      throw InputError(fmt::format("prefill: no data centre has {} workers of a pipeline in a row",
                                   settings_.gpus),
                       "let a prefill go through fewer");
  }

  int pipeline_of(int replica) const { return replica % plan_.times.pipelines; }

  // A worker trains from a pass's begin to its end, and in its updates.
  std::vector<IdleInterval> idle_of(int replica, int gpu) const {
    const auto p = static_cast<std::size_t>(pipeline_of(replica));
    const auto g = static_cast<std::size_t>(gpu);
    std::vector<IdleInterval> busy;
    for (const PipelinePass& pass : plan_.result->passes[p][g])
      busy.push_back({pass.start_ns, pass.end_ns});
    busy.push_back({plan_.result->updates_begin_ns[p][g], plan_.result->updates_end_ns[p][g]});
    std::vector<IdleInterval> idle;
    std::int64_t from = 0;
    const auto add = [&](std::int64_t until) {
      if (from + settings_.guard_ns < until) idle.push_back({from, until - settings_.guard_ns});
    };
    for (int step = 0; step < settings_.steps; ++step) {
      const std::int64_t base = step * step_;
      for (const IdleInterval& one : busy) {
        if (one.begin == one.end) continue;
        add(base + one.begin);
        from = base + one.end;
      }
    }
    add(settings_.steps * step_);
    return idle;
  }

  FreeTime& free_of(int replica, int gpu) {
    return free_[static_cast<std::size_t>(replica * plan_.shape.gpus + gpu)];
  }

  // What a worker hands to the next one, in time on the network of the data centre.
  std::int64_t hop_ns(std::int64_t tokens) const {
    const Machine::Cluster& cluster = plan_.request.problem.machine.cluster;
    if (!(cluster.nic > 0)) return 0;
    const double bytes = static_cast<double>(tokens * settings_.model.hidden) *
                         static_cast<double>(plan_.request.problem.activation_bytes());
    return cluster.nic_latency_ns + std::llround(bytes / cluster.nic * 1e9);
  }

  std::optional<PlacedPrefill> first_fit(const PrefillRequest& request) {
    const std::int64_t part = times_.part_ns(request.tokens), hop = hop_ns(request.tokens);
    std::optional<PlacedPrefill> best;
    for (int replica = 0; replica < replicas_; ++replica) {
      for (const int first : rows_) {
        const auto start = start_in_row(replica, first, request.arrival_ns, part, hop,
                                        best ? best->start_ns.front() : step_ * settings_.steps);
        if (!start) continue;
        PlacedPrefill placed;
        placed.replica = replica;
        placed.first_gpu = first;
        for (int k = 0; k < settings_.gpus; ++k) {
          placed.start_ns.push_back(*start + k * (part + hop));
          placed.end_ns.push_back(placed.start_ns.back() + part);
        }
        placed.ttft_ns = placed.end_ns.back() - request.arrival_ns;
        if (settings_.most_ttft_ns > 0 && placed.ttft_ns > settings_.most_ttft_ns) continue;
        best = std::move(placed);
      }
    }
    return best;
  }

  // The first time from `from` on, and before `until`, at which each worker of the row is idle for
  // its part when the part before it has arrived.
  std::optional<std::int64_t> start_in_row(int replica, int first, std::int64_t from,
                                           std::int64_t part, std::int64_t hop,
                                           std::int64_t until) {
    std::int64_t start = from;
    for (int k = 0; k < settings_.gpus;) {
      const std::int64_t offset = k * (part + hop);
      const auto free = free_of(replica, first + k).first(start + offset, part);
      if (!free || *free - offset >= until) return std::nullopt;
      k = *free == start + offset ? k + 1 : 0;
      start = *free - offset;
    }
    return start;
  }

  // Every step again, with the prefills on its GPUs.
  void simulate_with(PrefillResult& result) const {
    const int pipelines = plan_.times.pipelines, cells = replicas_ / pipelines;
    const PipelineOrder order(plan_.order);
    const std::vector<PassOrder> orders = order.passes(plan_.shape, plan_.times);
    result.slowest_step_ns = step_;
    // By step and cell.
    std::map<std::pair<std::int64_t, int>, std::vector<GuestWork>> guests;
    for (const PlacedPrefill& placed : result.placed) {
      for (std::size_t k = 0; k < placed.start_ns.size(); ++k)
        add_guests(placed, k, pipelines, guests);
    }
    SPILLWAY_ASSERT(cells >= 1);
    for (auto& [where, of_step] : guests) {
      std::stable_sort(of_step.begin(), of_step.end(), [](const GuestWork& a, const GuestWork& b) {
        return a.start_ns < b.start_ns;
      });
      const PipelineResult again =
          simulate_pipelines(plan_.shape, plan_.times, orders, plan_.request.seed, of_step);
      result.slowest_step_ns = std::max(result.slowest_step_ns, again.step_ns);
      for (std::size_t p = 0; p < again.passes.size(); ++p) {
        for (std::size_t g = 0; g < again.passes[p].size(); ++g) {
          for (std::size_t i = 0; i < again.passes[p][g].size(); ++i) {
            const PipelinePass &now = again.passes[p][g][i],
                               &before = plan_.result->passes[p][g][i];
            if (now.start_ns != before.start_ns || now.end_ns != before.end_ns)
              result.passes_unchanged = false;
          }
        }
      }
    }
  }

  // A part that lies in two steps is two guests.
  void add_guests(const PlacedPrefill& placed, std::size_t k, int pipelines,
                  std::map<std::pair<std::int64_t, int>, std::vector<GuestWork>>& guests) const {
    const int gpu = placed.first_gpu + static_cast<int>(k);
    for (std::int64_t at = placed.start_ns[k]; at < placed.end_ns[k];) {
      const std::int64_t step = at / step_, base = step * step_;
      const std::int64_t end = std::min(placed.end_ns[k], base + step_);
      GuestWork guest;
      guest.pipeline = pipeline_of(placed.replica);
      guest.gpu = gpu;
      guest.start_ns = at - base;
      guest.duration_ns = end - at;
      guest.before = place_of(guest);
      if (guest.before != after_all) guests[{step, placed.replica / pipelines}].push_back(guest);
      at = end;
    }
  }

  static constexpr std::size_t after_all = static_cast<std::size_t>(-1);
  // The pass that comes after it; after the updates nothing does.
  std::size_t place_of(const GuestWork& guest) const {
    const auto p = static_cast<std::size_t>(guest.pipeline),
               g = static_cast<std::size_t>(guest.gpu);
    const std::vector<PipelinePass>& passes = plan_.result->passes[p][g];
    if (guest.start_ns >= plan_.result->updates_end_ns[p][g]) return after_all;
    const auto next = std::find_if(passes.begin(), passes.end(), [&](const PipelinePass& pass) {
      return pass.start_ns >= guest.start_ns + guest.duration_ns && pass.end_ns > pass.start_ns;
    });
    return static_cast<std::size_t>(next - passes.begin());
  }

  const PipelinePlan& plan_;
  const PrefillSettings& settings_;
  const int replicas_;
  const std::int64_t step_;
  PrefillTimes times_;
  std::vector<int> rows_;
  std::vector<FreeTime> free_;  // by replica and GPU
};

}  // namespace

std::vector<PrefillRequest> load_requests(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    throw InputError(path + ": no such file of requests", "check the spelling of the path");
  std::vector<PrefillRequest> requests;
  int number = 0;
  bool is_before_all = true;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.empty() || line.front() == '#') continue;
    double seconds = 0;
    long long tokens = 0;
    char rest = 0;
    if (std::sscanf(line.c_str(), "%lf , %lld %c", &seconds, &tokens, &rest) != 2) {
      const bool is_first = std::exchange(is_before_all, false);
      if (is_first && std::isalpha(static_cast<unsigned char>(line.front())) != 0)
        continue;  // the names of the columns
      throw InputError(path, number, "it is not arrival,tokens", "write for example 0.25,1024");
    }
    if (!(seconds >= 0) || seconds > 1e9 || tokens < 1 || tokens > 100'000'000)
      throw InputError(path, number, "there is no such request", "seconds from 0 on, and tokens");
    is_before_all = false;
    const PrefillRequest one{std::llround(seconds * 1e9), tokens};
    if (!requests.empty() && one.arrival_ns < requests.back().arrival_ns)
      throw InputError(path, number, "it arrives before the one above it",
                       "sort the file by arrival");
    requests.push_back(one);
  }
  return requests;
}

std::vector<PrefillRequest> poisson_requests(double rate, std::int64_t least, std::int64_t most,
                                             std::int64_t end_ns, std::uint64_t seed) {
  SPILLWAY_ASSERT(rate > 0 && least >= 1 && most >= least);
  constexpr double most_requests = 2e6;
  if (rate * static_cast<double>(end_ns) * 1e-9 > most_requests)
    throw InputError(fmt::format("{:g} requests a second are more than {:g} in {:.3g} s", rate,
                                 most_requests, static_cast<double>(end_ns) * 1e-9),
                     "look at fewer steps, or at fewer requests");
  std::vector<PrefillRequest> requests;
  double at = 0;
  for (std::uint64_t i = 0;; i += 2) {
    at += -std::log1p(-seeded_uniform(seed, i)) / rate * 1e9;
    if (at >= static_cast<double>(end_ns)) return requests;
    const double low = std::log(static_cast<double>(least));
    const double high = std::log(static_cast<double>(most) + 1);
    const double tokens = std::floor(std::exp(low + (high - low) * seeded_uniform(seed, i + 1)));
    requests.push_back({static_cast<std::int64_t>(at),
                        std::clamp(static_cast<std::int64_t>(tokens), least, most)});
  }
}

std::int64_t PrefillResult::ttft_ns(double share) const {
  if (placed.empty()) return 0;
  std::vector<std::int64_t> all;
  for (const PlacedPrefill& one : placed) all.push_back(one.ttft_ns);
  std::sort(all.begin(), all.end());
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(all.size())));
  return all[std::clamp<std::size_t>(rank, 1, all.size()) - 1];
}

PrefillResult place_prefills(const PipelinePlan& plan, const PrefillSettings& settings,
                             const std::vector<PrefillRequest>& requests) {
  SPILLWAY_ASSERT(plan.result && settings.gpus >= 1 && settings.steps >= 1);
  for (const PipelineLink& link : plan.times.links) {
    if (link.jitter_ns > 0)
      throw InputError("prefill: a controller that knows the schedule cannot know the WAN's jitter",
                       "leave jitter out, and let a guard gap stand for it");
  }
  return PrefillController(plan, settings).place(requests);
}

}  // namespace spillway
