// Model files: any text, read as TOML, written and read again. A line "#set KEY=VALUE" is given as
// `--set model.KEY=VALUE` as well.
#include "policies/model/model.hpp"

#include <cmath>

#include "tests/fuzz/fuzz.hpp"
#include "tests/fuzz/settings.hpp"

using namespace spillway;

SPILLWAY_FUZZ_TARGET(model) {
  const std::string text = fuzz::text_of(input);
  ModelSpec model;
  if (!fuzz::accepted([&] { model = parse_model(text, "model.toml", fuzz::settings_of(text)); })) {
    return;
  }
  fuzz::require(fuzz::accepted([&] { model.validate(); }), "a model that was read is valid");
  fuzz::require(model.parameters() > 0, "a model has parameters");
  fuzz::require(std::isfinite(model.forward_flops(1, model.positions)), "FLOPs are finite");
  const std::string written = model_to_toml(model);
  ModelSpec again;
  fuzz::require(fuzz::accepted([&] { again = parse_model(written, "written.toml"); }),
                "what model_to_toml writes, parse_model reads");
  fuzz::require(model_to_toml(again) == written, "a model read again is the same model");
}
