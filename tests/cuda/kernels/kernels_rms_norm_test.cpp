// RMS norm, forward and backward, against fp64. Bounds as in kernels_norm_test.cpp.
#include <catch2/catch.hpp>
#include <cmath>

#include "exec/cuda/kernels/kernels.hpp"
#include "tests/cuda/device_memory.hpp"

using namespace spillway;
using namespace spillway::cuda;

namespace {

constexpr double depth = 128;
constexpr float epsilon = 1e-3f;  // so large that leaving it out would show

// Sequences of T tokens, with the statistics of a sequence `stride` floats apart.
struct Shape {
  std::int64_t sequences, t, columns, stride;

  std::int64_t rows() const { return sequences * t; }
  std::size_t elements() const { return static_cast<std::size_t>(rows() * columns); }
  std::size_t width() const { return static_cast<std::size_t>(columns); }
  std::size_t place(std::size_t row) const {
    const auto tokens = static_cast<std::size_t>(t);
    return row / tokens * static_cast<std::size_t>(stride) + row % tokens;
  }
};

// One for each way to hold a row in registers, for both formats, and rows too wide for that.
std::vector<Shape> shapes() {
  return {{1, 1, 8, 1},       {1, 7, 64, 9},    {3, 11, 264, 70}, {2, 19, 768, 200},
          {3, 5, 1600, 33},   {1, 3, 2056, 3},  {2, 3, 4096, 24}, {1, 2, 6144, 40},
          {1, 3, 12'288, 12}, {2, 1, 20'480, 7}};
}

template <class T>
struct RmsCase {
  Shape shape;
  std::vector<T> x, weight;
  RmsCase(const Shape& s, std::uint64_t seed)
      : shape(s),
        x(random_normal<T>(s.elements(), 1.5f, seed, 0.5f)),
        weight(random_normal<T>(s.width(), 0.3f, seed + 1, 1)) {}

  double rstd(std::size_t row) const {
    double squares = 0;
    for (std::size_t i = 0; i < shape.width(); ++i) {
      const auto value = static_cast<double>(to_float(x[row * shape.width() + i]));
      squares += value * value / static_cast<double>(shape.columns);
    }
    return 1 / std::sqrt(squares + static_cast<double>(epsilon));
  }
};

template <class T>
struct RmsDevice {
  DeviceArray<T> x, weight, y;
  DeviceArray<float> rstd;
  TestStream stream;
  Shape shape;

  explicit RmsDevice(const RmsCase<T>& c)
      : x(c.x),
        weight(c.weight),
        y(c.x.size()),
        rstd(c.shape.place(static_cast<std::size_t>(c.shape.rows() - 1)) + 1),
        shape(c.shape) {}
  // No room for a mean: an RMS norm has none.
  RowStatistics statistics() const { return {nullptr, rstd.data(), shape.t, shape.stride}; }
  void run(NormParts parts) {
    rms_norm_forward<T>(x.data(), weight.data(),
                        parts == NormParts::statistics ? nullptr : y.data(), statistics(), parts,
                        epsilon, shape.rows(), shape.columns, stream);
  }
};

template <class T>
void check_forward(const Shape& shape) {
  INFO("rows " << shape.rows() << " columns " << shape.columns);
  const RmsCase<T> c(shape, static_cast<std::uint64_t>(shape.columns));
  RmsDevice<T> device(c), parts(c);
  const auto run = [&] {
    device.run(NormParts::statistics_and_output);
    return bytes_of(device.y.download(), device.rstd.download());
  };
  run();
  const auto rstd = device.rstd.download();
  std::vector<double> expected, slack;
  std::vector<bool> written(rstd.size(), false);
  double worst = 0;
  for (std::size_t row = 0; row < static_cast<std::size_t>(shape.rows()); ++row) {
    const double r = c.rstd(row);
    written[shape.place(row)] = true;
    worst = std::max(worst, std::fabs(static_cast<double>(rstd[shape.place(row)]) - r) /
                                (depth * fp32_rounding * r));
    for (std::size_t i = 0; i < shape.width(); ++i) {
      expected.push_back(static_cast<double>(to_float(c.x[row * shape.width() + i])) * r *
                         static_cast<double>(to_float(c.weight[i])));
      slack.push_back(depth * fp32_rounding * std::fabs(expected.back()));
    }
  }
  CHECK(worst <= 1);
  CHECK(worst_of_bound(device.y.download(), expected, [&](std::size_t i) { return slack[i]; }) <=
        1);
  bool kept = true;  // between the sequences' statistics lie other things
  for (std::size_t i = 0; i < rstd.size(); ++i) kept = kept && (written[i] || std::isnan(rstd[i]));
  CHECK(kept);
  // Each part alone has the bits of the whole.
  parts.run(NormParts::statistics);
  CHECK(same_bits(parts.rstd.download(), rstd));
  CHECK(same_bits(parts.y.download(), std::vector<T>(DeviceArray<T>(c.x.size()).download())));
  parts.run(NormParts::output);
  CHECK(same_bits(parts.y.download(), device.y.download()));
  if (shape.columns <= 1600) require_repeatable(run);
}

// dx = rstd (g - xhat mean(g xhat)), g = dy w, xhat = x rstd; dw = sum of dy xhat.
template <class T, class Gradient>
void check_backward(const Shape& shape, bool adds, bool overwrites) {
  const auto seed = static_cast<std::uint64_t>(shape.columns * 3 + shape.rows());
  INFO("rows " << shape.rows() << " columns " << shape.columns << " adds " << adds << " overwrites "
               << overwrites << " element " << sizeof(T) << " gradient " << sizeof(Gradient));
  const RmsCase<T> c(shape, seed);
  RmsDevice<T> device(c);
  device.run(NormParts::statistics);
  const auto dy = random_normal<T>(c.x.size(), 0.5f, seed + 3);
  const auto old_dx = random_normal<T>(c.x.size(), 2, seed + 4);
  const auto old_dw = random_normal<Gradient>(shape.width(), 1, seed + 5);
  const DeviceArray<T> output_gradient(dy);
  DeviceArray<T> dx(c.x.size());
  DeviceArray<Gradient> dw(shape.width());
  const DeviceArray<std::byte> memory(workspace_bytes(shape.columns, shape.columns, 0));
  const auto run = [&] {
    if (adds) dx.upload(old_dx);
    if (!overwrites) dw.upload(old_dw);
    rms_norm_backward<T, Gradient>(output_gradient.data(), device.x.data(), device.weight.data(),
                                   device.statistics(), dx.data(), adds, dw.data(), overwrites,
                                   shape.rows(), shape.columns,
                                   Workspace{memory.data(), memory.size()}, device.stream);
    static_cast<void>(memory.download());  // checks its guards
    return bytes_of(dx.download(), dw.download());
  };
  run();
  const auto rstd = device.rstd.download();
  const std::size_t width = shape.width();
  std::vector<double> expected, slack, weight(width), weight_slack(width);
  for (std::size_t row = 0; row < static_cast<std::size_t>(shape.rows()); ++row) {
    const auto r = static_cast<double>(rstd[shape.place(row)]);
    std::vector<double> g(width), xhat(width);
    double mean = 0, size = 0;
    for (std::size_t i = 0; i < width; ++i) {
      const auto d = static_cast<double>(to_float(dy[row * width + i]));
      xhat[i] = static_cast<double>(to_float(c.x[row * width + i])) * r;
      g[i] = d * static_cast<double>(to_float(c.weight[i]));
      mean += g[i] * xhat[i] / static_cast<double>(width);
      size += std::fabs(g[i] * xhat[i]) / static_cast<double>(width);
      weight[i] += d * xhat[i];
      weight_slack[i] += depth * fp32_rounding * std::fabs(d * xhat[i]);
    }
    for (std::size_t i = 0; i < width; ++i) {
      const double old = adds ? static_cast<double>(to_float(old_dx[row * width + i])) : 0;
      expected.push_back(old + r * (g[i] - xhat[i] * mean));
      slack.push_back(depth * fp32_rounding * r * (std::fabs(g[i]) + std::fabs(xhat[i]) * size) +
                      fp32_rounding * std::fabs(old));
    }
  }
  if (!overwrites)
    for (std::size_t i = 0; i < width; ++i) weight[i] += static_cast<double>(to_float(old_dw[i]));
  CHECK(worst_of_bound(dx.download(), expected, [&](std::size_t i) { return slack[i]; }) <= 1);
  CHECK(worst_of_bound(dw.download(), weight, [&](std::size_t i) { return weight_slack[i]; }) <= 1);
  if (shape.columns <= 1600) require_repeatable(run);
}

}  // namespace

TEMPLATE_TEST_CASE("RMS norm on the GPU follows its equation, and so do its parts", "[kernels]",
                   float, bf16) {
  for (const Shape& shape : shapes()) check_forward<TestType>(shape);
}

TEST_CASE("RMS norm's gradients on the GPU follow their equations", "[kernels]") {
  for (const Shape& shape : shapes()) {
    check_backward<float, float>(shape, false, true);
    check_backward<bf16, float>(shape, true, false);
    check_backward<bf16, bf16>(shape, false, true);
  }
}

TEST_CASE("RMS norm's gradients on the GPU with more rows than its teams take at once",
          "[kernels]") {
  check_backward<bf16, float>({5, 333, 64, 400}, true, false);
  check_backward<float, bf16>({1, 701, 264, 701}, false, true);
  check_backward<bf16, float>({1, 301, 12'296, 301}, false, true);
}

TEST_CASE("RMS norm on the GPU, with every kernel there is", "[kernels][sanitizer][few]") {
  for (const std::int64_t columns : {264, 4096, 12'288, 20'480}) {
    check_forward<bf16>({1, 3, columns, 3});
    check_backward<bf16, float>({1, 3, columns, 3}, true, false);
    check_backward<float, bf16>({1, 3, columns, 3}, false, true);
  }
}
