// resident: everything in GPU memory. The reference that every other policy's numbers are held to,
// and the fastest where it fits.
#include "policies/common/resident_options.hpp"

namespace spillway {

namespace {

class Resident : public Policy {
 public:
  Resident()
      : Policy("resident", "no offload: the usual way to train a model that fits",
               "parameters, gradients, optimizer state and activations stay in GPU memory") {}

  Plan plan(const Problem& problem, const Costs&) const override { return resident_.plan(problem); }

 private:
  ResidentOptions resident_{*this};
};

}  // namespace

std::unique_ptr<Policy> make_resident() { return std::make_unique<Resident>(); }

}  // namespace spillway
