#include "policies/model/operators.hpp"

#include <algorithm>
#include <initializer_list>

#include "base/errors.hpp"
#include "policies/model/scratch.hpp"
#include "policies/model/units.hpp"

namespace spillway {

namespace {

// Builds the list of a layer's operators on so many tokens.
class OperatorList {
 public:
  OperatorList(const ModelSpec& model, double tokens)
      : model_(model),
        layout_(unit_layout(model, 0)),
        adapted_(adapted_matrices(model)),
        tokens_(tokens) {}

  // A product with the matrices of these names; without any, a norm or an elementwise function.
  void add(std::string_view name, SavedMask makes,
           std::initializer_list<std::string_view> matrices = {}) {
    LayerOperator added{name, makes};
    for (const std::string_view matrix : matrices) {
      const TensorLayout& tensor = find(matrix);
      added.inputs = tensor.columns;
      added.outputs += tensor.rows;
      const double product = 2 * tokens_ * static_cast<double>(tensor.elements());
      added.flops += product;
      // The gradient of the input and, in a trained layer, of the matrix.
      added.backward_flops += model_.has_adapters() ? product : 2 * product;
    }
    for (const AdaptedMatrix& one : adapted_) {
      if (std::find(matrices.begin(), matrices.end(), one.name) == matrices.end()) continue;
      const double rank = 2 * tokens_ * static_cast<double>(model_.lora_rank);
      const double in = rank * static_cast<double>(one.columns);
      const double out = rank * static_cast<double>(one.rows);
      added.flops += in + out;
      // A x again; the gradients of B, of A x, of A and of x.
      added.backward_flops += 3 * in + 2 * out;
    }
    added.statistics_flops = added.flops;
    operators_.push_back(added);
  }
  // Scores, and their product with the values: each a multiply-add per key and column.
  void add_attention(SavedMask makes, double keys, std::int64_t width) {
    const double scores = 2 * tokens_ * keys * static_cast<double>(width);
    operators_.push_back({"attention", makes, 2 * scores, scores, 4 * scores});
    // The product of each output with its gradient, before its backward.
    move(0, 2 * width);
  }
  // So many elements a token of the last operator's, in forward and in backward.
  void move(std::int64_t forward, std::int64_t backward) {
    operators_.back().moved += tokens_ * static_cast<double>(forward);
    operators_.back().backward_moved += tokens_ * static_cast<double>(backward);
  }
  std::vector<LayerOperator> take() { return std::move(operators_); }

 private:
  const TensorLayout& find(std::string_view matrix) const {
    const auto found =
        std::find_if(layout_.begin(), layout_.end(),
                     [&](const TensorLayout& tensor) { return tensor.name == matrix; });
    SPILLWAY_ASSERT(found != layout_.end());
    return *found;
  }

  const ModelSpec& model_;
  std::vector<TensorLayout> layout_;
  std::vector<AdaptedMatrix> adapted_;
  double tokens_;
  std::vector<LayerOperator> operators_;
};

// Keys that a query meets, on average. As attention is counted without its causal half, a window
// of W of T tokens counts twice what queries see in it: W T - W (W - 1) / 2 keys, nearly.
double keys_of_query(const ModelSpec& model, std::int64_t tokens_per_sequence) {
  const auto tokens = static_cast<double>(tokens_per_sequence);
  if (model.window == 0 || model.window >= tokens_per_sequence) return tokens;
  const auto window = static_cast<double>(model.window);
  return window * (2 * tokens - window) / tokens;
}

void add_gpt(OperatorList& list, const ModelSpec& model, double keys) {
  using namespace gpt_saved;
  const std::int64_t width = model.hidden;
  list.add("norm-1", ln1);
  list.move(2 * width, 4 * width);
  list.add("qkv", qkv, {"attn.c_attn.weight"});
  list.move(0, 3 * width);  // the bias' gradient
  list.add_attention(attention | statistics, keys, model.attention_width());
  list.add("attn-proj", residual, {"attn.c_proj.weight"});
  list.add("norm-2", ln2);
  list.move(2 * width, 4 * width);
  list.add("fc", fc, {"mlp.c_fc.weight"});
  list.add("gelu", gelu);
  list.move(2 * model.ffn, 3 * model.ffn);
  list.add("output", saved_none, {"mlp.c_proj.weight"});
}

void add_llama(OperatorList& list, const ModelSpec& model, double keys) {
  using namespace llama_saved;
  const std::int64_t width = model.hidden;
  // Queries and keys, each read and written.
  const std::int64_t turned = 2 * (model.attention_width() + model.kv_width());
  list.add("norm-1", norm1);
  list.move(2 * width, 4 * width);
  list.add("qkv", qkv,
           {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"});
  if (model.qk_norm) list.add("rotation", rotated);
  list.move(turned, turned);
  list.add_attention(attention | statistics, keys, model.attention_width());
  list.add("attn-proj", residual, {"self_attn.o_proj.weight"});
  list.add("norm-2", norm2);
  list.move(2 * width, 4 * width);
  list.add("gate-up", gate_up, {"mlp.gate_proj.weight", "mlp.up_proj.weight"});
  list.add("swiglu", product);
  list.move(3 * model.ffn, 5 * model.ffn);
  list.add("output", saved_none, {"mlp.down_proj.weight"});
}

double layer_backward_flops(const ModelSpec& model, std::int64_t sequences,
                            std::int64_t tokens_per_sequence) {
  double flops = 0;
  for (const LayerOperator& one : layer_operators(model, sequences, tokens_per_sequence))
    flops += one.backward_flops;
  return flops;
}

// Logits, the gradient of their input and, where the head is trained, of its matrix.
int head_products(const ModelSpec& model) {
  return trained_elements(model, head_unit(model)) > 0 ? 3 : 2;
}

// So many times the inputs of groups and the outputs of matrices.
std::uint64_t adapter_bytes(const Problem& problem, std::int64_t inputs, std::int64_t outputs) {
  std::int64_t columns = 0;
  int group = -1;
  for (const AdaptedMatrix& one : adapted_matrices(problem.model)) {
    columns += outputs * one.rows + (one.group == group ? 0 : inputs * one.columns);
    group = one.group;
  }
  return static_cast<std::uint64_t>(problem.workload.micro_batch * problem.workload.sequence *
                                    columns) *
         problem.activation_bytes();
}

// Rows of tables that make the embedding of a token.
std::uint64_t rows_of_token(const ModelSpec& model) {
  return model.architecture == Architecture::gpt ? 2 : 1;
}

}  // namespace

std::vector<LayerOperator> layer_operators(const ModelSpec& model, std::int64_t sequences,
                                           std::int64_t tokens_per_sequence) {
  const double tokens = static_cast<double>(sequences) * static_cast<double>(tokens_per_sequence);
  const double keys = keys_of_query(model, tokens_per_sequence);
  OperatorList list(model, tokens);
  model.architecture == Architecture::gpt ? add_gpt(list, model, keys)
                                          : add_llama(list, model, keys);
  return list.take();
}

std::vector<SavedMask> recompute_groups(const ModelSpec& model) {
  std::vector<SavedMask> groups;
  for (const LayerOperator& one : layer_operators(model, 1, 1)) {
    if (one.makes != saved_none) groups.push_back(one.makes);
  }
  return groups;
}

double recompute_flops(const Problem& problem, SavedMask available, bool output) {
  const Workload& workload = problem.workload;
  double flops = 0;
  for (const LayerOperator& one :
       layer_operators(problem.model, workload.micro_batch, workload.sequence)) {
    const int missing = one.makes & ~available;
    if (one.makes == saved_none ? output : missing != 0)
      flops += missing == saved_statistics ? one.statistics_flops : one.flops;
  }
  return flops;
}

double forward_flops(const Problem& problem) {
  return problem.model.layer_forward_flops(problem.workload.micro_batch, problem.workload.sequence);
}

double backward_flops(const Problem& problem, SavedMask available, bool output) {
  return layer_backward_flops(problem.model, problem.workload.micro_batch,
                              problem.workload.sequence) +
         recompute_flops(problem, available, output);
}

double input_gradient_flops(const Problem& problem, SavedMask available, bool output) {
  return backward_flops(problem, available, output) - weight_gradient_flops(problem);
}

double weight_gradient_flops(const Problem& problem) {
  const Workload& workload = problem.workload;
  const auto tokens = static_cast<double>(workload.micro_batch * workload.sequence);
  double flops = 0;
  for (const LayerOperator& one :
       layer_operators(problem.model, workload.micro_batch, workload.sequence))
    flops += 2 * tokens * static_cast<double>(one.inputs) * static_cast<double>(one.outputs);
  return flops;
}

double head_flops(const Problem& problem) {
  return head_products(problem.model) *
         problem.model.head_forward_flops(problem.workload.micro_batch, problem.workload.sequence);
}

double step_flops(const ModelSpec& model, std::int64_t batch, std::int64_t tokens_per_sequence) {
  if (model.trained_parameters() == model.parameters())
    return 3 * model.forward_flops(batch, tokens_per_sequence);
  const auto backwards = static_cast<double>(model.layers - first_backward_layer(model));
  return static_cast<double>(model.layers) * model.layer_forward_flops(batch, tokens_per_sequence) +
         backwards * layer_backward_flops(model, batch, tokens_per_sequence) +
         head_products(model) * model.head_forward_flops(batch, tokens_per_sequence);
}

std::int64_t first_backward_layer(const ModelSpec& model) { return model.frozen_layers; }

std::uint64_t adapter_forward_bytes(const Problem& problem) {
  // A x reads the input; the output is read and written once more.
  return adapter_bytes(problem, 1, 2);
}

std::uint64_t adapter_backward_bytes(const Problem& problem) {
  // The input for A x and for A's gradient, and its own gradient read and written; the output's
  // gradient for B's and for that of A x.
  return adapter_bytes(problem, 4, 2);
}

std::uint64_t embed_forward_bytes(const Problem& problem) {
  // The rows gathered are read, and one row is written.
  return (rows_of_token(problem.model) + 1) * checkpoint_bytes(problem);
}

std::uint64_t embed_backward_bytes(const Problem& problem) {
  // One row is read, and the rows added to are read and written.
  return (2 * rows_of_token(problem.model) + 1) * checkpoint_bytes(problem);
}

}  // namespace spillway
