// A finished schedule: its graph, its texts, its fingerprint, and what it says when it does not
// fit.
#include <catch2/catch.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <regex>
#include <sstream>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "policies/common/policy.hpp"
#include "policies/schedule/dependency_graph.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

using Edge = std::pair<std::uint32_t, std::uint32_t>;

std::vector<Edge> random_edges(std::mt19937& random, std::uint32_t tasks) {
  std::vector<Edge> edges;
  for (std::uint32_t to = 1; to < tasks; ++to) {
    for (std::uint32_t from = 0; from < to; ++from) {
      if (random() % 10 == 0) edges.emplace_back(from, to);
    }
  }
  return edges;
}

std::int64_t weight_of(std::span<const TaskId> path, std::span<const std::int64_t> weights) {
  return std::accumulate(path.begin(), path.end(), std::int64_t{0},
                         [&](std::int64_t sum, TaskId task) { return sum + weights[task]; });
}

std::size_t count_of(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size()))
    ++count;
  return count;
}

std::string dot_of(const Schedule& schedule) {
  std::ostringstream out;
  schedule.write_dot(out);
  return out.str();
}

}  // namespace

TEST_CASE("The graph holds its edges, in a topological order that agrees with them") {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const std::uint32_t tasks = 60;
    const std::vector<Edge> edges = random_edges(random, tasks);
    std::vector<std::uint32_t> counts(tasks, 0), sources;
    for (const auto& [from, to] : edges) {
      ++counts[to];
      sources.push_back(from);
    }
    const DependencyGraph graph(counts, sources);
    std::vector<Edge> held;
    for (std::uint32_t task = 0; task < tasks; ++task) {
      const auto next = graph.successors(task);
      CHECK(std::is_sorted(next.begin(), next.end()));
      for (const std::uint32_t to : next) held.emplace_back(task, to);
    }
    std::vector<Edge> given = edges;
    std::sort(given.begin(), given.end());
    CHECK(held == given);
    CHECK(graph.edge_count() == edges.size());

    const std::vector<std::uint32_t> order = graph.topological_order();
    REQUIRE(order.size() == tasks);
    std::vector<std::uint32_t> place(tasks, tasks);
    for (std::uint32_t i = 0; i < tasks; ++i) place[order[i]] = i;
    CHECK(std::count(place.begin(), place.end(), tasks) == 0);  // every task is in it
    CHECK(std::all_of(edges.begin(), edges.end(),
                      [&](const Edge& e) { return place[e.first] < place[e.second]; }));
  }
}

TEST_CASE("The critical path is a path, and none is longer") {
  for (const std::string& policy : policy_settings()) {
    INFO(policy << ", weights of seed 11");
    const Schedule schedule = build_schedule(tiny_problem(3, 2), policy, 2);
    const auto tasks = schedule.tasks();
    std::mt19937 random(11);
    std::vector<std::int64_t> weights(tasks.size());
    for (std::int64_t& weight : weights) weight = static_cast<std::int64_t>(random() % 1000);

    // The longest path that ends with each task, over edges and lane order.
    std::vector<std::int64_t> longest(tasks.size(), 0);
    std::array<TaskId, lane_count> last;
    last.fill(none);
    std::vector<std::vector<TaskId>> before(tasks.size());
    for (TaskId id = 0; id < tasks.size(); ++id) {
      TaskId& on_lane = last[static_cast<std::size_t>(tasks[id].lane)];
      if (on_lane != none) before[id].push_back(on_lane);
      on_lane = id;
      for (const TaskId next : schedule.successors(id)) before[next].push_back(id);
    }
    for (TaskId id = 0; id < tasks.size(); ++id) {
      for (const TaskId earlier : before[id]) longest[id] = std::max(longest[id], longest[earlier]);
      longest[id] += weights[id];
    }

    const std::vector<TaskId> path = schedule.critical_path(weights);
    CHECK(weight_of(path, weights) == *std::max_element(longest.begin(), longest.end()));
    for (std::size_t i = 1; i < path.size(); ++i) {
      const auto& possible = before[path[i]];
      CHECK(std::count(possible.begin(), possible.end(), path[i - 1]) > 0);
    }
  }
}

TEST_CASE("The fingerprint tells schedules apart and is the same for the same") {
  const auto fingerprint = [](int layers, int micro_batches, const std::string& policy, int steps) {
    return build_schedule(tiny_problem(layers, micro_batches), policy, steps).fingerprint();
  };
  std::vector<std::uint64_t> all;
  for (const std::string policy :
       {"resident", "zero-infinity", "fuyou", "greedysnake", "greedysnake:alpha=0.5"}) {
    for (const int layers : {2, 3}) {
      for (const int steps : {1, 2}) all.push_back(fingerprint(layers, 2, policy, steps));
    }
  }
  CHECK(fingerprint(2, 2, "greedysnake", 2) == fingerprint(2, 2, "greedysnake:alpha=0.25", 2));
  std::sort(all.begin(), all.end());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
}

TEST_CASE("A task is described by kind, what it moves, layer, micro-batch and step") {
  const Schedule schedule = build_schedule(tiny_problem(2, 2), "zero-infinity", 2);
  std::vector<std::string> texts;
  for (TaskId id = 0; id < schedule.tasks().size(); ++id) texts.push_back(schedule.describe(id));
  for (const char* expected :
       {"forward layer 1 micro-batch 1 step 1", "embed_forward embedding micro-batch 0 step 0",
        "read parameters layer 0 step 0", "write optimizer_state layer 1 step 1",
        "d2h gradient layer 1 step 0", "h2d checkpoint layer 0 micro-batch 1 step 1"}) {
    INFO(expected);
    CHECK(std::count(texts.begin(), texts.end(), expected) >= 1);
  }
}

TEST_CASE("The DOT text has a node per task and an arrow per edge") {
  const Schedule schedule = build_schedule(tiny_problem(2, 2), "greedysnake", 2);
  const std::string dot = dot_of(schedule);
  CHECK(dot.rfind("digraph", 0) == 0);
  CHECK(count_of(dot, "[label=") == schedule.tasks().size());
  CHECK(count_of(dot, "->") == schedule.edge_count());
  for (TaskId id = 0; id < schedule.tasks().size(); ++id) {
    const std::string node = fmt::format("\n{}[label=\"{}\n{}\"", id, schedule.describe(id),
                                         to_string(schedule.tasks()[id].lane));
    CHECK(count_of(dot, node) == 1);
    for (const TaskId next : schedule.successors(id))
      CHECK(count_of(dot, fmt::format("\n{}->{} ", id, next)) == 1);
  }
}

TEST_CASE("Graphviz accepts the DOT text") {
  if (std::system("command -v dot >/dev/null 2>&1") != 0) {
    WARN("skipped: Graphviz is not installed (apt-get install graphviz)");
    return;
  }
  FILE* program = popen("dot -Tcanon >/dev/null", "w");
  REQUIRE(program != nullptr);
  const std::string dot = dot_of(build_schedule(tiny_problem(1, 1), "greedysnake", 2));
  CHECK(std::fwrite(dot.data(), 1, dot.size(), program) == dot.size());
  CHECK(pclose(program) == 0);
}

TEST_CASE("A tiny schedule explained") {
  // One layer of 14336 elements, an embedding of 4096: 18432 elements, 2 bytes each as parameters,
  // 12 as state.
  std::ostringstream out;
  build_schedule(tiny_problem(1, 1), "zero-offload", 2).write_explain(out);
  const std::string text = std::regex_replace(out.str(), std::regex(" +"), " ");  // columns apart
  INFO(text);
  for (const char* line : {
           "tiny on plenty with policy zero-offload: 2 sequences of 16 tokens a step in 1 "
           "micro-batch\n",
           "At rest:\n",
           " parameters gpu 36.86 kB\n",
           " optimizer_state host 221.18 kB\n",
           "Memory, peak of capacity:\n",
           "Step 2 of 2 in program order",
           "gpu.compute embed_forward embedding micro-batch 0",
           "gpu.compute forward layer 0 micro-batch 0",
           "gpu.compute head embedding micro-batch 0",
           "gpu.compute backward layer 0 micro-batch 0",
           "pcie.d2h d2h gradient layer 0 28.67 kB",
           "cpu.optimizer optimizer layer 0 0.00614M params",
           "pcie.h2d h2d parameters layer 0 12.29 kB",
       }) {
    INFO(line);
    CHECK(count_of(text, line) == 1);
  }
  CHECK(count_of(text, "Step 0") == 0);  // one step only, the steady one
  CHECK(count_of(text, "DOES NOT FIT") == 0);
}

TEST_CASE("An explanation says what does not fit") {
  Problem problem = tiny_problem(1, 1);
  problem.machine.host.memory = 4096;
  std::ostringstream out;
  build_schedule(problem, "zero-offload", 2).write_explain(out);
  CHECK(count_of(out.str(), "of 4.10 kB  DOES NOT FIT") == 1);
}

namespace {

// Gives the problem the memory that the hint of a FitError asks for.
void apply(const std::string& hint, Problem& problem) {
  const std::regex option("(gpu\\.memory|host\\.memory|ssd\\.capacity) = ([0-9.]+[a-zA-Z]+)");
  int found = 0;
  for (std::sregex_iterator it(hint.begin(), hint.end(), option), end; it != end; ++it, ++found) {
    const std::uint64_t bytes = parse_bytes((*it)[2].str());
    const char which = (*it)[1].str()[0];
    if (which == 'g') problem.machine.gpu.memory = bytes;
    if (which == 'h') problem.machine.host.memory = bytes;
    if (which == 's') problem.machine.ssd.capacity = bytes;
  }
  INFO(hint);
  CHECK(found > 0);
}

}  // namespace

TEST_CASE(
    "What does not fit names tier, bytes and shortfall, and the setting it names makes it fit") {
  struct Limit {
    const char* tier;
    std::uint64_t gpu, host, ssd;
  };
  for (const Limit& limit :
       {Limit{"gpu", 20480, plenty, plenty}, Limit{"host", plenty, 12288, plenty},
        Limit{"ssd", plenty, plenty, 8192}, Limit{"gpu", 20480, 12288, 8192},
        Limit{"host", plenty, 12288, 0}, Limit{"gpu", 20480, plenty, 0}}) {
    for (const std::string& policy : policy_settings()) {
      Problem problem = tiny_problem(3, 2);
      problem.machine.gpu.memory = limit.gpu;
      problem.machine.host.memory = limit.host;
      problem.machine.ssd.capacity = limit.ssd;
      INFO(policy << ", gpu " << limit.gpu << ", host " << limit.host << ", ssd " << limit.ssd);
      const Schedule schedule = build_schedule(problem, policy, 3);
      if (schedule.fits()) {
        CHECK_NOTHROW(schedule.require_fit());
        continue;
      }
      try {
        schedule.require_fit();
        FAIL("no FitError");
      } catch (const FitError& error) {
        const std::string what = error.what();
        INFO(what << "\n" << error.hint());
        // First what lacks most, of what there is; every other tier that lacks is named, too.
        std::map<double, Tier, std::greater<>> lacking;
        for (const Tier tier : {Tier::ssd, Tier::host, Tier::gpu}) {
          const TierUse& use = schedule.use(tier);
          if (use.peak_bytes > use.capacity_bytes)
            lacking[static_cast<double>(use.peak_bytes) /
                    static_cast<double>(std::max<std::uint64_t>(1, use.capacity_bytes))] = tier;
        }
        const Tier most = lacking.begin()->second;
        for (const auto& [ratio, tier] : lacking)
          CHECK(what.find(fmt::format("{} in {} memory", tier == most ? "does not fit" : "nor",
                                      to_string(tier))) != std::string::npos);
        const TierUse& use = schedule.use(most);
        CHECK(what.find(fmt::format("({} bytes)", use.peak_bytes)) != std::string::npos);
        CHECK(what.find("largest at the peak: ") != std::string::npos);
        apply(error.hint(), problem);
        CHECK(build_schedule(problem, policy, 3).fits());
      }
    }
  }
}

TEST_CASE("the critical path of times whose sum no number holds is the whole path all the same") {
  const Schedule schedule = build_schedule(tiny_problem(2, 1), "resident", 1);
  // One forward and one backward of a layer that take 190 years each: one after the other, 380.
  std::vector<std::int64_t> weights(schedule.tasks().size(), 0);
  std::vector<TaskId> slow;
  for (const TaskKind kind : {TaskKind::forward, TaskKind::backward}) {
    TaskId id = 0;
    while (schedule.tasks()[id].kind != kind) ++id;
    weights[id] = 6'000'000'000'000'000'000;
    slow.push_back(id);
  }
  const std::vector<TaskId> path = schedule.critical_path(weights);
  for (const TaskId id : slow) CHECK(std::count(path.begin(), path.end(), id) == 1);
}
