#include "policies/model/model.hpp"

#include <catch2/catch.hpp>

#include <fstream>
#include <set>
#include <string>

#include "tests/policies/input_error.hpp"

using namespace spillway;

namespace {

const std::string tiny = R"([[model]]
name = "tiny"
layers = 2
hidden = 8
heads = 2
vocabulary = 16
positions = 32
)";

void check_equal(const ModelSpec& a, const ModelSpec& b) {
  CHECK(a.name == b.name);
  CHECK(a.architecture == b.architecture);
  CHECK(a.layers == b.layers);
  CHECK(a.hidden == b.hidden);
  CHECK(a.heads == b.heads);
  CHECK(a.kv_heads == b.kv_heads);
  CHECK(a.head_width == b.head_width);
  CHECK(a.norm_epsilon == b.norm_epsilon);
  CHECK(a.rope_theta == b.rope_theta);
  CHECK(a.rope_scaling == b.rope_scaling);
  CHECK(a.rope_factor == b.rope_factor);
  CHECK(a.rope_low_frequency_factor == b.rope_low_frequency_factor);
  CHECK(a.rope_high_frequency_factor == b.rope_high_frequency_factor);
  CHECK(a.rope_original_positions == b.rope_original_positions);
  CHECK(a.qkv_bias == b.qkv_bias);
  CHECK(a.qk_norm == b.qk_norm);
  CHECK(a.window == b.window);
  CHECK(a.tied == b.tied);
  CHECK(a.ffn == b.ffn);
  CHECK(a.vocabulary == b.vocabulary);
  CHECK(a.positions == b.positions);
  CHECK(a.source == b.source);
}

// `tiny` with one line exchanged.
std::string tiny_with(const std::string& from, const std::string& to) {
  std::string text = tiny;
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("parameters of a GPT: L (12 C^2 + 13 C) + (V + positions + 2) C, GPT-2 as released") {
  CHECK(load_model("gpt2-124m").parameters() == 124'439'808);
  CHECK(load_model("gpt2-355m").parameters() == 354'823'168);
  CHECK(load_model("gpt2-774m").parameters() == 774'030'080);
  CHECK(load_model("gpt2-1.5b").parameters() == 1'557'611'200);
  CHECK(load_model("gpt2-124m").layer_parameters() == 12 * 768 * 768 + 13 * 768);
  CHECK(load_model("gpt2-124m").embedding_parameters() == (50257 + 1024 + 2) * 768);
  CHECK(load_model("gpt-tiny").parameters() == 957'184);
  CHECK(load_model("gpt-small").parameters() == 5'066'752);
}

TEST_CASE("parameters of a Llama as released: untied head, RMSNorm, no biases, grouped queries") {
  CHECK(load_model("llama-7b").parameters() == 6'738'415'616);
  CHECK(load_model("llama-13b").parameters() == 13'015'864'320);
  CHECK(load_model("llama-30b").parameters() == 32'528'943'616);
  CHECK(load_model("llama-65b").parameters() == 65'285'660'672);
}

// The sums of all tensors of the released checkpoints; a tied head counts once.
TEST_CASE("parameters of the open models that people fine-tune, as released") {
  struct Row {
    const char* name;
    std::int64_t parameters;
  };
  for (const Row& row :
       {Row{"llama-2-7b", 6'738'415'616},      Row{"llama-2-13b", 13'015'864'320},
        Row{"llama-2-70b", 68'976'648'192},    Row{"llama-3-8b", 8'030'261'248},
        Row{"llama-3-70b", 70'553'706'496},    Row{"llama-3.1-8b", 8'030'261'248},
        Row{"llama-3.1-70b", 70'553'706'496},  Row{"llama-3.1-405b", 405'853'388'800},
        Row{"llama-3.2-1b", 1'235'814'400},    Row{"llama-3.2-3b", 3'212'749'824},
        Row{"qwen2.5-0.5b", 494'032'768},      Row{"qwen2.5-1.5b", 1'543'714'304},
        Row{"qwen2.5-3b", 3'085'938'688},      Row{"qwen2.5-7b", 7'615'616'512},
        Row{"qwen2.5-14b", 14'770'033'664},    Row{"qwen2.5-32b", 32'763'876'352},
        Row{"qwen2.5-72b", 72'706'203'648},    Row{"qwen3-0.6b", 596'049'920},
        Row{"qwen3-1.7b", 1'720'574'976},      Row{"qwen3-4b", 4'022'468'096},
        Row{"qwen3-8b", 8'190'735'360},        Row{"qwen3-14b", 14'768'307'200},
        Row{"qwen3-32b", 32'762'123'264},      Row{"mistral-7b", 7'241'732'096},
        Row{"mistral-7b-v0.3", 7'248'023'552}, Row{"smollm2-135m", 134'515'008},
        Row{"smollm2-360m", 361'821'120},      Row{"smollm2-1.7b", 1'711'376'384}}) {
    INFO(row.name);
    CHECK(load_model(row.name).parameters() == row.parameters);
  }
}

TEST_CASE("model states of Ratel's models, 14 bytes a parameter, to 1 % (ICDE 2025, Table IV)") {
  struct Row {
    const char* name;
    double gigabytes;
  };
  for (const Row& row : {Row{"gpt-6b", 82}, Row{"gpt-13b", 180}, Row{"gpt-30b", 420},
                         Row{"gpt-65b", 908}, Row{"gpt-135b", 1884}, Row{"gpt-175b", 2444},
                         Row{"gpt-276b", 3878}, Row{"gpt-412b", 5785}}) {
    INFO(row.name);
    const double states = 14e-9 * static_cast<double>(load_model(row.name).parameters());
    CHECK(states == Approx(row.gigabytes).epsilon(0.01));
  }
  CHECK(load_model("gpt-30b").heads == 56);
}

TEST_CASE("GPT-3 sizes agree with the published counts to 2 %") {
  struct Row {
    const char* name;
    double parameters;
  };
  for (const Row& row : {Row{"gpt3-125m", 125e6}, Row{"gpt3-350m", 356e6}, Row{"gpt3-760m", 760e6},
                         Row{"gpt3-1.3b", 1.3e9}, Row{"gpt3-2.7b", 2.65e9}, Row{"gpt3-6.7b", 6.7e9},
                         Row{"gpt3-13b", 13e9}, Row{"gpt3-175b", 175e9}}) {
    INFO(row.name);
    CHECK(static_cast<double>(load_model(row.name).parameters()) ==
          Approx(row.parameters).epsilon(0.02));
    CHECK(load_model(row.name).positions == 2048);
  }
}

TEST_CASE("a layer's forward of a GPT is 24 b T C^2 + 4 b T^2 C FLOPs, the head's 2 b T C V") {
  const ModelSpec model = load_model("gpt-65b");
  const double b = 3, t = 2048, c = 8192, v = 50257;
  CHECK(model.layer_forward_flops(3, 2048) == 24 * b * t * c * c + 4 * b * t * t * c);
  CHECK(model.head_forward_flops(3, 2048) == 2 * b * t * c * v);
  CHECK(model.forward_flops(3, 2048) ==
        80 * model.layer_forward_flops(3, 2048) + model.head_forward_flops(3, 2048));
}

TEST_CASE("four forwards without the head are Ratel's 96 L h^2 (1 + s / 6h) FLOPs a token") {
  const ModelSpec model = load_model("gpt-13b");
  const double per_token = 4 * 40 * model.layer_forward_flops(1, 1024) / 1024;
  CHECK(per_token == Approx(96.0 * 40 * 5120 * 5120 * (1 + 1024.0 / (6 * 5120))).epsilon(1e-12));
  CHECK(per_token == Approx(1.0402e11).epsilon(1e-4));
}

TEST_CASE("a Llama layer's forward is 2 FLOPs a matrix element and token, plus 4 T C attention") {
  const ModelSpec model = load_model("llama-2-70b");
  const double c = 8192, kv = 8 * 128, ffn = 28672, t = 4096;
  const double matrices = 2 * c * c + 2 * c * kv + 3 * c * ffn;
  CHECK(model.layer_forward_flops(1, 4096) == 2 * t * matrices + 4 * t * t * c);
}

TEST_CASE("every built-in model is valid, has its own name and a source, and loads by name") {
  std::set<std::string> names;
  for (const ModelSpec& model : builtin_models()) {
    INFO(model.name);
    CHECK_NOTHROW(model.validate());
    CHECK(names.insert(model.name).second);
    CHECK(model.source.size() > 10);
    check_equal(load_model(model.name), model);
  }
  CHECK(names.size() == 56);
}

TEST_CASE("a model written as TOML reads back the same") {
  for (const ModelSpec& model : builtin_models()) {
    INFO(model.name);
    check_equal(parse_model(model_to_toml(model), "written"), model);
  }
  ModelSpec odd = load_model("llama-2-70b");
  odd.name = "quote \" backslash \\ umlaut \xc3\xbc";
  odd.source = "quote \" backslash \\ newline \n tab \t umlaut \xc3\xbc";
  check_equal(parse_model(model_to_toml(odd), "written"), odd);
  odd.head_width = 256;
  odd.norm_epsilon = 1.25e-6;
  odd.rope_theta = 500'000;
  odd.rope_scaling = RopeScaling::llama3;
  odd.rope_factor = 32;
  odd.rope_low_frequency_factor = 2;
  odd.rope_high_frequency_factor = 8;
  odd.rope_original_positions = 8192;
  odd.qkv_bias = odd.qk_norm = odd.tied = true;
  odd.window = 4096;
  odd.kv_heads = odd.heads;
  check_equal(parse_model(model_to_toml(odd), "written"), odd);
}

TEST_CASE("a written GPT names nothing that a GPT has no choice of") {
  CHECK(model_to_toml(parse_model(tiny, "tiny.toml")) ==
        "[[model]]\nname = \"tiny\"\narchitecture = \"gpt\"\nlayers = 2\nhidden = 8\nheads = 2\n"
        "vocabulary = 16\npositions = 32\nsource = \"\"\n");
}

TEST_CASE("what a GPT leaves out follows from the rest: kv_heads = heads, ffn = 4 hidden") {
  const ModelSpec model = parse_model(tiny, "tiny.toml");
  CHECK(model.architecture == Architecture::gpt);
  CHECK(model.kv_heads == 2);
  CHECK(model.ffn == 32);
  CHECK(model.source.empty());
  const ModelSpec wide = parse_model(model_to_toml(model), "tiny.toml", {"hidden=16", "heads=4"});
  CHECK(wide.ffn == 64);
  CHECK(wide.kv_heads == 4);
}

TEST_CASE("option --set changes a built-in model, and the last of two wins") {
  const ModelSpec model = load_model("gpt-13b", {"layers=2", "layers=48", "positions=4096"});
  CHECK(model.layers == 48);
  CHECK(model.positions == 4096);
  CHECK(model.hidden == 5120);
  CHECK(load_model("gpt-13b").layers == 40);
}

TEST_CASE("errors of an override name it, and the key that was meant") {
  const auto set = [](const std::string& text) { return [=] { load_model("gpt-13b", {text}); }; };
  check_error(set("layer=3"), "model.layer=3: unknown key layer", "did you mean layers?");
  check_error(set("layers"), "model.layers: not of the form KEY=VALUE", "host.memory = 256GB");
  check_error(set("=3"), "model.=3: not of the form KEY=VALUE", "host.memory = 256GB");
  check_error(set("layers=x"), "model.layers=x: layers: \"x\" is not a whole number", "12");
  check_error(set("layers=-1"), "model.layers=-1: layers: \"-1\" is not a whole number", "12");
  check_error(set("layers=1.5"), "model.layers=1.5: layers: \"1.5\" is not a whole", "12");
  check_error(set("layers="), "model.layers=: layers: \"\" is not a whole number", "12");
  check_error(set("layers=0"), "model.layers=0: layers: 0 is outside 1 .. 5000", "");
  check_error(set("heads=48"), "model.heads=48: heads: 48 heads do not divide hidden = 5120",
              "use 40 or 64 heads");
  check_error(set("architecture=lama"), "model.architecture=lama: architecture: unknown value",
              "did you mean llama?");
  check_error(set("ffn=1000"), "model.ffn=1000: ffn: 1000 is not 4 x hidden", "leave ffn out");
  check_error(set("kv_heads=8"), "model.kv_heads=8: kv_heads: 8 differs from heads = 40",
              "architecture = \"llama\"");
}

TEST_CASE("errors in a model file name file, line and column") {
  const auto parse = [](const std::string& text) { return [=] { parse_model(text, "m.toml"); }; };
  check_error(parse(tiny_with("hidden = 8", "hidden = 8 8")),
              "m.toml:4:12: ", "docs/machine-files.md");
  check_error(parse(tiny_with("hidden", "hiden")), "m.toml:4:1: unknown key hiden",
              "did you mean hidden?");
  check_error(parse(tiny_with("heads = 2\n", "heads = 2\nheads = 2\n")), "m.toml:6:", "");
  check_error(parse(tiny_with("layers = 2", "layers = \"2\"")), "m.toml:3:10: layers is a string",
              "write for example layers = 12");
  check_error(parse(tiny_with("layers = 2", "layers = 2.5")), "m.toml:3:10: layers: \"2.5\" is not",
              "12");
  check_error(parse(tiny_with("layers = 2", "layers = 1000000")),
              "m.toml:3:10: layers: 1000000 is outside", "");
  check_error(parse(tiny_with("layers = 2", "layers = {value = 2}")),
              "m.toml:3:10: layers is a table", "");
  check_error(parse(tiny_with("\"tiny\"", "3")), "m.toml:2:8: name is an integer",
              "name = \"my-model\"");
  check_error(parse(tiny_with("\"tiny\"", "\"\"")), "m.toml:2:8: name: it is empty", "");
  check_error(parse(tiny_with("heads = 2", "heads = 3")),
              "m.toml:5:9: heads: 3 heads do not divide hidden = 8", "use 2 or 4 heads");
  check_error(parse(tiny_with("heads = 2", "heads = 3000")), "m.toml:5:9: heads: 3000",
              "use 8 heads");
  check_error(parse(tiny_with("layers = 2\n", "")), "m.toml:1:1: layers is missing",
              "add for example layers = 12");
}

TEST_CASE("a Llama file needs its feed-forward width, and kv_heads that divide heads") {
  const std::string llama = tiny_with("layers", "architecture = \"llama\"\nlayers");
  check_error([&] { parse_model(llama, "m.toml"); }, "m.toml:1:1: ffn is missing", "ffn = 12");
  check_error([&] { parse_model(llama + "ffn = 24\nkv_heads = 3\n", "m.toml"); },
              "m.toml:10:12: kv_heads: 3 does not divide heads = 2", "use 2");
  CHECK(parse_model(llama + "ffn = 24\nkv_heads = 1\n", "m.toml").kv_heads == 1);
  CHECK(parse_model(llama + "ffn = 24\n", "m.toml").kv_heads == 2);
}

TEST_CASE("what a llama leaves out: heads of hidden / heads columns, no biases, an untied head") {
  const std::string llama = tiny_with("layers", "architecture = \"llama\"\nlayers") + "ffn = 24\n";
  const ModelSpec model = parse_model(llama, "m.toml");
  CHECK(model.width_of_head() == 4);
  CHECK_FALSE(model.qkv_bias);
  CHECK_FALSE(model.tied);
  const ModelSpec qwen =
      parse_model(llama + "head_width = 16\nqkv_bias = true\ntied = true\n", "m.toml");
  CHECK(qwen.attention_width() == 32);
  CHECK(qwen.qkv_bias);
  CHECK(qwen.tied);
  // Heads of a width of their own need not divide hidden.
  CHECK(parse_model(llama + "head_width = 2\n", "m.toml", {"heads=3", "kv_heads=1"}).kv_width() ==
        2);
}

TEST_CASE("values that a llama cannot have are refused, and choices that a gpt has not") {
  const std::string llama = tiny_with("layers", "architecture = \"llama\"\nlayers") + "ffn = 24\n";
  const auto parse = [](const std::string& text) { return [=] { parse_model(text, "m.toml"); }; };
  check_error(parse(llama + "head_width = 3\n"),
              "m.toml:10:14: head_width: heads are 3 columns wide", "even number");
  check_error(parse(llama + "head_width = 10000000\n"), "m.toml:10:14: head_width: 2 heads of", "");
  check_error(parse(llama + "norm_epsilon = 0\n"), "m.toml:10:16: norm_epsilon: 0 is not", "1e-5");
  check_error(parse(llama + "rope_theta = 0.5\n"), "m.toml:10:14: rope_theta: 0.5 is less", "");
  check_error(parse(llama + "rope_scaling = \"yarn\"\n"),
              "m.toml:10:16: rope_scaling: unknown value", "linear");
  check_error(parse(llama + "rope_scaling = \"linear\"\nrope_factor = 0.5\n"),
              "m.toml:11:15: rope_factor: 0.5 is less than 1", "");
  check_error(parse(llama + "rope_scaling = \"llama3\"\n"),
              "m.toml:1:1: rope_original_positions: 0 is less", "8192");
  check_error(parse(llama + "rope_scaling = \"llama3\"\nrope_original_positions = 8\n"
                            "rope_low_frequency_factor = 4\n"),
              "m.toml:12:29: rope_low_frequency_factor: 4 is not above 0 and below", "1 and 4");
  check_error(parse(llama + "window = 1000000000\n"), "m.toml:10:10: window: 1000000000", "");
  for (const char* line :
       {"head_width = 2", "norm_epsilon = 1e-6", "rope_theta = 500000", "rope_scaling = \"linear\"",
        "qkv_bias = false", "qk_norm = true", "window = 4", "tied = false"}) {
    INFO(line);
    const std::string key = std::string(line).substr(0, std::string(line).find(' '));
    check_error(parse(tiny + line + "\n"),
                "m.toml:8:" + std::to_string(key.size() + 4) + ": " + key + ": a gpt has no choice",
                "architecture = \"llama\"");
  }
}

TEST_CASE("a model file is one [[model]] and nothing else") {
  const auto parse = [](const std::string& text) { return [=] { parse_model(text, "m.toml"); }; };
  check_error(parse(""), "m.toml: there is no model", "[[model]]");
  check_error(parse("name = \"a\"\n"), "m.toml:1:1: unknown key name outside [[model]]",
              "[[model]]");
  check_error(parse("[model]\nname = \"a\"\n"), "m.toml:1:1: model is not a list of tables",
              "two brackets");
  check_error(parse("model = [1]\n"), "m.toml:1:9: model is not a list of tables", "two brackets");
  check_error(parse("model = []\n"), "m.toml:1:9: model is not a list of tables", "two brackets");
  check_error(parse(tiny + tiny), "m.toml:8:1: there are 2 models", "file of its own");
}

TEST_CASE("a name that is not built in is a path, or near names are offered") {
  check_error([] { load_model("gpt2-1.4b"); }, "unknown model gpt2-1.4b", "did you mean gpt2-1.5b");
  check_error([] { load_model("bert"); }, "unknown model bert", "known: gpt-tiny, ");
  check_error([] { load_model("no/such.toml"); }, "no/such.toml: cannot read: No such file",
              "spelling");
  check_error([] { load_model("nothere.toml"); }, "nothere.toml: cannot read: No such file",
              "spelling");
  check_error([] { load_model("/tmp/"); }, "/tmp/: is a directory", "TOML file");

  const std::string path = "model_test_tiny.toml";
  std::ofstream(path) << tiny;
  CHECK(load_model(path, {"layers=7"}).layers == 7);
  std::ofstream(path) << "";
  check_error([&] { load_model(path); }, path + ": there is no model", "[[model]]");
  std::remove(path.c_str());
}

TEST_CASE("validate names the model and the field") {
  ModelSpec model = load_model("gpt-tiny");
  model.positions = 0;
  check_error([&] { model.validate(); }, "model gpt-tiny: positions: 0 is outside 1 .. 100000000",
              "");
}

TEST_CASE("a model of more parameters than are planned for is refused, each size being in range") {
  check_error(
      [] {
        load_model("gpt-tiny", {"layers=5000", "hidden=1000000"});
      },
      "model.layers=5000: layers: 5000 layers of 12000013000000 parameters and ", "fewer layers");
}
