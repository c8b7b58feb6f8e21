// Stages of a pipeline: models of some layers, and schedules that wait for each other, but never
// for ever.
#include "policies/model/stages.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "policies/model/units.hpp"
#include "policies/schedule/messages.hpp"
#include "tests/policies/dataflow.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/policies/races.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

Problem in_stages(Problem problem, int stages) {
  problem.workload.pipeline = stages;
  problem.machine.cluster.gpus = stages;
  return problem;
}

std::vector<Schedule> schedules_of_stages(Problem problem, const std::string& policy, int steps) {
  std::vector<Schedule> all;
  for (problem.rank = 0; problem.rank < problem.workload.pipeline; ++problem.rank)
    all.push_back(build_schedule(problem, policy, steps));
  return all;
}

bool is_other_side(const Task& one, int stage, const Task& other, int other_stage) {
  return is_message(one.kind) && is_message(other.kind) && one.kind != other.kind &&
         one.lane == other_end(other.lane) && one.group == other_stage && other.group == stage &&
         one.bytes == other.bytes && one.micro_batch == other.micro_batch && one.step == other.step;
}

// Runs the stages one task after the other, in program order, with a message only where both sides
// are at it: stricter than lanes, which run ahead of each other. Where this comes to its end no
// edges that follow program order can make stages wait for each other for ever. Empty, or where it
// stops.
std::string find_wait_for_ever(const std::vector<Schedule>& stages) {
  std::vector<std::size_t> next(stages.size(), 0);
  const auto task_of = [&](std::size_t s) -> const Task* {
    return next[s] < stages[s].tasks().size() ? &stages[s].tasks()[next[s]] : nullptr;
  };
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    bool all_reduce = true;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const Task* task = task_of(s);
      for (; task && !is_message(task->kind) && !is_collective(task->kind); task = task_of(s)) {
        ++next[s];
        goes_on = true;
      }
      all_reduce = all_reduce && task && task->kind == TaskKind::norms_reduce;
      if (!task || !is_message(task->kind)) continue;
      const std::size_t other = task->group;
      const Task* theirs = task_of(other);
      if (!theirs || !is_other_side(*task, static_cast<int>(s), *theirs, static_cast<int>(other)))
        continue;
      ++next[s];
      ++next[other];
      goes_on = true;
    }
    for (std::size_t s = 0; all_reduce && s < stages.size(); ++s) ++next[s];
    goes_on = goes_on || all_reduce;
  }
  std::string stops;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (task_of(s))
      stops += fmt::format("stage {} at {}; ", s, stages[s].describe(static_cast<TaskId>(next[s])));
  }
  return stops;
}

std::string find_error(const std::vector<Schedule>& stages) {
  for (const Schedule& schedule : stages) {
    for (const std::string& error :
         {find_overlap(schedule), find_race(schedule), find_state_write_error(schedule)}) {
      if (!error.empty()) return fmt::format("stage {}: {}", schedule.problem().rank, error);
    }
  }
  return find_wait_for_ever(stages);
}

}  // namespace

TEST_CASE("Stages have the layers of the whole model, each once, and its units where they belong") {
  for (const bool tied : {true, false}) {
    ModelSpec whole = tiny_problem(12, 1).model;
    if (!tied) make_llama(whole, 3);
    whole.tied = tied;
    for (const int stages : {2, 3, 4}) {
      for (const int chunks : {1, 2, 3}) {
        if (whole.layers % (stages * chunks) != 0) continue;
        INFO(stages << " stages of " << chunks << " chunks, tied " << tied);
        std::map<std::int64_t, int> there;
        for (int stage = 0; stage < stages; ++stage) {
          const ModelSpec model = stage_of(whole, stages, stage, chunks);
          CHECK(whole_model(model) == whole);
          CHECK(has_embedding(model) == (stage == 0));
          CHECK(has_head(model) == (stage + 1 == stages));
          for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
            const std::int64_t of_whole = whole_unit(model, unit);
            if (unit_elements(model, unit) == 0) {
              CHECK(unit_here(model, of_whole) == -1);
              continue;
            }
            CHECK(unit_here(model, of_whole) == unit);
            CHECK(unit_elements(model, unit) == unit_elements(whole, of_whole));
            CHECK(unit_name(model, unit) == unit_name(whole, of_whole));
            ++there[of_whole];
          }
          for (std::int64_t layer = 0; layer < model.layers; ++layer) {
            const std::int64_t of_whole = whole_layer(model, layer);
            CHECK(receives_input(model, layer) ==
                  (of_whole > 0 && unit_here(model, of_whole - 1) == -1));
            CHECK(sends_output(model, layer) ==
                  (of_whole + 1 < whole.layers && unit_here(model, of_whole + 1) == -1));
          }
        }
        for (std::int64_t unit = 0; unit < unit_count(whole); ++unit)
          CHECK(there[unit] == (tied && unit == embedding_unit(whole) ? 2 : 1));
      }
    }
  }
}

TEST_CASE("Layers that do not go into the stages: the first stages have one more") {
  const ModelSpec whole = tiny_problem(7, 1).model;
  std::vector<std::int64_t> layers, firsts;
  for (int stage = 0; stage < 3; ++stage) {
    const ModelSpec model = stage_of(whole, 3, stage);
    layers.push_back(model.layers);
    firsts.push_back(whole_layer(model, 0));
  }
  CHECK(layers == std::vector<std::int64_t>{3, 2, 2});
  CHECK(firsts == std::vector<std::int64_t>{0, 3, 5});
  check_error([&] { stage_of(whole, 8, 0); }, "the 7 layers of tiny are not cut into 8 stages",
              "fewer stages");
  check_error([&] { stage_of(whole, 2, 0, 2); },
              "the 7 layers of tiny are not cut into 2 stages of 2", "chunks");
  ModelSpec adapted = whole;
  adapted.lora_rank = 2;
  check_error([&] { stage_of(adapted, 2, 0); }, "a pipeline trains all of a model", "adapters");
}

TEST_CASE("Stages of every policy are free of races and never wait for each other for ever") {
  for (const int stages : {2, 3, 4}) {
    for (const int micro_batches : {1, 3, 4}) {
      const Problem problem = in_stages(tiny_problem(2 * stages, micro_batches), stages);
      for (const std::string& policy : policy_settings()) {
        INFO(policy << ", " << stages << " stages, " << micro_batches << " micro-batches");
        const bool in_chunks = policy.rfind("interleaved", 0) == 0;
        if (in_chunks && (micro_batches % stages != 0 || policy.find("chunks=") != policy.npos)) {
          CHECK_THROWS_AS(schedules_of_stages(problem, policy, 2), InputError);
          continue;
        }
        REQUIRE(find_error(schedules_of_stages(problem, policy, 3)) == "");
      }
    }
  }
}

TEST_CASE("So it is with norms of gradients, uneven stages, chunks, a head of its own") {
  for (const ClipScope scope : {ClipScope::global, ClipScope::layer}) {
    Problem problem = in_stages(tiny_problem(12, 6, Precision::fp32), 3);
    problem.workload.clip = {scope, 1};
    for (const char* policy :
         {"gpipe", "1f1b", "interleaved", "interleaved:chunks=4",
          "1f1b:optimizer_state=ssd,parameters=ssd,checkpoints=ssd", "zero-infinity", "resident"}) {
      INFO(policy);
      problem.model.layers = 12;
      REQUIRE(find_error(schedules_of_stages(problem, policy, 3)) == "");
      if (std::string(policy).rfind("interleaved", 0) == 0) continue;
      problem.model.layers = 4;
      REQUIRE(find_error(schedules_of_stages(problem, policy, 2)) == "");
    }
    make_llama(problem.model, 3);
    problem.model.tied = false;
    problem.model.layers = 12;
    REQUIRE(find_error(schedules_of_stages(problem, "interleaved", 2)) == "");
  }
}

TEST_CASE("A stage of 1F1B holds as many micro-batches as there are stages from it on") {
  const Problem problem = in_stages(tiny_problem(4, 8), 4);
  const auto held = [&](const char* policy, std::size_t stage) {
    const std::vector<Schedule> stages = schedules_of_stages(problem, policy, 1);
    // Outputs of this stage that were sent and whose gradient has not come back.
    std::set<int> out;
    std::size_t most = 0;
    for (const Task& task : stages[stage].tasks()) {
      if (task.kind == TaskKind::forward) out.insert(task.micro_batch);
      most = std::max(most, out.size());
      if (task.kind == TaskKind::backward) out.erase(task.micro_batch);
    }
    return most;
  };
  for (std::size_t stage = 0; stage < 3; ++stage) {
    CHECK(held("1f1b", stage) == 4 - stage);
    CHECK(held("gpipe", stage) == 8);
  }
}
