// Bytes moved per step, by copy kind and by what arrives: for tests against closed forms. Symbols,
// bytes unless said:
//   U layers of P elements, embedding of E elements, M micro-batches; A one activation between
//   layers; w, g bytes per element of parameters and of gradients; AdamW's state: 12 per element.
#pragma once

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "policies/common/policy.hpp"
#include "policies/model/scratch.hpp"
#include "policies/movement/step.hpp"
#include "tests/policies/schedules.hpp"

namespace spillway::test {

struct Symbols {
  explicit Symbols(const Problem& problem)
      : U(static_cast<std::uint64_t>(problem.model.layers)),
        M(static_cast<std::uint64_t>(problem.workload.micro_batches())),
        P(static_cast<std::uint64_t>(unit_elements(problem.model, 0))),
        E(static_cast<std::uint64_t>(unit_elements(problem.model, problem.model.layers))),
        A(checkpoint_bytes(problem)),
        w(problem.parameter_bytes()),
        g(problem.gradient_bytes()) {}
  std::uint64_t U, M, P, E, A, w, g;
};

// Bytes by copy kind and by what arrives; a kind that does not move is absent.
using Traffic = std::map<std::pair<TaskKind, BufferKind>, std::uint64_t>;

inline Traffic traffic_of(const Schedule& schedule, int step) {
  Traffic traffic;
  for (const Task& task : schedule.tasks()) {
    if (task.step != step) continue;
    if (task.kind != TaskKind::h2d && task.kind != TaskKind::d2h && task.kind != TaskKind::read &&
        task.kind != TaskKind::write) {
      continue;
    }
    // A gradient is one wherever it goes: it may wait in memory that is otherwise a checkpoint's.
    const auto kind_of = [&](std::size_t access) {
      return schedule.buffers()[schedule.accesses(task)[access].buffer].kind;
    };
    const bool is_gradient = kind_of(0) == BufferKind::gradient;
    traffic[{task.kind, is_gradient ? kind_of(0) : kind_of(1)}] += task.bytes;
  }
  return traffic;
}

inline void check_traffic(const Schedule& schedule, int step, const Traffic& expected) {
  Traffic actual = traffic_of(schedule, step);
  for (const auto& [what, bytes] : expected) {
    INFO(to_string(what.first) << " " << to_string(what.second) << " of step " << step);
    CHECK(actual[what] == bytes);
    actual.erase(what);
  }
  for (const auto& [what, bytes] : actual) {
    INFO(to_string(what.first) << " " << to_string(what.second) << " of step " << step);
    CHECK(bytes == 0);
  }
}

// Like check_traffic, but what is read of parameters may be `fewer` bytes less, which are still in
// host memory, or `more` bytes more. A model of 1 or 2 layers, where most uses follow each other,
// moves at most as much.
inline void check_traffic_within(const Schedule& schedule, int step, const Traffic& expected,
                                 std::uint64_t fewer, std::uint64_t more) {
  Traffic actual = traffic_of(schedule, step);
  for (const auto& [what, bytes] : expected) {
    INFO(to_string(what.first) << " " << to_string(what.second) << " of step " << step);
    const bool varies = what == std::pair{TaskKind::read, BufferKind::parameters};
    CHECK(actual[what] <= bytes + (varies ? more : 0));
    if (schedule.problem().model.layers > 2) CHECK(actual[what] + (varies ? fewer : 0) >= bytes);
    actual.erase(what);
  }
  for (const auto& [what, bytes] : actual) {
    INFO(to_string(what.first) << " " << to_string(what.second) << " of step " << step);
    CHECK(bytes == 0);
  }
}

// The last of three steps: the one before it and the one after it are there.
inline Schedule steady(const Problem& problem, const std::string& policy) {
  return build_schedule(problem, policy, 3);
}

// GPT-2 small cut to U layers, in bf16, or the tiny model: shapes whose P, E and A have no common
// factor.
inline std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (const int layers : layer_grid) {
    for (const int micro_batches : micro_batch_grid) {
      all.push_back(tiny_problem(layers, micro_batches));
      all.push_back(tiny_problem(layers, micro_batches, Precision::fp32));
      Problem gpt = tiny_problem(layers, micro_batches);
      gpt.model = load_model("gpt2-124m", {fmt::format("layers={}", layers)});
      gpt.workload.sequence = 1024;
      all.push_back(gpt);
    }
  }
  return all;
}

inline std::string text(const Problem& problem) {
  return fmt::format("{} with {} layers, {} micro-batches, {} bytes per parameter",
                     problem.model.name, problem.model.layers, problem.workload.micro_batches(),
                     problem.parameter_bytes());
}

inline constexpr auto h2d = TaskKind::h2d, d2h = TaskKind::d2h, from_ssd = TaskKind::read,
                      to_ssd = TaskKind::write;
inline constexpr auto parameters = BufferKind::parameters, gradient = BufferKind::gradient,
                      head_gradient = BufferKind::head_gradient,
                      state = BufferKind::optimizer_state, checkpoint = BufferKind::checkpoint,
                      activation_gradient = BufferKind::activation_gradient;

// Horizontal: each micro-batch uses every layer going up and going down, 2 U M uses. Layer U-1 at
// the turn and layer 0 between micro-batches are used twice in a row and fetched once: M and M-1
// fetches saved. With one layer every use follows the one before: one fetch.
inline std::uint64_t horizontal_fetches(const Symbols& s) {
  return s.U == 1 ? 1 : 2 * s.U * s.M - s.M - (s.M - 1);
}

}  // namespace spillway::test
