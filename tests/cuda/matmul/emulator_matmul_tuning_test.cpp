// Which algorithm a matrix product gets: the fastest of those with the bits of the first, or the
// one that is recorded. The emulated cuBLASLt has eight: 1, 3 and 7 add up in the order of the
// first, 2 and 4 split the sum, 5 goes backwards, 6 is listed but not there; tests say what each
// takes.
#ifdef SPILLWAY_EMULATED_GPU
#include <catch2/catch.hpp>
#include <set>

#include "base/errors.hpp"
#include "exec/cuda/matmul/matmul.hpp"
#include "exec/cuda/matmul/matmul_plan.hpp"
#include "exec/run/cuda_module.hpp"
#include "tests/cuda/device_memory.hpp"
#include "tests/emulator/emulator.hpp"

namespace spillway::cuda {
namespace {

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

// Operands of every kind of product, (rows, in) to (rows, out), and a Matmul.
template <class T>
struct Tuned {
  static constexpr std::int64_t rows = 24, in = 40, out = 32;
  TestStream stream;
  DeviceArray<std::byte> workspace{Matmul::workspace_bytes}, memory{MatmulTuning::memory_bytes};
  MatmulTuning tuning{memory.data(), workspace.data(), stream};
  Matmul matmul{workspace.data()};
  DeviceArray<T> x{random_normal<T>(size(rows * in), 1, 1)},
      w{random_normal<T>(size(out * in), 1, 2)}, bias{random_normal<T>(size(out), 1, 3)},
      residual{random_normal<T>(size(rows * out), 1, 4)}, y{size(rows * out)}, dx{size(rows * in)},
      sums{size(in)}, z{size(rows * in)};
  DeviceArray<float> dw{size(out * in)};

  // Each shape once, five in all.
  void products() {
    matmul.template linear<T>(x.data(), w.data(), bias.data(), residual.data(), y.data(), rows, in,
                              out, stream);
    matmul.template input_gradient<T>(y.data(), w.data(), dx.data(), rows, in, out, stream);
    matmul.template weight_gradient<T>(y.data(), x.data(), dw.data(), rows, in, out, stream,
                                       {.adds = true});
    matmul.template gelu_gradient<T>(y.data(), w.data(), z.data(), dx.data(), nullptr, rows, in,
                                     out, stream);
    matmul.template gelu_gradient<T>(y.data(), w.data(), z.data(), dx.data(), sums.data(), rows, in,
                                     out, stream);
    stream.wait();
  }
};

// By which algorithms the products are computed once they have been met.
template <class T>
std::set<int> algorithms_of(Tuned<T>& tuned) {
  emulator::reset_counts();
  tuned.products();
  std::set<int> found;
  for (int algorithm = 0; algorithm < 8; ++algorithm) {
    if (emulator::count("product by algorithm " + std::to_string(algorithm)) > 0)
      found.insert(algorithm);
  }
  return found;
}

template <class T>
std::set<int> chosen(const std::map<int, double>& microseconds,
                     const emulator::Machine& machine = {}) {
  emulator::reset();
  emulator::set_machine(machine);
  emulator::set_product_times(microseconds);
  Tuned<T> tuned;
  tuned.matmul.tune(&tuned.tuning);
  tuned.products();
  tuned.matmul.tune(nullptr);
  const std::set<int> algorithms = algorithms_of(tuned);
  emulator::reset();
  return algorithms;
}

}  // namespace

TEST_CASE("The emulated cuBLASLt's algorithms differ in their bits where they add up otherwise") {
  emulator::reset();
  Tuned<float> with;
  MatmulProduct product;
  MatmulShape& s = product.shape;
  s.a = matmul_operand(with.w.data(), CUDA_R_32F, with.in, with.out, with.in);
  s.b = matmul_operand(with.x.data(), CUDA_R_32F, with.in, with.rows, with.in);
  s.c = s.d = matmul_operand(with.y.data(), CUDA_R_32F, with.out, with.rows, with.out);
  product.a = with.w.data();
  product.b = with.x.data();
  product.c = product.d = with.y.data();
  cublasLtHandle_t library = nullptr;
  REQUIRE(cublasLtCreate(&library) == CUBLAS_STATUS_SUCCESS);
  {
    MatmulPlan plan(library, product, Matmul::workspace_bytes);
    const auto candidates = plan.candidates(8);
    REQUIRE(candidates.size() == 7);  // all but the one that is not there
    REQUIRE(plan.candidates(1).size() == 1);
    std::vector<std::vector<float>> results;
    for (const auto& algorithm : candidates) {
      CHECK(plan.check(algorithm) == CUBLAS_STATUS_SUCCESS);
      plan.choose(algorithm);
      REQUIRE(plan.run(product, with.workspace.data(), with.stream) == CUBLAS_STATUS_SUCCESS);
      results.push_back(with.y.download());
    }
    const std::vector<bool> same = {true, true, false, true, false, false, true};
    for (std::size_t i = 0; i < results.size(); ++i)
      CHECK(same_bits(results[i], results[0]) == same[i]);
  }
  cublasLtDestroy(library);
}

TEMPLATE_TEST_CASE("A product is tuned to the fastest algorithm with the bits of the first", "",
                   float, bf16) {
  using Set = std::set<int>;
  // 2 splits, 5 goes backwards: ten times as fast, and not taken. Of the others 7 is the best.
  CHECK(chosen<TestType>({{0, 100}, {1, 90}, {2, 10}, {3, 80}, {4, 10}, {5, 10}, {7, 70}}) ==
        Set{7});
  // Two per cent less time is within what measurements scatter by.
  CHECK(chosen<TestType>({{0, 100}, {1, 98}, {2, 10}, {3, 99}, {7, 98}}) == Set{0});
  CHECK(chosen<TestType>({{0, 100}, {3, 96}}) == Set{3});
}

TEMPLATE_TEST_CASE("Halves that are added up otherwise show, also where the first splits in two",
                   "", float, bf16) {
  emulator::Machine machine;
  machine.first_product_splits = true;
  // 2 has the halves of the first, each backwards: ten times as fast, and not taken.
  CHECK(chosen<TestType>({{0, 100}, {1, 80}, {2, 10}, {3, 10}, {4, 10}, {5, 10}, {7, 10}},
                         machine) == std::set<int>{1});
}

TEST_CASE("A small product, whose few rounded results might agree by chance, is not mistaken") {
  // One row of 8 sums of 16 products, in bf16: 8 numbers of 8 bits.
  for (const int other : {2, 5}) {
    emulator::reset();
    emulator::set_product_times({{0, 100}, {other, 1}});
    Tuned<bf16> with;
    with.matmul.tune(&with.tuning);
    const auto product = [&] {
      with.matmul.linear<bf16>(with.x.data(), with.w.data(), nullptr, nullptr, with.y.data(), 1, 16,
                               8, with.stream);
      with.stream.wait();
    };
    product();
    emulator::reset_counts();
    product();
    CHECK(emulator::count("product by algorithm 0") == 1);
  }
  emulator::reset();
}

TEST_CASE(
    "A tuned product has the bits of one that is not, and its operands are left alone later") {
  emulator::reset();
  emulator::set_product_times({{0, 100}, {7, 50}});
  const auto results = [](bool tunes) {
    Tuned<bf16> with;
    if (tunes) with.matmul.tune(&with.tuning);
    with.products();  // meets the shapes; operands are anything now
    with.matmul.tune(nullptr);
    with.x.upload(random_normal<bf16>(with.x.size(), 1, 1));
    with.w.upload(random_normal<bf16>(with.w.size(), 1, 2));
    with.bias.upload(random_normal<bf16>(with.bias.size(), 1, 3));
    with.residual.upload(random_normal<bf16>(with.residual.size(), 1, 4));
    with.z.upload(random_normal<bf16>(with.z.size(), 1, 5));
    with.dw.upload(random_normal<float>(with.dw.size(), 1, 6));
    with.products();
    return bytes_of(with.y.download(), with.dx.download(), with.sums.download(), with.dw.download(),
                    with.x.download(), with.w.download());
  };
  CHECK(results(true) == results(false));
  emulator::reset();
}

TEST_CASE("Without tuning a product is computed by the first of the heuristics, untried") {
  emulator::reset();
  emulator::set_product_times({{0, 100}, {7, 50}});
  Tuned<bf16> with;
  with.products();
  CHECK(emulator::count("cublasLtMatmul") == 5);
  CHECK(algorithms_of(with) == std::set<int>{0});
  emulator::reset();
}

TEST_CASE("Recorded algorithms are used again, whatever is the fastest now") {
  emulator::reset();
  emulator::set_product_times({{0, 100}, {7, 50}});
  Tuned<bf16> first;
  first.matmul.tune(&first.tuning);
  first.products();
  const std::string text = first.matmul.choices().to_text();
  CHECK(MatmulChoices::parse(text).to_text() == text);
  CHECK(MatmulChoices::parse(text).algorithms.size() == 5);

  emulator::set_product_times({{0, 100}, {3, 10}});
  Tuned<bf16> second;
  const MatmulChoices recorded = MatmulChoices::parse(text);
  second.matmul.use(&recorded);
  second.products();
  CHECK(algorithms_of(second) == std::set<int>{7});
  CHECK(second.matmul.choices().to_text() == text);
  emulator::reset();
}

TEST_CASE("Recorded algorithms that cannot be used are refused, with the reason") {
  emulator::reset();
  Tuned<bf16> first;
  first.products();
  const MatmulChoices recorded = first.matmul.choices();
  Tuned<bf16> second;
  SECTION("another cuBLASLt") {
    emulator::Machine machine;
    machine.cublaslt_version = 140200;
    emulator::set_machine(machine);
    CHECK_THROWS_WITH(second.matmul.use(&recorded),
                      Catch::Contains("cuBLASLt 130000") && Catch::Contains("140200"));
  }
  SECTION("another kind of GPU") {
    emulator::Machine machine;
    machine.major = 8;
    emulator::set_machine(machine);
    CHECK_THROWS_AS(second.matmul.use(&recorded), RecordedAlgorithmsRefused);
  }
  SECTION("the library refuses one") {
    second.matmul.use(&recorded);
    emulator::fail("cublasLtMatmulAlgoCheck", 2, static_cast<cudaError_t>(8));
    CHECK_THROWS_WITH(second.products(), Catch::Contains("dx = dy w") &&
                                             Catch::Contains("CUBLAS_STATUS_ARCH_MISMATCH"));
  }
  SECTION("one is missing") {
    MatmulChoices fewer = recorded;
    fewer.algorithms.erase(fewer.algorithms.begin());
    second.matmul.use(&fewer);
    CHECK_THROWS_WITH(second.products(), Catch::Contains("no algorithm is recorded"));
  }
  emulator::reset();
}

TEST_CASE("A text that is no record of algorithms is refused") {
  const char* const damaged[] = {"a library\nlinear\n", "a library\nlinear 12\n",
                                 "a library\nlinear 00000000000000zz\n",
                                 "a library\nlinear  0000000000000000\n", "a library\n\n"};
  for (const char* text : damaged) {
    INFO(text);
    CHECK_THROWS_AS(MatmulChoices::parse(text), InputError);
  }
  CHECK_THROWS_AS(MatmulChoices::parse("a library\nlinear " + std::string(9 * 16, '0') + "\n"),
                  InputError);
}

}  // namespace spillway::cuda
#endif
