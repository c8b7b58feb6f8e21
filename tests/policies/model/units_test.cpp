// Units, their tensors, what layers save and compute, for models that differ in what they have.
#include "policies/model/units.hpp"

#include <catch2/catch.hpp>
#include <numeric>

#include "policies/model/operators.hpp"
#include "policies/model/scratch.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

// 2 layers, C = 48, 6 query heads and 2 key and value heads of 16 columns: A = 96, K = 32.
ModelSpec small_llama() {
  ModelSpec model;
  model.name = "small";
  model.architecture = Architecture::llama;
  model.layers = 2;
  model.hidden = 48;
  model.heads = 6;
  model.kv_heads = 2;
  model.head_width = 16;
  model.ffn = 80;
  model.vocabulary = 100;
  model.positions = 64;
  model.qkv_bias = model.tied = false;
  return model;
}

Problem problem_of(const ModelSpec& model) {
  Problem problem = tiny_problem(2, 1);
  problem.model = model;
  problem.validate();
  return problem;
}

std::vector<std::string> names(const std::vector<TensorLayout>& layout) {
  std::vector<std::string> all;
  for (const TensorLayout& tensor : layout) all.emplace_back(tensor.name);
  return all;
}

}  // namespace

TEST_CASE("units are layers, embedding and, where the head is untied, the head") {
  ModelSpec model = small_llama();
  CHECK(unit_count(model) == 4);
  CHECK(embedding_unit(model) == 2);
  CHECK(head_unit(model) == 3);
  CHECK(unit_name(model, 1) == "layer 1");
  CHECK(unit_name(model, 2) == "the embedding");
  CHECK(unit_name(model, 3) == "the head");
  CHECK(names(unit_layout(model, 2)) == std::vector<std::string>{"model.embed_tokens.weight"});
  CHECK(names(unit_layout(model, 3)) ==
        std::vector<std::string>{"model.norm.weight", "lm_head.weight"});
  model.tied = true;
  CHECK(unit_count(model) == 3);
  CHECK(head_unit(model) == embedding_unit(model));
  CHECK(names(unit_layout(model, 2)) ==
        std::vector<std::string>{"model.embed_tokens.weight", "model.norm.weight"});
  CHECK(head_unit(load_model("gpt-tiny")) == 4);
}

TEST_CASE("a llama layer has Hugging Face's tensors, those of one product side by side") {
  ModelSpec model = small_llama();
  const std::vector<std::string> plain = {
      "input_layernorm.weight",  "self_attn.q_proj.weight", "self_attn.k_proj.weight",
      "self_attn.v_proj.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight",
      "mlp.gate_proj.weight",    "mlp.up_proj.weight",      "mlp.down_proj.weight"};
  CHECK(names(unit_layout(model, 0)) == plain);
  model.qkv_bias = model.qk_norm = true;
  std::vector<std::string> whole = plain;
  whole.insert(whole.begin() + 4,
               {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias",
                "self_attn.q_norm.weight", "self_attn.k_norm.weight"});
  const std::vector<TensorLayout> layout = unit_layout(model, 0);
  CHECK(names(layout) == whole);
  std::int64_t offset = 0;
  for (const TensorLayout& tensor : layout) {
    INFO(tensor.name);
    CHECK(tensor.offset == offset);
    CHECK(tensor.decay == (tensor.rows > 1));
    offset += tensor.elements();
  }
  CHECK(unit_parameters(model, 0) == offset);
  // 48 + 96 x 48 queries, twice 32 x 48 keys and values, 160 biases, twice 16 norms, 48 x 96, 48,
  // three times 80 x 48.
  CHECK(offset == 48 + 96 * 48 + 2 * 32 * 48 + 160 + 2 * 16 + 48 * 96 + 48 + 3 * 80 * 48);
  CHECK(layout[1].rows == 96);
  CHECK(layout[2].rows == 32);
  CHECK(layout[9].columns == 96);
}

TEST_CASE("parameters are counted from the tensors: 2 A C + 2 K C + 3 C F + 2 C in a llama layer") {
  ModelSpec model = small_llama();
  const std::int64_t layer = 2 * 96 * 48 + 2 * 32 * 48 + 3 * 48 * 80 + 2 * 48;
  CHECK(model.layer_parameters() == layer);
  CHECK(model.embedding_parameters() == 2 * 100 * 48 + 48);
  CHECK(model.parameters() == 2 * layer + 2 * 100 * 48 + 48);
  model.tied = true;
  CHECK(model.embedding_parameters() == 100 * 48 + 48);
}

TEST_CASE("what a layer may save is a list of the model, with qk_norm of one tensor more") {
  ModelSpec model = small_llama();
  const auto widths = [](const ModelSpec& of) {
    std::vector<std::int64_t> all;
    for (const SavedTensor& tensor : saved_tensors(of)) all.push_back(tensor.width);
    return all;
  };
  CHECK(widths(model) == std::vector<std::int64_t>{48, 160, 96, 48, 48, 160, 80, 2 + 6});
  CHECK(saved_all(model) == 0xff);
  model.qk_norm = true;
  CHECK(widths(model) ==
        std::vector<std::int64_t>{48, 160, 96, 48, 48, 160, 80, 2 + 6 + 6 + 2, 96 + 32});
  CHECK(saved_all(model) == 0x1ff);
  CHECK(saved_others(model, 0x101) == 0xfe);
  const ModelSpec gpt = load_model("gpt-tiny");
  CHECK(widths(gpt) == std::vector<std::int64_t>{128, 384, 128, 128, 128, 512, 512, 4 + 4});
  for (const ModelSpec& one : {model, gpt}) {
    SavedMask bits = 0;
    for (const SavedTensor& tensor : saved_tensors(one)) {
      CHECK(tensor.bit == bits + 1);  // ascending, one bit each
      CHECK(tensor.fp32 == (tensor.name == "statistics"));
      bits = static_cast<SavedMask>(bits | tensor.bit);
    }
    CHECK(bits == saved_all(one));
  }
}

TEST_CASE("operators make every saved tensor once, and meet every matrix of the layer once") {
  ModelSpec normed = small_llama();
  normed.qk_norm = true;
  for (const ModelSpec& model : {small_llama(), normed, load_model("gpt-tiny")}) {
    SavedMask made = 0;
    double flops = 0;
    for (const LayerOperator& one : layer_operators(model, 1, 1)) {
      CHECK((made & one.makes) == 0);
      made = static_cast<SavedMask>(made | one.makes);
      flops += one.flops;
    }
    CHECK(made == saved_all(model));
    double matrices = 0;
    for (const TensorLayout& tensor : unit_layout(model, 0))
      matrices += tensor.decay ? static_cast<double>(tensor.elements()) : 0;
    // One token that meets one key.
    CHECK(flops == 2 * matrices + 4 * static_cast<double>(model.attention_width()));
  }
}

TEST_CASE("attention's FLOPs are of its own width, and of a window only what the window sees") {
  ModelSpec model = small_llama();
  const auto attention = [&](std::int64_t tokens) {
    for (const LayerOperator& one : layer_operators(model, 1, tokens))
      if (one.name == "attention") return one.flops;
    return 0.0;
  };
  CHECK(attention(32) == 4.0 * 32 * 32 * 96);
  // As without its causal half: of 32 tokens the first 8 meet what they would, the others 8 keys.
  model.window = 8;
  CHECK(attention(32) == 4.0 * 96 * (8 * 8 + 24 * 8 * 2));
  model.window = 32;
  CHECK(attention(32) == 4.0 * 32 * 32 * 96);
}

TEST_CASE("what is recomputed costs the operators whose tensors are missing") {
  ModelSpec model = small_llama();
  model.qk_norm = true;
  const Problem problem = problem_of(model);
  const double tokens = 2 * 16, scores = 2 * tokens * 16 * 96;
  const auto without = [&](SavedMask missing) {
    return recompute_flops(problem, saved_others(model, missing), false);
  };
  CHECK(without(llama_saved::qkv) == 2 * tokens * 48 * (96 + 64));
  CHECK(without(llama_saved::residual) == 2 * tokens * 96 * 48);
  CHECK(without(llama_saved::gate_up) == 2 * tokens * 48 * 160);
  CHECK(without(llama_saved::attention) == 2 * scores);
  CHECK(without(llama_saved::statistics) == scores);
  CHECK(without(llama_saved::rotated | llama_saved::norm1 | llama_saved::norm2 |
                llama_saved::product) == 0);
  CHECK(recompute_flops(problem, saved_none, true) == forward_flops(problem));
}

TEST_CASE("backward's scratch has room for the widest gradients of a llama") {
  // T = 16: gate and up (160) are as wide as qkv (160); attention (96) is wider than C.
  Problem problem = problem_of(small_llama());
  problem.trains_on = Backend::cuda;
  const auto page = [](std::uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; };
  CHECK(backward_scratch_bytes(problem, saved_all(problem.model)) ==
        page(16 * (160 + 96) * 2 + 16 * 6 * 4));
}
