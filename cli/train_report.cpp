#include "cli/train_report.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/output.hpp"

namespace spillway::cli {

namespace {

// JSON numbers are written as short as they can be read back; a loss with all 17 digits, for the
// eye.
std::string event_line(const nlohmann::ordered_json& event) {
  std::string line;
  for (const auto& [key, value] : event.items()) {
    // What is not finite is null, as in all JSON.
    const bool all_digits =
        (key == "loss" || key == "final_loss") && std::isfinite(value.get<double>());
    line += fmt::format("{}\"{}\":{}", line.empty() ? "" : ",", key,
                        all_digits ? fmt::format("{:#.17g}", value.get<double>()) : value.dump());
  }
  return "{" + line + "}";
}

}  // namespace

Events::Events(const std::filesystem::path& file, bool to_output, std::int64_t first_step,
               bool durable)
    : path_(file), to_output_(to_output) {
  std::string kept;
  std::ifstream before(first_step > 0 ? file : std::filesystem::path());
  for (std::string line; std::getline(before, line);) {
    const auto event = nlohmann::json::parse(line, nullptr, false);
    if (!event.is_object()) continue;  // a line that a crash has cut
    const std::string name = event.value("event", "");
    const std::int64_t step = event.value("step", std::int64_t{0});
    // A step event counts from 0, a commit says how many steps are done.
    if ((name == "step" && step >= first_step) || (name == "commit" && step > first_step)) continue;
    kept += line + "\n";
  }
  before.close();
  if (first_step > 0) {
    const std::filesystem::path next = file.string() + ".new";
    write_file(next.string(), kept);
    std::filesystem::rename(next, file);
  }
  file_.open(file, first_step > 0 ? std::ios::app : std::ios::out);
  if (durable) descriptor_ = FileDescriptor(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
}

void Events::write(const nlohmann::ordered_json& event) {
  const std::string line = event_line(event);
  file_ << line << '\n';
  file_.flush();
  const bool synced = !file_ || !descriptor_.valid() || event.at("event") != "step" ||
                      ::fdatasync(descriptor_.get()) == 0;
  if (!synced) throw MachineError::from_errno(fmt::format("cannot sync {}", path_.string()), errno);
  if (!file_) throw MachineError::from_errno(fmt::format("cannot write {}", path_.string()), errno);
  if (!to_output_) return;
  fmt::print("{}\n", line);
  flush_output();
}

StepLine::StepLine(std::int64_t steps, const Schedule& schedule, bool enabled)
    : steps_(steps),
      tokens_(static_cast<double>(schedule.problem().workload.tokens_per_step())),
      progress_(enabled) {
  for (const Task& task : schedule.tasks()) {
    if (task.step == schedule.steps() - 1)
      bytes_[static_cast<std::size_t>(task.lane)] += static_cast<double>(task.bytes);
  }
}

void StepLine::show(const StepResult& step) {
  // Exponential moving average, so that the time left does not jump about.
  seconds_ = seconds_ == 0 ? step.seconds : 0.9 * seconds_ + 0.1 * step.seconds;
  const std::int64_t left = steps_ - step.step - 1;
  std::string line =
      fmt::format("step {:>{}}/{}  loss {:.4f}  {:>7.0f} tokens/s  ETA {}", step.step + 1,
                  fmt::formatted_size("{}", steps_), steps_, step.loss, tokens_ / seconds_,
                  format_clock(static_cast<double>(left) * seconds_));
  const auto rate = [&](const char* name, Lane lane) {
    const double bytes = bytes_[static_cast<std::size_t>(lane)];
    if (bytes > 0) line += fmt::format("  {} {}", name, format_bytes_per_second(bytes / seconds_));
  };
  rate("h2d", Lane::pcie_h2d);
  rate("d2h", Lane::pcie_d2h);
  rate("ssd r", Lane::ssd_read);
  rate("w", Lane::ssd_write);
  if (step.skipped_unit >= 0) line += "  skipped: gradient not finite";
  progress_.show(line, step.step == 0 || left == 0);
}

}  // namespace spillway::cli
