#include "cli/train/measure_machine.hpp"

#include <fmt/format.h>

#include <chrono>

#include "cli/stop_signals.hpp"
#include "cli/text/output.hpp"
#include "cli/text/progress.hpp"
#include "experiments/calibrate/machine_cache.hpp"
#include "experiments/calibrate/quick_machine.hpp"
#include "experiments/testbed/throttled_machine.hpp"

namespace spillway::cli {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

std::string device_text(const std::optional<CudaGpu>& gpu) {
  if (!gpu) return "cpu";
  return fmt::format("GPU {}: {}, {} bytes, compute capability {}.{}", gpu->id, gpu->name,
                     gpu->memory_bytes, gpu->major, gpu->minor);
}

}  // namespace

CalibrationProgress measuring_progress(bool quiet) {
  return [progress = std::make_shared<Progress>(!quiet), began = Clock::now()](
             const std::string& what, int done, int all) {
    StopSignals::check("while measuring this machine",
                       "nothing was trained, and nothing is left behind");
    const double left = done > 2 ? seconds_since(began) / done * (all - done) : 0;
    const std::string eta = done > 2 ? "  ETA " + format_clock(left) : "";
    progress->show(fmt::format("measuring {}/{}: {}{}", done + 1, all, what, eta));
  };
}

std::string MeasuredRates::text() const {
  if (!known) return "";
  const std::string kept = kept_in.empty() ? "" : ", kept in " + kept_in.string();
  return seconds > 0 ? fmt::format("rates of this machine: measured in {:.1f} s{}", seconds, kept)
                     : fmt::format("rates of this machine: measured before{}", kept);
}

nlohmann::ordered_json MeasuredRates::json() const {
  nlohmann::ordered_json rates;
  if (!known) return rates;
  rates["measured_seconds"] = seconds;
  rates["kept_in"] = nullptr;
  if (!kept_in.empty()) rates["kept_in"] = kept_in.string();
  return rates;
}

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
    const auto say = [&](const std::string& text) {
      if (!options.quiet) print_error(text + "\n");
    };
    const auto began = Clock::now();
    const QuickMachine found = quick_machine(
        request, user_cache_folder(),
        [&] {
          say("--policy auto: measuring this machine for some seconds, once for this model and "
              "batch (`spillway calibrate` does it thoroughly)");
        },
        measuring_progress(options.quiet), [&](const std::string& text) { say("note: " + text); });
    if (!found.not_kept.empty())
      say("note: the rates are not kept for next time: " + found.not_kept);
    *rates = {true, found.measured_now ? seconds_since(began) : 0, found.kept_in};
    return throttled_machine(found.machine, options.throttle);
  };
}

}  // namespace spillway::cli
