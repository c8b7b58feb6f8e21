#include "policies/common/emission.hpp"

#include "policies/cost/costs.hpp"
#include "policies/framework/lay_over.hpp"
#include "policies/movement/meetings.hpp"
#include "policies/movement/residency.hpp"
#include "policies/movement/shards.hpp"
#include "policies/movement/spare.hpp"

namespace spillway {

OrderOfWork order_of_work(const Problem& problem, const Policy& policy, const Plan& plan, int steps,
                          bool evaluates) {
  Step step(problem, plan, evaluates);
  for (int s = 0; s < steps; ++s) {
    step.begin(s);
    policy.step(step);
    step.end();
  }
  return step.finish();
}

namespace {

// What one stage of a pipeline and the others say to each other.
void find_meetings(const Problem& problem, const Policy& policy, int steps, bool evaluates,
                   OrderOfWork& own) {
  std::vector<StageWork> stages;
  for (int stage = 0; stage < static_cast<int>(problem.workload.pipeline); ++stage) {
    Problem of = problem;
    of.rank = stage;
    of = of.of_stage(policy.chunks());
    stages.push_back(
        {of.model, stage == problem.rank
                       ? own
                       : order_of_work(of, policy, policy.plan(of, Costs(of)), steps, evaluates)});
  }
  own.meetings = meetings(stages, problem.rank);
}

OrderOfWork work_of(const Problem& problem, const Policy& policy, const Plan& plan, int steps,
                    bool evaluates) {
  OrderOfWork work = order_of_work(problem, policy, plan, steps, evaluates);
  if (problem.workload.pipeline > 1) find_meetings(problem, policy, steps, evaluates, work);
  return work;
}

// Ranks that meet in collectives need one plan: it is made for the first of them, whose shards are
// the largest.
Plan plan_with(const Policy& policy, const Problem& problem) {
  if (problem.rank == 0 || problem.workload.pipeline > 1)
    return policy.plan(problem, Costs(problem));
  Problem first = problem;
  first.rank = 0;
  return policy.plan(first, Costs(first));
}

Program emit_bare(const Problem& of_all, const Policy& policy, const EmitOptions& with) {
  policy.check(of_all);
  const Problem problem = of_all.of_stage(policy.chunks());
  Plan plan = plan_with(policy, with.plan_of ? *with.plan_of : problem);
  if (with.retention) plan.retention = *with.retention;
  fetch_by_layer(problem, plan);
  // Two stages exchange the sums of a tied embedding before they leave the GPU.
  if (problem.workload.pipeline > 1) plan.gradients.head_waits = Tier::gpu;
  check_plan(problem, plan);
  const OrderOfWork work = work_of(problem, policy, plan, with.evaluates ? 1 : with.steps, false);
  TierBytes kept{};
  if (with.spare != TierBytes{}) {
    PlanWithSpare more = with_spare(problem, plan, work, with.spare);
    plan = std::move(more.plan);
    kept[1] = more.kept_in_host;
  } else if (plan.spare_gpu_bytes == 0 && plan.spare_host_bytes == 0) {
    plan.retention = {};
  }
  Program program(problem, with.recording);
  for (const Tier tier : memories_of(problem.machine)) {
    const std::uint64_t others = with.others[static_cast<std::size_t>(tier)];
    if (others > 0) program.persistent(tier, others, BufferKind::parameters);
  }
  if (with.evaluates) {
    kept[0] = emit_work(program, plan, work_of(problem, policy, plan, with.steps, true), &work);
    program.set_evaluates();
  } else {
    kept[0] = emit_work(program, plan, work);
  }
  program.set_kept(kept);
  program.set_spare(with.spare);
  return program;
}

}  // namespace

Program emit(const Problem& problem, const Policy& policy, EmitOptions with) {
  if (problem.framework == own_framework) return emit_bare(problem, policy, with);
  const Framework framework = load_framework(problem.framework);
  const Recording recording = with.recording;
  with.recording = Recording::all;
  Program program = emit_bare(problem, policy, with);
  lay_over(program, framework, recording);
  return program;
}

Program emit(const Problem& problem, const ParsedPolicy& parsed, EmitOptions with) {
  with.retention = retention_of(parsed);
  return emit(problem, *policy_of(parsed), with);
}

}  // namespace spillway
