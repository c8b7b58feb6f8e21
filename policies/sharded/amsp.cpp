// amsp: parameters, gradients and optimizer state in shards of meshes of their own.
//
// Source: Chen et al., AMSP, arXiv 2311.00257, whose sections are cited, and InternEvo, which has
// it as hybrid ZeRO. A mesh s0 x s1 is s0 GPUs of a node by s1 nodes.
#include "policies/sharded/amsp_planner.hpp"
#include "policies/sharded/sharded_options.hpp"

namespace spillway {

namespace {

// Alternatives of the planner that are tried, each of which emits a schedule.
constexpr std::size_t most_tried = 12;

class Amsp : public Policy {
 public:
  Amsp()
      : Policy("amsp", "AMSP (arXiv 2311.00257)",
               "parameters, gradients, optimizer state on the GPU, each in shards of a mesh of its "
               "own") {}

  Plan plan(const Problem& problem, const Costs&) const override {
    const AmspMeshes meshes = chosen(problem);
    // Section IV: s_p <= s_g <= s_os <= s_dp, of which each divides the next.
    Plan plan = sharded_.plan(problem, meshes.parameters, meshes.gradients, meshes.optimizer_state);
    // Section V, T_os0: whole tensors belong to a rank each, so a complete gradient is added up on
    // all ranks. T_os1: and the updated ones are broadcast, or gathered, which is the same bytes.
    plan.shards.all_reduce = true;
    plan.shards.broadcasts = broadcasts_;
    // Section VI, s_p > 1: in forward, all of the next layer is gathered while one computes; in
    // backward the next module alone, so that reductions are not held up. Here a layer is the
    // finest that is gathered, also in backward.
    return plan;
  }
  void step(Step& step) const override { forward_order(step); }

  // Meshes left open: as the planner orders them; the first that fits is taken.
  std::vector<PolicyOptions> placements(const Problem& problem) const override {
    if (problem.workload.ranks == 1 || !is_open()) return {{}};
    std::vector<PolicyOptions> all;
    for (const AmspPlan& one : plans(problem)) {
      all.push_back({{"parameters", to_string(one.meshes.parameters)},
                     {"gradients", to_string(one.meshes.gradients)},
                     {"optimizer_state", to_string(one.meshes.optimizer_state)}});
      if (all.size() == most_tried) return all;
    }
    return all.empty() ? std::vector<PolicyOptions>{{}} : all;
  }

 private:
  bool is_open() const {
    return parameters_->size() == 0 || gradients_->size() == 0 || optimizer_state_->size() == 0;
  }
  // Those that agree with the meshes that are given.
  std::vector<AmspPlan> plans(const Problem& problem) const {
    AmspSettings settings;
    settings.reserve = static_cast<double>(reserve_);
    settings.recomputes = sharded_.resident.recompute != ResidentOptions::Recompute::off;
    std::vector<AmspPlan> all = amsp_plans(problem, settings);
    const auto differs = [](const Mesh& given, const Mesh& planned) {
      return given.size() > 0 && given != planned;
    };
    std::erase_if(all, [&](const AmspPlan& one) {
      return differs(parameters_, one.meshes.parameters) ||
             differs(gradients_, one.meshes.gradients) ||
             differs(optimizer_state_, one.meshes.optimizer_state);
    });
    return all;
  }
  // Where nothing fits, or meshes are given that the planner does not consider: the rest as far as
  // it goes.
  AmspMeshes chosen(const Problem& problem) const {
    AmspMeshes meshes{parameters_, gradients_, optimizer_state_};
    if (problem.workload.ranks == 1) return {};
    if (is_open()) {
      const std::vector<AmspPlan> all = plans(problem);
      if (!all.empty()) return all.front().meshes;
    }
    if (meshes.optimizer_state.size() == 0) meshes.optimizer_state = problem.ranks();
    if (meshes.parameters.size() == 0) meshes.parameters = meshes.optimizer_state;
    if (meshes.gradients.size() == 0) meshes.gradients = meshes.parameters;
    return meshes;
  }

  Option<Mesh> parameters_ = option("parameters", "auto", MeshOr{"auto"}, {"auto"},
                                    "ranks with a shard of parameters each | auto: the planner's");
  Option<Mesh> gradients_ = option("gradients", "auto", MeshOr{"auto"}, {"auto"},
                                   "with one of gradients | auto: the planner's");
  Option<Mesh> optimizer_state_ = option("optimizer_state", "auto", MeshOr{"auto"}, {"auto"},
                                         "with one of optimizer state | auto: the planner's");
  Option<std::uint64_t> reserve_ =
      option("reserve", "0", Elements{}, {"0"},
             "bytes of GPU memory that the planner leaves for what it does not count");
  Option<bool> broadcasts_ = option(
      "spread", "gather", Choice<bool>{{"gather", false}, {"broadcast", true}}, {"broadcast"},
      "updated parameters reach the others by one gather of all shards | by a broadcast of "
      "each, as in the paper");
  ShardedOptions sharded_{*this};
};

}  // namespace

std::unique_ptr<Policy> make_amsp() { return std::make_unique<Amsp>(); }

}  // namespace spillway
