#include "experiments/watch/run_records.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <span>
#include <string_view>

#include "base/errors.hpp"
#include "base/new_file.hpp"
#include "exec/run/run_folder.hpp"
#include "experiments/watch/loss_curve.hpp"
#include "experiments/watch/metrics_table.hpp"
#include "experiments/watch/run_events.hpp"
#include "experiments/watch/tensorboard.hpp"

namespace spillway {

namespace {

constexpr std::chrono::seconds draw_every{30};
constexpr int most_empty_files = 10;
constexpr std::uint64_t longest_metrics = std::uint64_t{1} << 30;

std::string_view text_of(std::span<const std::byte> head) {
  return {reinterpret_cast<const char*>(head.data()), head.size()};
}

const ReplaceOnly& only_metrics() {
  static const ReplaceOnly only = {"the metrics of a run", [](std::span<const std::byte> head) {
                                     return text_of(head).starts_with("{\"event\":");
                                   }};
  return only;
}

const ReplaceOnly& only_a_table() {
  static const ReplaceOnly only = {"the table of a run", [](std::span<const std::byte> head) {
                                     return text_of(head).starts_with("event,step,");
                                   }};
  return only;
}

const ReplaceOnly& only_a_curve() {
  static const ReplaceOnly only = {"the loss curve of a run", [](std::span<const std::byte> head) {
                                     return text_of(head).find("<!-- drawn by spillway -->") !=
                                            std::string_view::npos;
                                   }};
  return only;
}

const ReplaceOnly& only_samples() {
  static const ReplaceOnly only = {"the samples of a run", [](std::span<const std::byte> head) {
                                     return text_of(head).starts_with("after ");
                                   }};
  return only;
}

void write_all(const FileDescriptor& file, std::string_view text,
               const std::filesystem::path& path) {
  while (!text.empty()) {
    const ssize_t count = ::write(file.get(), text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      throw MachineError::from_errno(fmt::format("cannot write {}", path.string()), errno);
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

// A file that begins with `text` and is open at its end.
FileDescriptor begin_file(const Directory& folder, const std::string& name, std::string_view text,
                          const ReplaceOnly* only) {
  NewFile next({folder, name}, 0666, only);
  next.write(std::as_bytes(std::span(text)));
  next.commit();
  auto file = folder.open(name, O_WRONLY | O_APPEND, FileUse::change);
  if (!file)
    throw MachineError(folder.path_of(name).string() + " is gone", "was it removed just now?");
  return std::move(*file);
}

// Which start of a run has written the file of this name; 0: none.
int start_of(std::string_view name) {
  constexpr std::string_view prefix = RunFolder::tensorboard, suffix = ".spillway";
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return 0;
  name.remove_prefix(prefix.size());
  name.remove_suffix(suffix.size());
  int start = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), start);
  return error == std::errc() && end == name.data() + name.size() && name.size() == 10 ? start : 0;
}

std::vector<int> starts_in(const Directory& folder) {
  std::vector<int> starts;
  const int own = ::openat(folder.descriptor(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const stream = own < 0 ? nullptr : ::fdopendir(own);
  if (stream == nullptr) {
    if (own >= 0) ::close(own);
    return starts;
  }
  while (const dirent* const entry = ::readdir(stream)) {
    if (const int start = start_of(entry->d_name); start > 0) starts.push_back(start);
  }
  ::closedir(stream);
  std::sort(starts.begin(), starts.end());
  return starts;
}

// Nothing more is told by an event file from before. It is cut, not removed: a TensorBoard that is
// reading it goes on to the next one at its end, and never where it is gone.
void empty(const Directory& folder, const std::string& name, bool is_long_ago) {
  const auto found = folder.status(name);
  if (!found || !S_ISREG(found->st_mode) || found->st_uid != ::geteuid()) return;
  if (is_long_ago) {
    folder.remove(name);
    return;
  }
  const auto file = folder.open(name, O_WRONLY, FileUse::change);
  if (file && static_cast<std::uint64_t>(found->st_size) > tensorboard_version_bytes &&
      ::ftruncate(file->get(), static_cast<off_t>(tensorboard_version_bytes)) != 0)
    throw MachineError::from_errno("cannot cut " + folder.path_of(name).string(), errno);
}

// What TensorBoard is told of an event that `history` has just taken; empty: nothing.
std::string tensorboard_text(const nlohmann::json& event, const RunHistory& history) {
  const std::string name = event_name(event);
  const auto step = event_integer(event, "step");
  if (name == "evaluation" && !history.evaluations().empty() &&
      history.evaluations().back().step == step) {
    const EvaluationPoint& point = history.evaluations().back();
    return tensorboard_scalars(point.time, point.step,
                               {{"eval/loss", point.loss}, {"eval/perplexity", point.perplexity}});
  }
  if (name != "step" || history.steps().empty() || history.steps().back().step != step) return "";
  const StepPoint& point = history.steps().back();
  std::vector<TaggedNumber> scalars = {{"train/loss", point.loss}};
  const auto add = [&](std::string_view tag, const std::optional<double>& value) {
    if (value) scalars.push_back({tag, *value});
  };
  add("train/learning_rate", point.learning_rate);
  add("train/grad_norm", point.gradient_norm);
  add("train/tokens_per_second", point.tokens_per_second);
  add("train/mfu", point.mfu);
  add("gpu/power_watts", point.gpu_power_watts);
  add("gpu/clock_mhz", point.gpu_clock_mhz);
  return tensorboard_scalars(point.time, point.step, scalars);
}

// A sample for people; empty: the event is none.
std::string sample_text(const nlohmann::json& event) {
  if (event_name(event) != "sample") return "";
  return fmt::format("after {} steps, {} {}\n{}\n\n", event_integer(event, "step").value_or(0),
                     event_text(event, "kind") == "chat" ? "to" : "from",
                     nlohmann::json(event_text(event, "prompt"))
                         .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                     event_text(event, "text"));
}

template <class Action>
void for_each_event(const std::string& text, const Action& action) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (const auto event = read_event(std::string_view(text).substr(begin, end - begin)))
      action(*event);
    begin = end + 1;
  }
}

}  // namespace

std::string tensorboard_file(int start) {
  return fmt::format("{}{:010}.spillway", RunFolder::tensorboard, start);
}

RunRecords::RunRecords(const Directory& folder, std::int64_t first_step, bool durable)
    : folder_(folder), durable_(durable) {
  before_ =
      events_before(folder.read(RunFolder::metrics, longest_metrics).value_or(""), first_step);
  // Of a run that begins again nothing stays, but where it does so without a batch.
  if (first_step == 0 && before_.find("{\"event\":\"spike\"") == std::string::npos) before_.clear();
  metrics_ = begin_file(folder, RunFolder::metrics, before_, &only_metrics());
}

RunRecords::~RunRecords() {
  try {
    if (curve_is_old_) draw();
  } catch (...) {  // a picture is no reason to end in another way
    curve_failed_ = true;
  }
}

std::string RunRecords::write(const nlohmann::ordered_json& event) {
  std::string line = event_line(event);
  write_all(metrics_, line + "\n", folder_.path_of(RunFolder::metrics));
  const std::string name = event.at("event");
  if (durable_ && name == "step" && ::fdatasync(metrics_.get()) != 0) {
    throw MachineError::from_errno(
        fmt::format("cannot sync {}", folder_.path_of(RunFolder::metrics).string()), errno);
  }
  // A training that fails before its first event of another kind may leave no folder behind.
  if (name == "start") {
    before_ += line + "\n";
    return line;
  }
  if (!derived_open_) open_derived();
  // As it is read again later: the files do not depend on whether the run was resumed.
  if (const auto read = read_event(line)) write_derived(*read);
  if (name == "end" || std::chrono::steady_clock::now() - drawn_ > draw_every) draw();
  return line;
}

const RunHistory& RunRecords::history() {
  if (!derived_open_) open_derived();  // which takes what was told before
  return history_;
}

template <class Action>
void RunRecords::attempt(const std::string& name, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    warnings_.push_back(fmt::format("{} is not written any more: {}", name, error.what()));
  }
}

void RunRecords::open_derived() {
  derived_open_ = true;
  std::string table = metrics_table_head(), scalars, samples;
  for_each_event(before_, [&](const nlohmann::json& event) {
    history_.take(event);
    if (scalars.empty()) scalars = tensorboard_head(history_.start().time);
    table += metrics_row(event);
    scalars += tensorboard_text(event, history_);
    samples += sample_text(event);
  });
  if (scalars.empty()) scalars = tensorboard_head(0);
  before_ = std::string();
  attempt(RunFolder::metrics_table,
          [&] { table_ = begin_file(folder_, RunFolder::metrics_table, table, &only_a_table()); });
  open_samples(samples);
  const std::vector<int> earlier = starts_in(folder_);
  tensorboard_name_ = tensorboard_file(earlier.empty() ? 1 : earlier.back() + 1);
  attempt(tensorboard_name_, [&] {
    tensorboard_ = begin_file(folder_, tensorboard_name_, scalars, nullptr);
    for (const int start : earlier)
      empty(folder_, tensorboard_file(start), start + most_empty_files <= earlier.back());
  });
}

// Only runs that write any have the file.
void RunRecords::open_samples(const std::string& text) {
  if (text.empty() && !folder_.status(RunFolder::samples)) return;
  attempt(RunFolder::samples,
          [&] { samples_ = begin_file(folder_, RunFolder::samples, text, &only_samples()); });
}

void RunRecords::write_derived(const nlohmann::json& event) {
  history_.take(event);
  curve_is_old_ = true;
  const auto append = [&](FileDescriptor& file, const std::string& name, const std::string& text) {
    if (!file.valid() || text.empty()) return;
    const std::size_t before = warnings_.size();
    attempt(name, [&] { write_all(file, text, folder_.path_of(name)); });
    if (warnings_.size() > before) file = FileDescriptor();
  };
  append(table_, RunFolder::metrics_table, metrics_row(event));
  append(tensorboard_, tensorboard_name_, tensorboard_text(event, history_));
  const std::string sample = sample_text(event);
  if (!sample.empty() && !samples_.valid() && !folder_.status(RunFolder::samples)) {
    open_samples(sample);
  } else {
    append(samples_, RunFolder::samples, sample);
  }
}

void RunRecords::draw() {
  curve_is_old_ = false;
  if (curve_failed_) return;
  const std::size_t before = warnings_.size();
  attempt(RunFolder::loss_curve, [&] {
    const RunHistory::Start& start = history_.start();
    const std::string svg = loss_curve_svg(
        history_, fmt::format("{}, {}", start.model, folder_.path().filename().string()));
    NewFile file({folder_, RunFolder::loss_curve}, 0666, &only_a_curve());
    file.write(std::as_bytes(std::span(svg)));
    file.commit();
  });
  curve_failed_ = warnings_.size() > before;
  drawn_ = std::chrono::steady_clock::now();
}

}  // namespace spillway
