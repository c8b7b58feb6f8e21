// The keys under which the times of compute tasks are measured and looked up.
#include <fmt/format.h>

#include "policies/model/operators.hpp"
#include "policies/model/peft.hpp"
#include "policies/model/saved.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

std::string gradient_norm_shape() { return fmt::format("elements={}", gradient_norm_sample); }

std::string gradient_norm_shape(Lane lane, std::uint64_t bytes) {
  return fmt::format("{},bytes={}", to_string(lane), bytes);
}

std::string kernel_shape(const Problem& problem, const Task& task) {
  switch (task.kind) {
    case TaskKind::embed_forward:
    case TaskKind::forward:
    case TaskKind::head:
    case TaskKind::backward:
    case TaskKind::input_gradient:
    case TaskKind::weight_gradient:
    case TaskKind::embed_backward:
      break;
    default:
      return "";
  }
  const ModelSpec& model = problem.model;
  const Workload& workload = problem.workload;
  std::string shape =
      fmt::format("{},C{},NH{},KV{},F{}", model.architecture == Architecture::gpt ? "gpt" : "llama",
                  model.hidden, model.heads, model.kv_heads, model.ffn);
  if (model.attention_width() != model.hidden)
    shape += fmt::format(",A{}", model.attention_width());
  const bool is_layer = is_layer_pass(task.kind);
  if (is_layer && model.architecture == Architecture::llama)
    shape += fmt::format("{}{}", model.qkv_bias ? ",bias" : "", model.qk_norm ? ",qk-norm" : "");
  if (is_layer && model.window > 0) shape += fmt::format(",W{}", model.window);
  if (is_layer && model.has_adapters())
    shape += fmt::format(",r{}{}", model.lora_rank, model.lora_dropout > 0 ? ",dropout" : "");
  if (is_layer) {
    for (const AdaptedMatrix& one : adapted_matrices(model))
      shape += fmt::format(",{}", one.name.substr(0, one.name.rfind('.')));
  }
  if (!is_layer) shape += fmt::format(",V{},P{}", model.vocabulary, model.positions);
  if (task.kind == TaskKind::head && trained_elements(model, head_unit(model)) == 0)
    shape += ",frozen";
  if (task.loss_only) shape += ",loss";
  shape += fmt::format(",b{},T{},{}", workload.micro_batch, workload.sequence,
                       workload.precision == Precision::fp32 ? "fp32" : "bf16");
  const bool in_groups = is_layer || task.kind == TaskKind::head;
  if (in_groups && workload.sequences_at_once != 1)
    shape += fmt::format(",s{}", workload.sequences_at_once);
  const bool makes_gradients = task.kind != TaskKind::embed_forward &&
                               task.kind != TaskKind::forward &&
                               task.kind != TaskKind::input_gradient;
  if (makes_gradients && problem.gradient_bytes() == 2) shape += ",g16";
  if (task.kind == TaskKind::forward) {
    // Everything and nothing have names of their own, so that measurements stay valid.
    shape += task.saves == saved_none ? ",keeps-nothing" : ",saves";
    if (task.saves != saved_none && task.saves != saved_all(model))
      shape += fmt::format("{:02x}", task.saves);
  }
  if (task.kind == TaskKind::backward || task.kind == TaskKind::input_gradient) {
    shape += fmt::format(",saved{:02x}{}", task.available,
                         task.recomputes_output ? ",recomputes-output" : "");
  }
  return shape;
}

}  // namespace spillway
