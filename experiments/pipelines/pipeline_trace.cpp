#include "experiments/pipelines/pipeline_trace.hpp"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "base/errors.hpp"

namespace spillway {

namespace {

using nlohmann::ordered_json;

class PipelineTraceWriter {
 public:
  explicit PipelineTraceWriter(const PipelinePlan& plan) : plan_(plan), result_(*plan.result) {}

  std::string write(const PrefillResult* prefills) {
    for (std::size_t p = 0; p < result_.passes.size(); ++p) {
      name_process(static_cast<int>(p), fmt::format("pipeline {}", p));
      for (std::size_t gpu = 0; gpu < result_.passes[p].size(); ++gpu) write_gpu(p, gpu);
    }
    write_transfers();
    if (prefills != nullptr) write_prefills(*prefills);
    return ordered_json{{"displayTimeUnit", "ms"},
                        {"traceEvents", std::move(events_)},
                        {"otherData",
                         {{"order", plan_.order},
                          {"model", plan_.request.problem.model.name},
                          {"machine", plan_.request.problem.machine.name},
                          {"data_centers", plan_.request.centers.name},
                          {"step_ns", result_.step_ns}}}}
        .dump();
  }

 private:
  void name_process(int process, const std::string& name) {
    events_.push_back(
        {{"ph", "M"}, {"pid", process}, {"name", "process_name"}, {"args", {{"name", name}}}});
  }
  void name_track(int process, int track, const std::string& name) {
    events_.push_back({{"ph", "M"},
                       {"pid", process},
                       {"tid", track},
                       {"name", "thread_name"},
                       {"args", {{"name", name}}}});
  }
  void span(int process, int track, const std::string& name, std::int64_t begin, std::int64_t end,
            ordered_json args) {
    events_.push_back({{"ph", "X"},
                       {"pid", process},
                       {"tid", track},
                       {"name", name},
                       {"ts", static_cast<double>(begin) / 1000},
                       {"dur", static_cast<double>(end - begin) / 1000},
                       {"args", std::move(args)}});
  }

  void write_gpu(std::size_t p, std::size_t gpu) {
    const auto process = static_cast<int>(p), track = static_cast<int>(gpu);
    const int center = plan_.center_of[gpu];
    const auto& centers = plan_.request.centers.centers;
    name_track(process, track,
               fmt::format("GPU {}, {}", gpu, centers[static_cast<std::size_t>(center)].name));
    for (const PipelinePass& one : result_.passes[p][gpu])
      span(process, track, fmt::format("{} {}", to_string(one.pass.kind), one.pass.micro_batch),
           one.start_ns, one.end_ns,
           {{"stage", one.pass.stage}, {"micro_batch", one.pass.micro_batch}});
    const std::int64_t last = result_.passes[p][gpu].back().end_ns;
    if (result_.updates_begin_ns[p][gpu] > last)
      span(process, track, "gradients are summed", last, result_.updates_begin_ns[p][gpu],
           ordered_json::object());
    if (result_.updates_end_ns[p][gpu] > result_.updates_begin_ns[p][gpu])
      span(process, track, "update", result_.updates_begin_ns[p][gpu],
           result_.updates_end_ns[p][gpu], ordered_json::object());
  }

  // A track for each way of each boundary; pipelines that do not take turns have their own.
  void write_transfers() {
    const int process = static_cast<int>(result_.passes.size());
    name_process(process, "transfers");
    std::map<std::tuple<int, int, int>, int> tracks;
    for (const PipelineTransfer& one : result_.transfers) {
      const PipelineLink& link = plan_.times.links[static_cast<std::size_t>(one.link)];
      const int who = link.in_turns ? 0 : one.pipeline;
      const auto [track, is_new] =
          tracks.try_emplace({who, one.from, one.to}, static_cast<int>(tracks.size()));
      if (is_new)
        name_track(process, track->second,
                   fmt::format("{}, stage {} to {}", link.name, one.from, one.to));
      span(process, track->second, fmt::format("micro-batch {}", one.micro_batch), one.start_ns,
           one.end_ns,
           {{"pipeline", one.pipeline}, {"arrives_ns", one.arrives_ns}, {"link", link.name}});
    }
  }

  void write_prefills(const PrefillResult& prefills) {
    for (const PlacedPrefill& one : prefills.placed) {
      if (one.replica >= static_cast<int>(result_.passes.size())) continue;
      for (std::size_t k = 0; k < one.start_ns.size(); ++k) {
        if (one.start_ns[k] >= result_.step_ns) continue;
        span(one.replica, one.first_gpu + static_cast<int>(k),
             fmt::format("prefill {}", one.request), one.start_ns[k], one.end_ns[k],
             {{"ttft_ns", one.ttft_ns}});
      }
    }
  }

  const PipelinePlan& plan_;
  const PipelineResult& result_;
  ordered_json events_ = ordered_json::array();
};

}  // namespace

std::string pipeline_trace(const PipelinePlan& plan, const PrefillResult* prefills) {
  SPILLWAY_ASSERT(plan.result);
  return PipelineTraceWriter(plan).write(prefills);
}

}  // namespace spillway
