#include "policies/schedule/schedule.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "policies/machine/memory_beside.hpp"
#include "policies/model/units.hpp"
#include "policies/schedule/memory_parts.hpp"
#include "policies/schedule/moved.hpp"
#include "policies/schedule/program.hpp"
#include "policies/schedule/schedule_data.hpp"

namespace spillway {

Schedule::Schedule(std::shared_ptr<const Data> data)
    : data_(std::move(data)), problem_(data_, &data_->problem), use_(data_->use) {}

Schedule Schedule::of(const Problem& problem) const {
  Schedule same = *this;
  same.problem_ = std::make_shared<const Problem>(problem);
  const TierBytes capacity = capacities(problem.machine);
  for (std::size_t tier = 0; tier < capacity.size(); ++tier)
    same.use_[tier].capacity_bytes = capacity[tier];
  return same;
}

bool Schedule::suits(const Machine& machine) const {
  const TierBytes one = capacities(problem_->machine), other = capacities(machine);
  constexpr auto ssd = static_cast<std::size_t>(Tier::ssd);
  return std::equal(one.begin(), one.begin() + ssd, other.begin()) &&
         std::equal(one.begin() + ssd + 1, one.end(), other.begin() + ssd + 1) &&
         (one[ssd] == other[ssd] || data_->first_ssd_extent <= std::min(one[ssd], other[ssd]));
}

const std::string& Schedule::policy() const { return data_->policy; }
int Schedule::steps() const { return data_->steps; }
std::span<const Task> Schedule::tasks() const { return data_->tasks; }
std::span<const BufferInfo> Schedule::buffers() const { return data_->buffers; }
std::span<const HomePart> Schedule::homes() const { return data_->homes; }
std::span<const RankGroup> Schedule::groups() const { return data_->groups; }
const RankGroup& Schedule::gradient_group() const { return data_->gradient_group; }
const GradientMeshes& Schedule::gradient_meshes() const { return data_->gradient_meshes; }
std::size_t Schedule::edge_count() const { return data_->graph->edge_count(); }
std::span<const TaskId> Schedule::successors(TaskId task) const {
  return data_->graph->successors(task);
}
Schedule::Successors Schedule::successors() const {
  return {data_->graph->begins(), data_->graph->all_successors()};
}
std::span<const std::uint32_t> Schedule::predecessor_counts() const {
  return data_->predecessor_counts;
}

std::span<const Access> Schedule::accesses(const Task& task) const {
  return {data_->accesses.data() + task.first_access, task.access_count};
}

std::uint64_t Schedule::tasks_emitted() const { return data_->tasks_emitted; }
std::uint64_t Schedule::build_operations() const { return data_->operations; }

const TierUse& Schedule::use(Tier tier) const { return use_[static_cast<std::size_t>(tier)]; }

bool Schedule::fits() const {
  return std::all_of(use_.begin(), use_.end(),
                     [](const TierUse& use) { return use.peak_bytes <= use.capacity_bytes; });
}

namespace {

std::string key(Tier tier) {
  if (is_drives(tier)) return drive_set_key(drive_set(tier), "capacity");
  return tier == Tier::gpu ? "gpu.memory" : "host.memory";
}

// How much host memory leaves so many bytes beside what is reserved.
std::uint64_t installed_for(const Machine::Host& host, std::uint64_t bytes) {
  if (host.reserved_share == 0) return bytes + host.reserved;
  return static_cast<std::uint64_t>(
      std::ceil(static_cast<double>(bytes) / (1 - host.reserved_share)) + 1);
}

// The keys of the machine that are too small, with what this schedule needs of them.
Message settings_that_fit(const Schedule& schedule) {
  const Machine& machine = schedule.problem().machine;
  Message text;
  for (const Tier tier : memories_of(machine)) {
    const TierUse& use = schedule.use(tier);
    if (use.peak_bytes <= use.capacity_bytes) continue;
    std::uint64_t bytes = use.peak_bytes;
    if (tier == Tier::host)
      bytes = installed_for(machine.host, bytes + memory_beside(schedule.problem()));
    // Of what the file gives the context is taken off, of a limit the workspaces.
    if (tier == Tier::gpu)
      bytes += machine.gpu.limit > 0 ? machine.gpu.workspaces : machine.gpu.context;
    if (!text.empty()) text += ", ";
    text += Setting{key(tier), size_setting(round_size(bytes, true))};
    if (tier == Tier::ssd && machine.ssd.count == 0 && machine.ssd.read == 0)
      text += " with ssd.count, ssd.read and ssd.write of some drives";
  }
  return text;
}

// " (256 GB less the 56 GB of host.reserved)"
std::string reserve(const Problem& problem, Tier tier) {
  const Machine& machine = problem.machine;
  const auto less = [](std::uint64_t all, std::uint64_t reserved, const std::string& what) {
    return fmt::format(" ({} less the {} of {})", format_bytes(static_cast<double>(all)),
                       format_bytes(static_cast<double>(reserved)), what);
  };
  const Machine::Host& host = machine.host;
  if (tier == Tier::host && host.beside > 0)
    return less(host.memory + host.beside, host.beside, what_is_beside(problem));
  if (tier == Tier::host && host.reserved > 0)
    return less(host.memory + host.reserved, host.reserved, "host.reserved");
  if (tier == Tier::gpu && machine.gpu.limit > 0)
    return less(machine.gpu.limit, machine.gpu.workspaces, "workspaces");
  return "";
}

// Of host memory and drives, which ranks or stages share.
std::string of_each(const Problem& problem, Tier tier) {
  const std::int64_t sharing = problem.machine.cluster.sharing;
  if (sharing == 1 || tier == Tier::gpu) return "";
  return fmt::format(" for each of the {} GPUs of a computer", sharing);
}

std::string layer_name(const Problem& problem, std::int32_t layer) {
  if (layer < 0) return "";
  if (layer == embedding_unit(problem.model)) return " embedding";
  if (layer == head_unit(problem.model)) return " head";
  return fmt::format(" layer {}", layer);
}

// "1.2 GB parameters in 3 buffers, ...": the largest parts where the tier is fullest.
std::string largest_live(const Schedule& schedule, Tier tier) {
  std::string text;
  int shown = 0;
  for (const MemoryPart& part : parts_at_peak(schedule, tier)) {
    if (++shown > 3) break;
    text += fmt::format("{}{} {} in {} buffer{}", text.empty() ? "" : ", ",
                        format_bytes(static_cast<double>(part.bytes)), to_string(part.kind),
                        part.buffers, part.buffers == 1 ? "" : "s");
  }
  return text;
}

}  // namespace

void Schedule::require_fit() const {
  // What lacks most, of what there is, comes first.
  std::vector<Tier> lacking;
  for (const Tier tier : memories_of(problem().machine)) {
    if (use(tier).peak_bytes > use(tier).capacity_bytes) lacking.push_back(tier);
  }
  if (lacking.empty()) return;
  const auto over = [&](Tier tier) {
    return static_cast<double>(use(tier).peak_bytes) /
           static_cast<double>(std::max<std::uint64_t>(1, use(tier).capacity_bytes));
  };
  std::stable_sort(lacking.begin(), lacking.end(),
                   [&](Tier one, Tier other) { return over(one) > over(other); });
  const auto more = [&](Tier tier) {
    return format_bytes(static_cast<double>(use(tier).peak_bytes - use(tier).capacity_bytes));
  };
  const TierUse& used = use(lacking.front());
  std::string others;
  for (std::size_t i = 1; i < lacking.size(); ++i)
    others += fmt::format(", nor in {} memory, of which {} lack", to_string(lacking[i]),
                          more(lacking[i]));
  const Workload& workload = problem().workload;
  const std::string cut =
      workload.micro_batches() > 1 ? fmt::format(" in micro-batches of {}", workload.micro_batch)
      : workload.micro_batch > 1   ? fmt::format(" in one micro-batch of {}", workload.micro_batch)
                                   : "";
  throw FitError(
      fmt::format("{} with policy {}{} does not fit in {} memory: it needs {} ({} bytes), {} more "
                  "than the {} there is{}{}; "
                  "largest at the peak: {}",
                  problem().model.name, data_->policy, cut, to_string(lacking.front()),
                  format_bytes(static_cast<double>(used.peak_bytes)), used.peak_bytes,
                  more(lacking.front()), format_bytes(static_cast<double>(used.capacity_bytes)),
                  of_each(problem(), lacking.front()) + reserve(problem(), lacking.front()), others,
                  largest_live(*this, lacking.front())),
      settings_that_fit(*this) + " would make it fit");
}

bool Schedule::evaluates() const { return data_->evaluates; }
const std::array<std::uint64_t, tier_count>& Schedule::spare() const { return data_->spare; }

std::uint64_t Schedule::fingerprint() const {
  struct Deleter {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  const std::unique_ptr<XXH3_state_t, Deleter> hash(XXH3_createState());
  XXH3_64bits_reset(hash.get());
  const auto add = [&](const auto&... values) {
    const std::array<std::uint64_t, sizeof...(values)> words = {
        static_cast<std::uint64_t>(values)...};
    XXH3_64bits_update(hash.get(), words.data(), sizeof(words));
  };
  for (TaskId id = 0; id < data_->tasks.size(); ++id) {
    const Task& t = data_->tasks[id];
    const bool waits = t.kind == TaskKind::barrier;
    add(t.kind, t.lane, t.phase, waits ? 0 : t.available, t.first_micro_batch, waits ? 0 : t.saves,
        t.recomputes_output | t.loss_only << 1, t.pageable, t.pass_bytes, waits ? t.available : 0,
        waits ? t.saves : 0, t.step, t.layer, t.micro_batch, t.update, t.bytes,
        std::bit_cast<std::uint64_t>(t.flops), t.params, t.first_element);
    if (is_collective(t.kind)) add(t.group);
    for (const Access& a : accesses(t)) add(a.buffer, a.role, a.mode, a.offset, a.bytes);
    for (const TaskId s : successors(id)) add(s);
  }
  for (const BufferInfo& b : data_->buffers)
    add(b.kind, b.tier, b.persistent, b.bytes, b.offset, b.first_use, b.last_use);
  for (const RankGroup& g : data_->groups)
    add(g.mesh.inside, g.mesh.across, g.inside_stride, g.across_stride, g.inner.inside,
        g.inner.across);
  for (const HomePart& h : data_->homes) {
    add(h.kind, h.unit, h.first_element, h.elements, h.where.buffer.id, h.where.offset);
  }
  return XXH3_64bits_digest(hash.get());
}

std::string Schedule::describe(TaskId id) const {
  const Task& t = data_->tasks[id];
  std::string text = to_string(t.kind);
  if (t.kind == TaskKind::h2d || t.kind == TaskKind::d2h || t.kind == TaskKind::read ||
      t.kind == TaskKind::write) {
    text += fmt::format(" {}", to_string(data_->buffers[moved_by(t, accesses(t)).buffer].kind));
  }
  text += layer_name(problem(), t.layer);
  if (t.micro_batch >= 0) text += fmt::format(" micro-batch {}", t.micro_batch);
  return text + fmt::format(" step {}", t.step);
}

std::vector<TaskId> Schedule::critical_path(std::span<const std::int64_t> weights) const {
  std::vector<std::pair<TaskId, TaskId>> lane_edges;
  std::array<TaskId, lane_count> last;
  last.fill(none);
  for (TaskId id = 0; id < data_->tasks.size(); ++id) {
    TaskId& before = last[static_cast<std::size_t>(data_->tasks[id].lane)];
    if (before != none) lane_edges.emplace_back(before, id);
    before = id;
  }
  return data_->graph->critical_path(weights, lane_edges);
}

void Schedule::write_dot(std::ostream& out) const {
  static constexpr std::array<const char*, lane_count> colors = {
      "#f0e442", "#56b4e9", "#0072b2", "#009e73", "#d55e00",
      "#cc79a7", "#dddddd", "#a6761d", "#e6ab02", "#7570b3"};
  data_->graph->write_dot(
      out, [&](TaskId id) { return describe(id) + "\n" + to_string(data_->tasks[id].lane); },
      [&](TaskId id) {
        return std::string(colors[static_cast<std::size_t>(data_->tasks[id].lane)]);
      });
}

}  // namespace spillway
