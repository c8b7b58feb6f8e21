// What a training goes on from, and what goes on with it.
#include <fmt/format.h>

#include "base/errors.hpp"
#include "exec/ranks/rank_places.hpp"
#include "exec/ranks/shards_at_rest.hpp"
#include "exec/run/training_record.hpp"
#include "experiments/train/kept_settings.hpp"
#include "experiments/train/train_checks.hpp"
#include "experiments/train/training_job.hpp"

namespace spillway {

namespace fs = std::filesystem;

namespace {

// The same directories on each set, in any order.
bool are_same_sets(const DriveFolders& a, const DriveFolders& b) {
  if (a.set_count() != b.set_count()) return false;
  for (std::size_t set = 0; set < a.set_count(); ++set) {
    const std::vector<fs::path> of_a = a.of_set(set), of_b = b.of_set(set);
    const auto is_in_b = [&](const fs::path& one) {
      return std::any_of(of_b.begin(), of_b.end(), [&](const fs::path& other) {
        std::error_code ignored;
        return one == other || fs::equivalent(one, other, ignored);
      });
    };
    if (of_a.size() != of_b.size() || !std::all_of(of_a.begin(), of_a.end(), is_in_b)) return false;
  }
  return true;
}

}  // namespace

// What `resume` goes on from: the settings of the run where none are given now, and its last
// commit, if there is one yet.
std::optional<ResumePoint> TrainingJob::resume() {
  const SavedRun& saved = folder_->saved();
  if (!saved.not_resumable.empty()) {
    throw InputError(
        Setting{"resume"} + Message(fmt::format(": there is nothing to go on from in {}: {}",
                                                request_.run, saved.not_resumable)),
        "start another run, in a folder of its own");
  }
  const DriveFolders given = ssd_directories(settings_.ssd);
  std::vector<fs::path> ssd = given.all;
  if (request_.team)  // where the store of this rank is, or is to be
    for (fs::path& directory : ssd) directory = place_of_rank(directory, 0);
  ResumeState state =
      request_.dry_run
          ? folder_->find(ssd)
          : folder_->resume({ssd, request_.take_over, listener_.checking, request_.io.make_ring});
  const GivenSettings now = given_, before = settings_in(saved);
  given_ = added_to(now, before);
  GivenSettings all = given_;
  settings_ = read_train_settings(all);
  if (!state.note.empty() && listener_.note) {
    // A copy may come from somebody else.
    const std::string text =
        settings_.data.data.empty()
            ? ""
            : fmt::format("; its text: {}", fmt::join(settings_.data.data, ", "));
    listener_.note(state.note + text);
  }
  resumed_ = all;
  if (!state.point) return {};  // it ended before its first commit: from the beginning
  const TrainingRecord record = TrainingRecord::parse(state.point->record.identity.training);
  require_same_reading(now, before, record.data_rules);
  const auto device = now.find("device");
  const bool device_given = device != now.end() && device->second.back() != "auto";
  if (device_given && device->second.back() != record.backend) {
    throw InputError(
        Setting{"resume"} +
            Message(fmt::format(": the run in {} is trained on device {}, not {}", request_.run,
                                record.backend, device->second.back())),
        "leave " + Setting{"device"} + " out: what is trained on another device has other numbers");
  }
  // Chosen where the run began, and part of its numbers since.
  const WorkloadTexts workload = workload_texts(record.workload);
  for (const char* key : {"micro_batch", "precision", "sequences_at_once"})
    if (!now.contains(key)) all[key] = {workload.at(key)};
  const std::int64_t ranks = request_.team ? request_.team->size() : 1;
  if (request_.team) {  // as many as there are ranks
    for (const char* key : {"gradient_groups", "gradient_meshes"}) {
      all.erase(key);
      given_.erase(key);
    }
  }
  const auto pipeline = all.find("pipeline");
  const std::string stages = std::to_string(record.workload.pipeline);
  if ((pipeline == all.end() ? "1" : pipeline->second.back()) != stages ||
      (record.workload.pipeline > 1 && record.workload.pipeline != ranks))
    throw InputError(
        Setting{"resume"} +
            Message(fmt::format(": the run in {} is trained in {} stage{} of a pipeline",
                                request_.run, stages, record.workload.pipeline == 1 ? "" : "s")),
        record.workload.pipeline == 1 ? "leave " + Setting{"pipeline"} + " out"
                                      : Message("go on by mpirun -n " + stages));
  if (record.workload.pipeline == 1 && record.workload.ranks != ranks)
    go_on_with_other_ranks(*state.point, record, ranks);
  if (!now.contains("policy")) {
    require_policy(record.policy, record.policy_origin, fmt::format("the run in {}", request_.run));
    all["policy"] = {record.policy};
  }
  // The file or folder that it was read from may be gone, and so may that of the adapters. A model
  // of which a part is frozen is needed for its weights alone.
  if (record.model.has_frozen() && now.contains("model")) frozen_from_ = now.at("model").back();
  const bool needs_model = now.contains("model") && frozen_from_.empty();
  if (state.point->record.version > 0) {
    if (now.contains("adapter"))
      throw InputError(Setting{"resume"} + ": the run has adapters of its own, at step " +
                           std::to_string(state.point->record.version),
                       "leave " + Setting{"adapter"} + " out, or start another run");
    all.erase("adapter");
  }
  if (!needs_model && folder_->directory().status(RunFolder::model))
    all["model"] = {folder_->directory().path_of(RunFolder::model).string()};
  if (!device_given) all["device"] = {record.backend};
  if (!now.contains("data")) {
    std::vector<std::string>& data = all["data"];
    data.clear();
    for (const fs::path& path : record.data) data.push_back(path.string());
  }
  DriveFolders drives{state.ssd};
  for (const FileSet& set : state.point->record.identity.sets) drives.sets.push_back(set.files);
  if (!given.all.empty() && !are_same_sets(drives, given)) drives = given;
  const SsdTexts texts = ssd_texts(drives);
  for (std::size_t set = 0; set < texts.size(); ++set) {
    const char* const key = drive_set_name(static_cast<int>(set));
    all.erase(key);
    if (!texts[set].empty()) all[key] = {texts[set]};
  }
  settings_ = read_train_settings(all);
  resumed_ = all;
  return std::move(state.point);
}

// What the ranks before have in their stores goes to those that there are now.
void TrainingJob::go_on_with_other_ranks(ResumePoint& point, const TrainingRecord& record,
                                         std::int64_t ranks) {
  if (point.foreign)
    throw InputError("a copy of a run of several ranks is not gone on with",
                     "go on with the run itself");
  point = commit_for_other_ranks(std::move(point));
  sums_before_ = record.workload;
  if (!listener_.note) return;
  const auto count = [](std::int64_t n) { return fmt::format("{} rank{}", n, n == 1 ? "" : "s"); };
  listener_.note(fmt::format("from step {} on with {}, before that with {}", point.record.version,
                             count(ranks), count(record.workload.ranks)));
}

std::vector<std::string> TrainingJob::left_out_texts() const {
  std::vector<std::string> texts;
  for (const std::int64_t batch : settings_.left_out) texts.push_back(std::to_string(batch));
  return texts;
}

TrainRequest TrainingJob::next() const {
  TrainRequest next;
  next.run = folder_->path().string();
  next.resume = true;
  next.io = request_.io;
  next.remove_store = request_.remove_store;
  // What looked otherwise by its first steps alone goes on as it is.
  const bool holds =
      !prediction_check_ || prediction_check_->holds() || prediction_check_->lanes.empty();
  if (spike_) {
    next.settings["left_out"] = left_out_texts();
    next.settings["policy"] = {plan_.policy};
    if (plan_.predicted_step_seconds) next.retuned = {plan_.problem.machine, plan_.policy};
    return next;
  }
  next.settings["policy"] = {holds ? plan_.policy : "auto"};
  next.retuned = {
      holds ? plan_.problem.machine : corrected_machine(plan_.problem.machine, *prediction_check_),
      plan_.policy};
  return next;
}

}  // namespace spillway
