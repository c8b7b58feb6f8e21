// Prefill in the bubbles of a pipeline that trains (BubbleTea, arXiv 2411.14458, reconstructed: its
// text is not public).
//
// A request for inference is a prompt of so many tokens. A controller that knows the schedule
// places its prefill on `gpus` workers in a row of one replica, in one data centre, each of which
// has its part of the inference model's layers: at the first time at which each of them is idle for
// its part when the one before it is done. Requests are placed in the order in which they arrive.
// Where that would take longer than the bound on the time to the first token (TTFT), the request
// goes elsewhere. Training is not delayed: a part ends a guard gap before its worker trains again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "experiments/pipelines/pipeline_plan.hpp"

namespace spillway {

struct PrefillRequest {
  std::int64_t arrival_ns = 0, tokens = 0;
};

// Of a file: lines of "arrival in seconds, tokens", in order of arrival; a first line of names and
// lines that begin with # are passed over. Throws InputError with file:line.
std::vector<PrefillRequest> load_requests(const std::string& path);
// Poisson arrivals at `rate` a second until `end_ns`, of `least` to `most` tokens, whose logarithm
// is spread evenly.
std::vector<PrefillRequest> poisson_requests(double rate, std::int64_t least, std::int64_t most,
                                             std::int64_t end_ns, std::uint64_t seed);

struct PrefillSettings {
  ModelSpec model;  // that serves
  int gpus = 1;     // workers in a row that a prefill goes through
  std::int64_t guard_ns = 1'000'000;
  std::int64_t most_ttft_ns = 0;  // 0: no bound
  int steps = 10;                 // of training that are looked at
};

struct PlacedPrefill {
  std::size_t request = 0;
  int replica = 0, first_gpu = 0;
  std::vector<std::int64_t> start_ns, end_ns;  // by worker of the row
  std::int64_t ttft_ns = 0;
};

struct PrefillResult {
  std::vector<PlacedPrefill> placed;
  std::size_t requests = 0;
  double training_busy = 0;  // share of the workers' time that training computes
  // And if every request were placed that arrives, as far as there is time: what a count of work
  // says.
  double offered_busy = 0;
  double all_busy = 0;               // with prefills
  double tokens_per_second = 0;      // of prefills
  double weight_bytes = 0;           // of the inference model, on a GPU
  bool weights_fit = true;           // beside what training needs
  std::int64_t step_ns = 0;          // without prefills
  std::int64_t slowest_step_ns = 0;  // with them, every step simulated again
  bool passes_unchanged = true;      // each pass of training begins and ends when it did

  std::int64_t ttft_ns(double share) const;  // of the requests that were placed, by rank
};

// `plan` has a result. Throws InputError where no data centre has so many workers in a row.
PrefillResult place_prefills(const PipelinePlan& plan, const PrefillSettings& settings,
                             const std::vector<PrefillRequest>& requests);

}  // namespace spillway
