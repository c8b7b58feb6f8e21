#include "cli/options/io_option.hpp"

#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "cli/options/setting_options.hpp"
#include "exec/io/io_threads.hpp"
#include "policies/machine/machine.hpp"

namespace spillway::cli {

void IoOption::add_to(CLI::App& command) {
  command.add_option("--io", text_, setting_help("io"))
      ->check(CLI::IsMember(find_train_setting("io")->choices))
      ->capture_default_str();
}

IoChoice choose_named_io(const std::string& name) {
  if (name == "threads") return choose_io(IoMethod::threads);
  if (name == "auto") return usual_io();
  try {
    return choose_io(IoMethod::uring);
  } catch (const MachineError& error) {
    throw MachineError("--io uring: " + error.message(),
                       error.advice() + (error.advice().empty() ? "" : "; ") +
                           "without --io, or with --io threads, threads do the same work");
  }
}

namespace {

constexpr auto depth = static_cast<unsigned>(executor_queue_depth);

}  // namespace

std::string io_line(const IoChoice& io) { return "I/O: " + to_text(io, depth); }

nlohmann::ordered_json io_json(const IoChoice& io) {
  if (io.method == IoMethod::uring) return {{"method", "io_uring"}};
  nlohmann::ordered_json json = {{"method", "threads"}, {"threads", io_threads_of(depth)}};
  if (!io.io_uring_refused.empty()) json["io_uring_refused"] = io.io_uring_refused;
  return json;
}

}  // namespace spillway::cli
