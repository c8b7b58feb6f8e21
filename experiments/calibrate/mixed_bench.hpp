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

// Both lanes move bytes as the executor's do, a thread, a ring and a half of the test file each;
// none gets more than one transfer ahead of its share. `memory` (at least 64 MiB) is what is
// written and read into. Throws MachineError where the store cannot be made or fails.
MixedRuns run_mixes(const std::vector<std::filesystem::path>& directories, const IoChoice& io,
                    const std::vector<double>& shares, std::uint64_t transfer_bytes,
                    std::int64_t queue_depth, const SamplingRule& rule, const Arena& memory);

// Sets the law of `machine`, whose drives are known otherwise, with the samples: every mix at a few
// sizes of transfer and queue depths, of which the largest and deepest give the gains; says in the
// sources what the law cannot say. `brief`: one mix of as many reads as writes. `next` is told what
// comes, mixed_figures(brief) times.
void measure_mixes(const std::vector<std::filesystem::path>& directories, const IoChoice& io,
                   bool brief, const SamplingRule& rule, const Arena& memory, Machine& machine,
                   const std::function<void(const std::string&)>& next);

int mixed_figures(bool brief);

}  // namespace spillway
