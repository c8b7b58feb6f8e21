// The parts of a machine file that are lists: shapes of products, drives, queue depths, kernels,
// sources.
#include "policies/machine/machine_sections.hpp"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "base/errors.hpp"
#include "policies/machine/machine_drives.hpp"
#include "policies/schedule/task.hpp"

namespace spillway {

namespace {

constexpr double most_in_flight = 1e9;

std::vector<Field> fields_of(Machine::Gpu::ShapeRate& row) {
  return {count_field("tokens", row.tokens), count_field("hidden", row.hidden),
          number_field("share", row.share)};
}

std::vector<Field> fields_of(std::int64_t& count, Machine::Ssd::Row& row) {
  return {count_field("count", count), bandwidth_field("read", row.read),
          bandwidth_field("write", row.write), bandwidth_field("total", row.total)};
}

std::vector<Field> fields_of(double& depth, Machine::Ssd::Row& shares) {
  return {number_field("depth", depth), number_field("read", shares.read),
          number_field("write", shares.write), number_field("total", shares.total)};
}

std::vector<Field> fields_of_mix(double& share, double& gain, double& depth) {
  return {number_field("share", share), number_field("gain", gain), number_field("depth", depth)};
}

std::vector<Field> fields_of(Machine::Cluster::Collective& row) {
  std::vector<std::pair<std::string, std::string>> kinds;
  for (const TaskKind kind :
       {TaskKind::all_gather, TaskKind::reduce_scatter, TaskKind::all_reduce, TaskKind::broadcast})
    kinds.emplace_back(to_string(kind), to_string(kind));
  return {choice_field("kind", row.kind, std::move(kinds)), count_field("gpus", row.gpus),
          count_field("nodes", row.nodes), bytes_field("bytes", row.bytes),
          bandwidth_field("bandwidth", row.bandwidth)};
}

std::vector<Field> fields_of(KernelTime& kernel) {
  std::vector<std::pair<std::string, std::string>> kinds;
  for (int kind = 0; kind < task_kind_count; ++kind) {
    const std::string name = to_string(static_cast<TaskKind>(kind));
    kinds.emplace_back(name, name);
  }
  return {choice_field("kind", kernel.kind, std::move(kinds)),
          text_field("shape", kernel.shape, "gpt,C128,NH4,F512,V256,b4,T128,fp32,saved00"),
          number_field("flops", kernel.flops), count_field("median_ns", kernel.median_ns),
          number_field("spread", kernel.spread)};
}

// Kinds of reference kernels (experiments/calibrate/reference_kernels.hpp).
std::vector<Field> reference_fields(KernelTime& reference) {
  std::vector<std::pair<std::string, std::string>> kinds;
  for (const char* kind : {"compute", "adam", "copy", "copies", "read", "write"})
    kinds.emplace_back(kind, kind);
  return {choice_field("kind", reference.kind, std::move(kinds)),
          text_field("shape", reference.shape, "bytes=33554432,drives=1"),
          count_field("median_ns", reference.median_ns), number_field("spread", reference.spread)};
}

std::vector<Field> trial_fields(TrialTime& trial) {
  return {text_field("policy", trial.policy, "greedysnake:optimizer_ssd=1"),
          count_field("batch", trial.batch),
          count_field("micro_batch", trial.micro_batch),
          count_field("predicted_ns", trial.predicted_ns),
          count_field("median_ns", trial.median_ns),
          number_field("spread", trial.spread)};
}

// A list of tables, [[NAME]].
std::vector<const toml::table*> tables_of(const toml::node& node, const std::string& name,
                                          const std::string& origin) {
  const toml::array* array = node.as_array();
  if (!array || !array->is_homogeneous(toml::node_type::table)) {
    throw InputError(place_of(node.source(), origin), 0,
                     fmt::format("{} is not a list of tables", name),
                     fmt::format("write [[{}]] with two brackets", name));
  }
  std::vector<const toml::table*> tables;
  for (const toml::node& element : *array) tables.push_back(element.as_table());
  return tables;
}

std::vector<std::int64_t> read_samples(const toml::node& node, const std::string& origin) {
  const toml::array* array = node.as_array();
  std::vector<std::int64_t> samples;
  for (std::size_t i = 0; array && i < array->size(); ++i) {
    const auto* sample = (*array)[i].as_integer();
    if (!sample || sample->get() < 0) {
      throw InputError(place_of((*array)[i].source(), origin), 0,
                       "samples_ns: a sample is not a whole number of nanoseconds",
                       "write for example samples_ns = [120345, 119870]");
    }
    samples.push_back(sample->get());
  }
  if (!array) {
    throw InputError(place_of(node.source(), origin), 0, "samples_ns is not an array",
                     "write for example samples_ns = [120345, 119870]");
  }
  return samples;
}

}  // namespace

void read_by_shape(const toml::node& node, const std::string& origin, Machine::Gpu& gpu) {
  for (const toml::table* table : tables_of(node, "gpu.by_shape", origin)) {
    Machine::Gpu::ShapeRate row;
    FieldReader reader(fields_of(row), origin, place_of(table->source(), origin), nullptr);
    for (const auto& [key, value] : *table) reader.read("", key, value);
    reader.require({"tokens", "hidden", "share"});
    constexpr std::int64_t most = 1'000'000'000;
    for (const auto& [key, count] :
         {std::pair("tokens", row.tokens), std::pair("hidden", row.hidden)}) {
      if (count < 1 || count > most)
        reader.fail({key, fmt::format("{} is no size of a product", count), "give 1 to 1e9"});
    }
    constexpr double least_share = 1e-9, most_share = 2;
    if (row.share < least_share || row.share > most_share)
      reader.fail({"share", fmt::format("{} is not a share of gpu.flops", row.share),
                   "give more than 0, and about 1 where the product runs as fast as large ones"});
    for (const Machine::Gpu::ShapeRate& other : gpu.by_shape) {
      if (other.tokens == row.tokens && other.hidden == row.hidden)
        reader.fail({"tokens", "there are two rows for this shape", "keep one of them"});
    }
    gpu.by_shape.push_back(row);
  }
}

void read_by_count(const toml::node& node, const std::string& origin, Machine::Ssd& ssd) {
  for (const toml::table* table : tables_of(node, "ssd.by_count", origin)) {
    const std::string place = place_of(table->source(), origin);
    std::int64_t count = 0;
    Machine::Ssd::Row row;
    FieldReader reader(fields_of(count, row), origin, place, nullptr);
    for (const auto& [key, value] : *table) reader.read("", key, value);
    reader.require({"count", "read", "write"});
    if (count < 1) reader.fail({"count", "it is zero", "rows begin at one drive"});
    if (!(row.read > 0)) reader.fail({"read", "it is zero", "give for example \"4.2GB/s\""});
    if (!(row.write > 0)) reader.fail({"write", "it is zero", "give for example \"4.2GB/s\""});
    if (!ssd.by_count.emplace(count, row).second) {
      reader.fail(
          {"count", fmt::format("there are two rows for {} drives", count), "keep one of them"});
    }
  }
}

void read_by_queue_depth(const toml::node& node, const std::string& origin, Machine& machine,
                         int set) {
  Machine::Ssd& ssd = machine.drives(set);
  for (const toml::table* table : tables_of(node, drive_set_key(set, "by_queue_depth"), origin)) {
    double depth = 0;
    Machine::Ssd::Row shares;
    FieldReader reader(fields_of(depth, shares), origin, place_of(table->source(), origin),
                       nullptr);
    for (const auto& [key, value] : *table) reader.read("", key, value);
    reader.require({"depth", "read", "write"});
    if (!(depth > 0)) reader.fail({"depth", "it is zero", "rows begin at one request in flight"});
    if (depth > most_in_flight) {
      reader.fail({"depth", fmt::format("{} requests in flight are too many", depth),
                   "give what the row was measured with, e.g. 32"});
    }
    const auto check_share = [&](const char* key, double share, bool may_be_left_out) {
      if (share > 1 || (share == 0 && !may_be_left_out)) {
        reader.fail({key, fmt::format("{} is not a share of {}", share, drive_set_key(set, key)),
                     "give more than 0 and at most 1, the full bandwidth"});
      }
    };
    check_share("read", shares.read, false);
    check_share("write", shares.write, false);
    check_share("total", shares.total, true);
    if (!ssd.by_queue_depth.emplace(depth, shares).second) {
      reader.fail(
          {"depth", fmt::format("there are two rows for depth {}", depth), "keep one of them"});
    }
  }
}

void read_by_read_share(const toml::node& node, const std::string& origin, Machine& machine,
                        int set) {
  Machine::Ssd& ssd = machine.drives(set);
  for (const toml::table* table : tables_of(node, drive_set_key(set, "by_read_share"), origin)) {
    double share = 0, gain = 0, depth = 0;
    FieldReader reader(fields_of_mix(share, gain, depth), origin, place_of(table->source(), origin),
                       nullptr);
    for (const auto& [key, value] : *table) reader.read("", key, value);
    reader.require({"share", "gain"});
    if (!(share > 0 && share < 1)) {
      reader.fail({"share", fmt::format("{} is not a mix of reads and writes", share),
                   fmt::format("give the share of bytes that are read, between 0 and 1; alone, "
                               "reads reach {0}.read and writes {0}.write",
                               drive_set_name(set))});
    }
    if (gain < least_mixed_gain || gain > most_mixed_gain) {
      reader.fail({"gain", fmt::format("{} is outside 1 .. 2", gain),
                   "1: times of reads and writes add, as where they take turns; 2: neither slows "
                   "the other"});
    }
    if (reader.given("depth") && !(depth > 0 && depth <= most_in_flight)) {
      reader.fail({"depth", fmt::format("{} requests in flight are none that a lane has", depth),
                   "give what the row was measured with, e.g. 4, or leave it out for full depth"});
    }
    auto& rows = reader.given("depth") ? ssd.read_share_by_depth[depth] : ssd.by_read_share;
    if (!rows.emplace(share, gain).second) {
      reader.fail(
          {"share", fmt::format("there are two rows for share {}", share), "keep one of them"});
    }
  }
}

void read_collectives(const toml::node& node, const std::string& origin,
                      Machine::Cluster& cluster) {
  for (const toml::table* table : tables_of(node, "cluster.collectives", origin)) {
    Machine::Cluster::Collective row;
    FieldReader reader(fields_of(row), origin, place_of(table->source(), origin), nullptr);
    for (const auto& [key, value] : *table) reader.read("", key, value);
    reader.require({"kind", "bytes", "bandwidth"});
    if (row.gpus < 1 || row.nodes < 1 || row.gpus * row.nodes < 2)
      reader.fail({"gpus", "a collective is between two GPUs at the least",
                   "give gpus, of a node, and nodes"});
    if (row.bytes == 0) reader.fail({"bytes", "it is zero", "give the bytes of the whole"});
    if (!(row.bandwidth > 0))
      reader.fail({"bandwidth", "it is zero", "give for example \"150GB/s\""});
    cluster.collectives.push_back(row);
  }
}

namespace {

// Rows of times with samples, [[NAME]], whose other keys are those of `fields`.
template <class Time>
void read_times(const toml::node& node, const std::string& name, const std::string& origin,
                std::vector<Field> (*fields)(Time&), const std::vector<std::string>& required,
                std::vector<Time>& times) {
  for (const toml::table* table : tables_of(node, name, origin)) {
    Time time;
    FieldReader reader(fields(time), origin, place_of(table->source(), origin), nullptr);
    for (const auto& [key, value] : *table) {
      if (key.str() == "samples_ns") {
        time.samples_ns = read_samples(value, origin);
      } else {
        reader.read("", key, value);
      }
    }
    reader.require(required);
    times.push_back(std::move(time));
  }
}

template <class Time>
void write_times(const std::vector<Time>& times, const char* name,
                 std::vector<Field> (*fields)(Time&), std::string& text) {
  for (Time time : times) {
    fmt::format_to(std::back_inserter(text), "\n[[{}]]\n", name);
    for (const Field& field : fields(time)) text += to_toml(field.key, field);
    fmt::format_to(std::back_inserter(text), "samples_ns = [{}]\n",
                   fmt::join(time.samples_ns, ", "));
  }
}

}  // namespace

void read_kernels(const toml::node& node, const std::string& origin,
                  std::vector<KernelTime>& kernels) {
  read_times<KernelTime>(node, "kernel", origin, fields_of, {"kind", "shape", "median_ns"},
                         kernels);
}

void read_references(const toml::node& node, const std::string& origin,
                     std::vector<KernelTime>& references) {
  read_times<KernelTime>(node, "reference", origin, reference_fields,
                         {"kind", "shape", "median_ns"}, references);
}

void read_trials(const toml::node& node, const std::string& origin,
                 std::vector<TrialTime>& trials) {
  const std::size_t before = trials.size();
  read_times<TrialTime>(node, "trial", origin, trial_fields,
                        {"policy", "batch", "micro_batch", "predicted_ns", "median_ns"}, trials);
  for (std::size_t i = before; i < trials.size(); ++i) {
    if (trials[i].predicted_ns > 0 && trials[i].median_ns > 0) continue;
    throw InputError(place_of(tables_of(node, "trial", origin)[i - before]->source(), origin), 0,
                     "a trial's step takes no time",
                     "predicted_ns and median_ns are more than 0; or leave the trial out");
  }
}

// [sources]: nested tables are dotted keys.
void read_sources(const toml::node& node, const std::string& origin, const std::string& prefix,
                  Sources& sources) {
  if (const auto* text = node.as_string(); text && !prefix.empty()) {
    try {
      require_printable(text->get());
    } catch (const InputError& error) {
      throw InputError(place_of(node.source(), origin), 0, error.message(), error.advice());
    }
    sources[prefix] = text->get();
    return;
  }
  const toml::table* table = node.as_table();
  if (!table) {
    throw InputError(place_of(node.source(), origin), 0, "a source is not a string",
                     "write under [sources]: \"ssd.by_count\" = \"measured with fio\"");
  }
  for (const auto& [key, value] : *table) {
    const std::string name(key.str());
    read_sources(value, origin, prefix.empty() ? name : prefix + "." + name, sources);
  }
}

void write_by_shape(const Machine::Gpu& gpu, std::string& text) {
  for (Machine::Gpu::ShapeRate row : gpu.by_shape) {
    text += "\n[[gpu.by_shape]]\n";
    for (const Field& field : fields_of(row)) text += to_toml(field.key, field);
  }
}

void write_by_count(const Machine::Ssd& ssd, std::string& text) {
  for (const auto& [drives, bandwidths] : ssd.by_count) {
    std::int64_t count = drives;
    Machine::Ssd::Row row = bandwidths;
    text += "\n[[ssd.by_count]]\n";
    for (const Field& field : fields_of(count, row)) text += to_toml(field.key, field);
  }
}

void write_by_queue_depth(const Machine& machine, int set, std::string& text) {
  for (const auto& [requests, row] : machine.drives(set).by_queue_depth) {
    double depth = requests;
    Machine::Ssd::Row shares = row;
    text += "\n[[" + drive_set_key(set, "by_queue_depth") + "]]\n";
    for (const Field& field : fields_of(depth, shares)) text += to_toml(field.key, field);
  }
}

void write_by_read_share(const Machine& machine, int set, std::string& text) {
  const Machine::Ssd& ssd = machine.drives(set);
  const auto write = [&](double share, double gain, double depth) {
    text += "\n[[" + drive_set_key(set, "by_read_share") + "]]\n";
    for (const Field& field : fields_of_mix(share, gain, depth)) {
      if (field.key != "depth" || depth > 0) text += to_toml(field.key, field);
    }
  };
  for (const auto& [share, gain] : ssd.by_read_share) write(share, gain, 0);
  for (const auto& [depth, gains] : ssd.read_share_by_depth) {
    for (const auto& [share, gain] : gains) write(share, gain, depth);
  }
}

void write_collectives(const Machine::Cluster& cluster, std::string& text) {
  for (Machine::Cluster::Collective row : cluster.collectives) {
    text += "\n[[cluster.collectives]]\n";
    for (const Field& field : fields_of(row)) text += to_toml(field.key, field);
  }
}

void write_kernels(const std::vector<KernelTime>& kernels, std::string& text) {
  write_times<KernelTime>(kernels, "kernel", fields_of, text);
}

void write_references(const std::vector<KernelTime>& references, std::string& text) {
  write_times<KernelTime>(references, "reference", reference_fields, text);
}

void write_trials(const std::vector<TrialTime>& trials, std::string& text) {
  write_times<TrialTime>(trials, "trial", trial_fields, text);
}

}  // namespace spillway
