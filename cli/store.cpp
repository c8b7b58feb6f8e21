// spillway store inspect | remove: what a training has committed, whether it is whole, and an end
// to it.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options/io_option.hpp"
#include "cli/text/output.hpp"
#include "cli/text/progress.hpp"
#include "exec/ranks/left_over_stores.hpp"
#include "exec/ranks/rank_places.hpp"
#include "exec/ranks/shards_at_rest.hpp"
#include "exec/run/export_lock.hpp"
#include "exec/run/run_folder.hpp"
#include "exec/run/training_record.hpp"
#include "exec/store/store_check.hpp"
#include "exec/store/store_claim.hpp"
#include "sim/result_json.hpp"

namespace spillway::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct Options {
  std::string folder;
  bool json = false, no_verify = false;
  IoOption io;
};

std::string size_text(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

bool is_run(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(folder / saved_run_file, ignored));
}

// What lies in the first directory of a stripe set.
std::vector<StoreLocation> stores_in(const fs::path& directory) {
  std::vector<StoreLocation> found = find_stores(Directory(directory).path());
  if (found.empty()) {
    throw InputError(fmt::format("there is no store in {}", directory.string()),
                     "name the folder of a run, or the first of its --ssd directories");
  }
  return found;
}

// Of a run, where that of its first or only rank is `first`.
std::vector<StoreLocation> stores_of_all_ranks(const ResumePoint& first) {
  const TrainingRecord training = TrainingRecord::parse(first.record.identity.training);
  return stores_of_ranks(first.location, training.workload.processes());
}

struct Inspection {
  ResumePoint point;
  std::string also_of;  // another run's folder that claims it
  TrainingRecord training;
  bool verified = false;
  std::vector<BadChunk> bad;
};

Inspection inspect(ResumePoint point, std::string also_of, const Options& options) {
  Inspection result{std::move(point), std::move(also_of), {}, false, {}};
  result.training = TrainingRecord::parse(result.point.record.identity.training);
  if (options.no_verify || result.point.record.version == 0) return result;
  Progress progress(!options.json);
  result.bad = check_store(
      result.point,
      [&](std::uint64_t done, std::uint64_t total) {
        progress.show(fmt::format("checking {} of {}", size_text(done), size_text(total)),
                      done == total);
      },
      options.io.choose().make_ring);
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
                       {"rank", i.training.rank},
                       {"workload", to_json(i.training.workload)},
                       {"store_bytes", record.identity.store_bytes}};
  json["run"] = i.point.run.id;
  json["generation"] = i.point.location.generation;
  if (!i.also_of.empty()) json["also_of"] = i.also_of;
  json["directories"] = ordered_json::array();
  for (const fs::path& directory : i.point.location.directories)
    json["directories"].push_back(directory.string());
  const auto bytes = bytes_by_tier(record);
  for (std::size_t tier = 0; tier < bytes.size(); ++tier) {
    if (tier <= static_cast<std::size_t>(Tier::ssd) || bytes[tier] > 0)
      json["state_bytes"][to_string(static_cast<Tier>(tier))] = bytes[tier];
  }
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
  if (t.workload.processes() > 1)
    fmt::print("  what {} {} of {} has of it\n", t.workload.pipeline > 1 ? "stage" : "rank", t.rank,
               t.workload.processes());
  for (const fs::path& directory : i.point.location.directories)
    fmt::print("  {}\n", directory.string());
  fmt::print("  of {}\n", to_text(i.point.run.home));
  if (!i.also_of.empty())
    fmt::print("  note: the folder {} claims this state as well\n", i.also_of);
  const auto bytes = bytes_by_tier(record);
  fmt::print(
      "  {} on disk; optimizer state of {} that rests on the ssd, {} in host memory, {} in "
      "gpu memory{}\n",
      size_text(record.identity.store_bytes),
      size_text(std::accumulate(bytes.begin() + 2, bytes.end(), std::uint64_t{0})),
      size_text(bytes[1]), size_text(bytes[0]),
      t.workload.moments == MomentWidth::bf16 ? ", moments in bf16" : "");
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
  std::vector<Inspection> inspections;
  if (is_run(options.folder)) {
    const Directory folder(options.folder);
    StateOfRun state = find_state(folder, SavedRun::load(folder));
    const std::vector<StoreLocation> stores = stores_of_all_ranks(state.point);
    inspections.push_back(inspect(std::move(state.point), state.also_of, options));
    for (std::size_t rank = 1; rank < stores.size(); ++rank)
      inspections.push_back(inspect(find_resume_point_of_rank(stores[rank], static_cast<int>(rank)),
                                    state.also_of, options));
  } else {
    for (const StoreLocation& location : stores_in(options.folder))
      inspections.push_back(inspect(find_resume_point(location), "", options));
  }
  std::size_t bad = 0;
  ordered_json json = {{"stores", ordered_json::array()}};
  for (const Inspection& inspection : inspections) {
    bad += inspection.bad.size();
    if (options.json) {
      json["stores"].push_back(to_json(inspection));
    } else {
      print(inspection);
    }
  }
  if (options.json) fmt::print("{}\n", to_text(json));
  if (bad == 0) return exit_ok;
  throw MachineError(fmt::format("{} chunk{} of the committed state cannot be read or do not match "
                                 "their checksum",
                                 bad, bad == 1 ? "" : "s"),
                     "check the drive (smartctl -a); this training cannot go on from this commit");
}

// Throws InputError where a file of the store is missing, or is another's.
void require_all(const StoreLocation& location, const RunId& run, bool by_directory) {
  for (std::size_t i = 0; i < location.directories.size(); ++i) {
    const fs::path stripe = store_file(location.directories[i], i, location.generation);
    std::error_code ignored;
    const auto refuse = [&](const std::string& what) {
      throw InputError(fmt::format("{} {}: nothing was removed", stripe.string(), what),
                       "is its drive mounted? A store goes as a whole; if the rest of it is lost, "
                       "delete its files by hand: spillway-store-*, spillway-commit*");
    };
    if (!fs::exists(fs::symlink_status(stripe, ignored))) refuse("is missing");
    const std::optional<StoreHeader> header = read_header(stripe);
    if (!header || header->run.id != run || header->generation != location.generation)
      refuse("is not of this store");
    // Of a run's folder it was asked before whose each file is.
    if (by_directory && i > 0 && header->first_directory != location.directories[0].string())
      refuse(
          fmt::format("belongs to a store whose first directory is {}", header->first_directory));
  }
}

void tell_removed(const std::vector<fs::path>& files) {
  for (const fs::path& file : files) fmt::print("removed {}\n", file.string());
}

// A copy of a store's first directory names the other directories of the original.
void require_no_copy(const StoreLocation& location) {
  if (location.directories.size() == 1) return;
  const fs::path file = record_file(location.directories[0], location.generation);
  const Directory directory(location.directories[0]);
  const auto found = directory.status(file.filename().string());
  const std::optional<StoreHeader> header = read_header(file);
  if (found && header && header->inode == found->st_ino) return;
  throw InputError(
      fmt::format("{} was copied here: where its other stripes are is not known", file.string()),
      "name the run's folder instead, or delete the files by hand");
}

void run_remove(const Options& options) {
  if (!is_run(options.folder)) {
    for (const StoreLocation& location : stores_in(options.folder)) {
      require_no_copy(location);
      const std::optional<StoreHeader> header =
          read_header(record_file(location.directories[0], location.generation));
      SPILLWAY_ASSERT(header.has_value());
      require_all(location, header->run.id, true);
      const fs::path home = header->run.home.path;
      const bool is_here = id_of_run_in(home) == header->run.id;
      const std::optional<ExportLock> unread =
          is_here ? ExportLock::to_remove(Directory(home)) : std::nullopt;
      tell_removed(remove_files(location, header->run.id));
    }
    return;
  }
  RunFolder folder = RunFolder::open(options.folder);
  const std::optional<ExportLock> unread = ExportLock::to_remove(folder.directory());
  if (folder.saved().store && !folder.saved().not_resumable.empty()) {
    // What a removal has left that was broken off, unless run.json names the state of another.
    const auto other = claimed_by(*folder.saved().store, folder.identity().home, this_computer());
    if (other) {
      throw InputError(fmt::format("the state in {} belongs to {}: nothing was removed",
                                   folder.saved().store->directories[0].string(), to_text(*other)),
                       "remove it with `spillway store remove` of that folder");
    }
    tell_removed(
        remove_left_over_stores(folder.saved().store->directories, folder.saved().store_ids(), {}));
    folder.saved().store.reset();
    folder.save();
    return;
  }
  const StateOfRun state = [&] {
    try {
      return find_state(folder.directory(), folder.saved());
    } catch (const InputError& error) {
      throw InputError(error.message() + ": nothing was removed", error.advice());
    }
  }();
  if (!state.also_of.empty()) {
    throw InputError(fmt::format("the state in {} belongs to {}, too: nothing was removed",
                                 state.point.location.directories[0].string(), state.also_of),
                     fmt::format("remove it with `spillway store remove` of that folder"));
  }
  for (const StoreLocation& store : stores_of_all_ranks(state.point))
    require_all(store, state.point.run.id, false);
  folder.saved().store = state.point.location;
  folder.saved().not_resumable = "its store was removed on purpose";
  folder.save();
  tell_removed(
      remove_left_over_stores(state.point.location.directories, folder.saved().store_ids(), {}));
  folder.saved().store.reset();
  folder.save();
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
  options->io.add_to(*inspect);
  inspect->add_flag("--json", options->json, "print one JSON object");
  inspect->callback([options, &exit_code] { exit_code = run_inspect(*options); });
  remove->callback([options] { run_remove(*options); });
}

}  // namespace spillway::cli
