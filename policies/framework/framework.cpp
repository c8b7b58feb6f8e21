#include "policies/framework/framework.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <mutex>
#include <sstream>
#include <tuple>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "base/units.hpp"
#include "policies/machine/field_reader.hpp"

namespace spillway {

namespace embedded {
const std::vector<std::pair<std::string, std::string>>& framework_files();  // frameworks/*.toml
}

namespace {

std::vector<Field> fields_of(Framework& framework) {
  return {
      text_field("name", framework.name, "my-program"),
      text_field("description", framework.description, "what it trains with"),
      flag_field("memory.whole_micro_batch", framework.whole_micro_batch),
      count_field("memory.checkpoints_per_layer", framework.checkpoints_per_layer),
      count_field("memory.logit_bytes", framework.logit_bytes),
      count_field("memory.layer_pieces", framework.layer_pieces),
      count_field("memory.parameter_pieces", framework.parameter_pieces),
      count_field("memory.gradient_pieces", framework.gradient_pieces),
      flag_field("memory.caching_allocator", framework.caching_allocator),
      bytes_field("memory.gpu", framework.gpu_bytes),
      bytes_field("memory.host", framework.host_bytes),
      number_field("memory.host_bytes_per_parameter", framework.host_bytes_per_parameter),
      number_field("memory.overflow_bytes_per_parameter", framework.overflow_bytes_per_parameter),
      flag_field("memory.optimizer_slots", framework.optimizer_slots),
      count_field("memory.least_optimizer_slots", framework.least_optimizer_slots),
      count_field("memory.optimizer_buffers", framework.optimizer_buffers),
      count_field("memory.optimizer_group", framework.optimizer_group),
      count_field("memory.parameter_slots", framework.parameter_slots),
      bytes_field("memory.parameter_buffer", framework.parameter_buffer),
      bytes_field("memory.activation_buffer", framework.activation_buffer),
      flag_field("memory.pinned_checkpoints", framework.pinned_checkpoints),
      flag_field("memory.pinned_rounding", framework.pinned_rounding),
      count_field("gradient.bytes", framework.gradient_bytes),
      flag_field("gradient.accumulators", framework.accumulators),
      flag_field("gradient.returns", framework.gradients_return),
      count_field("gradient.bucket", framework.gpu_bucket),
      count_field("ranks.gradient_bytes", framework.summed_gradient_bytes),
      count_field("ranks.layer_calls", framework.layer_calls),
      count_field("ranks.reduce_bucket", framework.reduce_bucket),
      count_field("ranks.spread_bucket", framework.spread_bucket),
      flag_field("copies.pageable_checkpoints", framework.pageable_checkpoints),
      flag_field("copies.pageable_gradients", framework.pageable_gradients),
      flag_field("copies.last_checkpoint_leaves", framework.last_checkpoint_leaves),
      flag_field("copies.one_lane", framework.one_copy_lane),
      count_field("cpu.pass_bytes", framework.cpu_pass_bytes),
      count_field("cpu.overflow_pass_bytes", framework.cpu_overflow_pass_bytes),
      number_field("cpu.pass_time", framework.cpu_pass_time),
      nanoseconds_field("io.read_operation", framework.read_operation_ns),
      nanoseconds_field("io.write_operation", framework.write_operation_ns),
      flag_field("compute.fp16", framework.fp16),
      number_field("compute.time", framework.compute_time),
      count_field("host.operators", framework.host_operators),
      nanoseconds_field("host.operator", framework.operator_ns),
      nanoseconds_field("host.hook", framework.hook_ns),
      nanoseconds_field("host.sync", framework.sync_ns),
      nanoseconds_field("host.step", framework.step_ns)};
}

Field point_field(HostPoint& value) {
  std::vector<std::pair<std::string, HostPoint>> points;
  for (int p = 0; p < host_point_count; ++p)
    points.emplace_back(to_string(static_cast<HostPoint>(p)), static_cast<HostPoint>(p));
  return choice_field("at", value, points);
}

// "all", or names of lanes with spaces between.
Field lanes_field(std::string key, LaneSet& value) {
  Field field;
  field.key = std::move(key);
  field.example = "\"gpu.compute pcie.h2d\"";
  field.set = [&value](const std::string& text) {
    value = {};
    std::istringstream list(text);
    for (std::string name; list >> name;) {
      std::vector<std::string> known = {"all"};
      bool found = name == "all";
      if (found) value = LaneSet::all();
      for (int l = 0; l < lane_count; ++l) {
        const auto lane = static_cast<Lane>(l);
        known.emplace_back(to_string(lane));
        if (known.back() != name) continue;
        value = value.with(lane);
        found = true;
      }
      if (!found) fail_unknown_choice(name, known);
    }
  };
  return field;
}

void read_waits(const toml::node& node, const std::string& origin, Framework& framework) {
  const toml::array* list = node.as_array();
  if (!list)
    throw InputError(place_of(node.source(), origin), 0, "wait is not a list of tables",
                     "write [[wait]], and its keys on the lines below");
  for (const toml::node& one : *list) {
    const toml::table* table = one.as_table();
    if (!table)
      throw InputError(place_of(one.source(), origin), 0, "wait is not a list of tables",
                       "write [[wait]], and its keys on the lines below");
    WaitRule wait;
    wait.holds = LaneSet::all();
    std::string source;
    FieldReader reader(
        {point_field(wait.at), lanes_field("for", wait.waits_for), lanes_field("holds", wait.holds),
         text_field("source", source, "where this is from")},
        origin, place_of(table->source(), origin), nullptr);
    for (const auto& [key, value] : *table) reader.read("", key, value);
    reader.require({"at", "for"});
    framework.waits.push_back(wait);
  }
}

std::string name_of(const std::string& file) { return file.substr(0, file.rfind('.')); }

struct File {
  std::string name, contents;
};

// The file of a built-in name, or of a path.
File file_of(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [file, contents] : embedded::framework_files()) {
    if (name_of(file) == name) return {file, contents};
    names.push_back(name_of(file));
  }
  if (const auto contents = read_named_file(name)) return {name, *contents};
  throw InputError(fmt::format("unknown framework {}", name),
                   unknown_name_hint(name, names) + "; a path of a TOML file works too");
}

}  // namespace

namespace {

void check_host(const Framework& framework, const FieldReader& reader) {
  constexpr std::int64_t most_operators = 1'000'000, most_ns = 1'000'000'000'000;
  if (framework.host_operators > most_operators)
    reader.fail({"host.operators", "it is more than a million", "give those of one layer"});
  if ((framework.host_operators > 0) != (framework.operator_ns > 0))
    reader.fail({framework.operator_ns > 0 ? "host.operators" : "host.operator",
                 "it is missing, and its time or their number is given", "give both, or none"});
  for (const auto& [key, value] :
       {std::pair("host.operator", framework.operator_ns),
        std::pair("host.hook", framework.hook_ns), std::pair("host.sync", framework.sync_ns),
        std::pair("host.step", framework.step_ns)}) {
    if (value > most_ns) reader.fail({key, "it is more than 1000 s", "give for example 10us"});
  }
}

// Far above what any program has, and low enough that no product of one with a model that can be
// loaded leaves 64 bits.
void check_memory(const Framework& framework, const FieldReader& reader) {
  constexpr std::int64_t most_count = 10'000, most_bytes_of_logit = 100;
  for (const auto& [key, value, most] :
       {std::tuple("memory.checkpoints_per_layer", framework.checkpoints_per_layer,
                   std::int64_t{2}),
        std::tuple("memory.logit_bytes", framework.logit_bytes, most_bytes_of_logit),
        std::tuple("memory.layer_pieces", framework.layer_pieces, most_count),
        std::tuple("memory.parameter_pieces", framework.parameter_pieces, most_count),
        std::tuple("memory.gradient_pieces", framework.gradient_pieces, most_count),
        std::tuple("memory.least_optimizer_slots", framework.least_optimizer_slots, most_count),
        std::tuple("memory.parameter_slots", framework.parameter_slots, most_count),
        std::tuple("memory.optimizer_buffers", framework.optimizer_buffers, most_count),
        std::tuple("memory.optimizer_group", framework.optimizer_group,
                   std::int64_t{1'000'000'000'000}),
        std::tuple("gradient.bucket", framework.gpu_bucket, std::int64_t{1'000'000'000'000})}) {
    if (value > most) reader.fail({key, fmt::format("it is more than {}", most), "give less"});
  }
  if (framework.checkpoints_per_layer < 1)
    reader.fail({"memory.checkpoints_per_layer", "it is less than 1",
                 "1: whole layers are recomputed; 2: halves"});
  if ((framework.optimizer_buffers > 0) != (framework.optimizer_group > 0))
    reader.fail(
        {framework.optimizer_group > 0 ? "memory.optimizer_buffers" : "memory.optimizer_group",
         "it is missing, and the other of the two is given", "give both, or none"});
  for (const auto& [key, value] :
       {std::pair("memory.gpu", framework.gpu_bytes),
        std::pair("memory.host", framework.host_bytes),
        std::pair("memory.parameter_buffer", framework.parameter_buffer),
        std::pair("memory.activation_buffer", framework.activation_buffer)}) {
    if (value > most_buffer_bytes)
      reader.fail({key, "it is more than " + format_bytes(most_buffer_bytes), "give less"});
  }
  constexpr double most_per_parameter = 1000;
  for (const auto& [key, value] :
       {std::pair("memory.host_bytes_per_parameter", framework.host_bytes_per_parameter),
        std::pair("memory.overflow_bytes_per_parameter", framework.overflow_bytes_per_parameter)}) {
    if (value > most_per_parameter)
      reader.fail({key, fmt::format("it is more than {}", most_per_parameter),
                   "give the bytes of one parameter, for example 3"});
  }
}

void check_cpu(const Framework& framework, const FieldReader& reader) {
  constexpr std::int64_t most_pass_bytes = 255;
  if (framework.cpu_pass_bytes > most_pass_bytes)
    reader.fail({"cpu.pass_bytes", "it is more than 255", "give bytes of one element"});
  if (framework.cpu_overflow_pass_bytes > most_pass_bytes - framework.cpu_pass_bytes)
    reader.fail({"cpu.overflow_pass_bytes", "with cpu.pass_bytes it is more than 255",
                 "give bytes of one element"});
  if (!(framework.cpu_pass_time > 0) || framework.cpu_pass_time > 1000)
    reader.fail({"cpu.pass_time", "it is no factor from above 0 to 1000",
                 "1: a byte of a pass takes as long as one of AdamW"});
}

}  // namespace

namespace {

void check_ranks(const Framework& framework, const FieldReader& reader) {
  constexpr std::int64_t most_calls = 1000;
  if (framework.layer_calls > most_calls)
    reader.fail({"ranks.layer_calls", "it is more than 1000", "give those of one layer"});
  const std::int64_t width = framework.summed_gradient_bytes;
  if (width != 0 && width != 2 && width != 4)
    reader.fail({"ranks.gradient_bytes", "it is not 0, 2 or 4", "0: as the schedule has them"});
}

}  // namespace

Framework parse_framework(const std::string& toml_text, const std::string& origin,
                          const std::vector<std::string>& overrides) {
  const toml::table document = parse_toml(toml_text, origin);
  Framework framework;
  FieldReader reader(fields_of(framework), origin, origin + ":1:1", &framework.sources);
  for (const auto& [key, value] : document) {
    const std::string name(key.str());
    if (name == "wait") {
      read_waits(value, origin, framework);
    } else if (const toml::table* table = value.as_table()) {
      for (const auto& [inner, node] : *table) reader.read(name + ".", inner, node);
    } else {
      reader.read("", key, value);
    }
  }
  for (const std::string& assignment : overrides) reader.override_with(assignment, "");
  reader.require({"name", "description"});
  if (framework.gradient_bytes != 0 && framework.gradient_bytes != 2 &&
      framework.gradient_bytes != 4)
    reader.fail({"gradient.bytes", "it is not 0, 2 or 4", "0: as the schedule has them"});
  if (!(framework.compute_time > 0) || framework.compute_time > 100)
    reader.fail({"compute.time", "it is no factor from above 0 to 100", "1: as the machine says"});
  constexpr std::int64_t most_operation_ns = 1'000'000'000'000;
  const auto check_operation = [&](const char* key, std::int64_t operation_ns) {
    if (operation_ns > most_operation_ns)
      reader.fail({key, "it is more than 1000 s", "give the time of one read or write, e.g. 30ms"});
  };
  check_operation("io.read_operation", framework.read_operation_ns);
  check_operation("io.write_operation", framework.write_operation_ns);
  check_host(framework, reader);
  check_ranks(framework, reader);
  check_memory(framework, reader);
  check_cpu(framework, reader);
  return framework;
}

namespace {

// What a text with overrides was read as. Every schedule and every cost asks for its framework, and
// reading TOML takes longer than some of them.
class ReadBefore {
 public:
  Framework read(const File& file, const std::vector<std::string>& overrides) {
    std::string text = file.name + '\0' + file.contents;
    for (const std::string& one : overrides) text += '\0' + one;
    const std::lock_guard lock(mutex_);
    const auto known = frameworks_.find(text);
    if (known != frameworks_.end()) return known->second;
    const Framework framework = parse_framework(file.contents, file.name, overrides);
    constexpr std::size_t most = 100;  // a sweep over a key has as many as it has points
    if (frameworks_.size() >= most) frameworks_.clear();
    return frameworks_.emplace(std::move(text), framework).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Framework> frameworks_;  // by file and overrides
};

}  // namespace

Framework load_framework(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  std::vector<std::string> overrides;
  if (colon != std::string::npos) {
    std::istringstream list(text.substr(colon + 1));
    for (std::string item; std::getline(list, item, ',');) overrides.push_back(item);
  }
  static ReadBefore before;
  return before.read(file_of(name), overrides);
}

std::int64_t pass_bytes(const Framework& framework, const Problem& problem) {
  if (problem.backend() == Backend::cpu || problem.parameter_bytes() != 2) return 0;
  return framework.cpu_pass_bytes + (framework.fp16 ? framework.cpu_overflow_pass_bytes : 0);
}

std::string framework_hash(const std::string& text) {
  const File file = file_of(text.substr(0, text.find(':')));
  return fmt::format("{:016x}", XXH3_64bits(file.contents.data(), file.contents.size()));
}

void require_own_framework(const std::string& framework) {
  if (framework == own_framework) return;
  throw InputError(
      fmt::format("framework {}: a framework is laid over schedules in simulation only, and "
                  "training runs a schedule as it is",
                  framework),
      "leave " + Setting{"framework"} + " and " + Setting{"set", "framework.KEY=VALUE"} +
          " out; `spillway simulate` takes both");
}

const std::vector<Framework>& builtin_frameworks() {
  static const std::vector<Framework> all = [] {
    std::vector<Framework> frameworks;
    for (const auto& [file, contents] : embedded::framework_files()) {
      frameworks.push_back(parse_framework(contents, file));
      SPILLWAY_ASSERT(frameworks.back().name == name_of(file), file);
    }
    return frameworks;
  }();
  return all;
}

}  // namespace spillway
