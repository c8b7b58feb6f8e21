#include "experiments/testbed/testbed_grid.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "experiments/testbed/throttled_machine.hpp"
#include "policies/common/policy.hpp"
#include "policies/machine/field_reader.hpp"

namespace spillway {

namespace embedded {
const std::vector<std::pair<std::string, std::string>>& testbed_files();  // testbed/*.toml
}

namespace {

template <class Value>
std::vector<Value> read_list(const toml::node& node, const std::string& key,
                             const std::string& origin, const char* example) {
  std::vector<Value> values;
  const toml::array* array = node.as_array();
  for (std::size_t i = 0; array && i < array->size(); ++i) {
    const auto value = (*array)[i].value_exact<Value>();
    if (!value) {
      throw InputError(place_of((*array)[i].source(), origin), 0,
                       fmt::format("{}: a value of another type", key), example);
    }
    values.push_back(*value);
  }
  if (values.empty())
    throw InputError(place_of(node.source(), origin), 0, fmt::format("{} is not a list", key),
                     example);
  return values;
}

}  // namespace

Problem TestbedConfiguration::problem(const Machine& base) const {
  Problem problem;
  problem.model = regime.model;
  problem.machine = throttled_machine(base, regime.rates);
  problem.machine.gpu.memory = regime.gpu_memory;
  problem.machine.host.memory = regime.host_memory;
  problem.workload = {batch, std::min(batch, regime.micro_batch), regime.sequence, Precision::fp32,
                      GradientWidth::automatic};
  problem.validate();
  return problem;
}

TestbedRegime parse_regime(const std::string& toml_text, const std::string& origin) {
  const toml::table document = parse_toml(toml_text, origin);
  TestbedRegime regime;
  std::string model;
  FieldReader reader(
      {text_field("name", regime.name, "pcie-bound"),
       text_field("description", regime.description, "copies take longest"),
       text_field("throttle", regime.throttle, "h2d=200MB/s,d2h=200MB/s"),
       text_field("model", model, "gpt-small"), count_field("sequence", regime.sequence),
       count_field("micro_batch", regime.micro_batch), bytes_field("gpu_memory", regime.gpu_memory),
       bytes_field("host_memory", regime.host_memory)},
      origin, origin + ":1:1", nullptr);
  for (const auto& [key, value] : document) {
    if (key.str() == "batches") {
      regime.batches = read_list<std::int64_t>(value, "batches", origin, "write batches = [2, 6]");
    } else if (key.str() == "policies") {
      regime.policies = read_list<std::string>(value, "policies", origin,
                                               "write policies = [\"resident\", \"fuyou\"]");
    } else {
      reader.read("", key, value);
    }
  }
  reader.require({"name", "description", "throttle", "model", "gpu_memory", "host_memory"});
  if (regime.batches.empty() || regime.policies.empty())
    reader.fail({"name", "the regime has no batches or no policies",
                 "write batches = [2, 6] and policies = [\"resident\", \"fuyou\"]"});
  for (const std::int64_t batch : regime.batches) {
    if (batch < 1 || regime.micro_batch < 1 || batch % regime.micro_batch != 0)
      reader.fail({"micro_batch", fmt::format("a batch of {} is not a multiple of it", batch),
                   "choose batches that are"});
  }
  regime.model = load_model(model);
  regime.rates = parse_throttle(regime.throttle);
  for (std::string& policy : regime.policies) policy = canonical_policy(policy);
  return regime;
}

std::vector<TestbedRegime> builtin_regimes() {
  std::vector<TestbedRegime> regimes;
  for (const auto& [file, text] : embedded::testbed_files())
    regimes.push_back(parse_regime(text, "experiments/testbed/" + file));
  std::stable_partition(regimes.begin(), regimes.end(),
                        [](const TestbedRegime& regime) { return regime.throttled(); });
  return regimes;
}

std::vector<TestbedRegime> find_regimes(const std::vector<std::string>& names) {
  const std::vector<TestbedRegime> all = builtin_regimes();
  if (names.empty()) return all;
  std::vector<std::string> known;
  for (const TestbedRegime& regime : all) known.push_back(regime.name);
  std::vector<TestbedRegime> found;
  for (const std::string& name : names) {
    const auto at = std::find(known.begin(), known.end(), name);
    if (at != known.end()) {
      found.push_back(all[static_cast<std::size_t>(at - known.begin())]);
    } else if (const auto text = read_named_file(name)) {
      found.push_back(parse_regime(*text, name));
    } else {
      throw InputError(fmt::format("unknown regime {}", name),
                       unknown_name_hint(name, known) + "; a path of a TOML file works too");
    }
  }
  return found;
}

std::vector<TestbedConfiguration> configurations(const std::vector<TestbedRegime>& regimes,
                                                 bool quick) {
  std::vector<TestbedConfiguration> all;
  for (const TestbedRegime& regime : regimes) {
    for (const std::int64_t batch : regime.batches) {
      if (quick && batch != *std::min_element(regime.batches.begin(), regime.batches.end()))
        continue;
      for (std::size_t p = 0; p < regime.policies.size(); p += quick ? 2 : 1)
        all.push_back({regime, regime.policies[p], batch});
    }
  }
  return all;
}

}  // namespace spillway
