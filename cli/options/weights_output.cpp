#include "cli/options/weights_output.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/units.hpp"
#include "exec/run/available_memory.hpp"

namespace spillway::cli {

namespace {

std::string size_text(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

}  // namespace

void WeightsOutput::add_to(CLI::App& command) {
  command.add_option("--dtype", type, "what weights are written as: fp32 | bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command
      .add_option("--max-shard", most_bytes,
                  "bytes of a file of weights; larger models are written as several")
      ->capture_default_str();
  io.add_to(command);
  command.add_flag("--json", json, "print one JSON object");
}

WritingWeights::WritingWeights(const WeightsOutput& output, std::string during)
    : output_(output), during_(std::move(during)), progress_(!output.json) {
  StopSignals::enter(StopSignals::Phase::exporting);
}

WeightFiles WritingWeights::files() {
  // One strip for what is read and one for what is written; the rest of memory is others'.
  constexpr std::uint64_t share = 8;
  const auto strip = static_cast<std::int64_t>(available_memory() / share);
  return {output_.type == "fp32" ? ElementType::f32 : ElementType::bf16,
          parse_bytes(output_.most_bytes),
          [this](std::uint64_t done, std::uint64_t all) { show("writing", done, all); },
          std::max(strip, TransposedMatrix::usual_strip_bytes)};
}

void WritingWeights::show(const char* doing, std::uint64_t done, std::uint64_t all) {
  StopSignals::check(during_);
  progress_.show(fmt::format("{} {} of {}", doing, size_text(done), size_text(all)), done == all);
}

std::string in_files_text(std::uint64_t bytes, std::size_t files) {
  return fmt::format("{} in {} file{}", size_text(bytes), files, files == 1 ? "" : "s");
}

}  // namespace spillway::cli
