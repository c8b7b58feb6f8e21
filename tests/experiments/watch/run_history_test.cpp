// What is told of a run from its events, and how it is shown.
#include "experiments/watch/run_history.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "experiments/watch/closing_table.hpp"
#include "experiments/watch/loss_curve.hpp"
#include "experiments/watch/terminal_curve.hpp"
#include "experiments/watch/training_line.hpp"

namespace spillway {
namespace {

using nlohmann::json;

json start(std::int64_t steps, std::int64_t first_step = 0) {
  return {{"event", "start"},
          {"model", "gpt-tiny"},
          {"policy", "resident"},
          {"steps", steps},
          {"first_step", first_step},
          {"time", 1000},
          {"workload", {{"batch", 8}, {"sequence", 125}}},
          {"memory", {{"gpu", {{"peak_bytes", 12e6}}}, {"host", {{"peak_bytes", 3e9}}}}},
          {"predicted_step_seconds", 0.4},
          {"flops", {{"model_per_step", 3e12}, {"device_per_second", 12e12}}},
          {"lane_bytes", {{"pcie.h2d", 5e9}, {"ssd.write", 1e9}}},
          {"evaluation", {{"batches", 3}, {"every", 10}}}};
}

json step(std::int64_t number, double loss, double seconds = 0.5) {
  return {{"event", "step"},          {"step", number},       {"loss", loss},
          {"step_seconds", seconds},  {"grad_norm", 0.987},   {"learning_rate", 3e-4},
          {"gpu_power_watts", 312.4}, {"gpu_clock_mhz", 1980}};
}

json evaluation(std::int64_t number, double loss) {
  return {{"event", "evaluation"}, {"step", number}, {"loss", loss}, {"seconds", 2.0}};
}

RunHistory history_of(std::int64_t steps, std::int64_t done) {
  RunHistory history;
  history.take(start(steps));
  for (std::int64_t i = 0; i < done; ++i) {
    if (i % 10 == 0) history.take(evaluation(i, 5.2 - 0.01 * static_cast<double>(i)));
    history.take(step(i, 5 - 0.01 * static_cast<double>(i)));
  }
  return history;
}

std::size_t count(const std::string& text, const std::string& word) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; ++at) ++found;
  return found;
}

}  // namespace

TEST_CASE("Averages, speed, MFU and the time left follow from the events") {
  RunHistory history = history_of(100, 0);
  CHECK(history.steps_done() == 0);
  CHECK_FALSE(history.tokens_per_second());
  history.take(step(0, 4));
  history.take(step(1, 2));
  // Weights 0.95 and 1.
  CHECK(history.steps().back().loss_average == Approx((0.95 * 4 + 2) / 1.95));
  CHECK(*history.tokens_per_second() == Approx(1000 / 0.5));
  CHECK(*history.mfu() == Approx(3e12 / 0.5 / 12e12));
  CHECK(*history.steps().front().mfu == Approx(0.5));
  CHECK(history.steps().back().time == Approx(1001));
  CHECK(history.seconds_left() == Approx(98 * 0.5));
  // Of evaluations after 10, 20 ... 100 steps ten are left, and each takes 2 s.
  history.take(evaluation(0, 5));
  CHECK(history.seconds_left() == Approx(98 * 0.5 + 10 * 2));
  for (std::int64_t i = 2; i < 95; ++i) history.take(step(i, 2));
  CHECK(history.seconds_left() == Approx(5 * 0.5 + 1 * 2));
}

TEST_CASE("MFU is told only where the device's speed is known") {
  RunHistory history;
  json unknown = start(10);
  unknown["flops"]["device_per_second"] = nullptr;
  history.take(unknown);
  history.take(step(0, 4));
  CHECK_FALSE(history.mfu());
  CHECK_FALSE(history.steps().back().mfu);
  CHECK_THAT(training_line(history), !Catch::Contains("MFU"));
  CHECK_THAT(closing_table(history, {}), !Catch::Contains("MFU"));
}

TEST_CASE("A start forgets what it does again, and the average goes on from what is left") {
  RunHistory history = history_of(100, 25);
  const RunHistory before = history_of(100, 12);
  history.take({{"event", "end"}, {"interrupted", true}});
  CHECK(history.end() == RunHistory::End::interrupted);
  history.take(start(100, 12));
  CHECK(history.end() == RunHistory::End::none);
  CHECK(history.steps_done() == 12);
  CHECK(history.evaluations().size() == 2);
  RunHistory unbroken = before;
  history.take(step(12, 1));
  unbroken.take(step(12, 1));
  CHECK(history.steps().back().loss_average == Approx(unbroken.steps().back().loss_average));
}

TEST_CASE("Events that are not as they should be are left out") {
  RunHistory history = history_of(100, 3);
  for (const json& event :
       {json::array(), json{{"event", "step"}}, json{{"event", "step"}, {"step", "3"}, {"loss", 1}},
        json{{"event", "step"}, {"step", 3}, {"loss", nullptr}},
        json{{"event", "step"}, {"step", -3}, {"loss", 1}},
        json{{"event", "evaluation"}, {"loss", 1}}, json{{"event", 5}},
        json{{"step", 3}, {"loss", 1.0}}})
    history.take(event);
  CHECK(history.steps().size() == 3);
  CHECK(history.evaluations().size() == 1);
  // Of a start, what can be read.
  history.take({{"event", "start"}, {"steps", "many"}, {"workload", 7}, {"memory", {{"gpu", 1}}}});
  CHECK(history.steps_done() == 0);
  history.take(step(0, 3));
  CHECK_THAT(training_line(history), Catch::StartsWith("step 1/0  loss 3.0000"));
}

TEST_CASE("The line of a training holds as much as fits, what matters most the longest") {
  RunHistory history = history_of(1000, 21);
  history.take(step(21, 4.5));
  CHECK(training_line(history) ==
        "step   22/1000  loss 4.5000  average 4.8533  evaluation 5.0000  norm 0.987  lr 3.00e-04  "
        "2.00k tokens/s  MFU 50.0 %  312 W  1980 MHz  gpu 12.00 MB  host 3.00 GB  h2d 10.0 GB/s  "
        "w 2.0 GB/s  ETA 11:25");
  CHECK(training_line(history, 80) ==
        "step   22/1000  loss 4.5000  average 4.8533  2.00k tokens/s  ETA 11:25");
  CHECK(training_line(history, 40) == "step   22/1000  loss 4.5000");
  CHECK(training_line(history, 10) == "step   22/");
  for (std::size_t width = 1; width < 300; ++width) {
    CHECK(training_line(history, width).size() <= width);
    CHECK(training_line(history, width + 1).size() >= training_line(history, width).size());
  }
}

TEST_CASE("Numbers of a line stay short") {
  CHECK(brief_number(0.25) == "0.2");
  CHECK(brief_number(99.4) == "99.4");
  CHECK(brief_number(999.4) == "999");
  CHECK(brief_number(999.96) == "1.00k");
  CHECK(brief_number(9994) == "9.99k");
  CHECK(brief_number(12345) == "12.3k");
  CHECK(brief_number(123456) == "123k");
  CHECK(brief_number(999'960) == "1.00M");
  CHECK(brief_number(1.5e9) == "1.50G");
}

TEST_CASE("The closing table says what a training has come to") {
  RunHistory history = history_of(40, 40);
  history.take(evaluation(40, 4.5));
  TrainingUse use;
  use.memory = {{"gpu", 11e6, 12e6}, {"host", 0, 0}};
  use.bytes_written = 5e9;
  use.rated_bytes = 1e15;
  use.before.drives = {{"/dev/nvme0n1", 1e12, 0.03}};
  use.after.drives = {{"/dev/nvme0n1", 1.006e12, 0.03}};
  CHECK(closing_table(history, use) ==
        "  steps       40 of 40, 40.0k tokens\n"
        "  loss        5.0000 first, 4.6100 last, 4.6100 best (step 40)\n"
        "  evaluation  5.2000 first, 4.5000 last, 4.5000 best (after step 40), perplexity 90.02 "
        "last\n"
        "  time        0:20 training, 0:10 evaluating\n"
        "  speed       2.00k tokens/s, MFU 50.0 %\n"
        "  step        500.00 ms (median), 25 % more than the predicted 400.00 ms\n"
        "  memory      gpu 11.00 MB of 12.00 MB planned\n"
        "  ssd         5.00 GB written in all by this run, with its first state and commits\n"
        "  drives      0.0005 % of what they are rated to be written; /dev/nvme0n1: 1.01 TB in its "
        "life, 6.00 GB since the start, 3 % of its life used\n");
  CHECK(closing_table(RunHistory(), use).empty());
}

TEST_CASE("The picture of a run is whole, its own, and of bounded size") {
  RunHistory history = history_of(200'000, 60);
  const std::string small = loss_curve_svg(history, "a <run> & more");
  CHECK_THAT(small, Catch::StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\"") &&
                        Catch::EndsWith("</svg>\n") && Catch::Contains("a &lt;run> &amp; more") &&
                        Catch::Contains("prefers-color-scheme: dark"));
  CHECK(count(small, "<circle") == 6);
  CHECK(count(small, "class=\"rate\"") == 2);  // its line, and in the legend
  for (const char* outside : {"href", "url(", "<image", "<script", "nan", "inf"})
    CHECK(count(small, outside) == 0);
  for (std::int64_t i = 60; i < 50'000; ++i)
    history.take(step(i, 4 + std::sin(0.1 * static_cast<double>(i))));
  CHECK(loss_curve_svg(history, "large").size() < 200'000);
  // Without steps, and with a single one, there is a picture all the same.
  CHECK_THAT(loss_curve_svg(RunHistory(), "none"), Catch::Contains("no step has ended yet"));
  const std::string one = loss_curve_svg(history_of(5, 1), "one");
  CHECK(count(one, "nan") + count(one, "inf") == 0);
}

TEST_CASE("The curve of a terminal has room for losses of any size") {
  RunHistory history;
  history.take(start(8));
  for (const double loss : {1e308, -1e308, 1e308, 0.0}) {
    history.take(evaluation(history.steps_done(), -loss));
    history.take(step(history.steps_done(), loss));
  }
  for (const std::string& line : loss_curve(history, 60, 8)) CHECK(line.size() <= 60);
}

TEST_CASE("The curve of a terminal falls as the loss does, within its room") {
  const RunHistory history = history_of(100, 60);
  const std::vector<std::string> lines = loss_curve(history, 60, 8);
  REQUIRE(lines.size() == 9);
  for (const std::string& line : lines) CHECK(line.size() <= 60);
  CHECK_THAT(lines[0], Catch::Contains("o"));  // the first evaluation is the highest
  CHECK(lines[7].find('*') > 50);              // the last average the lowest
  CHECK_THAT(lines[8], Catch::EndsWith("59"));
  CHECK(loss_curve(history, 12, 8).empty());
  CHECK(loss_curve(history_of(100, 1), 60, 8).empty());
}

}  // namespace spillway
