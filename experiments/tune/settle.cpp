#include "experiments/tune/settle.hpp"

#include <algorithm>
#include <optional>

namespace spillway {

namespace {

class Settling {
 public:
  Settling(Pricer& pricer, const PlanSpace& space, const MemoryLimits& limits)
      : pricer_(pricer),
        space_(space),
        gpu_(static_cast<double>(std::min(limits.gpu, pricer.capacity(Tier::gpu)))),
        host_(static_cast<double>(std::min(limits.host, pricer.capacity(Tier::host)))),
        ssd_(static_cast<double>(pricer.capacity(Tier::ssd))) {}

  void price(Settled& one) const {
    one.price = pricer_.price(one.trial());
    one.price.fits = one.price.fits && over(one, Tier::gpu) <= 0 && over(one, Tier::host) <= 0;
  }

  // Changes a plan that does not fit; false: nothing is left to change.
  bool shrink(Settled& one) {
    if (over(one, Tier::gpu) > 0 && !is_gpu_least_) {
      constexpr auto gpu = static_cast<std::size_t>(Tier::gpu);
      if (!least_gpu_ || one.price.peaks[gpu] < least_gpu_->price.peaks[gpu]) least_gpu_ = one;
      if (space_.take_less_gpu(one.plan)) return true;
      // Of the changes some may have taken more.
      is_gpu_least_ = true;
      one = *least_gpu_;
    }
    if (over(one, Tier::host) > 0) {
      if (ssd_ > 0 && space_.move_to_ssd(one.plan, over(one, Tier::host))) return true;
      return save_less(one.plan) || space_.take_less_host(one.plan, over(one, Tier::gpu) <= 0);
    }
    return over(one, Tier::ssd) > 0 && space_.move_to_ssd(one.plan, -over(one, Tier::ssd));
  }

  // The plan with what host memory has left in use; false: nothing is left, or nothing to put in.
  bool fill(Settled& one) const {
    const double left = -over(one, Tier::host);
    return left > 0.01 * host_ && space_.move_to_ssd(one.plan, -0.99 * left);
  }

 private:
  double over(const Settled& one, Tier tier) const {
    const double capacity = tier == Tier::gpu ? gpu_ : tier == Tier::host ? host_ : ssd_;
    return static_cast<double>(one.price.peaks[static_cast<std::size_t>(tier)]) - capacity;
  }
  bool save_less(Plan& plan) const {
    const double level = space_.saved.level_of(plan.saved.saves);
    if (level < 0.01) return false;
    const auto before = plan.saved.saves;
    plan.saved.saves = space_.saved.at(level > 0.25 ? level / 2 : 0);
    return plan.saved.saves != before;
  }

  Pricer& pricer_;
  const PlanSpace& space_;
  const double gpu_, host_, ssd_;
  std::optional<Settled> least_gpu_;  // of the plans before changes for the GPU
  bool is_gpu_least_ = false;         // there are no further changes for it
};

}  // namespace

bool Settled::better_than(const Settled& other) const {
  if (price.fits != other.price.fits) return price.fits;
  if (price.step_seconds != other.price.step_seconds)
    return price.step_seconds < other.price.step_seconds;
  return price.bytes_written < other.price.bytes_written;
}

Settled settle(Pricer& pricer, const PlanSpace& space, std::int64_t micro_batch, Plan plan,
               int most_prices, bool fills, const MemoryLimits& limits) {
  Settling settling(pricer, space, limits);
  Settled one{micro_batch, std::move(plan), {}};
  settling.price(one);
  int prices = 1;
  for (; prices < most_prices && one.price.runs && !one.price.fits; ++prices) {
    if (!settling.shrink(one)) return one;
    settling.price(one);
  }
  for (; fills && prices < most_prices && one.price.fits; ++prices) {
    Settled fuller = one;
    if (!settling.fill(fuller)) break;
    settling.price(fuller);
    if (!fuller.better_than(one)) break;
    one = std::move(fuller);
  }
  return one;
}

}  // namespace spillway
