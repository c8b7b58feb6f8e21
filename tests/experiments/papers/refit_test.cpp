// Constants as data: fitted, left out, and what they make of a point. All on a machine on which
// compute alone takes time, so that a step takes FLOPs / gpu.flops.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "experiments/papers/closed_form.hpp"
#include "experiments/papers/paper_report.hpp"
#include "policies/common/policy.hpp"
#include "policies/cost/costs.hpp"

namespace spillway {

namespace {

const char* const compute_machine = R"(
name = "only-compute"
[gpu]
memory = "1TB"
flops = { value = "1TFLOPS", source = "nobody" }
adam_rate = "1000000Tparam/s"
[pcie]
h2d = "1000TB/s"
d2h = "1000TB/s"
[host]
memory = "1TB"
bandwidth = "1000TB/s"
cores = 8
[ssd]
count = 0
)";

// Seconds of a step of so many sequences at a rate in TFLOP/s.
double step_at(double tflops, std::int64_t batch) {
  return 3 * load_model("gpt2-124m").forward_flops(batch, 256) / (tflops * 1e12);
}

std::string experiment(const std::string& name, const std::string& figure,
                       const std::vector<double>& published, const std::string& more = "",
                       const std::string& more_of_system = "") {
  std::string numbers, values;
  for (std::size_t i = 0; i < published.size(); ++i) {
    numbers += fmt::format("{}{:.9g}", i == 0 ? "" : ", ", published[i]);
    values += fmt::format("{}{}", i == 0 ? "" : ", ", 1 << i);
  }
  return fmt::format(
      "[[experiment]]\nname = \"{}\"\ntitle = \"T\"\nfigure = \"{}\"\nmodel = \"gpt2-124m\"\n"
      "sequence = 256\naxis = \"batch\"\nvalues = [{}]\n{}\n"
      "[[experiment.system]]\nname = \"theirs\"\npolicy = \"resident\"\npublished = [{}]\n{}\n",
      name, figure, values, more, numbers, more_of_system);
}

std::string constant(const std::string& seen, const std::string& more = "") {
  return fmt::format(
      "[[constant]]\nkey = \"machine.gpu.flops\"\nkind = \"continuous\"\nseen = [{}]\n"
      "bounds = [\"0.2TFLOPS\", \"5TFLOPS\"]\n{}\n",
      seen, more);
}

class ComputePaper {
 public:
  explicit ComputePaper(const std::string& text) {
    char name[] = "/tmp/refit-XXXXXX";
    folder_ = mkdtemp(name);
    std::ofstream(folder_ + "/machine.toml") << compute_machine;
    std::ofstream(folder_ + "/trial.toml")
        << "[paper]\nname = \"trial\"\ntitle = \"T\"\ncitation = \"nobody\"\n"
           "machine = \"machine.toml\"\nconstants = \"gpu.flops\"\n"
        << text;
  }
  ~ComputePaper() {
    for (const char* file : {"/machine.toml", "/trial.toml"}) std::remove((folder_ + file).c_str());
    std::remove(folder_.c_str());
  }
  Paper load() const { return load_paper(folder_ + "/trial.toml"); }
  std::string error() const {
    try {
      load();
    } catch (const InputError& error) {
      return std::string(error.what()) + " | " + error.hint();
    }
    return "";
  }

 private:
  std::string folder_;
};

}  // namespace

TEST_CASE("papers: a refit finds the rate that the published times were made with") {
  // Made at 2 TFLOP/s; the file says 1.
  const ComputePaper folder(experiment("a", "Fig. 1", {step_at(2, 1), step_at(2, 2)}) +
                            constant("\"a\""));
  const Paper paper = folder.load();
  const Refit found = refit_all(paper);
  REQUIRE(found.constants.size() == 1);
  CHECK(found.constants[0].factor == Approx(2).epsilon(0.01));
  CHECK(found.constants[0].determined);
  CHECK_FALSE(found.constants[0].at_bound);
  CHECK(found.before == Approx(1).epsilon(0.02));  // twice the time
  CHECK(found.after < 0.01);
  const auto json = to_json(paper, found);
  CHECK(json["constants"][0]["before"] == "1TFLOPS");
  CHECK(quantity_ratio(json["constants"][0]["value"].get<std::string>(), "1TFLOPS") ==
        Approx(2).epsilon(0.01));
  // Twice the same input gives the same answer.
  CHECK(refit_all(paper).constants[0].factor == found.constants[0].factor);
}

TEST_CASE("papers: a refit stops at the bounds, and says so") {
  const ComputePaper folder(experiment("a", "Fig. 1", {step_at(20, 1)}) + constant("\"a\""));
  const Refit found = refit_all(folder.load());
  CHECK(found.constants[0].factor == Approx(5));
  CHECK(found.constants[0].at_bound);
}

TEST_CASE("papers: a figure left out is predicted by what the others say") {
  // Figure 1 was made at 2 TFLOP/s, figure 2 at 4: each is predicted by the other's rate. Figure 3
  // shows the run of figure 1 again, and tells nothing where figure 1 is left out.
  const ComputePaper folder(
      experiment("a", "Fig. 1", {step_at(2, 1)}) + experiment("b", "Fig. 2", {step_at(4, 1)}) +
      experiment("c", "Fig. 3", {step_at(2, 1)}, "", "same_run_as = [\"a/theirs/1\"]") +
      constant("\"a\""));
  const LeaveOneOut result = leave_one_out(folder.load());
  REQUIRE(result.folds.size() == 2);
  CHECK(result.folds[0].name == "Fig. 1");
  CHECK(result.folds[0].refit.points == 1);
  CHECK(result.folds[0].points[0].error() == Approx(-0.5).epsilon(0.02));
  CHECK(result.folds[1].points[0].error() == Approx(1).epsilon(0.02));
  const LeftOutErrors errors = errors_of(result.points());
  CHECK(errors.points == 2);
  CHECK(errors.mean == Approx(0.75).epsilon(0.02));
  CHECK(errors.worst_at == "b/theirs/1");
  // Where compute is all there is, the closed form knows as much.
  CHECK(errors_of(result.closed_form()).mean == Approx(0.75).epsilon(0.02));
}

TEST_CASE("papers: what nothing but the figure left out tells is no prediction") {
  // The second experiment has a rate of its own, which only its own figure tells.
  const ComputePaper folder(
      experiment("a", "Fig. 1", {step_at(2, 1)}) +
      experiment("b", "Fig. 2", {step_at(3, 1)}, "settings = [\"gpu.flops=3TFLOPS\"]") +
      constant("\"a\"") + constant("\"b\"", "in = [\"b\"]"));
  const LeaveOneOut result = leave_one_out(folder.load());
  REQUIRE(result.folds.size() == 2);
  for (const Fold& fold : result.folds) {
    INFO(fold.name);
    REQUIRE(fold.points.size() == 1);
    CHECK_FALSE(fold.points[0].determined);
  }
  CHECK(errors_of(result.points()).not_determined == 2);
  CHECK(errors_of(result.points()).points == 0);
}

TEST_CASE("papers: a point that a fitted constant says is marked fitted, and counts for no error") {
  const std::string other =
      "[[experiment.system]]\nname = \"another\"\npolicy = \"zero-offload\"\npublished = [1, 1]\n";
  const ComputePaper folder(experiment("a", "Fig. 1", {step_at(1, 1), step_at(2, 2)}, "", other) +
                            constant("\"a/theirs/1\""));
  const PaperResult result = run_paper(folder.load());
  // All of a step is compute, at the rate that was fitted on the first point.
  const SystemResult& theirs = result.experiments[0].systems[0];
  CHECK(theirs.points[1].fitted_share == Approx(1).epsilon(0.02));
  CHECK(theirs.points[1].is_fitted());
  CHECK(theirs.errors.predictions == 0);
  CHECK(theirs.errors.fitted == 2);
  // Nothing was fitted on the other system.
  const SystemResult& another = result.experiments[0].systems[1];
  CHECK(another.points[0].fitted_share == 0);
  CHECK(another.errors.predictions == 2);
  // Compute alone: the closed form says what the simulator says.
  REQUIRE(theirs.points[0].closed_form);
  CHECK(*theirs.points[0].closed_form == Approx(*theirs.points[0].simulated).epsilon(0.01));
}

TEST_CASE("papers: a run that two figures show counts once, and what is apart not at all") {
  const ComputePaper folder(
      experiment("a", "Fig. 1", {step_at(2, 1)}) +
      experiment("b", "Fig. 2", {step_at(2, 1)}, "", "same_run_as = [\"a/theirs/1\"]") +
      experiment("c", "Fig. 3", {step_at(2, 1)}, "apart = \"ranks\""));
  const PaperResult result = run_paper(folder.load());
  CHECK(errors_of(result).predictions == 1);
  CHECK(result.experiments[1].systems[0].points[0].same_run_as == "a/theirs/1");
  CHECK_FALSE(result.experiments[2].systems[0].points[0].counts);
  CHECK(fit_points(result.paper).size() == 1);
  const std::string page = accuracy_markdown({{result, {}}}, "x");
  CHECK_THAT(page, Catch::Contains("the same run as a/theirs/1") &&
                       Catch::Contains("Apart, in no mean: ranks."));
}

TEST_CASE("papers: constants of keys and points that are not there are refused, with their place") {
  const auto wrong = [](const std::string& key, const std::string& more) {
    return ComputePaper(experiment("a", "Fig. 1", {1}) + "[[constant]]\nkey = \"" + key +
                        "\"\nkind = \"continuous\"\n" + more)
        .error();
  };
  CHECK(wrong("machine.gpu.flops", "seen = []").empty());
  CHECK_THAT(wrong("machine.gpu.flosp", "seen = []"),
             Catch::Contains("trial.toml:") && Catch::Contains("gpu.flops"));
  CHECK_THAT(wrong("machine.ssd.read", "seen = []"), Catch::Contains("does not give it"));
  CHECK_THAT(wrong("framework.ratle.cpu.pass_bytes", "seen = []"), Catch::Contains("ratel"));
  CHECK_THAT(wrong("policy.fuyou.swpa", "seen = []"), Catch::Contains("swap"));
  CHECK_THAT(wrong("flops", "seen = []"), Catch::Contains("machine.KEY"));
  CHECK(wrong("framework.ratel.io.read_operation",
              "seen = []\nwith = [\"framework.ratel.io.write_operation\"]")
            .empty());
  CHECK_THAT(
      wrong("framework.ratel.io.read_operation", "seen = []\nwith = [\"machine.gpu.flops\"]"),
      Catch::Contains("or is of something else"));
  CHECK_THAT(wrong("machine.gpu.flops", "seen = [\"b\"]"), Catch::Contains("no point 'b'"));
  CHECK_THAT(wrong("machine.gpu.flops", "seen = []\nbounds = [\"2TFLOPS\", \"3TFLOPS\"]"),
             Catch::Contains("not between its bounds"));
  CHECK_THAT(wrong("machine.gpu.flops", "seen = []\nbounds = [\"2GFLOPS\", \"3TFLOPS\"]"),
             Catch::Contains("different units"));
  CHECK_THAT(ComputePaper(experiment("a", "Fig. 1", {1}, "", "same_run_as = [\"b/x/1\"]")).error(),
             Catch::Contains("no point 'b/x/1'"));
}

TEST_CASE("papers: the closed form of a phase is its busiest resource") {
  Problem problem;
  problem.machine.gpu.flops = 100;
  problem.machine.pcie.h2d = problem.machine.pcie.d2h = 10;
  problem.machine.pcie.pageable_h2d = 5;
  problem.machine.ssd.read = problem.machine.ssd.write = 4;
  problem.machine.ssd.law = SsdLaw::simplex;
  problem.machine.ssd.count = 1;
  problem.machine.host.adam_params_per_second = 2;
  PhaseAmounts amounts;
  amounts.flops = 300;    // 3 s
  amounts.to_gpu = 20;    // 2 s
  amounts.from_gpu = 40;  // 4 s, the other way
  CHECK(closed_form_seconds(amounts, problem) == Approx(4));
  amounts.pageable_to_gpu = 10;  // 2 s, for which the GPU waits: 3 + 2
  CHECK(closed_form_seconds(amounts, problem) == Approx(5));
  amounts.read = amounts.written = 12;  // 3 s each, which add up
  CHECK(closed_form_seconds(amounts, problem) == Approx(6));
  amounts.cpu_params = 20;  // 10 s
  CHECK(closed_form_seconds(amounts, problem) == Approx(10));
  // A framework's compute takes longer, and so do its passes over 28 bytes a parameter each 10 s.
  problem.framework = "deepspeed-0.9:compute.time=4,cpu.pass_time=2";
  CHECK(closed_form_seconds(amounts, problem) == Approx(3 * 4 + 2));
  amounts.cpu_passes = 20 * 28;
  CHECK(closed_form_seconds(amounts, problem) == Approx(10 + 2 * 10));
}

TEST_CASE("papers: in the closed form gradients are written in backward, states in the optimizer") {
  Problem problem;
  problem.model = load_model("gpt2-124m");
  problem.machine = load_machine("rtx4090-12ssd", {"ssd.count=1"});
  problem.workload = {1, 1, 256, Precision::bf16, GradientWidth::automatic};
  problem.framework = "deepspeed-0.9";
  const Schedule schedule = build_schedule(problem, "zero-infinity:parameters=gpu", 3);
  const auto seconds = [&](Quantity quantity) {
    PaperExperiment experiment;
    experiment.quantity = quantity;
    return closed_form(schedule, Overlap::nothing, experiment);
  };
  const auto parameters = static_cast<double>(problem.model.parameters());
  const DriveRates drives = Costs(problem).drives();
  // The drives are the slowest of all: 4 bytes of gradient are written, of the embedding both what
  // it and what the head contribute; then they are read with 12 bytes of state, which are written.
  const double gradients = 4 * (parameters + 50257.0 * 768);
  CHECK(seconds(Quantity::backward_seconds) == Approx(drives.seconds(0, gradients)).epsilon(0.02));
  CHECK(seconds(Quantity::optimizer_seconds) ==
        Approx(drives.seconds(gradients + 12 * parameters, 12 * parameters)).epsilon(0.02));
}

TEST_CASE("papers: ratios are a range over assumptions that use the drives and saturate") {
  const auto row = [](double ratio, bool uses_drives) {
    RatioRow one;
    one.ratio = ratio;
    one.uses_drives = uses_drives;
    return one;
  };
  RatioRow starved = row(15, true);
  starved.slower.ended_by_memory = true;
  const auto range =
      ratio_range({row(1.8, true), row(9, false), row(2.6, true), starved, RatioRow{}});
  REQUIRE(range);
  CHECK(range->least == Approx(1.8));
  CHECK(range->most == Approx(2.6));
  CHECK(range->rows == 2);
  CHECK_FALSE(ratio_range({row(9, false)}));
  CHECK(starved.out_of_range() == "memory ends it before it saturates");
}

}  // namespace spillway
