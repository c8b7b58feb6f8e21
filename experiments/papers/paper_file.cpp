// Reading the TOML of a paper. Errors name file:line:column.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "experiments/papers/paper_constants.hpp"
#include "experiments/papers/paper_points.hpp"
#include "policies/framework/framework.hpp"
#include "policies/machine/field_reader.hpp"
#include "policies/machine/machine_parts.hpp"

namespace spillway {

namespace embedded {
const std::vector<std::pair<std::string, std::string>>& paper_files();
const std::vector<std::pair<std::string, std::string>>& machine_files();
}  // namespace embedded

namespace {

constexpr std::array<std::pair<const char*, Quantity>, 12> quantities = {
    {{"step_seconds", Quantity::step_seconds},
     {"forward_seconds", Quantity::forward_seconds},
     {"backward_seconds", Quantity::backward_seconds},
     {"optimizer_seconds", Quantity::optimizer_seconds},
     {"backward_optimizer_seconds", Quantity::backward_optimizer_seconds},
     {"tokens_per_second", Quantity::tokens_per_second},
     {"tokens_per_gpu_second", Quantity::tokens_per_gpu_second},
     {"tflops", Quantity::tflops},
     {"mfu", Quantity::mfu},
     {"seconds_per_micro_batch", Quantity::seconds_per_micro_batch},
     {"wan_speed_up", Quantity::wan_speed_up},
     {"prefill_utilization", Quantity::prefill_utilization}}};

// A table of the file, read key by key; keys nobody asked for are errors.
class Section {
 public:
  Section(const toml::table& table, std::string name, const std::string& origin)
      : table_(table), name_(std::move(name)), origin_(origin) {}

  [[noreturn]] void fail(const toml::node& at, const std::string& what,
                         const std::string& hint) const {
    throw InputError(place_of(at.source(), origin_), 0, what, hint);
  }
  const toml::node* find(const char* key) {
    known_.push_back(key);
    return table_.get(key);
  }
  const toml::node& need(const char* key) {
    const toml::node* node = find(key);
    if (!node) fail(table_, fmt::format("{} lacks {}", name_, key), "see experiments/papers/");
    return *node;
  }
  std::string text(const char* key, const std::string& otherwise) {
    const toml::node* node = find(key);
    return node ? text_of(key, *node) : otherwise;
  }
  std::string text(const char* key) { return text_of(key, need(key)); }
  std::int64_t count(const char* key, std::int64_t otherwise) {
    const toml::node* node = find(key);
    if (!node) return otherwise;
    const auto* number = node->as_integer();
    if (!number || number->get() < 1)
      fail(*node, fmt::format("{} is not a whole number above zero", key), "for example 32");
    return number->get();
  }
  double number(const char* key, double otherwise) {
    const toml::node* node = find(key);
    if (!node) return otherwise;
    const auto value = node->value<double>();
    if (!value || !(*value > 0))
      fail(*node, fmt::format("{} is not a number above zero", key), "for example 1.96");
    return *value;
  }
  std::vector<std::string> texts(const char* key) {
    std::vector<std::string> all;
    for_each(key, [&](const toml::node& element) { all.push_back(scalar(key, element)); });
    return all;
  }
  template <class Use>
  void for_each(const char* key, Use use) {
    const toml::node* node = find(key);
    if (!node) return;
    const toml::array* array = node->as_array();
    if (!array) fail(*node, fmt::format("{} is not a list", key), "write [ ... ]");
    for (const toml::node& element : *array) use(element);
  }
  template <class Use>
  void for_each_table(const char* key, Use use) {
    for_each(key, [&](const toml::node& element) {
      const toml::table* one = element.as_table();
      if (!one)
        fail(element, fmt::format("{} is not a list of tables", key),
             fmt::format("write [[{}]]", key));
      Section section(*one, key, origin_);
      use(section);
      section.finish();
    });
  }
  // A string, or a number as its text.
  std::string scalar(const char* key, const toml::node& node) const {
    if (const auto* text = node.as_string()) return text->get();
    if (const auto* whole = node.as_integer()) return std::to_string(whole->get());
    if (const auto* real = node.as_floating_point()) return fmt::format("{}", real->get());
    fail(node, fmt::format("{} holds neither a number nor a string", key), "for example 32");
  }
  void finish() const {
    for (const auto& [key, value] : table_) {
      const std::string name(key.str());
      if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
      fail(value, fmt::format("unknown key {} in {}", name, name_),
           unknown_name_hint(name, known_));
    }
  }
  const toml::table& table() const { return table_; }
  std::string place() const { return place_of(table_.source(), origin_); }

 private:
  std::string text_of(const char* key, const toml::node& node) const {
    const auto* text = node.as_string();
    if (!text) fail(node, fmt::format("{} is not a string", key), "write \"...\"");
    return text->get();
  }

  const toml::table& table_;
  std::string name_;
  const std::string& origin_;
  std::vector<std::string> known_;
};

// One of several words; `key` may be missing: then it is `otherwise`.
template <class Value, std::size_t count>
Value read_word(Section& section, const char* key, const char* otherwise,
                const std::array<std::pair<const char*, Value>, count>& words) {
  const std::string name = section.text(key, otherwise);
  std::vector<std::string> names;
  for (const auto& [known, value] : words) {
    if (name == known) return value;
    names.emplace_back(known);
  }
  section.fail(section.need(key), fmt::format("unknown {} '{}'", key, name),
               unknown_name_hint(name, names));
}

GradientWidth read_gradient(Section& section) {
  static constexpr std::array<std::pair<const char*, GradientWidth>, 3> widths = {
      {{"auto", GradientWidth::automatic},
       {"16", GradientWidth::bits16},
       {"32", GradientWidth::bits32}}};
  return read_word(section, "gradient_bits", "auto", widths);
}

PublishedValue read_value(Section& section, const toml::node& node) {
  PublishedValue value;
  value.given = true;
  if (const auto number = node.value<double>(); number && !node.is_boolean()) {
    if (!(*number > 0)) section.fail(node, "a published number is not above zero", "");
    value.number = *number;
    return value;
  }
  const auto text = node.value<std::string>();
  if (text == "fits") return value;
  if (text == "does not fit") {
    value.fits = false;
    return value;
  }
  if (text == "-") {
    value.given = false;
    return value;
  }
  section.fail(node, "published holds something else than a number",
               "a number, \"fits\", \"does not fit\", or \"-\" where the paper shows none");
}

PaperSystem read_system(Section& section, const PaperExperiment& experiment) {
  PaperSystem system;
  system.name = section.text("name");
  system.policy = section.text("policy");
  system.framework = section.text("framework", own_framework);
  system.gradient = read_gradient(section);
  system.settings = section.texts("settings");
  section.need("published");
  section.for_each("published", [&](const toml::node& node) {
    system.published.push_back(read_value(section, node));
  });
  if (system.published.size() != experiment.values.size()) {
    section.fail(section.need("published"),
                 fmt::format("{} published values for {} of {}", system.published.size(),
                             experiment.values.size(), experiment.axis),
                 "give one for each; \"-\" where the paper shows none");
  }
  const auto by_value = [&](const char* key, const char* what, const char* hint) {
    std::vector<std::string> all = section.texts(key);
    if (!all.empty() && all.size() != experiment.values.size())
      section.fail(section.need(key),
                   fmt::format("{} {} for {} values of {}", all.size(), what,
                               experiment.values.size(), experiment.axis),
                   hint);
    return all;
  };
  system.same_run_as = by_value("same_run_as", "points",
                                "give one for each; \"-\" where no other figure shows the run");
  system.framework_settings =
      by_value("framework_settings", "settings", "give one for each; \"-\" where there is none");
  static constexpr std::array<std::pair<const char*, Overlap>, 3> overlaps = {
      {{"nothing", Overlap::nothing}, {"optimizer", Overlap::optimizer}, {"all", Overlap::all}}};
  if (section.table().contains("overlap"))
    system.overlap = read_word(section, "overlap", "", overlaps);
  for (const std::string& at : section.texts("fitted")) {
    const auto found = std::find(experiment.values.begin(), experiment.values.end(), at);
    if (found == experiment.values.end()) {
      section.fail(section.need("fitted"), fmt::format("{} is no value of the axis", at),
                   unknown_name_hint(at, experiment.values));
    }
    system.published[static_cast<std::size_t>(found - experiment.values.begin())].fitted = true;
  }
  return system;
}

PaperExperiment read_experiment(Section& section) {
  PaperExperiment e;
  e.name = section.text("name");
  e.title = section.text("title");
  e.figure = section.text("figure");
  e.quantity = read_word(section, "quantity", "step_seconds", quantities);
  e.flops_per_token = section.number("flops_per_token", 0);
  e.peak_tflops = section.number("peak_tflops", 0);
  const bool is_mfu = e.quantity == Quantity::mfu;
  if ((is_mfu || e.quantity == Quantity::tflops) && e.flops_per_token == 0)
    section.need("flops_per_token");
  if (is_mfu && e.peak_tflops == 0) section.need("peak_tflops");
  e.axis = section.text("axis");
  section.need("values");
  e.values = section.texts("values");
  static constexpr std::array<std::pair<const char*, bool>, 2> kinds = {
      {{"training", false}, {"pipeline", true}}};
  e.of_pipelines = read_word(section, "kind", "training", kinds);
  if (e.of_pipelines != is_of_pipelines(e.quantity))
    section.fail(section.need("quantity"),
                 fmt::format("{} is not of this kind of experiment", to_string(e.quantity)),
                 "kind = \"pipeline\" has seconds_per_micro_batch, wan_speed_up and "
                 "prefill_utilization, and nothing else has them");
  e.model = e.of_pipelines || e.axis == "model" ? section.text("model", "") : section.text("model");
  e.batch = section.count("batch", 1);
  e.sequence = section.count("sequence", 1024);
  e.micro_batch = section.count("micro_batch", 0);
  e.ranks = section.count("ranks", 1);
  e.rank_batch = section.count("rank_batch", 0);
  if (e.rank_batch > 0 && section.table().contains("batch"))
    section.fail(section.need("rank_batch"), "there is a batch, too", "keep one of them");
  e.settings = section.texts("settings");
  e.apart = section.text("apart", "");
  section.need("system");
  section.for_each_table("system", [&](Section& one) { e.systems.push_back(read_system(one, e)); });
  return e;
}

PaperRatio read_ratio(Section& section) {
  PaperRatio ratio;
  ratio.name = section.text("name");
  ratio.figure = section.text("figure");
  ratio.model = section.text("model");
  ratio.sequence = section.count("sequence", 1024);
  ratio.micro_batch = section.count("micro_batch", 1);
  ratio.ranks = section.count("ranks", 1);
  ratio.faster = section.text("faster");
  ratio.slower = section.text("slower");
  ratio.faster_framework = section.text("faster_framework", own_framework);
  ratio.slower_framework = section.text("slower_framework", own_framework);
  ratio.gradient = read_gradient(section);
  for (const std::string& system : section.texts("on_drives")) {
    if (system != "faster" && system != "slower")
      section.fail(section.need("on_drives"), fmt::format("on_drives holds '{}'", system),
                   "name \"faster\", \"slower\" or both");
    (system == "faster" ? ratio.faster_on_drives : ratio.slower_on_drives) = true;
  }
  ratio.settings = section.texts("settings");
  section.need("published");
  ratio.published = section.number("published", 0);
  section.for_each_table("assumption", [&](Section& one) {
    PaperAssumption assumption;
    assumption.label = one.text("label");
    assumption.settings = one.texts("settings");
    assumption.faster = one.text("faster", "");
    assumption.slower = one.text("slower", "");
    assumption.faster_framework = one.text("faster_framework", "");
    assumption.slower_framework = one.text("slower_framework", "");
    assumption.sequence = one.count("sequence", 0);
    assumption.micro_batch = one.count("micro_batch", 0);
    assumption.gradient =
        one.table().contains("gradient_bits") ? read_gradient(one) : ratio.gradient;
    ratio.assumptions.push_back(std::move(assumption));
  });
  return ratio;
}

PaperConstant read_constant(Section& section) {
  static constexpr std::array<std::pair<const char*, ConstantKind>, 2> kinds = {
      {{"continuous", ConstantKind::continuous}, {"discrete", ConstantKind::discrete}}};
  PaperConstant constant;
  constant.key = section.text("key");
  constant.with = section.texts("with");
  constant.place = section.place();
  section.need("kind");
  constant.kind = read_word(section, "kind", "", kinds);
  constant.in = section.texts("in");
  section.need("seen");
  constant.seen = section.texts("seen");
  constant.moves = section.texts("moves");
  if (!constant.moves.empty() && constant.kind != ConstantKind::discrete)
    section.fail(section.need("moves"), "moves are of a discrete constant",
                 "how much of a point a continuous one says is found by itself");
  const auto two = [&](const char* key, std::string& least, std::string& most) {
    const std::vector<std::string> values = section.texts(key);
    if (values.empty()) return;
    if (values.size() != 2 || constant.kind == ConstantKind::discrete)
      section.fail(section.need(key),
                   fmt::format("{} are two values of a continuous constant", key),
                   fmt::format("for example {} = [\"2GB/s\", \"8GB/s\"]", key));
    least = values[0];
    most = values[1];
  };
  two("bounds", constant.least, constant.most);
  two("range", constant.range_least, constant.range_most);
  return constant;
}

std::string stem(const std::string& file) { return file.substr(0, file.rfind('.')); }

bool is_paper(const std::string& text) { return text.find("[paper]") != std::string::npos; }

std::vector<Paper> read_builtin_papers() {
  std::vector<Paper> papers;
  for (const auto& [file, text] : embedded::paper_files()) {
    if (!is_paper(text)) continue;  // a machine or a model of some paper
    papers.push_back(parse_paper(text, file, ""));
    SPILLWAY_ASSERT(papers.back().name == stem(file), file);
  }
  return papers;
}

// The file beside the paper's, if `name` is one.
std::optional<PaperText> beside(const Paper& paper, const std::string& name) {
  if (std::filesystem::path(name).extension() != ".toml") return std::nullopt;
  if (paper.folder.empty()) {
    for (const auto& [file, text] : embedded::paper_files()) {
      if (file == name) return PaperText{text, file};
    }
    throw InputError(fmt::format("paper {}: there is no file {}", paper.name, name));
  }
  const std::string path = (std::filesystem::path(paper.folder) / name).string();
  if (auto text = read_named_file(path)) return PaperText{std::move(*text), path};
  return std::nullopt;
}

}  // namespace

bool is_of_pipelines(Quantity quantity) {
  return quantity == Quantity::seconds_per_micro_batch || quantity == Quantity::wan_speed_up ||
         quantity == Quantity::prefill_utilization;
}

const char* to_string(Quantity quantity) {
  for (const auto& [name, known] : quantities) {
    if (known == quantity) return name;
  }
  SPILLWAY_ASSERT(false);
}

Paper parse_paper(const std::string& toml_text, const std::string& origin,
                  const std::string& folder) {
  const toml::table document = parse_toml(toml_text, origin);
  Section top(document, "the file", origin);
  const toml::table* head = top.need("paper").as_table();
  if (!head) throw InputError(origin, 0, "paper is not a table", "begin with a line [paper]");
  Section about(*head, "paper", origin);
  Paper paper;
  paper.folder = folder;
  paper.name = about.text("name");
  paper.title = about.text("title");
  paper.citation = about.text("citation");
  paper.machine = about.text("machine");
  paper.constants = about.text("constants");
  paper.notes = about.texts("notes");
  static constexpr std::array<std::pair<const char*, LeaveOut>, 3> folds = {
      {{"figure", LeaveOut::figure},
       {"experiment", LeaveOut::experiment},
       {"value", LeaveOut::value}}};
  paper.leave_out = read_word(about, "leave_out", "figure", folds);
  about.finish();
  top.for_each_table("experiment",
                     [&](Section& one) { paper.experiments.push_back(read_experiment(one)); });
  top.for_each_table("ratio", [&](Section& one) { paper.ratios.push_back(read_ratio(one)); });
  top.for_each_table("constant",
                     [&](Section& one) { paper.constants_chosen.push_back(read_constant(one)); });
  top.finish();
  check_points(paper);
  check_constants(paper);
  return paper;
}

const std::vector<Paper>& builtin_papers() {
  static const std::vector<Paper> papers = read_builtin_papers();
  return papers;
}

Paper load_paper(const std::string& name_or_path) {
  std::vector<std::string> names;
  for (const Paper& paper : builtin_papers()) {
    if (paper.name == name_or_path) return paper;
    names.push_back(paper.name);
  }
  if (const auto text = read_named_file(name_or_path)) {
    const auto folder = std::filesystem::path(name_or_path).parent_path().string();
    return parse_paper(*text, name_or_path, folder.empty() ? "." : folder);
  }
  throw InputError(fmt::format("unknown paper {}", name_or_path),
                   unknown_name_hint(name_or_path, names) + "; a path of a TOML file works too");
}

std::optional<PaperText> paper_machine_text(const Paper& paper) {
  std::optional<PaperText> file = beside(paper, paper.machine);
  for (const auto& [name, text] : embedded::machine_files()) {
    if (!file && stem(name) == paper.machine) file = PaperText{text, name};
  }
  if (!file) {
    if (auto text = read_named_file(paper.machine))
      file = PaperText{std::move(*text), paper.machine};
  }
  if (!file && is_by_parts(paper.machine)) {
    const std::string name = quoted(paper.machine);
    file = PaperText{fmt::format("name = {}\nparts = {}\n", name, name), paper.machine};
  }
  if (file) file->text = without_parts(file->text, file->origin);
  return file;
}

Machine paper_machine(const Paper& paper, const std::vector<std::string>& settings) {
  if (const auto file = beside(paper, paper.machine))
    return parse_machine(file->text, file->origin, settings);
  return load_machine(paper.machine, settings);
}

ModelSpec paper_model(const Paper& paper, const std::string& model,
                      const std::vector<std::string>& settings) {
  if (const auto file = beside(paper, model))
    return parse_model(file->text, file->origin, settings);
  return load_model(model, settings);
}

}  // namespace spillway
