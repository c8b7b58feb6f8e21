// adapter_config.json of adapters on Hugging Face, beside a tiny llama: any text. After `=`, the
// text of --lora.
#include <fmt/format.h>

#include "policies/model/peft.hpp"
#include "policies/model/units.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace spillway;

namespace {

// Not as they were written: all matrices have two names.
std::string adapters_of(const ModelSpec& model) {
  std::string text = fmt::format("{} {} {}", model.lora_rank, model.lora_alpha, model.lora_dropout);
  for (const AdaptedMatrix& one : adapted_matrices(model)) text += fmt::format(" {}", one.name);
  return text;
}

}  // namespace

SPILLWAY_FUZZ_TARGET(adapter_config) {
  const std::string text = fuzz::text_of(input);
  const std::string base_name = "llama-tiny";
  const ModelSpec base = load_model(base_name);
  const bool in_a_line = !text.empty() && text[0] == '=';
  ModelSpec model;
  const bool accepted = fuzz::accepted([&] {
    model =
        load_model(base_name, in_a_line ? lora_overrides(text.substr(1))
                                        : parse_adapter_config(text, "adapter_config.json", base));
  });
  if (!accepted) return;
  fuzz::require(model.has_adapters(), "a model with adapters");
  fuzz::require(model.trained_parameters() > 0, "adapters have parameters");
  std::vector<std::string> again;
  fuzz::require(fuzz::accepted([&] {
                  again = parse_adapter_config(adapter_config(model, "base"), "written", base);
                }),
                "what is written is read");
  fuzz::require(adapters_of(load_model(base_name, again)) == adapters_of(model),
                "adapters read again are the same");
}
