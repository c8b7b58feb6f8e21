// Several ranks: every policy, and every legal choice, computes on each what training with
// everything in one memory would.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <random>

#include "tests/policies/check_schedule.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/policies/random_policy.hpp"
#include "tests/policies/ranks/ranks_schedules.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

constexpr Ranks rank_grid[] = {{2, 1}, {1, 2}, {4, 1}, {2, 2}, {3, 1}};

std::string text_of(const Ranks& ranks) {
  return fmt::format("{} ranks by {} nodes", ranks.inside, ranks.across);
}

// All that is asked of one rank's schedule, but for what it computes.
std::string find_error_of_one(const Schedule& schedule) {
  for (const std::string& error : {find_overlap(schedule), find_race(schedule),
                                   find_state_write_error(schedule), find_vain_write(schedule)}) {
    if (!error.empty()) return error;
  }
  return "";
}

std::string find_error(const std::vector<Schedule>& schedules, const StatedShards& stated) {
  for (const Schedule& schedule : schedules) {
    const std::string error = find_error_of_one(schedule);
    if (!error.empty()) return fmt::format("rank {}: {}", schedule.problem().rank, error);
  }
  const std::string homes = find_ranks_home_error(schedules, stated);
  return homes.empty() ? find_ranks_dataflow_error(schedules, stated) : homes;
}

Plan plan_of(const Problem& problem, const std::string& policy) {
  return make_policy(policy)->plan(problem, Costs(problem));
}

}  // namespace

TEST_CASE("Every policy on several ranks is free of races and computes what it must on each") {
  for (const Ranks& ranks : rank_grid) {
    for (const int micro_batches : {1, 3}) {
      const Problem problem = among(tiny_problem(3, micro_batches), ranks);
      for (const std::string& policy : policy_settings()) {
        INFO(policy << ", " << text_of(ranks) << ", " << micro_batches << " micro-batches");
        const std::vector<Schedule> schedules = schedules_of_ranks(problem, policy, 3);
        REQUIRE(find_error(schedules, stated_shards(problem, plan_of(problem, policy))) == "");
      }
    }
  }
}

TEST_CASE("So is it where most of the model is frozen, which ranks share out, too") {
  for (const Ranks& ranks : {Ranks{2, 1}, Ranks{3, 1}, Ranks{2, 2}}) {
    Problem adapters = among(tiny_problem(3, 2), ranks), last = among(tiny_problem(4, 2), ranks);
    adapters.model.lora_rank = 4 * ranks.size();
    last.model.frozen_layers = 2;
    Problem apart = last;
    make_llama(apart.model, 3);
    apart.model.tied = false;
    apart.model.ffn = 128;
    for (const Problem& problem : {adapters, last, apart}) {
      for (const std::string& policy : policy_settings()) {
        INFO(policy << ", " << text_of(ranks) << ", " << problem.model.frozen_layers
                    << " frozen layers");
        const std::vector<Schedule> schedules = schedules_of_ranks(problem, policy, 3);
        REQUIRE(find_error(schedules, stated_shards(problem, plan_of(problem, policy))) == "");
      }
    }
  }
}

TEST_CASE("So is it with norms of gradients, 32-bit numbers, one layer and eight ranks") {
  Problem problem = among(tiny_problem(1, 2, Precision::fp32), {4, 2});
  for (const ClipScope scope : {ClipScope::global, ClipScope::layer}) {
    problem.workload.clip = {scope, 1};
    for (const char* policy : {"resident", "zero-offload", "zero-infinity", "fuyou",
                               "greedysnake:alpha=0", "deep-optimizer-states", "spillway"}) {
      INFO(policy);
      const std::vector<Schedule> schedules = schedules_of_ranks(problem, policy, 2);
      REQUIRE(find_error(schedules, stated_shards(problem, plan_of(problem, policy))) == "");
    }
  }
}

// Parameters' shards in gradients' in optimizer state's: AMSP's meshes (arXiv 2311.00257).
TEST_CASE("Every nesting of meshes of eight ranks, on the GPU") {
  const Problem problem = among(tiny_problem(2, 2), {4, 2});
  const std::vector<Mesh> meshes = {{1, 1}, {2, 1}, {4, 1}, {4, 2}};
  std::size_t checked = 0;
  for (std::size_t p = 0; p < meshes.size(); ++p) {
    for (std::size_t g = p; g < meshes.size(); ++g) {
      for (std::size_t s = g; s < meshes.size(); ++s) {
        for (const char* more : {"", ",shards.all_reduce=on",
                                 ",shards.reduce_overlaps=off,shards.spread_overlaps=off"}) {
          // Sums of whole layers may go with any parameters.
          for (const Mesh& gradients : {meshes[g], Mesh{}}) {
            const std::string policy = fmt::format(
                "spillway:parameters.rest=gpu:1,optimizer_state.rest=gpu:1,"
                "shards.parameters={},shards.gradients={},shards.optimizer_state={}{}",
                to_string(meshes[p]), to_string(gradients), to_string(meshes[s]), more);
            INFO(policy);
            const std::vector<Schedule> schedules = schedules_of_ranks(problem, policy, 2);
            REQUIRE(find_error(schedules, {gradients, meshes[s], more[0] != 0 && more[8] == 'a'}) ==
                    "");
            ++checked;
          }
        }
      }
    }
  }
  CHECK(checked == 120);
}

TEST_CASE("Meshes that do not lie in each other are refused") {
  const Problem problem = among(tiny_problem(2, 1), {4, 2});
  const auto built = [&](const std::string& shards) {
    return build_schedule(problem, "spillway:parameters.rest=gpu:1," + shards, 2);
  };
  CHECK_THROWS_AS(built("shards.optimizer_state=3x1"), InputError);
  CHECK_THROWS_AS(built("shards.optimizer_state=2x2"), InputError);
  CHECK_THROWS_AS(built("shards.optimizer_state=2x1,shards.parameters=4x1"), InputError);
  CHECK_THROWS_AS(built("shards.optimizer_state=2x1,shards.gradients=4x1"), InputError);
  CHECK_THROWS_AS(built("shards.gradients=2x1,shards.parameters=4x1"), InputError);
  CHECK_NOTHROW(built("shards.parameters=2x1,shards.gradients=4x1"));
}

// As DeepSpeed's ranks sum gradients: each micro-batch's is reduced, and a shard of the sum rests
// where the plan says, also on the SSD.
TEST_CASE("Sums of gradients in shards, in every memory") {
  const std::string on_ssd =
      "gradients.on_gpu=off,gradients.on_ssd=on,optimizer_state.rest=ssd:1,"
      "optimizer_state.embedding=ssd:1,optimizer.own_phase=on,order.updates=ascending,order."
      "delayed=0,order.row=1,";
  const std::string memories[] = {"gradients.on_gpu=off",
                                  "gradients.on_gpu=off,gradients.bucket=10000",
                                  on_ssd + "gradients.bucket=50000,optimizer_state.slots=2",
                                  on_ssd + "gradients.bucket=1,optimizer_state.slots=3"};
  for (const Ranks& ranks : {Ranks{2, 1}, Ranks{3, 1}, Ranks{2, 2}}) {
    for (const int micro_batches : {1, 3}) {
      const Problem problem = among(tiny_problem(3, micro_batches), ranks);
      for (const std::string& memory : memories) {
        const std::string policy =
            fmt::format("spillway:parameters.rest=host:0.5+ssd:0.5,{},shards.gradients={}", memory,
                        to_string(ranks));
        INFO(policy << ", " << micro_batches << " micro-batches");
        const std::vector<Schedule> schedules = schedules_of_ranks(problem, policy, 3);
        REQUIRE(find_error(schedules, stated_shards(problem, plan_of(problem, policy))) == "");
      }
    }
  }
}

// Each rank would choose by its own shard, which may be a cell smaller than another's.
TEST_CASE("Ranks keep the same in memory that is left over, however little there is") {
  for (const Ranks& ranks : {Ranks{2, 1}, Ranks{3, 1}, Ranks{2, 2}}) {
    const Problem plenty_of_it = among(tiny_problem(5, 3), ranks);
    for (const char* policy :
         {"zero-infinity:retention=nearest", "fuyou:swap=all,retention=nearest",
          "greedysnake:alpha=0.3,optimizer_ssd=1,checkpoints_ssd=1,parameters_ssd=1,"
          "retention=nearest"}) {
      const Schedule plain =
          build_schedule(plenty_of_it, with_policy_option(policy, "retention", "never"), 3);
      for (std::uint64_t more = 0; more < 400'000; more += 28'672) {
        Problem problem = tightened(plain);
        for (std::uint64_t* bytes : {&problem.machine.gpu.memory, &problem.machine.host.memory})
          *bytes += more;
        INFO(policy << ", " << text_of(ranks) << ", " << more << " bytes left over");
        const std::vector<Schedule> schedules = schedules_of_ranks(problem, policy, 3);
        REQUIRE(find_error(schedules, stated_shards(problem, plan_of(problem, policy))) == "");
      }
    }
  }
}

namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

Problem ranks_problem_of(std::mt19937_64& random) {
  const auto between = [&](std::uint64_t low, std::uint64_t high) {
    return static_cast<int>(low + random() % (high - low + 1));
  };
  constexpr Ranks any[] = {{2, 1}, {2, 1}, {1, 2}, {4, 1}, {2, 2}, {3, 1}, {1, 3}, {4, 2}};
  Problem problem =
      tiny_problem(between(1, 4), between(1, 4), random() % 2 ? Precision::bf16 : Precision::fp32);
  problem.workload.gradient = random() % 2 ? GradientWidth::bits32 : GradientWidth::automatic;
  problem.workload.moments = random() % 2 ? MomentWidth::bf16 : MomentWidth::fp32;
  const GradientClip clips[] = {{}, {ClipScope::global, 1}, {ClipScope::layer, 1}};
  problem.workload.clip = clips[random() % 3];
  if (random() % 4 == 0) problem.workload.on_nonfinite = OnNonFinite::skip;
  if (random() % 2 == 0) make_llama(problem.model, random());
  problem.model.ffn = std::max<std::int64_t>(problem.model.ffn, 128);
  problem = among(problem, any[random() % std::size(any)]);
  const std::uint64_t frozen = random() % 4;
  if (frozen == 0) problem.model.lora_rank = 4 * problem.workload.ranks + between(0, 3);
  if (frozen == 1 && problem.model.layers > 1)
    problem.model.frozen_layers = between(1, static_cast<std::uint64_t>(problem.model.layers) - 1);
  return problem;
}

}  // namespace

TEST_CASE("Any legal choice on several ranks computes what it must on each") {
  const std::uint64_t first = from_environment("SPILLWAY_TEST_SEED", std::random_device{}());
  const std::uint64_t seeds = from_environment("SPILLWAY_TEST_SEEDS", 250);
  INFO("first seed " << first);
  std::map<TaskKind, std::size_t> kinds;
  std::size_t adds = 0, ordered = 0;
  // Further, up to ten times, until the rarest choice was drawn.
  const auto goes_on = [&](std::uint64_t done) {
    return done < seeds || (seeds >= 250 && ordered == 0 && done < 10 * seeds);
  };
  for (std::uint64_t seed = first; goes_on(seed - first); ++seed) {
    std::mt19937_64 random(seed);
    const Problem problem = ranks_problem_of(random);
    const bool ascending = random() % 2 == 0;
    INFO("seed " << seed << ", " << problem.model.layers << " layers, "
                 << problem.workload.micro_batches() << " micro-batches, "
                 << text_of(problem.ranks()) << ", rank " << problem.model.lora_rank << ", "
                 << problem.model.frozen_layers << " frozen layers");
    std::vector<Schedule> schedules;
    for (int rank = 0; rank < problem.ranks().size(); ++rank)
      schedules.push_back(
          build_schedule(of_rank(problem, rank), *make_random_policy({seed, ascending}), 3));
    const Plan plan = make_random_policy({seed, ascending})->plan(problem, Costs(problem));
    REQUIRE(find_error(schedules, stated_shards(problem, plan)) == "");
    for (const Task& task : schedules.front().tasks()) {
      ++kinds[task.kind];
      adds += task.kind == TaskKind::reduce_scatter && !task.first_micro_batch;
    }
    for (const RankGroup& group : schedules.front().groups()) ordered += group.inner.size() > 1;
  }
  if (seeds < 250) return;
  // The choices did happen.
  for (const TaskKind kind : {TaskKind::all_gather, TaskKind::reduce_scatter, TaskKind::all_reduce,
                              TaskKind::norms_reduce, TaskKind::write, TaskKind::gradient_norm})
    CHECK(kinds[kind] > 50);
  CHECK(adds > 100);
  CHECK(ordered > 0);
}

// The check itself.
namespace {

// Two ranks of two micro-batches, of which one is told another one's story.
std::string error_of(const std::vector<Schedule>& schedules) {
  return find_ranks_dataflow_error(schedules, {Mesh{}, Mesh{2, 1}, false});
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("The check of several ranks finds what is left out, in another order or another's") {
  const Problem problem = among(tiny_problem(2, 2), {2, 1});
  const auto of = [&](int rank, const std::string& policy) {
    return build_schedule(of_rank(problem, rank), policy, 2);
  };
  CHECK(error_of({of(0, "resident"), of(1, "resident")}) == "");
  // Twice the same rank: its own shard, and its own micro-batches again.
  CHECK(contains(error_of({of(0, "resident"), of(0, "resident")}), "adds a micro-batch twice"));
  // Ranks that do not meet.
  CHECK(contains(error_of({of(0, "resident"), of(1, "zero-infinity")}), "rank 0 "));
  // The stated sum is that of reduce_scatter, in two groups of ranks.
  CHECK(contains(
      find_ranks_dataflow_error(std::vector<Schedule>{of(0, "resident"), of(1, "resident")},
                                {Mesh{2, 1}, Mesh{2, 1}, false}),
      "the gradient is sum[r0m0+r0m1,r1m0+r1m1], not"));
  CHECK(find_ranks_home_error(std::vector<Schedule>{of(0, "resident"), of(1, "resident")},
                              {Mesh{}, Mesh{2, 1}, false}) == "");
  CHECK(contains(find_ranks_home_error(std::vector<Schedule>{of(0, "resident"), of(0, "resident")},
                                       {Mesh{}, Mesh{2, 1}, false}),
                 "optimizer state of unit 0 is cut at"));
}
