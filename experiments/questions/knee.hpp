// Where more of a resource stops paying: throughput over the number of drives, the size of a
// memory, the rate of a link, and from which value on no more of it gains anything worth having.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/plan/candidates.hpp"
#include "experiments/plan/problem_request.hpp"

namespace spillway {

// A resource, and the values of it that are tried.
struct KneeRange {
  std::string resource;             // one of knee_resources()
  std::vector<std::string> values;  // as people give them; empty: the usual ones
};

// Their names: the key of the machine ("ssd.count", "host.memory", "gpu.memory"), or the rates that
// are scaled together ("pcie"; "gpu", "cpu", "dram" as in robustness.hpp).
std::vector<std::string> knee_resources();
// Those that are looked at unless others are named: drives, host memory, GPU memory, the link.
std::vector<std::string> usual_knee_resources();
// "ssd.count" or "ssd.count=1,2,4". Throws InputError for a resource that is none (with near
// names).
KneeRange parse_knee_range(const std::string& text);
// Those of `texts`, or of the usual resources where there are none. Throws InputError where one is
// named twice, too.
std::vector<KneeRange> parse_knee_ranges(const std::vector<std::string>& texts);

struct KneePoint {
  double value = 0;              // drives, bytes, or times the rate there is now
  std::string text;              // "6", "256 GB", "1.5x"
  std::vector<std::string> set;  // KEY=VALUE that make the machine; empty: as it is, or a
                                 // rate that no key of its own stands for
  std::string why_not;           // empty: it fits, and the rest is set
  std::string policy;            // settled
  std::int64_t micro_batch = 0;
  double step_seconds = 0, tokens_per_second = 0;
  std::string bound_by;
  std::string waits_for;         // what the GPU waits most for; empty: it is never idle
  double waits_share = 0;        // of the step
  bool is_extrapolated = false;  // the drives' bandwidths are guessed
  // More drives than the machine's table has, which stay as fast as its last row: whether they pay
  // is not known.
  bool is_beyond_table = false;
  // Throughput of the next value that counts over this one's, less 1; nothing: there is none.
  std::optional<double> next_gain;

  bool fits() const { return why_not.empty(); }
  bool counts() const { return fits() && !is_beyond_table; }
};

struct KneeCurve {
  std::string resource;
  std::string why_not;            // empty: the machine has it; else there are no points
  std::vector<KneePoint> points;  // ascending
  std::size_t now = 0;            // the point of the machine as it is
  // Of the points that count: the least value beyond which no other that was tried gains the
  // threshold or more, however much of it that is; so it does not depend on how close values are to
  // each other. Nothing: there is none, or too little beyond it was tried (a quarter more) to say.
  std::optional<std::size_t> knee;
  std::optional<std::size_t> level_from;  // as `knee`, however little beyond it was tried
  double most_tokens_per_second = 0;      // of all points that count
  bool in_proportion = false;   // drives without a table: bandwidths in proportion to their number
  std::int64_t table_ends = 0;  // drives of the last row of the machine's table; 0: there is none
};

struct Knees {
  double threshold = 0;
  std::vector<KneeCurve> curves;  // by range
  // Of the machine as it is, where a plan that was found for another value is faster there than the
  // one it was asked with.
  std::optional<Candidate> faster_now;
};

struct KneeOptions {
  double threshold = 0.03;
  unsigned threads = 1;
  // The plans of a problem, of which the chosen one counts. Throws InputError where none can run
  // it. Any thread.
  std::function<Candidates(const Problem&)> plans;
  // One plan, by its policy with all settings and its micro-batch; empty: all points have one
  // policy, and nothing is searched for. Any thread.
  std::function<Candidates(const Problem&, const std::string& policy, std::int64_t micro_batch)>
      plan;
  // Told how many points were evaluated, of how many. Any thread, one at a time.
  std::function<void(std::size_t done, std::size_t all)> progress;
};

// Plans of one policy, as a request asks for it, or of all (`auto`); on the threads that there are.
// The request is used as long as the options are.
KneeOptions knee_options(const ProblemRequest& request, const Problem& problem,
                         const std::string& policy, const WholeRun& run);

// `now` is the plan of the machine as it is, which fits. Every other point has the plan that is
// asked for on its own machine, micro-batch and open options chosen anew. A search does not always
// find the fastest: where plans are searched for, every point is given those of the points beside
// it, too, so that no curve falls where a plan that is known keeps it up. Throws InputError for
// values that the resource does not take.
Knees find_knees(const ProblemRequest& request, const Candidate& now,
                 const std::vector<KneeRange>& ranges, const KneeOptions& options);

// What stands in place of a knee where there is none: "above 6: 8, the most that was tried, still
// pays".
std::string no_knee_text(const KneeCurve& curve);

// Sets next_gain, knee and most_tokens_per_second, from points that are ascending.
void find_knee(KneeCurve& curve, double threshold);

}  // namespace spillway
