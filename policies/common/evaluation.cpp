#include <algorithm>

#include "base/errors.hpp"
#include "policies/common/parsed_policy.hpp"
#include "policies/common/settler.hpp"
#include "policies/framework/framework.hpp"

namespace spillway {

namespace {

bool rests_alike(const Schedule& a, const Schedule& b) {
  return std::equal(a.homes().begin(), a.homes().end(), b.homes().begin(), b.homes().end(),
                    [&](const HomePart& one, const HomePart& other) {
                      const BufferInfo& in = a.buffers()[one.where.buffer.id];
                      const BufferInfo& in_other = b.buffers()[other.where.buffer.id];
                      return one.kind == other.kind && one.unit == other.unit &&
                             one.first_element == other.first_element &&
                             one.elements == other.elements && in.tier == in_other.tier &&
                             in.offset + one.where.offset == in_other.offset + other.where.offset;
                    });
}

EmitOptions options_of(const Schedule& training, int batches) {
  SPILLWAY_ASSERT(training.problem().framework == own_framework && !training.evaluates());
  require_buildable(training.problem(), batches);
  EmitOptions with;
  with.steps = batches;
  with.spare = training.spare();
  with.evaluates = true;
  return with;
}

Schedule finish(const Schedule& training, Program program, int batches) {
  Schedule evaluation = std::move(program).finish(training.policy(), batches);
  SPILLWAY_ASSERT(rests_alike(training, evaluation),
                  "an evaluation finds the state where training leaves it");
  return evaluation;
}

}  // namespace

Schedule build_evaluation(const Schedule& training, int batches) {
  return finish(
      training,
      emit(training.problem(), parse_policy(training.policy()), options_of(training, batches)),
      batches);
}

Schedule build_evaluation(const Schedule& training, const Policy& policy, int batches) {
  return finish(training, emit(training.problem(), policy, options_of(training, batches)), batches);
}

}  // namespace spillway
