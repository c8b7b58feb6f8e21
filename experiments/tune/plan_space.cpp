#include "experiments/tune/plan_space.hpp"

#include <algorithm>
#include <cmath>

#include "policies/common/policy.hpp"
#include "policies/cost/costs.hpp"
#include "policies/model/scratch.hpp"

namespace spillway {

namespace {

double rounded(double fraction) { return std::round(std::clamp(fraction, 0.0, 1.0) * 1000) / 1000; }

}  // namespace

Share host_and_ssd(double on_ssd) { return Share::host_and_ssd(rounded(on_ssd)); }

Plan plan_of(const Problem& problem, const std::string& policy) {
  Plan plan = make_policy(policy)->plan(problem, Costs(problem));
  constexpr std::string_view option = "retention=";  // which is the registry's
  const std::size_t at = policy.find(option);
  if (at == std::string::npos) return plan;
  const std::string text = policy.substr(at + option.size());
  plan.retention =
      parse_retention_by_kind(text.substr(0, text.find(','))).value_or(RetentionByKind{});
  return plan;
}

PlanSpace::PlanSpace(const Problem& problem)
    : layers(static_cast<int>(problem.model.layers)),
      micro_batches(static_cast<int>(problem.workload.micro_batches())),
      saved(problem) {
  const auto elements = static_cast<double>(unit_elements(problem.model, 0));
  parameter_bytes = problem.parameter_bytes();
  const double all = elements * layers;
  parameters = all * static_cast<double>(parameter_bytes);
  const auto trained = static_cast<double>(trained_elements(problem.model, layers - 1));
  optimizer_state = trained * (layers - static_cast<double>(problem.model.frozen_layers)) *
                    static_cast<double>(problem.state_bytes());
  gradient = trained * static_cast<double>(problem.gradient_bytes());
  checkpoints = static_cast<double>(checkpoint_bytes(problem)) * layers * micro_batches;
}

double fraction_on_ssd(const ByLayer<Share>& rest, int layers) {
  double sum = 0;
  for (int layer = 0; layer < layers; ++layer) sum += rest.at(layer, layers).ssd;
  return sum / layers;
}

void set_fraction_on_ssd(ByLayer<Share>& rest, int layers, double on_ssd) {
  double elsewhere = 0;  // layers that are not on the GPU
  for (int layer = 0; layer < layers; ++layer) elsewhere += 1 - rest.at(layer, layers).gpu;
  if (elsewhere == 0) return;
  const double of_each = std::clamp(on_ssd * layers / elsewhere, 0.0, 1.0);
  rest.change(layers, [&](Share& share, int) {
    if (share.gpu == 0) share = host_and_ssd(of_each);
  });
}

int layers_on_gpu(const ByLayer<Share>& rest, int layers) {
  int count = 0;
  for (int layer = 0; layer < layers; ++layer) count += rest.at(layer, layers).gpu > 0 ? 1 : 0;
  return count;
}

ByLayer<Share> with_layers_on_gpu(const ByLayer<Share>& rest, int layers, int count) {
  const Share first = rest.at(0, layers);
  const Share low = first.gpu > 0 ? Share{.host = 1} : first;
  if (count <= 0) return low;
  if (count >= layers) return Share{.gpu = 1};
  return ByLayer<Share>(
      std::vector<ByLayer<Share>::Run>{{low, ByLayer<Share>::others}, {Share{.gpu = 1}, count}});
}

bool PlanSpace::move_to_ssd(Plan& plan, double bytes) const {
  const Plan before = plan;
  const bool is_to_ssd = bytes > 0;
  const auto on_ssd = [&](const Plan& of) {
    const auto& saves = of.saved.rest.value_or(of.checkpoints.rest);
    return fraction_on_ssd(of.optimizer_state.rest, layers) * optimizer_state +
           fraction_on_ssd(of.parameters.rest, layers) * parameters +
           fraction_on_ssd(of.checkpoints.rest, layers) * checkpoints +
           fraction_on_ssd(saves, layers) * saved.bytes(of.saved.saves) * micro_batches;
  };
  const auto rest = [&](ByLayer<Share>& share, double of_all) {
    if (of_all == 0 || std::abs(bytes) < 0.0005 * of_all) return;
    const double now = fraction_on_ssd(share, layers);
    set_fraction_on_ssd(share, layers,
                        rounded(now + bytes / of_all + (bytes > 0 ? 0.0005 : -0.0005)));
    bytes -= (fraction_on_ssd(share, layers) - now) * of_all;  // layers on the GPU stay there
  };
  const auto inputs = [&] {
    const double of_saved = saved.bytes(plan.saved.saves) * micro_batches;
    rest(plan.checkpoints.rest, plan.saved.rest ? checkpoints : checkpoints + of_saved);
    if (plan.saved.rest) rest(*plan.saved.rest, of_saved);
  };
  if (bytes > 0) {
    rest(plan.optimizer_state.rest, optimizer_state);
    inputs();
    rest(plan.parameters.rest, parameters);
  } else {
    rest(plan.parameters.rest, parameters);
    rest(plan.optimizer_state.rest, optimizer_state);
    inputs();
  }
  // Layers on the GPU take no part: what moves may be nothing, or a rounding the other way.
  if (is_to_ssd && on_ssd(plan) <= on_ssd(before)) {
    plan = before;
    return false;
  }
  return to_text(plan) != to_text(before);
}

bool PlanSpace::take_less_host(Plan& plan, bool gpu_has_room) const {
  const std::string before = to_text(plan);
  const auto is_changed = [&] { return to_text(plan) != before; };
  // Gradients of updates that are delayed wait in host memory.
  plan.order.delayed = 0;
  if (is_changed()) return true;
  plan.checkpoints.margin = 0;
  plan.checkpoints.host_ahead = std::min(plan.checkpoints.host_ahead, 1);
  plan.parameters.host_ahead = 0;
  if (is_changed()) return true;
  // Updates in small parts, with the state of two of them.
  const double elements = parameters / layers / static_cast<double>(parameter_bytes);
  for (const double parts : {16.0, 64.0}) {
    const auto most = static_cast<std::uint64_t>(elements / parts);
    if (plan.optimizer.gpu_stride > 0 ||
        (plan.optimizer.group == UpdateGroup::at_most && plan.optimizer.elements <= most))
      continue;
    plan.optimizer.group = UpdateGroup::at_most;
    plan.optimizer.elements = most;
    plan.optimizer_state.slots = 2;
    plan.optimizer_state.ahead = 1;
    return true;
  }
  // Last, as it takes of the GPU what it leaves in host memory.
  if (gpu_has_room) plan.gradients.head_waits = Tier::gpu;
  return is_changed();
}

bool PlanSpace::take_less_gpu(Plan& plan) const {
  const auto lower = [](int& distance, int to) {
    if (distance <= to) return false;
    distance = to;
    return true;
  };
  if (plan.activation_gradients.on_gpu > 0) return plan.activation_gradients.on_gpu = 0, true;
  const auto halve_on_gpu = [&](ByLayer<Share>& rest) {
    const int on_gpu = layers_on_gpu(rest, layers);
    if (on_gpu > 0) rest = with_layers_on_gpu(rest, layers, on_gpu > 2 ? on_gpu / 2 : 0);
    return on_gpu > 0;
  };
  // Of hardly anything it is not worth while to look where half of it leads.
  constexpr double hardly_any = 0.05;
  if (plan.saved.rest && layers_on_gpu(*plan.saved.rest, layers) > 0 &&
      saved.level_of(plan.saved.saves) < hardly_any) {
    plan.saved.rest = with_layers_on_gpu(*plan.saved.rest, layers, 0);
    return true;
  }
  if (plan.saved.rest && halve_on_gpu(*plan.saved.rest)) return true;
  if (halve_on_gpu(plan.checkpoints.rest)) return true;
  const double level = saved.level_of(plan.saved.saves);
  if (level > 0.01) {
    const auto before = plan.saved.saves;
    plan.saved.saves = saved.at(level > 0.5 ? level / 2 : 0);
    if (plan.saved.saves != before) return true;
  }
  if (plan.optimizer.gpu_stride == 0) {
    if (halve_on_gpu(plan.optimizer_state.rest)) return true;
    if (halve_on_gpu(plan.parameters.rest)) return true;
  }
  if (lower(plan.parameters.gpu_ahead, 1) || lower(plan.checkpoints.gpu_ahead, 1)) return true;
  if (plan.gradients.on_gpu && micro_batches > 1) return plan.gradients.on_gpu = false, true;
  if (plan.gradients.gpu_ahead > 0 && !plan.gradients.on_gpu)
    return plan.gradients.gpu_ahead = 0, true;
  if (lower(plan.parameters.gpu_ahead, 0)) return true;
  if (!plan.parameters.by_tensor && plan.optimizer.gpu_stride == 0) {
    plan.parameters.by_tensor = true;
    plan.parameters.tensors.reuse_distance = 0;
    return true;
  }
  return lower(plan.checkpoints.gpu_ahead, 0);
}

}  // namespace spillway
