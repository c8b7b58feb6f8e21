// Movement where part of a model is frozen.
#include <catch2/catch.hpp>
#include <map>

#include "policies/model/operators.hpp"
#include "policies/model/units.hpp"
#include "tests/policies/check_schedule.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

Problem with_adapters(Problem problem) {
  problem.model.lora_rank = 4;
  return problem;
}

Problem with_frozen_layers(Problem problem, std::int64_t layers) {
  problem.model.frozen_layers = layers;
  return problem;
}

// A llama with a head of its own.
Problem untied(Problem problem) {
  make_llama(problem.model, 3);
  problem.model.tied = false;
  return problem;
}

// Bytes by lane.
std::map<Lane, std::uint64_t> traffic(const Schedule& schedule) {
  std::map<Lane, std::uint64_t> bytes;
  for (const Task& task : schedule.tasks()) bytes[task.lane] += task.bytes;
  return bytes;
}

std::map<TaskKind, int> counts(const Schedule& schedule) {
  std::map<TaskKind, int> count;
  for (const Task& task : schedule.tasks()) ++count[task.kind];
  return count;
}

}  // namespace

TEST_CASE("Every policy trains adapters and last layers: no race, each task reads what it must") {
  for (const std::string& policy : policy_settings()) {
    for (const int micro_batches : {1, 3}) {
      const Problem tied = tiny_problem(4, micro_batches), apart = untied(tied);
      for (const Problem& problem :
           {with_adapters(tied), with_adapters(apart), with_frozen_layers(tied, 1),
            with_frozen_layers(apart, 1), with_frozen_layers(apart, 3)}) {
        INFO(policy << ", " << micro_batches << " micro-batches, rank " << problem.model.lora_rank
                    << ", " << problem.model.frozen_layers << " frozen layers");
        check_schedule(build_schedule(with_rates(problem), policy, 3));
      }
    }
  }
}

TEST_CASE("What is frozen has no backward below it, no gradient, no state, and is never written") {
  const Problem whole = untied(tiny_problem(4, 2));
  const std::string policy = "fuyou";
  const Schedule schedule = build_schedule(with_frozen_layers(whole, 3), policy, 2);
  CHECK(counts(build_schedule(whole, policy, 2))[TaskKind::backward] == 2 * 2 * 4);
  auto count = counts(schedule);
  CHECK(count[TaskKind::forward] == 2 * 2 * 4);
  CHECK(count[TaskKind::backward] == 2 * 2 * 1);
  CHECK(count[TaskKind::embed_backward] == 0);
  std::uint64_t updated = 0;
  for (const Task& task : schedule.tasks()) updated += task.params;
  const ModelSpec& model = schedule.problem().model;
  CHECK(updated == 2 * static_cast<std::uint64_t>(trained_elements(model, 3) +
                                                  trained_elements(model, head_unit(model))));
  for (const HomePart& home : schedule.homes()) {
    if (home.kind == BufferKind::optimizer_state) CHECK(trained_elements(model, home.unit) > 0);
    if (!home.frozen) continue;
    for (const Task& task : schedule.tasks()) {
      for (const Access& access : schedule.accesses(task))
        CHECK((access.buffer != home.where.buffer.id || access.mode == Mode::read));
    }
  }
}

TEST_CASE("Adapters take the traffic of their own size, and the model is only read") {
  const Problem whole = untied(tiny_problem(4, 2)), adapted = with_adapters(whole);
  const auto of_whole = traffic(build_schedule(whole, "fuyou", 2));
  auto bytes = traffic(build_schedule(adapted, "fuyou", 2));
  const ModelSpec& model = adapted.model;
  const auto adapters = static_cast<std::uint64_t>(4 * trained_elements(model, 0));
  // Each of two steps writes the state of every adapter; inputs of layers stay in host memory.
  CHECK(bytes[Lane::ssd_write] == 2 * adapters * adapted.state_bytes());
  CHECK(bytes[Lane::ssd_write] < of_whole.at(Lane::ssd_write) / 4);
  CHECK(bytes[Lane::ssd_read] < of_whole.at(Lane::ssd_read) / 2);
}

TEST_CASE("A step with adapters does the FLOPs of two passes of the model and of the adapters") {
  const Problem problem = with_adapters(tiny_problem(3, 2));
  const ModelSpec& model = problem.model;
  ModelSpec plain = model;
  plain.lora_rank = 0;
  const double tokens = 4 * 16;
  double adapters = 0;  // of forward: in + out
  for (const AdaptedMatrix& one : adapted_matrices(model))
    adapters += 2 * tokens * 4 * static_cast<double>(one.rows + one.columns);
  double again = 0;  // A x in backward
  for (const AdaptedMatrix& one : adapted_matrices(model))
    again += 2 * tokens * 4 * static_cast<double>(one.columns);
  const double attention = 4 * tokens * 16 * 32;  // scores and values, forward
  const double layer = plain.layer_forward_flops(4, 16);
  CHECK(step_flops(model, 4, 16) == Approx(3 * (2 * layer + attention + 3 * adapters + again) +
                                           2 * plain.head_forward_flops(4, 16)));
  double scheduled = 0;
  for (const Task& task : build_schedule(problem, "resident", 1).tasks()) scheduled += task.flops;
  CHECK(scheduled == Approx(step_flops(model, 4, 16)));
}

TEST_CASE("A unit's trained tensors come first, adapters of one input side by side") {
  Problem problem = untied(tiny_problem(2, 1));
  ModelSpec& model = problem.model;
  const auto plain = unit_layout(model, 0);
  model.lora_rank = 4;
  model.lora_targets = "q_proj,v_proj,down_proj";
  const auto layout = unit_layout(model, 0);
  const std::int64_t first = trained_elements(model, 0);
  REQUIRE(layout.size() == plain.size() + 6);
  CHECK(first % element_alignment == 0);
  CHECK(layout[0].name == "self_attn.q_proj.lora_A.weight");
  CHECK(layout[1].name == "self_attn.v_proj.lora_A.weight");
  CHECK(layout[2].name == "self_attn.q_proj.lora_B.weight");
  CHECK(layout[3].name == "self_attn.v_proj.lora_B.weight");
  CHECK(layout[4].name == "mlp.down_proj.lora_A.weight");
  CHECK(layout[5].name == "mlp.down_proj.lora_B.weight");
  for (std::size_t k = 0; k < 6; ++k) CHECK(layout[k].trained);
  for (std::size_t k = 0; k < plain.size(); ++k) {
    CHECK(layout[k + 6].name == plain[k].name);
    CHECK(layout[k + 6].offset == plain[k].offset + first);
    CHECK_FALSE(layout[k + 6].trained);
  }
  CHECK(trained_elements(model, embedding_unit(model)) == 0);
  CHECK(trained_elements(model, head_unit(model)) == 0);
  CHECK(model.trained_parameters() == 2 * 4 *
                                          (2 * model.hidden + model.attention_width() +
                                           model.kv_width() + model.ffn + model.hidden));
}

TEST_CASE("A long schedule of frozen layers is built as a short one is") {
  // So many tasks that they are counted by schedules of fewer layers first.
  Problem problem = with_rates(with_frozen_layers(untied(tiny_problem(12, 1)), 9));
  problem.workload.batch = 12'000;
  problem.workload.micro_batch = 1;
  const Schedule schedule = build_schedule(problem, "greedysnake:placement=least", 3);
  CHECK(counts(schedule)[TaskKind::backward] == 3 * 12'000 * 3);
}

TEST_CASE("What is trained is refused where it cannot be") {
  ModelSpec model = tiny_problem(3, 1).model;
  const auto refused = [&](auto change, const char* key) {
    ModelSpec other = model;
    change(other);
    CHECK_THROWS_WITH(other.validate(), Catch::Contains(key));
  };
  refused([](ModelSpec& m) { m.frozen_layers = 3; }, "frozen_layers");
  refused([](ModelSpec& m) { m.lora_rank = 33; }, "lora_rank");
  refused([](ModelSpec& m) { m.lora_rank = m.frozen_layers = 1; }, "frozen_layers");
  refused([](ModelSpec& m) { m.lora_rank = 1, m.lora_alpha = 0; }, "lora_alpha");
  refused([](ModelSpec& m) { m.lora_rank = 1, m.lora_dropout = 1; }, "lora_dropout");
  refused([](ModelSpec& m) { m.lora_rank = 1, m.lora_targets = "q_proj"; }, "q_proj");
  refused([](ModelSpec& m) { m.lora_rank = 1, m.lora_targets = ""; }, "lora_targets");
  refused([](ModelSpec& m) { m.lora_dropout = 0.1; }, "lora_rank");
}
