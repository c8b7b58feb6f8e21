// zero-infinity: parameters and optimizer state on the SSD, gradients through it; the optimizer
// walks sub-groups after the whole backward.
//
// Source: Rajbhandari et al., "ZeRO-Infinity", SC 2021 (arXiv 2104.07857), and DeepSpeed 0.19.6
// with offload_param and offload_optimizer on NVMe (partitioned_optimizer_swapper.py and
// pipelined_optimizer_swapper.py). Per sub-group: read master, m, v and gradient; Adam; write the
// 16-bit parameters; write master, m, v. Serial as shipped; pipeline_read and pipeline_write add
// one sub-group of read-ahead and one of write-behind.
#include <array>

#include "policies/common/builtin.hpp"
#include "policies/model/gpt_layout.hpp"
#include "policies/zero/zero_settings.hpp"

namespace spillway {

namespace {

class ZeroInfinity : public Policy {
 public:
  explicit ZeroInfinity(const PolicyOptions& options) {
    const PolicyInfo about = info();
    const OptionReader read(about, options);
    plan_ = zero_plan(read, read.count("param_buffer_count", 1, 1024));
    constexpr std::array<Share, 3> places = {Share{.ssd = 1}, Share{.host = 1}, Share{.gpu = 1}};
    plan_.parameters.rest =
        places[static_cast<std::size_t>(read.choice("parameters", {"ssd", "host", "gpu"}))];
    plan_.parameters.first_in_host = read.elements("max_in_cpu");
    stays_below_ = read.elements("param_persistence_threshold");
    plan_.optimizer_state.rest = {.ssd = 1};
    plan_.gradients.on_ssd = read.choice("gradients", {"ssd", "host"}) == 0;
    const bool reads_ahead = read.on_off("pipeline_read");
    plan_.optimizer_state.writes_behind = read.on_off("pipeline_write");
    plan_.optimizer_state.writes_at_once = true;
    plan_.optimizer_state.ahead = reads_ahead ? 1 : 0;
    plan_.optimizer_state.slots = 1 + int{reads_ahead} + int{plan_.optimizer_state.writes_behind};
    settles_reuse_ = read.is_auto("max_reuse_distance");
  }

  PolicyInfo info() const override {
    PolicyInfo info{
        "zero-infinity",
        "ZeRO-Infinity (SC 2021), as DeepSpeed with parameters and optimizer on NVMe",
        "all model states on the SSD; horizontal micro-batches; the optimizer is a phase of its "
        "own",
        {{"pipeline_read",
          "off",
          "on: the next sub-group is read while one is updated | off",
          {"off"}},
         {"pipeline_write",
          "off",
          "on: a sub-group is written while the next is updated | off",
          {"off"}},
         {"gradients",
          "ssd",
          "ssd: written to the SSD in the last micro-batch and read back | host: kept there",
          {"ssd"}},
         {"parameters",
          "ssd",
          "ssd | host | gpu: where the 16-bit parameters rest",
          {"host", "ssd"}},
         {"max_in_cpu",
          "0",
          "the first so many elements of parameters rest in host memory instead of the SSD "
          "(DeepSpeed: 1e9)",
          {"0"}},
         {"param_buffer_count",
          "5",
          "tensors of parameters read from the SSD that host memory holds at once",
          {"2", "1"}},
         {"param_persistence_threshold",
          "0",
          "layers of fewer elements stay on the GPU, as single small tensors do in DeepSpeed "
          "(below 1e5)",
          {"0"}}}};
    for (PolicyOption& option : zero_settings("host")) info.options.push_back(std::move(option));
    return info;
  }

  std::vector<PolicyOptions> placements(const Problem&) const override {
    if (!settles_reuse_) return {{}};
    return {{}, {{"max_reuse_distance", "0"}}};
  }

  Plan plan(const Problem& problem, const Costs&) const override {
    Plan plan = plan_;
    if (static_cast<std::uint64_t>(unit_elements(problem.model, 0)) < stays_below_)
      plan.parameters.rest = {.gpu = 1};
    return plan;
  }

  void step(Step& step) const override { zero_step(step); }

 private:
  bool settles_reuse_ = true;
  std::uint64_t stays_below_ = 0;  // elements of a layer
  Plan plan_;
};

}  // namespace

std::unique_ptr<Policy> make_zero_infinity(const PolicyOptions& options) {
  return std::make_unique<ZeroInfinity>(options);
}

}  // namespace spillway
