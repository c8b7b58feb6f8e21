// AdamW against memory streaming that reads and writes the same bytes per parameter and does next
// to nothing with them: what the machine's DRAM allows.
#include <fmt/format.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <ctime>
#include <thread>

#include "exec/adam.hpp"
#include "exec/arena.hpp"
#include "exec/crew.hpp"
#include "exec/executor.hpp"
#include "experiments/speed_figures.hpp"

namespace spillway {

namespace {

constexpr std::int64_t elements = std::int64_t{16} << 20;  // five streams: far beyond all caches
// Master, m, v read and written, the gradient read, the parameters written.
constexpr double bytes_per_parameter = 4 * (3 * 2 + 1 + 1);

struct Streams {
  float *master, *m, *v, *gradient, *parameters;
  Streams from(std::int64_t first) const {
    return {master + first, m + first, v + first, gradient + first, parameters + first};
  }
};

using Vector = float __attribute__((vector_size(64), aligned(4), may_alias));

Vector& at(float* stream, std::int64_t i) { return *reinterpret_cast<Vector*>(stream + i); }

#if defined(__x86_64__)
#define SPILLWAY_WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SPILLWAY_WIDEST
#endif

// n a multiple of 16, as below.
SPILLWAY_WIDEST void stream_plain(const Streams& s, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 16) {
    const Vector g = at(s.gradient, i);
    const Vector p = at(s.master, i) + g;
    at(s.m, i) = at(s.m, i) + g;
    at(s.v, i) = at(s.v, i) + g;
    at(s.master, i) = p;
    at(s.parameters, i) = p;
  }
}

// The parameters are written past the caches, without being read into them first.
SPILLWAY_WIDEST void stream_past_caches(const Streams& s, std::int64_t n) {
#if defined(__SSE__)
  for (std::int64_t i = 0; i < n; i += 16) {
    const Vector g = at(s.gradient, i);
    const Vector p = at(s.master, i) + g;
    at(s.m, i) = at(s.m, i) + g;
    at(s.v, i) = at(s.v, i) + g;
    at(s.master, i) = p;
    for (int j = 0; j < 16; j += 4) {
      _mm_stream_ps(s.parameters + i + j, _mm_loadu_ps(s.master + i + j));
    }
  }
  _mm_sfence();
#else
  stream_plain(s, n);
#endif
}

// Processor time of this program, all threads together.
// Calls body on one run of elements per thread, all at once; returns GB/s over all. One thread's
// time counts while it is on a processor, so that other programs that take turns with it there do
// not disturb; that of several is the clock's, because only at once do they share the memory.
template <class Body>
double rate(Crew& crew, const Streams& s, const Body& body) {
  const std::int64_t threads = crew.threads();
  const std::int64_t each = elements / threads / 16 * 16;
  const auto now = [&] {
    return threads == 1 ? processor_seconds() : static_cast<double>(now_ns()) / 1e9;
  };
  const double before = now();
  crew.run(threads, [&](std::int64_t thread) {
    const std::int64_t first = thread * each;
    body(s.from(first), thread + 1 == threads ? elements - first : each);
  });
  const double seconds = now() - before;
  return static_cast<double>(elements) * bytes_per_parameter / seconds / 1e9;
}

SpeedFigure measure(const FigureOptions& options, const Streams& s, int threads) {
  Crew crew(threads);
  AdamStep step;
  step.learning_rate = 1e-4f;
  const AdamConstants constants = adam_constants(step);
  const CpuKernels& kernels = cpu_kernels(best_cpu_variant());
  const auto adam = [&](const Streams& part, std::int64_t n) {
    kernels.adamw(part.master, part.m, part.v, part.gradient, nullptr, part.parameters, n,
                  constants);
  };

  SpeedFigure figure;
  figure.name = threads == 1 ? "adam/one-thread" : "adam/all-threads";
  figure.what =
      fmt::format("AdamW, fp32, {:.0f} B/param, {} ({})", bytes_per_parameter,
                  threads == 1 ? "1 thread" : fmt::format("{} threads", threads), kernels.name);
  figure.unit = "GB/s";
  figure.target = 0.9;
  std::vector<double> values, plain, past;
  rate(crew, s, adam);
  // A pass takes some 20 ms: many short rounds, so that all three meet the same disturbances.
  const int rounds = std::max(options.rounds, static_cast<int>(options.seconds * 50));
  for (int round = 0; round < rounds; ++round) {
    plain.push_back(rate(crew, s, stream_plain));
    values.push_back(rate(crew, s, adam));
    past.push_back(rate(crew, s, stream_past_caches));
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
  const Streams s{first, first + elements, first + 2 * elements, first + 3 * elements,
                  first + 4 * elements};
  std::fill_n(first, 5 * elements, 1e-3f);
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::vector<SpeedFigure> figures = {measure(options, s, 1)};
  if (cores > 1) figures.push_back(measure(options, s, cores));
  return figures;
}

}  // namespace spillway
