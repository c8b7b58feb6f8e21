#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "base/errors.hpp"
#include "experiments/papers/paper_points.hpp"
#include "experiments/papers/paper_report.hpp"
#include "policies/common/policy.hpp"
#include "policies/pipeline/orders.hpp"
#include "test_paths.hpp"

namespace spillway {

namespace {

// Compute only, on a GPU of 1 TFLOPS: everything else takes no time worth mentioning.
const char* const machine_text = R"(
name = "only-compute"
[gpu]
memory = "1TB"
flops = "1TFLOPS"
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

const char* const head = R"([paper]
name = "trial"
title = "A trial"
citation = "nobody"
machine = "machine.toml"
constants = "none"
)";

const char* const experiment_text = R"(
[[experiment]]
name = "time"
title = "Time"
figure = "Fig. 1"
model = "gpt2-124m"
sequence = 256
axis = "batch"
values = [1, 2, 4]
[[experiment.system]]
name = "all on the GPU"
policy = "resident"
published = [1.0, "does not fit", "-"]
[[experiment.system]]
name = "the same"
policy = "resident:"
published = [2.0, 3.0, 4.0]
fitted = [2]
)";

class Folder {
 public:
  explicit Folder(const std::string& paper) {
    char name[] = "/tmp/papers-XXXXXX";
    path_ = mkdtemp(name);
    write("machine.toml", machine_text);
    write("trial.toml", paper);
  }
  ~Folder() {
    for (const char* file : {"/machine.toml", "/trial.toml"}) std::remove((path_ + file).c_str());
    std::remove(path_.c_str());
  }
  void write(const std::string& file, const std::string& text) const {
    std::ofstream(path_ + "/" + file) << text;
  }
  std::string paper() const { return path_ + "/trial.toml"; }

 private:
  std::string path_;
};

std::string error_of(const std::string& text) {
  try {
    parse_paper(text, "trial.toml", ".");
  } catch (const InputError& error) {
    return std::string(error.what()) + " | " + error.hint();
  }
  return "";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

PaperPoint point(double published, double simulated, bool fitted = false) {
  PaperPoint p;
  p.at = "x";
  p.published = {true, true, published, fitted};
  p.fits = true;
  p.simulated = simulated;
  return p;
}
PaperPoint lacking_memory(bool published_fits, bool fits, double seconds) {
  PaperPoint p = point(seconds, seconds);
  p.published.fits = published_fits;
  if (!published_fits) p.published.number.reset();
  p.fits = fits;
  if (!fits) p.simulated.reset();
  return p;
}

}  // namespace

TEST_CASE("papers: a point is simulated at its place on the axis and held against its number") {
  const Folder folder(std::string(head) + experiment_text);
  const PaperResult result = run_paper(load_paper(folder.paper()));
  REQUIRE(result.experiments.size() == 1);
  const SystemResult& first = result.experiments[0].systems[0];
  REQUIRE(first.points.size() == 3);
  // Compute alone: three times the forward FLOPs at 1e12 per second (recomputation: none).
  const ModelSpec model = load_model("gpt2-124m");
  REQUIRE(first.points[0].simulated);
  CHECK(*first.points[0].simulated == Approx(3 * model.forward_flops(1, 256) / 1e12).epsilon(0.01));
  CHECK(*first.points[0].error() == Approx(*first.points[0].simulated - 1.0));
  // It fits here and did not there; the third was never published and is not simulated.
  CHECK(first.points[1].fits);
  CHECK_FALSE(first.points[1].error());
  CHECK_FALSE(first.points[2].simulated);
  CHECK(first.errors.predictions == 1);
  CHECK(first.errors.fits_known == 2);
  CHECK(first.errors.fits_as_published == 1);
  // Of the second, the middle point was fitted on.
  const SystemResult& second = result.experiments[0].systems[1];
  CHECK(second.errors.predictions == 2);
  CHECK_FALSE(second.points[1].is_prediction());
  // It is the same run as the first at batches 1 and 2, whose verdicts count there.
  CHECK(second.points[0].verdict_as == "time/all on the GPU/1");
  CHECK(second.points[2].verdict_as.empty());
  CHECK(second.errors.fits_known == 1);
}

TEST_CASE(
    "papers: a point that a choice was made in view of, and that it moves, is no prediction") {
  const std::string constant = R"(
[[constant]]
key = "framework.deepspeed-0.9.compute.fp16"
kind = "discrete"
seen = ["time"]
moves = ["time/the same/4"]
)";
  const Paper paper =
      parse_paper(std::string(head) + experiment_text + constant, "trial.toml", ".");
  CHECK(is_chosen(paper, {0, 1, 2}));
  CHECK_FALSE(is_chosen(paper, {0, 1, 0}));
  PaperPoint chosen = point(10, 11);
  CHECK(chosen.is_prediction());
  chosen.chosen = true;
  CHECK_FALSE(chosen.is_prediction());
  CHECK(errors_of({chosen, point(10, 12)}).fitted == 1);
}

TEST_CASE("papers: what one row of a run was chosen in view of, its other rows have seen, too") {
  // The framework's default said in words is no other run; another batch is.
  const std::string other = R"(
[[experiment]]
name = "forward"
title = "Forward"
figure = "Fig. 2"
quantity = "forward_seconds"
model = "gpt2-124m"
sequence = 256
axis = "batch"
values = [1, 2]
[[experiment.system]]
name = "all on the GPU"
policy = "resident"
framework = "deepspeed-0.9"
framework_settings = ["compute.fp16=true", "compute.fp16=false"]
published = [1.0, 1.0]
[[experiment.system]]
name = "again"
policy = "resident"
framework = "deepspeed-0.9"
published = [1.0, 1.0]
[[constant]]
key = "framework.deepspeed-0.9.compute.fp16"
kind = "discrete"
seen = ["forward/again/1"]
)";
  const Folder folder(std::string(head) + other);
  const PaperResult result = run_paper(load_paper(folder.paper()));
  const SystemResult &first = result.experiments[0].systems[0],
                     &again = result.experiments[0].systems[1];
  CHECK(first.points[0].verdict_seen_by == std::vector<std::size_t>{0});
  CHECK(first.points[1].verdict_seen_by.empty());
  CHECK(again.points[0].verdict_as == "forward/all on the GPU/1");
  CHECK(again.points[1].verdict_as.empty());  // batch 2, with the default
  CHECK(first.errors.fits_known == 2);
  CHECK(first.errors.unseen_known == 1);
  CHECK(again.errors.fits_known == 1);
}

TEST_CASE("papers: errors are the mean of the absolute ones and the largest with its sign") {
  // Errors +10 %, -20 %, and a fitted one of +100 % that does not count.
  const SystemErrors errors =
      errors_of({point(10, 11), point(10, 8), point(10, 20, true), lacking_memory(false, true, 1)});
  CHECK(errors.predictions == 2);
  CHECK(errors.mean == Approx(0.15));
  CHECK(errors.worst == Approx(-0.2));
  CHECK(errors.fits_known == 4);
  CHECK(errors.fits_as_published == 3);
}

TEST_CASE("papers: Kendall's tau counts pairs of systems at one place in the same order") {
  // Published a < b < c. Simulated a < c < b: two pairs of three agree: tau = (2 - 1) / 3.
  const auto system = [](double published, double simulated) {
    return SystemResult{"", "", "", {point(published, simulated)}, {}};
  };
  const std::vector<SystemResult> seconds = {system(1, 1), system(2, 5), system(3, 4)};
  CHECK(ordering_of(seconds, Quantity::step_seconds).pairs == 3);
  CHECK(ordering_of(seconds, Quantity::step_seconds).tau() == Approx(1.0 / 3));
  // Which way round is better changes nothing where all are numbers.
  CHECK(ordering_of(seconds, Quantity::tflops).tau() == Approx(1.0 / 3));
  // What does not fit is slower than anything, in both quantities.
  const std::vector<SystemResult> memory = {
      SystemResult{"", "", "", {lacking_memory(false, false, 1)}, {}}, system(2, 5)};
  CHECK(ordering_of(memory, Quantity::step_seconds).tau() == Approx(1));
  CHECK(ordering_of(memory, Quantity::tokens_per_second).tau() == Approx(1));
}

TEST_CASE("papers: what is wrong in a file is named with its place") {
  const std::string good = std::string(head) + experiment_text;
  REQUIRE(error_of(good).empty());
  CHECK_THAT(error_of(replaced(good, "axis =", "axes =")),
             Catch::Contains("trial.toml:") && Catch::Contains("experiment lacks axis"));
  CHECK_THAT(error_of(replaced(good, "figure = \"Fig. 1\"", "figure = \"Fig. 1\"\nmodle = \"x\"")),
             Catch::Contains("unknown key modle") && Catch::Contains("model"));
  CHECK_THAT(error_of(replaced(good, "[2.0, 3.0, 4.0]", "[2.0, 3.0]")),
             Catch::Contains("2 published values for 3 of batch"));
  CHECK_THAT(error_of(replaced(good, "\"does not fit\"", "\"oom\"")),
             Catch::Contains("trial.toml:19:19") && Catch::Contains("\"does not fit\""));
  CHECK_THAT(error_of(replaced(good, "fitted = [2]", "fitted = [3]")),
             Catch::Contains("3 is no value of the axis"));
  CHECK_THAT(error_of(replaced(good, "[1, 2, 4]", "7")), Catch::Contains("values is not a list"));
  CHECK_THAT(error_of("x = 1\n"), Catch::Contains("lacks paper"));
}

TEST_CASE("papers: a wrong policy, setting or value names the point") {
  const auto run = [](const std::string& from, const std::string& to) {
    const Folder folder(std::string(head) + replaced(experiment_text, from, to));
    try {
      run_paper(load_paper(folder.paper()));
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(
      run("\"resident\"", "\"residdent\""),
      Catch::Contains("trial, time, all on the GPU, batch 1") && Catch::Contains("unknown policy"));
  CHECK_THAT(run("[1, 2, 4]", "[\"x\", 2, 4]"), Catch::Contains("not a whole number"));
  CHECK_THAT(run("axis = \"batch\"", "axis = \"ssd.conut\""), Catch::Contains("ssd.conut"));
}

TEST_CASE("papers: those built in can be read, and all their policies and files are there") {
  std::set<std::string> names;
  for (const Paper& paper : builtin_papers()) {
    INFO(paper.name);
    CHECK(names.insert(paper.name).second);
    CHECK_FALSE(paper.citation.empty());
    const bool of_pipelines = std::all_of(paper.experiments.begin(), paper.experiments.end(),
                                          [](const PaperExperiment& e) { return e.of_pipelines; });
    if (!of_pipelines || paper.experiments.empty()) CHECK(paper_machine(paper, {}).gpu.memory > 0);
    for (const PaperExperiment& experiment : paper.experiments) {
      INFO(experiment.name);
      CHECK_FALSE(experiment.figure.empty());
      if (experiment.of_pipelines) {
        for (const PaperSystem& system : experiment.systems)
          CHECK_NOTHROW(PipelineOrder(system.policy));
        continue;
      }
      if (experiment.axis != "model") CHECK(paper_model(paper, experiment.model, {}).layers > 0);
      for (const PaperSystem& system : experiment.systems)
        CHECK_NOTHROW(canonical_policy(system.policy));
    }
    for (const PaperRatio& ratio : paper.ratios) {
      CHECK_NOTHROW(canonical_policy(ratio.faster));
      CHECK_NOTHROW(canonical_policy(ratio.slower));
      CHECK(paper_model(paper, ratio.model, {}).layers > 0);
    }
  }
  CHECK(names.count("fuyou") == 1);
}

TEST_CASE("papers: an unknown name is answered with near ones") {
  try {
    load_paper("fuyuo");
    FAIL("accepted");
  } catch (const InputError& error) {
    CHECK_THAT(error.hint(), Catch::Contains("fuyou"));
  }
}

TEST_CASE("papers: what refits found is read back from the page, paper by paper") {
  const std::string page =
      "text\n<!-- fitted without it: a|Fig. 1|simulator|0 1.25 3 0.5 -->\n"
      "<!-- fitted without it: a|Fig. 1|closed form| -->\n"
      "<!-- fitted without it: b|Fig. 1|simulator|1 2 -->\n";
  const KnownFits of_a = known_fits(page, "a");
  REQUIRE(of_a.size() == 1);
  CHECK(of_a.at("Fig. 1").simulator == Tuning{{0, 1.25}, {3, 0.5}});
  CHECK(of_a.at("Fig. 1").closed_form.empty());
  CHECK(known_fits(page, "b").at("Fig. 1").simulator == Tuning{{1, 2.0}});
  CHECK(known_fits(page, "c").empty());
}

TEST_CASE("papers: a verdict on memory that a constant was chosen in view of is counted apart") {
  PaperPoint seen = lacking_memory(true, true, 1), unseen = lacking_memory(false, true, 1);
  seen.verdict_seen_by = {0};
  const SystemErrors errors = errors_of({seen, unseen});
  CHECK(errors.fits_known == 2);
  CHECK(errors.fits_as_published == 1);
  CHECK(errors.unseen_known == 1);
  CHECK(errors.unseen_as_published == 0);
}

TEST_CASE("papers: a verdict that is another one within a constant's range hangs on it") {
  const std::string constant = R"(
[[constant]]
key = "machine.gpu.memory"
kind = "continuous"
seen = ["time/all on the GPU/2"]
range = ["0.001TB", "1TB"]
)";
  const Folder folder(std::string(head) + experiment_text + constant);
  const PaperResult result = run_paper(load_paper(folder.paper()));
  for (const PaperPoint& point : result.experiments[0].systems[0].points) {
    if (!point.published.given) continue;
    INFO(point.at);
    // All of it is lacking at 1 GB, and nearly all of 1 TB is left: no range is asked that far.
    CHECK(point.hangs_on.empty());
    CHECK(point.verdict_seen_by.empty() == (point.at != "2"));
  }
  std::string tight(machine_text);
  tight.replace(tight.find("1TB"), 3, "4GB");
  folder.write("machine.toml", tight);
  folder.write("trial.toml",
               std::string(head) + experiment_text +
                   replaced(constant, "[\"0.001TB\", \"1TB\"]", "[\"1GB\", \"5GB\"]"));
  const PaperPoint point =
      run_paper(load_paper(folder.paper())).experiments[0].systems[0].points[0];
  REQUIRE(point.fits);
  REQUIRE(point.margin.share.value_or(1) < 0.5);
  CHECK(point.hangs_on == std::vector<std::size_t>{0});
}

TEST_CASE("papers: what a constant was fitted on is marked as fitted") {
  for (const Paper& paper : builtin_papers()) {
    for (const std::size_t c : fittable_constants(paper)) {
      const PaperConstant& constant = paper.constants_chosen[c];
      for (const PointId& point : points_seen(paper, constant)) {
        INFO(paper.name << ", " << constant.key << ": " << point_name(paper, point));
        if (published_at(paper, point).number) CHECK(published_at(paper, point).fitted);
      }
    }
  }
}

TEST_CASE("papers: docs/accuracy.md says what the simulator says today, and is near enough",
          "[slow]") {
  std::ifstream file(SPILLWAY_SOURCE_DIR "/docs/accuracy.md");
  std::ostringstream text;
  text << file.rdbuf();
  std::vector<PaperReport> reports;
  for (const Paper& paper : builtin_papers()) {
    reports.push_back({run_paper(paper), {}});
    if (fittable_constants(paper).empty()) continue;
    // With what refits found: that this fits best is not tried again.
    const KnownFits known = known_fits(text.str(), paper.name);
    REQUIRE_FALSE(known.empty());
    reports.back().left_out = leave_one_out(paper, {}, known);
  }
  const std::string command = "spillway papers --leave-one-out --markdown docs/accuracy.md";
  // If not: that command.
  CHECK(text.str() == accuracy_markdown(reports, command));

  // What we hold ourselves to.
  for (const PaperReport& report : reports) {
    const std::string& paper = report.result.paper.name;
    double sum = 0, closed_form = 0;
    int count = 0;
    for (std::size_t e = 0; e < report.result.experiments.size(); ++e) {
      const PaperExperiment& experiment = report.result.paper.experiments[e];
      for (const SystemResult& system : report.result.experiments[e].systems) {
        for (const PaperPoint& point : system.points) {
          if (!point.published.given) continue;
          INFO(paper << ", " << experiment.name << ", " << system.name << ", " << point.at);
          CHECK(point.fits == point.published.fits);
          if (!point.error() || !point.counts) continue;
          sum += std::abs(*point.error());
          closed_form += std::abs(point.closed_form_error().value_or(0));
          ++count;
          // The paper has two times of this run, 63 and 75.6 s: no simulator is within 8 % of both.
          const bool contradicted =
              experiment.name == "throughput" && system.name == "ZeRO-Infinity" && point.at == "32";
          if (paper == "fuyou" && !contradicted) CHECK(std::abs(*point.error()) <= 0.08);
          if (paper == "mlp-offload" && experiment.quantity != Quantity::forward_seconds)
            CHECK(std::abs(*point.error()) <= 0.12);
        }
      }
    }
    if (paper != "fuyou") continue;
    REQUIRE(count >= 25);
    CHECK(sum / count <= 0.04);
    // Better than the closed form by a third, with the constants in use and with each figure left
    // out; over all papers, too, below.
    CHECK(sum <= closed_form * 2 / 3);
    CHECK(errors_of(report.left_out->points()).mean <=
          errors_of(report.left_out->closed_form()).mean * 2 / 3);
    CHECK(errors_of(report.left_out->points()).mean <= 0.06);
  }
  double ours = 0, theirs = 0;
  for (const PaperReport& report : reports) {
    const ErrorSums sums = errors_of(report.result);
    ours += sums.mean * sums.predictions;
    theirs += sums.closed_form_mean * sums.predictions;
  }
  CHECK(ours <= theirs * 2 / 3);
}

}  // namespace spillway
