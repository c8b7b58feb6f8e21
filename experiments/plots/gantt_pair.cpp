#include "experiments/plots/gantt_pair.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/units.hpp"
#include "experiments/plots/gantt_parts.hpp"
#include "experiments/plots/plot_axis.hpp"
#include "policies/workload/workload_fields.hpp"
#include "sim/live_bytes.hpp"

namespace spillway {

namespace {

constexpr std::size_t memory_columns = 1500;  // finer than a pixel
constexpr double half_row = 0.38;
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
  Panel(const char* letter, const SimulatedPlan& plan, int first_row)
      : letter_(letter), plan_(plan), window_(steady_step(plan.result)), heading_row_(first_row) {
    boxes_ = boxes_of(plan.schedule, plan.result, window_);
    int row = first_row;
    row_of_.fill(0);
    for (int lane = 0; lane < lane_count; ++lane) {
      const bool is_used = std::any_of(boxes_.begin(), boxes_.end(),
                                       [&](const GanttBox& box) { return box.lane == lane; });
      if (!is_used) continue;
      row_of_[static_cast<std::size_t>(lane)] = ++row;
      add_tic(to_string(static_cast<Lane>(lane)), row);
    }
    const std::vector<LiveSample> samples =
        live_bytes(plan.schedule, plan.result, tier_count,
                   [](const BufferInfo& one) { return static_cast<std::uint16_t>(one.tier); });
    for (const Tier tier : memories) add_memory(samples, tier, ++row);
    last_row_ = row;
  }

  double step_seconds() const { return seconds(window_.end_ns - window_.begin_ns); }
  int last_row() const { return last_row_; }
  const std::string& tics() const { return tics_; }
  const std::vector<std::string>& memory_blocks() const { return memory_blocks_; }

  // The boxes of one kind, as lines of data.
  std::string boxes(std::size_t of_class) const {
    std::string data;
    for (const GanttBox& box : boxes_) {
      if (box.of_class != of_class) continue;
      data += fmt::format("{} {:.9g} {:.9g}\n", row_of_[static_cast<std::size_t>(box.lane)],
                          seconds(box.start_ns), seconds(box.end_ns));
    }
    return data;
  }

  // A heading above the rows, and a line where the step ends.
  std::string marks() const {
    const Workload& workload = plan_.schedule.problem().workload;
    const std::string& policy = plan_.schedule.policy();
    const std::string heading = fmt::format(
        "{}, {}: {} a step, {} micro-batch{} of {}", letter_, policy.substr(0, policy.find(':')),
        format_seconds(step_seconds()), workload.micro_batches(),
        workload.micro_batches() == 1 ? "" : "es", workload.micro_batch);
    return fmt::format(
        "set label {} at first 0, first {} left front; set arrow from first {:.9g}, first {} to "
        "first {:.9g}, first {} nohead front linewidth 1 dashtype (4, 4) linecolor rgb black; ",
        gnuplot_text("{/:Bold " + unmarked(heading) + "}"), heading_row_ + 0.1, step_seconds(),
        heading_row_ + 0.5, step_seconds(), last_row_ + 0.5);
  }

 private:
  void add_tic(const std::string& label, int row) {
    tics_ += fmt::format("{}\"{}\" {}", tics_.empty() ? "" : ", ", unmarked(label), row);
  }

  // What is in use as a share of what there is, as the height of a filled curve.
  void add_memory(const std::vector<LiveSample>& samples, Tier tier, int row) {
    const std::vector<std::uint64_t> most = most_by_column(samples, tier, window_);
    const std::uint64_t capacity = plan_.schedule.use(tier).capacity_bytes;
    const std::uint64_t peak = *std::max_element(most.begin(), most.end());
    add_tic(
        fmt::format("{} memory, {} of {}", to_string(tier), format_bytes(static_cast<double>(peak)),
                    format_bytes(static_cast<double>(capacity))),
        row);
    const double all = static_cast<double>(std::max({capacity, peak, std::uint64_t{1}}));
    const double width = step_seconds() / memory_columns;
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
  int last_row_ = 0;
  std::vector<GanttBox> boxes_;
  std::array<int, lane_count> row_of_{};
  std::string tics_;
  std::vector<std::string> memory_blocks_;
};

std::string settings_text(const SimulatedPlan& a, const SimulatedPlan& b) {
  const Problem& problem = a.schedule.problem();
  const bool is_extrapolated =
      problem.machine.ssd.extrapolated() || a.result.extrapolated || b.result.extrapolated;
  return fmt::format(
      "{}, batch {}, sequence {}, {}{}{}; A is {}; B is {}", problem.machine.name,
      problem.workload.batch, problem.workload.sequence, to_string(problem.workload.precision),
      problem.overrides.empty()
          ? ""
          : fmt::format("; set by hand: {}", fmt::join(problem.overrides, ", ")),
      is_extrapolated ? "; extrapolated" : "", a.schedule.policy(), b.schedule.policy());
}

// Of a gnuplot expression, in which a line ends with \n.
int lines_of(const std::string& text) {
  int lines = 1;
  for (std::size_t at = text.find("\\n"); at != text.npos; at = text.find("\\n", at + 2)) ++lines;
  return lines;
}

}  // namespace

Picture gantt_pair_of(const SimulatedPlan& a, const SimulatedPlan& b, const std::string& name) {
  const Panel above("A", a, 1);
  const Panel below("B", b, above.last_row() + 2);
  Picture picture{name, "gantt_pair", {}, ""};
  std::vector<std::string> names, colours;
  for (std::size_t c = 0; c < gantt_classes().size(); ++c) {
    const std::string data = above.boxes(c) + below.boxes(c);
    if (data.empty()) continue;
    picture.data += data + "\n\n";
    names.emplace_back(gantt_classes()[c].name);
    colours.emplace_back(gantt_classes()[c].colour);
  }
  std::size_t blocks = 0;
  for (const Panel* panel : {&above, &below}) {
    for (const std::string& block : panel->memory_blocks()) {
      picture.data += block + "\n\n";
      ++blocks;
    }
  }
  const int rows = below.last_row();
  auto& variables = picture.variables;
  const std::string title =
      title_of(a.schedule.problem().model.name + ", one step", settings_text(a, b));
  variables.emplace_back("title_text", title);
  variables.emplace_back("legend_at", "0.98");
  variables.emplace_back("height", std::to_string(180 + 38 * rows + 17 * lines_of(title)));
  variables.emplace_back("rows", std::to_string(rows));
  variables.emplace_back("kinds", std::to_string(names.size()));
  variables.emplace_back("kind_names", text_array(names));
  variables.emplace_back("kind_colours_of", text_array(colours));
  variables.emplace_back("memories", std::to_string(blocks));
  variables.emplace_back("longest_seconds", fmt::format("{:.9g}", std::max(above.step_seconds(),
                                                                           below.step_seconds())));
  variables.emplace_back(
      "y_tics", gnuplot_text(fmt::format("set ytics ({}, {})", above.tics(), below.tics())));
  variables.emplace_back("marks", gnuplot_text(above.marks() + below.marks()));
  return picture;
}

}  // namespace spillway
