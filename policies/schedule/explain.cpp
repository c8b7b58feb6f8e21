// Schedule::write_explain: a schedule for people to read.
#include <fmt/format.h>

#include <map>

#include "base/units.hpp"
#include "policies/schedule/schedule_data.hpp"

namespace spillway {

namespace {

constexpr std::size_t most_lines = 400;

std::string bytes_text(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

void write_placement(std::ostream& out, const Schedule& schedule) {
  std::map<std::pair<BufferKind, Tier>, std::uint64_t> total;
  for (const HomePart& home : schedule.homes()) {
    total[{home.kind, schedule.buffers()[home.where.buffer.id].tier}] += home.where.bytes;
  }
  out << "At rest:\n";
  for (const auto& [key, bytes] : total) {
    out << fmt::format("  {:<16} {:<5} {:>10}\n", to_string(key.first), to_string(key.second),
                       bytes_text(bytes));
  }
  out << "Memory, peak of capacity:\n";
  for (const Tier tier : memories_of(schedule.problem().machine)) {
    const TierUse& use = schedule.use(tier);
    out << fmt::format("  {:<5} {:>10} of {}{}{}\n", to_string(tier), bytes_text(use.peak_bytes),
                       bytes_text(use.capacity_bytes),
                       is_drives(tier) ? "  without copies for commits, if any" : "",
                       use.peak_bytes > use.capacity_bytes ? "  DOES NOT FIT" : "");
  }
}

std::string amount(const Task& task) {
  if (task.params > 0) return fmt::format("{:.3g}M params", static_cast<double>(task.params) / 1e6);
  if (task.flops > 0) return fmt::format("{:.3g} GFLOP", task.flops / 1e9);
  if (task.bytes > 0) return bytes_text(task.bytes);
  return "";
}

}  // namespace

void Schedule::write_explain(std::ostream& out) const {
  const Problem& problem = *problem_;
  out << fmt::format(
      "{} on {} with policy {}: {} sequences of {} tokens a step in {} micro-batch{}\n",
      problem.model.name, problem.machine.name, data_->policy, problem.workload.batch,
      problem.workload.sequence, problem.workload.micro_batches(),
      problem.workload.micro_batches() == 1 ? "" : "es");
  write_placement(out, *this);

  std::vector<std::vector<TaskId>> predecessors(data_->tasks.size());
  for (TaskId id = 0; id < data_->tasks.size(); ++id) {
    for (const TaskId to : successors(id)) predecessors[to].push_back(id);
  }
  // A steady one, as pictures show it: the last one has no next step to prefetch for.
  const int shown = steps() >= 4 ? steps() - 2 : steps() - 1;
  out << fmt::format("Step {} of {} in program order (each lane runs its tasks in this order):\n",
                     shown + 1, steps());
  out << fmt::format("  {:>6}  {:<13} {:<46} {:>14}  {}\n", "task", "lane", "what", "work",
                     "after");
  std::size_t lines = 0, left = 0;
  for (TaskId id = 0; id < data_->tasks.size(); ++id) {
    const Task& task = data_->tasks[id];
    if (task.step != shown) continue;
    if (++lines > most_lines) {
      ++left;
      continue;
    }
    std::string after;
    for (const TaskId before : predecessors[id])
      after += fmt::format("{}#{}", after.empty() ? "" : " ", before);
    std::string what = describe(id);
    what.resize(what.rfind(" step "));
    out << fmt::format("  {:>6}  {:<13} {:<46} {:>14}  {}\n", fmt::format("#{}", id),
                       to_string(task.lane), what, amount(task), after);
  }
  if (left > 0)
    out << fmt::format("  ... and {} more tasks, which the graph for Graphviz has\n", left);
}

}  // namespace spillway
