// Measures how reads and writes share the drives, and fits the law `mixed` to it
// (policies/cost/link_rates.hpp).
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "exec/io/io_choice.hpp"
#include "exec/run/arena.hpp"
#include "experiments/calibrate/sampler.hpp"
#include "policies/machine/machine.hpp"

namespace spillway {

// Runs that read and write so many bytes each, again and again, by read share of their bytes: in
// one pass one after the other, so that a drive that is slow for a while is slow for all of them.
struct MixedRuns {
  std::uint64_t transfer_bytes = 0;  // of one task
  std::int64_t queue_depth = 0;      // of each lane
  std::uint64_t run_bytes = 0;
  std::map<double, std::vector<std::int64_t>> samples_ns;  // by read share; as many for each

  double median_seconds(double share) const;
  // How much faster a mix is than its bytes are when reads and writes take turns: the median over
  // passes of the ratio within one pass. Needs shares 0 and 1.
  double gain(double share) const;
};

// The gain at that share with which the law of `machine`'s drives, and the latencies of the lanes,
// come nearest to what runs of all these sizes, at one depth, took over their bytes in turns: least
// squares of the logarithms. Such ratios are within a pass, so a drive that is slow for a while is
// so on both sides. Of gains that say the same, because the lanes wait for latencies, the least.
double fitted_gain(const Machine& machine, const std::vector<const MixedRuns*>& of_all_sizes,
                   double share);

// Both lanes move bytes as the executor's do, a thread, a ring and a half of the test file each;
// none gets more than one transfer ahead of its share. `memory` (at least 64 MiB) is what is
// written and read into. Throws MachineError where the store cannot be made or fails.
MixedRuns run_mixes(const std::vector<std::filesystem::path>& directories, const IoChoice& io,
                    const std::vector<double>& shares, std::uint64_t transfer_bytes,
                    std::int64_t queue_depth, const SamplingRule& rule, const Arena& memory);

// Sets the law of `machine`, whose drives are known otherwise, with the samples: every mix at a few
// sizes of transfer and queue depths. Gains are fitted for each depth, to all sizes with what a
// transfer takes before its first byte moves; the sources say what the law cannot say. `brief`: one
// mix of as many reads as writes. `next` is told what comes, mixed_figures(brief) times.
void measure_mixes(const std::vector<std::filesystem::path>& directories, const IoChoice& io,
                   bool brief, const SamplingRule& rule, const Arena& memory, Machine& machine,
                   const std::function<void(const std::string&)>& next);

int mixed_figures(bool brief);

}  // namespace spillway
