#include "experiments/questions/least_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "experiments/questions/largest_that_holds.hpp"
#include "experiments/questions/micro_batch_fit.hpp"

namespace spillway {

namespace {

constexpr std::int64_t below_thousand = 1000, of_a_power = 900;

// The request with so much of one memory.
ProblemRequest with_size(ProblemRequest request, Tier tier, std::uint64_t bytes) {
  const std::string text = fmt::format("{}B", bytes);
  switch (tier) {
    case Tier::gpu:
      request.gpu_memory = text;
      break;
    case Tier::host:
      request.host_memory = text;
      break;
    case Tier::ssd:
      request.overrides.push_back("ssd.capacity=" + text);
      break;
  }
  return request;
}

class LeastSearch {
 public:
  LeastSearch(const ProblemRequest& request, Tier tier, const Planner& planner,
              const std::function<void(const std::string&)>& say)
      : request_(request), tier_(tier), planner_(planner), say_(say) {}

  LeastMemory search() {
    answer_.tier = tier_;
    const Problem problem = request_.problem();
    if (tier_ == Tier::ssd && problem.machine.ssd.count == 0) return without_drives(problem);
    const MicroBatchFit as_it_is = fit_in_some_micro_batch(planner_, problem);
    micro_batch_ = as_it_is.micro_batch;
    const std::optional<std::int64_t> enough =
        size_that_fits(three_digit_index(size_as_limit(problem)));
    if (!enough) return std::move(answer_);
    const std::int64_t least =
        smallest_that_holds(1, *enough, [&](std::int64_t index) { return fits(index); });
    const MicroBatchFit& found = known_.at(least);
    answer_.micro_batch = found.micro_batch;
    answer_.policy = found.fit->need.settled;
    answer_.is_more_than_there_is = !as_it_is.fits();
    answer_.bytes = three_digit_size(least);
    if (least > 1) {
      answer_.too_little = three_digit_size(least - 1);
      const MicroBatchFit& less = known_.at(least - 1);
      if (less.fit) answer_.full = full_tiers(less.fit->need);
      for (const auto& [index, at] : known_) answer_.cut_short |= index < least && at.cut_short;
    } else {
      answer_.bytes = 0;
    }
    return std::move(answer_);
  }

 private:
  // What the machine has, as the limit that would leave so much.
  std::uint64_t size_as_limit(const Problem& problem) const {
    return size_there_is(problem, tier_) +
           (tier_ == Tier::gpu ? problem.machine.gpu.workspaces : 0);
  }

  LeastMemory without_drives(const Problem& problem) {
    const MicroBatchFit found = fit_in_some_micro_batch(planner_, problem);
    if (found.fits()) {
      answer_.bytes = 0;
      answer_.micro_batch = found.micro_batch;
      answer_.policy = found.fit->need.settled;
    } else if (found.fit) {
      answer_.full = full_tiers(found.fit->need);
    }
    answer_.cut_short = found.cut_short;
    return std::move(answer_);
  }

  // The place of a size that fits: that of the machine, or larger by what the policy then lacks.
  // Nothing, with what is full in the answer: none was found.
  std::optional<std::int64_t> size_that_fits(std::int64_t there) {
    constexpr int rounds = 6;
    const std::int64_t most = there + 3 * of_a_power;
    std::int64_t index = there;
    for (int round = 0; round < rounds; ++round) {
      if (fits(index)) return index;
      const MicroBatchFit& at = known_.at(index);
      answer_.cut_short = at.cut_short;
      if (!at.fit) return {};
      answer_.full = full_tiers(at.fit->need);
      const auto t = static_cast<std::size_t>(tier_);
      const Need& need = at.fit->need;
      if (std::find(answer_.full.begin(), answer_.full.end(), tier_) == answer_.full.end())
        return {};
      // What is beside the schedule in the limit, such as workspaces, comes on top.
      const std::uint64_t beside =
          three_digit_size(index) - std::min(three_digit_size(index), need.capacity[t]);
      index = std::max(index + 1, three_digit_index(need.bytes[t] + beside));
      if (index > most) return {};
    }
    return {};
  }

  bool fits(std::int64_t index) {
    const auto [at, is_new] = known_.try_emplace(index);
    if (!is_new) return at->second.fits();
    const std::uint64_t bytes = three_digit_size(index);
    if (say_)
      say_(fmt::format("trying {} of {} memory", format_bytes(static_cast<double>(bytes)),
                       to_string(tier_)));
    at->second = fit_in_some_micro_batch(planner_, with_size(request_, tier_, bytes).problem(),
                                         micro_batch_);
    if (at->second.fits()) micro_batch_ = at->second.micro_batch;
    return at->second.fits();
  }

  const ProblemRequest& request_;
  const Tier tier_;
  const Planner& planner_;
  const std::function<void(const std::string&)>& say_;
  LeastMemory answer_;
  std::int64_t micro_batch_ = 0;  // that fitted last
  std::map<std::int64_t, MicroBatchFit> known_;
};

}  // namespace

std::uint64_t three_digit_size(std::int64_t index) {
  if (index < below_thousand) return static_cast<std::uint64_t>(index);
  const std::int64_t above = index - below_thousand;
  auto bytes = static_cast<std::uint64_t>(100 + above % of_a_power);
  for (std::int64_t power = 0; power <= above / of_a_power; ++power) bytes *= 10;
  return bytes;
}

std::int64_t three_digit_index(std::uint64_t bytes) {
  bytes = round_size(bytes, true);
  std::int64_t power = 0;
  while (bytes >= static_cast<std::uint64_t>(below_thousand)) {
    bytes /= 10;
    ++power;
  }
  const auto digits = static_cast<std::int64_t>(bytes);
  return power == 0 ? digits : below_thousand + (power - 1) * of_a_power + digits - 100;
}

std::uint64_t size_there_is(const Problem& problem, Tier tier) {
  const std::uint64_t of_rank = sizes_of(problem.machine)[static_cast<std::size_t>(tier)];
  return tier == Tier::gpu ? of_rank : of_rank * static_cast<std::uint64_t>(problem.ranks().inside);
}

LeastMemory least_memory(const ProblemRequest& request, Tier tier, const Planner& planner,
                         const std::function<void(const std::string&)>& say) {
  return LeastSearch(request, tier, planner, say).search();
}

}  // namespace spillway
