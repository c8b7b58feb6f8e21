// config.json of a model on Hugging Face: any text.
#include <cmath>

#include "policies/model/hugging_face.hpp"
#include "policies/model/hugging_face_tensors.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace spillway;

SPILLWAY_FUZZ_TARGET(config_json) {
  const std::string text = fuzz::text_of(input);
  ModelSpec model;
  if (!fuzz::accepted([&] { model = parse_hugging_face_config(text, "config.json", "model"); }))
    return;
  fuzz::require(fuzz::accepted([&] { model.validate(); }), "a model that was read is valid");
  fuzz::require(model.parameters() > 0, "a model has parameters");
  fuzz::require(std::isfinite(model.forward_flops(1, model.positions)), "FLOPs are finite");
  for (const std::int64_t unit : {std::int64_t{0}, head_unit(model)}) {
    for (const HuggingFaceTensor& tensor : hugging_face_tensors(model, unit)) {
      std::int64_t elements = 1;
      for (const std::int64_t size : tensor.shape) elements *= size;
      fuzz::require(elements == tensor.tensor.elements(), "a shape has the tensor's elements");
    }
  }
  const std::string shape = model_to_toml(model);
  const auto require_same = [&](const std::string& written) {
    ModelSpec again;
    fuzz::require(
        fuzz::accepted([&] { again = parse_hugging_face_config(written, "written", "model"); }),
        "what is written is read");
    again.source = model.source;  // a llama with a window is written as a Mistral
    fuzz::require(model_to_toml(again) == shape, "a model read again is the same model");
  };
  require_same(hugging_face_config(model, "float32"));
  require_same(hugging_face_config(text, "bfloat16"));
}
