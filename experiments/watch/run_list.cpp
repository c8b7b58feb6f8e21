#include "experiments/watch/run_list.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <system_error>
#include <tuple>

#include "base/errors.hpp"
#include "exec/run/run_folder.hpp"
#include "exec/run/run_lock.hpp"
#include "experiments/watch/run_events.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

// Of the text from `begin` to `end` of a file.
std::string piece_of(int file, std::uint64_t begin, std::uint64_t end) {
  std::string text(end - begin, '\0');
  std::size_t got = 0;
  while (got < text.size()) {
    const ssize_t count =
        ::pread(file, text.data() + got, text.size() - got, static_cast<off_t>(begin + got));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    got += static_cast<std::size_t>(count);
  }
  text.resize(got);
  return text;
}

void take_lines(const std::string& text, RunHistory& history) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (const auto event = read_event(std::string_view(text).substr(begin, end - begin)))
      history.take(*event);
    begin = end + 1;
  }
}

nlohmann::ordered_json or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

}  // namespace

std::string to_string(RunState state) {
  switch (state) {
    case RunState::running:
      return "running";
    case RunState::stopped:
      return "stopped";
    case RunState::done:
      return "done";
    case RunState::crashed:
      return "crashed";
    case RunState::elsewhere:
      return "elsewhere";
    case RunState::unknown:
      break;
  }
  return "unknown";
}

std::vector<std::string> MetricsReader::read() {
  // The name leads to another file once a run is resumed.
  struct ::stat open {};
  if (file_.valid() &&
      (::fstat(file_.get(), &open) != 0 || !folder_.leads_to(RunFolder::metrics, file_.get()) ||
       static_cast<std::uint64_t>(open.st_size) < read_)) {
    file_ = FileDescriptor();
    half_line_.clear();
    read_ = 0;
    ++replaced_;
  }
  if (!file_.valid()) {
    auto file = folder_.open(RunFolder::metrics, O_RDONLY, FileUse::read);
    if (!file) return {};
    file_ = std::move(*file);
  }
  std::vector<std::string> lines;
  std::array<char, 1 << 16> piece{};
  for (;;) {
    const ssize_t got = ::pread(file_.get(), piece.data(), piece.size(), static_cast<off_t>(read_));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return lines;
    read_ += static_cast<std::uint64_t>(got);
    for (const char c : std::string_view(piece.data(), static_cast<std::size_t>(got))) {
      if (c == '\n') {
        lines.push_back(std::move(half_line_));
        half_line_.clear();
      } else if (half_line_.size() <= longest_event) {
        half_line_ += c;  // what is longer is no event: read_event refuses it
      }
    }
  }
}

RunState state_of(const Directory& folder, const RunHistory& history) {
  try {
    switch (run_at_work(folder)) {
      case AtWork::here:
        return RunState::running;
      case AtWork::elsewhere:
        return RunState::elsewhere;
      case AtWork::no:
        break;
    }
  } catch (const Error&) {
    return RunState::unknown;
  }
  switch (history.end()) {
    case RunHistory::End::complete:
      return RunState::done;
    case RunHistory::End::interrupted:
      return RunState::stopped;
    case RunHistory::End::none:
      break;
  }
  return RunState::crashed;
}

SeenRun look_at_run(const fs::path& path, std::uint64_t most_bytes) {
  const Directory folder(path);
  if (!folder.status(saved_run_file)) {
    throw InputError(path.string() + ": there is no run in this folder",
                     "a run's folder holds " + std::string(saved_run_file));
  }
  SeenRun run;
  run.name = fs::path(folder.path()).lexically_normal().filename().string();
  if (run.name.empty()) run.name = folder.path().parent_path().filename().string();
  const auto file = folder.open(RunFolder::metrics, O_RDONLY, FileUse::read);
  struct ::stat status {};
  if (file && ::fstat(file->get(), &status) == 0) {
    const auto size = static_cast<std::uint64_t>(status.st_size);
    if (size <= most_bytes) {
      take_lines(piece_of(file->get(), 0, size), run.history);
    } else {
      const std::uint64_t head = std::min(most_bytes / 2, std::uint64_t{1} << 20);
      take_lines(piece_of(file->get(), 0, head), run.history);
      take_lines(piece_of(file->get(), size - (most_bytes - head), size), run.history);
    }
    const auto now =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch());
    run.age_seconds = std::max(0.0, now.count() - static_cast<double>(status.st_mtim.tv_sec) -
                                        static_cast<double>(status.st_mtim.tv_nsec) * 1e-9);
  }
  run.state = state_of(folder, run.history);
  return run;
}

std::vector<SeenRun> look_at_runs(const fs::path& folder) {
  const Directory parent(folder);  // or it says what is wrong
  std::vector<SeenRun> runs;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (!entry->is_directory(ignored) || !fs::exists(entry->path() / saved_run_file, ignored))
      continue;
    try {
      runs.push_back(look_at_run(entry->path()));
    } catch (const Error&) {
      SeenRun unknown;
      unknown.name = entry->path().filename().string();
      runs.push_back(std::move(unknown));
    }
  }
  std::sort(runs.begin(), runs.end(), [](const SeenRun& a, const SeenRun& b) {
    constexpr double never = 1e300;
    return std::make_tuple(a.age_seconds.value_or(never), a.name) <
           std::make_tuple(b.age_seconds.value_or(never), b.name);
  });
  return runs;
}

nlohmann::ordered_json to_json(const SeenRun& run) {
  const RunHistory& history = run.history;
  const RunHistory::Start& start = history.start();
  const auto text = [](const std::string& of) {
    return of.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(of);
  };
  std::optional<double> loss, average, evaluation;
  if (!history.steps().empty()) {
    loss = history.steps().back().loss;
    average = history.steps().back().loss_average;
  }
  if (!history.evaluations().empty()) evaluation = history.evaluations().back().loss;
  return {{"run", run.name},
          {"state", to_string(run.state)},
          {"model", text(start.model)},
          {"policy", text(start.policy)},
          {"steps_done", history.steps_done()},
          {"steps", start.steps},
          {"loss", or_null(loss)},
          {"loss_average", or_null(average)},
          {"evaluation_loss", or_null(evaluation)},
          {"tokens_per_second", or_null(history.tokens_per_second())},
          {"seconds_left", run.state == RunState::running && history.average_step_seconds() > 0
                               ? nlohmann::ordered_json(history.seconds_left())
                               : nlohmann::ordered_json()},
          {"age_seconds", or_null(run.age_seconds)}};
}

}  // namespace spillway
