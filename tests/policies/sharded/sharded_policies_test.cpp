// Policies for several ranks with everything on the GPU: what each of their collectives moves, in
// what order, and that one rank is trained as policy resident trains it.
#include <catch2/catch.hpp>

#include <map>
#include <string>
#include <vector>

#include "policies/common/policy.hpp"
#include "policies/machine/rank_share.hpp"
#include "policies/model/units.hpp"
#include "policies/movement/shards.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/policies/races.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

constexpr int L = 3, M = 4;

// Three layers of GPT-2 on two nodes of two GPUs, four micro-batches each.
Problem four_ranks() {
  Problem problem = tiny_problem(L, M);
  problem.model = load_model("gpt2-124m", {"layers=3"});
  problem.machine.cluster.nodes = problem.machine.cluster.gpus = 2;
  problem.machine.cluster.nvlink = 200e9;
  problem.machine.cluster.nic = 50e9;
  problem.machine = rank_share(problem.machine, 2);
  problem.workload.ranks = 4;
  problem.workload.batch *= 4;
  return problem;
}

// Of a step in the middle: calls and bytes of the whole, by lane.
struct Traffic {
  int calls = 0;
  std::uint64_t bytes = 0;
};
std::map<Lane, Traffic> traffic_of(const Schedule& schedule) {
  std::map<Lane, Traffic> all;
  for (const Task& task : schedule.tasks()) {
    if (!is_collective(task.kind) || task.step != 1) continue;
    ++all[task.lane].calls;
    all[task.lane].bytes += task.bytes;
  }
  return all;
}

const std::vector<std::string> sharded = {
    "zero:stage=1", "zero:stage=2",         "zero", "zero++", "mics", "fsdp", "fsdp:shard=hybrid",
    "amsp",         "amsp:spread=broadcast"};

}  // namespace

TEST_CASE("One rank is trained as policy resident does it: all on the GPU, nothing moves") {
  const Problem problem = tiny_problem(3, 4);
  const Schedule resident = build_schedule(problem, "resident", 3);
  for (const std::string& policy : sharded) {
    INFO(policy);
    const Schedule schedule = build_schedule(problem, policy, 3);
    CHECK(schedule.use(Tier::host).peak_bytes == 0);
    CHECK(schedule.use(Tier::gpu).peak_bytes == resident.use(Tier::gpu).peak_bytes);
    CHECK(schedule.tasks().size() == resident.tasks().size());
    for (const Task& task : schedule.tasks()) CHECK(task.lane == Lane::gpu_compute);
  }
}

TEST_CASE("What is gathered, reduced and spread in a step") {
  const Problem problem = four_ranks();
  const auto units = static_cast<int>(unit_count(problem.model));
  REQUIRE(units == L + 1);  // tied: the embedding has two sums
  const auto elements = [&](int unit) {
    return static_cast<std::uint64_t>(unit_elements(problem.model, unit));
  };
  const std::uint64_t layer = elements(0), embedding = elements(L);
  const std::uint64_t p = problem.parameter_bytes(), g = problem.gradient_bytes();
  // Forward and backward of every layer, but for the last one, whose backward comes at once, and
  // for layer 0, whose backward the next micro-batch's forward comes after.
  constexpr int gathers = M * (2 * L - 1) - (M - 1);
  // A shard per rank; updated parts are spread.
  const auto whole = traffic_of(build_schedule(problem, "zero:stage=1", 3));
  CHECK(whole.count(Lane::ranks_gather) == 0);
  CHECK(whole.at(Lane::ranks_reduce).calls == L + 2);
  CHECK(whole.at(Lane::ranks_reduce).bytes == (L * layer + 2 * embedding) * g);
  CHECK(whole.at(Lane::ranks_spread).calls == L + 1);
  CHECK(whole.at(Lane::ranks_spread).bytes == (L * layer + embedding) * p);
  // Gradients, too: reduced after every micro-batch.
  const auto two = traffic_of(build_schedule(problem, "zero:stage=2", 3));
  CHECK(two.at(Lane::ranks_reduce).calls == M * L + 2);
  CHECK(two.at(Lane::ranks_reduce).bytes == (M * L * layer + 2 * embedding) * g);
  CHECK(two.at(Lane::ranks_spread).bytes == (L * layer + embedding) * p);
  // Parameters, too: gathered for every use, and only the embedding is spread.
  const auto three = traffic_of(build_schedule(problem, "zero", 3));
  CHECK(three.at(Lane::ranks_gather).calls == gathers);
  CHECK(three.at(Lane::ranks_gather).bytes == gathers * layer * p);
  CHECK(three.at(Lane::ranks_reduce).bytes == (M * L * layer + 2 * embedding) * g);
  CHECK(three.at(Lane::ranks_spread).bytes == embedding * p);
  const auto fsdp = traffic_of(build_schedule(problem, "fsdp", 3));
  CHECK(fsdp.at(Lane::ranks_gather).bytes == gathers * layer * p);
  // Groups of a node: as ZeRO-3 inside, and at the end of the step their shards are added up over
  // the nodes; of the embedding, which is whole on all ranks, too.
  const auto half = [](std::uint64_t count) { return shard_of({0, count}, 2, 0).elements; };
  for (const char* policy : {"mics", "fsdp:shard=hybrid"}) {
    INFO(policy);
    const auto groups = traffic_of(build_schedule(problem, policy, 3));
    CHECK(groups.at(Lane::ranks_gather).bytes == gathers * layer * p);
    CHECK(groups.at(Lane::ranks_reduce).calls == M * L + 2 * 2);
    CHECK(groups.at(Lane::ranks_reduce).bytes ==
          (M * L * layer + 2 * (embedding + half(embedding))) * g);
    // On another lane than reductions of micro-batches, with what is spread of the embedding.
    CHECK(groups.at(Lane::ranks_spread).calls == L + 1);
    CHECK(groups.at(Lane::ranks_spread).bytes == L * half(layer) * g + embedding * p);
  }
  // AMSP: complete gradients are added up on all ranks, updated parameters spread in the node.
  const auto amsp = traffic_of(
      build_schedule(problem, "amsp:parameters=1x1,gradients=1x1,optimizer_state=2x1", 3));
  CHECK(amsp.count(Lane::ranks_gather) == 0);
  CHECK(amsp.at(Lane::ranks_reduce).bytes == (L * layer + 2 * embedding) * g);
  CHECK(amsp.at(Lane::ranks_spread).bytes == (L * layer + embedding) * p);
  // As the paper has it, each of both sends its part to the other.
  const auto sent = traffic_of(build_schedule(
      problem, "amsp:parameters=1x1,gradients=1x1,optimizer_state=2x1,spread=broadcast", 3));
  CHECK(sent.at(Lane::ranks_spread).calls == 2 * (L + 1));
  CHECK(sent.at(Lane::ranks_spread).bytes == (L * layer + embedding) * p);
}

TEST_CASE("zero++ gathers in two hops in forward, and inside the node in backward") {
  const Problem problem = four_ranks();
  const Schedule schedule = build_schedule(problem, "zero++", 3);
  int across = 0, inside = 0, reduced = 0;
  for (const Task& task : schedule.tasks()) {
    if (task.step != 1 || task.layer >= L) continue;
    if (!is_collective(task.kind)) continue;
    const RankGroup& group = schedule.groups()[task.group];
    if (task.kind == TaskKind::reduce_scatter) {
      ++reduced;
      CHECK(group == cut_first(shard_group({2, 2}), {2, 1}));
      continue;
    }
    const bool crosses = group.mesh == Mesh{1, 2};
    if (!crosses) CHECK(group == shard_group({2, 1}));
    ++(crosses ? across : inside);
  }
  // The nodes are crossed by forward alone; layer 0 stays where a backward is followed by its
  // forward.
  CHECK(across == M * L - (M - 1));
  CHECK(inside == M * (2 * L - 1) - (M - 1));
  CHECK(reduced == M * L);
}

TEST_CASE("Every policy of several ranks, for every rank: no race, and homes that cover all") {
  Problem problem = four_ranks();
  for (const std::string& policy : sharded) {
    for (const char* overlap : {"gather+reduce+spread", "none"}) {
      std::vector<std::uint64_t> kept(static_cast<std::size_t>(unit_count(problem.model)), 0);
      for (int rank = 0; rank < 4; ++rank) {
        problem.rank = rank;
        const std::string text =
            policy + (policy.find(':') == std::string::npos ? ":" : ",") + "overlap=" + overlap;
        INFO(text << ", rank " << rank);
        const Schedule schedule = build_schedule(problem, text, 3);
        CHECK(find_race(schedule) == "");
        CHECK(find_overlap(schedule) == "");
        for (const HomePart& home : schedule.homes()) {
          if (home.kind == BufferKind::optimizer_state)
            kept[static_cast<std::size_t>(home.unit)] += home.elements;
        }
      }
      // Every element is updated on as many ranks as there are copies of its shard, all alike.
      for (std::size_t unit = 0; unit < kept.size(); ++unit) {
        const auto whole =
            static_cast<std::uint64_t>(unit_elements(problem.model, static_cast<int>(unit)));
        CHECK(kept[unit] % whole == 0);
      }
    }
  }
}

TEST_CASE("The next layer is gathered before a layer runs, and the embedding is updated first") {
  const Schedule schedule = build_schedule(four_ranks(), "zero", 3);
  std::map<int, std::size_t> gathered, ran;
  std::vector<int> updated;
  for (std::size_t t = 0; t < schedule.tasks().size(); ++t) {
    const Task& task = schedule.tasks()[t];
    if (task.step != 1) continue;
    if (task.kind == TaskKind::optimizer) updated.push_back(task.layer);
    if (task.phase != Phase::forward) continue;
    if (task.kind == TaskKind::all_gather && gathered.count(task.layer) == 0)
      gathered[task.layer] = t;
    if (task.kind == TaskKind::forward && ran.count(task.layer) == 0) ran[task.layer] = t;
  }
  CHECK(gathered.at(1) < ran.at(0));
  CHECK(gathered.at(2) < ran.at(1));
  CHECK(gathered.at(2) > ran.at(0));  // no further ahead
  CHECK(updated == std::vector<int>{L, 0, 1, 2});
}

TEST_CASE("Meshes that do not go with the ranks, or with each other, are refused") {
  const Problem problem = four_ranks();
  const auto rejects = [&](const std::string& policy, const std::string& what) {
    INFO(policy);
    check_error([&] { build_schedule(problem, policy, 2); }, what, "");
  };
  rejects("mics:group=3x1",
          "shards of optimizer state among 3x1 do not divide the ranks among 2x2");
  rejects("mics:group=1x2", "shards of optimizer state among 1x2 span nodes without filling one");
  rejects("amsp:parameters=2x2,gradients=2x2,optimizer_state=2x1",
          "shards of gradients among 2x2 do not divide those of optimizer state among 2x1");
  rejects("zero++:second=1x2", "shards of second parameters among 1x2 span nodes");
}
