// What building a schedule costs a task, and whether that depends on how long the schedule is.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "experiments/speed/speed.hpp"
#include "experiments/speed/speed_figures.hpp"
#include "policies/common/policy.hpp"

namespace spillway {

namespace {

constexpr int steps = 6;
constexpr double most_ns_per_task = 1000.0 / 3;  // 3 million tasks a second
constexpr double most_growth = 1.25;

// Schedules that grow with the number of micro-batches.
struct Family {
  const char* name;
  const char* model;
  const char* machine;
  const char* policy;
};

constexpr std::array families = {
    Family{"greedysnake", "gpt-175b", "h200",
           "greedysnake:optimizer_ssd=1,checkpoints_ssd=1,parameters_ssd=1"},
    Family{"zero-infinity", "gpt-65b", "a100-80gb", "zero-infinity"},
    Family{"fuyou", "gpt-65b", "a100-80gb", "fuyou"},
};

Problem problem_of(const Family& family, std::int64_t micro_batches) {
  Problem problem;
  problem.model = load_model(family.model, {});
  problem.machine = load_machine(family.machine, {});
  problem.workload.batch = micro_batches;
  problem.workload.micro_batch = 1;
  return problem;
}

std::size_t tasks_of(const Family& family, std::int64_t micro_batches) {
  return build_schedule(problem_of(family, micro_batches), family.policy, steps).tasks().size();
}

// With so many micro-batches a schedule has about `tasks` tasks. The first one is not like the
// rest.
std::int64_t micro_batches_for(const Family& family, double tasks) {
  const auto two = static_cast<double>(tasks_of(family, 2));
  const double each = static_cast<double>(tasks_of(family, 3)) - two;
  return 2 + std::max<std::int64_t>(0, std::llround((tasks - two) / each));
}

double kernel_cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_stime.tv_usec) * 1e-6;
}

struct Length {
  std::string name;  // "100k"
  Problem problem;
  std::size_t tasks = 0;
  std::vector<double> ns, kernel_ns;  // a task, by round
};

void measure(const Family& family, double seconds, Length& length) {
  double user = user_cpu_seconds(), kernel = kernel_cpu_seconds();
  std::size_t built = 0;
  do {
    length.tasks = build_schedule(length.problem, family.policy, steps).tasks().size();
    built += length.tasks;
  } while (user_cpu_seconds() - user <
           std::max(seconds, 0.02));  // many ticks of the kernel's clock
  const double ns_per_second = 1e9 / static_cast<double>(built);
  length.ns.push_back((user_cpu_seconds() - user) * ns_per_second);
  length.kernel_ns.push_back((kernel_cpu_seconds() - kernel) * ns_per_second);
}

SpeedFigure figure_of(const Family& family, const Length& length) {
  SpeedFigure figure;
  figure.name = fmt::format("building/{}/{}", family.name, length.name);
  figure.what =
      fmt::format("user CPU time to build a schedule of {} tasks: {} with {}, {} micro-batches",
                  length.tasks, family.model, family.policy, length.problem.workload.batch);
  figure.unit = "ns/task";
  figure.value = median(length.ns);
  figure.target = most_ns_per_task;
  figure.note = fmt::format("{:.2f} million tasks a second; the kernel's pages took {:.0f} ns more",
                            1e3 / figure.value, median(length.kernel_ns));
  return figure;
}

// The dearest length against the cheapest one, round by round.
SpeedFigure growth_of(const Family& family, const std::vector<Length>& lengths) {
  SpeedFigure figure;
  figure.name = fmt::format("building/{}/growth", family.name);
  figure.what = fmt::format(
      "cost a task, {} to {} tasks: the dearest of these lengths over the "
      "cheapest, median of the rounds",
      lengths.front().name, lengths.back().name);
  figure.unit = "x";
  figure.target = most_growth;
  std::vector<double> growth, last;
  for (std::size_t round = 0; round < lengths.front().ns.size(); ++round) {
    double least = lengths.front().ns[round], most = least;
    for (const Length& length : lengths) {
      least = std::min(least, length.ns[round]);
      most = std::max(most, length.ns[round]);
    }
    growth.push_back(most / least);
    last.push_back(lengths.back().ns[round] / lengths.front().ns[round]);
  }
  figure.value = median(growth);
  figure.note =
      fmt::format("{} against {}: {:.2f}", lengths.back().name, lengths.front().name, median(last));
  return figure;
}

std::string short_number(double tasks) {
  return tasks >= 1e6 ? fmt::format("{:g}m", tasks / 1e6) : fmt::format("{:g}k", tasks / 1e3);
}

}  // namespace

std::vector<SpeedFigure> measure_building(const FigureOptions& options,
                                          const std::vector<double>& tasks) {
  std::vector<SpeedFigure> figures;
  for (const Family& family : families) {
    std::vector<Length> lengths;
    for (const double count : tasks)
      lengths.push_back(
          {short_number(count), problem_of(family, micro_batches_for(family, count)), 0, {}, {}});
    for (int round = 0; round < options.rounds; ++round) {
      for (Length& length : lengths) measure(family, options.seconds, length);
    }
    for (const Length& length : lengths) figures.push_back(figure_of(family, length));
    figures.push_back(growth_of(family, lengths));
  }
  return figures;
}

}  // namespace spillway
