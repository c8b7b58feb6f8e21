#include "policies/workload/durability.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "base/errors.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t block = 4096, stripe = std::uint64_t{1} << 20;
// In a record: the training's description; of a part its place, and of a chunk its end and sum.
constexpr std::uint64_t record_head = 3072, record_part = 56, record_chunk = 16;

std::uint64_t record_bytes(std::span<const HomePart> homes) {
  std::uint64_t bytes = record_head;
  for (const HomePart& home : homes) {
    if (home.kind != BufferKind::optimizer_state) continue;
    bytes += record_part + (home.where.bytes / stripe + 1) * record_chunk;
  }
  return (bytes + block - 1) / block * block;
}

// Of drives that have a size but no rates, the size is what happens to be free on them.
bool is_described(const Machine::Ssd& ssd) { return ssd.count > 0 && ssd.write > 0; }

double rated_or_assumed(const Machine& machine) {
  const double rated = rated_bytes(machine);
  if (rated > 0) return rated;
  namespace assumed = commit_assumptions;
  return assumed::rewrites * (is_described(machine.ssd) ? static_cast<double>(machine.ssd.capacity)
                                                        : assumed::drive_bytes);
}

double assumed_step_seconds(const Problem& problem) {
  namespace assumed = commit_assumptions;
  const double given = problem.machine.gpu.flops;
  const double of_backend =
      problem.backend() == Backend::cpu ? assumed::cpu_flops : assumed::gpu_flops;
  return 3 * problem.model.forward_flops(problem.workload.batch, problem.workload.sequence) /
         (given > 0 ? given : of_backend);
}

}  // namespace

StoreBytes store_bytes(std::span<const Schedule* const> schedules, bool durable) {
  SPILLWAY_ASSERT(!schedules.empty());
  StoreBytes bytes;
  for (const Schedule* schedule : schedules)
    bytes.tier = std::max(bytes.tier, schedule->use(Tier::ssd).peak_bytes);
  const Schedule& first = *schedules[0];
  for (const HomePart& home : first.homes()) {
    const bool on_ssd = first.buffers()[home.where.buffer.id].tier == Tier::ssd;
    if (on_ssd) bytes.first_fill += home.where.bytes;
    if (!durable || home.kind != BufferKind::optimizer_state) continue;
    if (on_ssd) {
      bytes.second_copies += home.where.bytes;
    } else {
      bytes.memory_copies += 2 * home.where.bytes;
    }
  }
  if (durable) bytes.records = 2 * record_bytes(first.homes());
  return bytes;
}

StoreBytes store_bytes(const Schedule& schedule, bool durable) {
  const Schedule* const one = &schedule;
  return store_bytes(std::span(&one, 1), durable);
}

double rated_bytes(const Machine& machine) {
  return static_cast<double>(machine.ssd.tbw) * static_cast<double>(machine.ssd.count);
}

CommitInterval commit_interval(const StoreBytes& bytes, const Problem& problem,
                               double step_seconds) {
  namespace assumed = commit_assumptions;
  if (!(step_seconds > 0)) step_seconds = assumed_step_seconds(problem);
  CommitInterval interval;
  interval.seconds = step_seconds;
  if (bytes.captured() == 0) return interval;
  const auto captured = static_cast<double>(bytes.captured());
  const Machine::Ssd& ssd = problem.machine.ssd;
  interval.cost_seconds = captured / (is_described(ssd) ? ssd.write : assumed::write_rate);
  const double least_lost =
      std::sqrt(2 * interval.cost_seconds * assumed::seconds_between_failures);
  const double wear_rate =
      rated_or_assumed(problem.machine) / (assumed::years_of_drive_life * seconds_per_year);
  const double steps = std::ceil(std::max(least_lost, captured / wear_rate) / step_seconds);
  constexpr double most = 1e15;  // steps; nobody gets there, and products of it stay whole
  interval.steps = static_cast<std::int64_t>(std::clamp(steps, 1.0, most));
  interval.seconds = static_cast<double>(interval.steps) * step_seconds;
  return interval;
}

Durability parse_durability(const std::string& text) {
  Durability durability{DurabilityMode::on, 0};
  if (text.empty()) return durability;
  constexpr std::string_view interval = "interval=";
  if (text == "off") {
    durability.mode = DurabilityMode::off;
  } else if (text == "step") {
    durability.interval = 1;
  } else if (text.rfind(interval, 0) == 0) {
    const char* const begin = text.data() + interval.size();
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(begin, end, durability.interval);
    if (error == std::errc::result_out_of_range)
      throw InputError(Setting{"durability", text} + ": out of range: it is too large",
                       "example: " + Setting{"durability", "interval=20"});
    if (error != std::errc() || rest != end || durability.interval < 1)
      throw InputError(Setting{"durability", text} + ": not a positive number of steps",
                       "example: " + Setting{"durability", "interval=20"});
  } else {
    throw InputError(Setting{"durability", text} + " is not step, interval=N or off",
                     "leave it out for the most that costs next to nothing");
  }
  return durability;
}

}  // namespace spillway
