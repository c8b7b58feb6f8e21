// spillway calibrate: the file it writes serves the other commands.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "test_paths.hpp"
#include "tests/cli/program.hpp"
#include "tests/cli/train/ranks.hpp"

using namespace spillway::test;
using Words = std::vector<std::string>;

namespace {

// Calibrates in this precision, and simulates and trains with the machine file in both
// micro-batches it was measured for.
void check_that_others_predict_with_what_is_measured(const std::string& precision) {
  INFO(precision);
  const Words computed_in = {"--precision", precision};
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "ssd");
  const std::string machine = folder / "machine.toml";
  const Outcome measured =
      run(Words{"calibrate", "--model", "gpt-tiny", "--batch", "2", "--sequence", "16", "--samples",
                "10", "--ssd", folder / "ssd", "--out", machine} +
          computed_in);
  INFO(measured.err);
  REQUIRE(measured.exit_code == 0);
  CHECK_THAT(measured.out, Catch::Contains("measurements with their samples are in " + machine));
  CHECK_THAT(measured.err, Catch::Contains("measuring 1/"));
  CHECK(measured.err.find('\r') == std::string::npos);
  CHECK(folder.listing() == Words{"machine.toml", "ssd"});  // no test file is left on the drive
  CHECK_THAT(read_file(machine), Catch::Contains("[[kernel") && Catch::Contains("samples_ns") &&
                                     Catch::Contains("[[trial]]"));
  CHECK_THAT(measured.out, Catch::Contains("trial        greedysnake:optimizer_ssd=1, batch "));

  // At another shape it says what would measure it, in options that calibrate has.
  const Outcome guessed = run({"simulate", "--machine", machine, "--model", "gpt-tiny", "--batch",
                               "2", "--sequence", "64", "--policy", "zero-infinity"});
  INFO(guessed.err);
  CHECK_THAT(guessed.out, Catch::Contains("`spillway calibrate --model ... --micro-batches ... "
                                          "--sequence ...` measures them"));
  CHECK_THAT(run({"calibrate", "--help"}).out, Catch::Contains("--micro-batches"));

  for (const std::string micro_batch : {"1", "2"}) {
    INFO("micro-batches of " << micro_batch);
    const Outcome simulated = run(Words{"simulate", "--machine", machine, "--policy",
                                        "zero-infinity", "--micro-batch", micro_batch, "--json"} +
                                  computed_in + tiny_problem());
    INFO(simulated.err);
    REQUIRE(simulated.exit_code == 0);
    CHECK(simulated.json()["step_seconds"] > 0.0);
    CHECK_FALSE(simulated.json().contains("extrapolated"));  // measured at this very shape

    const TemporaryFolder run_folder;
    const Outcome trained = run(
        tiny_training(run_folder) + computed_in +
        Words{"--machine", machine, "--policy", "auto", "--micro-batch", micro_batch, "--json"});
    INFO(trained.err);
    REQUIRE(trained.exit_code == 0);
    CHECK(trained.json_lines().front()["predicted_step_seconds"] > 0.0);
    CHECK(trained.json_lines().front()["workload"]["precision"] == precision);
    CHECK(run({"validate", run_folder / "run/trace.json.gz"}).exit_code == 0);
  }
}

}  // namespace

TEST_CASE("What calibrate measures, the other commands predict with") {
  check_that_others_predict_with_what_is_measured("fp32");
}

TEST_CASE("What calibrate measures in bf16, the other commands predict with", "[slow]") {
  check_that_others_predict_with_what_is_measured("bf16");
}

TEST_CASE("A machine file that cannot be written leaves the old one", "[slow]") {
  const TemporaryFolder folder;
  const SmallDisk disk(folder.path() / "disk", "8k");
  if (!disk.mounted()) {
    WARN("skipped: " << disk.why_not());
    return;
  }
  const std::string old = "# Measured by `spillway calibrate`, which replaces this file.\nprecious";
  const std::string machine = folder.write("disk/machine.toml", old);
  const Outcome outcome = run({"calibrate", "--model", "gpt-tiny", "--batch", "1", "--sequence",
                               "16", "--samples", "10", "--ssd", "", "--quiet", "--out", machine});
  check_refusal(outcome, 1, "machine.toml: cannot write: No space left on device", "disk is full");
  CHECK(read_file(machine) == old);
  CHECK(folder.listing() == Words{"disk", "disk/machine.toml"});
}

TEST_CASE("Neither calibrate nor a picture takes the place of another file") {
  const TemporaryFolder folder;
  const std::string machine = folder.write("machine.toml", "edited by hand");
  check_refusal(run({"calibrate", "--model", "gpt-tiny", "--batch", "1", "--sequence", "16",
                     "--ssd", "", "--quiet", "--out", machine}),
                2, "is not a machine file of `spillway calibrate`", "another file");
  CHECK(read_file(machine) == "edited by hand");
  const std::string picture = folder.write("step.svg", "drawn by hand");
  check_refusal(
      run(Words{"simulate", "--machine", "testbed", "--policy", "resident", "--gantt", picture} +
          tiny_problem()),
      2, "is not a picture", "another file");
  CHECK(read_file(picture) == "drawn by hand");
}

TEST_CASE("calibrate refuses what it cannot measure, before it measures anything") {
  const TemporaryFolder folder;
  const auto refused = [&](const Words& more, const char* what, const char* hint) {
    check_refusal(run(Words{"calibrate", "--model", "gpt-tiny", "--ssd", "", "--out",
                            folder / "machine.toml"} +
                      more),
                  2, what, hint);
    CHECK(folder.listing().empty());
  };
  setenv("SPILLWAY_CUDA_MODULE", (folder / "none.so").c_str(), 1);
  refused({"--device", "cuda"}, "there is no CUDA GPU here", "--device cpu");
  unsetenv("SPILLWAY_CUDA_MODULE");
  refused({"--gpu", "0"}, "--gpu 0 does not go with --device cpu", "--device cuda");
  refused({"--sequences-at-once", "2"}, "one sequence at a time", "--device cuda");
  refused({"--device", "cuda", "--sequences-at-once", "0"}, "not in range 1 to 1000000",
          "calibrate --help");
  refused({"--micro-batches", "1,x"}, "--micro-batches 1,x: x is not a number of sequences",
          "--micro-batches 1,2,4,8");
  refused({"--micro-batches", "0"}, "0 is not a number of sequences", "--micro-batches");
  refused({"--micro-batches", "1", "--batch", "2"}, "excludes", "calibrate --help");
  refused({"--batch", "0"}, "--batch must be at least 1", "--batch 8");
}

TEST_CASE("calibrate --device cuda measures a GPU, and simulate predicts with it", "[nightly]") {
  setenv("SPILLWAY_CUDA_MODULE", SPILLWAY_EMULATED_MODULE, 1);
  const TemporaryFolder folder;
  const std::string machine = folder / "machine.toml";
  const Outcome measured =
      run({"calibrate", "--device", "cuda", "--model", "gpt-tiny", "--micro-batches", "1,2,4000000",
           "--sequence", "16", "--samples", "10", "--ssd", "", "--out", machine});
  unsetenv("SPILLWAY_CUDA_MODULE");
  INFO(measured.err);
  REQUIRE(measured.exit_code == 0);
  CHECK_THAT(measured.err, Catch::Contains("note: micro-batches of 4000000 take") &&
                               Catch::Contains("they are left out"));
  CHECK_THAT(measured.out, Catch::Contains("gpu") && Catch::Contains("from task to task"));
  CHECK_THAT(read_file(machine), Catch::Contains("bf16,s2"));
  const Outcome simulated =
      run({"simulate", "--machine", machine, "--model", "gpt-tiny", "--batch", "4", "--micro-batch",
           "2", "--sequence", "16", "--policy", "zero-offload", "--json"});
  INFO(simulated.err);
  REQUIRE(simulated.exit_code == 0);
  CHECK(simulated.json()["step_seconds"] > 0.0);
  CHECK_FALSE(simulated.json().contains("extrapolated"));
}

TEST_CASE("calibrate by two ranks writes a machine of two, as each finds it beside the other",
          "[slow]") {
  if (ranks_are_skipped()) return;
  const TemporaryFolder folder;
  const std::string file = folder / "machine.toml";
  {
    const StartedBy by(mpirun(2));
    const Outcome measured =
        run({"calibrate", "--model", "gpt-tiny", "--batch", "1", "--sequence", "16", "--samples",
             "10", "--ssd", folder.path().string(), "--out", file});
    INFO(measured.err);
    REQUIRE(measured.exit_code == 0);
    CHECK_THAT(measured.out, Catch::Contains("cores, kernels up to"));
  }
  const nlohmann::json one =
      run({"simulate", "--model", "gpt-tiny", "--machine", file, "--policy", "zero-infinity",
           "--batch", "2", "--micro-batch", "1", "--sequence", "16", "--json"})
          .json();
  CHECK(one["ranks"]["count"] == 2);
  CHECK(one["step_seconds"] > 0);
  CHECK_THAT(read_file(file), Catch::Contains("as 2 ranks at once find it") &&
                                  Catch::Contains("kind = \"reduce_scatter\""));
}
