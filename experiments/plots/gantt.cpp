#include "experiments/plots/gantt.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "experiments/plots/gantt_parts.hpp"
#include "experiments/plots/picture_layout.hpp"
#include "experiments/plots/plot_axis.hpp"
#include "experiments/plots/text_size.hpp"

namespace spillway {

namespace {

// Finer than a pixel of the largest picture, 1800 wide.
constexpr double picture_columns = 3000;
constexpr double row_height = 46;  // of a lane, in pixels

// On other lanes than the GPU's there is one kind a lane, so that grey copies can be read.
constexpr std::array<GanttClass, 10> classes = {{{"forward", "#56B4E9"},
                                                 {"backward", "#0072B2"},
                                                 {"embedding, head", "#000000"},
                                                 {"optimizer", "#E69F00"},
                                                 {"copy to the GPU", "#009E73"},
                                                 {"copy to the host", "#606060"},
                                                 {"SSD read", "#CC79A7"},
                                                 {"SSD write", "#D55E00"},
                                                 {"between GPUs", "#F0E442"},
                                                 {"gradient of weights", "#8C564B"}}};

// Index into classes; nothing for a barrier, which does no work.
std::optional<std::size_t> class_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::forward:
      return 0;
    case TaskKind::backward:
    case TaskKind::input_gradient:
      return 1;
    case TaskKind::weight_gradient:
      return 9;
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
    case TaskKind::broadcast:
    case TaskKind::all_gather:
    case TaskKind::reduce_scatter:
    case TaskKind::all_reduce:
    case TaskKind::norms_reduce:
    case TaskKind::send:
    case TaskKind::receive:
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

namespace {

// Tasks of one kind on one lane with gaps between them that are too narrow to draw.
struct Run {
  std::size_t of_class = 0;
  int lane = 0;
  std::int64_t begin_ns = 0, end_ns = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> busy;  // from, to; ascending
};

// As one box where there are no gaps. Else every column of the picture has a box as wide as the
// tasks take of it, so that it is the paler the more of it is idle.
void add_boxes(const Run& run, std::int64_t column_ns, std::vector<GanttBox>& boxes) {
  std::map<std::int64_t, std::int64_t> columns;  // number -> ns
  std::int64_t busy = 0;
  for (const auto& [from, to] : run.busy) {
    busy += to - from;
    for (std::int64_t at = from; at < to;) {
      const std::int64_t column = at / column_ns, next = std::min(to, (column + 1) * column_ns);
      columns[column] += next - at;
      at = next;
    }
  }
  if (busy == run.end_ns - run.begin_ns) {
    boxes.push_back({run.of_class, run.lane, run.begin_ns, run.end_ns});
    return;
  }
  std::int64_t box_end = -1;
  for (const auto& [column, ns] : columns) {
    const std::int64_t from = std::max(run.begin_ns, column * column_ns);
    if (from == box_end)
      boxes.back().end_ns += ns;
    else
      boxes.push_back({run.of_class, run.lane, from, from + ns});
    box_end = boxes.back().end_ns;
  }
}

}  // namespace

std::vector<GanttBox> boxes_of(const Schedule& schedule, const SimulationResult& result,
                               const GanttWindow& window) {
  const auto close = std::max<std::int64_t>(
      1, static_cast<std::int64_t>(static_cast<double>(window.end_ns - window.begin_ns) /
                                   picture_columns));
  std::vector<GanttBox> boxes;
  const auto tasks = schedule.tasks();
  for (int lane = 0; lane < lane_count; ++lane) {
    Run run;
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      const auto kind = class_of(tasks[t].kind);
      const SimulatedTask& when = result.tasks[t];
      if (static_cast<int>(tasks[t].lane) != lane || !kind || when.end_ns <= window.begin_ns ||
          when.start_ns >= window.end_ns || when.end_ns == when.start_ns)
        continue;
      const std::int64_t start = std::max(when.start_ns, window.begin_ns) - window.begin_ns;
      const std::int64_t end = std::min(when.end_ns, window.end_ns) - window.begin_ns;
      const bool goes_on =
          !run.busy.empty() && run.of_class == *kind && start - run.end_ns <= close;
      if (!goes_on) {
        if (!run.busy.empty()) add_boxes(run, close, boxes);
        run = {*kind, lane, start, end, {}};
      }
      run.busy.emplace_back(start, end);
      run.end_ns = std::max(run.end_ns, end);
    }
    if (!run.busy.empty()) add_boxes(run, close, boxes);
  }
  return boxes;
}

namespace {

struct Mark {
  double seconds = 0;
  const char* text;
};

// The end of the step's last forward task, and of its last task on the GPU but for an optimizer.
std::vector<Mark> phase_marks(const Schedule& schedule, const SimulationResult& result,
                              const GanttWindow& window) {
  std::array<std::int64_t, 2> ends{};  // forward, backward
  const auto tasks = schedule.tasks();
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    const Task& task = tasks[t];
    if (task.step != window.step || task.lane != Lane::gpu_compute) continue;
    if (task.phase != Phase::forward && task.phase != Phase::backward) continue;
    auto& end = ends[task.phase == Phase::forward ? 0 : 1];
    end = std::max(end, result.tasks[t].end_ns - window.begin_ns);
  }
  std::vector<Mark> marks;
  const std::array<const char*, 2> names = {"last forward", "last backward"};
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (ends[i] > 0) marks.push_back({static_cast<double>(ends[i]) * 1e-9, names[i]});
  }
  return marks;
}

// A line through all rows at each mark, and its name above them: right of its line, and the last
// one left of it where the canvas or the name before it leaves no room. Two names with no room side
// by side stand one above the other.
void add_marks(Picture& picture, const PictureLayout& layout, const std::vector<Mark>& marks,
               double plot_height, double seconds, double divisor) {
  double taken_until = 0;  // pixels, of the names on the lower line
  for (const Mark& mark : marks) {
    const double at = mark.seconds / divisor;
    picture.commands.push_back(
        fmt::format("set arrow from first {0:.9g}, graph 0 to first {0:.9g}, graph 1 nohead front "
                    "linewidth 1 dashtype 7 linecolor rgb black",
                    at));
    const double width = text_width(mark.text, small_font) + 6;
    const double x = layout.left() + mark.seconds / seconds * layout.plot_width();
    const bool on_left = x + width > canvas_width - 4;
    const double begin = on_left ? x - width : x;
    std::vector<std::string> lines = {mark.text};
    if (begin < taken_until) lines.emplace_back("");
    taken_until = begin + width;
    for (std::string& label :
         labels_above(lines, at, plot_height, small_font, on_left ? "right" : "left"))
      picture.commands.push_back(std::move(label));
  }
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
      problem.workload.ranks > 1      ? fmt::format(" on {} ranks", problem.workload.ranks)
      : problem.workload.pipeline > 1 ? fmt::format(" on {} stages", problem.workload.pipeline)
                                      : "";
  // Steps may take turns.
  const std::string mean = format_seconds(result.step_seconds);
  const std::string beside = mean == format_seconds(seconds) ? "" : fmt::format(" (mean {})", mean);
  return fmt::format(
      "{}{}, batch {}{} in {} micro-batch{} of {}, sequence {}, {}; step {} of {}, {}{}; {:.0f} "
      "tokens/s{}{}{}",
      options_of(schedule.policy()), problem.machine.name, problem.workload.batch, ranks,
      problem.workload.micro_batches(), problem.workload.micro_batches() == 1 ? "" : "es",
      problem.workload.micro_batch, problem.workload.sequence,
      problem.workload.precision == Precision::bf16 ? "bf16" : "fp32", window.step + 1,
      schedule.steps(), format_seconds(seconds), beside, result.tokens_per_second,
      problem.overrides.empty()
          ? ""
          : fmt::format("; set by hand: {}", fmt::join(problem.overrides, ", ")),
      !result.extrapolates.empty() ? "; extrapolated" : "",
      problem.workload.pipeline > 1 ? fmt::format("; shown is stage {}", problem.rank) : "");
}

}  // namespace

Picture gantt_of(const Schedule& schedule, const SimulationResult& result,
                 const std::string& name) {
  const GanttWindow window = steady_step(result);
  const double seconds = static_cast<double>(window.end_ns - window.begin_ns) * 1e-9;
  const AxisScale scale = readable_scale("s", seconds);
  const std::vector<GanttBox> boxes = boxes_of(schedule, result, window);
  std::array<int, lane_count> row{};
  std::vector<std::string> lanes;
  for (int lane = 0; lane < lane_count; ++lane) {
    const bool is_used = std::any_of(boxes.begin(), boxes.end(),
                                     [&](const GanttBox& box) { return box.lane == lane; });
    if (!is_used) continue;
    lanes.push_back(lane_label(to_string(static_cast<Lane>(lane))));
    row[static_cast<std::size_t>(lane)] = static_cast<int>(lanes.size());
  }
  Picture picture{name, "gantt", {}, {}, "", ""};
  LegendGroup legend;
  std::vector<std::string> colours;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    std::string data;
    for (const GanttBox& box : boxes) {
      if (box.of_class != c) continue;
      data += fmt::format("{} {:.9g} {:.9g}\n", row[static_cast<std::size_t>(box.lane)],
                          static_cast<double>(box.start_ns) * 1e-9 / scale.divisor,
                          static_cast<double>(box.end_ns) * 1e-9 / scale.divisor);
    }
    if (data.empty()) continue;
    picture.data += data + "\n\n";
    legend.entries.push_back({classes[c].name, classes[c].colour, 0, 0, true});
    colours.emplace_back(classes[c].colour);
  }
  PictureParts parts;
  parts.title = schedule.problem().model.name + ", " + name_of(schedule.policy());
  parts.settings = subtitle(schedule, result, window);
  parts.legend = {legend};
  parts.x_label = "time in the step (" + scale.unit + ")";
  const double plot_height = row_height * static_cast<double>(lanes.size());
  parts.plot_height = plot_height;
  const std::vector<Mark> marks = phase_marks(schedule, result, window);
  parts.room_above = line_height(small_font) * static_cast<double>(marks.size());

  const AxisRange x{0, seconds / scale.divisor, false};
  const AxisRange y{static_cast<double>(lanes.size()) + 0.5, 0.5, false};  // the first row on top
  std::vector<Tick> rows;
  for (std::size_t i = 0; i < lanes.size(); ++i)
    rows.push_back({static_cast<double>(i + 1), 0, lanes[i]});
  picture.commands = x.commands("x");
  for (std::string& command : y.commands("y")) picture.commands.push_back(std::move(command));
  const PictureLayout layout(std::move(parts), std::move(rows), round_ticks(x), false);
  add_marks(picture, layout, marks, plot_height, seconds, scale.divisor);
  layout.add_to(picture);
  picture.variables.emplace_back("kinds", std::to_string(colours.size()));
  picture.variables.emplace_back("colours", text_array(colours));
  return picture;
}

}  // namespace spillway
