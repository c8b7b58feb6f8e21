// A plugin that calls what no program has.
#include "policies/common/plugin.hpp"

namespace spillway {
Plan plan_of_tomorrow();
}

namespace {

class Lacks : public spillway::Policy {
 public:
  Lacks() : Policy("lacks", "none", "calls a function that is nowhere") {}
  spillway::Plan plan(const spillway::Problem&, const spillway::Costs&) const override {
    return spillway::plan_of_tomorrow();
  }
};

}  // namespace

SPILLWAY_PLUGIN(Lacks)
