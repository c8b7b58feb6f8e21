// The table of a sweep and its CSV.
#include "experiments/sweep/sweep_table.hpp"

#include <catch2/catch.hpp>

#include <nlohmann/json.hpp>

#include "experiments/plan/candidates.hpp"
#include "experiments/plan/evaluate.hpp"
#include "experiments/sweep/sweep.hpp"
#include "policies/workload/workload_fields.hpp"
#include "test_paths.hpp"
#include "tests/temporary_folder.hpp"

namespace spillway {
namespace {

using Cells = std::vector<std::pair<std::string, std::string>>;
using Columns = std::vector<std::string>;

SweepPlan two_points() {
  return plan_sweep(parse_sweep("[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\n"
                                "policy = \"resident\"\n[[axis]]\nbatch = [2, 4]\n",
                                "s.toml"),
                    "test");
}

SweepTable table_of(const SweepPlan& plan, const std::string& first, const std::string& second) {
  return make_table(plan, {{plan.points[0].identity, first}, {plan.points[1].identity, second}});
}

TEST_CASE("a JSON object becomes cells with dotted names, in its order") {
  const auto object = nlohmann::ordered_json::parse(
      R"({"b": 1, "a": {"y": 0.1, "x": {"z": true}}, "list": [1, {"k": 2}], "no": null, "t": "a,b"})");
  CHECK(flatten(object) == Cells{{"b", "1"},
                                 {"a.y", "0.1"},
                                 {"a.x.z", "true"},
                                 {"list", "[1,{\"k\":2}]"},
                                 {"no", ""},
                                 {"t", "a,b"}});
}

TEST_CASE("columns are the union over all rows, new ones behind the one before them") {
  const SweepTable table = table_of(two_points(), R"({"status": "ok", "a": 1, "z": 2})",
                                    R"({"status": "ok", "a": 3, "new": 4, "z": 5})");
  CHECK(table.columns == Columns{"batch", "status", "reason", "hint", "a", "new", "z"});
  CHECK(table.rows[0] == Columns{"2", "ok", "", "", "1", "", "2"});
  CHECK(table.rows[1] == Columns{"4", "ok", "", "", "3", "4", "5"});
}

TEST_CASE("a part that only some rows have keeps its place and has no column of its own") {
  const SweepTable table =
      table_of(two_points(), R"({"status": "does not fit", "step": null, "phases": null, "n": 1})",
               R"({"status": "ok", "step": 2.5, "phases": {"f": 1, "b": 2}, "n": 1})");
  CHECK(table.columns ==
        Columns{"batch", "status", "reason", "hint", "step", "phases.f", "phases.b", "n"});
  CHECK(table.rows[0] == Columns{"2", "does not fit", "", "", "", "", "", "1"});
}

TEST_CASE("names that settings have too are those of the result, and clocks are left out") {
  const SweepTable table = table_of(
      two_points(), R"({"policy": "p", "schedule_seconds": 0.3, "simulate_seconds": 0.1})", "{}");
  CHECK(table.columns == Columns{"batch", "status", "reason", "hint", "result.policy"});
}

TEST_CASE("a setting that results say, too, has one column") {
  const SweepPlan plan =
      plan_sweep(parse_sweep("[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\n"
                             "policy = \"resident\"\n[[axis]]\nsteps = [2, 4]\n",
                             "s.toml"),
                 "test");
  const SweepTable table = table_of(plan, R"({"steps": 2, "a": 1})", R"({"steps": 4, "a": 2})");
  CHECK(table.columns == Columns{"steps", "status", "reason", "hint", "a"});
  CHECK(table.rows[1] == Columns{"4", "", "", "", "2"});
}

TEST_CASE("points without a result have no row") {
  const SweepPlan plan = two_points();
  CHECK(make_table(plan, {{plan.points[1].identity, R"({"status": "ok"})"}}).rows ==
        std::vector<Columns>{{"4", "ok", "", ""}});
}

TEST_CASE("CSV quotes what needs it and ends lines with CR LF (RFC 4180)") {
  const SweepTable table{
      {"a", "b c"}, {{"1", "x,y"}, {"say \"so\"", "two\nlines"}, {"", "plain"}}, {}};
  CHECK(to_csv(table) == "a,b c\r\n1,\"x,y\"\r\n\"say \"\"so\"\"\",\"two\nlines\"\r\n,plain\r\n");
}

TEST_CASE("a result holds all of simulate's fields, and roofs that throughput does not exceed") {
  const SweepPlan plan = two_points();
  EvaluationReuse reuse;
  const auto json = nlohmann::ordered_json::parse(evaluate_point(plan.points[0], reuse));
  CHECK(json["status"] == "ok");
  for (const char* key : {"policy", "model", "machine", "workload", "fits", "memory",
                          "step_seconds", "phases", "bound_by", "lanes", "tasks"}) {
    CHECK(json.contains(key));
  }
  // Resident training moves nothing: no I/O roof.
  CHECK(json["roofs"]["io_tokens_per_second"].is_null());
  CHECK(json["tokens_per_second"].get<double>() <=
        json["roofs"]["compute_tokens_per_second"].get<double>() * (1 + 1e-9));
}

TEST_CASE("a point fits the drives as `simulate` says: with the copies that commits keep") {
  const auto points = [](const std::string& more) {
    const SweepPlan plan = plan_sweep(
        parse_sweep("[fixed]\nmodel = \"gpt-13b\"\nmachine = \"rtx4090-12ssd\"\nbatch = 16\n"
                    "micro_batch = 16\n" +
                        more +
                        "[[axis]]\npolicy = [\"fuyou\", \"greedysnake:optimizer_ssd=0.5\"]\n"
                        "[[axis]]\n\"ssd.capacity\" = [\"250GB\", \"2TB\"]\n",
                    "s.toml"),
        "test");
    const test::TemporaryFolder folder;
    SweepRun run;
    run.folder = folder.path();
    return run_sweep(plan, run, inspect_sweep(plan, run)).table;
  };
  const SweepTable table = points("");
  const auto cell = [](const SweepTable& of, std::size_t row, const char* column) {
    return of.rows.at(row).at(of.find(column));
  };
  CHECK(cell(table, 0, "status") == "does not fit");
  CHECK_THAT(cell(table, 0, "reason"),
             Catch::Contains("with durability its store needs 333.66 GB"));
  CHECK(cell(table, 0, "memory.ssd.peak_bytes") == cell(table, 1, "memory.ssd.peak_bytes"));
  for (const std::size_t row : {std::size_t{1}, std::size_t{3}}) {
    Problem problem;
    problem.model = load_model("gpt-13b");
    problem.machine = load_machine("rtx4090-12ssd", {"ssd.capacity=2TB"});
    problem.workload =
        read_workload({{"batch", "16"}, {"micro_batch", "16"}}, problem.model, Precision::bf16);
    const Candidates found = evaluate_candidates(problem, false, {cell(table, row, "policy")}, {});
    const nlohmann::ordered_json json = to_json(found.all.at(0));
    CHECK(std::stod(cell(table, row, "memory.ssd.peak_bytes")) ==
          Approx(json["memory"]["ssd"]["peak_bytes"].get<double>()).epsilon(1e-6));
    CHECK(std::stod(cell(table, row, "ssd_bytes_written_per_step")) ==
          Approx(json["ssd_bytes_written_per_step"].get<double>()).epsilon(1e-6));
    CHECK(cell(table, row, "durability.commit_every") == json["durability"]["commit_every"].dump());
  }
  // Without them it is the tier alone.
  const SweepTable off = points("durability = \"off\"\n");
  CHECK(cell(off, 0, "status") == "ok");
  CHECK(cell(off, 0, "durability.commit_every") == "0");
  CHECK(std::stod(cell(off, 1, "memory.ssd.peak_bytes")) <
        0.6 * std::stod(cell(table, 1, "memory.ssd.peak_bytes")));
}

TEST_CASE("points of a machine with reference kernels are swept, in every way") {
  const std::string fixed = "[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"" SPILLWAY_SOURCE_DIR
                            "/tests/fuzz/corpus/machine/every-key.toml\"\nbatch = 4\n"
                            "policy = \"greedysnake\"\n";
  for (const char* more : {"micro_batch = 1\n", "", "micro_batch = 1\nsteps = 2\n"}) {
    const SweepPlan plan = plan_sweep(
        parse_sweep(fixed + more + "[[axis]]\nsequence = [64, 128]\n", "s.toml"), "test");
    const test::TemporaryFolder folder;
    SweepRun run;
    run.folder = folder.path();
    const SweepOutcome outcome = run_sweep(plan, run, inspect_sweep(plan, run));
    CHECK(outcome.ok + outcome.does_not_fit == 2);
  }
}

TEST_CASE("no throughput exceeds its roofs, for any policy") {
  const SweepPlan plan = plan_sweep(
      parse_sweep("[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\n[[axis]]\npolicy = "
                  "[\"zero-offload\", \"zero-infinity\", \"fuyou\", \"greedysnake\"]\n"
                  "[[axis]]\nbatch = [2, 8]\nmicro_batch = [2, 2]\n",
                  "s.toml"),
      "test");
  EvaluationReuse reuse;
  for (const SweepPoint& point : plan.points) {
    const auto json = nlohmann::json::parse(evaluate_point(point, reuse));
    INFO(point.cells.front());
    const double throughput = json["tokens_per_second"];
    CHECK(throughput <= json["roofs"]["io_tokens_per_second"].get<double>() * (1 + 1e-9));
    CHECK(throughput <= json["roofs"]["compute_tokens_per_second"].get<double>() * (1 + 1e-9));
  }
}

}  // namespace
}  // namespace spillway
