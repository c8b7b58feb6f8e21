// Layer norm, forward and backward, against fp64.
//
// Bounds: a sum over a row or a column is a tree at most `depth` additions deep, so it is off by
// depth roundings of the sum of magnitudes; what follows adds a few roundings; last, the result is
// rounded to its format.
#include <catch2/catch.hpp>
#include <cmath>

#include "exec/cuda/kernels/kernels.hpp"
#include "tests/cuda/device_memory.hpp"

using namespace spillway;
using namespace spillway::cuda;

namespace {

constexpr double depth = 128;

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

// One row per way to hold a row in registers, for both formats, and rows too wide for that.
std::vector<Shape> shapes() {
  return {{1, 1, 8, 1},     {1, 7, 64, 9},      {3, 11, 264, 70}, {2, 19, 768, 200},
          {1, 5, 1000, 5},  {3, 5, 1600, 33},   {1, 3, 2056, 3},  {2, 3, 4096, 24},
          {1, 2, 6144, 40}, {1, 3, 12'288, 12}, {2, 1, 20'480, 7}};
}

template <class T>
struct NormCase {
  Shape shape;
  std::vector<T> x, weight, bias;

  NormCase(const Shape& s, std::uint64_t seed)
      : shape(s),
        x(random_normal<T>(s.elements(), 1.5f, seed, 0.5f)),
        weight(random_normal<T>(s.width(), 0.3f, seed + 1, 1)),
        bias(random_normal<T>(s.width(), 0.5f, seed + 2)) {}
};

struct Moments {
  double mean = 0, rstd = 0, magnitude = 0;  // magnitude: mean |x|
};
template <class T>
Moments moments(const NormCase<T>& c, std::size_t row) {
  const std::size_t width = c.shape.width();
  const auto count = static_cast<double>(width);
  Moments m;
  double squares = 0;
  for (std::size_t i = 0; i < width; ++i) {
    const double x = static_cast<double>(to_float(c.x[row * width + i]));
    m.mean += x / count;
    m.magnitude += std::fabs(x) / count;
  }
  for (std::size_t i = 0; i < width; ++i) {
    const double x = static_cast<double>(to_float(c.x[row * width + i])) - m.mean;
    squares += x * x / count;
  }
  m.rstd = 1 / std::sqrt(squares + 1e-5);
  return m;
}

// The three arrays of statistics a sequence may have: those at `mean` and `rstd`, T floats each.
template <class T>
struct NormDevice {
  DeviceArray<T> x, weight, bias, y;
  DeviceArray<float> mean, rstd;
  TestStream stream;
  Shape shape;

  explicit NormDevice(const NormCase<T>& c)
      : x(c.x),
        weight(c.weight),
        bias(c.bias),
        y(c.x.size()),
        mean(c.shape.place(static_cast<std::size_t>(c.shape.rows() - 1)) + 1),
        rstd(mean.size()),
        shape(c.shape) {}
  RowStatistics statistics() const { return {mean.data(), rstd.data(), shape.t, shape.stride}; }
  void run(NormParts parts) {
    norm_forward(x.data(), weight.data(), bias.data(),
                 parts == NormParts::statistics ? nullptr : y.data(), statistics(), parts, 1e-5f,
                 shape.rows(), shape.columns, stream);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("Layer norm on the GPU follows its equation", "[kernels]", float, bf16) {
  using T = TestType;
  for (const Shape& shape : shapes()) {
    const auto seed = static_cast<std::uint64_t>(shape.columns);
    INFO("rows " << shape.rows() << " columns " << shape.columns << " seed " << seed);
    const NormCase<T> c(shape, seed);
    NormDevice<T> device(c);
    device.run(NormParts::statistics_and_output);
    const auto y = device.y.download();
    const auto mean = device.mean.download(), rstd = device.rstd.download();
    std::vector<double> expected, slack;
    double worst_mean = 0, worst_rstd = 0;
    std::vector<bool> written(mean.size(), false);
    for (std::size_t row = 0; row < static_cast<std::size_t>(shape.rows()); ++row) {
      const Moments m = moments(c, row);
      const std::size_t at = shape.place(row);
      written[at] = true;
      worst_mean = std::max(worst_mean, std::fabs(static_cast<double>(mean[at]) - m.mean) /
                                            (depth * fp32_rounding * m.magnitude));
      worst_rstd = std::max(worst_rstd, std::fabs(static_cast<double>(rstd[at]) - m.rstd) /
                                            (depth * fp32_rounding * m.rstd));
      for (std::size_t i = 0; i < shape.width(); ++i) {
        const double x = static_cast<double>(to_float(c.x[row * shape.width() + i]));
        const double xhat = (x - m.mean) * m.rstd, w = static_cast<double>(to_float(c.weight[i]));
        const double b = static_cast<double>(to_float(c.bias[i]));
        expected.push_back(xhat * w + b);
        slack.push_back(depth * fp32_rounding * std::fabs(w) *
                            (std::fabs(xhat) + m.magnitude * m.rstd) +
                        fp32_rounding * std::fabs(b));
      }
    }
    CHECK(worst_mean <= 1);
    CHECK(worst_rstd <= 1);
    CHECK(worst_of_bound(y, expected, [&](std::size_t i) { return slack[i]; }) <= 1);
    // Between the sequences' statistics lie other things.
    bool kept = true;
    for (std::size_t i = 0; i < mean.size(); ++i)
      kept = kept && (written[i] || (std::isnan(mean[i]) && std::isnan(rstd[i])));
    CHECK(kept);
  }
}

TEMPLATE_TEST_CASE("The parts of a layer norm on the GPU have the bits of the whole", "[kernels]",
                   float, bf16) {
  using T = TestType;
  for (const Shape& shape : shapes()) {
    INFO("rows " << shape.rows() << " columns " << shape.columns);
    const NormCase<T> c(shape, 5);
    NormDevice<T> whole(c), parts(c);
    whole.run(NormParts::statistics_and_output);
    parts.run(NormParts::statistics);
    CHECK(same_bits(parts.mean.download(), whole.mean.download()));
    CHECK(same_bits(parts.rstd.download(), whole.rstd.download()));
    CHECK(same_bits(parts.y.download(), std::vector<T>(DeviceArray<T>(c.x.size()).download())));
    parts.run(NormParts::output);
    CHECK(same_bits(parts.y.download(), whole.y.download()));
    require_repeatable([&] {
      whole.run(NormParts::statistics_and_output);
      return bytes_of(whole.y.download(), whole.mean.download(), whole.rstd.download());
    });
  }
}

TEMPLATE_TEST_CASE("A row of equal numbers is normalised to the bias", "[kernels][sanitizer]",
                   float, bf16) {
  // The deviation is 0 and rstd = 1 / sqrt(epsilon): finite.
  using T = TestType;
  NormCase<T> c({1, 2, 768, 2}, 1);
  c.x.assign(c.x.size(), from_float<T>(0.5f));
  NormDevice<T> device(c);
  device.run(NormParts::statistics_and_output);
  CHECK(device.rstd.download()[1] == Approx(1 / std::sqrt(1e-5)));
  std::vector<T> expected = c.bias;
  expected.insert(expected.end(), c.bias.begin(), c.bias.end());
  CHECK(same_bits(device.y.download(), expected));
}

namespace {

// Where the input's gradient goes; residual: it adds, and what was there and is there is summed up.
enum class Into { fresh, adds, residual, input };

struct Expected {
  std::vector<double> dx, dx_slack, dw, dw_slack, db, db_slack;
};

// dx = rstd (g - mean(g) - xhat mean(g xhat)), g = dy w; dw = sum of dy xhat; db = sum of dy.
template <class T>
Expected backward(const NormCase<T>& c, const std::vector<T>& dy, const std::vector<float>& mean,
                  const std::vector<float>& rstd) {
  const std::size_t width = c.shape.width();
  const auto count = static_cast<double>(width);
  Expected e;
  e.dw.resize(width);
  e.dw_slack.resize(width);
  e.db.resize(width);
  e.db_slack.resize(width);
  for (std::size_t row = 0; row < static_cast<std::size_t>(c.shape.rows()); ++row) {
    const double m = static_cast<double>(mean[c.shape.place(row)]),
                 r = static_cast<double>(rstd[c.shape.place(row)]);
    std::vector<double> g(width), xhat(width);
    double mean_g = 0, mean_gx = 0, size_g = 0, size_gx = 0;
    for (std::size_t i = 0; i < width; ++i) {
      const double d = static_cast<double>(to_float(dy[row * width + i]));
      xhat[i] = (static_cast<double>(to_float(c.x[row * width + i])) - m) * r;
      g[i] = d * static_cast<double>(to_float(c.weight[i]));
      mean_g += g[i] / count;
      mean_gx += g[i] * xhat[i] / count;
      size_g += std::fabs(g[i]) / count;
      size_gx += std::fabs(g[i] * xhat[i]) / count;
      e.dw[i] += d * xhat[i];
      e.dw_slack[i] += depth * fp32_rounding * std::fabs(d) * (std::fabs(xhat[i]) + 1);
      e.db[i] += d;
      e.db_slack[i] += depth * fp32_rounding * std::fabs(d);
    }
    for (std::size_t i = 0; i < width; ++i) {
      e.dx.push_back(r * (g[i] - mean_g - xhat[i] * mean_gx));
      e.dx_slack.push_back(depth * fp32_rounding * r *
                           (std::fabs(g[i]) + size_g + (std::fabs(xhat[i]) + 1) * size_gx));
    }
  }
  return e;
}

// sums (columns) = [old +] the sum of x (rows, columns) over rows.
template <class T, class Gradient>
void check_row_sums(const std::vector<Gradient>& sums, const std::vector<T>& x,
                    const std::vector<Gradient>* old) {
  const std::size_t width = sums.size();
  std::vector<double> expected(width), slack(width);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double value = static_cast<double>(to_float(x[i]));
    expected[i % width] += value;
    slack[i % width] += depth * fp32_rounding * std::fabs(value);
  }
  if (old != nullptr)
    for (std::size_t i = 0; i < width; ++i) expected[i] += static_cast<double>(to_float((*old)[i]));
  CHECK(worst_of_bound(sums, expected, [&](std::size_t i) { return slack[i]; }) <= 1);
}

template <class T, class Gradient>
void check_backward(const Shape& shape, Into into, bool overwrites) {
  const auto seed = static_cast<std::uint64_t>(shape.columns * 3 + shape.rows());
  INFO("rows " << shape.rows() << " columns " << shape.columns << " into " << static_cast<int>(into)
               << " overwrites " << overwrites << " element " << sizeof(T) << " gradient "
               << sizeof(Gradient) << " seed " << seed);
  const bool residual = into == Into::residual, adds = residual || into == Into::adds;
  const NormCase<T> c(shape, seed);
  NormDevice<T> device(c);
  device.run(NormParts::statistics);
  const auto dy = random_normal<T>(c.x.size(), 0.5f, seed + 3);
  const auto old_dx = random_normal<T>(c.x.size(), 2, seed + 4);
  const auto old_w = random_normal<Gradient>(shape.width(), 1, seed + 5),
             old_b = random_normal<Gradient>(shape.width(), 1, seed + 6),
             old_before = random_normal<Gradient>(shape.width(), 1, seed + 7),
             old_after = random_normal<Gradient>(shape.width(), 1, seed + 8);
  DeviceArray<T> output_gradient(dy), other(c.x.size());
  DeviceArray<T>& dx = into == Into::input ? device.x : other;
  DeviceArray<Gradient> dw(shape.width()), db(shape.width()), before(shape.width()),
      after(shape.width());
  NormSums<Gradient> sums{dw.data(), db.data(), overwrites};
  if (residual) {
    sums.before = before.data();
    sums.after = after.data();
  }
  DeviceArray<std::byte> memory(workspace_bytes(shape.columns, shape.columns, 0));
  const auto run = [&] {
    device.x.upload(c.x);
    if (adds) dx.upload(old_dx);
    if (!overwrites) {
      dw.upload(old_w);
      db.upload(old_b);
      before.upload(old_before);
      after.upload(old_after);
    }
    norm_backward(output_gradient.data(), device.x.data(), device.weight.data(),
                  device.statistics(), dx.data(), adds, sums, shape.rows(), shape.columns,
                  Workspace{memory.data(), memory.size()}, device.stream);
    static_cast<void>(memory.download());  // checks its guards
    return bytes_of(dx.download(), dw.download(), db.download(), before.download(),
                    after.download());
  };
  run();
  Expected e = backward(c, dy, device.mean.download(), device.rstd.download());
  if (adds) {
    for (std::size_t i = 0; i < e.dx.size(); ++i) {
      e.dx[i] += static_cast<double>(to_float(old_dx[i]));
      e.dx_slack[i] += fp32_rounding * std::fabs(e.dx[i]);
    }
  }
  if (!overwrites) {
    for (std::size_t i = 0; i < shape.width(); ++i) {
      e.dw[i] += static_cast<double>(to_float(old_w[i]));
      e.db[i] += static_cast<double>(to_float(old_b[i]));
    }
  }
  CHECK(worst_of_bound(dx.download(), e.dx, [&](std::size_t i) { return e.dx_slack[i]; }) <= 1);
  if (residual) {
    check_row_sums(before.download(), old_dx, overwrites ? nullptr : &old_before);
    // Of what is stored, not of what was rounded to it.
    check_row_sums(after.download(), dx.download(), overwrites ? nullptr : &old_after);
  }
  CHECK(worst_of_bound(dw.download(), e.dw, [&](std::size_t i) { return e.dw_slack[i]; }) <= 1);
  CHECK(worst_of_bound(db.download(), e.db, [&](std::size_t i) { return e.db_slack[i]; }) <= 1);
  if (shape.columns <= 1600) require_repeatable(run);
}

}  // namespace

TEST_CASE("Layer norm's gradients on the GPU follow their equations", "[kernels]") {
  for (const Shape& shape : shapes()) {
    check_backward<float, float>(shape, Into::fresh, true);
    check_backward<bf16, float>(shape, Into::adds, false);
    check_backward<bf16, bf16>(shape, Into::input, true);
    check_backward<float, bf16>(shape, Into::adds, false);
  }
}

TEST_CASE("Layer norm's gradients on the GPU, and the sums of the residual's in passing",
          "[kernels]") {
  for (const Shape& shape : shapes()) {
    check_backward<bf16, float>(shape, Into::residual, false);
    check_backward<float, bf16>(shape, Into::residual, true);
  }
  check_backward<float, float>({3, 11, 264, 70}, Into::residual, false);
  check_backward<bf16, bf16>({3, 5, 1600, 33}, Into::residual, true);
}

TEST_CASE("Layer norm's gradients on the GPU with more rows than its teams take at once",
          "[kernels]") {
  check_backward<bf16, float>({5, 333, 64, 400}, Into::adds, false);
  check_backward<float, float>({1, 701, 264, 701}, Into::input, true);
  check_backward<bf16, float>({1, 301, 12'296, 301}, Into::fresh, true);
  check_backward<bf16, float>({5, 333, 64, 400}, Into::residual, false);
  check_backward<float, bf16>({1, 701, 264, 701}, Into::residual, true);
  check_backward<bf16, float>({1, 571, 2568, 571}, Into::residual, true);
}

TEST_CASE("Layer norm's gradients on the GPU, with every kernel there is",
          "[kernels][sanitizer][few]") {
  // Rows that 1, 2 and 4 packs a thread hold, and one that is too wide for that.
  for (const std::int64_t columns : {264, 4096, 12'288, 20'480}) {
    check_backward<bf16, float>({1, 3, columns, 3}, Into::adds, false);
    check_backward<float, bf16>({1, 3, columns, 3}, Into::fresh, true);
    check_backward<bf16, bf16>({1, 3, columns, 3}, Into::residual, false);
  }
}
