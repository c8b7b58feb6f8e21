#include "experiments/plots/gantt_pair.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/units.hpp"
#include "experiments/plots/gantt_parts.hpp"
#include "experiments/plots/picture_layout.hpp"
#include "experiments/plots/plot_axis.hpp"
#include "experiments/plots/text_size.hpp"
#include "sim/live_bytes.hpp"

namespace spillway {

namespace {

constexpr std::size_t memory_columns = 1500;  // finer than a pixel
constexpr double half_row = 0.38;
constexpr double row_height = 38;  // in pixels
constexpr const char* memory_colour = "#A0A0A0";
constexpr std::array memories = {Tier::gpu, Tier::host};

double seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

// Most bytes in use in each column of the window.
std::vector<std::uint64_t> most_by_column(const std::vector<LiveSample>& samples, Tier tier,
                                          const GanttWindow& window) {
  const auto length = static_cast<double>(window.end_ns - window.begin_ns);
  std::vector<std::uint64_t> most(memory_columns, 0);
  std::size_t column = 0;
  std::uint64_t live = 0;
  for (const LiveSample& sample : samples) {
    if (sample.series != static_cast<std::uint16_t>(tier)) continue;
    if (sample.time_ns >= window.end_ns) break;
    if (sample.time_ns > window.begin_ns) {
      const auto at = static_cast<std::size_t>(
          static_cast<double>(sample.time_ns - window.begin_ns) / length * memory_columns);
      const std::size_t until = std::min(at, memory_columns - 1);
      for (; column < until; ++column) most[column] = std::max(most[column], live);
      most[column] = std::max({most[column], live, sample.bytes});
    }
    live = sample.bytes;
  }
  for (; column < memory_columns; ++column) most[column] = std::max(most[column], live);
  return most;
}

// The chart of one plan: where its rows begin, and what is drawn.
class Panel {
 public:
  Panel(const char* letter, const SimulatedPlan& plan, int first_row, double divisor)
      : letter_(letter),
        plan_(plan),
        window_(steady_step(plan.result)),
        heading_row_(first_row),
        divisor_(divisor) {
    boxes_ = boxes_of(plan.schedule, plan.result, window_);
    int row = first_row;
    row_of_.fill(0);
    for (int lane = 0; lane < lane_count; ++lane) {
      const bool is_used = std::any_of(boxes_.begin(), boxes_.end(),
                                       [&](const GanttBox& box) { return box.lane == lane; });
      if (!is_used) continue;
      row_of_[static_cast<std::size_t>(lane)] = ++row;
      add_tick(lane_label(to_string(static_cast<Lane>(lane))), row);
    }
    const std::vector<LiveSample> samples =
        live_bytes(plan.schedule, plan.result.tasks,
                   static_cast<std::uint16_t>(plan.schedule.problem().machine.memories()),
                   [](const BufferInfo& one) { return static_cast<std::uint16_t>(one.tier); });
    for (const Tier tier : memories) add_memory(samples, tier, ++row);
    last_row_ = row;
  }

  int last_row() const { return last_row_; }
  const std::vector<Tick>& ticks() const { return ticks_; }
  const std::vector<std::string>& memory_blocks() const { return memory_blocks_; }

  // The boxes of one kind, as lines of data.
  std::string boxes(std::size_t of_class) const {
    std::string data;
    for (const GanttBox& box : boxes_) {
      if (box.of_class != of_class) continue;
      data += fmt::format("{} {:.9g} {:.9g}\n", row_of_[static_cast<std::size_t>(box.lane)],
                          on_axis(box.start_ns), on_axis(box.end_ns));
    }
    return data;
  }

  // A heading above the rows, and a line where the step ends.
  std::vector<std::string> marks(double plot_width) const {
    const Workload& workload = plan_.schedule.problem().workload;
    const std::string& policy = plan_.schedule.policy();
    const std::int64_t step_ns = window_.end_ns - window_.begin_ns;
    const std::string heading =
        shortened(fmt::format("{}, {}: {} a step, {} micro-batch{} of {}", letter_,
                              policy.substr(0, policy.find(':')),
                              format_seconds(plan_.result.step_seconds), workload.micro_batches(),
                              workload.micro_batches() == 1 ? "" : "es", workload.micro_batch),
                  plot_width, tick_font);
    return {
        fmt::format("set label {} at first 0, first {} left front font ',{:g}'",
                    gnuplot_text("{/:Bold " + unmarked(heading) + "}"), heading_row_ + 0.1,
                    tick_font),
        fmt::format("set arrow from first {0:.9g}, first {1} to first {0:.9g}, first {2} nohead "
                    "front linewidth 1 dashtype 7 linecolor rgb black",
                    on_axis(step_ns), heading_row_ + 0.5, last_row_ + 0.5)};
  }

 private:
  double on_axis(std::int64_t ns) const { return seconds(ns) / divisor_; }
  void add_tick(const std::string& label, int row) {
    ticks_.push_back({static_cast<double>(row), 0, label});
  }

  // What is in use as a share of what there is, as the height of a filled curve.
  void add_memory(const std::vector<LiveSample>& samples, Tier tier, int row) {
    const std::vector<std::uint64_t> most = most_by_column(samples, tier, window_);
    const std::uint64_t capacity = plan_.schedule.use(tier).capacity_bytes;
    const std::uint64_t peak = *std::max_element(most.begin(), most.end());
    add_tick(fmt::format("{} memory: {} of {}", tier == Tier::gpu ? "GPU" : "host",
                         format_bytes(static_cast<double>(peak)),
                         format_bytes(static_cast<double>(capacity))),
             row);
    const double all = static_cast<double>(std::max({capacity, peak, std::uint64_t{1}}));
    const double width = on_axis(window_.end_ns - window_.begin_ns) / memory_columns;
    std::string block;
    const auto point = [&](std::size_t column, std::uint64_t bytes) {
      const double bottom = row + half_row;
      block += fmt::format("{:.9g} {} {:.6g}\n", static_cast<double>(column) * width, bottom,
                           bottom - 2 * half_row * static_cast<double>(bytes) / all);
    };
    for (std::size_t begin = 0, end = 0; begin < most.size(); begin = end) {
      while (end < most.size() && most[end] == most[begin]) ++end;
      point(begin, most[begin]);
      point(end, most[begin]);
    }
    memory_blocks_.push_back(std::move(block));
  }

  const char* letter_;
  const SimulatedPlan& plan_;
  const GanttWindow window_;
  const int heading_row_;
  const double divisor_;  // of seconds, for the axis
  int last_row_ = 0;
  std::vector<GanttBox> boxes_;
  std::array<int, lane_count> row_of_{};
  std::vector<Tick> ticks_;
  std::vector<std::string> memory_blocks_;
};

std::string settings_text(const SimulatedPlan& a, const SimulatedPlan& b) {
  const Problem& problem = a.schedule.problem();
  const bool is_extrapolated = !a.result.extrapolates.empty() || !b.result.extrapolates.empty();
  return fmt::format("{}, batch {}, sequence {}, {}{}{}; A is {}; B is {}", problem.machine.name,
                     problem.workload.batch, problem.workload.sequence,
                     problem.workload.precision == Precision::bf16 ? "bf16" : "fp32",
                     problem.overrides.empty()
                         ? ""
                         : fmt::format("; set by hand: {}", fmt::join(problem.overrides, ", ")),
                     is_extrapolated ? "; extrapolated" : "", a.schedule.policy(),
                     b.schedule.policy());
}

double step_seconds(const SimulatedPlan& plan) {
  const GanttWindow window = steady_step(plan.result);
  return seconds(window.end_ns - window.begin_ns);
}

}  // namespace

Picture gantt_pair_of(const SimulatedPlan& a, const SimulatedPlan& b, const std::string& name) {
  const double longest = std::max(step_seconds(a), step_seconds(b));
  const AxisScale scale = readable_scale("s", longest);
  const Panel above("A", a, 1, scale.divisor);
  const Panel below("B", b, above.last_row() + 2, scale.divisor);
  Picture picture{name, "gantt_pair", {}, {}, "", ""};
  LegendGroup legend;
  std::vector<std::string> colours;
  for (std::size_t c = 0; c < gantt_classes().size(); ++c) {
    const std::string data = above.boxes(c) + below.boxes(c);
    if (data.empty()) continue;
    picture.data += data + "\n\n";
    legend.entries.push_back({gantt_classes()[c].name, gantt_classes()[c].colour, 0, 0, true});
    colours.emplace_back(gantt_classes()[c].colour);
  }
  legend.entries.push_back({"memory in use", memory_colour, 0, 0, true});
  std::size_t blocks = 0;
  for (const Panel* panel : {&above, &below}) {
    for (const std::string& block : panel->memory_blocks()) {
      picture.data += block + "\n\n";
      ++blocks;
    }
  }
  const int rows = below.last_row();
  PictureParts parts;
  parts.title = a.schedule.problem().model.name + ", one step of each";
  parts.settings = settings_text(a, b);
  parts.legend = {legend};
  parts.x_label = "time in the step (" + scale.unit + ")";
  parts.plot_height = row_height * rows;
  const AxisRange x{0, longest / scale.divisor, false};
  const AxisRange y{rows + 0.6, 0.4, false};  // the first row on top
  picture.commands = x.commands("x");
  for (std::string& command : y.commands("y")) picture.commands.push_back(std::move(command));
  std::vector<Tick> ticks = above.ticks();
  ticks.insert(ticks.end(), below.ticks().begin(), below.ticks().end());
  const PictureLayout layout(std::move(parts), std::move(ticks), round_ticks(x), false);
  for (const Panel* panel : {&above, &below}) {
    for (std::string& command : panel->marks(layout.plot_width()))
      picture.commands.push_back(std::move(command));
  }
  layout.add_to(picture);
  picture.variables.emplace_back("kinds", std::to_string(colours.size()));
  picture.variables.emplace_back("colours", text_array(colours));
  picture.variables.emplace_back("memories", std::to_string(blocks));
  picture.variables.emplace_back("memory_colour", gnuplot_text(memory_colour));
  return picture;
}

}  // namespace spillway
