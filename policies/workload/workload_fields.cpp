#include "policies/workload/workload_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/errors.hpp"
#include "base/suggest.hpp"

namespace spillway {

namespace {

constexpr std::int64_t most_sequences = 100'000'000, longest_usual_sequence = 1024;

std::int64_t count_of(const char* key, const std::string& text, const Message& advice) {
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && stop == end && number >= 1 && number <= most_sequences) return number;
  throw InputError(Setting{key, text} +
                       Message(fmt::format(" is not a whole number from 1 to {}", most_sequences)),
                   advice);
}

const char* to_string(GradientWidth width) {
  switch (width) {
    case GradientWidth::automatic:
      return "auto";
    case GradientWidth::bits16:
      return "16";
    case GradientWidth::bits32:
      return "32";
  }
  SPILLWAY_ASSERT(false);
}

Precision parse_precision(const std::string& text) {
  if (text == "bf16") return Precision::bf16;
  if (text == "fp32") return Precision::fp32;
  throw InputError(Setting{"precision", text} + " is neither bf16 nor fp32",
                   "use " + Setting{"precision", "bf16"} + " or " + Setting{"precision", "fp32"});
}

GradientWidth parse_gradient_width(const std::string& text) {
  for (const GradientWidth width :
       {GradientWidth::automatic, GradientWidth::bits16, GradientWidth::bits32}) {
    if (text == to_string(width)) return width;
  }
  throw InputError(Setting{"gradient_bits", text} + " is not 16, 32 or auto",
                   "leave it out, or use one of these");
}

// The numbers of meshes that are written, in order.
template <class Meshes>
auto named_meshes(Meshes& meshes) {
  return std::array{std::pair{"state", &meshes.state}, std::pair{"gradients", &meshes.gradients},
                    std::pair{"parameters", &meshes.parameters}};
}

std::string to_text(const GradientMeshes& meshes) {
  const GradientMeshes open;
  const auto usual = named_meshes(open), given = named_meshes(meshes);
  std::string text;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (*given[i].second != *usual[i].second)
      text += fmt::format("{}{}={}", text.empty() ? "" : ",", given[i].first, *given[i].second);
  }
  if (meshes.at_once) text += text.empty() ? "sums=once" : ",sums=once";
  return text.empty() ? "all" : text;
}

GradientMeshes parse_meshes(const std::string& text) {
  GradientMeshes meshes;
  if (text == "all") return meshes;
  const auto refuse = [&](const std::string& what) {
    throw InputError(Setting{"gradient_meshes", text} + Message(": " + what),
                     "e.g. " + Setting{"gradient_meshes", "state=4,gradients=2"});
  };
  const auto all = named_meshes(meshes);
  std::vector<std::string> seen;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t end = std::min(text.find(',', from), text.size());
    const std::string one = text.substr(from, end - from), name = one.substr(0, one.find('='));
    from = end + 1;
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) refuse(name + " is given twice");
    seen.push_back(name);
    if (one == "sums=once") {
      meshes.at_once = true;
      continue;
    }
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const auto& mesh) { return mesh.first == name; });
    int number = 0;
    const char* const last = one.data() + one.size();
    const auto [stop, error] =
        std::from_chars(one.data() + std::min(name.size() + 1, one.size()), last, number);
    if (found == all.end() || error != std::errc() || stop != last || number < 1)
      refuse("\"" + one +
             "\" is not state=N, gradients=N, parameters=N or sums=once, with N from 1 on");
    *found->second = number;
  }
  return meshes;
}

std::vector<WorkloadField> all_fields() {
  using W = Workload;
  using Text = const std::string&;
  return {
      {"batch", "", "8", "sequences per step", [](const W& w) { return std::to_string(w.batch); },
       [](W& w, Text text) {
         w.batch = count_of("batch", text, "sequences per step, e.g. " + Setting{"batch", "8"});
       }},
      {"micro_batch", "", "", "sequences per micro-batch; default: the fastest that fits",
       [](const W& w) { return std::to_string(w.micro_batch); },
       [](W& w, Text text) {
         w.micro_batch =
             count_of("micro_batch", text,
                      "leave it out for the fastest that fits, or give a divisor of the batch");
       }},
      {"sequence", "", "", "tokens per sequence; default: the model's positions, at most 1024",
       [](const W& w) { return std::to_string(w.sequence); },
       [](W& w, Text text) {
         w.sequence =
             count_of("sequence", text, "tokens per sequence, e.g. " + Setting{"sequence", "512"});
       }},
      {"sequences_at_once", "", "",
       "sequences of a micro-batch that the GPU computes at once; default: 1, and when training on "
       "a GPU enough to keep it busy",
       [](const W& w) { return std::to_string(w.sequences_at_once); },
       [](W& w, Text text) {
         w.sequences_at_once = count_of("sequences_at_once", text,
                                        "leave it out, or give a divisor of the micro-batch");
       }},
      {"precision", "bf16 | fp32", "",
       "what is computed in; default: fp32 on the CPU backend, else bf16",
       [](const W& w) { return std::string(to_string(w.precision)); },
       [](W& w, Text text) { w.precision = parse_precision(text); }},
      {"gradient_bits", "16 | 32 | auto", "auto", "width of the gradient handed to the optimizer",
       [](const W& w) { return std::string(to_string(w.gradient)); },
       [](W& w, Text text) { w.gradient = parse_gradient_width(text); }},
      {"moments", "fp32 | bf16", "fp32",
       "AdamW's moments; with bf16, stochastically rounded, optimizer state takes 8 bytes a "
       "parameter instead of 12",
       [](const W& w) { return std::string(to_string(w.moments)); },
       [](W& w, Text text) { w.moments = parse_moments(text); }},
      {"gradient_clip", "off | global=LIMIT | layer=LIMIT", "off",
       "2-norm of the whole gradient, or of each layer's, at most",
       [](const W& w) { return to_string(w.clip); },
       [](W& w, Text text) { w.clip = parse_gradient_clip(text); }},
      {"on_nonfinite", "stop | skip", "stop",
       "what a gradient with NaN or Inf does: training ends, or the step's update is left out",
       [](const W& w) { return std::string(to_string(w.on_nonfinite)); },
       [](W& w, Text text) { w.on_nonfinite = parse_on_nonfinite(text); }},
      {"ranks", "", "1",
       "GPUs that train together, each on its share of the batch; default: as many as the machine "
       "has",
       [](const W& w) { return std::to_string(w.ranks); },
       [](W& w, Text text) {
         w.ranks =
             count_of("ranks", text, "as many as there are GPUs, e.g. " + Setting{"ranks", "4"});
       },
       false},
      {"pipeline", "", "1",
       "stages that train together, each with some of the layers, on all of the batch",
       [](const W& w) { return std::to_string(w.pipeline); },
       [](W& w, Text text) {
         w.pipeline =
             count_of("pipeline", text,
                      "at most as many as there are GPUs, e.g. " + Setting{"pipeline", "2"});
       },
       false},
      {"gradient_groups", "", "1",
       "groups of micro-batches whose gradients are summed by themselves and then added up, for "
       "the "
       "bits of as many ranks",
       [](const W& w) { return std::to_string(w.gradient_groups); },
       [](W& w, Text text) {
         w.gradient_groups = count_of("gradient_groups", text,
                                      "as many as ranks, e.g. " + Setting{"gradient_groups", "2"});
       },
       false},
      {"gradient_meshes", "all | state=N,gradients=N,parameters=N,sums=once", "all",
       "with groups, for the bits of ranks that share out model states among so many of them",
       [](const W& w) { return to_text(w.group_meshes); },
       [](W& w, Text text) { w.group_meshes = parse_meshes(text); }, false},
  };
}

}  // namespace

const std::vector<WorkloadField>& workload_fields() {
  static const std::vector<WorkloadField> fields = all_fields();
  return fields;
}

const WorkloadField* find_workload_field(const std::string& key) {
  const auto& fields = workload_fields();
  const auto found = std::find_if(fields.begin(), fields.end(),
                                  [&](const WorkloadField& field) { return field.key == key; });
  return found == fields.end() ? nullptr : &*found;
}

Workload read_workload(const WorkloadTexts& given, const ModelSpec& model, Precision usual) {
  std::vector<std::string> keys;
  for (const WorkloadField& field : workload_fields()) keys.push_back(field.key);
  for (const auto& [key, text] : given) {
    if (find_workload_field(key) == nullptr)
      throw InputError("unknown workload field " + key, unknown_name_hint(key, keys));
  }
  Workload workload;
  workload.sequence = std::min(model.positions, longest_usual_sequence);
  workload.precision = usual;
  for (const WorkloadField& field : workload_fields()) {
    const auto text = given.find(field.key);
    if (text != given.end())
      field.read(workload, text->second);
    else if (!field.usual.empty())
      field.read(workload, field.usual);
  }
  if (!given.contains("micro_batch"))
    workload.micro_batch = std::max<std::int64_t>(1, workload.rank_batch());
  return workload;
}

bool is_written(const WorkloadField& field, const Workload& workload) {
  return field.is_written_always || field.write(workload) != field.usual;
}

WorkloadTexts workload_texts(const Workload& workload) {
  WorkloadTexts texts;
  for (const WorkloadField& field : workload_fields()) {
    if (is_written(field, workload)) texts[field.key] = field.write(workload);
  }
  return texts;
}

const char* to_string(Precision precision) {
  return precision == Precision::bf16 ? "bf16" : "fp32";
}

}  // namespace spillway
