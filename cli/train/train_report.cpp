#include "cli/train/train_report.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <span>
#include <sstream>
#include <string_view>

#include "base/errors.hpp"
#include "base/new_file.hpp"
#include "base/text.hpp"
#include "base/units.hpp"
#include "cli/text/output.hpp"

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
    line += fmt::format(
        "{}\"{}\":{}", line.empty() ? "" : ",", key,
        all_digits ? fmt::format("{:#.17g}", value.get<double>())
                   : value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
  return "{" + line + "}";
}

}  // namespace

namespace {

// What stays of the events written before.
std::string events_before(const std::string& text, std::int64_t first_step) {
  constexpr std::size_t longest_line = std::size_t{1} << 20;
  std::string kept;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.size() > longest_line || nested_deeper(line, most_nesting)) continue;
    const auto event = nlohmann::json::parse(line, nullptr, false);
    if (!event.is_object() || !event.contains("event")) continue;  // a line that a crash has cut
    const auto number = event.find("step");
    const std::int64_t step =
        number != event.end() && number->is_number_integer() ? number->get<std::int64_t>() : 0;
    // A step event counts from 0, a commit says how many steps are done.
    if ((event["event"] == "step" && step >= first_step) ||
        (event["event"] == "commit" && step > first_step))
      continue;
    kept += line + "\n";
  }
  return kept;
}

const ReplaceOnly& only_metrics() {
  static const ReplaceOnly only = {"the metrics of a run", [](std::span<const std::byte> head) {
                                     const std::string_view text(
                                         reinterpret_cast<const char*>(head.data()), head.size());
                                     return text.starts_with("{\"event\":");
                                   }};
  return only;
}

}  // namespace

Events::Events(const Directory& folder, const std::string& name, bool to_output,
               std::int64_t first_step, bool durable)
    : path_(folder.path_of(name)), to_output_(to_output), durable_(durable) {
  constexpr std::uint64_t longest = std::uint64_t{1} << 30;
  const std::string before =
      first_step > 0 ? events_before(folder.read(name, longest).value_or(""), first_step) : "";
  NewFile next({folder, name}, 0666, &only_metrics());
  next.write(std::as_bytes(std::span(before)));
  next.commit();
  auto file = folder.open(name, O_WRONLY | O_APPEND, FileUse::change);
  if (!file) throw MachineError(path_.string() + " is gone", "was it removed just now?");
  file_ = std::move(*file);
}

void Events::write(const nlohmann::ordered_json& event) {
  const std::string line = event_line(event);
  const std::string text = line + "\n";
  for (std::string_view left = text; !left.empty();) {
    const ssize_t count = ::write(file_.get(), left.data(), left.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      throw MachineError::from_errno(fmt::format("cannot write {}", path_.string()), errno);
    left.remove_prefix(static_cast<std::size_t>(count));
  }
  if (durable_ && event.at("event") == "step" && ::fdatasync(file_.get()) != 0)
    throw MachineError::from_errno(fmt::format("cannot sync {}", path_.string()), errno);
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
