// One model in full: cli/text/description_text.hpp.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/units.hpp"
#include "cli/text/description_text.hpp"
#include "policies/model/operators.hpp"
#include "policies/model/units.hpp"

namespace spillway::cli {

namespace {

using nlohmann::ordered_json;

// Units in a row that have the same tensors.
struct UnitRun {
  std::int64_t first = 0, count = 0;
  std::vector<TensorLayout> tensors;
};

bool is_same(const TensorLayout& a, const TensorLayout& b) {
  return a.name == b.name && a.rows == b.rows && a.columns == b.columns && a.trained == b.trained;
}

std::vector<UnitRun> unit_runs(const ModelSpec& model) {
  std::vector<UnitRun> runs;
  for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
    std::vector<TensorLayout> tensors = unit_layout(model, unit);
    if (!runs.empty() && std::equal(tensors.begin(), tensors.end(), runs.back().tensors.begin(),
                                    runs.back().tensors.end(), is_same)) {
      ++runs.back().count;
    } else {
      runs.push_back({unit, 1, std::move(tensors)});
    }
  }
  return runs;
}

std::string name_of(const ModelSpec& model, const UnitRun& run) {
  if (run.count == 1) return unit_name(model, run.first);
  return fmt::format("layers {} to {}", run.first, run.first + run.count - 1);
}

std::int64_t elements_of(const UnitRun& run) {
  std::int64_t elements = 0;
  for (const TensorLayout& tensor : run.tensors) elements += tensor.elements();
  return elements;
}

std::int64_t trained_of(const UnitRun& run) {
  std::int64_t elements = 0;
  for (const TensorLayout& tensor : run.tensors) elements += tensor.trained ? tensor.elements() : 0;
  return elements;
}

std::string count_text(double count) {
  if (count >= 1e9) return fmt::format("{:.2f} billion", count / 1e9);
  if (count >= 1e6) return fmt::format("{:.2f} million", count / 1e6);
  return fmt::format("{:.0f}", count);
}
std::string count_text(std::int64_t count) { return count_text(static_cast<double>(count)); }

std::string flops_text(double flops) {
  if (flops >= 1e9) return fmt::format("{:.2f} GFLOP", flops / 1e9);
  return fmt::format("{:.2f} MFLOP", flops / 1e6);
}

// Of one token in a sequence of so many.
struct TokenFlops {
  double layer = 0, head = 0, forward = 0, step = 0;
};

TokenFlops token_flops(const ModelSpec& model, std::int64_t sequence) {
  const auto tokens = static_cast<double>(sequence);
  return {model.layer_forward_flops(1, sequence) / tokens,
          model.head_forward_flops(1, sequence) / tokens, model.forward_flops(1, sequence) / tokens,
          step_flops(model, 1, sequence) / tokens};
}

ordered_json shape_json(const ModelSpec& model) {
  ordered_json shape = {{"architecture", model.architecture == Architecture::gpt ? "gpt" : "llama"},
                        {"layers", model.layers},
                        {"hidden", model.hidden},
                        {"heads", model.heads},
                        {"kv_heads", model.kv_heads},
                        {"head_width", model.width_of_head()},
                        {"ffn", model.ffn},
                        {"vocabulary", model.vocabulary},
                        {"positions", model.positions},
                        {"norm_epsilon", model.norm_epsilon},
                        {"qkv_bias", model.qkv_bias},
                        {"tied", model.tied}};
  if (model.architecture == Architecture::llama) {
    shape["rope_theta"] = model.rope_theta;
    shape["qk_norm"] = model.qk_norm;
    shape["window"] = model.window;
  }
  if (model.frozen_layers > 0) shape["frozen_layers"] = model.frozen_layers;
  if (model.has_adapters()) {
    shape["lora_rank"] = model.lora_rank;
    shape["lora_alpha"] = model.lora_alpha;
    shape["lora_targets"] = model.lora_targets;
  }
  return shape;
}

std::string units_text(const ModelSpec& model) {
  std::string text = fmt::format("\n{:<28} {:>18} {:>18} {:>6}  {}\n", "unit, tensor", "shape",
                                 "parameters", "decay", "trained");
  for (const UnitRun& run : unit_runs(model)) {
    const std::string times = run.count > 1 ? fmt::format("{} x ", run.count) : "";
    text += fmt::format("{:<28} {:>18} {:>18}\n", name_of(model, run), "",
                        times + count_text(elements_of(run)));
    for (const TensorLayout& tensor : run.tensors) {
      const std::string shape = tensor.rows == 1
                                    ? fmt::format("{}", tensor.columns)
                                    : fmt::format("{} x {}", tensor.rows, tensor.columns);
      text +=
          fmt::format("  {:<26} {:>18} {:>18} {:>6}  {}\n", tensor.name, shape, tensor.elements(),
                      tensor.decay ? "yes" : "no", tensor.trained ? "yes" : "no");
    }
  }
  return text;
}

std::string operators_text(const ModelSpec& model, std::int64_t sequence) {
  std::string text = fmt::format("\n{:<28} {:>18} {:>18} {:>18}\n", "operator of a layer",
                                 "reads, makes", "forward a token", "backward a token");
  const auto tokens = static_cast<double>(sequence);
  for (const LayerOperator& one : layer_operators(model, 1, sequence)) {
    const std::string columns =
        one.outputs > 0 ? fmt::format("{}, {}", one.inputs, one.outputs) : "";
    const auto flops = [&](double all) { return all > 0 ? flops_text(all / tokens) : "-"; };
    text += fmt::format("  {:<26} {:>18} {:>18} {:>18}\n", one.name, columns, flops(one.flops),
                        flops(one.backward_flops));
  }
  return text;
}

}  // namespace

std::string model_text(const ModelSpec& model, std::int64_t sequence) {
  const TokenFlops flops = token_flops(model, sequence);
  const std::int64_t all = model.parameters(), trained = model.trained_parameters();
  // 16-bit parameters; of what is trained also 32-bit master, m and v.
  constexpr double parameter_bytes = 2, state_bytes = 12;
  std::string text =
      fmt::format("{}\nsource: {}\n\n", model.name, model.source.empty() ? "none" : model.source);
  const ordered_json shape = shape_json(model);
  for (const auto& [key, value] : shape.items()) {
    const std::string shown = value.is_string() ? value.get<std::string>() : value.dump();
    text += fmt::format("{:<16} {}\n", key, shown);
  }
  text += fmt::format("\nparameters       {} ({}), of which {} are trained\n", all, count_text(all),
                      trained == all ? "all" : count_text(trained));
  text += fmt::format("model states     {}: bf16 parameters {}, fp32 master, m and v {}\n",
                      format_bytes(parameter_bytes * static_cast<double>(all) +
                                   state_bytes * static_cast<double>(trained)),
                      format_bytes(parameter_bytes * static_cast<double>(all)),
                      format_bytes(state_bytes * static_cast<double>(trained)));
  text += fmt::format(
      "FLOPs a token    {} forward ({} a layer, {} the head), {} a training step, without "
      "recomputation; in sequences of {} tokens\n",
      flops_text(flops.forward), flops_text(flops.layer), flops_text(flops.head),
      flops_text(flops.step), sequence);
  return text + units_text(model) + operators_text(model, sequence);
}

ordered_json model_json(const ModelSpec& model, std::int64_t sequence) {
  const TokenFlops flops = token_flops(model, sequence);
  ordered_json units = ordered_json::array(), operators = ordered_json::array();
  for (const UnitRun& run : unit_runs(model)) {
    ordered_json tensors = ordered_json::array();
    for (const TensorLayout& tensor : run.tensors)
      tensors.push_back({{"name", tensor.name},
                         {"rows", tensor.rows},
                         {"columns", tensor.columns},
                         {"decay", tensor.decay},
                         {"trained", tensor.trained}});
    units.push_back({{"name", name_of(model, run)},
                     {"first", run.first},
                     {"count", run.count},
                     {"parameters", elements_of(run)},
                     {"trained_parameters", trained_of(run)},
                     {"tensors", std::move(tensors)}});
  }
  const auto tokens = static_cast<double>(sequence);
  for (const LayerOperator& one : layer_operators(model, 1, sequence))
    operators.push_back({{"name", one.name},
                         {"inputs", one.inputs},
                         {"outputs", one.outputs},
                         {"forward_flops", one.flops / tokens},
                         {"backward_flops", one.backward_flops / tokens}});
  return {{"name", model.name},
          {"source", model.source},
          {"shape", shape_json(model)},
          {"parameters", model.parameters()},
          {"trained_parameters", model.trained_parameters()},
          {"sequence", sequence},
          {"flops_per_token",
           {{"layer_forward", flops.layer},
            {"head_forward", flops.head},
            {"forward", flops.forward},
            {"step", flops.step}}},
          {"units", std::move(units)},
          {"operators", std::move(operators)}};
}

}  // namespace spillway::cli
