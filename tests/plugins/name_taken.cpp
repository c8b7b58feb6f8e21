// A plugin whose policy has the name of one that is built in.
#include "policies/common/plugin.hpp"

namespace {

class Taken : public spillway::Policy {
 public:
  Taken() : Policy("greedysnake", "none", "its name is taken") {}
  spillway::Plan plan(const spillway::Problem&, const spillway::Costs&) const override {
    return {};
  }
};

}  // namespace

SPILLWAY_PLUGIN(Taken)
