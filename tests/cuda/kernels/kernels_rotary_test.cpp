// Rotary embedding, alone and after an RMS norm of each head, against fp64.
#include <catch2/catch.hpp>
#include <cmath>

#include "exec/cuda/kernels/kernels.hpp"
#include "tests/cuda/device_memory.hpp"

using namespace spillway;
using namespace spillway::cuda;

namespace {

constexpr float epsilon = 1e-3f;
constexpr double depth = 32;  // of a head's sums, in additions

struct Case {
  std::int64_t sequences, t, q_heads, k_heads, head_size, more;  // more: columns after q and k
  bool documents = false;                                        // of 3 tokens each

  std::int64_t heads() const { return q_heads + k_heads; }
  std::int64_t rows() const { return sequences * t; }
  std::int64_t stride() const { return heads() * head_size + more; }
  std::int64_t half() const { return head_size / 2; }
  std::size_t elements() const { return static_cast<std::size_t>(rows() * stride()); }
  std::size_t turned() const { return static_cast<std::size_t>(rows() * heads() * head_size); }
  std::size_t table() const { return static_cast<std::size_t>(t * half()); }
  // Element d of a head of a row: in x, and in a tensor of q and k alone.
  std::size_t at(std::int64_t row, std::int64_t head, std::int64_t d) const {
    return static_cast<std::size_t>(row * stride() + head * head_size + d);
  }
  std::size_t narrow(std::int64_t row, std::int64_t head, std::int64_t d) const {
    return static_cast<std::size_t>((row * heads() + head) * head_size + d);
  }
  std::int64_t start(std::int64_t row) const { return documents ? row % t / 3 * 3 : 0; }
  // A gap of 3 tokens' statistics between sequences.
  std::int64_t statistics_stride() const { return (heads() + 3) * t; }
  std::size_t statistic(std::int64_t row, std::int64_t head) const {
    return static_cast<std::size_t>(row / t * statistics_stride() + head * t + row % t);
  }
};

std::vector<Case> cases() {
  return {{1, 1, 1, 1, 8, 8},      {2, 5, 3, 1, 16, 16},       {1, 7, 2, 2, 24, 0},
          {2, 9, 4, 2, 40, 80},    {1, 33, 2, 1, 64, 64},      {3, 6, 6, 2, 96, 8},
          {2, 11, 4, 4, 128, 512}, {2, 5, 3, 1, 16, 16, true}, {3, 8, 4, 2, 128, 8, true}};
}

// cosines and sines of angles that are as different as can be.
struct Tables {
  std::vector<float> cosines, sines;
  explicit Tables(const Case& c) {
    for (std::size_t i = 0; i < c.table(); ++i) {
      const double angle = 0.7 * static_cast<double>(i);
      cosines.push_back(static_cast<float>(std::cos(angle)));
      sines.push_back(static_cast<float>(std::sin(angle)));
    }
  }
};
struct DeviceTables {
  DeviceArray<float> cosines, sines;
  DeviceArray<std::int32_t> starts;
  DeviceTables(const Case& c, const Tables& tables)
      : cosines(tables.cosines), sines(tables.sines), starts(static_cast<std::size_t>(c.rows())) {
    std::vector<std::int32_t> all;
    for (std::int64_t row = 0; row < c.rows(); ++row)
      all.push_back(static_cast<std::int32_t>(c.start(row)));
    starts.upload(all);
  }
  RotaryShape shape(const Case& c) const {
    return {c.sequences,  c.t,
            c.q_heads,    c.k_heads,
            c.head_size,  cosines.data(),
            sines.data(), c.documents ? starts.data() : nullptr};
  }
};

// The pair (first, second) turned by the angle of place j of the token's row.
struct Turned {
  double first, second, size;
};
Turned turned(const Case& c, const Tables& tables, std::int64_t row, std::int64_t j, double first,
              double second, Turn turn) {
  const auto place = static_cast<std::size_t>((row % c.t - c.start(row)) * c.half() + j);
  const auto cosine = static_cast<double>(tables.cosines[place]);
  const double sine =
      static_cast<double>(tables.sines[place]) * (turn == Turn::forward ? 1.0 : -1.0);
  return {first * cosine - second * sine, second * cosine + first * sine,
          std::fabs(first) + std::fabs(second)};
}

template <class Body>
void for_each_pair(const Case& c, Body body) {
  for (std::int64_t row = 0; row < c.rows(); ++row)
    for (std::int64_t head = 0; head < c.heads(); ++head)
      for (std::int64_t j = 0; j < c.half(); ++j) body(row, head, j);
}

template <class T>
double value(const std::vector<T>& x, std::size_t i) {
  return static_cast<double>(to_float(x[i]));
}

template <class T>
void check_rotation(const Case& c, Turn turn) {
  INFO("rows " << c.rows() << ", heads " << c.q_heads << " and " << c.k_heads << " of "
               << c.head_size << ", " << sizeof(T) << " bytes");
  const Tables tables(c);
  const DeviceTables device(c, tables);
  const auto x = random_normal<T>(c.elements(), 1, 7);
  DeviceArray<T> rows(x);
  const TestStream stream;
  rotate_heads(device.shape(c), rows.data(), c.stride(), turn, stream);
  std::vector<double> expected = doubles(x), slack(x.size(), 0.0);
  for_each_pair(c, [&](std::int64_t row, std::int64_t head, std::int64_t j) {
    const std::size_t first = c.at(row, head, j), second = c.at(row, head, j + c.half());
    const Turned y = turned(c, tables, row, j, value(x, first), value(x, second), turn);
    expected[first] = y.first;
    expected[second] = y.second;
    slack[first] = slack[second] = 2 * fp32_rounding * y.size;
  });
  const auto result = rows.download();
  CHECK(worst_of_bound(result, expected, [&](std::size_t i) { return slack[i]; }) <= 1);
  bool kept = true;  // what lies behind q and k
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (static_cast<std::int64_t>(i) % c.stride() >= c.heads() * c.head_size)
      kept = kept && value(result, i) == value(x, i);
  }
  CHECK(kept);
}

template <class T>
struct NormCase {
  Case shape;
  Tables tables;
  DeviceTables device_tables;
  std::vector<T> x, q_weight, k_weight;
  DeviceArray<T> device_x, device_q, device_k;
  DeviceArray<float> rstd;
  TestStream stream;

  explicit NormCase(const Case& c)
      : shape(c),
        tables(c),
        device_tables(c, tables),
        x(random_normal<T>(c.elements(), 1.5f, 3)),
        q_weight(random_normal<T>(static_cast<std::size_t>(c.head_size), 0.3f, 4, 1)),
        k_weight(random_normal<T>(static_cast<std::size_t>(c.head_size), 0.3f, 5, 1)),
        device_x(x),
        device_q(q_weight),
        device_k(k_weight),
        rstd(c.statistic(c.rows() - 1, c.heads() - 1) + 1) {}
  HeadNorm<T> norm() const {
    return {device_q.data(),
            device_k.data(),
            {nullptr, rstd.data(), shape.t, shape.statistics_stride()},
            epsilon};
  }
  double weight(std::int64_t head, std::int64_t d) const {
    return value(head < shape.q_heads ? q_weight : k_weight, static_cast<std::size_t>(d));
  }
  double rstd_of(std::int64_t row, std::int64_t head) const {
    double squares = 0;
    for (std::int64_t d = 0; d < shape.head_size; ++d)
      squares += std::pow(value(x, shape.at(row, head, d)), 2);
    return 1 /
           std::sqrt(squares / static_cast<double>(shape.head_size) + static_cast<double>(epsilon));
  }
  void forward(const DeviceArray<T>& to, NormParts parts) {
    head_norm_forward<T>(device_tables.shape(shape), norm(), device_x.data(), shape.stride(),
                         parts == NormParts::statistics ? nullptr : to.data(), parts, stream);
  }
};

template <class T>
void check_norm_forward(const Case& c) {
  INFO("rows " << c.rows() << ", heads " << c.q_heads << " and " << c.k_heads << " of "
               << c.head_size << ", " << sizeof(T) << " bytes");
  NormCase<T> n(c), parts(c);
  const DeviceArray<T> y(c.turned()), part(c.turned());
  const auto run = [&] {
    n.forward(y, NormParts::statistics_and_output);
    return bytes_of(y.download(), n.rstd.download());
  };
  run();
  const auto rstd = n.rstd.download();
  std::vector<double> expected(c.turned()), slack(c.turned());
  std::vector<bool> written(rstd.size(), false);
  double worst = 0;
  for_each_pair(c, [&](std::int64_t row, std::int64_t head, std::int64_t j) {
    const double r = n.rstd_of(row, head);
    const std::size_t statistic = c.statistic(row, head);
    written[statistic] = true;
    worst = std::max(worst, std::fabs(static_cast<double>(rstd[statistic]) - r) / r);
    const auto normed = [&](std::int64_t d) {
      return value(n.x, c.at(row, head, d)) * r * n.weight(head, d);
    };
    const Turned to = turned(c, n.tables, row, j, normed(j), normed(j + c.half()), Turn::forward);
    for (const auto& [d, result] : {std::pair(j, to.first), std::pair(j + c.half(), to.second)}) {
      expected[c.narrow(row, head, d)] = result;
      slack[c.narrow(row, head, d)] = depth * fp32_rounding * to.size;
    }
  });
  CHECK(worst <= depth * fp32_rounding);
  CHECK(worst_of_bound(y.download(), expected, [&](std::size_t i) { return slack[i]; }) <= 1);
  bool kept = true;
  for (std::size_t i = 0; i < rstd.size(); ++i) kept = kept && (written[i] || std::isnan(rstd[i]));
  CHECK(kept);
  // Each part alone has the bits of the whole.
  parts.forward(part, NormParts::statistics);
  CHECK(same_bits(parts.rstd.download(), rstd));
  parts.forward(part, NormParts::output);
  CHECK(same_bits(part.download(), y.download()));
  require_repeatable(run);
}

// With dy turned back: dx = rstd (g - xhat mean(g xhat)), g = dy w, xhat = x rstd;
// dw = sum over rows and heads of dy xhat.
template <class T, class Gradient>
void check_norm_backward(const Case& c, bool overwrites) {
  INFO("rows " << c.rows() << ", heads " << c.q_heads << " and " << c.k_heads << " of "
               << c.head_size << ", " << sizeof(T) << " bytes, gradient " << sizeof(Gradient)
               << ", overwrites " << overwrites);
  NormCase<T> n(c);
  n.forward(DeviceArray<T>(1), NormParts::statistics);
  const auto rstd = n.rstd.download();
  const auto dy = random_normal<T>(c.elements(), 0.5f, 11);
  const auto width = static_cast<std::size_t>(c.head_size);
  const auto old_q = random_normal<Gradient>(width, 1, 12),
             old_k = random_normal<Gradient>(width, 1, 13);
  DeviceArray<T> gradient(c.elements());
  DeviceArray<Gradient> q(width), k(width);
  const DeviceArray<std::byte> memory(workspace_bytes(c.head_size, c.head_size, 0));
  const auto run = [&] {
    gradient.upload(dy);
    if (!overwrites) {
      q.upload(old_q);
      k.upload(old_k);
    }
    head_norm_backward<T, Gradient>(n.device_tables.shape(c), n.norm(), n.device_x.data(),
                                    gradient.data(), c.stride(), q.data(), k.data(), overwrites,
                                    Workspace{memory.data(), memory.size()}, n.stream);
    static_cast<void>(memory.download());  // checks its guards
    return bytes_of(gradient.download(), q.download(), k.download());
  };
  run();
  std::vector<double> expected = doubles(dy), slack(dy.size(), 0.0);
  std::vector<double> sums[2], sums_slack[2];
  for (int which : {0, 1}) {
    sums[which].resize(width);
    sums_slack[which].resize(width);
    if (!overwrites) sums[which] = doubles(which == 0 ? old_q : old_k);
  }
  for (std::int64_t row = 0; row < c.rows(); ++row) {
    for (std::int64_t head = 0; head < c.heads(); ++head) {
      const auto r = static_cast<double>(rstd[c.statistic(row, head)]);
      std::vector<double> back(width), size(width), xhat(width);
      for (std::int64_t j = 0; j < c.half(); ++j) {
        const Turned pair = turned(c, n.tables, row, j, value(dy, c.at(row, head, j)),
                                   value(dy, c.at(row, head, j + c.half())), Turn::back);
        const auto first = static_cast<std::size_t>(j), second = first + width / 2;
        back[first] = pair.first;
        back[second] = pair.second;
        size[first] = size[second] = pair.size;
      }
      double mean = 0, mean_size = 0;
      const int which = head < c.q_heads ? 0 : 1;
      for (std::size_t d = 0; d < width; ++d) {
        const double w = n.weight(head, static_cast<std::int64_t>(d));
        xhat[d] = value(n.x, c.at(row, head, static_cast<std::int64_t>(d))) * r;
        mean += back[d] * w * xhat[d] / static_cast<double>(width);
        mean_size += std::fabs(size[d] * w * xhat[d]) / static_cast<double>(width);
        sums[which][d] += back[d] * xhat[d];
        sums_slack[which][d] += depth * fp32_rounding * std::fabs(size[d] * xhat[d]);
      }
      for (std::size_t d = 0; d < width; ++d) {
        const double w = n.weight(head, static_cast<std::int64_t>(d));
        const std::size_t at = c.at(row, head, static_cast<std::int64_t>(d));
        expected[at] = r * (back[d] * w - xhat[d] * mean);
        slack[at] =
            depth * fp32_rounding * r * (std::fabs(size[d] * w) + std::fabs(xhat[d]) * mean_size);
      }
    }
  }
  CHECK(worst_of_bound(gradient.download(), expected, [&](std::size_t i) { return slack[i]; }) <=
        1);
  CHECK(worst_of_bound(q.download(), sums[0], [&](std::size_t i) { return sums_slack[0][i]; }) <=
        1);
  CHECK(worst_of_bound(k.download(), sums[1], [&](std::size_t i) { return sums_slack[1][i]; }) <=
        1);
  require_repeatable(run);
}

}  // namespace

TEMPLATE_TEST_CASE("Rotary embedding on the GPU turns pairs of halves, and back", "[kernels]",
                   float, bf16) {
  for (const Case& c : cases()) {
    check_rotation<TestType>(c, Turn::forward);
    check_rotation<TestType>(c, Turn::back);
  }
}

TEMPLATE_TEST_CASE("The norm of heads on the GPU follows its equation, turned, and so do its parts",
                   "[kernels]", float, bf16) {
  for (const Case& c : cases()) check_norm_forward<TestType>(c);
}

TEST_CASE("Gradients of the norm of heads on the GPU follow their equations", "[kernels]") {
  for (const Case& c : cases()) {
    check_norm_backward<float, float>(c, true);
    check_norm_backward<bf16, float>(c, false);
    check_norm_backward<bf16, bf16>(c, true);
  }
  // More heads than the teams of all blocks take at once, of q and k unlike.
  check_norm_backward<bf16, float>({2, 301, 5, 1, 16, 16}, true);
}

TEST_CASE("Rotary embedding on the GPU, with every kernel there is", "[kernels][sanitizer][few]") {
  const Case c{2, 5, 3, 1, 40, 40};
  check_rotation<bf16>(c, Turn::forward);
  check_rotation<float>(c, Turn::back);
  check_norm_forward<bf16>(c);
  check_norm_forward<float>(c);
  check_norm_backward<bf16, float>(c, true);
  check_norm_backward<float, bf16>(c, false);
}
