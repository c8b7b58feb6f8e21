#include "sim/pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "base/errors.hpp"
#include "policies/pipeline/seeded.hpp"
#include "sim/activity_graph.hpp"

namespace spillway {

namespace {

// The passes, transfers and updates of all pipelines as activities. A transfer is two: its bytes on
// the link, then its latency.
class PipelineGraph {
 public:
  PipelineGraph(const PipelineShape& shape, const PipelineTimes& times,
                const std::vector<PassOrder>& orders, std::uint64_t seed,
                const std::vector<GuestWork>& guests)
      : shape_(shape), times_(times), orders_(orders), seed_(seed) {
    for (const GuestWork& guest : guests)
      guests_[{guest.pipeline, guest.gpu, guest.before}].push_back(&guest);
    add_links();
    for (int p = 0; p < times.pipelines; ++p) add_pipeline(p);
    for (int p = 0; p < times.pipelines; ++p) {
      add_edges_of(p);
      add_embedding_sum(p);
    }
    list_edges(graph_, edges_);
    graph_.describe = [this](std::uint32_t activity) { return names_[activity]; };
  }

  PipelineResult run() const {
    const std::vector<ActivityTimes> at = simulate_activities(graph_);
    PipelineResult result;
    double busy = 0;
    for (int p = 0; p < times_.pipelines; ++p) {
      auto& of_pipeline = result.passes.emplace_back();
      result.updates_begin_ns.emplace_back();
      result.updates_end_ns.emplace_back();
      for (std::size_t gpu = 0; gpu < orders_[index(p)].size(); ++gpu) {
        auto& passes = of_pipeline.emplace_back();
        for (std::size_t i = 0; i < orders_[index(p)][gpu].size(); ++i) {
          const ActivityTimes& times = at[passes_[index(p)][gpu][i]];
          passes.push_back({orders_[index(p)][gpu][i], times.start_ns, times.end_ns});
          busy += static_cast<double>(times.end_ns - times.start_ns);
          result.passes_ns = std::max(result.passes_ns, times.end_ns);
        }
        const ActivityTimes& update = at[updates_[index(p)][gpu]];
        result.updates_begin_ns.back().push_back(update.start_ns);
        result.updates_end_ns.back().push_back(update.end_ns);
        result.step_ns = std::max(result.step_ns, update.end_ns);
      }
    }
    for (const Sent& sent : sent_) {
      PipelineTransfer one = sent.transfer;
      one.ready_ns = at[sent.pass].end_ns;
      one.start_ns = at[sent.activity].start_ns;
      one.end_ns = at[sent.activity].end_ns;
      one.arrives_ns = at[sent.activity + 2].end_ns;
      result.transfers.push_back(one);
    }
    const auto gpus = static_cast<double>(shape_.gpus * times_.pipelines);
    if (result.step_ns > 0) result.busy = busy / gpus / static_cast<double>(result.step_ns);
    return result;
  }

 private:
  struct Sent {
    PipelineTransfer transfer;
    std::uint32_t pass = 0;      // that it follows
    std::uint32_t activity = 0;  // on the link; its latency and its arrival come after it
  };
  using Key = std::pair<std::pair<int, int>, std::pair<int, int>>;

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  std::uint32_t add_lane(std::string name, LaneOrder order, std::uint32_t width) {
    graph_.lanes.push_back({std::move(name), order, width});
    return static_cast<std::uint32_t>(graph_.lanes.size() - 1);
  }
  std::uint32_t add(const Activity& activity, std::string name) {
    graph_.activities.push_back(activity);
    names_.push_back(std::move(name));
    return static_cast<std::uint32_t>(graph_.activities.size() - 1);
  }
  void add_edge(std::uint32_t before, std::uint32_t after) { edges_.emplace_back(before, after); }

  void add_links() {
    const std::uint32_t many = 1u << 30;
    on_the_way_ = add_lane("on the way", LaneOrder::ready, many);
    for (std::size_t l = 0; l < times_.links.size(); ++l) {
      const PipelineLink& link = times_.links[l];
      resources_.push_back(static_cast<std::uint32_t>(graph_.resources.size()));
      if (link.capacity > 0) graph_.resources.push_back({link.name, link.capacity});
    }
  }

  void add_pipeline(int p) {
    passes_.emplace_back();
    updates_.emplace_back();
    for (int gpu = 0; gpu < shape_.gpus; ++gpu) {
      const std::uint32_t lane =
          add_lane(fmt::format("GPU {} of pipeline {}", gpu, p), LaneOrder::index, 1);
      std::vector<std::uint32_t>& activities = passes_.back().emplace_back();
      std::int64_t sum_ns = 0, update_ns = 0;
      for (const Pass& pass : orders_[index(p)][index(gpu)]) {
        add_guests(p, gpu, activities.size(), lane);
        const StageTimes& stage = times_.stages[index(pass.stage)];
        const std::uint32_t activity =
            add({lane, 0, 0, stage.of(pass)},
                fmt::format("{} of stage {} on micro-batch {} of pipeline {}", to_string(pass.kind),
                            pass.stage, pass.micro_batch, p));
        activities.push_back(activity);
        const bool gives =
            pass.kind != PassKind::weight_gradient && pass.kind != PassKind::recompute;
        if (gives)
          made_[{{p, pass.stage}, {pass.kind == PassKind::forward, pass.micro_batch}}] = activity;
      }
      for (int stage = 0; stage < shape_.stages(); ++stage) {
        if (shape_.gpu_of(stage) != gpu) continue;
        sum_ns += times_.stages[index(stage)].sum_ns;
        update_ns += times_.stages[index(stage)].update_ns;
      }
      add_guests(p, gpu, activities.size(), lane);
      const std::uint32_t sum =
          add({on_the_way_, 0, 0, sum_ns}, fmt::format("sums of GPU {} of pipeline {}", gpu, p));
      updates_.back().push_back(
          add({lane, 0, 0, update_ns}, fmt::format("updates of GPU {} of pipeline {}", gpu, p)));
      add_edge(activities.back(), sum);
      add_edge(sum, updates_.back().back());
    }
  }

  void add_guests(int p, int gpu, std::size_t before, std::uint32_t lane) {
    const auto found = guests_.find({p, gpu, before});
    if (found == guests_.end()) return;
    for (const GuestWork* guest : found->second) {
      const std::uint32_t clock = add({on_the_way_, 0, 0, guest->start_ns}, "a guest's clock");
      add_edge(clock, add({lane, 0, 0, guest->duration_ns},
                          fmt::format("work of others on GPU {} of pipeline {}", gpu, p)));
    }
  }

  std::uint32_t made(int p, bool forward, int stage, int micro_batch) const {
    const auto found = made_.find({{p, stage}, {forward, micro_batch}});
    SPILLWAY_ASSERT(found != made_.end(), "check_order() was passed");
    return found->second;
  }

  void add_edges_of(int p) {
    for (std::size_t gpu = 0; gpu < orders_[index(p)].size(); ++gpu) {
      const std::vector<Pass>& passes = orders_[index(p)][gpu];
      for (std::size_t i = 0; i < passes.size(); ++i) {
        const Pass& pass = passes[i];
        const std::uint32_t activity = passes_[index(p)][gpu][i];
        const bool forward = pass.kind == PassKind::forward;
        // On its own GPU the order says it, but for the last stage of all, whose loss is between.
        const StageHop* hop = times_.hop_after(pass);
        if (hop == nullptr) continue;
        const int to = forward ? pass.stage + 1 : pass.stage - 1;
        const std::uint32_t user = made(p, forward, to, pass.micro_batch);
        if (hop->link < 0) {
          add_edge(activity, user);
          continue;
        }
        const std::uint32_t arrival = send(p, *hop, activity, pass, to);
        add_edge(arrival, user);
        if (times_.sends_wait)
          add_edge(arrival,
                   i + 1 < passes.size() ? passes_[index(p)][gpu][i + 1] : updates_[index(p)][gpu]);
      }
    }
  }

  // Both copies of a tied embedding wait for it.
  void add_embedding_sum(int p) {
    const std::size_t first = index(shape_.gpu_of(0));
    const std::size_t last = index(shape_.gpu_of(shape_.stages() - 1));
    if (times_.embedding_ns == 0 || first == last) return;
    const std::uint32_t sum =
        add({on_the_way_, 0, 0, times_.embedding_ns},
            fmt::format("sum of the embedding's gradients of pipeline {}", p));
    for (const std::size_t gpu : {first, last}) {
      add_edge(updates_[index(p)][gpu] - 1, sum);  // after the sums over replicas
      add_edge(sum, updates_[index(p)][gpu]);
    }
  }

  // Returns the activity that ends when what was sent has arrived.
  std::uint32_t send(int p, const StageHop& hop, std::uint32_t after, const Pass& pass, int to) {
    const PipelineLink& link = times_.links[index(hop.link)];
    const std::string name = fmt::format("{} from stage {} to {}, micro-batch {} of pipeline {}",
                                         link.name, pass.stage, to, pass.micro_batch, p);
    const std::uint32_t activity =
        add({lane_of(hop, link.in_turns ? 0 : p, shape_.gpu_of(pass.stage), shape_.gpu_of(to)),
             demand_of(hop), hop.bytes, 0},
            name);
    add({on_the_way_, 0, 0, hop.latency_ns + jitter_ns(link)}, name);
    const std::uint32_t arrival = add({on_the_way_, 0, 0, 0}, name);
    add_edge(after, activity);
    add_edge(activity, activity + 1);
    add_edge(activity + 1, arrival);
    // None overtakes another of its pipeline and boundary.
    const auto [before, is_first] = last_sent_.try_emplace({{p, pass.stage}, {to, 0}}, arrival);
    if (!is_first) add_edge(std::exchange(before->second, arrival), arrival);
    PipelineTransfer transfer;
    transfer.pipeline = p;
    transfer.link = hop.link;
    transfer.from = pass.stage;
    transfer.to = to;
    transfer.micro_batch = pass.micro_batch;
    sent_.push_back({transfer, after, activity});
    return arrival;
  }

  std::uint32_t lane_of(const StageHop& hop, int who, int from, int to) {
    const auto [known, is_new] = link_lanes_.try_emplace({who, from, to}, 0);
    if (is_new)
      known->second =
          add_lane(fmt::format("{}, GPU {} to {}", times_.links[index(hop.link)].name, from, to),
                   LaneOrder::ready, 1);
    return known->second;
  }

  std::uint32_t demand_of(const StageHop& hop) {
    const auto [known, is_new] = demands_.try_emplace(
        {hop.link, hop.rate}, static_cast<std::uint32_t>(graph_.demands.size()));
    if (is_new) {
      Demand demand;
      demand.rate_cap = hop.rate;
      if (times_.links[index(hop.link)].capacity > 0) demand.uses(resources_[index(hop.link)], 1);
      graph_.demands.push_back(std::move(demand));
    }
    return known->second;
  }

  std::int64_t jitter_ns(const PipelineLink& link) const {
    if (link.jitter_ns == 0) return 0;
    const double u = seeded_uniform(seed_, sent_.size());
    return static_cast<std::int64_t>(-std::log1p(-u) * static_cast<double>(link.jitter_ns));
  }

  const PipelineShape& shape_;
  const PipelineTimes& times_;
  const std::vector<PassOrder>& orders_;
  const std::uint64_t seed_;
  ActivityGraph graph_;
  std::vector<std::string> names_;  // by activity
  std::uint32_t on_the_way_ = 0;
  std::vector<std::uint32_t> resources_;  // by link, where it has a capacity
  std::map<std::tuple<int, int, int>, std::uint32_t> link_lanes_;  // by who takes turns, GPUs
  std::map<std::pair<int, double>, std::uint32_t> demands_;        // by link and rate
  std::vector<std::vector<std::vector<std::uint32_t>>> passes_;  // by pipeline, GPU, place in order
  std::vector<std::vector<std::uint32_t>> updates_;              // by pipeline and GPU
  std::map<std::tuple<int, int, std::size_t>, std::vector<const GuestWork*>> guests_;
  std::map<Key, std::uint32_t> made_;       // ((pipeline, stage), (forward, micro-batch)): the pass
  std::map<Key, std::uint32_t> last_sent_;  // ((pipeline, from), (to, 0)): the last arrival
  std::vector<Sent> sent_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges_;
};

}  // namespace

PipelineResult simulate_pipelines(const PipelineShape& shape, const PipelineTimes& times,
                                  const std::vector<PassOrder>& orders, std::uint64_t seed,
                                  const std::vector<GuestWork>& guests) {
  SPILLWAY_ASSERT(orders.size() == static_cast<std::size_t>(times.pipelines) &&
                  times.stages.size() == static_cast<std::size_t>(shape.stages()) &&
                  times.outputs.size() + 1 == times.stages.size() &&
                  times.gradients.size() == times.outputs.size());
  return PipelineGraph(shape, times, orders, seed, guests).run();
}

}  // namespace spillway
