#include "policies/model/model.hpp"

#include <fmt/format.h>

#include <optional>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "policies/machine/field_problem.hpp"

namespace spillway {

namespace {

// Attention projections and feed-forward matrices of one layer: elements that each token meets
// once.
std::int64_t layer_matrix_elements(const ModelSpec& model) {
  const std::int64_t c = model.hidden;
  const std::int64_t head_width = c / model.heads;
  const std::int64_t query_and_output = 2 * c * c;
  const std::int64_t key_and_value = 2 * c * model.kv_heads * head_width;
  const std::int64_t feed_forward =
      (model.architecture == Architecture::gpt ? 2 : 3) * c * model.ffn;
  return query_and_output + key_and_value + feed_forward;
}

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

std::int64_t ModelSpec::qkv_width() const { return hidden + 2 * (hidden / heads) * kv_heads; }

std::int64_t ModelSpec::fc_width() const {
  return architecture == Architecture::llama ? 2 * ffn : ffn;
}

std::int64_t ModelSpec::layer_parameters() const {
  const std::int64_t matrices = layer_matrix_elements(*this);
  if (architecture == Architecture::llama) return matrices + 2 * hidden;  // two RMSNorm weights
  const std::int64_t biases = 4 * hidden + ffn + hidden;  // qkv, projection; up, down
  const std::int64_t norms = 4 * hidden;                  // two weights, two biases
  return matrices + biases + norms;
}

std::int64_t ModelSpec::embedding_parameters() const {
  if (architecture == Architecture::llama) return 2 * vocabulary * hidden + hidden;
  return vocabulary * hidden + positions * hidden + 2 * hidden;
}

std::int64_t ModelSpec::parameters() const {
  return layers * layer_parameters() + embedding_parameters();
}

double ModelSpec::layer_forward_flops(std::int64_t sequences,
                                      std::int64_t tokens_per_sequence) const {
  const double tokens = static_cast<double>(sequences) * static_cast<double>(tokens_per_sequence);
  const double matrices = 2 * tokens * static_cast<double>(layer_matrix_elements(*this));
  // Scores and their weighted sum: 2 T C each per token, every head over the whole sequence.
  const double attention =
      4 * tokens * static_cast<double>(tokens_per_sequence) * static_cast<double>(hidden);
  return matrices + attention;
}

double ModelSpec::head_forward_flops(std::int64_t sequences,
                                     std::int64_t tokens_per_sequence) const {
  const double tokens = static_cast<double>(sequences) * static_cast<double>(tokens_per_sequence);
  return 2 * tokens * static_cast<double>(hidden) * static_cast<double>(vocabulary);
}

double ModelSpec::forward_flops(std::int64_t sequences, std::int64_t tokens_per_sequence) const {
  return static_cast<double>(layers) * layer_forward_flops(sequences, tokens_per_sequence) +
         head_forward_flops(sequences, tokens_per_sequence);
}

std::optional<FieldProblem> find_problem(const ModelSpec& model) {
  if (model.name.empty()) return FieldProblem{"name", "it is empty", "give the model a name"};
  if (auto problem = find_bad_name(model.name)) return problem;
  for (const auto& [key, value, limit] : ranges(model)) {
    if (value >= 1 && value <= limit) continue;
    return FieldProblem{key, fmt::format("{} is outside 1 .. {}", value, limit), ""};
  }
  if (model.hidden % model.heads != 0) {
    return FieldProblem{
        "heads", fmt::format("{} heads do not divide hidden = {}", model.heads, model.hidden),
        fmt::format("use {} heads", divisors_near(model.hidden, model.heads))};
  }
  if (model.architecture == Architecture::gpt && model.kv_heads != model.heads) {
    return FieldProblem{
        "kv_heads", fmt::format("{} differs from heads = {} in a gpt", model.kv_heads, model.heads),
        "leave kv_heads out, or use architecture = \"llama\""};
  }
  if (model.architecture == Architecture::gpt && model.ffn != 4 * model.hidden) {
    return FieldProblem{
        "ffn", fmt::format("{} is not 4 x hidden = {} in a gpt", model.ffn, 4 * model.hidden),
        "leave ffn out, or use architecture = \"llama\""};
  }
  if (model.heads % model.kv_heads != 0) {
    return FieldProblem{"kv_heads",
                        fmt::format("{} does not divide heads = {}", model.kv_heads, model.heads),
                        fmt::format("use {}", divisors_near(model.heads, model.kv_heads))};
  }
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

void ModelSpec::validate() const {
  if (const auto problem = find_problem(*this)) {
    throw InputError(fmt::format("model {}: {}: {}", name, problem->key, problem->what),
                     problem->hint);
  }
}

}  // namespace spillway
