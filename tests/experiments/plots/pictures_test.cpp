// Every picture drawn: no text leaves the canvas, and none lies over another.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "experiments/plan/evaluate.hpp"
#include "experiments/plan/problem_request.hpp"
#include "experiments/plots/gantt.hpp"
#include "experiments/plots/gantt_parts.hpp"
#include "experiments/plots/picture_layout.hpp"
#include "experiments/plots/plot_style.hpp"
#include "experiments/sweep/sweep.hpp"
#include "experiments/sweep/sweep_plots.hpp"
#include "policies/common/policy.hpp"
#include "test_paths.hpp"
#include "tests/experiments/plots/picture_check.hpp"
#include "tests/temporary_folder.hpp"

namespace spillway::test {
namespace {

bool has_gnuplot() {
  const bool found = std::system("gnuplot --version > /dev/null 2>&1") == 0;
  if (!found) WARN("there is no gnuplot");
  return found;
}

void check_readable(const Picture& picture) {
  const std::string svg = draw(picture, "svg");
  // SPILLWAY_PICTURES=FOLDER keeps what is drawn, to be looked at.
  if (const char* folder = std::getenv("SPILLWAY_PICTURES")) {
    std::ofstream(std::filesystem::path(folder) / (picture.name + ".png"), std::ios::binary)
        << draw(picture, "png");
  }
  INFO("picture " << picture.name);
  CHECK(flaws_of(svg) == std::vector<std::string>{});
}

// A picture with texts at places of its canvas, in pixels from its lower left corner.
Picture with_labels(const std::vector<std::string>& labels) {
  Picture picture{"labels", "winners", {}, {}, "1 1 \"\"\n\n\n", ""};
  picture.variables = {{"height", "300"},
                       {"series", "1"},
                       {"colours", text_array({"#FFFFFF"})},
                       {"cell_font", gnuplot_text(",12")}};
  picture.commands = {"set xtics ()", "set ytics ()"};
  for (const std::string& label : labels) picture.commands.push_back("set label " + label);
  return picture;
}

TEST_CASE("texts that are cut off or lie over each other are found") {
  if (!has_gnuplot()) return;
  const auto flaws = [](const std::vector<std::string>& labels) {
    return flaws_of(draw(with_labels(labels), "svg"));
  };
  CHECK(flaws({"'apart' at screen 0.2, screen 0.5", "'well apart' at screen 0.5, screen 0.5"})
            .empty());
  using Catch::Matchers::VectorContains;
  CHECK_THAT(flaws({"'cut at the right' at screen 0.95, screen 0.5"}),
             VectorContains(std::string("\"cut at the right\" leaves at a side")));
  CHECK_THAT(flaws({"'cut at the left' at screen 0.02, screen 0.5 center"}),
             VectorContains(std::string("\"cut at the left\" leaves at a side")));
  CHECK_THAT(flaws({"'upright' at screen 0.5, screen 0.99 rotate by 90 left"}),
             VectorContains(std::string("\"upright\" leaves above or below")));
  CHECK_THAT(flaws({"'one' at screen 0.5, screen 0.5", "'two' at screen 0.52, screen 0.5"}),
             VectorContains(std::string("\"two\" lies over \"one\"")));
  CHECK_THAT(flaws({"'slanted text' at screen 0.5, screen 0.5 rotate by 45",
                    "'crossing' at screen 0.52, screen 0.62"}),
             VectorContains(std::string("\"crossing\" lies over \"slanted text\"")));
  // Slanted lines beside each other keep apart, though boxes around them would not.
  CHECK(flaws({"'slanted' at screen 0.5, screen 0.5 rotate by 45",
               "'beside it' at screen 0.53, screen 0.5 rotate by 45"})
            .empty());
}

// Results that a sweep might have, drawn by lot: of some points none, some extrapolated.
SweepTable made_up_table(const SweepPlan& plan, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto number = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(random() % 10000) / 10000;
  };
  SweepTable table;
  table.columns = plan.keys;
  for (const char* name :
       {"status", "tokens_per_second", "step_seconds", "roofs.io_tokens_per_second",
        "roofs.compute_tokens_per_second", "phases.forward", "phases.backward", "phases.optimizer",
        "ssd_bytes_written_per_step", "extrapolated"})
    table.columns.emplace_back(name);
  // Seconds of one seed are those of another, thousandfold.
  const double scale = std::pow(10.0, static_cast<double>(seed % 5) - 2);
  for (const SweepPoint& point : plan.points) {
    std::vector<std::string> row = point.cells;
    const bool fits = random() % 4 != 0 && point.invalid.empty();
    const bool extrapolated = random() % 5 == 0;
    row.emplace_back(fits ? "ok" : "does not fit");
    for (const double value :
         {number(50, 90) / scale, number(1, 90) * scale, number(100, 300) / scale,
          number(200, 400) / scale, number(1, 9) * scale, number(2, 30) * scale,
          number(0, 50) * scale, number(1e9, 2e12)})
      row.push_back(fits ? fmt::format("{}", value) : "");
    row.emplace_back(fits && extrapolated ? "true" : "");
    table.rows.push_back(std::move(row));
    table.points.push_back(point.identity);
  }
  return table;
}

std::vector<std::filesystem::path> ready_sweeps() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(SPILLWAY_SOURCE_DIR) / "experiments/sweeps")) {
    if (entry.path().extension() == ".toml") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

TEST_CASE("the pictures of every ready sweep can be read, whatever its results") {
  if (!has_gnuplot()) return;
  std::set<std::string> kinds;
  for (const auto& path : ready_sweeps()) {
    const SweepPlan plan = plan_sweep(load_sweep(path.string()), "test");
    for (const std::uint32_t seed : {1u, 2u, 3u}) {
      const SweepTable table = made_up_table(plan, seed);
      for (const PlotRequest& request : plan.file.plots) {
        CAPTURE(path.filename().string(), seed);
        Picture picture = plot_of(plan, table, request);
        picture.name += fmt::format("-{}", seed);
        check_readable(picture);
        kinds.insert(request.kind);
      }
    }
  }
  CHECK(kinds == std::set<std::string>{"lines", "phases", "roofline", "winners"});
}

// The first value of each axis and the last; all policies but the one whose plans are searched for.
SweepFile reduced(SweepFile file) {
  for (SweepAxis& axis : file.axes) {
    SweepAxis few{axis.keys, {}, {}};
    for (std::size_t at = 0; at < axis.values.size(); ++at) {
      const bool is_policy = axis.keys.front() == "policy";
      const bool is_end = at == 0 || at + 1 == axis.values.size();
      if (is_policy ? axis.values[at].front() == "spillway" : !is_end) continue;
      few.values.push_back(axis.values[at]);
      few.places.push_back(axis.places[at]);
    }
    axis = std::move(few);
  }
  return file;
}

TEST_CASE("the pictures of ready sweeps can be read with the results of a few of their points",
          "[slow]") {
  if (!has_gnuplot()) return;
  for (const auto& path : ready_sweeps()) {
    SweepFile file = reduced(load_sweep(path.string()));
    if (file.plots.empty()) continue;
    const SweepPlan plan = plan_sweep(std::move(file), "test");
    const TemporaryFolder folder;
    SweepRun run;
    run.folder = folder.path();
    run.jobs = 2;
    const SweepOutcome outcome = run_sweep(plan, run, inspect_sweep(plan, run));
    for (const PlotRequest& request : plan.file.plots) {
      CAPTURE(path.filename().string());
      Picture picture = plot_of(plan, outcome.table, request);
      picture.name += "-reduced";
      check_readable(picture);
    }
  }
}

TEST_CASE("pictures with as much on them as there may be can be read") {
  if (!has_gnuplot()) return;
  const std::string long_title =
      "A title that says in one sentence everything that somebody who has never seen this picture "
      "before could want to know, and then goes on for a while";
  const std::string fixed = "name = \"" + long_title +
                            "\"\n[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\n"
                            "gradient_clip = \"global=1.5\"\n";
  const std::vector<std::string> files = {
      // Three policies, eight values of a second axis: colours and dashes apart.
      fixed +
          "[[axis]]\npolicy = [\"fuyou\", \"greedysnake\", \"zero-infinity\"]\n[[axis]]\n"
          "\"model.layers\" = [1, 2, 3, 4, 6, 8, 10, 12]\n[[axis]]\nbatch = [1, 2, 4, 8, 512]\n"
          "[[plot]]\nkind = \"lines\"\nname = \"two-axes\"\nx = \"batch\"\n"
          "y = \"ssd_bytes_written_per_step\"\n"
          "[[plot]]\nkind = \"roofline\"\nname = \"two-axes-roofline\"\n",
      // Long names: policies with options.
      fixed +
          "[[axis]]\npolicy = [\"fuyou:optimizer=serial\", \"fuyou:optimizer=naive\", "
          "\"greedysnake:alpha=0.25,snake=off,optimizer_ssd=0.5,retention=nearest\", "
          "\"spillway:order.row=1,order.updates=ascending,order.delayed=0,parameters.rest="
          "gpu:1,optimizer_state.rest=gpu:1,optimizer_state.embedding=host:1,optimizer_state."
          "ahead=0,optimizer_state.slots=0,checkpoints.rest=gpu:1\"]\n"
          "[[axis]]\n\"host.memory\" = [\"1GB\", \"2GB\", \"900GB\", \"20TB\"]\n"
          "[[plot]]\nkind = \"lines\"\nname = \"long-names\"\nx = \"host.memory\"\n"
          "[[plot]]\nkind = \"phases\"\nname = \"long-bars\"\n"
          "where = { \"host.memory\" = \"2GB\" }\n"
          "[[plot]]\nkind = \"phases\"\nname = \"long-groups\"\nx = \"policy\"\n"
          "[[plot]]\nkind = \"lines\"\nname = \"policies-side-by-side\"\nx = \"policy\"\n",
      // As many bars, as many cells as are allowed.
      fixed +
          "[[axis]]\npolicy = [\"fuyou\", \"greedysnake\", \"spillway\"]\n[[axis]]\n"
          "\"model.layers\" = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]\n"
          "[[axis]]\nbatch = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, "
          "19, 20]\n"
          "[[plot]]\nkind = \"phases\"\nname = \"many-bars\"\nx = \"policy\"\n"
          "where = { batch = 2 }\n"
          "[[plot]]\nkind = \"phases\"\nname = \"many-groups\"\nx = \"model.layers\"\n"
          "where = { batch = 2 }\n"
          "[[plot]]\nkind = \"winners\"\nname = \"many-cells\"\nx = \"batch\"\n"
          "y = \"model.layers\"\n"
          "[[plot]]\nkind = \"lines\"\nname = \"own-labels\"\nx = \"batch\"\n"
          "x_label = \"" +
          long_title + "\"\ny_label = \"" + long_title +
          "\"\nwhere = { \"model.layers\" = [1, 2, 3] }\n"};
  for (const std::string& text : files) {
    const SweepPlan plan = plan_sweep(parse_sweep(text, "s.toml"), "test");
    for (const std::uint32_t seed : {4u, 5u}) {
      const SweepTable table = made_up_table(plan, seed);
      for (const PlotRequest& request : plan.file.plots) {
        Picture picture = plot_of(plan, table, request);
        picture.name += fmt::format("-{}", seed);
        check_readable(picture);
      }
    }
  }
}

TEST_CASE("the Gantt chart of every policy can be read, and names lanes by words") {
  if (!has_gnuplot()) return;
  for (const PolicyInfo& info : builtin_policies()) {
    ProblemRequest request;
    request.model = "gpt-tiny";
    request.machine = info.for_several_ranks ? "a100-80gb-4gpu" : "testbed";
    request.workload = {{"batch", "4"}, {"micro_batch", "1"}, {"sequence", "64"}};
    if (info.for_several_ranks) request.workload["ranks"] = "4";
    const Evaluation evaluation = evaluate(request.problem(), info.name);
    CAPTURE(info.name);
    REQUIRE(evaluation.result);
    const Picture picture = gantt_of(evaluation.schedule, *evaluation.result, "gantt-" + info.name);
    check_readable(picture);
    const std::string svg = draw(picture, "svg");
    CHECK_THAT(svg, Catch::Contains("GPU compute") && !Catch::Contains("gpu.compute"));
  }
}

TEST_CASE("a Gantt chart of a stage says so, and names the lanes between stages") {
  ProblemRequest request;
  request.model = "gpt-13b";
  request.machine = "a100-80gb-4gpu";
  request.workload = {{"batch", "8"}, {"micro_batch", "1"}, {"pipeline", "4"}};
  const Evaluation evaluation = evaluate(request.problem(), "1f1b");
  REQUIRE(evaluation.result);
  const Picture picture = gantt_of(evaluation.schedule, *evaluation.result, "gantt-stage");
  check_readable(picture);
  const std::string svg = draw(picture, "svg");
  CHECK_THAT(svg, Catch::Contains("on 4 stages") && Catch::Contains("shown is stage 0"));
  CHECK_THAT(svg, Catch::Contains("stage: outputs go") && !Catch::Contains("stage.out"));
}

TEST_CASE("boxes of a Gantt chart are as long as their lanes are busy, however narrow the gaps") {
  ProblemRequest request;
  request.model = "gpt-13b";
  request.machine = "rtx4090-1ssd";
  request.workload = {{"batch", "12"}, {"micro_batch", "3"}};
  const Evaluation evaluation = evaluate(request.problem(), "zero-infinity:pipeline_read=on");
  REQUIRE(evaluation.result);
  const GanttWindow window = steady_step(*evaluation.result);
  std::array<std::int64_t, lane_count> drawn{}, busy{}, ends{};
  const std::vector<GanttBox> boxes = boxes_of(evaluation.schedule, *evaluation.result, window);
  for (const GanttBox& box : boxes) {
    const auto lane = static_cast<std::size_t>(box.lane);
    CHECK(box.start_ns >= ends[lane]);
    drawn[lane] += box.end_ns - box.start_ns;
    ends[lane] = box.end_ns;
  }
  const auto tasks = evaluation.schedule.tasks();
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    if (tasks[t].kind == TaskKind::barrier) continue;
    const SimulatedTask& when = evaluation.result->tasks[t];
    busy[static_cast<std::size_t>(tasks[t].lane)] += std::max<std::int64_t>(
        0, std::min(when.end_ns, window.end_ns) - std::max(when.start_ns, window.begin_ns));
  }
  CHECK(drawn == busy);
  CHECK(boxes.size() < tasks.size());
}

TEST_CASE("every policy has a colour of its own") {
  std::set<std::string> colours;
  for (const PolicyInfo& info : builtin_policies()) {
    INFO(info.name);
    CHECK(colours.insert(policy_style(info.name).colour).second);
    CHECK(policy_style(info.name + ":option=1").colour == policy_style(info.name).colour);
  }
  CHECK(colours.count(policy_style("somebody's own").colour) == 0);
}

}  // namespace
}  // namespace spillway::test
