#include "policies/common/run_record.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "policies/common/registry.hpp"
#include "policies/framework/framework.hpp"
#include "policies/model/stages.hpp"
#include "policies/workload/json_number.hpp"
#include "policies/workload/workload_json.hpp"

namespace spillway {

namespace {

using nlohmann::json;

constexpr std::size_t most_field_bytes = std::size_t{16} << 20;  // of a model with all its kernels

json field(const Trace& trace, const std::string& key, const std::string& origin) {
  const std::string* text = trace.find_metadata(key);
  if (!text) {
    throw InputError(
        fmt::format("{}: the trace does not say its {}", origin, key),
        "only traces that `spillway train` or `spillway simulate` wrote can be validated");
  }
  if (text->size() > most_field_bytes) {
    throw InputError(fmt::format("{}: damaged metadata: {} holds more than {} MiB", origin, key,
                                 most_field_bytes >> 20),
                     "record the trace again");
  }
  return json::parse(*text);
}

Backend backend_of(const json& text, const std::string& place) {
  for (const Backend backend : {Backend::cpu, Backend::cuda}) {
    if (text == to_string(backend)) return backend;
  }
  throw InputError(fmt::format("{}: limits.backend is {}", place, text.dump()),
                   "record the trace again");
}

json json_of(const PolicyOrigin& origin) {
  return {{"kind", origin.kind}, {"from", origin.from}, {"hash", origin.hash}};
}

std::optional<PolicyOrigin> recorded_origin(const Trace& trace, const std::string& origin) {
  if (!trace.find_metadata("policy_origin")) return {};
  const json recorded = field(trace, "policy_origin", origin);
  return PolicyOrigin{recorded.at("kind"), recorded.at("from"), recorded.at("hash")};
}

}  // namespace

Trace make_trace(const Schedule& schedule, const std::string& source) {
  Trace trace;
  const auto lanes = static_cast<int>(lane_count_of(schedule.problem()));
  for (int i = 0; i < lanes; ++i) trace.lanes.emplace_back(to_string(static_cast<Lane>(i)));
  const Workload& workload = schedule.problem().workload;
  for (int i = 0;
       i < task_kind_count_of(workload.ranks, workload.gradient_groups, workload.pipeline); ++i)
    trace.kinds.emplace_back(to_string(static_cast<TaskKind>(i)));
  for (int i = 0; i < phase_count; ++i) trace.phases.emplace_back(to_string(static_cast<Phase>(i)));
  const Problem& problem = schedule.problem();
  for (const Tier tier : memories_of(problem.machine)) trace.tiers.emplace_back(to_string(tier));
  const auto set = [&](const char* key, const json& value) {
    trace.set_metadata(key, value.dump());
  };
  set("source", source);
  set("version", SPILLWAY_VERSION);
  set("policy", schedule.policy());
  if (const auto origin = origin_of_policy(schedule.policy()))
    set("policy_origin", json_of(*origin));
  set("framework", problem.framework);
  set("framework_hash", framework_hash(problem.framework));
  set("steps", schedule.steps());
  set("fingerprint", fmt::format("{:016x}", schedule.fingerprint()));
  trace.set_metadata("workload", workload_json(problem.workload).dump());
  set("overrides", problem.overrides);
  set("model", model_to_toml(whole_model(problem.model)));
  json limits = {{"gpu", problem.machine.gpu.memory},
                 {"host", problem.machine.host.memory},
                 {"ssd", problem.machine.ssd.capacity},
                 {"backend", to_string(problem.backend())}};
  for (int more = 1; more < problem.machine.drive_sets(); ++more) {
    const Machine::Ssd& drives = problem.machine.drives(more);
    limits["drives"] = problem.machine.ssd.count;
    limits[drive_set_name(more)] = {{"capacity", drives.capacity}, {"drives", drives.count}};
  }
  set("limits", limits);
  if (problem.frozen_in_place) set("frozen_in_place", true);
  if (problem.machine.gpu.flops > 0) set("machine", machine_to_toml(problem.machine));
  return trace;
}

Schedule rebuild_schedule(const Trace& trace, const std::string& origin) {
  Problem problem;
  std::string policy, fingerprint, hash_of_framework;
  std::optional<PolicyOrigin> policy_origin;
  int steps = 0;
  try {
    problem.model = parse_model(field(trace, "model", origin), origin + " (model)");
    if (trace.find_metadata("machine")) {
      problem.machine = parse_machine(field(trace, "machine", origin), origin + " (machine)");
    }
    const json limits = field(trace, "limits", origin);
    const std::string place = origin + ": damaged metadata";
    problem.machine.gpu.memory = whole_number<std::uint64_t>(limits, "gpu", place);
    problem.machine.host.memory = whole_number<std::uint64_t>(limits, "host", place);
    problem.machine.ssd.capacity = whole_number<std::uint64_t>(limits, "ssd", place);
    for (int more = 1; more < most_drive_sets; ++more) {
      if (!limits.contains(drive_set_name(more))) continue;
      const json& drives = limits.at(drive_set_name(more));
      problem.machine.drives(more).capacity =
          whole_number<std::uint64_t>(drives, "capacity", place);
      problem.machine.drives(more).count = whole_number<std::int64_t>(drives, "drives", place);
      problem.machine.ssd.count = whole_number<std::int64_t>(limits, "drives", place);
    }
    problem.trains_on = backend_of(limits.at("backend"), place);
    problem.workload = workload_of_json(
        field(trace, "workload", origin), place + ": workload",
        "the trace is damaged or from another version of spillway: record it again");
    // Without a machine there is no cluster: processes of one computer are as many GPUs.
    Machine::Cluster& cluster = problem.machine.cluster;
    if (problem.workload.processes() > cluster.count())
      cluster.gpus = cluster.sharing = problem.workload.processes();
    if (trace.find_metadata("overrides")) problem.overrides = field(trace, "overrides", origin);
    if (trace.find_metadata("frozen_in_place"))
      problem.frozen_in_place = field(trace, "frozen_in_place", origin);
    policy = field(trace, "policy", origin);
    policy_origin = recorded_origin(trace, origin);
    if (trace.find_metadata("framework")) problem.framework = field(trace, "framework", origin);
    if (trace.find_metadata("framework_hash"))
      hash_of_framework = field(trace, "framework_hash", origin);
    steps = whole_number<int>(json{{"steps", field(trace, "steps", origin)}}, "steps", place);
    fingerprint = field(trace, "fingerprint", origin);
  } catch (const json::exception& error) {
    throw InputError(fmt::format("{}: damaged metadata: {}", origin, error.what()),
                     "record the trace again");
  }
  require_policy(policy, policy_origin, origin);
  Schedule schedule = build_schedule(problem, policy, steps);
  const bool same_fingerprint = fmt::format("{:016x}", schedule.fingerprint()) == fingerprint;
  if (!same_fingerprint && !hash_of_framework.empty() &&
      framework_hash(problem.framework) != hash_of_framework) {
    throw InputError(
        fmt::format("{}: the file of framework {} is not what it was when the trace was recorded",
                    origin, problem.framework),
        "restore the file, or record the trace again");
  }
  if (!same_fingerprint && policy_origin && origin_of_policy(policy) != policy_origin) {
    throw InputError(
        fmt::format("{}: policy {} writes another schedule than the recorded one: its {} is not "
                    "what it was when the trace was recorded ({})",
                    origin, policy, policy_origin->kind, policy_origin->from),
        "restore it, or record the trace again");
  }
  if (!same_fingerprint) {
    throw InputError(fmt::format("{}: policy {} now writes another schedule than the recorded one",
                                 origin, policy),
                     "the trace is from another version of spillway: record it again");
  }
  return schedule;
}

}  // namespace spillway
