// Where more of a resource stops paying: on made-up curves, and on machines that are simulated.
#include "experiments/questions/knee.hpp"

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "experiments/questions/knee_json.hpp"
#include "experiments/questions/knee_plot.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/temporary_folder.hpp"

namespace spillway {
namespace {

// Throughput 0: the value does not fit.
KneeCurve curve_of(const std::vector<double>& tokens_per_second, double threshold) {
  KneeCurve curve;
  curve.resource = "ssd.count";
  for (std::size_t i = 0; i < tokens_per_second.size(); ++i) {
    KneePoint point;
    point.value = static_cast<double>(i + 1);
    point.text = std::to_string(i + 1);
    point.tokens_per_second = tokens_per_second[i];
    if (tokens_per_second[i] == 0) point.why_not = "does not fit";
    curve.points.push_back(point);
  }
  find_knee(curve, threshold);
  return curve;
}

TEST_CASE("the knee is the least value beyond which none gains the threshold") {
  const KneeCurve curve = curve_of({10, 20, 30, 30.5, 30.6}, 0.03);
  REQUIRE(curve.knee);
  CHECK(curve.points[*curve.knee].value == 3);
  CHECK(*curve.points[0].next_gain == Approx(1));
  CHECK_FALSE(curve.points[4].next_gain);
  CHECK(curve.most_tokens_per_second == 30.6);
  CHECK(*curve_of({10, 20, 30, 30.2, 30.4, 30.5}, 0.01).knee == 3);
  // Small steps add up to what pays.
  CHECK(*curve_of({10, 10.2, 10.4, 10.6, 10.6, 10.6, 10.6}, 0.03).knee == 2);
}

TEST_CASE("a level stretch before a rise is no knee, and what still pays at the end has none") {
  CHECK(*curve_of({10, 10, 10, 20, 20.1}, 0.03).knee == 3);
  CHECK_FALSE(curve_of({10, 11, 12}, 0.03).knee);
  // Eleven is hardly more than ten: there may be more to come.
  CHECK_FALSE(curve_of({10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 102}, 0.03).knee);
  CHECK(*curve_of({10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 102}, 0.03).level_from == 9);
  CHECK(*curve_of({10, 10, 10}, 0.03).knee == 0);
  CHECK_FALSE(curve_of({10}, 0.03).knee);
}

TEST_CASE("values that do not fit are passed over") {
  const KneeCurve curve = curve_of({0, 0, 10, 10.1, 0, 10.2}, 0.03);
  REQUIRE(curve.knee);
  CHECK(*curve.knee == 2);
  CHECK_FALSE(curve.points[0].next_gain);
  CHECK(*curve.points[3].next_gain == Approx(10.2 / 10.1 - 1));
}

TEST_CASE("drives beyond the machine's table are no word on whether more of them pay") {
  KneeCurve curve = curve_of({10, 20, 20, 20}, 0.03);
  REQUIRE(curve.knee);  // as if all were known
  curve.table_ends = 2;
  curve.points[2].is_beyond_table = curve.points[3].is_beyond_table = true;
  for (KneePoint& point : curve.points) point.next_gain.reset();
  curve.knee = curve.level_from = std::nullopt;
  find_knee(curve, 0.03);
  CHECK_FALSE(curve.knee);
  CHECK(*curve.points[0].next_gain == Approx(1));
  CHECK_FALSE(curve.points[1].next_gain);
  CHECK(no_knee_text(curve) == "above 1: 2, as many as the machine file knows, still pays");
}

ProblemRequest tiny_request() {
  ProblemRequest request;
  request.model = "gpt-tiny";
  request.machine = "testbed";
  request.workload = {{"batch", "4"}, {"sequence", "64"}};
  return request;
}

struct Answer {
  Knees knees;
  Candidates now;
};

Answer ask(const ProblemRequest& request, const std::vector<std::string>& ranges,
           unsigned threads = 2, const std::string& policy = "zero-infinity") {
  KneeOptions options;
  options.threads = threads;
  options.plans = [&](const Problem& problem) {
    return evaluate_candidates(problem, true, {policy}, {});
  };
  Answer answer{{}, options.plans(request.problem())};
  REQUIRE(answer.now.chosen);
  std::vector<KneeRange> all;
  for (const std::string& range : ranges) all.push_back(parse_knee_range(range));
  answer.knees = find_knees(request, answer.now.all[*answer.now.chosen], all, options);
  return answer;
}

TEST_CASE("each point is the plan of the machine that it names") {
  const ProblemRequest request = tiny_request();
  const Answer answer = ask(
      request, {"ssd.count=1,2,4", "host.memory=30MB,1GB", "gpu.memory=32MB", "pcie=0.5,2", "cpu"});
  REQUIRE(answer.knees.curves.size() == 5);
  int points = 0;
  for (const KneeCurve& curve : answer.knees.curves) {
    INFO(curve.resource);
    REQUIRE(curve.why_not.empty());
    CHECK(curve.points[curve.now].set.empty());
    double before = 0;
    for (const KneePoint& point : curve.points) {
      INFO(point.text << " " << point.why_not);
      CHECK(point.value > before);
      before = point.value;
      if (point.set.empty() || !point.fits()) continue;
      ProblemRequest there = request;
      there.overrides = point.set;
      const Candidates found = evaluate_candidates(there.problem(), true, {"zero-infinity"}, {});
      REQUIRE(found.chosen);
      const SimulationResult& result = *found.all[*found.chosen].evaluation.result;
      CHECK(point.step_seconds == result.step_seconds);
      CHECK(point.bound_by == result.bound_by);
      ++points;
    }
  }
  CHECK(points >= 6);
}

TEST_CASE("a plan that is known at one value is not forgotten at those beside it") {
  const ProblemRequest request = tiny_request();
  // A search that finds something good with little memory alone.
  KneeOptions options;
  options.threads = 2;
  options.plans = [&](const Problem& problem) {
    const bool is_little = problem.machine.host.memory < 40'000'000;
    return evaluate_candidates(problem, true,
                               {is_little ? "zero-infinity:parameters=host" : "zero-infinity"}, {});
  };
  options.plan = [&](Problem problem, const std::string& policy, std::int64_t micro_batch) {
    problem.workload.micro_batch = micro_batch;
    return evaluate_candidates(problem, false, {policy}, {});
  };
  const Candidates found = options.plans(request.problem());
  const Candidate& now = found.all[*found.chosen];
  const Knees knees = find_knees(
      request, now, {parse_knee_range("host.memory=30MB,50MB,1GB"), {"pcie", {"2"}}}, options);
  REQUIRE(knees.faster_now);
  const double step = knees.faster_now->evaluation.result->step_seconds;
  CHECK(step < now.evaluation.result->step_seconds);
  for (const KneeCurve& curve : knees.curves) {
    INFO(curve.resource);
    // All curves have the machine as it is in common.
    CHECK(curve.points[curve.now].step_seconds == step);
    double before = 0;
    for (const KneePoint& point : curve.points) {
      REQUIRE(point.fits());
      CHECK(point.policy.find("parameters=host") != std::string::npos);
      CHECK(point.tokens_per_second >= before);
      before = point.tokens_per_second;
    }
  }
}

TEST_CASE("drives are tried up to the end of the machine's table") {
  const test::TemporaryFolder folder;
  ProblemRequest request = tiny_request();
  request.machine = folder / "mine.toml";
  std::ofstream(request.machine)
      << "name = \"mine\"\nparts = \"rtx3090+desktop-ddr4\"\n"
         "[ssd]\ncount = 2\ncapacity = \"4TB\"\nlaw = \"simplex\"\n"
         "[[ssd.by_count]]\ncount = 1\nread = \"3.3GB/s\"\nwrite = \"1.6GB/s\"\n"
         "[[ssd.by_count]]\ncount = 2\nread = \"6.4GB/s\"\nwrite = \"3.1GB/s\"\n"
         "[sources]\n\"ssd.by_count\" = \"fio\"\n";
  const KneeCurve of_table = ask(request, {"ssd.count"}).knees.curves[0];
  CHECK(of_table.table_ends == 2);
  CHECK(of_table.points.back().value == 2);
  const KneeCurve beyond = ask(request, {"ssd.count=1,16"}).knees.curves[0];
  REQUIRE(beyond.points.size() == 3);
  CHECK(beyond.points.back().is_beyond_table);
  CHECK(beyond.points.back().is_extrapolated);
  CHECK_FALSE(beyond.points[1].next_gain);
  CHECK_FALSE(beyond.knee);
  // Where there are more drives than the file knows, nothing is known of more.
  request.overrides = {"ssd.count=8"};
  const Answer unknown = ask(request, {"ssd.count=16"});
  CHECK(no_knee_text(unknown.knees.curves[0]) ==
        "not known: the machine file knows drives up to 2");
  CHECK(to_json(unknown.knees)["resources"][0]["most_tokens_per_second"].is_null());
}

TEST_CASE("each set of drives is varied by itself") {
  ProblemRequest request = tiny_request();
  request.overrides = {"ssd2.count=2", "ssd2.capacity=1TB", "ssd2.read=2GB/s", "ssd2.write=1GB/s"};
  const Answer answer = ask(request, {"ssd2.count=1,2,4", "ssd3.count"});
  const KneeCurve& second = answer.knees.curves[0];
  REQUIRE(second.points.size() == 3);
  CHECK(second.points[second.now].value == 2);
  CHECK(second.in_proportion);
  ProblemRequest there = request;
  there.overrides.insert(there.overrides.end(), second.points[2].set.begin(),
                         second.points[2].set.end());
  const Machine machine = there.problem().machine;
  CHECK(machine.drives(1).count == 4);
  CHECK(machine.drives(1).read == 4e9);
  CHECK(machine.ssd.read == request.problem().machine.ssd.read);
  CHECK(second.points[0].tokens_per_second < second.points[2].tokens_per_second);
  CHECK(resource_label(second.resource) == "number of SSDs of ssd2");
  CHECK(answer.knees.curves[1].why_not == "the machine file describes no set of drives ssd3");
}

TEST_CASE("a limit set by hand is what is varied") {
  ProblemRequest request = tiny_request();
  request.host_memory = "60MB";
  const Answer answer = ask(request, {"host.memory=40MB,60MB,80MB"});
  const KneeCurve& curve = answer.knees.curves[0];
  REQUIRE(curve.points.size() == 3);
  CHECK(curve.now == 1);
  CHECK(curve.points[1].value == 60e6);
}

TEST_CASE("the same answer comes on one thread and on several") {
  const std::vector<std::string> ranges = {"ssd.count=1,2,3", "pcie", "dram"};
  CHECK(to_json(ask(tiny_request(), ranges, 1).knees).dump() ==
        to_json(ask(tiny_request(), ranges, 4).knees).dump());
}

TEST_CASE("what is no resource, or no value of it, is refused with what would do") {
  check_error([] { parse_knee_range("ssd.cont"); }, "resource = ssd.cont", "ssd.count");
  check_error([] { parse_knee_range("ssd.count=0"); }, "resource = ssd.count=0", "ssd.count=1,2,4");
  check_error([] { parse_knee_range("ssd.count=2.5"); }, "resource = ssd.count=2.5", "whole");
  check_error([] { parse_knee_range("pcie=fast"); }, "resource = pcie=fast", "0.5,1,2");
  check_error([] { parse_knee_range("host.memory="); }, "resource = host.memory=", "values");
  CHECK(parse_knee_range("pcie=0.5x,2").values.size() == 2);
}

TEST_CASE("a picture has a line for each resource with two values that fit") {
  const Answer answer = ask(tiny_request(), {"ssd.count=1,2", "host.memory=1MB,2MB", "pcie=2"});
  REQUIRE(has_curves(answer.knees));
  const Picture picture = knee_picture(answer.knees, "title", "settings", "knee");
  const auto variable = [&](const std::string& name) {
    for (const auto& [key, value] : picture.variables) {
      if (key == name) return value;
    }
    FAIL("no variable " << name);
    return std::string();
  };
  // Of host memory only what there is fits.
  CHECK(variable("series") == "2");
  std::string texts;
  for (const std::string& command : picture.commands) texts += command;
  CHECK_THAT(texts, Catch::Contains("number of SSDs, now "));
}

}  // namespace
}  // namespace spillway
