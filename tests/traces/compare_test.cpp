// Comparisons whose answers are worked out by hand in the comments.
#include "traces/compare.hpp"

#include <catch2/catch.hpp>
#include <limits>

#include "base/errors.hpp"
#include "tests/traces/example_traces.hpp"

namespace spillway {
namespace {

constexpr std::int64_t ms = 1'000'000;
enum Kind : std::uint16_t { forward, backward, h2d, optimizer };
enum Lane : std::uint16_t { compute, in, out };
enum Phase : std::uint16_t { forward_phase, backward_phase, optimizer_phase, epilogue };

struct Work {
  std::uint32_t task;
  Kind kind;
  Lane lane;
  std::int32_t step;
  std::int64_t start_ms, end_ms;
};

void add(Trace& trace, std::int32_t segment, std::int64_t from_ms, const std::vector<Work>& works,
         Phase phase = forward_phase) {
  for (const Work& work : works) {
    Span span;
    span.task = work.task;
    span.kind = work.kind;
    span.lane = work.lane;
    span.phase = phase;
    span.segment = segment;
    span.step = work.step;
    span.layer = 5;
    span.start_ns = (from_ms + work.start_ms) * ms;
    span.end_ns = (from_ms + work.end_ms) * ms;
    trace.spans.push_back(span);
  }
}

const Quantity& row(const std::vector<Quantity>& rows, const std::string& name) {
  for (const Quantity& quantity : rows) {
    if (quantity.name == name) return quantity;
  }
  FAIL("no row " + name);
  return rows.front();
}

// Three steps, prefetching: h2d of a step runs before the step before has ended.
//   forward: 10 | 10 | 10 ms     ends D_0 = 14, D_1 = 24, D_2 = 36: step times 10 and 12, median 11
//   h2d:      4 |  2 |  4 ms
Trace three_steps() {
  Trace trace = empty_trace();
  add(trace, 0, 0,
      {{0, h2d, in, 0, 0, 4},
       {1, forward, compute, 0, 4, 14},
       {2, h2d, in, 1, 4, 6},
       {3, forward, compute, 1, 14, 24},
       {4, h2d, in, 2, 20, 24},
       {5, forward, compute, 2, 26, 36}});
  return trace;
}

TEST_CASE("step times: differences of step ends, without the first") {
  const StepTimes times = step_times(three_steps());
  CHECK(times.seconds == std::vector<double>{0.010, 0.012});
  CHECK(times.median_seconds == Approx(0.011));
  CHECK_FALSE(times.filling);
}

TEST_CASE("step times: the epilogue does not lengthen the last step") {
  Trace trace = three_steps();
  add(trace, 0, 0, {{6, optimizer, compute, 2, 36, 500}}, epilogue);
  CHECK(step_times(trace).seconds == std::vector<double>{0.010, 0.012});
}

TEST_CASE("step times: a single step counts from its first span") {
  Trace trace = empty_trace();
  add(trace, 0, 100, {{0, h2d, in, 3, 0, 4}, {1, forward, compute, 3, 4, 14}});
  const StepTimes times = step_times(trace);
  CHECK(times.seconds == std::vector<double>{0.014});
  CHECK(times.filling);
}

// Segments of two steps, steps numbered through: step times 10, 20, 40; the pause between segments
// and their first steps are not counted.
Trace three_segments() {
  Trace trace = empty_trace();
  std::int32_t step = 0;
  std::int64_t from_ms = 0;
  for (const std::int64_t duration_ms : {10, 20, 40}) {
    add(trace, step / 2, from_ms,
        {{0, forward, compute, step, 0, 100},
         {1, forward, compute, step + 1, 100, 100 + duration_ms}});
    step += 2;
    from_ms += 1000;
  }
  return trace;
}

TEST_CASE("several segments: steps are counted inside each, the median is over all") {
  const StepTimes times = step_times(three_segments());
  CHECK(times.seconds == std::vector<double>{0.010, 0.020, 0.040});
  CHECK(times.median_seconds == Approx(0.020));
}

// The prediction has the second step at 22 ms, the measurement at 20 ms (median): error +10 %.
// Forward per steady step: 22 ms against the median of 10, 20 and 40 ms. Task 0 agrees: 100 ms in
// all.
TEST_CASE("several measured segments enter as medians") {
  Trace predicted = empty_trace();
  add(predicted, 0, 0, {{0, forward, compute, 0, 0, 100}, {1, forward, compute, 1, 100, 122}});
  const TraceComparison result = compare_traces(predicted, three_segments());
  CHECK(result.error == Approx(0.10));
  CHECK(row(result.kinds, "forward").predicted_seconds == Approx(0.022));
  CHECK(row(result.kinds, "forward").measured_seconds == Approx(0.020));
  CHECK(row(result.kinds, "forward").error == Approx(0.10));
  CHECK(row(result.kinds, "forward").measured_count == 1);
  CHECK(result.matched_tasks == 2);
  CHECK_FALSE(result.first_divergence);
}

TEST_CASE("a trace compared with itself has no error anywhere") {
  const Trace trace = three_steps();
  const TraceComparison result = compare_traces(trace, trace);
  CHECK(result.error == 0);
  CHECK_FALSE(result.first_divergence);
  CHECK(result.matched_tasks == 6);
  CHECK(result.kinds.size() == 2);
  for (const Quantity& kind : result.kinds) CHECK(kind.error == 0);
}

// Steady steps are the second and third. forward: 10 + 10 ms in two steps = 10 ms a step; h2d: 2 +
// 4 = 3 ms. In a step of 11 ms the compute lane is busy 10/11, the h2d lane 3/11.
TEST_CASE("kinds and lanes are seconds per steady step") {
  const TraceComparison result = compare_traces(three_steps(), three_steps());
  REQUIRE(result.kinds.size() == 2);
  CHECK(result.kinds[0].name == "forward");
  CHECK(result.kinds[0].measured_seconds == Approx(0.010));
  CHECK(result.kinds[1].name == "h2d");
  CHECK(result.kinds[1].measured_seconds == Approx(0.003));
  CHECK(result.kinds[1].measured_count == 1);
  REQUIRE(result.lanes.size() == 2);
  CHECK(result.lanes[0].name == "gpu.compute");
  CHECK(result.lanes[0].measured_busy == Approx(10.0 / 11));
  CHECK(result.lanes[1].name == "pcie.h2d");
  CHECK(result.lanes[1].predicted_busy == Approx(3.0 / 11));
}

TEST_CASE("the sign: a prediction that is too fast has a negative error") {
  Trace measured = three_steps();
  for (Span& span : measured.spans) {
    span.start_ns *= 2;
    span.end_ns *= 2;
  }
  CHECK(compare_traces(three_steps(), measured).error == Approx(-0.5));
  CHECK(compare_traces(measured, three_steps()).error == Approx(1.0));
}

// Differences: task 1 190 us of 490 (39 %, but under 200 us), task 2 20 % of 10 ms (under 25 %),
// task 3 5 ms of 10 and task 4 5 ms of 10 (both over).
TEST_CASE("the first divergence is over both thresholds, in program order") {
  Trace predicted = empty_trace();
  add(predicted, 0, 0,
      {{0, forward, compute, 0, 0, 10},
       {4, backward, compute, 0, 50, 65},
       {3, backward, compute, 0, 30, 45},
       {2, forward, compute, 0, 20, 32},
       {1, h2d, in, 0, 0, 1}});
  predicted.spans.back().end_ns = 300'000;
  Trace measured = predicted;
  for (Span& span : measured.spans) {
    if (span.task >= 2) span.end_ns = span.start_ns + 10 * ms;
    if (span.task == 1) span.end_ns = span.start_ns + 490'000;
  }
  const TraceComparison result = compare_traces(predicted, measured);
  REQUIRE(result.first_divergence);
  CHECK(result.first_divergence->task == 3);
  CHECK(result.first_divergence->predicted_ns == 15 * ms);
  CHECK(result.first_divergence->measured_ns == 10 * ms);
  CHECK(result.first_divergence->description == "backward L5 on gpu.compute, step 0");
  CHECK(result.diverging_tasks == 2);

  const TraceComparison strict =
      compare_traces(predicted, measured, {.relative = 0.1, .absolute_ns = 100'000});
  CHECK(strict.first_divergence->task == 1);
  CHECK(strict.diverging_tasks == 4);
}

TEST_CASE("work that only one trace has is counted, not matched") {
  Trace predicted = three_steps();
  Trace measured = three_steps();
  add(predicted, 0, 0, {{8, optimizer, out, 2, 30, 31}});
  add(measured, 0, 0, {{9, backward, out, 2, 30, 31}});
  const TraceComparison result = compare_traces(predicted, measured);
  CHECK(result.matched_tasks == 6);
  CHECK(result.predicted_only_tasks == 1);
  CHECK(result.measured_only_tasks == 1);
  CHECK(row(result.kinds, "optimizer").error == std::numeric_limits<double>::infinity());
  CHECK(row(result.kinds, "backward").error == -1);
}

TEST_CASE("names may be numbered differently in the two traces") {
  Trace measured = three_steps();
  std::swap(measured.kinds[forward], measured.kinds[h2d]);
  for (Span& span : measured.spans) span.kind = span.kind == forward ? h2d : forward;
  const TraceComparison result = compare_traces(three_steps(), measured);
  CHECK(row(result.kinds, "forward").error == 0);
  CHECK_FALSE(result.first_divergence);
}

TEST_CASE("traces of different schedules are refused, and so is a trace without steps") {
  Trace other = three_steps();
  other.spans[3].kind = backward;
  CHECK_THROWS_AS(compare_traces(three_steps(), other), InputError);
  CHECK_THROWS_WITH(
      compare_traces(three_steps(), other),
      Catch::Matchers::Contains("task 3 is \"forward L5 on gpu.compute\" in the prediction"));
  CHECK_THROWS_AS(compare_traces(three_steps(), empty_trace()), InputError);
  Trace only_epilogue = empty_trace();
  add(only_epilogue, 0, 0, {{0, optimizer, compute, 0, 0, 1}}, epilogue);
  CHECK_THROWS_AS(step_times(only_epilogue), InputError);
}

}  // namespace
}  // namespace spillway
