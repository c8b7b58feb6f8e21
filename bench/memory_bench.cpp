// Kernels of the host side by side: how threads that move memory share its bandwidth
// (docs/sharing.md). Each thread runs on memory of its own that is in no cache; counters are GB/s,
// reads and writes together, of each thread and of all.
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "bench/speed_bench.hpp"
#include "exec/cpu/adam.hpp"

namespace spillway::bench {

namespace {

constexpr std::size_t floats = std::size_t{1} << 24;  // 64 MiB an array

// Passes over arrays of its own; returns the bytes that one pass reads and writes.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual double pass() = 0;
};

class Read : public Kernel {
 public:
  double pass() override {
    benchmark::DoNotOptimize(std::accumulate(from_.begin(), from_.end(), 0u));
    return 4.0 * floats;
  }

 private:
  std::vector<unsigned> from_ = std::vector<unsigned>(floats, 1);
};

class Copy : public Kernel {
 public:
  double pass() override {
    std::memcpy(to_.data(), from_.data(), 4 * floats);
    benchmark::ClobberMemory();
    return 8.0 * floats;
  }

 private:
  std::vector<float> from_ = std::vector<float>(floats, 1.0f), to_ = from_;
};

class Adam : public Kernel {
 public:
  double pass() override {
    adamw_update<float, float, float>(master_.data(), m_.data(), v_.data(), gradient_.data(),
                                      nullptr, parameters_.data(),
                                      static_cast<std::int64_t>(floats), AdamStep{});
    return 32.0 * floats;
  }

 private:
  std::vector<float> master_ = std::vector<float>(floats, 1.0f), m_ = master_, v_ = master_,
                     gradient_ = master_, parameters_ = master_;
};

std::unique_ptr<Kernel> kernel(const std::string& name) {
  if (name == "read") return std::make_unique<Read>();
  if (name == "copy") return std::make_unique<Copy>();
  return std::make_unique<Adam>();
}

// Half a second of all of them at once.
void run_together(benchmark::State& state, const std::vector<std::string>& names) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds duration{500};
  std::vector<std::unique_ptr<Kernel>> kernels;
  for (const std::string& name : names) kernels.push_back(kernel(name));
  for (auto& one : kernels) one->pass();
  std::vector<double> bytes(names.size(), 0), seconds(names.size(), 0);
  for (auto _ : state) {
    std::atomic<std::size_t> ready{0};
    std::vector<std::thread> threads;
    for (std::size_t k = 0; k < kernels.size(); ++k) {
      threads.emplace_back([&, k] {
        ++ready;
        while (ready < kernels.size()) std::this_thread::yield();
        const auto start = Clock::now();
        while (Clock::now() - start < duration) bytes[k] += kernels[k]->pass();
        seconds[k] += std::chrono::duration<double>(Clock::now() - start).count();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  double all = 0;
  for (std::size_t k = 0; k < names.size(); ++k) {
    const double rate = bytes[k] / seconds[k] * 1e-9;
    state.counters[std::to_string(k + 1) + "." + names[k]] = rate;
    all += rate;
  }
  state.counters["all"] = all;
}

}  // namespace

void register_memory_benchmarks() {
  const std::vector<std::vector<std::string>> sets = {
      {"read"},         {"copy"},         {"adam"},         {"read", "read"}, {"copy", "copy"},
      {"adam", "adam"}, {"adam", "copy"}, {"adam", "read"}, {"copy", "read"}};
  for (const std::vector<std::string>& names : sets) {
    std::string title = "memory/" + names[0];
    for (std::size_t k = 1; k < names.size(); ++k) title += "+" + names[k];
    benchmark::RegisterBenchmark(title.c_str(), run_together, names)->UseRealTime()->Iterations(1);
  }
}

}  // namespace spillway::bench
