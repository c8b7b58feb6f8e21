#include "exec/run/training_record.hpp"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "policies/model/model.hpp"
#include "policies/workload/json_number.hpp"

namespace spillway {

namespace {

using nlohmann::ordered_json;

constexpr const char* sequences_at_once = "--sequences-at-once";
constexpr const char* moments_option = "--moments";
constexpr const char* attention_kernels = "SPILLWAY_CUDA_ATTENTION";
constexpr const char* backward_of_gelu = "--gelu-backward";
constexpr const char* tuning_of_products = "--tune-matmul";

// By the option that sets it, for messages.
ordered_json numbers_of(const TrainingRecord& r) {
  const OptimizerSettings& o = r.optimizer;
  return {{"--device", r.backend},
          {attention_kernels, r.attention},
          {backward_of_gelu, r.gelu_backward},
          {tuning_of_products, r.tunes_products ? "on" : "off"},
          {"--model", model_to_toml(r.model)},
          {"--batch", r.workload.batch},
          {"--micro-batch", r.workload.micro_batch},
          {"--sequence", r.workload.sequence},
          {sequences_at_once, r.workload.sequences_at_once},
          {"--precision", static_cast<int>(r.workload.precision)},
          {"--gradient-bits", static_cast<int>(r.workload.gradient)},
          {moments_option, to_string(r.workload.moments)},
          {"--gradient-clip", to_string(r.workload.clip)},
          {"--on-nonfinite", to_string(r.workload.on_nonfinite)},
          {"--seed", r.seed},
          {"--learning-rate", o.learning_rate},
          {"--beta1", o.beta1},
          {"--beta2", o.beta2},
          {"epsilon", o.epsilon},
          {"--weight-decay", o.weight_decay},
          {"--warmup", o.warmup_steps},
          {"--decay-steps", o.decay_steps},
          {"the size of --data in bytes", r.data_bytes},
          {"the hash of --data", fmt::format("{:016x}", r.data_hash)}};
}

// The value of `all` whose number this is.
template <class Enum>
Enum one_of(std::initializer_list<Enum> all, std::int64_t number) {
  for (const Enum value : all) {
    if (static_cast<std::int64_t>(value) == number) return value;
  }
  throw InputError(
      fmt::format("a commit record that cannot be read: no setting has the number {}", number),
      "use the version of Spillway that wrote it");
}

// From 16 hexadecimal digits.
std::uint64_t hash_of(const std::string& digits) {
  std::uint64_t hash = 0;
  const char* const end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, hash, 16);
  if (error == std::errc() && stop == end) return hash;
  throw InputError("a commit record that cannot be read: the hash of --data is not a number",
                   "use the version of Spillway that wrote it");
}

// As it is given on the command line.
std::string shown(const std::string& name, const ordered_json& value) {
  if (name == "--precision") return value == static_cast<int>(Precision::bf16) ? "bf16" : "fp32";
  if (name == "--gradient-bits") {
    const auto width = static_cast<GradientWidth>(value.get<int>());
    return width == GradientWidth::automatic ? "auto"
           : width == GradientWidth::bits16  ? "16"
                                             : "32";
  }
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

std::string TrainingRecord::to_json() const {
  ordered_json json;
  json["numbers"] = numbers_of(*this);
  json["data"] = ordered_json::array();
  for (const std::filesystem::path& path : data) json["data"].push_back(path.string());
  json["policy"] = policy;
  json["steps"] = steps;
  if (!algorithms.empty()) json["algorithms"] = algorithms;
  return json.dump();
}

TrainingRecord TrainingRecord::parse(const std::string& text) {
  const std::string place = "a commit record that cannot be read";
  try {
    if (nested_deeper(text, most_nesting))
      throw InputError("a commit record whose training is nested too deeply",
                       "the file is damaged: restore it from a backup");
    const ordered_json json = ordered_json::parse(text);
    const ordered_json& n = json.at("numbers");
    const auto count = [&](const char* key) { return whole_number<std::int64_t>(n, key, place); };
    TrainingRecord r;
    r.model = parse_model(n.at("--model"), "commit record (model)");
    r.workload.batch = count("--batch");
    r.workload.micro_batch = count("--micro-batch");
    r.workload.sequence = count("--sequence");
    r.workload.sequences_at_once = n.contains(sequences_at_once) ? count(sequences_at_once) : 1;
    r.backend = n.value("--device", cpu_backend);
    r.attention = n.value(attention_kernels, usual_attention);
    r.gelu_backward = n.value(backward_of_gelu, usual_gelu_backward);
    r.tunes_products = n.value(tuning_of_products, "off") == "on";
    r.algorithms = json.value("algorithms", "");
    r.workload.precision = one_of({Precision::bf16, Precision::fp32}, count("--precision"));
    r.workload.gradient =
        one_of({GradientWidth::automatic, GradientWidth::bits16, GradientWidth::bits32},
               count("--gradient-bits"));
    r.workload.moments =
        parse_moments(moments_option, n.value(moments_option, to_string(MomentWidth::fp32)));
    r.workload.clip = parse_gradient_clip("--gradient-clip", n.at("--gradient-clip"));
    r.workload.on_nonfinite = parse_on_nonfinite("--on-nonfinite", n.at("--on-nonfinite"));
    r.seed = whole_number<std::uint64_t>(n, "--seed", place);
    r.optimizer.learning_rate = n.at("--learning-rate");
    r.optimizer.beta1 = n.at("--beta1");
    r.optimizer.beta2 = n.at("--beta2");
    r.optimizer.epsilon = n.at("epsilon");
    r.optimizer.weight_decay = n.at("--weight-decay");
    r.optimizer.warmup_steps = count("--warmup");
    r.optimizer.decay_steps = count("--decay-steps");
    r.data_bytes = whole_number<std::uint64_t>(n, "the size of --data in bytes", place);
    r.data_hash = hash_of(n.at("the hash of --data"));
    for (const ordered_json& path : json.at("data")) r.data.emplace_back(path.get<std::string>());
    r.policy = json.at("policy");
    r.steps = whole_number<std::int64_t>(json, "steps", place);
    return r;
  } catch (const nlohmann::json::exception& error) {
    throw InputError(fmt::format("a commit record that cannot be read: {}", error.what()),
                     "use the version of Spillway that wrote it");
  }
}

void require_same_numbers(const TrainingRecord& committed, const TrainingRecord& now) {
  const ordered_json before = numbers_of(committed), after = numbers_of(now);
  for (const auto& [name, value] : before.items()) {
    if (after.at(name) == value) continue;
    const bool of_model = name == "--model";
    throw InputError(
        fmt::format("{} is {}, but the training to go on with has {}", name,
                    of_model ? now.model.name : shown(name, after.at(name)),
                    of_model ? committed.model.name + " of another shape" : shown(name, value)),
        name == "--device" ? "the backends add up in other orders: go on with --device " +
                                 committed.backend + ", or start another run"
                           : "a resumed training goes on bit for bit: leave the option out, or "
                             "start another run");
  }
}

bool same_training(const std::string& a, const std::string& b) {
  try {
    return numbers_of(TrainingRecord::parse(a)) == numbers_of(TrainingRecord::parse(b));
  } catch (const InputError&) {
    return false;
  }
}

}  // namespace spillway
