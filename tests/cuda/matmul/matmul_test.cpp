// Matrix products in all their forms against fp64.
//
// A product of fp32 or bf16 numbers is exact in fp64. A sum of k of them in fp32, in any order, is
// off by at most (k - 1) 2^-24 times the sum of their sizes, to first order; bias, residual or what
// was there are two more terms. The result is then rounded once.
#include "exec/cuda/matmul/matmul.hpp"

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/cuda/device_memory.hpp"

using namespace spillway;
using namespace spillway::cuda;

namespace {

using Sizes = std::array<std::int64_t, 3>;  // rows, in, out
// Odd ones, ones of the tensor cores, a single row, a long sum.
const std::vector<Sizes> sizes = {{1, 8, 8}, {7, 16, 24}, {33, 40, 8}, {64, 64, 128}, {5, 512, 16}};

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

// Sums of products and of their sizes, in fp64.
struct Expected {
  std::vector<double> value, sizes;
  std::int64_t terms;

  explicit Expected(std::int64_t n, std::int64_t terms_of_each)
      : value(size(n)), sizes(size(n)), terms(terms_of_each + 2) {}
  void add(std::int64_t at, double term) {
    value[size(at)] += term;
    sizes[size(at)] += std::fabs(term);
  }
  // The worst error, as a share of what rounding allows.
  template <class T>
  double worst(const std::vector<T>& actual) const {
    return worst_of_bound(actual, value, [this](std::size_t i) {
      return static_cast<double>(terms) * fp32_rounding * sizes[i];
    });
  }
};

// A rows x columns matrix in rows of `stride` elements, poisoned between them.
template <class T>
struct Matrix {
  std::int64_t rows, columns, stride;
  std::vector<T> host;
  DeviceArray<T> device;

  Matrix(std::int64_t r, std::int64_t c, std::int64_t s, std::uint64_t seed)
      : rows(r), columns(c), stride(s), host(strided(r, c, s, seed)), device(host) {}
  double operator()(std::int64_t row, std::int64_t column) const {
    return static_cast<double>(to_float(host[size(row * stride + column)]));
  }
  static std::vector<T> strided(std::int64_t r, std::int64_t c, std::int64_t s,
                                std::uint64_t seed) {
    const std::vector<T> dense = random_normal<T>(size(r * c), 1.0f, seed);
    std::vector<T> values(size(r * s), from_float<T>(NAN));
    for (std::int64_t row = 0; row < r; ++row)
      std::copy_n(dense.begin() + row * c, c, values.begin() + row * s);
    return values;
  }
};

struct Products {
  TestStream stream;
  DeviceArray<std::byte> workspace{Matmul::workspace_bytes};
  Matmul matmul{workspace.data()};
};

// The (rows, columns) in a result of rows of `stride`; what is between must still be poison.
template <class T>
std::vector<T> without_gaps(const std::vector<T>& values, std::int64_t columns,
                            std::int64_t stride) {
  std::vector<T> dense;
  bool gaps_are_poison = true;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % size(stride) < size(columns)) {
      dense.push_back(values[i]);
    } else {
      gaps_are_poison &= std::isnan(to_float(values[i]));
    }
  }
  CHECK(gaps_are_poison);
  return dense;
}

template <class T>
void check_linear(Products& with, const Sizes& shape, bool biased, bool residual,
                  std::int64_t gap) {
  const auto [rows, in, out] = shape;
  const Matrix<T> x(rows, in, in, 1), w(out, in, in, 2), bias(1, out, out, 3), r(rows, out, out, 4);
  const DeviceArray<T> y(size(rows * (out + gap)));
  with.matmul.linear<T>(x.device.data(), w.device.data(), biased ? bias.device.data() : nullptr,
                        residual ? r.device.data() : nullptr, y.data(), rows, in, out, with.stream,
                        {.y_stride = gap != 0 ? out + gap : 0});
  Expected expected(rows * out, in);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t o = 0; o < out; ++o) {
      for (std::int64_t i = 0; i < in; ++i) expected.add(row * out + o, x(row, i) * w(o, i));
      if (biased) expected.add(row * out + o, bias(0, o));
      if (residual) expected.add(row * out + o, r(row, o));
    }
  }
  CHECK(expected.worst(without_gaps(y.download(), out, out + gap)) <= 1);
  CHECK(same_bits(r.device.download(), r.host));
}

template <class T>
void check_input_gradient(Products& with, const Sizes& shape, std::int64_t gap) {
  const auto [rows, in, out] = shape;
  const Matrix<T> dy(rows, out, out + gap, 1), w(out, in, in, 2);
  const DeviceArray<T> dx(size(rows * in));
  with.matmul.input_gradient<T>(dy.device.data(), w.device.data(), dx.data(), rows, in, out,
                                with.stream, {.y_stride = gap != 0 ? out + gap : 0});
  Expected expected(rows * in, out);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < in; ++i)
      for (std::int64_t o = 0; o < out; ++o) expected.add(row * in + i, dy(row, o) * w(o, i));
  }
  CHECK(expected.worst(dx.download()) <= 1);
}

// y = x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3): its derivative.
double gelu_slope(double x) {
  const double root = std::sqrt(2 / std::acos(-1.0));
  const double t = std::tanh(root * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}

// GELU's slope in fp32 is off by no more than 4e-6 max(1, |z|), as our own kernel is held to; its
// largest value is 1.13. The sums are those of what was not rounded yet, and are rounded to T.
template <class T>
void check_gelu_gradient(Products& with, const Sizes& shape, bool takes_sums) {
  const auto [rows, in, out] = shape;
  const Matrix<T> dy(rows, out, out, 1), w(out, in, in, 2), z(rows, in, in, 3);
  const DeviceArray<T> dx(size(rows * in)), sums(size(in));
  with.matmul.gelu_gradient<T>(dy.device.data(), w.device.data(), z.device.data(), dx.data(),
                               takes_sums ? sums.data() : nullptr, rows, in, out, with.stream);
  std::vector<double> expected(size(rows * in)), slack(size(rows * in)), expected_sums(size(in)),
      sums_slack(size(in));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < in; ++i) {
      double value = 0, terms = 0;
      for (std::int64_t o = 0; o < out; ++o) {
        value += dy(row, o) * w(o, i);
        terms += std::fabs(dy(row, o) * w(o, i));
      }
      const double x = z(row, i), slope = gelu_slope(x);
      const std::size_t at = size(row * in + i);
      expected[at] = value * slope;
      slack[at] = static_cast<double>(out + 2) * fp32_rounding * terms * 1.13 +
                  4e-6 * std::fabs(value) * std::max(1.0, std::fabs(x));
      expected_sums[size(i)] += expected[at];
      sums_slack[size(i)] +=
          slack[at] + static_cast<double>(rows) * fp32_rounding * std::fabs(expected[at]);
    }
  }
  CHECK(worst_of_bound(dx.download(), expected, [&](std::size_t i) { return slack[i]; }) <= 1);
  CHECK(same_bits(z.device.download(), z.host));
  if (!takes_sums) return;
  CHECK(worst_of_bound(sums.download(), expected_sums,
                       [&](std::size_t i) { return sums_slack[i]; }) <= 1);
}

template <class T, class Gradient>
void check_weight_gradient(Products& with, const Sizes& shape, bool overwrites, std::int64_t gap) {
  const auto [rows, in, out] = shape;
  const Matrix<T> dy(rows, out, out + gap, 1), x(rows, in, in, 2);
  const Matrix<Gradient> before(out, in, in, 3);
  DeviceArray<Gradient> dw(size(out * in));  // poisoned: overwriting must not read it
  if (!overwrites) dw.upload(before.host);
  with.matmul.weight_gradient<T>(dy.device.data(), x.device.data(), dw.data(), rows, in, out,
                                 with.stream,
                                 {.y_stride = gap != 0 ? out + gap : 0, .adds = !overwrites});
  Expected expected(out * in, rows);
  for (std::int64_t o = 0; o < out; ++o) {
    for (std::int64_t i = 0; i < in; ++i) {
      for (std::int64_t row = 0; row < rows; ++row)
        expected.add(o * in + i, dy(row, o) * x(row, i));
      if (!overwrites) expected.add(o * in + i, before(o, i));
    }
  }
  CHECK(expected.worst(dw.download()) <= 1);
}

template <class Check>
void for_all_sizes(const Check& check) {
  Products with;
  for (const Sizes& shape : sizes) {
    INFO("rows " << shape[0] << ", in " << shape[1] << ", out " << shape[2]);
    for (const std::int64_t gap : {0, 8}) {
      INFO("gap " << gap);
      check(with, shape, gap);
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("linear: y = x w^T, with bias, residual and stride", "[matmul]", float, bf16) {
  for_all_sizes([](Products& with, const Sizes& shape, std::int64_t gap) {
    for (const bool biased : {false, true}) {
      for (const bool residual : {false, true}) {
        INFO((biased ? "bias " : "") << (residual ? "residual" : ""));
        check_linear<TestType>(with, shape, biased, residual, gap);
      }
    }
  });
}

TEMPLATE_TEST_CASE("input_gradient: dx = dy w", "[matmul]", float, bf16) {
  for_all_sizes([](Products& with, const Sizes& shape, std::int64_t gap) {
    check_input_gradient<TestType>(with, shape, gap);
  });
}

TEMPLATE_TEST_CASE("gelu_gradient: dx = (dy w) gelu'(z), with sums of its rows and without",
                   "[matmul]", float, bf16) {
  Products with;
  for (const Sizes& shape : sizes) {
    INFO("rows " << shape[0] << ", in " << shape[1] << ", out " << shape[2]);
    for (const bool takes_sums : {false, true})
      check_gelu_gradient<TestType>(with, shape, takes_sums);
  }
}

TEST_CASE("weight_gradient: dw = or += dy^T x, in fp32 and bf16", "[matmul]") {
  for_all_sizes([](Products& with, const Sizes& shape, std::int64_t gap) {
    for (const bool overwrites : {true, false}) {
      INFO((overwrites ? "overwrites" : "adds"));
      check_weight_gradient<float, float>(with, shape, overwrites, gap);
      check_weight_gradient<bf16, float>(with, shape, overwrites, gap);
      check_weight_gradient<bf16, bf16>(with, shape, overwrites, gap);
    }
  });
}

TEST_CASE("A product's bits do not depend on where its operands lie, and one plan serves them all",
          "[matmul]") {
  // As a tensor of a group of sequences lies 0, 1 or 2 groups behind the start of a buffer: on no
  // more than the 16 bytes that its own size divides by.
  Products with;
  const std::int64_t rows = 3, in = 8, out = 24;
  const std::vector<bf16> x = random_normal<bf16>(size(rows * in), 1.0f, 1);
  const DeviceArray<bf16> w(random_normal<bf16>(size(out * in), 1.0f, 2));
  std::vector<bf16> first;
  for (const std::size_t group : {0u, 1u, 2u}) {
    INFO("group " << group);
    std::vector<bf16> many(3 * x.size(), from_float<bf16>(NAN));
    std::copy(x.begin(), x.end(), many.begin() + static_cast<std::ptrdiff_t>(group * x.size()));
    const DeviceArray<bf16> from(many), to(3 * size(rows * out));
    with.matmul.linear<bf16>(from.data() + group * x.size(), w.data(), nullptr, nullptr,
                             to.data() + group * size(rows * out), rows, in, out, with.stream);
    std::vector<bf16> y = to.download();
    y.erase(y.begin(), y.begin() + static_cast<std::ptrdiff_t>(group * size(rows * out)));
    y.resize(size(rows * out));
    if (group == 0) first = y;
    CHECK(same_bits(y, first));
    CHECK(with.matmul.shapes() == 1);
  }
}

TEMPLATE_TEST_CASE("Products of one small shape, every kind", "[matmul][sanitizer][few]", float,
                   bf16) {
  Products with;
  const Sizes shape{24, 40, 16};
  check_linear<TestType>(with, shape, true, true, 8);
  check_input_gradient<TestType>(with, shape, 8);
  check_weight_gradient<TestType, float>(with, shape, false, 8);
  check_weight_gradient<TestType, TestType>(with, shape, true, 0);
}

// Columns 8 .. 8 + out of the result's rows, to which a part of the products is added, of columns
// of wider rows: the products of adapters.
template <class T>
void check_added_columns(Products& with, const Sizes& shape) {
  const auto [rows, in, out] = shape;
  constexpr std::int64_t column = 8, wider = 24;
  constexpr float factor = 0.75f;
  const Matrix<T> x(rows, in + wider, in + wider, 1), w(out, in, in, 2),
      y(rows, out + wider, out + wider, 3), w_before(out, in, in, 4);
  const DeviceArray<T> sum(y.host), x_sum(x.host), w_sum(w_before.host);
  const ProductForm form{in + wider, out + wider, factor, true};
  const T *const x_part = x.device.data() + column, *const y_part = y.device.data() + column;
  with.matmul.linear<T>(x_part, w.device.data(), nullptr, nullptr, sum.data() + column, rows, in,
                        out, with.stream, form);
  with.matmul.input_gradient<T>(y_part, w.device.data(), x_sum.data() + column, rows, in, out,
                                with.stream, form);
  with.matmul.weight_gradient<T>(y_part, x_part, w_sum.data(), rows, in, out, with.stream, form);
  Expected expected(rows * (out + wider), in), expected_x(rows * (in + wider), out),
      expected_w(out * in, rows);
  for (std::int64_t i = 0; i < rows * (out + wider); ++i)
    expected.add(i, y(i / (out + wider), i % (out + wider)));
  for (std::int64_t i = 0; i < rows * (in + wider); ++i)
    expected_x.add(i, x(i / (in + wider), i % (in + wider)));
  for (std::int64_t i = 0; i < out * in; ++i) expected_w.add(i, w_before(i / in, i % in));
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t o = 0; o < out; ++o) {
      for (std::int64_t i = 0; i < in; ++i) {
        const double of_x = x(row, column + i), of_y = y(row, column + o);
        expected.add(row * (out + wider) + column + o, factor * of_x * w(o, i));
        expected_x.add(row * (in + wider) + column + i, factor * of_y * w(o, i));
        expected_w.add(o * in + i, factor * of_y * of_x);
      }
    }
  }
  CHECK(expected.worst(sum.download()) <= 1);
  CHECK(expected_x.worst(x_sum.download()) <= 1);
  CHECK(expected_w.worst(w_sum.download()) <= 1);
}

TEMPLATE_TEST_CASE("A part of a product is added to columns of wider rows", "[matmul]", float,
                   bf16) {
  Products with;
  for (const Sizes& shape : {Sizes{16, 8, 24}, Sizes{5, 3, 16}, Sizes{40, 64, 8}}) {
    INFO(shape[0] << " " << shape[1] << " " << shape[2]);
    check_added_columns<TestType>(with, shape);
  }
}

TEST_CASE("A product that was made before can be captured into a graph", "[matmul]") {
  // The replay computes with what lies there then: w = 2 w gives y = 2 y, exactly.
  Products with;
  const DeviceArray<bf16> x(random_normal<bf16>(16 * 32, 1.0f, 1)), y(16 * 8),
      bias(std::vector<bf16>(8));
  DeviceArray<bf16> w(random_normal<bf16>(8 * 32, 1.0f, 2));
  const auto product = [&] {
    with.matmul.linear<bf16>(x.data(), w.data(), bias.data(), nullptr, y.data(), 16, 32, 8,
                             with.stream);
  };
  product();
  std::vector<double> expected = doubles(y.download());

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t captured = nullptr;
  SPILLWAY_CUDA(cudaStreamBeginCapture(with.stream, cudaStreamCaptureModeGlobal));
  product();
  SPILLWAY_CUDA(cudaStreamEndCapture(with.stream, &graph));
  SPILLWAY_CUDA(cudaGraphInstantiate(&captured, graph, 0));
  std::vector<bf16> twice = w.download();
  for (bf16& value : twice) value = from_float<bf16>(2 * to_float(value));
  w.upload(twice);
  SPILLWAY_CUDA(cudaGraphLaunch(captured, with.stream));
  for (double& value : expected) value *= 2;
  CHECK(doubles(y.download()) == expected);
  SPILLWAY_CUDA(cudaGraphExecDestroy(captured));
  SPILLWAY_CUDA(cudaGraphDestroy(graph));
}
