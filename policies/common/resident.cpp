// resident: everything in GPU memory. The reference that every other policy's numbers are held to,
// and the fastest where it fits.
#include "policies/common/policy.hpp"
#include "policies/movement/plan.hpp"

namespace spillway {

namespace {

class Resident : public Policy {
 public:
  Resident()
      : Policy("resident", "no offload: the usual way to train a model that fits",
               "parameters, gradients, optimizer state and activations stay in GPU memory") {}

  Plan plan(const Problem& problem, const Costs&) const override {
    Plan plan;
    plan.order = {.row = 1, .updates = UpdateOrder::ascending};
    plan.checkpoints.rest = Share{.gpu = 1};
    plan.parameters.rest = plan.optimizer_state.rest = plan.checkpoints.rest;
    plan.saved.recomputes_output = recompute_ == Recompute::full;
    if (recompute_ == Recompute::off) plan.saved.saves = saved_all(problem.model);
    return plan;
  }

 private:
  enum class Recompute : std::uint8_t { off, needed, full };
  Option<Recompute> recompute_ =
      option("recompute", "off",
             Choice<Recompute>{
                 {"off", Recompute::off}, {"needed", Recompute::needed}, {"full", Recompute::full}},
             {"needed", "full"},
             "off: keep all activations | needed: keep one checkpoint per block, recompute what "
             "backward needs | full: recompute whole layers");
};

}  // namespace

std::unique_ptr<Policy> make_resident() { return std::make_unique<Resident>(); }

}  // namespace spillway
