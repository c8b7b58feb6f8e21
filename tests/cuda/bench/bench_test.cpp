// `spillway bench gpu` on the smallest shapes: every figure is taken, against what it should be.
// What the figures say is a matter for a real GPU.
#include <catch2/catch.hpp>
#include <filesystem>
#include <set>

#include "base/errors.hpp"
#include "experiments/speed/speed_gpu.hpp"
#include "tests/cuda/bench/measured_gpu.hpp"
#ifdef SPILLWAY_EMULATED_GPU
#include "tests/emulator/emulator.hpp"
#endif

namespace spillway {
namespace {

GpuBenchOptions tiny() { return {0, GpuBenchSize::tiny, 2, 0}; }

// One value per round, and a roofline for each but the first, which is what it is held to.
void check_figures(const std::vector<SpeedFigure>& figures, const std::set<std::string>& expected,
                   double target) {
  std::set<std::string> names;
  for (const SpeedFigure& figure : figures) {
    INFO(figure.name << ": " << figure.what);
    CHECK(names.insert(figure.name).second);
    CHECK(figure.value > 0);
    CHECK_FALSE(figure.what.empty());
    if (figure.roofline_what.empty()) {
      CHECK(figure.target == 0);
      continue;
    }
    CHECK(figure.ratios.size() == 2);
    CHECK(figure.roofline > 0);
    CHECK(figure.target == target);
  }
  for (const std::string& name : expected) CHECK(names.count(name) == 1);
}

TEST_CASE("CUDA bench: each kernel that memory bounds is held against a copy") {
  const auto figures = gpu_memory_figures(test::gpu_under_test(), tiny());
  check_figures(
      figures,
      {"gpu/copy", "gpu/kernel/embed-forward", "gpu/kernel/embed-backward",
       "gpu/kernel/norm-forward", "gpu/kernel/norm-backward", "gpu/kernel/norm-backward-residual",
       "gpu/kernel/gelu-forward", "gpu/kernel/gelu-backward", "gpu/kernel/gelu-backward-forward",
       "gpu/kernel/cross-entropy", "gpu/kernel/column-sums", "gpu/kernel/sum-of-squares",
       "gpu/kernel/adamw", "gpu/kernel/adamw-bf16-moments"},
      0.85);
  // ratio = rate / rate of the copy
  for (const SpeedFigure& figure : figures) {
    if (!figure.ratios.empty()) CHECK(figure.ratio() == Approx(figure.value / figure.roofline));
  }
}

TEST_CASE("CUDA bench: each matrix product is held against a bare one of its shape") {
  const auto figures = gpu_matmul_figures(test::gpu_under_test(), tiny());
  std::set<std::string> names = {"gpu/matmul/peak"};
  for (const char* name : {"qkv", "projection", "fc", "fc-projection", "head"}) {
    for (const char* way : {"", "-dx", "-dw"})
      names.insert(std::string("gpu/matmul/") + name + "-c32" + way);
  }
  std::vector<SpeedFigure> products, ways;
  for (const SpeedFigure& figure : figures)
    (figure.name.find("gelu-backward") == std::string::npos ? products : ways).push_back(figure);
  check_figures(products, names, 0.90);
  CHECK(products.size() == names.size());
  // Each also beside the best of the first eight bare ones: value / best is near ratio.
  for (const SpeedFigure& figure : products) {
    INFO(figure.name);
    if (figure.roofline_what.empty()) continue;
    CHECK(figure.best_of_eight > 0);
    CHECK(figure.best_of_eight_ratio > 0);
    CHECK_THAT(figure.best_of_eight_what, Catch::Contains("algorithm"));
  }
  // GELU's backward in each way that the library has, beside the usual one.
  std::set<std::string> found;
  for (const SpeedFigure& figure : ways) {
    found.insert(figure.name);
    CHECK(figure.value > 0);
    CHECK(figure.target == 0);
    CHECK(figure.ratios.empty() == (figure.name == "gpu/matmul/gelu-backward-kernel-c32"));
  }
  CHECK(found.count("gpu/matmul/gelu-backward-kernel-c32") == 1);
#ifdef SPILLWAY_EMULATED_GPU
  CHECK(found.count("gpu/matmul/gelu-backward-dgelu-c32") == 1);
  CHECK(found.count("gpu/matmul/gelu-backward-dgelu-bgrad-c32") == 1);
#endif
}

#ifdef SPILLWAY_EMULATED_GPU
TEST_CASE("CUDA bench: the best of eight bare products is the fastest, whatever its bits") {
  // The third of the heuristics, which splits the sum in two, takes a quarter of the first's time.
  emulator::reset();
  emulator::set_product_times({{0, 100}, {2, 25}});
  const auto figures = gpu_matmul_figures(test::gpu_under_test(), tiny());
  emulator::reset();
  for (const SpeedFigure& figure : figures) {
    if (figure.name != "gpu/matmul/fc-c32") continue;
    CHECK_THAT(figure.best_of_eight_what,
               Catch::Contains("number 3 of 7: algorithm 2") && Catch::Contains("split-K 2"));
    CHECK(figure.best_of_eight == Approx(4 * figure.roofline));
    CHECK(figure.best_of_eight_ratio == Approx(0.25));  // ours must have the first's bits
    return;
  }
  FAIL("no figure of fc");
}
#endif

TEST_CASE("CUDA bench: attention both ways is held against the largest rate of a product") {
  const GpuUnderTest gpu = test::gpu_under_test();
  const bool is_hopper = gpu.info.major == 9 && gpu.info.minor == 0;
  // It says which kernels ran: those that training would take. Hopper's are compared with the
  // others.
  for (const bool own : {false, true}) {
    if (own && !is_hopper) continue;
    setenv("SPILLWAY_CUDA_ATTENTION", own ? "wgmma" : "mma", 1);
    const auto figures = gpu_attention_figures(gpu, tiny());
    unsetenv("SPILLWAY_CUDA_ATTENTION");
    for (const SpeedFigure& figure : figures) {
      CHECK_THAT(figure.what, Catch::Contains(own ? "wgmma" : "mma.sync"));
      CHECK((figure.note.find("times as fast as with mma.sync") != std::string::npos) == own);
    }
    check_figures(figures,
                  {"gpu/attention/forward-d64-t32", "gpu/attention/backward-d64-t32",
                   "gpu/attention/forward-d128-t32", "gpu/attention/backward-d128-t32"},
                  0.50);
  }
}

TEST_CASE("CUDA bench: training is held against the datasheet, and against the measured rate") {
  GpuUnderTest gpu = test::gpu_under_test();
  gpu.info.name = "NVIDIA H200";
  // Where the larger micro-batch does not fit, the smaller one is measured.
  const ModelSpec model = load_model("gpt-tiny", {"hidden=32", "layers=1", "heads=2"});
  const GpuTrainingShape shape{model, 16, {100'000'000, 2}, 12, 0.45};
  const auto figures =
      gpu_training_figures(gpu, tiny(), {shape}, std::filesystem::temp_directory_path());
  REQUIRE(figures.size() == 2);
  const SpeedFigure &datasheet = figures[0], &measured = figures[1];
  CHECK(datasheet.name == "gpu/training/gpt-tiny");
  CHECK(datasheet.roofline == Approx(989.5));
  CHECK(datasheet.target == 0.45);
  CHECK_THAT(datasheet.what, Catch::Contains("2 sequences of 16 tokens"));
  CHECK(measured.name == "gpu/training/gpt-tiny/measured-peak");
  CHECK(measured.target == 0);
  CHECK(measured.value == datasheet.value);
  CHECK(datasheet.ratios.size() == 4);  // of 12 steps the first 8 warm up
  CHECK(measured.ratio() * measured.roofline == Approx(datasheet.ratio() * datasheet.roofline));
}

TEST_CASE("CUDA bench: a GPU without a datasheet is held to its measured rate") {
  GpuUnderTest gpu = test::gpu_under_test();
  gpu.info.name = "Voodoo 2";
  const ModelSpec model = load_model("gpt-tiny", {"hidden=32", "layers=1", "heads=2"});
  const auto folder = std::filesystem::temp_directory_path();
  const auto figures = gpu_training_figures(gpu, tiny(), {{model, 16, {1}, 9, 0.5}}, folder);
  REQUIRE(figures.size() == 1);
  CHECK(figures[0].target == 0.5);
  gpu.info.free_memory = 1 << 20;
  const auto none = gpu_training_figures(gpu, tiny(), {{model, 16, {1}, 9, 0.5}}, folder);
  REQUIRE(none.size() == 1);
  CHECK_THAT(none[0].note, Catch::Contains("does not fit"));
  CHECK(none[0].target == 0);
}

TEST_CASE("CUDA bench: a device that is not there is refused") {
  GpuBenchOptions options = tiny();
  options.device = 99;
  CHECK_THROWS_AS(cuda::make_bench(options), InputError);
}

}  // namespace
}  // namespace spillway
