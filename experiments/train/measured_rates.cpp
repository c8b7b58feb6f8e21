#include "experiments/train/measured_rates.hpp"

#include <fmt/format.h>

#include <chrono>

#include "experiments/calibrate/machine_cache.hpp"
#include "experiments/calibrate/quick_machine.hpp"
#include "experiments/testbed/throttled_machine.hpp"

namespace spillway {

namespace {

using Clock = std::chrono::steady_clock;

std::string device_text(const std::optional<CudaGpu>& gpu) {
  if (!gpu) return "cpu";
  return fmt::format("GPU {}: {}, {} bytes, compute capability {}.{}", gpu->id, gpu->name,
                     gpu->memory_bytes, gpu->major, gpu->minor);
}

}  // namespace

std::function<Machine(const Problem&, const std::vector<std::int64_t>&)> measure_this_machine(
    const MeasureOptions& options, std::shared_ptr<MeasuredRates> rates) {
  return [options, rates = std::move(rates)](const Problem& problem,
                                             const std::vector<std::int64_t>& micro_batches) {
    QuickMachineRequest request;
    request.model = problem.model;
    request.workload = problem.workload;
    request.micro_batches = micro_batches;
    request.threads = options.threads;
    request.drives = options.drives;
    request.io = options.io;
    request.device = device_text(options.gpu);
    if (options.gpu) {
      request.gpu = [id = options.gpu->id, threads = options.threads] {
        return open_gpu(id, threads);
      };
    }
    const auto say = [&](const Message& text) {
      if (options.note) options.note(text);
    };
    const auto progress = [&](const std::string& what, int done, int all) {
      if (options.progress) options.progress(what, done, all);
    };
    const auto began = Clock::now();
    const QuickMachine found = quick_machine(
        request, user_cache_folder(),
        [&] {
          say(Setting{"policy", "auto"} +
              ": measuring this machine for some seconds, once for this model and batch "
              "(`spillway calibrate` does it thoroughly)");
        },
        progress, [&](const std::string& text) { say("note: " + text); });
    if (!found.not_kept.empty())
      say("note: the rates are not kept for next time: " + found.not_kept);
    const std::chrono::duration<double> took = Clock::now() - began;
    *rates = {true, found.measured_now ? took.count() : 0, found.kept_in};
    return throttled_machine(found.machine, options.throttle);
  };
}

}  // namespace spillway
