#include "experiments/calibrate/quick_machine.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/errors.hpp"
#include "experiments/calibrate/machine_cache.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

// On a GPU kernels of many micro-batches are quick to extrapolate from those of a few.
constexpr std::size_t most_micro_batches_on_gpu = 3;

std::string first_line_of(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string processor(const fs::path& root) {
  std::ifstream in(root / "proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos && line.starts_with("model name"))
      return line.substr(std::min(colon + 2, line.size()));
  }
  return "";
}

// The device or server that a folder is on, and its file system: of the mounts that lead to it, the
// one nearest to it.
std::string drive_of(const fs::path& directory, const fs::path& root) {
  std::error_code ignored;
  const fs::path place = fs::canonical(directory, ignored);
  std::ifstream in(root / "proc/self/mountinfo");
  std::string best;
  std::size_t longest = 0;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string id, parent, device, within, folder, word, type, source;
    words >> id >> parent >> device >> within >> folder;
    while (words >> word && word != "-") {
    }
    words >> type >> source;
    const fs::path relative = place.lexically_relative(folder);
    if (relative.empty() || *relative.begin() == ".." || folder.size() < longest) continue;
    longest = folder.size();
    best = source + " " + type;
  }
  return best;
}

CalibrationOptions calibration_of(const QuickMachineRequest& request) {
  CalibrationOptions options;
  options.model = request.model;
  options.sequence = request.workload.sequence;
  options.micro_batches = request.micro_batches;
  std::vector<std::int64_t>& all = options.micro_batches;
  std::sort(all.begin(), all.end());
  if (request.gpu && all.size() > most_micro_batches_on_gpu)
    all = {all.front(), all[all.size() / 2], all.back()};
  options.ssd = request.drives.all;
  options.ssd_sets = request.drives.sets;
  options.io = request.io;
  options.threads = request.threads;
  options.precision = request.workload.precision;
  options.sequences_at_once = request.workload.sequences_at_once;
  options.brief = true;
  if (request.gpu) options.gpu = request.gpu();
  return options;
}

}  // namespace

std::string identity_of(const QuickMachineRequest& request, const fs::path& root) {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  std::string text = fmt::format("spillway {}, format 1\n", SPILLWAY_VERSION);
  text +=
      fmt::format("computer {} {}, {} cores of {}\n", name, first_line_of(root / "etc/machine-id"),
                  std::thread::hardware_concurrency(), processor(root));
  text += fmt::format("device {}, {} threads\n", request.device, request.threads);
  if (!request.drives.sets.empty())
    text += fmt::format("drives in sets of {}\n", fmt::join(request.drives.sets, ", "));
  for (const fs::path& drive : request.drives.all)
    text += fmt::format("drive {}, {}\n", drive_of(drive, root),
                        name_of(request.io, executor_queue_depth));
  const ModelSpec& m = request.model;
  const Workload& w = request.workload;
  const char* const attention = std::getenv("SPILLWAY_CUDA_ATTENTION");
  text += fmt::format(
      "kernels of architecture {}, hidden {}, heads {}, kv_heads {}, ffn {}, vocabulary {}, "
      "positions {}, sequence {}, {}, at once {}, micro-batches {}{}\n",
      static_cast<int>(m.architecture), m.hidden, m.heads, m.kv_heads, m.ffn, m.vocabulary,
      m.positions, w.sequence, w.precision == Precision::bf16 ? "bf16" : "fp32",
      w.sequences_at_once, fmt::join(request.micro_batches, " "),
      attention == nullptr ? "" : fmt::format(", attention {}", attention));
  return text;
}

QuickMachine quick_machine(const QuickMachineRequest& request, const std::optional<fs::path>& cache,
                           const std::function<void()>& begin, const CalibrationProgress& progress,
                           const CalibrationNote& note) {
  std::optional<MachineCache> kept;
  if (cache) kept.emplace(*cache, identity_of(request));
  if (kept) {
    if (auto machine = kept->load()) return {std::move(*machine), false, kept->file(), ""};
  }
  begin();
  QuickMachine result{calibrate(calibration_of(request), progress, note), true, {}, ""};
  if (!kept) {
    result.not_kept = "neither XDG_CACHE_HOME nor HOME is set";
  } else if (result.machine.ssd.count == 0 && !request.drives.all.empty()) {
    result.not_kept = "its drive could not be measured";
  } else {
    result.not_kept = kept->keep(result.machine);
    if (result.not_kept.empty()) result.kept_in = kept->file();
  }
  return result;
}

}  // namespace spillway
