// A training as one of several ranks: what rank 0 settles on and the others take over, and what
// they give it to write down.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "exec/ranks/rank_places.hpp"
#include "exec/ranks/shards_at_rest.hpp"
#include "exec/run/cuda_module.hpp"
#include "exec/run/training_record.hpp"
#include "experiments/calibrate/rank_link.hpp"
#include "experiments/train/train_checks.hpp"
#include "experiments/train/training_job.hpp"
#include "policies/model/stages.hpp"
#include "policies/schedule/task.hpp"
#include "policies/workload/workload_fields.hpp"

namespace spillway {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// What several ranks do not do yet; each for all of them, so that all refuse it.
void refuse_with_ranks(const TrainSettings& settings, const TrainRequest& request, int ranks) {
  const auto refuse = [](bool given, const char* key, const std::string& why) {
    if (given)
      throw InputError(Setting{key} + Message(": " + why), "leave it out, or train with one rank");
  };
  const std::string by_one = "several ranks do not do that";
  refuse(request.retune, "retune", by_one);
  const auto groups = settings.problem.workload.find("gradient_groups");
  const std::string count = std::to_string(ranks);
  refuse(groups != settings.problem.workload.end() && groups->second != count, "gradient_groups",
         count + " ranks add up gradients in as many groups");
  const auto meshes = settings.problem.workload.find("gradient_meshes");
  refuse(meshes != settings.problem.workload.end() && meshes->second != "all", "gradient_meshes",
         "several ranks have those of their policy");
  refuse(settings.gpu.has_value(), "gpu", "each of several ranks takes a GPU of its own");
}

json json_of(const StoreLocation& location) {
  json directories = json::array();
  for (const fs::path& directory : location.directories) directories.push_back(directory.string());
  return {{"directories", directories}, {"generation", location.generation}};
}

StoreLocation location_of(const json& text) {
  StoreLocation location;
  for (const json& one : text.at("directories"))
    location.directories.emplace_back(one.get<std::string>());
  location.generation = text.at("generation");
  return location;
}

json json_of(const RunIdentity& run) {
  return {{"id", run.id},
          {"host", run.home.host},
          {"path", run.home.path},
          {"file_system", run.home.file_system},
          {"inode", run.home.inode}};
}

RunIdentity identity_of(const json& text) {
  return {text.at("id"),
          {text.at("host"), text.at("path"), text.at("file_system"), text.at("inode")}};
}

// The memory that a rank plans with.
json memory_of(const Machine& machine) {
  json more = json::array();
  for (const Machine::Ssd& one : machine.more_ssd)
    more.push_back({{"capacity", one.capacity}, {"drives", one.count}});
  return {{"gpu", machine.gpu.memory},
          {"gpu_limit", machine.gpu.limit},
          {"workspaces", machine.gpu.workspaces},
          {"host", machine.host.memory},
          {"reserved", machine.host.reserved},
          {"beside", machine.host.beside},
          {"ssd", machine.ssd.capacity},
          {"drives", machine.ssd.count},
          {"more_drives", more}};
}

void set_memory(Machine& machine, const json& text) {
  machine.gpu.memory = text.at("gpu");
  machine.gpu.limit = text.at("gpu_limit");
  machine.gpu.workspaces = text.at("workspaces");
  machine.host.memory = text.at("host");
  machine.host.reserved = text.at("reserved");
  machine.host.beside = text.at("beside");
  machine.ssd.capacity = text.at("ssd");
  machine.ssd.count = text.at("drives");
  for (std::size_t more = 0; more < machine.more_ssd.size(); ++more) {
    machine.more_ssd[more].capacity = text.at("more_drives")[more].at("capacity");
    machine.more_ssd[more].count = text.at("more_drives")[more].at("drives");
  }
}

}  // namespace

// Before anything is settled: as many ranks as there are, each with its share of this computer.
void TrainingJob::take_place_among_ranks() {
  ProblemRequest& asked = settings_.problem;
  if (request_.team == nullptr) {
    if (const auto found = asked.workload.find("ranks");
        found != asked.workload.end() && found->second != "1")
      throw InputError(found->second + " ranks are as many processes",
                       "mpirun -n " + found->second + " spillway train ...");
    if (const auto found = asked.workload.find("pipeline");
        found != asked.workload.end() && found->second != "1")
      throw InputError(found->second + " stages of a pipeline are as many processes",
                       "mpirun -n " + found->second + " spillway train ...");
    return;
  }
  refuse_with_ranks(settings_, request_, request_.team->size());
  // As many groups as there are ranks, by the policy's meshes, whatever goes on from here.
  given_.erase("gradient_groups");
  given_.erase("gradient_meshes");
  asked.processes.count = request_.team->size();
}

void TrainingJob::refuse_spike_guard() const {
  if (!request_.team || settings_.spike_guard == 0) return;
  throw InputError(Setting{"spike_guard"} + ": several ranks do not do that",
                   "turn it off (" + Setting{"spike_guard", "0"} + "), or train with one rank");
}

// What rank 0 says, which alone knows the steps before this part of the run.
bool TrainingJob::as_first(bool own) {
  return request_.team ? request_.team->from_first(own ? "yes" : "no") == "yes" : own;
}

// How the ranks reach each other, once each has its device.
void TrainingJob::connect_ranks() {
  RankTeam& team = *request_.team;
  const double own = device_.gpu ? 1 : 0;
  const std::vector<double> all = team.gather(std::span(&own, 1));
  const auto [least, most] = std::minmax_element(all.begin(), all.end());
  if (*least != *most)
    throw InputError("some ranks have a GPU, and some have none that can be used",
                     "train all of them on the CPU backend: " + Setting{"device", "cpu"});
  if (device_.gpu) connect_gpus();
  const RankLink link = gpus_ ? measure_link(team, *gpus_) : measure_link(team);
  settings_.problem.processes.bandwidth = link.bandwidth;
  settings_.problem.processes.latency_ns = link.latency_ns;
  settings_.problem.processes.cores = link.cores;
}

// By NCCL, where all ranks have it.
void TrainingJob::connect_gpus() {
  RankTeam& team = *request_.team;
  std::unique_ptr<GpuLinks> links;
  std::string why_not;
  try {
    links = make_gpu_links(device_.gpu->id);
  } catch (const MachineError& error) {
    why_not = error.what();
  }
  const std::vector<std::string> all = team.gather(why_not);
  const auto without =
      std::find_if(all.begin(), all.end(), [](const auto& why) { return !why.empty(); });
  if (without != all.end()) {
    if (leads() && listener_.note)
      listener_.note(
          fmt::format("what ranks tell each other goes by way of the host's memory: "
                      "rank {}: {}",
                      without - all.begin(), *without));
    return;
  }
  const auto& workload = settings_.problem.workload;
  const auto stages = workload.find("pipeline");
  gpus_ = std::make_unique<RankGpus>(team, std::move(links),
                                     stages != workload.end() && stages->second != "1");
  if (leads() && listener_.note)
    listener_.note(
        Message("what ranks tell each other goes from GPU to GPU by " + gpus_->library()));
}

// Where another number of ranks goes on.
void TrainingJob::say_whether_sums_change() const {
  if (!sums_before_ || !listener_.note) return;
  Workload now = plan_.problem.workload;
  if (now.ranks > 1) now.group_meshes = training_->schedule().gradient_meshes();
  const auto text = [](Workload workload) {
    workload.group_meshes = canonical_meshes(workload);
    GradientMeshes& meshes = workload.group_meshes;
    if (meshes.state == workload.gradient_groups) meshes.state = 0;
    if (!workload.needs_norms()) meshes.parameters = 1;  // they decide norms alone
    const WorkloadTexts texts = workload_texts(workload);
    const auto by = texts.find("gradient_meshes");
    return fmt::format("{} group{}{}", workload.gradient_groups,
                       workload.gradient_groups == 1 ? "" : "s",
                       by == texts.end() ? "" : " by meshes " + by->second);
  };
  if (text(now) == text(*sums_before_)) return;
  listener_.note(
      fmt::format("gradients are added up in {} from there on, before that in {}: the last bits of "
                  "the weights are others than without the change",
                  text(now), text(*sums_before_)));
}

// Of the GPU that this rank takes; of several ranks, the least that any has.
std::uint64_t TrainingJob::free_gpu_bytes() const {
  const double own = device_.gpu ? static_cast<double>(cuda_free_bytes(device_.gpu->id)) : 0;
  std::vector<double> all = {own};
  if (request_.team) all = request_.team->gather(std::span(&own, 1));
  return static_cast<std::uint64_t>(*std::min_element(all.begin(), all.end()));
}

// All take the settings of the run that rank 0 has found, and its last commit that all have.
std::optional<ResumePoint> TrainingJob::share_resume(std::optional<ResumePoint> point) {
  RankTeam& team = *request_.team;
  json shared;
  if (leads()) {
    shared = {{"settings", resumed_},
              {"given", given_},
              {"left_out", settings_.left_out},
              {"frozen_from", frozen_from_},
              {"point", json()}};
    if (point)
      shared["point"] = {{"location", json_of(point->location)},
                         {"run", json_of(point->run)},
                         {"foreign", point->foreign},
                         {"of_other_ranks", point->of_other_ranks}};
  }
  shared = json::parse(team.from_first(shared.dump()));
  if (!leads()) {
    settings_ = read_train_settings(shared.at("settings").get<GivenSettings>());
    given_ = shared.at("given").get<GivenSettings>();
    settings_.left_out = shared.at("left_out").get<std::vector<std::int64_t>>();
  }
  const json& of_first = shared.at("point");
  if (of_first.is_null()) return {};
  if (of_first.at("foreign").get<bool>())
    throw InputError("a copy of a run of several ranks is not gone on with",
                     "go on with the run itself");
  const StoreLocation first = location_of(of_first.at("location"));
  if (of_first.at("of_other_ranks").get<bool>()) {
    ResumePoint theirs = commit_for_other_ranks(find_resume_point(first));
    theirs.run = identity_of(of_first.at("run"));
    return theirs;
  }
  // Each looks at its own store.
  ResumePoint own;
  own.location = place_of_rank(first, team.rank());
  own.run = identity_of(of_first.at("run"));
  return agree_on_commit(std::move(own));
}

std::optional<ResumePoint> TrainingJob::agree_on_commit(ResumePoint own) {
  RankTeam& team = *request_.team;
  ResumePoint newest = find_resume_point_of_rank(own.location, team.rank());
  const auto version = static_cast<double>(newest.record.version);
  const std::vector<double> all = team.gather(std::span(&version, 1));
  const auto common = static_cast<std::int64_t>(*std::min_element(all.begin(), all.end()));
  if (newest.record.version != common) {
    newest = find_commit(own.location, common);
    newest.is_older = true;
  }
  const TrainingRecord record = TrainingRecord::parse(newest.record.identity.training);
  if (record.rank != team.rank() || newest.run.id != own.run.id)
    throw InputError(
        fmt::format("{} is not the store of rank {} of this run",
                    own.location.directories[0].string(), team.rank()),
        "put back what was there, or name the directories of the run by " + Setting{"ssd"});
  return newest;
}

// What rank 0 has chosen, and the memory that it has found.
void TrainingJob::share_plan(Problem problem) {
  RankTeam& team = *request_.team;
  json shared;
  if (leads()) {
    const Problem& planned = plan_.problem;
    shared = {{"policy", plan_.policy},
              {"micro_batch", planned.workload.micro_batch},
              {"sequences_at_once", planned.workload.sequences_at_once},
              {"gradient", planned.workload.gradient},
              {"memory", memory_of(planned.machine)},
              {"machine", planned.machine.gpu.flops > 0 ? machine_to_toml(planned.machine) : ""},
              {"seconds", plan_.predicted_step_seconds.value_or(0)}};
  }
  shared = json::parse(team.from_first(shared.dump()));
  if (!leads()) {
    const Machine::Cluster cluster = problem.machine.cluster;
    const std::string machine = shared.at("machine");
    if (!machine.empty()) problem.machine = parse_machine(machine, "the machine of rank 0");
    problem.machine.cluster = cluster;
    set_memory(problem.machine, shared.at("memory"));
    problem.workload.micro_batch = shared.at("micro_batch");
    problem.workload.sequences_at_once = shared.at("sequences_at_once");
    problem.workload.gradient = shared.at("gradient").get<GradientWidth>();
    problem.trains_on = device_.gpu ? Backend::cuda : Backend::cpu;
    plan_ = {problem, shared.at("policy"), std::nullopt};
    if (const double seconds = shared.at("seconds"); seconds > 0)
      plan_.predicted_step_seconds = seconds;
  }
  plan_.problem.rank = team.rank();
  plan_.problem.model = whole_model(plan_.problem.model);
}

// Of the directories that rank 0 has, those of this rank; they are made.
std::vector<fs::path> TrainingJob::share_drives(std::vector<fs::path> drives) {
  RankTeam& team = *request_.team;
  json shared;
  if (leads()) {
    shared = {{"directories", json::array()}, {"run", json_of(run_)}};
    for (const fs::path& drive : drives)
      shared["directories"].push_back(fs::absolute(drive).string());
  }
  shared = json::parse(team.from_first(shared.dump()));
  drives.clear();
  for (const json& one : shared.at("directories")) {
    const fs::path directory = one.get<std::string>();
    // A dry run makes none, and looks at what there is room for.
    drives.push_back(request_.dry_run ? directory : place_of_rank(directory, team.rank()));
    if (request_.dry_run) continue;
    std::error_code error;
    fs::create_directories(drives.back(), error);
    if (error)
      throw MachineError::from_errno("cannot make " + drives.back().string(), error.value());
  }
  run_ = identity_of(shared.at("run"));
  return drives;
}

// Rank 0 has the spans of all in one trace, on lanes that are named after their ranks.
void TrainingJob::gather_traces() {
  RankTeam& team = *request_.team;
  const std::string own(reinterpret_cast<const char*>(trace_.spans.data()),
                        trace_.spans.size() * sizeof(Span));
  const std::vector<std::string> all = team.gather(own);
  if (!leads()) return;
  const std::vector<std::string> lanes = trace_.lanes;
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    for (const std::string& lane : lanes)
      trace_.lanes.push_back(fmt::format("rank {} {}", rank, lane));
    const auto* const spans = reinterpret_cast<const Span*>(all[rank].data());
    for (std::size_t i = 0; i < all[rank].size() / sizeof(Span); ++i) {
      Span span;
      std::copy_n(reinterpret_cast<const char*>(spans + i), sizeof(Span),
                  reinterpret_cast<char*>(&span));
      span.lane = static_cast<std::uint16_t>(span.lane + rank * lanes.size());
      trace_.spans.push_back(span);
    }
  }
}

}  // namespace spillway
