// The executor as one of several ranks: its collectives, the results of a step over all ranks, and
// the end of a run that all agree on.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/errors.hpp"
#include "exec/ranks/rank_gpus.hpp"
#include "exec/ranks/rank_team.hpp"
#include "exec/run/clipping.hpp"
#include "exec/run/executor_run.hpp"
#include "policies/model/stages.hpp"
#include "policies/model/units.hpp"
#include "policies/movement/shards.hpp"
#include "policies/schedule/messages.hpp"

namespace spillway {

namespace {

constexpr Lane lanes_of_collectives[] = {Lane::ranks_gather, Lane::ranks_reduce,
                                         Lane::ranks_spread};

// Whether the norm of a unit's gradient counts in this stage: of what two stages have, in the
// first.
bool counts_here(const ModelSpec& model, std::int64_t unit) {
  const bool is_shared = unit == embedding_unit(model) && shares_embedding(model);
  return unit_elements(model, unit) > 0 && (!is_shared || has_embedding(model));
}

// Of the norms of all units, those that this stage has; the others are 0.
void leave_own(const ModelSpec& model, std::span<double> norms) {
  std::vector<bool> own(norms.size(), false);
  for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
    if (counts_here(model, unit)) own[static_cast<std::size_t>(whole_unit(model, unit))] = true;
  }
  for (std::size_t i = 0; i < norms.size(); ++i) {
    if (!own[i]) norms[i] = 0;
  }
}

// Of a stage's squares by its units, those that count, by unit of the whole model. What two stages
// have counts in the first.
std::vector<double> squares_of_whole(const ModelSpec& model, const std::vector<double>& units) {
  std::vector<double> whole(static_cast<std::size_t>(unit_count(whole_model(model))), 0.0);
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    if (counts_here(model, static_cast<std::int64_t>(unit)))
      whole[static_cast<std::size_t>(whole_unit(model, static_cast<std::int64_t>(unit)))] =
          units[unit];
  }
  return whole;
}

// The ranks that do a collective with this one, by their places in its group.
std::vector<int> members_of(const Schedule& schedule, const Task& task) {
  const Problem& problem = schedule.problem();
  if (is_stage(problem.model)) return all_ranks(static_cast<int>(problem.workload.pipeline));
  return members_of(schedule.groups()[task.group], problem.ranks(), problem.rank);
}

// And what each of them has of its whole, of elements `width` bytes wide.
RankParts parts_of(const Schedule& schedule, const Task& task, std::uint64_t width) {
  RankParts parts(members_of(schedule, task),
                  part_elements(schedule.groups()[task.group], task.bytes / width));
  for (std::uint64_t& part : parts.bytes) part *= width;
  return parts;
}

}  // namespace

void Executor::use_ranks(RankTeam& team, RankGpus* gpus) {
  SPILLWAY_ASSERT(runs_.empty());
  team_ = &team;
  gpus_ = gpus;
  team.on_loss([this](std::exception_ptr error) {
    fail(error);
    wake_caller();
  });
}

// False: the run is over, and every collective that a rank has begun is known.
bool Executor::begin_collective(Lane lane) {
  const std::lock_guard lock(lanes_->collectives_mutex);
  if (lanes_->no_collectives) return false;
  ++lanes_->collectives[index_of(lane)];
  return true;
}

// With `scratch`, which is as large as the whole, for the others alone: nothing is read or written
// that belongs to the run. What lies in GPU memory that the host does not reach goes from GPU to
// GPU where these have links, else by way of a copy.
void Executor::collective(const Run& run, TaskId id, std::byte* scratch) {
  const Task& task = run.schedule.tasks()[id];
  const auto accesses = run.schedule.accesses(task);
  if (goes_between_gpus(run, task)) {
    const bool for_result = scratch == nullptr;
    const bool all_do = is_message(task.kind)
                            ? gpus_->meet(task.lane, task.group, for_result)
                            : gpus_->meet(task.lane, members_of(run.schedule, task), for_result);
    if (all_do) exchange_on_gpus(run, id);
    return;
  }
  const auto is_hidden = [&](const Access& access) {
    return scratch == nullptr && !device_.host_reaches_gpu_memory() &&
           run.schedule.buffers()[access.buffer].tier == Tier::gpu;
  };
  const auto offset = [&](const Access& access) {
    return run.schedule.buffers()[access.buffer].offset + access.offset;
  };
  auto& copies = lanes_->copies_of_gpu[index_of(task.lane)];
  SPILLWAY_ASSERT(accesses.size() <= copies.size());
  std::array<std::byte*, 2> at{};
  for (std::size_t k = 0; k < accesses.size(); ++k) {
    if (!is_hidden(accesses[k])) {
      at[k] = scratch != nullptr ? scratch : address(run, accesses[k]);
      continue;
    }
    copies[k].resize(std::max<std::size_t>(copies[k].size(), accesses[k].bytes));
    at[k] = copies[k].data();
    if (accesses[k].mode != Mode::write)
      device_.download(offset(accesses[k]), {at[k], accesses[k].bytes});
  }
  exchange(run, id, at);
  for (std::size_t k = 0; k < accesses.size(); ++k) {
    if (is_hidden(accesses[k]) && accesses[k].mode != Mode::read)
      device_.upload(offset(accesses[k]), {at[k], accesses[k].bytes});
  }
}

// The same on all ranks: they have the same collectives.
bool Executor::goes_between_gpus(const Run& run, const Task& task) const {
  if (gpus_ == nullptr || (!is_message(task.kind) && gpus_->on(task.lane) == nullptr)) return false;
  const auto accesses = run.schedule.accesses(task);
  return std::all_of(accesses.begin(), accesses.end(), [&](const Access& access) {
    return run.schedule.buffers()[access.buffer].tier == Tier::gpu;
  });
}

void Executor::exchange_on_gpus(const Run& run, TaskId id) {
  const Task& task = run.schedule.tasks()[id];
  const auto accesses = run.schedule.accesses(task);
  std::array<std::byte*, 2> at{};
  SPILLWAY_ASSERT(accesses.size() <= at.size());
  for (std::size_t k = 0; k < accesses.size(); ++k) at[k] = address(run, accesses[k]);
  if (task.kind == TaskKind::send) return gpus_->send(task.lane, task.group, at[0], task.bytes);
  if (task.kind == TaskKind::receive)
    return gpus_->receive(task.lane, task.group, at[0], task.bytes);
  collective(run, task, *gpus_->on(task.lane), at);
}

// Between the operands of a collective or a message, which the host reaches.
void Executor::exchange(const Run& run, TaskId id, const std::array<std::byte*, 2>& at) {
  const Task& task = run.schedule.tasks()[id];
  if (task.kind == TaskKind::send) return team_->send(task.lane, task.group, {at[0], task.bytes});
  if (task.kind == TaskKind::receive)
    return team_->receive(task.lane, task.group, {at[0], task.bytes});
  HostSums& sums = team_->on(task.lane);
  if (task.kind != TaskKind::norms_reduce) return collective(run, task, sums, at);
  const Problem& problem = run.schedule.problem();
  const std::span norms(reinterpret_cast<double*>(at[0]), task.bytes / norm_slot_bytes);
  if (is_stage(problem.model)) leave_own(problem.model, norms);
  sums.all_reduce(norms, members_of(run.schedule, task));
}

// In the memory that the sums are of.
void Executor::collective(const Run& run, const Task& task, OrderedSums& sums,
                          const std::array<std::byte*, 2>& at) {
  const auto accesses = run.schedule.accesses(task);
  const Problem& problem = run.schedule.problem();
  const auto require_own = [&](const RankParts& parts, const Access& own) {
    const int place = place_in(run.schedule.groups()[task.group], problem.ranks(), problem.rank);
    SPILLWAY_ASSERT(parts.bytes[static_cast<std::size_t>(place)] == own.bytes);
  };
  switch (task.kind) {
    case TaskKind::all_gather: {
      const RankParts parts = parts_of(run.schedule, task, problem.parameter_bytes());
      require_own(parts, accesses[0]);
      return sums.all_gather(at[0], at[1], parts);
    }
    case TaskKind::broadcast:
      return sums.broadcast(at[0], task.bytes, task.saves, members_of(run.schedule, task));
    case TaskKind::reduce_scatter: {
      const std::uint64_t width = problem.gradient_bytes();
      const RankParts parts = parts_of(run.schedule, task, width);
      require_own(parts, accesses[1]);
      return sums.reduce_scatter(at[0], at[1], parts, width, !task.first_micro_batch);
    }
    case TaskKind::all_reduce:
      return sums.all_reduce(at[0], task.bytes, problem.gradient_bytes(),
                             members_of(run.schedule, task));
    default:
      bug("a collective", __FILE__, __LINE__, to_string(task.kind));
  }
}

// By sequence: those of a step come rank by rank. Of a pipeline the last stage has them.
std::vector<double> Executor::losses_of_all(const Run& run) const {
  const std::span<const double> own = run.losses;
  if (!team_) return {own.begin(), own.end()};
  const int steps = run.schedule.steps();
  const std::vector<double> gathered = team_->gather(own);
  if (is_stage(run.schedule.problem().model))
    return {gathered.end() - static_cast<std::ptrdiff_t>(own.size()), gathered.end()};
  const std::size_t of_step = own.size() / static_cast<std::size_t>(steps);
  std::vector<double> all;
  for (std::size_t step = 0; step < static_cast<std::size_t>(steps); ++step) {
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(team_->size()); ++rank) {
      const auto begin =
          gathered.begin() + static_cast<std::ptrdiff_t>(rank * own.size() + step * of_step);
      all.insert(all.end(), begin, begin + static_cast<std::ptrdiff_t>(of_step));
    }
  }
  return all;
}

std::int64_t Executor::tokens_of_all(const Run& run) const {
  double own = 0;
  for (const std::int64_t tokens : run.counted_tokens) own += static_cast<double>(tokens);
  if (!team_) return static_cast<std::int64_t>(own);
  // Each that looks at the text knows all of it.
  const std::vector<double> all = team_->gather(std::span(&own, 1));
  return static_cast<std::int64_t>(*std::max_element(all.begin(), all.end()));
}

StepResult Executor::shared_result(const Run& run, int step, std::int64_t began_ns) {
  StepResult result = run.times(step, began_ns);
  const std::span<const double> losses = run.losses_of(step);
  const ModelSpec& model = run.schedule.problem().model;
  const std::vector<double> units = squares_of_whole(model, run.unit_squares(step));
  // The losses, the units' squares, bytes read and written, the targets that count, and whether
  // this rank wants to stop.
  std::vector<double> own(losses.begin(), losses.end());
  own.insert(own.end(), units.begin(), units.end());
  own.push_back(static_cast<double>(result.ssd_bytes_read));
  own.push_back(static_cast<double>(result.ssd_bytes_written));
  own.push_back(static_cast<double>(run.counted_tokens[static_cast<std::size_t>(step)]));
  own.push_back(wants_stop_.load() ? 1 : 0);
  const std::vector<double> all = team_->gather(own);
  const auto of = [&](int rank, std::size_t at) {
    return all[static_cast<std::size_t>(rank) * own.size() + at];
  };
  // Ranks that have the same parts of a gradient as others count once.
  const std::vector<int> with_parts =
      is_stage(model)
          ? all_ranks(team_->size())
          : spillway::members_of(run.schedule.gradient_group(), run.schedule.problem().ranks(), 0);
  std::vector<double> squares(units.size(), 0.0);
  result.ssd_bytes_read = result.ssd_bytes_written = 0;
  bool stops = false;
  double counted = 0;
  for (int rank = 0; rank < team_->size(); ++rank) {
    const bool has_losses = !is_stage(model) || rank + 1 == team_->size();
    for (std::size_t i = 0; has_losses && i < losses.size(); ++i) result.loss += of(rank, i);
    const bool counts = std::find(with_parts.begin(), with_parts.end(), rank) != with_parts.end();
    for (std::size_t unit = 0; counts && unit < units.size(); ++unit)
      squares[unit] += of(rank, losses.size() + unit);
    const std::size_t after = losses.size() + units.size();
    result.ssd_bytes_read += static_cast<std::uint64_t>(of(rank, after));
    result.ssd_bytes_written += static_cast<std::uint64_t>(of(rank, after + 1));
    counted = std::max(counted, of(rank, after + 2));
    stops = stops || of(rank, after + 3) != 0;
  }
  if (counted > 0) result.loss /= counted;
  const StepGradient gradient = step_gradient(run.schedule, squares);
  result.gradient_norm = gradient.norm;
  result.skipped_unit = gradient.nonfinite_unit;
  if (stops && safety_.gate && safety_.gate->stop_version() < 0) agree_on_stop(result.step + 1);
  return result;
}

void Executor::share_stop() {
  if (!team_ || !safety_.gate) return;
  SPILLWAY_ASSERT(paused_);
  const double own = wants_stop() ? 1 : 0;
  const std::vector<double> all = team_->gather(std::span(&own, 1));
  const bool stops = std::any_of(all.begin(), all.end(), [](double one) { return one != 0; });
  if (stops && safety_.gate->stop_version() < 0) stop_here();
}

// All ranks are here, some perhaps further on in their lanes than others.
void Executor::agree_on_stop(std::int64_t at_least) {
  const auto own = static_cast<double>(safety_.gate->hold(at_least));
  const std::vector<double> all = team_->gather(std::span(&own, 1));
  safety_.gate->stop_at(static_cast<std::int64_t>(*std::max_element(all.begin(), all.end())));
}

// After a stop: a lane of one rank may wait in a collective of a step that is not to be, which the
// lanes of others have not come to. They take part in it, with bytes that nobody will read.
void Executor::finish_collectives(const Run& run) {
  std::vector<double> own;
  {
    const std::lock_guard lock(lanes_->collectives_mutex);
    lanes_->no_collectives = true;
    for (const Lane lane : lanes_of_collectives)
      own.push_back(static_cast<double>(lanes_->collectives[index_of(lane)]));
  }
  if (is_stage(run.schedule.problem().model)) finish_messages(run);
  const std::vector<double> all = team_->gather(own);
  std::vector<std::byte> scratch;
  for (std::size_t k = 0; k < own.size(); ++k) {
    double most = own[k];
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(team_->size()); ++rank)
      most = std::max(most, all[rank * own.size() + k]);
    const auto& tasks = run.by_lane[index_of(lanes_of_collectives[k])];
    std::size_t begun = 0;
    for (const TaskId id : tasks) {
      if (!is_collective(run.schedule.tasks()[id].kind)) continue;
      if (++begun <= static_cast<std::size_t>(own[k])) continue;
      if (begun > static_cast<std::size_t>(most)) break;
      scratch.resize(std::max<std::size_t>(scratch.size(), run.schedule.tasks()[id].bytes));
      collective(run, id, scratch.data());
    }
  }
  team_->waits_done();
}

// The same of messages between two stages, of which one side has begun some that the other has not.
void Executor::finish_messages(const Run& run) {
  constexpr Lane lanes[] = {Lane::stage_in, Lane::stage_out, Lane::stage_gradient_in,
                            Lane::stage_gradient_out};
  const auto ranks = static_cast<std::size_t>(team_->size());
  const auto me = static_cast<std::size_t>(team_->rank());
  // By lane and the other stage: how many this stage has begun.
  std::vector<double> begun(std::size(lanes) * ranks, 0.0);
  const auto tasks = run.schedule.tasks();
  for (std::size_t k = 0; k < std::size(lanes); ++k) {
    const auto& of_lane = run.by_lane[index_of(lanes[k])];
    for (std::size_t i = 0; i < lanes_->collectives[index_of(lanes[k])]; ++i)
      begun[k * ranks + tasks[of_lane[i]].group] += 1;
  }
  const std::vector<double> all = team_->gather(begun);
  std::vector<std::byte> scratch;
  for (std::size_t k = 0; k < std::size(lanes); ++k) {
    const auto end = std::find(std::begin(lanes), std::end(lanes), other_end(lanes[k]));
    const auto other_lane = static_cast<std::size_t>(end - std::begin(lanes));
    std::vector<double> seen(ranks, 0.0);
    for (const TaskId id : run.by_lane[index_of(lanes[k])]) {
      const std::size_t other = tasks[id].group;
      const double there = all[other * begun.size() + other_lane * ranks + me];
      seen[other] += 1;
      if (seen[other] <= begun[k * ranks + other] || seen[other] > there) continue;
      scratch.resize(std::max<std::size_t>(scratch.size(), tasks[id].bytes));
      collective(run, id, scratch.data());
    }
  }
}

}  // namespace spillway
