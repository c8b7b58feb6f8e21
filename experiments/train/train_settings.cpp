#include "experiments/train/train_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/errors.hpp"
#include "base/suggest.hpp"

namespace spillway {

namespace {

using Texts = std::vector<std::string>;

// Of a setting that is given more than once the last one holds.
template <class Number>
Number number_of(const char* key, const Texts& texts, const char* what) {
  const std::string& text = texts.back();
  const std::size_t sign = text.size() > 1 && text[0] == '+' ? 1 : 0;
  const char* const end = text.data() + text.size();
  Number number{};
  const auto [stop, error] = std::from_chars(text.data() + sign, end, number);
  if (error == std::errc() && stop == end) return number;
  throw InputError(Setting{key, text} + Message(fmt::format(" is not {}", what)));
}

template <class Integer>
Integer count_of(const char* key, const Texts& texts) {
  return number_of<Integer>(key, texts, "a whole number, or it is too large");
}

double real_of(const char* key, const Texts& texts) {
  const double number = number_of<double>(key, texts, "a number");
  if (std::isfinite(number)) return number;
  throw InputError(Setting{key, texts.back()} + " is not a number");
}

bool flag_of(const char* key, const Texts& texts) {
  if (texts.back() == "true") return true;
  if (texts.back() == "false") return false;
  throw InputError(Setting{key, texts.back()} + " is neither true nor false");
}

std::string one_of(const char* key, const Texts& texts, const Texts& choices) {
  const std::string& text = texts.back();
  if (std::find(choices.begin(), choices.end(), text) != choices.end()) return text;
  throw InputError(Setting{key, text} +
                   Message(fmt::format(" is none of {}", fmt::join(choices, ", "))));
}

// "100" steps, or "3%" of all.
void read_warmup(TrainSettings& settings, const Texts& texts) {
  const std::string& text = texts.back();
  settings.optimizer.warmup_steps = 0;
  settings.warmup_share = 0;
  if (!text.ends_with('%')) {
    settings.optimizer.warmup_steps = count_of<std::int64_t>("warmup", texts);
    return;
  }
  settings.warmup_share = real_of("warmup", {text.substr(0, text.size() - 1)}) / 100;
  if (!(settings.warmup_share >= 0 && settings.warmup_share < 1))
    throw InputError(Setting{"warmup", text} + ": not at least 0 and below 100 %",
                     "e.g. " + Setting{"warmup", "3%"});
}

void read_left_out(TrainSettings& settings, const Texts& texts) {
  settings.left_out.clear();
  for (const std::string& text : texts)
    settings.left_out.push_back(count_of<std::int64_t>("left_out", {text}));
  std::vector<std::int64_t>& all = settings.left_out;
  std::sort(all.begin(), all.end());
  if (all.front() < 0 || std::adjacent_find(all.begin(), all.end()) != all.end())
    throw InputError(Setting{"left_out"} + ": not numbers of at least 0, each once");
}

std::vector<TrainSetting> all_settings() {
  using S = TrainSettings;
  return {
      {"model", [](S& s, const Texts& t) { s.problem.model = t.back(); }},
      {"machine", [](S& s, const Texts& t) { s.problem.machine = t.back(); }},
      {"set", [](S& s, const Texts& t) { s.problem.overrides = t; }},
      {"lora", [](S& s, const Texts& t) { s.problem.lora = t.back(); }},
      {"adapter", [](S& s, const Texts& t) { s.problem.adapter = t.back(); }},
      {"train_layers",
       [](S& s, const Texts& t) {
         s.problem.train_layers = count_of<std::int64_t>("train_layers", t);
       }},
      {"gpu_memory", [](S& s, const Texts& t) { s.problem.gpu_memory = t.back(); }},
      {"host_memory", [](S& s, const Texts& t) { s.problem.host_memory = t.back(); }},
      {"policy", [](S& s, const Texts& t) { s.policy = t.back(); }},
      {"data", [](S& s, const Texts& t) { s.data.data = t; }},
      {"binary_data", [](S& s, const Texts& t) { s.data.binary_data = flag_of("binary_data", t); }},
      {"template_date", [](S& s, const Texts& t) { s.data.template_date = t.back(); }},
      {"parse_special",
       [](S& s, const Texts& t) { s.data.parse_special = flag_of("parse_special", t); }},
      {"skip_malformed",
       [](S& s, const Texts& t) { s.data.skip_malformed = flag_of("skip_malformed", t); }},
      {"data_format",
       [](S& s, const Texts& t) {
         s.data.data_format =
             one_of("data_format", t, {"auto", "text", "jsonl", "json", "uint16", "uint32"});
       }},
      {"tokenizer", [](S& s, const Texts& t) { s.data.tokenizer = t.back(); }},
      {"chat_template", [](S& s, const Texts& t) { s.data.chat_template = t.back(); }},
      {"train_on",
       [](S& s, const Texts& t) {
         s.data.train_on = one_of("train_on", t, {"assistant", "all"});
       }},
      {"pack",
       [](S& s, const Texts& t) {
         s.data.pack = one_of("pack", t, {"auto", "on", "off", "stream"});
       }},
      {"long_documents",
       [](S& s, const Texts& t) {
         s.data.long_documents = one_of("long_documents", t, {"auto", "split", "cut", "drop"});
       }},
      {"validation", [](S& s, const Texts& t) { s.data.validation = t.back(); }},
      {"ssd", [](S& s, const Texts& t) { s.ssd = t.back(); }},
      {"device", [](S& s, const Texts& t) { s.device = t.back(); }},
      {"gpu", [](S& s, const Texts& t) { s.gpu = count_of<int>("gpu", t); }},
      {"durability", [](S& s, const Texts& t) { s.durability = t.back(); }},
      {"throttle", [](S& s, const Texts& t) { s.throttle = t.back(); }},
      {"steps", [](S& s, const Texts& t) { s.steps = count_of<std::int64_t>("steps", t); }},
      {"evaluate_every",
       [](S& s, const Texts& t) {
         s.evaluate_every = count_of<std::int64_t>("evaluate_every", t);
       }},
      {"evaluate_batches",
       [](S& s, const Texts& t) {
         s.evaluate_batches = count_of<std::int64_t>("evaluate_batches", t);
       }},
      {"epochs",
       [](S& s, const Texts& t) {
         s.epochs = real_of("epochs", t);
         if (!(s.epochs > 0 && s.epochs <= 1e6))
           throw InputError(Setting{"epochs", t.back()} + " is not above 0 and up to a million");
       }},
      {"tokens",
       [](S& s, const Texts& t) {
         s.tokens = count_of<std::int64_t>("tokens", t);
         if (s.tokens < 1) throw InputError(Setting{"tokens", t.back()} + " is not above 0");
       }},
      {"seed", [](S& s, const Texts& t) { s.seed = count_of<std::uint64_t>("seed", t); }},
      {"threads",
       [](S& s, const Texts& t) {
         s.threads = count_of<int>("threads", t);
         if (s.threads < 1 || s.threads > 1024)
           throw InputError(Setting{"threads", t.back()} + " is not from 1 to 1024");
       }},
      {"learning_rate",
       [](S& s, const Texts& t) { s.optimizer.learning_rate = real_of("learning_rate", t); }},
      {"warmup", [](S& s, const Texts& t) { read_warmup(s, t); }},
      {"learning_rate_schedule",
       [](S& s, const Texts& t) { s.optimizer.shape = parse_learning_rate_shape(t.back()); }},
      {"final_learning_rate",
       [](S& s, const Texts& t) {
         s.optimizer.final_learning_rate = real_of("final_learning_rate", t);
       }},
      {"decay_share",
       [](S& s, const Texts& t) { s.optimizer.decay_share = real_of("decay_share", t); }},
      {"decay_steps",
       [](S& s, const Texts& t) {
         s.optimizer.decay_steps = count_of<std::int64_t>("decay_steps", t);
       }},
      {"weight_decay",
       [](S& s, const Texts& t) { s.optimizer.weight_decay = real_of("weight_decay", t); }},
      {"beta1", [](S& s, const Texts& t) { s.optimizer.beta1 = real_of("beta1", t); }},
      {"beta2", [](S& s, const Texts& t) { s.optimizer.beta2 = real_of("beta2", t); }},
      {"tune_matmul",
       [](S& s, const Texts& t) {
         s.tune_matmul = one_of("tune_matmul", t, {"on", "off"});
       }},
      {"gelu_backward",
       [](S& s, const Texts& t) {
         s.gelu_backward = one_of("gelu_backward", t, {"auto", "kernel", "dgelu", "dgelu-bgrad"});
       }},
      {"random_weights",
       [](S& s, const Texts& t) { s.random_weights = flag_of("random_weights", t); }},
      {"frozen_weights",
       [](S& s, const Texts& t) {
         s.frozen_weights = one_of("frozen_weights", t, {"checkpoint", "store"});
       }},
      {"no_export", [](S& s, const Texts& t) { s.no_export = flag_of("no_export", t); }},
      {"keep", [](S& s, const Texts& t) { s.keep = count_of<std::int64_t>("keep", t); }},
      {"keep_every",
       [](S& s, const Texts& t) { s.keep_every = count_of<std::int64_t>("keep_every", t); }},
      {"keep_best", [](S& s, const Texts& t) { s.keep_best = flag_of("keep_best", t); }},
      {"early_stop",
       [](S& s, const Texts& t) { s.early_stop = count_of<std::int64_t>("early_stop", t); }},
      {"early_stop_margin",
       [](S& s, const Texts& t) { s.early_stop_margin = real_of("early_stop_margin", t); }},
      {"spike_guard", [](S& s, const Texts& t) { s.spike_guard = real_of("spike_guard", t); }},
      {"left_out", read_left_out},
      {"sample_prompt", [](S& s, const Texts& t) { s.samples.prompts = t; }},
      {"sample_chat", [](S& s, const Texts& t) { s.samples.chats = t; }},
      {"sample_every",
       [](S& s, const Texts& t) { s.samples.every = count_of<std::int64_t>("sample_every", t); }},
      {"sample_tokens",
       [](S& s, const Texts& t) { s.samples.tokens = count_of<std::int64_t>("sample_tokens", t); }},
      {"sample_temperature",
       [](S& s, const Texts& t) {
         s.samples.sampling.temperature = real_of("sample_temperature", t);
       }},
      {"sample_top_k",
       [](S& s, const Texts& t) {
         s.samples.sampling.top_k = count_of<std::int64_t>("sample_top_k", t);
       }},
      {"sample_top_p",
       [](S& s, const Texts& t) { s.samples.sampling.top_p = real_of("sample_top_p", t); }},
      {"sample_seed",
       [](S& s, const Texts& t) {
         s.samples.sampling.seed = count_of<std::uint64_t>("sample_seed", t);
       }},
  };
}

}  // namespace

const std::vector<TrainSetting>& train_settings() {
  static const std::vector<TrainSetting> settings = all_settings();
  return settings;
}

bool is_train_setting(const std::string& key) {
  const auto& all = train_settings();
  return find_workload_field(key) != nullptr ||
         std::any_of(all.begin(), all.end(), [&](const TrainSetting& s) { return s.key == key; });
}

void settle_learning_rate(TrainSettings& settings, GivenSettings& given) {
  OptimizerSettings& o = settings.optimizer;
  if (settings.warmup_share > 0) {
    o.warmup_steps = std::llround(settings.warmup_share * static_cast<double>(settings.steps));
    settings.warmup_share = 0;
    given["warmup"] = {std::to_string(o.warmup_steps)};
  }
  if (!given.contains("learning_rate_schedule") && o.decay_steps > 0)
    o.shape = LearningRateShape::cosine;
  if (o.shape != LearningRateShape::constant && o.decay_steps == 0) {
    o.decay_steps = settings.steps;
    given["decay_steps"] = {std::to_string(o.decay_steps)};
  }
}

TrainSettings read_train_settings(const GivenSettings& given) {
  TrainSettings settings;
  for (const auto& [key, texts] : given) {
    if (key == "framework" && !texts.empty()) require_own_framework(texts.back());
    if (!is_train_setting(key)) {
      std::vector<std::string> keys;
      for (const TrainSetting& setting : train_settings()) keys.push_back(setting.key);
      for (const WorkloadField& field : workload_fields()) keys.push_back(field.key);
      throw InputError("unknown setting " + key, unknown_name_hint(key, keys));
    }
    if (texts.empty()) continue;
    if (const WorkloadField* field = find_workload_field(key)) {
      Workload scratch;
      field->read(scratch, texts.back());
      settings.problem.workload[key] = texts.back();
    }
  }
  for (const TrainSetting& setting : train_settings()) {
    const auto texts = given.find(setting.key);
    if (texts != given.end() && !texts->second.empty()) setting.read(settings, texts->second);
  }
  return settings;
}

}  // namespace spillway
