// AdamW against memory streaming that reads and writes the same bytes per parameter and does next
// to nothing with them: what the machine's DRAM allows.
#include <fmt/format.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <thread>

#include "exec/cpu/adam.hpp"
#include "exec/cpu/thread_pool.hpp"
#include "exec/run/arena.hpp"
#include "exec/run/executor.hpp"
#include "experiments/speed/speed_figures.hpp"

namespace spillway {

namespace {

constexpr std::int64_t elements = std::int64_t{16} << 20;  // five streams: far beyond all caches

// How wide the gradient, the parameters and the moments are; the master is fp32.
struct Widths {
  const char* name;  // in the figure's
  const char* what;
  bool narrow_gradient, narrow_parameters, narrow_moments;  // bf16, not fp32

  // Master, m, v read and written, the gradient read, the parameters written.
  double bytes_per_parameter() const {
    return 4 * 2 + (narrow_moments ? 2 : 4) * 2 * 2 + (narrow_gradient ? 2 : 4) +
           (narrow_parameters ? 2 : 4);
  }
};

struct Arrays {
  float* master;
  std::byte *m, *v, *gradient, *parameters;
  bool narrow_gradient, narrow_parameters, narrow_moments;
  Arrays from(std::int64_t first) const {
    return {master + first,
            m + first * (narrow_moments ? 2 : 4),
            v + first * (narrow_moments ? 2 : 4),
            gradient + first * (narrow_gradient ? 2 : 4),
            parameters + first * (narrow_parameters ? 2 : 4),
            narrow_gradient,
            narrow_parameters,
            narrow_moments};
  }
};

using Vector = float __attribute__((vector_size(64), aligned(4), may_alias));

Vector& at(float* stream, std::int64_t i) { return *reinterpret_cast<Vector*>(stream + i); }
Vector& at(std::byte* stream, std::int64_t byte) {
  return *reinterpret_cast<Vector*>(stream + byte);
}

// Not under a sanitizer: the choice is made before the sanitizer is there.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define SPILLWAY_WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SPILLWAY_WIDEST
#endif

inline __attribute__((always_inline)) void add_to_moments(const Arrays& s, std::int64_t i,
                                                          const Vector& g, const Vector& h) {
  const std::int64_t width = s.narrow_moments ? 2 : 4;
  at(s.m, i * width) = at(s.m, i * width) + g;
  at(s.v, i * width) = at(s.v, i * width) + g;
  if (s.narrow_moments) return;
  at(s.m, i * 4 + 64) = at(s.m, i * 4 + 64) + h;
  at(s.v, i * 4 + 64) = at(s.v, i * 4 + 64) + h;
}

// n a multiple of 32, as below: of a narrow stream that is one vector, of a wide one two. Two
// values in bf16 are added like one in fp32: what counts is that they are read.
SPILLWAY_WIDEST void stream_plain(const Arrays& s, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 32) {
    const Vector g = at(s.gradient, i * (s.narrow_gradient ? 2 : 4));
    const Vector h = s.narrow_gradient ? g : at(s.gradient, i * 4 + 64);
    const Vector p = at(s.master, i) + g, q = at(s.master, i + 16) + h;
    add_to_moments(s, i, g, h);
    at(s.master, i) = p;
    at(s.master, i + 16) = q;
    at(s.parameters, i * (s.narrow_parameters ? 2 : 4)) = p;
    if (!s.narrow_parameters) at(s.parameters, i * 4 + 64) = q;
  }
}

// The parameters are written past the caches, without being read into them first.
SPILLWAY_WIDEST void stream_past_caches(const Arrays& s, std::int64_t n) {
#if defined(__SSE__)
  for (std::int64_t i = 0; i < n; i += 32) {
    const Vector g = at(s.gradient, i * (s.narrow_gradient ? 2 : 4));
    const Vector h = s.narrow_gradient ? g : at(s.gradient, i * 4 + 64);
    const Vector p = at(s.master, i) + g, q = at(s.master, i + 16) + h;
    add_to_moments(s, i, g, h);
    at(s.master, i) = p;
    at(s.master, i + 16) = q;
    float* const to = reinterpret_cast<float*>(s.parameters + i * (s.narrow_parameters ? 2 : 4));
    for (int j = 0; j < (s.narrow_parameters ? 16 : 32); j += 4)
      _mm_stream_ps(to + j, _mm_loadu_ps(s.master + i + j));
  }
  _mm_sfence();
#else
  stream_plain(s, n);
#endif
}

// Calls body on one range of elements per thread, all at once; returns updates of a parameter per
// nanosecond over all. One thread's time counts while it is on a processor, so that other programs
// that take turns with it there do not disturb; that of several is the clock's, because only at
// once do they share the memory.
template <class Body>
double rate(ThreadPool& pool, const Arrays& s, const Body& body) {
  const std::int64_t threads = pool.threads();
  const std::int64_t each = elements / threads / 32 * 32;
  const auto now = [&] {
    return threads == 1 ? processor_seconds() : static_cast<double>(now_ns()) / 1e9;
  };
  const double before = now();
  pool.run(threads, [&](std::int64_t thread) {
    const std::int64_t first = thread * each;
    body(s.from(first), thread + 1 == threads ? elements - first : each);
  });
  const double seconds = now() - before;
  return static_cast<double>(elements) / seconds / 1e9;
}

template <class Gradient, class Parameter, class Moment = float>
void update(const CpuKernels& kernels, const Arrays& s, std::int64_t n,
            const AdamConstants& constants) {
  kernels.adam<Gradient, Parameter, Moment>()(
      s.master, reinterpret_cast<Moment*>(s.m), reinterpret_cast<Moment*>(s.v),
      reinterpret_cast<const Gradient*>(s.gradient), nullptr,
      reinterpret_cast<Parameter*>(s.parameters), n, constants, {});
}

SpeedFigure measure(const FigureOptions& options, const Widths& widths, const Arrays& s,
                    int threads) {
  ThreadPool pool(threads);
  AdamStep step;
  step.learning_rate = 1e-4f;
  const AdamConstants constants = adam_constants(step);
  const CpuKernels& kernels = cpu_kernels(best_cpu_variant());
  const auto adam = [&](const Arrays& part, std::int64_t n) {
    if (s.narrow_gradient)
      update<bf16, bf16>(kernels, part, n, constants);
    else if (s.narrow_parameters)
      update<float, bf16>(kernels, part, n, constants);
    else if (s.narrow_moments)
      update<float, float, bf16>(kernels, part, n, constants);
    else
      update<float, float>(kernels, part, n, constants);
  };

  const double bytes_per_parameter = widths.bytes_per_parameter();
  SpeedFigure figure;
  figure.name = fmt::format("adam/{}{}", widths.name, threads == 1 ? "one-thread" : "all-threads");
  figure.what =
      fmt::format("AdamW, {}, {:.0f} B/param, {} ({})", widths.what, bytes_per_parameter,
                  threads == 1 ? "1 thread" : fmt::format("{} threads", threads), kernels.name);
  figure.unit = "GB/s";
  figure.target = 0.9;
  std::vector<double> values, plain, past;
  rate(pool, s, adam);
  // A pass takes some 20 ms: many short rounds, so that all three meet the same disturbances.
  const int rounds = std::max(options.rounds, static_cast<int>(options.seconds * 50));
  for (int round = 0; round < rounds; ++round) {
    plain.push_back(bytes_per_parameter * rate(pool, s, stream_plain));
    values.push_back(bytes_per_parameter * rate(pool, s, adam));
    past.push_back(bytes_per_parameter * rate(pool, s, stream_past_caches));
  }
  const bool plain_is_better = median(plain) >= median(past);
  const std::vector<double>& rooflines = plain_is_better ? plain : past;
  figure.roofline_what = fmt::format(
      "streaming the same reads and writes, written {} the caches (the faster way here)",
      plain_is_better ? "through" : "past");
  for (std::size_t round = 0; round < values.size(); ++round)
    figure.ratios.push_back(values[round] / rooflines[round]);
  figure.value = median(values);
  figure.roofline = median(rooflines);
  figure.note = fmt::format("{:.2f} Gparam/s", figure.value / bytes_per_parameter);
  return figure;
}

}  // namespace

std::vector<SpeedFigure> measure_adam(const FigureOptions& options) {
  const Arena memory(5 * elements * 4, "the streams of the optimizer's benchmark");
  float* const first = reinterpret_cast<float*>(memory.data());
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<SpeedFigure> figures;
  // What the kinds of training hand over: fp32; bf16 with the gradients of several
  // micro-batches added up in fp32; bf16 with the gradient of one; fp32 with the moments in bf16.
  for (const Widths& widths :
       {Widths{"", "fp32", false, false, false},
        Widths{"bf16-parameters-", "bf16 parameters", false, true, false},
        Widths{"bf16-", "bf16 gradient and parameters", true, true, false},
        Widths{"bf16-moments-", "fp32 but bf16 moments", false, false, true}}) {
    std::fill_n(first, 3 * elements, 1e-3f);
    // The largest bf16 below 1e-3, once or twice in each four bytes: as fp32 it is the same,
    // nearly.
    std::fill_n(reinterpret_cast<std::uint32_t*>(first + 3 * elements), 2 * elements, 0x3a833a83u);
    const Arrays s{first,
                   memory.data() + elements * 4,
                   memory.data() + 2 * elements * 4,
                   memory.data() + 3 * elements * 4,
                   memory.data() + 4 * elements * 4,
                   widths.narrow_gradient,
                   widths.narrow_parameters,
                   widths.narrow_moments};
    figures.push_back(measure(options, widths, s, 1));
    if (cores > 1) figures.push_back(measure(options, widths, s, cores));
  }
  return figures;
}

}  // namespace spillway
