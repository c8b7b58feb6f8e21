#include "policies/model/model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "policies/machine/field_problem.hpp"
#include "policies/model/operators.hpp"
#include "policies/model/stages.hpp"

namespace spillway {

namespace {

// Largest sizes accepted; with them no count of parameters overflows 64 bits. Policies keep up to
// some thousand bytes for each parameter (slots, rounded to powers of two): fewer parameters yet.
constexpr std::int64_t most_parameters = 100'000'000'000'000;
struct Range {
  const char* key;
  std::int64_t value;
  std::int64_t limit;
};

std::vector<Range> ranges(const ModelSpec& model) {
  return {{"layers", model.layers, 5'000},
          {"hidden", model.hidden, 1'000'000},
          {"heads", model.heads, 1'000'000},
          {"kv_heads", model.kv_heads, 1'000'000},
          {"ffn", model.ffn, 10'000'000},
          {"vocabulary", model.vocabulary, 100'000'000},
          {"positions", model.positions, 100'000'000}};
}

// The divisors of `number` next to `near`, below and above, as words.
std::string divisors_near(std::int64_t number, std::int64_t near) {
  std::int64_t below = 0, above = 0;
  for (std::int64_t d = near; d >= 1 && !below; --d) below = number % d == 0 ? d : 0;
  for (std::int64_t d = near; d <= number && !above; ++d) above = number % d == 0 ? d : 0;
  if (!below) return std::to_string(above);
  return above ? fmt::format("{} or {}", below, above) : std::to_string(below);
}

}  // namespace

std::optional<FieldProblem> find_bad_name(const std::string& name) {
  constexpr std::size_t longest = 200;
  const char* hint = "use letters, digits, -, _, . and blanks";
  if (const auto found = find_unprintable(name))
    return FieldProblem{"name", "it holds " + *found, hint};
  if (name.size() > longest) {
    return FieldProblem{"name", fmt::format("it has {} bytes, more than {}", name.size(), longest),
                        "give it a shorter name"};
  }
  return std::nullopt;
}

std::int64_t ModelSpec::qkv_width() const { return attention_width() + 2 * kv_width(); }

std::int64_t ModelSpec::fc_width() const {
  return architecture == Architecture::llama ? 2 * ffn : ffn;
}

std::int64_t ModelSpec::layer_parameters() const { return unit_parameters(*this, 0); }

std::int64_t ModelSpec::embedding_parameters() const {
  std::int64_t sum = 0;
  for (std::int64_t unit = layers; unit < unit_count(*this); ++unit)
    sum += unit_parameters(*this, unit);
  return sum;
}

std::int64_t ModelSpec::parameters() const {
  return layers * layer_parameters() + embedding_parameters();
}

std::int64_t ModelSpec::trained_parameters() const {
  const auto trained = [&](std::int64_t unit) {
    std::int64_t sum = 0;
    for (const TensorLayout& tensor : unit_layout(*this, unit)) {
      if (tensor.trained) sum += tensor.elements();
    }
    return sum;
  };
  std::int64_t sum = (layers - frozen_layers) * trained(layers - 1);
  for (std::int64_t unit = layers; unit < unit_count(*this); ++unit) sum += trained(unit);
  return sum;
}

double ModelSpec::layer_forward_flops(std::int64_t sequences,
                                      std::int64_t tokens_per_sequence) const {
  double flops = 0;
  for (const LayerOperator& one : layer_operators(*this, sequences, tokens_per_sequence))
    flops += one.flops;
  return flops;
}

double ModelSpec::head_forward_flops(std::int64_t sequences,
                                     std::int64_t tokens_per_sequence) const {
  const double tokens = static_cast<double>(sequences) * static_cast<double>(tokens_per_sequence);
  return 2 * tokens * static_cast<double>(hidden) * static_cast<double>(vocabulary);
}

double ModelSpec::forward_flops(std::int64_t sequences, std::int64_t tokens_per_sequence) const {
  const double of_layers =
      static_cast<double>(layers) * layer_forward_flops(sequences, tokens_per_sequence);
  return has_head(*this) ? of_layers + head_forward_flops(sequences, tokens_per_sequence)
                         : of_layers;
}

namespace {

std::optional<FieldProblem> find_gpt_problem(const ModelSpec& model) {
  if (model.kv_heads != model.heads) {
    return FieldProblem{
        "kv_heads", fmt::format("{} differs from heads = {} in a gpt", model.kv_heads, model.heads),
        "leave kv_heads out, or use architecture = \"llama\""};
  }
  if (model.ffn != 4 * model.hidden) {
    return FieldProblem{
        "ffn", fmt::format("{} is not 4 x hidden = {} in a gpt", model.ffn, 4 * model.hidden),
        "leave ffn out, or use architecture = \"llama\""};
  }
  const ModelSpec usual;
  const std::pair<const char*, bool> fixed[] = {
      {"head_width", model.attention_width() == model.hidden},
      {"norm_epsilon", model.norm_epsilon == usual.norm_epsilon},
      {"rope_theta", model.rope_theta == usual.rope_theta},
      {"rope_scaling", model.rope_scaling == usual.rope_scaling},
      {"qkv_bias", model.qkv_bias},
      {"qk_norm", !model.qk_norm},
      {"window", model.window == 0},
      {"tied", model.tied}};
  for (const auto& [key, is_usual] : fixed) {
    if (is_usual) continue;
    return FieldProblem{key, "a gpt has no choice of it",
                        fmt::format("leave {} out, or use architecture = \"llama\"", key)};
  }
  return std::nullopt;
}

// What is wrong with the rotary positions.
std::optional<FieldProblem> find_rope_problem(const ModelSpec& model) {
  if (model.width_of_head() % 2 != 0) {
    return FieldProblem{model.head_width > 0 ? "head_width" : "heads",
                        fmt::format("heads are {} columns wide, and rotary positions turn pairs",
                                    model.width_of_head()),
                        "make heads an even number of columns wide"};
  }
  if (model.rope_theta < 1)
    return FieldProblem{"rope_theta", fmt::format("{} is less than 1", model.rope_theta), ""};
  if (model.rope_scaling == RopeScaling::none) return std::nullopt;
  if (model.rope_factor < 1)
    return FieldProblem{"rope_factor", fmt::format("{} is less than 1", model.rope_factor), ""};
  if (model.rope_scaling != RopeScaling::llama3) return std::nullopt;
  if (model.rope_original_positions < 1) {
    return FieldProblem{"rope_original_positions",
                        fmt::format("{} is less than 1", model.rope_original_positions),
                        "give the positions that the model was first trained on, e.g. 8192"};
  }
  if (!(model.rope_low_frequency_factor > 0) ||
      model.rope_low_frequency_factor >= model.rope_high_frequency_factor) {
    return FieldProblem{
        "rope_low_frequency_factor",
        fmt::format("{} is not above 0 and below rope_high_frequency_factor = {}",
                    model.rope_low_frequency_factor, model.rope_high_frequency_factor),
        "use 1 and 4"};
  }
  return std::nullopt;
}

std::optional<FieldProblem> find_llama_problem(const ModelSpec& model) {
  constexpr std::int64_t widest = 10'000'000, most_positions = 100'000'000;
  if (model.head_width > widest || model.attention_width() > widest) {
    return FieldProblem{"head_width",
                        fmt::format("{} heads of {} columns are wider than {}", model.heads,
                                    model.width_of_head(), widest),
                        ""};
  }
  if (model.heads % model.kv_heads != 0) {
    return FieldProblem{"kv_heads",
                        fmt::format("{} does not divide heads = {}", model.kv_heads, model.heads),
                        fmt::format("use {}", divisors_near(model.heads, model.kv_heads))};
  }
  if (!(model.norm_epsilon > 0) || model.norm_epsilon >= 1) {
    return FieldProblem{"norm_epsilon",
                        fmt::format("{} is not between 0 and 1", model.norm_epsilon), "use 1e-5"};
  }
  if (model.window > most_positions) {
    return FieldProblem{"window",
                        fmt::format("{} is outside 0 .. {}", model.window, most_positions),
                        "leave it out for attention to all tokens before"};
  }
  return find_rope_problem(model);
}

// What is wrong with what is trained.
std::optional<FieldProblem> find_training_problem(const ModelSpec& model) {
  if (model.frozen_layers < 0 || model.frozen_layers >= model.layers) {
    return FieldProblem{"frozen_layers",
                        fmt::format("{} is outside 0 .. {}", model.frozen_layers, model.layers - 1),
                        "train one layer at least"};
  }
  if (model.lora_rank == 0) {
    const ModelSpec usual;
    if (model.lora_targets == usual.lora_targets && model.lora_alpha == usual.lora_alpha &&
        model.lora_dropout == usual.lora_dropout)
      return std::nullopt;
    return FieldProblem{"lora_rank", "adapters are described, but they have no rank",
                        "give lora_rank, e.g. 16"};
  }
  if (model.lora_rank < 0 || model.lora_rank > model.hidden) {
    return FieldProblem{
        "lora_rank", fmt::format("{} is outside 1 .. hidden = {}", model.lora_rank, model.hidden),
        "usual ranks are 8 to 64"};
  }
  if (model.frozen_layers > 0) {
    return FieldProblem{"frozen_layers", "adapters freeze every layer already",
                        "leave frozen_layers out, or lora_rank"};
  }
  if (!(model.lora_alpha > 0) || model.lora_alpha > most_lora_alpha)
    return FieldProblem{
        "lora_alpha",
        fmt::format("{} is not above 0 and at most {}", model.lora_alpha, most_lora_alpha),
        "a usual value is twice the rank"};
  if (!(model.lora_dropout >= 0) || model.lora_dropout >= 1)
    return FieldProblem{"lora_dropout",
                        fmt::format("{} is not at least 0 and below 1", model.lora_dropout),
                        "a usual value is 0.05"};
  if (model.lora_targets == all_linear) return std::nullopt;
  const std::vector<std::string> names = lora_target_names(model);
  for (const std::string& target : lora_targets(model)) {
    if (std::find(names.begin(), names.end(), target) != names.end()) continue;
    return FieldProblem{
        "lora_targets", fmt::format("no matrix of a layer is named {:?}", target),
        fmt::format("use {}, or several of {}", all_linear, fmt::join(names, ", "))};
  }
  return std::nullopt;
}

}  // namespace

std::optional<FieldProblem> find_problem(const ModelSpec& model) {
  if (model.name.empty()) return FieldProblem{"name", "it is empty", "give the model a name"};
  if (auto problem = find_bad_name(model.name)) return problem;
  for (const auto& [key, value, limit] : ranges(model)) {
    if (value >= 1 && value <= limit) continue;
    return FieldProblem{key, fmt::format("{} is outside 1 .. {}", value, limit), ""};
  }
  if (model.head_width == 0 && model.hidden % model.heads != 0) {
    return FieldProblem{
        "heads", fmt::format("{} heads do not divide hidden = {}", model.heads, model.hidden),
        fmt::format("use {} heads", divisors_near(model.hidden, model.heads))};
  }
  auto problem =
      model.architecture == Architecture::gpt ? find_gpt_problem(model) : find_llama_problem(model);
  if (problem) return problem;
  if (auto of_training = find_training_problem(model)) return of_training;
  if (model.parameters() > most_parameters) {
    return FieldProblem{
        "layers",
        fmt::format("{} layers of {} parameters and {} more make {:.3g} parameters, more than the "
                    "{:.0g} that a model may have",
                    model.layers, model.layer_parameters(), model.embedding_parameters(),
                    static_cast<double>(model.parameters()), static_cast<double>(most_parameters)),
        "take fewer layers, or a smaller hidden, ffn or vocabulary"};
  }
  return std::nullopt;
}

ModelSpec base_model(const ModelSpec& model) {
  const ModelSpec usual;
  ModelSpec base = model;
  base.frozen_layers = usual.frozen_layers;
  base.lora_rank = usual.lora_rank;
  base.lora_alpha = usual.lora_alpha;
  base.lora_dropout = usual.lora_dropout;
  base.lora_targets = usual.lora_targets;
  return base;
}

void ModelSpec::validate() const {
  if (const auto problem = find_problem(*this)) {
    throw InputError(fmt::format("model {}: {}: {}", name, problem->key, problem->what),
                     problem->hint);
  }
}

}  // namespace spillway
