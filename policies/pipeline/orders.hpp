// Orders of passes by name: "1f1b", "interleaved:chunks=4", "atlas:held=16".
#pragma once

#include <string>
#include <vector>

#include "policies/common/policy.hpp"
#include "policies/pipeline/pipeline_times.hpp"

namespace spillway {

struct PipelineOrderInfo {
  std::string name, paper, idea;
  std::vector<PolicyOption> options;
};

// Those that there are, in a stable order.
const std::vector<PipelineOrderInfo>& pipeline_orders();

class PipelineOrder {
 public:
  // "NAME" or "NAME:OPTION=VALUE,...". Throws InputError for an unknown name, option or value.
  explicit PipelineOrder(const std::string& text);

  const std::string& text() const { return text_; }  // options at their defaults left out
  const std::string& name() const;
  int chunks() const;  // stages of a GPU
  // Whether it can be for so many micro-batches.
  bool suits(int gpus, int micro_batches) const;
  // Its chunks, on so many GPUs. Throws InputError where it does not suit them.
  PipelineShape shape(int gpus, int micro_batches) const;
  // Whether it holds as many micro-batches as PipelineTimes::memory_holds says.
  bool holds_by_memory() const;
  // Whether pipelines that share a link take turns on it, each with the rate of all.
  bool shares_links_in_turns() const;
  // The passes of each of times.pipelines pipelines. An order that is not planned is alike for all,
  // and does not look at times. Throws InputError where activations may be held of too few
  // micro-batches.
  std::vector<PassOrder> passes(const PipelineShape& shape, const PipelineTimes& times) const;

 private:
  struct Kind;
  static const std::vector<Kind>& kinds();
  friend const std::vector<PipelineOrderInfo>& pipeline_orders();
  int count(const char* option, int otherwise) const;
  const std::string* value(const char* option) const;  // null: it has no such option
  bool turns() const;
  int held(const PipelineShape& shape, const PipelineTimes& times) const;

  const Kind* kind_ = nullptr;
  std::vector<std::string> values_;  // by option
  std::string text_;
};

}  // namespace spillway
