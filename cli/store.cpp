// spillway store inspect | remove: what a training has committed, whether it is whole, and an end
// to it.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "cli/run_folder.hpp"
#include "cli/saved_run.hpp"
#include "exec/store_check.hpp"
#include "exec/training_record.hpp"

namespace spillway::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct Options {
  std::string folder;
  bool json = false, no_verify = false;
};

std::string size_text(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

// Of a run's folder, or of the first directory of a stripe set.
std::vector<StoreLocation> stores_of(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw InputError(fmt::format("{} is not a folder", folder.string()),
                     "name the folder of a run, or the first of its --ssd directories");
  }
  if (fs::exists(folder / saved_run_file)) {
    const SavedRun run = SavedRun::load(folder);
    if (run.store) return {*run.store};
    throw InputError(fmt::format("the run in {} has no store {}", folder.string(),
                                 run.complete ? "any more: it is complete" : "yet"),
                     run.complete ? "its weights are there; --keep-store keeps the optimizer state"
                                  : "nothing was committed: start it again, or `train --resume`");
  }
  std::vector<StoreLocation> found = find_stores(folder);
  if (found.empty()) {
    throw InputError(fmt::format("there is no store in {}", folder.string()),
                     "name the folder of a run, or the first of its --ssd directories");
  }
  return found;
}

struct Inspection {
  ResumePoint point;
  TrainingRecord training;
  bool verified = false;
  std::vector<BadChunk> bad;
};

Inspection inspect(const StoreLocation& location, const Options& options) {
  Inspection result{find_resume_point(location), {}, false, {}};
  result.training = TrainingRecord::parse(result.point.record.identity.training);
  if (options.no_verify || result.point.record.version == 0) return result;
  Progress progress(!options.json);
  result.bad = check_store(result.point, [&](std::uint64_t done, std::uint64_t total) {
    progress.show(fmt::format("checking {} of {}", size_text(done), size_text(total)),
                  done == total);
  });
  progress.finish();
  result.verified = true;
  return result;
}

// Bytes of the committed state by the tier it rests in while training.
std::array<std::uint64_t, tier_count> bytes_by_tier(const CommitRecord& record) {
  std::array<std::uint64_t, tier_count> bytes{};
  for (const StatePart& part : record.identity.parts)
    bytes[static_cast<std::size_t>(part.tier)] += part.bytes();
  return bytes;
}

ordered_json to_json(const Inspection& i) {
  const CommitRecord& record = i.point.record;
  ordered_json json = {{"step", record.version},
                       {"epoch", record.epoch},
                       {"model", i.training.model.name},
                       {"policy", i.training.policy},
                       {"steps", i.training.steps},
                       {"seed", i.training.seed},
                       {"workload",
                        {{"batch", i.training.workload.batch},
                         {"micro_batch", i.training.workload.micro_batch},
                         {"sequence", i.training.workload.sequence}}},
                       {"store_bytes", record.identity.store_bytes}};
  json["directories"] = ordered_json::array();
  for (const fs::path& directory : i.point.location.directories)
    json["directories"].push_back(directory.string());
  const auto bytes = bytes_by_tier(record);
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd})
    json["state_bytes"][to_string(tier)] = bytes[static_cast<std::size_t>(tier)];
  json["verified"] = i.verified;
  json["bad_chunks"] = ordered_json::array();
  for (const BadChunk& chunk : i.bad) {
    json["bad_chunks"].push_back({{"unit", chunk.unit},
                                  {"file", chunk.file.string()},
                                  {"offset", chunk.offset},
                                  {"bytes", chunk.bytes},
                                  {"why", chunk.why}});
  }
  return json;
}

void print(const Inspection& i) {
  const CommitRecord& record = i.point.record;
  const TrainingRecord& t = i.training;
  fmt::print("{} with policy {}, committed at step {} of {}\n", t.model.name, t.policy,
             record.version, t.steps);
  fmt::print("  batch {} in micro-batches of {}, {} tokens a sequence, seed {}\n", t.workload.batch,
             t.workload.micro_batch, t.workload.sequence, t.seed);
  for (const fs::path& directory : i.point.location.directories)
    fmt::print("  {}\n", directory.string());
  const auto bytes = bytes_by_tier(record);
  fmt::print(
      "  {} on disk; optimizer state of {} that rests on the ssd, {} in host memory, {} in "
      "gpu memory\n",
      size_text(record.identity.store_bytes), size_text(bytes[2]), size_text(bytes[1]),
      size_text(bytes[0]));
  if (record.version == 0) {
    fmt::print("  no step is done: the state follows from the seed\n");
  } else if (i.verified && i.bad.empty()) {
    fmt::print("  every chunk matches its checksum\n");
  }
  for (const BadChunk& chunk : i.bad)
    fmt::print("  {}, offset {}, {} bytes: {}\n", unit_name(t.model, chunk.unit), chunk.offset,
               chunk.bytes, chunk.why);
}

int run_inspect(const Options& options) {
  std::size_t bad = 0;
  ordered_json json = {{"stores", ordered_json::array()}};
  for (const StoreLocation& location : stores_of(options.folder)) {
    const Inspection inspection = inspect(location, options);
    bad += inspection.bad.size();
    if (options.json) {
      json["stores"].push_back(to_json(inspection));
    } else {
      print(inspection);
    }
  }
  if (options.json) fmt::print("{}\n", json.dump());
  if (bad == 0) return exit_ok;
  throw MachineError(fmt::format("{} chunk{} of the committed state cannot be read or do not match "
                                 "their checksum",
                                 bad, bad == 1 ? "" : "s"),
                     "check the drive (smartctl -a); this training cannot go on from this commit");
}

void run_remove(const Options& options) {
  for (const StoreLocation& location : stores_of(options.folder)) {
    for (std::size_t i = 0; i < location.directories.size(); ++i) {
      const fs::path stripe = store_file(location.directories[i], i, location.generation);
      if (fs::exists(stripe)) continue;
      throw InputError(fmt::format("{} is missing: nothing was removed", stripe.string()),
                       "is its drive mounted? A store goes as a whole; if the rest of it is lost, "
                       "delete its files by hand: spillway-store-*, spillway-commit*");
    }
    const std::vector<fs::path> files = files_of(location);
    std::vector<StoreFile> held;  // throws where a run holds one
    for (const fs::path& file : files) held.emplace_back(file);
    for (StoreFile& file : held) file.set_keep(true);
    for (const fs::path& file : files) {
      remove_file(file);
      fmt::print("removed {}\n", file.string());
    }
  }
  if (!fs::exists(fs::path(options.folder) / saved_run_file)) return;
  SavedRun run = SavedRun::load(options.folder);
  run.store.reset();
  if (!run.complete) run.not_resumable = "its store was removed";
  run.save(options.folder);
}

}  // namespace

void add_store(CLI::App& app, int& exit_code) {
  CLI::App* store = app.add_subcommand(
      "store", "what a training has committed to its SSD directories: inspect or remove it");
  store->require_subcommand(1);
  auto options = std::make_shared<Options>();
  CLI::App* inspect = store->add_subcommand("inspect", "show what is there, and verify all of it");
  CLI::App* remove = store->add_subcommand("remove", "remove its files, to start anew");
  for (CLI::App* command : {inspect, remove}) {
    command
        ->add_option("folder", options->folder, "a run's folder, or the first of its directories")
        ->required();
  }
  inspect->add_flag("--no-verify", options->no_verify, "do not read the state itself");
  inspect->add_flag("--json", options->json, "print one JSON object");
  inspect->callback([options, &exit_code] { exit_code = run_inspect(*options); });
  remove->callback([options] { run_remove(*options); });
}

}  // namespace spillway::cli
