// Training records whose JSON is sound and whose values are not: refused as what they are.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "base/errors.hpp"
#include "exec/run/training_record.hpp"
#include "policies/model/model.hpp"

namespace spillway::test {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

json sound() {
  TrainingRecord record;
  record.model = load_model("gpt-tiny");
  record.data = {"/data/text"};
  record.policy = "resident";
  return json::parse(record.to_json());
}

std::string refusal(const json& changed) {
  try {
    TrainingRecord::parse(changed.dump());
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("a training record with numbers that are none of ours is refused, each by its name") {
  REQUIRE(refusal(sound()).empty());
  for (const char* key : {"batch", "micro_batch", "sequence", "sequences_at_once", "seed", "warmup",
                          "decay_steps", "data_bytes"}) {
    for (const json& value : {json(1e300), json(0.5), json("8"), json(nullptr), json::array()}) {
      INFO(key << " is " << value);
      json changed = sound();
      changed["numbers"][key] = value;
      CHECK_THAT(refusal(changed), Contains("cannot be read") && Contains(key));
    }
  }
  json changed = sound();
  changed["numbers"]["seed"] = -1;
  CHECK_THAT(refusal(changed), Contains("seed is -1, not a whole number from 0"));
}

TEST_CASE("a training record with moments that there are not is refused") {
  for (const json& value : {json("fp16"), json(""), json("BF16")}) {
    json changed = sound();
    changed["numbers"]["moments"] = value;
    CHECK_THAT(refusal(changed), Contains("neither fp32 nor bf16"));
  }
  for (const json& value : {json(2), json(nullptr), json::array()}) {
    json changed = sound();
    changed["numbers"]["moments"] = value;
    CHECK_THAT(refusal(changed), Contains("cannot be read"));
  }
}

TEST_CASE("a training record with a setting that there is not is refused") {
  for (const char* key : {"precision", "gradient_bits"}) {
    for (const json& value : {json("fp8"), json(""), json("8"), json(1), json(nullptr)}) {
      INFO(key << " is " << value);
      json changed = sound();
      changed["numbers"][key] = value;
      CHECK_THAT(refusal(changed), Contains("cannot be read"));
    }
  }
}

TEST_CASE("a training record whose hash of the data is no number is refused") {
  for (const char* hash : {"", "x", "12 ", "-1", "0x12", "11112222333344445"}) {
    INFO("the hash is \"" << hash << "\"");
    json changed = sound();
    changed["numbers"]["data_hash"] = hash;
    CHECK_THAT(refusal(changed), Contains("data_hash is not a number"));
  }
}

}  // namespace
}  // namespace spillway::test
