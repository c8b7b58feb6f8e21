// Stages of a pipeline: models of some layers, and schedules that wait for each other, but never
// for ever.
#include "policies/model/stages.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "policies/model/units.hpp"
#include "policies/schedule/messages.hpp"
#include "tests/policies/dataflow.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/policies/movement/orders.hpp"
#include "tests/policies/races.hpp"
#include "tests/policies/random_policy.hpp"
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
    const bool has_norms = schedule.problem().workload.needs_norms();
    for (const std::string& error :
         {find_overlap(schedule), find_race(schedule), find_state_write_error(schedule),
          has_norms ? "" : find_dataflow_error(schedule)}) {
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
         {"gpipe", "1f1b", "interleaved", "interleaved:chunks=4", "zb-h1",
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

TEST_CASE("Stages of any legal choice: every task reads what it must, nobody waits for ever") {
  std::size_t built = 0, split = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    std::mt19937_64 random(seed);
    const int stages = 2 + static_cast<int>(random() % 3);
    Problem problem = in_stages(tiny_problem(stages * (1 + static_cast<int>(random() % 3)),
                                             1 + static_cast<int>(random() % 5),
                                             random() % 2 ? Precision::bf16 : Precision::fp32),
                                stages);
    problem.workload.gradient = random() % 2 ? GradientWidth::bits32 : GradientWidth::automatic;
    if (random() % 2 == 0) make_llama(problem.model, random());
    const auto policy = make_random_policy({seed, random() % 2 == 0});
    INFO("seed " << seed);
    std::vector<Schedule> all;
    try {
      for (problem.rank = 0; problem.rank < stages; ++problem.rank)
        all.push_back(build_schedule(problem.of_stage(1), *policy, 2));
    } catch (const InputError& error) {
      // Orders of two stages need not suit each other.
      REQUIRE_THAT(error.what(), Catch::Contains("waits for ever"));
      continue;
    }
    REQUIRE(find_error(all) == "");
    ++built;
    for (const Schedule& schedule : all) {
      for (const Task& task : schedule.tasks()) split += task.kind == TaskKind::weight_gradient;
    }
  }
  CHECK(built > 50);
  CHECK(split > 500);
}

TEST_CASE("In zb-h1 gradients are sent before those of the weights are made, as many as wait") {
  const std::vector<Schedule> stages =
      schedules_of_stages(in_stages(tiny_problem(8, 6), 4), "zb-h1", 1);
  for (std::size_t stage = 0; stage < 4; ++stage) {
    INFO("stage " << stage);
    std::map<int, std::size_t> inputs, weights, sent;  // by micro-batch: of its first layer
    const auto tasks = stages[stage].tasks();
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      if (tasks[t].kind == TaskKind::input_gradient) inputs[tasks[t].micro_batch] = t;
      if (tasks[t].kind == TaskKind::weight_gradient) weights[tasks[t].micro_batch] = t;
      if (tasks[t].lane == Lane::stage_gradient_out && tasks[t].micro_batch >= 0)
        sent[tasks[t].micro_batch] = t;
      CHECK(tasks[t].kind != TaskKind::backward);
    }
    CHECK(inputs.size() == 6);
    CHECK(weights.size() == 6);
    CHECK(sent.size() == (stage == 0 ? 0 : 6));
    for (const auto& [m, at] : sent) CHECK(at < weights[m]);
    // As many micro-batches later as there are stages before it.
    for (int m = 0; m + static_cast<int>(stage) < 6; ++m) {
      CHECK(inputs[m + static_cast<int>(stage)] < weights[m]);
      if (m + static_cast<int>(stage) + 1 < 6)
        CHECK(weights[m] < inputs[m + static_cast<int>(stage) + 1]);
    }
  }
}

TEST_CASE("Gradients of weights come once, after those of inputs, and from all micro-batches") {
  const Problem problem = in_stages(tiny_problem(4, 2), 2).of_stage(1);
  const auto order = [&](const std::function<void(Step&)>& last) {
    return [=](Step& step) {
      for (const int m : step.ascending()) {
        for (const int layer : step.upward()) step.forward(layer, m);
        for (const int layer : step.downward()) step.input_gradient(layer, m);
      }
      last(step);
      for (const int layer : step.upward()) step.update(layer);
      for (const int unit : step.outer()) step.update(unit);
    };
  };
  const auto check = [&](const std::function<void(Step&)>& last, const char* why) {
    check_error([&] { work_of(problem, Plan{}, 1, order(last)); },
                std::string("the policy's order of work: step 0: weight_gradient of layer ") + why,
                "a call of Step needs");
  };
  check([](Step& step) { step.weight_gradient(0, 0); }, "0, micro-batch 1: it is missing");
  check(
      [](Step& step) {
        step.weight_gradient(1, 1);
        step.weight_gradient(1, 1);
      },
      "1, micro-batch 1: it is there already");
  check([](Step& step) { step.weight_gradient(2, 0); }, "2, micro-batch 0: layers are 0 to 1");
  check_error([&] { work_of(problem, Plan{}, 1, [](Step& step) { step.weight_gradient(1, 0); }); },
              "the policy's order of work: step 0: weight_gradient of layer 1, micro-batch 0: the "
              "gradient of its input comes first",
              "a call of Step needs");
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
