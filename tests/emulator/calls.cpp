#include "tests/emulator/calls.hpp"

#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/emulator/memory.hpp"
#include "tests/emulator/settings.hpp"
#include "tests/emulator/stream.hpp"

namespace emulator {
namespace {

struct Order {
  std::string name;
  std::int64_t at;  // the count at which it fails
  cudaError_t code;
};

Machine machine_of_environment() {
  Machine machine;
  if (const char* const gpus = std::getenv("SPILLWAY_EMULATED_GPUS"))
    machine.devices = std::atoi(gpus);
  return machine;
}

struct State {
  std::mutex mutex;
  std::map<std::string, std::int64_t> counts;
  // Counts for orders go on when a test resets the others.
  std::map<std::string, std::int64_t> ever;
  std::vector<Order> orders;
  cudaError_t failure = cudaSuccess;
  std::string failure_text;
  Machine machine = machine_of_environment();
  std::atomic<std::uint64_t> seed{0}, delay_seed{0};
  std::atomic<int> longest_delay_us{0};
  std::atomic<bool> recording{false};
  std::vector<LaunchRecord> launches;
  std::map<int, double> product_times;  // microseconds, by algorithm
  std::int64_t product_clock_ns = 0;
};

// Lives as long as threads of streams do.
State& state() {
  static auto* one = new State;
  return *one;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local bool in_host_function = false;

// With the mutex held.
bool take_order(const std::string& name, std::int64_t at, cudaError_t& code) {
  auto& orders = state().orders;
  for (auto order = orders.begin(); order != orders.end(); ++order) {
    if (order->name != name || order->at != at) continue;
    code = order->code;
    orders.erase(order);
    return true;
  }
  return false;
}

void order_failure(const std::string& name, int nth, cudaError_t code) {
  std::lock_guard lock(state().mutex);
  state().orders.push_back({name, state().ever[name] + nth, code});
}

constexpr std::array waits_for_device = {"cudaStreamSynchronize",
                                         "cudaDeviceSynchronize",
                                         "cudaEventSynchronize",
                                         "cudaMemcpy",
                                         "cudaMemset",
                                         "cudaMalloc",
                                         "cudaFree",
                                         "cudaHostAlloc",
                                         "cudaMallocHost",
                                         "cudaFreeHost",
                                         "cudaHostRegister",
                                         "cudaHostUnregister",
                                         "cudaDeviceReset",
                                         "pageable copy"};

}  // namespace

const Machine& machine() { return state().machine; }

void count_one(const std::string& name) {
  std::lock_guard lock(state().mutex);
  ++state().counts[name];
  ++state().ever[name];
}

bool kernel_ordered_to_fail(const std::string& name, cudaError_t& code) {
  std::lock_guard lock(state().mutex);
  ++state().counts["kernel " + name];
  const std::int64_t of_name = ++state().ever["kernel " + name], of_any = ++state().ever["kernel "];
  return take_order("kernel " + name, of_name, code) || take_order("kernel ", of_any, code);
}

cudaError_t enter(const char* name) {
  std::lock_guard lock(state().mutex);
  ++state().counts[name];
  const std::int64_t at = ++state().ever[name];
  cudaError_t code = cudaSuccess;
  if (take_order(name, at, code)) return code;
  if (in_host_function) return cudaErrorNotPermitted;
  if (!state().machine.driver) return cudaErrorInsufficientDriver;
  if (state().machine.devices == 0) return cudaErrorNoDevice;
  return state().failure;
}

cudaError_t leave(cudaError_t result) {
  if (result != cudaSuccess && result != cudaErrorNotReady) last_error = result;
  return result;
}

void run_host_function(void (*function)(void*), void* data) {
#if !defined(__SANITIZE_THREAD__)  // which would take it for an order that nobody promises
  static auto* one_at_a_time = new std::mutex;
  const std::lock_guard lock(*one_at_a_time);
#endif
  in_host_function = true;
  function(data);
  in_host_function = false;
}

bool recording() { return state().recording; }

void record_launch(LaunchRecord launch) {
  std::lock_guard lock(state().mutex);
  state().launches.push_back(std::move(launch));
}

void fail_device(cudaError_t code, const std::string& text) {
  std::lock_guard lock(state().mutex);
  if (state().failure != cudaSuccess) return;
  state().failure = code;
  state().failure_text = text;
}

cudaError_t device_state() {
  std::lock_guard lock(state().mutex);
  return state().failure;
}

std::uint64_t current_seed() { return state().seed; }
std::uint64_t delay_seed() { return state().delay_seed; }
int longest_delay_us() { return state().longest_delay_us; }

void count_product(int algorithm) {
  count_one("product by algorithm " + std::to_string(algorithm));
  std::lock_guard lock(state().mutex);
  const auto& times = state().product_times;
  if (times.empty()) return;
  const auto own = times.find(algorithm);
  state().product_clock_ns +=
      static_cast<std::int64_t>(1e3 * (own != times.end() ? own->second : times.at(0)));
}

std::optional<std::int64_t> product_clock_ns() {
  std::lock_guard lock(state().mutex);
  if (state().product_times.empty()) return {};
  return state().product_clock_ns;
}

// --- emulator.hpp

void reset() {
  drain_all();
  std::lock_guard lock(state().mutex);
  state().counts.clear();
  state().orders.clear();
  state().failure = cudaSuccess;
  state().failure_text.clear();
  state().machine = Machine{};
  state().seed = 0;
  state().longest_delay_us = 0;
  state().product_times.clear();
  last_error = cudaSuccess;
}

std::int64_t count(const std::string& name) {
  std::lock_guard lock(state().mutex);
  const auto found = state().counts.find(name);
  return found == state().counts.end() ? 0 : found->second;
}

std::map<std::string, std::int64_t> counts() {
  std::lock_guard lock(state().mutex);
  return state().counts;
}

void reset_counts() {
  std::lock_guard lock(state().mutex);
  state().counts.clear();
}

std::int64_t synchronizations() {
  std::int64_t sum = 0;
  for (const char* name : waits_for_device) sum += count(name);
  return sum;
}

void seed(std::uint64_t value) { state().seed = value; }

void delay_streams(std::uint64_t seed, int longest_us) {
  state().delay_seed = seed;
  state().longest_delay_us = longest_us;
}

void set_product_times(const std::map<int, double>& microseconds) {
  std::lock_guard lock(state().mutex);
  state().product_times = microseconds;
}

void fail(const std::string& name, int nth, cudaError_t code) { order_failure(name, nth, code); }
void fail_kernel(const std::string& name, int nth, cudaError_t code) {
  order_failure("kernel " + name, nth, code);
}

std::string device_failure() {
  std::lock_guard lock(state().mutex);
  return state().failure_text;
}

RecordLaunches::RecordLaunches() { state().recording = true; }
RecordLaunches::~RecordLaunches() {
  state().recording = false;
  static_cast<void>(take());
}
std::vector<LaunchRecord> RecordLaunches::take() {
  std::lock_guard lock(state().mutex);
  return std::exchange(state().launches, {});
}

void set_machine(const Machine& machine) {
  std::lock_guard lock(state().mutex);
  state().machine = machine;
}

}  // namespace emulator

// --- The runtime's own functions about errors.

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define EMULATOR_ERROR(name, number, text) \
  case name:                               \
    return #name;
    EMULATOR_ERRORS(EMULATOR_ERROR)
#undef EMULATOR_ERROR
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  {
    // What the device's failure was; the text stays for good, as callers expect.
    static std::mutex mutex;
    static std::map<std::string, int> texts;
    std::lock_guard state_lock(emulator::state().mutex);
    if (error != cudaSuccess && error == emulator::state().failure) {
      std::lock_guard lock(mutex);
      return texts.emplace(emulator::state().failure_text, 0).first->first.c_str();
    }
  }
  switch (error) {
#define EMULATOR_ERROR(name, number, text) \
  case name:                               \
    return text;
    EMULATOR_ERRORS(EMULATOR_ERROR)
#undef EMULATOR_ERROR
  }
  return "unrecognized error code";
}

cudaError_t cudaPeekAtLastError() {
  const cudaError_t failure = emulator::device_state();
  return failure != cudaSuccess ? failure : emulator::last_error;
}

cudaError_t cudaGetLastError() {
  const cudaError_t failure = emulator::device_state();
  const cudaError_t error = std::exchange(emulator::last_error, cudaSuccess);
  return failure != cudaSuccess ? failure : error;
}
