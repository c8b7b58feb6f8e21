// zero-offload: optimizer state and gradients in host memory, AdamW on the CPU after the whole
// backward.
//
// Source: Ren et al., "ZeRO-Offload", USENIX ATC 2021 (arXiv 2101.06840), and DeepSpeed 0.19.6 with
// offload_optimizer on the CPU: the code of ZeRO-Infinity without the SSD. Adam overlaps neither
// backward nor the copy back. The one-step delayed update is not synchronous and therefore not
// offered.
#include "policies/common/builtin.hpp"
#include "policies/zero/zero_settings.hpp"

namespace spillway {

namespace {

// With parameters=auto they stay on the GPU while they take no more than this share of its memory.
constexpr double parameters_share = 0.5;

class ZeroOffload : public Policy {
 public:
  explicit ZeroOffload(const PolicyOptions& options) {
    const PolicyInfo about = info();
    const OptionReader read(about, options);
    parameters_ = read.choice("parameters", {"auto", "gpu", "host"});
    settles_reuse_ = read.is_auto("max_reuse_distance");
    plan_ = zero_plan(read, 0);
  }

  PolicyInfo info() const override {
    PolicyInfo info{
        "zero-offload",
        "ZeRO-Offload (USENIX ATC 2021), as DeepSpeed's offload_optimizer=cpu",
        "optimizer state and gradients in host memory; AdamW on the CPU after backward",
        {{"parameters",
          "auto",
          "gpu | host | auto: where the 16-bit parameters rest; auto is gpu while they take at "
          "most half of it",
          {"host"}}}};
    for (PolicyOption& option : zero_settings("gpu")) info.options.push_back(std::move(option));
    return info;
  }

  // With parameters=auto: by the rule above or, where that does not fit, in host memory, or the
  // GPU's.
  std::vector<PolicyOptions> placements(const Problem&) const override {
    std::vector<PolicyOptions> all = {{}};
    if (parameters_ == 0) all.push_back({{"parameters", "host"}});
    if (parameters_ != 1 && settles_reuse_) {
      all.push_back(all.back());
      all.back()["max_reuse_distance"] = "0";
    }
    // Small models take less in one piece than layer by layer.
    if (parameters_ == 0) all.push_back({{"parameters", "gpu"}});
    return all;
  }

  Plan plan(const Problem& problem, const Costs&) const override {
    const double bytes = static_cast<double>(problem.model.parameters()) *
                         static_cast<double>(problem.parameter_bytes());
    const double most = parameters_share * static_cast<double>(problem.machine.gpu.memory);
    Plan plan = plan_;
    if (parameters_ == 1 || (parameters_ == 0 && bytes <= most)) plan.parameters.rest = {.gpu = 1};
    return plan;
  }

  void step(Step& step) const override { zero_step(step); }

 private:
  int parameters_ = 0;
  bool settles_reuse_ = true;
  Plan plan_;
};

}  // namespace

std::unique_ptr<Policy> make_zero_offload(const PolicyOptions& options) {
  return std::make_unique<ZeroOffload>(options);
}

}  // namespace spillway
