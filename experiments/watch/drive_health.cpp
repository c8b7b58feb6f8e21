#include "experiments/watch/drive_health.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file_descriptor.hpp"
#include "base/text.hpp"
#include "experiments/watch/run_events.hpp"

extern char** environ;

namespace spillway {

namespace {

namespace fs = std::filesystem;

constexpr int most_layers = 8;  // of the device mapper
constexpr std::size_t longest_answer = std::size_t{1} << 20;

void collect_drives(const fs::path& block, int layers, std::set<std::string>& drives) {
  std::error_code ignored;
  const fs::path device = fs::canonical(block, ignored);
  if (ignored || layers == 0) return;
  if (fs::exists(device / "partition", ignored))
    return collect_drives(device.parent_path(), layers - 1, drives);
  bool is_made_of_others = false;
  for (const auto& below : fs::directory_iterator(device / "slaves", ignored)) {
    is_made_of_others = true;
    collect_drives(below.path(), layers - 1, drives);
  }
  if (!is_made_of_others) drives.insert(device.filename().string());
}

// Standard output of a program, at most longest_answer of it, which has until `deadline`; empty
// where it does not start. What it says elsewhere is dropped.
std::string output_of(std::vector<std::string> words,
                      std::chrono::steady_clock::time_point deadline) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return "";
  FileDescriptor reader(ends[0]), writer(ends[1]);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, writer.get(), STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = -1;
  const int error = ::posix_spawnp(&child, argv.front(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return "";
  writer = FileDescriptor();
  std::string text;
  std::array<char, 4096> piece{};
  while (text.size() < longest_answer) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd ready{reader.get(), POLLIN, 0};
    const int found = left.count() > 0 ? ::poll(&ready, 1, static_cast<int>(left.count())) : 0;
    if (found < 0 && errno == EINTR) continue;
    const ssize_t got = found > 0 ? ::read(reader.get(), piece.data(), piece.size()) : -1;
    if (got <= 0) break;
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
  ::kill(child, SIGKILL);  // nothing where it has ended
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) continue;
  return text;
}

const nlohmann::json* found_in(const nlohmann::json& json, const char* key) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(key);
  return found == json.end() ? nullptr : &*found;
}

std::optional<double> number_in(const nlohmann::json* json, const char* key) {
  return json != nullptr && json->is_object() ? event_number(*json, key) : std::nullopt;
}

// SATA drives: attribute 241 of most makers, in logical blocks.
std::optional<double> written_by_attribute(const nlohmann::json& answer) {
  const nlohmann::json* const attributes = found_in(answer, "ata_smart_attributes");
  const nlohmann::json* const table =
      attributes != nullptr ? found_in(*attributes, "table") : nullptr;
  if (table == nullptr || !table->is_array()) return {};
  for (const nlohmann::json& row : *table) {
    if (!row.is_object() || event_text(row, "name") != "Total_LBAs_Written") continue;
    const auto blocks = number_in(found_in(row, "raw"), "value");
    if (blocks) return *blocks * event_number(answer, "logical_block_size").value_or(512);
  }
  return {};
}

}  // namespace

std::vector<std::string> drives_below(const std::string& number, const fs::path& sys) {
  std::set<std::string> drives;
  collect_drives(sys / "dev/block" / number, most_layers, drives);
  return {drives.begin(), drives.end()};
}

DriveHealth parse_drive_health(const std::string& answer, const std::string& device) {
  DriveHealth health{device, {}, {}};
  if (nested_deeper(answer, most_nesting)) return health;
  const nlohmann::json json = nlohmann::json::parse(answer, nullptr, false);
  if (!json.is_object()) return health;
  const nlohmann::json* const log = found_in(json, "nvme_smart_health_information_log");
  // NVM Express counts in thousands of 512 bytes.
  if (const auto units = number_in(log, "data_units_written"))
    health.bytes_written = *units * 512e3;
  if (const auto percent = number_in(log, "percentage_used")) health.life_used = *percent / 100;
  if (!health.bytes_written) health.bytes_written = written_by_attribute(json);
  if (!health.life_used) {
    if (const auto percent = number_in(found_in(json, "endurance_used"), "current_percent"))
      health.life_used = *percent / 100;
  }
  return health;
}

DrivesHealth read_drives_health(const std::vector<fs::path>& directories,
                                const DriveSources& sources) {
  DrivesHealth health;
  std::set<std::string> names;
  for (const fs::path& directory : directories) {
    struct ::stat status {};
    if (::stat(directory.c_str(), &status) != 0) continue;
    const auto below =
        drives_below(fmt::format("{}:{}", major(status.st_dev), minor(status.st_dev)), sources.sys);
    names.insert(below.begin(), below.end());
    if (below.empty())
      health.why_not = directory.string() + " lies on no drive that the system names";
  }
  for (const std::string& name : names) {
    const std::string device = (sources.dev / name).string();
    const std::string answer =
        output_of({sources.smartctl, "--json", "--info", "--attributes", device},
                  std::chrono::steady_clock::now() + std::chrono::seconds(sources.seconds));
    DriveHealth drive = parse_drive_health(answer, device);
    if (drive.bytes_written || drive.life_used) {
      health.drives.push_back(std::move(drive));
      continue;
    }
    health.why_not = answer.empty()
                         ? "smartctl (smartmontools) is not installed, or does not answer"
                         : "smartctl says nothing of " + device + "; it wants root";
  }
  return health;
}

nlohmann::ordered_json drives_json(const DrivesHealth& health) {
  nlohmann::ordered_json json = {{"drives", nlohmann::ordered_json::array()}};
  for (const DriveHealth& drive : health.drives) {
    nlohmann::ordered_json one = {{"device", drive.device}};
    if (drive.bytes_written) one["bytes_written"] = *drive.bytes_written;
    if (drive.life_used) one["life_used"] = *drive.life_used;
    json["drives"].push_back(std::move(one));
  }
  if (!health.why_not.empty()) json["note"] = health.why_not;
  return json;
}

}  // namespace spillway
