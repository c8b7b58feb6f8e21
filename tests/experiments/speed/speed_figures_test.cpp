// Figures beside a roofline: the arithmetic, and that each bench measures what it says. No times.
#include "experiments/speed/speed_figures.hpp"

#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>

#include "experiments/speed/fio.hpp"
#include "experiments/speed/speed_gpu.hpp"
#include "tests/temporary_folder.hpp"

using namespace spillway;

namespace {

FigureOptions shortest(const test::TemporaryFolder& folder) {
  FigureOptions options;
  options.ssd = {folder.path()};
  options.rounds = 1;
  options.seconds = 0.05;
  return options;
}

}  // namespace

TEST_CASE("The median is the middle value, or the mean of the two in the middle") {
  CHECK(median({}) == 0);
  CHECK(median({3, 1, 2}) == 2);
  CHECK(median({4, 1, 3, 2}) == 2.5);
  CHECK(quantile_of({5, 1, 4, 2, 3}, 0.25) == 2);
  CHECK(quantile_of({5, 1, 4, 2, 3}, 1) == 5);
}

TEST_CASE("A target is a least ratio where there is a roofline, else a most value") {
  SpeedFigure figure;
  CHECK(figure.met());  // without a target
  figure.value = 19;
  figure.target = 20;
  CHECK(figure.met());
  figure.value = 21;
  CHECK_FALSE(figure.met());
  figure.roofline_what = "fio";
  figure.target = 0.95;
  figure.ratios = {0.9, 0.96, 1.2};  // the median counts, not the best or the last
  CHECK(figure.met());
  figure.ratios = {0.9, 0.94, 1.2};
  CHECK_FALSE(figure.met());
}

TEST_CASE("fio reports the direction that was asked for, and both of a mix") {
  if (!fio_version()) {
    WARN("skipped: fio is not installed");
    return;
  }
  const test::TemporaryFolder folder;
  FioJob job;
  job.files = {folder / "a b:c"};  // names with blanks and colons, too
  job.bytes = 16 << 20;
  job.block_bytes = 1 << 20;
  job.depth = 4;
  job.seconds = 0.05;
  std::ofstream(job.files[0], std::ios::binary) << std::string(job.bytes, 'x');
  const DriveThroughput read = run_fio(job, DrivePattern::read);
  CHECK(read.read > 0);
  CHECK(read.write == 0);
  const DriveThroughput write = run_fio(job, DrivePattern::write);
  CHECK(write.read == 0);
  CHECK(write.write > 0);
  const DriveThroughput mixed = run_fio(job, DrivePattern::mixed);
  CHECK(mixed.read > 0);
  CHECK(mixed.write > 0);
}

TEST_CASE("The bench of the executor has a figure for every way of waiting") {
  const test::TemporaryFolder folder;
  const auto figures = measure_executor(shortest(folder));
  std::vector<std::string> names;
  for (const SpeedFigure& figure : figures) {
    names.push_back(figure.name);
    CHECK(figure.value >= 0);
    CHECK(figure.target > 0);
  }
  CHECK(names == std::vector<std::string>{"executor/one-lane", "executor/two-lanes",
                                          "executor/eight-chains", "executor/idle"});
}

TEST_CASE("The bench of training leaves nothing behind and reports a share of the step") {
  const test::TemporaryFolder folder;
  const auto figures = measure_training(shortest(folder));
  REQUIRE(figures.size() == 1);
  CHECK(figures[0].value > 0);
  CHECK(figures[0].value <= 100);
  CHECK(figures[0].ratio() == Approx(figures[0].value / 100));
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("FLOPs of training a token of GPT-2 124M at T = 1024 are 6 N + 6 L C T") {
  // N = 50257 768 + 1024 768 + 12 (12 768^2 + 13 768) + 2 768 = 124439808
  const ModelSpec model = load_model("gpt2-124m", {});
  REQUIRE(model.parameters() == 124439808);
  CHECK(training_flops_per_token(model, 1024) ==
        Approx(6.0 * 124439808 + 6.0 * 12 * 768 * 1024).epsilon(1e-12));
}

TEST_CASE("GPUs are known by their whole name, for variants of one differ in speed") {
  CHECK(datasheet_flops("NVIDIA H200") == 989.5e12);
  CHECK(datasheet_flops("NVIDIA H100 80GB HBM3") == 989.5e12);
  CHECK(datasheet_flops("NVIDIA H100 PCIe") < 989.5e12);
  CHECK(datasheet_flops("NVIDIA A100-SXM4-80GB") == 312e12);
  CHECK(datasheet_flops("NVIDIA GeForce RTX 4090") == Approx(165e12).epsilon(0.01));
  // The NVL parts are slower: 1671 TFLOP/s with sparsity, half of it without.
  CHECK(datasheet_flops("NVIDIA H200 NVL") == 835.5e12);
  CHECK(datasheet_flops("NVIDIA H100 NVL") == 835.5e12);
  for (const char* unknown : {"NVIDIA H100", "NVIDIA H200 MIG 1g.18gb", "NVIDIA GeForce RTX 4090 D",
                              "NVIDIA GeForce RTX 4090 Laptop GPU", "Voodoo 2", "NVIDIA ", ""}) {
    INFO(unknown);
    CHECK(datasheet_flops(unknown) == 0);
  }
}

TEST_CASE("Figures of a GPU, and of schedules of ten million tasks, are taken on request only") {
  std::vector<std::string> on_request;
  for (const FigureTest& test : figure_tests()) {
    if (test.on_request) on_request.push_back(test.name);
  }
  CHECK(on_request == std::vector<std::string>{"pricing", "building", "gpu/memory", "gpu/matmul",
                                               "gpu/attention", "gpu/training"});
}

TEST_CASE("The bench of building has a figure for every length, and one for what grows with it") {
  FigureOptions options;
  options.rounds = 2;
  options.seconds = 0;
  const auto figures = measure_building(options, {2e4, 4e4});
  REQUIRE(figures.size() == 9);
  for (std::size_t first = 0; first < figures.size(); first += 3) {
    const SpeedFigure &shorter = figures[first], &longer = figures[first + 1],
                      &growth = figures[first + 2];
    INFO(shorter.name << ": " << shorter.what << "; " << longer.what);
    CHECK_THAT(shorter.name, Catch::StartsWith("building/") && Catch::EndsWith("/20k"));
    CHECK_THAT(longer.name, Catch::EndsWith("/40k"));
    CHECK_THAT(growth.name, Catch::EndsWith("/growth"));
    CHECK(shorter.target == Approx(1e9 / 3e6));  // 3 million tasks a second
    CHECK(growth.target == 1.25);
    CHECK(growth.value >= 1);
  }
}
