#include "experiments/plots/gantt.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/units.hpp"
#include "experiments/plots/gantt_parts.hpp"
#include "experiments/plots/plot_axis.hpp"

namespace spillway {

namespace {

// Finer than a pixel of the largest picture, 1800 wide.
constexpr double picture_columns = 3000;

// On other lanes than the GPU's there is one kind a lane, so
// that grey copies can be read.
constexpr std::array<GanttClass, 9> classes = {{{"forward", "sky"},
                                                {"backward", "blue"},
                                                {"embedding, head", "black"},
                                                {"optimizer", "orange"},
                                                {"copy to the GPU", "green"},
                                                {"copy to the host", "grey"},
                                                {"SSD read", "purple"},
                                                {"SSD write", "vermillion"},
                                                {"between ranks", "yellow"}}};

// Index into classes; nothing for a barrier, which does no work.
std::optional<std::size_t> class_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::forward:
      return 0;
    case TaskKind::backward:
      return 1;
    case TaskKind::embed_forward:
    case TaskKind::head:
    case TaskKind::embed_backward:
      return 2;
    case TaskKind::optimizer:
    case TaskKind::gradient_norm:
    case TaskKind::gradient_add:
      return 3;
    case TaskKind::h2d:
      return 4;
    case TaskKind::d2h:
      return 5;
    case TaskKind::read:
      return 6;
    case TaskKind::write:
      return 7;
    case TaskKind::all_gather:
    case TaskKind::reduce_scatter:
    case TaskKind::all_reduce:
    case TaskKind::norms_reduce:
      return 8;
    case TaskKind::barrier:
      break;
  }
  return std::nullopt;
}

}  // namespace

std::span<const GanttClass> gantt_classes() { return classes; }

GanttWindow steady_step(const SimulationResult& result) {
  const std::vector<std::int64_t>& ends = result.step_ends_ns;
  const std::size_t step = ends.size() >= 4 ? ends.size() - 2 : ends.size() - 1;
  return {static_cast<int>(step), step > 0 ? ends[step - 1] : 0, ends[step]};
}

std::vector<GanttBox> boxes_of(const Schedule& schedule, const SimulationResult& result,
                               const GanttWindow& window) {
  const auto close = static_cast<std::int64_t>(
      static_cast<double>(window.end_ns - window.begin_ns) / picture_columns);
  std::vector<GanttBox> boxes;
  const auto tasks = schedule.tasks();
  for (int lane = 0; lane < lane_count; ++lane) {
    const std::size_t first = boxes.size();
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      const auto kind = class_of(tasks[t].kind);
      const SimulatedTask& when = result.tasks[t];
      if (static_cast<int>(tasks[t].lane) != lane || !kind || when.end_ns <= window.begin_ns ||
          when.start_ns >= window.end_ns || when.end_ns == when.start_ns)
        continue;
      const std::int64_t start = std::max(when.start_ns, window.begin_ns) - window.begin_ns;
      const std::int64_t end = std::min(when.end_ns, window.end_ns) - window.begin_ns;
      const bool goes_on = boxes.size() > first && boxes.back().of_class == *kind &&
                           start - boxes.back().end_ns <= close;
      if (goes_on) {
        boxes.back().end_ns = std::max(boxes.back().end_ns, end);
      } else {
        boxes.push_back({*kind, lane, start, end});
      }
    }
  }
  return boxes;
}

namespace {

// The end of the step's last forward task, and of its last task on the GPU but for an optimizer.
std::string phase_marks(const Schedule& schedule, const SimulationResult& result,
                        const GanttWindow& window, std::size_t rows) {
  std::array<std::int64_t, 2> ends{};  // forward, backward
  const auto tasks = schedule.tasks();
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    const Task& task = tasks[t];
    if (task.step != window.step || task.lane != Lane::gpu_compute) continue;
    if (task.phase != Phase::forward && task.phase != Phase::backward) continue;
    auto& end = ends[task.phase == Phase::forward ? 0 : 1];
    end = std::max(end, result.tasks[t].end_ns - window.begin_ns);
  }
  std::string marks;
  const std::array<const char*, 2> names = {"end of forward", "end of backward"};
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const double at = static_cast<double>(ends[i]) * 1e-9;
    if (at <= 0) continue;
    // Near the right edge the words stand on the left of the line.
    const bool is_right = ends[i] > (window.end_ns - window.begin_ns) / 5 * 4;
    marks += fmt::format(
        "set arrow from first {0:.9g}, first 0.45 to first {0:.9g}, first {1} nohead front "
        "linewidth 1 dashtype (4, 4) linecolor rgb black; set label \"{2}\" at first {0:.9g}, "
        "first 0.3 {3} front font \",12\" offset {4}, 0; ",
        at, static_cast<double>(rows) + 0.6, names[i], is_right ? "right" : "left",
        is_right ? -0.3 : 0.3);
  }
  return marks;
}

std::string name_of(const std::string& policy) { return policy.substr(0, policy.find(':')); }

// "alpha=0.2, snake=off; " of "greedysnake:alpha=0.2,snake=off".
std::string options_of(const std::string& policy) {
  std::string text;
  for (const char c : policy.substr(std::min(policy.size(), name_of(policy).size() + 1))) {
    text += c;
    if (c == ',') text += ' ';
  }
  return text.empty() ? text : text + "; ";
}

std::string subtitle(const Schedule& schedule, const SimulationResult& result,
                     const GanttWindow& window) {
  const Problem& problem = schedule.problem();
  const double seconds = static_cast<double>(window.end_ns - window.begin_ns) * 1e-9;
  const std::string ranks =
      problem.workload.ranks > 1 ? fmt::format(" on {} ranks", problem.workload.ranks) : "";
  return fmt::format(
      "{}{}, batch {}{} in {} micro-batch{} of {}, sequence {}, {}; step {} of {}, {}; {:.0f} "
      "tokens/s{}{}",
      options_of(schedule.policy()), problem.machine.name, problem.workload.batch, ranks,
      problem.workload.micro_batches(), problem.workload.micro_batches() == 1 ? "" : "es",
      problem.workload.micro_batch, problem.workload.sequence,
      problem.workload.precision == Precision::bf16 ? "bf16" : "fp32", window.step + 1,
      schedule.steps(), format_seconds(seconds), result.tokens_per_second,
      problem.overrides.empty()
          ? ""
          : fmt::format("; set by hand: {}", fmt::join(problem.overrides, ", ")),
      problem.machine.ssd.extrapolated() || result.extrapolated ? "; extrapolated" : "");
}

}  // namespace

Picture gantt_of(const Schedule& schedule, const SimulationResult& result,
                 const std::string& name) {
  const GanttWindow window = steady_step(result);
  const std::vector<GanttBox> boxes = boxes_of(schedule, result, window);
  std::array<int, lane_count> row{};
  std::vector<std::string> used_lanes;
  std::string tics;
  for (int lane = 0; lane < lane_count; ++lane) {
    const bool is_used = std::any_of(boxes.begin(), boxes.end(),
                                     [&](const GanttBox& box) { return box.lane == lane; });
    if (!is_used) continue;
    used_lanes.emplace_back(to_string(static_cast<Lane>(lane)));
    row[static_cast<std::size_t>(lane)] = static_cast<int>(used_lanes.size());
    tics += fmt::format("{}\"{}\" {}", tics.empty() ? "" : ", ", unmarked(used_lanes.back()),
                        used_lanes.size());
  }
  Picture picture{name, "gantt", {}, ""};
  std::vector<std::string> names, colours;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    std::string data;
    for (const GanttBox& box : boxes) {
      if (box.of_class != c) continue;
      data += fmt::format("{} {:.9g} {:.9g}\n", row[static_cast<std::size_t>(box.lane)],
                          static_cast<double>(box.start_ns) * 1e-9,
                          static_cast<double>(box.end_ns) * 1e-9);
    }
    if (data.empty()) continue;
    picture.data += data + "\n\n";
    names.emplace_back(classes[c].name);
    colours.emplace_back(classes[c].colour);
  }
  auto& variables = picture.variables;
  variables.emplace_back("title_text",
                         title_of(schedule.problem().model.name + ", " + name_of(schedule.policy()),
                                  subtitle(schedule, result, window)));
  variables.emplace_back("legend_at", "0.98");
  variables.emplace_back("height", std::to_string(210 + 50 * used_lanes.size()));
  variables.emplace_back("rows", std::to_string(used_lanes.size()));
  variables.emplace_back("kinds", std::to_string(names.size()));
  variables.emplace_back("kind_names", text_array(names));
  variables.emplace_back("kind_colours_of", text_array(colours));
  variables.emplace_back(
      "step_seconds",
      fmt::format("{:.9g}", static_cast<double>(window.end_ns - window.begin_ns) * 1e-9));
  variables.emplace_back("y_tics", gnuplot_text("set ytics (" + tics + ")"));
  variables.emplace_back("marks",
                         gnuplot_text(phase_marks(schedule, result, window, used_lanes.size())));
  return picture;
}

}  // namespace spillway
