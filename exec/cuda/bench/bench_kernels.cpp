// The kernels that memory bounds, in bf16 with fp32 gradients, against what a copy reaches.
//
// Bytes of a call: every operand read once, every result written once. Two exceptions, because no
// order of summation that is the same every time avoids them: embed_backward reads the gradient
// once for each of its tables. Sets of operands take turns.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "exec/cuda/bench/bench.hpp"
#include "exec/cuda/device/launch.hpp"
#include "exec/cuda/kernels/kernels.hpp"
#include "exec/cuda/model/token_order.hpp"

namespace spillway::cuda {

namespace {

constexpr std::size_t element = sizeof(bf16), gradient = sizeof(float);
constexpr int sets = 2;

// Sizes that all kernels share: activations (rows, columns) of a GPT-2.
struct Sizes {
  std::int64_t t, columns, rows, vocabulary, stride, n;
};

Sizes sizes_of(const BenchRunner& runner) {
  if (runner.tiny()) return {16, 64, 32, 100, 104, 2048};
  Sizes s{1024, 1600, 0, 50257, 50304, 0};  // C of gpt2-1.5b
  const auto elements = static_cast<std::int64_t>(runner.beyond_cache() / element);
  s.n = (elements + 2047) / 2048 * 2048;
  s.rows = (elements / s.columns + s.t - 1) / s.t * s.t;
  return s;
}

class KernelRows {
 public:
  explicit KernelRows(BenchRunner& runner)
      : runner_(runner),
        s_(sizes_of(runner)),
        workspace_memory_(
            workspace_bytes(s_.columns, std::max(4 * s_.columns, s_.vocabulary), s_.n), 0.0f),
        workspace_{reinterpret_cast<std::byte*>(workspace_memory_.data()),
                   workspace_memory_.size()} {}

  std::vector<GpuTiming> run() {
    embedding();
    norms();
    gelu();
    cross_entropy_rows();
    sums();
    optimizer();
    return std::move(timings_);
  }

 private:
  void add(const char* name, const std::string& what, double bytes, const BenchCall& call) {
    GpuTiming timing;
    timing.name = std::string("kernel/") + name;
    timing.what = what;
    timing.bytes = bytes;
    runner_.time(timing, call);
    timings_.push_back(std::move(timing));
  }
  std::string shape() const { return fmt::format("{} x {} bf16", s_.rows, s_.columns); }
  double activations() const { return static_cast<double>(s_.rows * s_.columns * 2); }
  std::size_t size() const { return static_cast<std::size_t>(s_.rows * s_.columns); }
  // Sets of operands that take turns.
  template <class T>
  std::vector<BenchArray<T>> arrays(std::size_t count, float deviation) const {
    std::vector<BenchArray<T>> all;
    for (int i = 0; i < sets; ++i) all.emplace_back(count, deviation);
    return all;
  }
  template <class T>
  static T* of(const std::vector<BenchArray<T>>& all, std::int64_t turn) {
    return all[static_cast<std::size_t>(turn % sets)].data();
  }

  void embedding() {
    const auto rows = static_cast<std::size_t>(s_.rows);
    std::vector<std::int32_t> order(3 * rows + 2);
    const BenchArray<std::int32_t> tokens(rows, static_cast<std::int32_t>(s_.vocabulary));
    std::vector<std::int32_t> on_host(rows);
    SPILLWAY_CUDA(cudaMemcpy(on_host.data(), tokens.data(), rows * sizeof(std::int32_t),
                             cudaMemcpyDeviceToHost));
    order_tokens(on_host.data(), s_.rows, order.data(), order.data() + rows,
                 order.data() + 2 * rows + 1);
    const BenchArray<std::int32_t> ordered(order);
    const TokenOrder token_order{ordered.data(), ordered.data() + rows,
                                 ordered.data() + 2 * rows + 1};
    const auto tables = static_cast<std::size_t>((s_.vocabulary + s_.t) * s_.columns);
    const auto positions_at = s_.vocabulary * s_.columns;
    const double position_bytes = static_cast<double>(s_.t * s_.columns);
    const auto activations_of = arrays<bf16>(size(), 1e-3f);
    {
      const BenchArray<bf16> table(tables, 0.02f);
      add("embed-forward", shape(),
          2 * activations() + position_bytes * static_cast<double>(element) +
              static_cast<double>(rows * sizeof(std::int32_t)),
          [&](std::int64_t turn, cudaStream_t stream) {
            embed_forward(table.data(), table.data() + positions_at, tokens.data(), nullptr,
                          of(activations_of, turn), s_.rows, s_.t, s_.columns, stream);
          });
    }
    const BenchArray<float> table_gradient(tables, 0.0f);
    const std::set<std::int32_t> distinct(on_host.begin(), on_host.end());
    const double sums =
        static_cast<double>(distinct.size()) * static_cast<double>(s_.columns) + position_bytes;
    add("embed-backward", shape(),
        2 * activations() + 2 * sums * static_cast<double>(gradient) +
            static_cast<double>(rows * sizeof(std::int32_t)),
        [&](std::int64_t turn, cudaStream_t stream) {
          embed_backward(tokens.data(), token_order, of(activations_of, turn),
                         table_gradient.data(), table_gradient.data() + positions_at,
                         s_.rows / s_.t, s_.t, s_.columns, stream);
        });
  }

  void norms() {
    const auto input = arrays<bf16>(size(), 1.0f), output = arrays<bf16>(size(), 1.0f);
    const BenchArray<bf16> weight(static_cast<std::size_t>(s_.columns), 1.0f),
        bias(static_cast<std::size_t>(s_.columns), 1.0f);
    const BenchArray<float> numbers(2 * static_cast<std::size_t>(s_.rows), 1.0f);
    const RowStatistics statistics{numbers.data(), numbers.data() + s_.rows, s_.t, s_.t};
    const double per_row = 2 * sizeof(float) * static_cast<double>(s_.rows);
    add("norm-forward", shape(), 2 * activations() + per_row,
        [&](std::int64_t turn, cudaStream_t stream) {
          norm_forward(of(input, turn), weight.data(), bias.data(), of(output, turn), statistics,
                       NormParts::statistics_and_output, 1e-5f, s_.rows, s_.columns, stream);
        });
    const auto input_gradient = arrays<bf16>(size(), 1.0f);
    const BenchArray<float> sums(4 * static_cast<std::size_t>(s_.columns), 0.0f);
    const auto backward = [&](const char* name, const NormSums<float>& to) {
      add(name, shape(), 4 * activations() + per_row, [&](std::int64_t turn, cudaStream_t stream) {
        norm_backward(of(output, turn), of(input, turn), weight.data(), statistics,
                      of(input_gradient, turn), true, to, s_.rows, s_.columns, workspace_, stream);
      });
    };
    float* const at = sums.data();
    backward("norm-backward", {at, at + s_.columns, true});
    backward("norm-backward-residual",
             {at, at + s_.columns, true, at + 2 * s_.columns, at + 3 * s_.columns});
  }

  void gelu() {
    const auto count = static_cast<std::size_t>(s_.n);
    const auto x = arrays<bf16>(count, 1.0f), y = arrays<bf16>(count, 1e-3f);
    const std::string what = fmt::format("{} elements, bf16", s_.n);
    const double bytes = static_cast<double>(count * element);
    add("gelu-forward", what, 2 * bytes, [&](std::int64_t turn, cudaStream_t stream) {
      gelu_forward(of(x, turn), of(y, turn), s_.n, stream);
    });
    const std::int64_t width = 4 * s_.columns, rows = s_.n / width;
    const auto gradients = arrays<bf16>(count, 1e-3f);
    const BenchArray<float> sums(static_cast<std::size_t>(width), 0.0f);
    const std::string of_rows = fmt::format("{} x {} bf16", rows, width);
    const double row_bytes = static_cast<double>(rows * width) * static_cast<double>(element);
    for (const bool makes_y : {false, true}) {
      add(makes_y ? "gelu-backward-forward" : "gelu-backward", of_rows,
          (makes_y ? 4 : 3) * row_bytes, [&](std::int64_t turn, cudaStream_t stream) {
            gelu_backward(of(x, turn), of(gradients, turn), makes_y ? of(y, turn) : nullptr,
                          sums.data(), true, rows, width, workspace_, stream);
          });
    }
  }

  void cross_entropy_rows() {
    const std::int64_t rows = std::max<std::int64_t>(8, s_.n / s_.stride);
    const auto logits = arrays<bf16>(static_cast<std::size_t>(rows * s_.stride), 1.0f);
    const BenchArray<std::int32_t> targets(static_cast<std::size_t>(rows),
                                           static_cast<std::int32_t>(s_.vocabulary));
    const BenchArray<double> losses(static_cast<std::size_t>(rows), 0.0f);
    const BenchArray<float> scale(1, 1.0f);
    // Logits become their own gradient, so the next call finds other numbers: the time is the same.
    add("cross-entropy", fmt::format("{} x {} bf16, in place", rows, s_.vocabulary),
        2 * static_cast<double>(rows * s_.stride) * static_cast<double>(element),
        [&](std::int64_t turn, cudaStream_t stream) {
          cross_entropy(of(logits, turn), s_.stride, s_.vocabulary, targets.data(), scale.data(),
                        losses.data(), rows, stream);
        });
  }

  void sums() {
    const auto x = arrays<bf16>(size(), 1.0f);
    const BenchArray<float> result(static_cast<std::size_t>(s_.columns), 0.0f);
    add("column-sums", shape(), activations(), [&](std::int64_t turn, cudaStream_t stream) {
      column_sums(of(x, turn), result.data(), true, s_.rows, s_.columns, workspace_, stream);
    });
    const auto gradients = arrays<float>(static_cast<std::size_t>(s_.n), 1e-3f);
    const BenchArray<double> squares(1, 0.0f);
    add("sum-of-squares", fmt::format("{} elements, fp32", s_.n),
        static_cast<double>(s_.n) * static_cast<double>(gradient),
        [&](std::int64_t turn, cudaStream_t stream) {
          sum_of_squares<float>(of(gradients, turn), nullptr, s_.n, squares.data(), nullptr,
                                workspace_, stream);
        });
  }

  void optimizer() {
    const auto count = static_cast<std::size_t>(s_.n);
    const auto state = arrays<float>(3 * count, 0.0f);
    const auto gradients = arrays<float>(count, 1e-3f);
    const auto parameters = arrays<bf16>(count, 0.02f);
    const BenchArray<double> squares(1, 0.0f);
    AdamNumbers numbers{};
    numbers.decay_factor = 1.0f;
    numbers.beta1 = 0.9f;
    numbers.one_minus_beta1 = 0.1f;
    numbers.beta2 = 0.95f;
    numbers.one_minus_beta2 = 0.05f;
    numbers.inverse_root_correction2 = 1.0f;
    numbers.epsilon = 1e-8f;
    numbers.step_size = 1e-4f;
    numbers.gradient_factor = 1.0f;
    std::vector<unsigned char> bytes(sizeof numbers);
    std::memcpy(bytes.data(), &numbers, sizeof numbers);
    const BenchArray<unsigned char> staged(bytes);
    UnitRanges ranges;
    ranges.range[0] = {0, s_.n, true};
    ranges.count = 1;
    const auto rows = [&](const char* name, const char* what, auto moment) {
      using Moment = decltype(moment);
      add(name, fmt::format("{} parameters, bf16, fp32 gradients{}", s_.n, what),
          static_cast<double>(s_.n) * (2 * sizeof(float) + 4 * sizeof(Moment) + gradient + element),
          [&](std::int64_t turn, cudaStream_t stream) {
            float* const master = of(state, turn);
            auto* const moments = reinterpret_cast<Moment*>(master + s_.n);
            adamw(master, moments, moments + s_.n, of(gradients, turn),
                  static_cast<const float*>(nullptr), of(parameters, turn), 0, 0, s_.n, ranges,
                  reinterpret_cast<const AdamNumbers*>(staged.data()), squares.data(), workspace_,
                  stream);
          });
    };
    rows("adamw", "", float{});
    rows("adamw-bf16-moments", ", bf16 moments", bf16{});
  }

  BenchRunner& runner_;
  Sizes s_;
  BenchArray<unsigned char> workspace_memory_;
  Workspace workspace_;
  std::vector<GpuTiming> timings_;
};

}  // namespace

std::vector<GpuTiming> time_memory_bound(BenchRunner& runner) { return KernelRows(runner).run(); }

}  // namespace spillway::cuda
