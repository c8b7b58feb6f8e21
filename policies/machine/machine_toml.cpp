// Machine files (docs/machine-files.md): TOML to Machine and back, and --set.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <sstream>
#include <utility>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "base/units.hpp"
#include "policies/machine/field_reader.hpp"
#include "policies/machine/machine.hpp"
#include "policies/machine/machine_drives.hpp"
#include "policies/machine/machine_fields.hpp"
#include "policies/machine/machine_parts.hpp"
#include "policies/machine/machine_sections.hpp"
#include "policies/machine/machine_toml.hpp"

namespace spillway {

namespace {

void append(std::vector<Field>& all, std::vector<Field> more) {
  std::move(more.begin(), more.end(), std::back_inserter(all));
}

// The table of drives that follows.
void fill_by_count(const DriveScaling& scaling, const FieldReader& reader, Machine::Ssd& ssd) {
  if (!scaling.given()) {
    for (const char* key : {"ssd.drive_read", "ssd.drive_write", "ssd.path", "ssd.ceiling"})
      if (reader.given(key))
        reader.fail({key, "ssd.drive_read and ssd.drive_write belong together", "give both"});
    return;
  }
  if (!ssd.by_count.empty())
    reader.fail({"ssd.drive_read", "there is a table ssd.by_count, too", "keep one of them"});
  for (std::int64_t n = 1; n <= most_scaled_drives; ++n) {
    const auto drives = static_cast<double>(n);
    const auto both = [&](double drive) {
      const double sum =
          scaling.path > 0 ? 1 / (1 / (drives * drive) + 1 / scaling.path) : drives * drive;
      return scaling.ceiling > 0 ? std::min(sum, scaling.ceiling) : sum;
    };
    const double read = both(scaling.read), write = both(scaling.write);
    ssd.by_count[n] = {read, write, std::max(read, write)};
  }
}

// The caches of all drives lie behind the same lanes as what is behind them.
void cap_cache(const DriveScaling& scaling, Machine& machine) {
  double& rate = machine.ssd.cache_write;
  if (scaling.ceiling == 0 || rate <= scaling.ceiling) return;
  machine.sources["ssd.cache_write"] =
      fmt::format("derived: ssd.ceiling, where {} drives would take {}", machine.ssd.count,
                  format_bytes_per_second(rate));
  rate = scaling.ceiling;
}

// Keys that files did without before: written only where they say something, so that the text of a
// machine that has none of them stays as it was.
bool is_left_out(const Field& field) {
  static const std::vector<std::string> keys = {
      "ssd.mixed_gain",      "ssd.cache",           "ssd.cache_write",     "ssd.cache_recovery",
      "host.reserved_share", "gpu.multiprocessors", "gpu.attention_flops", "gpu.clock",
      "host.core_bandwidth", "host.io_bandwidth",   "gpu.context",         "gpu.product_gain"};
  const bool of_cluster = field.key.rfind("cluster.", 0) == 0;
  if (!of_cluster && std::find(keys.begin(), keys.end(), field.key) == keys.end()) return false;
  Machine usual;
  const std::vector<Field> fields = fields_of(usual);
  return std::any_of(fields.begin(), fields.end(), [&](const Field& one) {
    return one.key == field.key && one.get() == field.get();
  });
}

// The set of drives that a section is of; -1: none.
int set_of(const std::string& section) {
  const auto found = std::find(drive_set_names.begin(), drive_set_names.end(), section);
  return found == drive_set_names.end() ? -1 : static_cast<int>(found - drive_set_names.begin());
}

void read_document(const toml::table& document, FieldReader& reader, Machine& machine) {
  for (const auto& [key, value] : document) {
    const std::string name(key.str());
    if (name == "kernel") {
      read_kernels(value, reader.origin(), machine.kernels);
    } else if (name == "reference") {
      read_references(value, reader.origin(), machine.references);
    } else if (name == "trial") {
      read_trials(value, reader.origin(), machine.trials);
    } else if (name == "sources") {
      read_sources(value, reader.origin(), "", machine.sources);
    } else if (const int set = set_of(name);
               name == "gpu" || name == "pcie" || name == "host" || set >= 0 || name == "cluster") {
      const toml::table* table = value.as_table();
      if (!table) {
        throw InputError(place_of(value.source(), reader.origin()), 0,
                         fmt::format("{} is not a table", name),
                         fmt::format("write [{}], and its keys on the lines below", name));
      }
      reader.begin_section(name, place_of(table->source(), reader.origin()));
      for (const auto& [inner, node] : *table) {
        if (name == "ssd" && inner.str() == "by_count") {
          read_by_count(node, reader.origin(), machine.ssd);
        } else if (set >= 0 && inner.str() == "by_queue_depth") {
          read_by_queue_depth(node, reader.origin(), machine, set);
        } else if (set >= 0 && inner.str() == "by_read_share") {
          read_by_read_share(node, reader.origin(), machine, set);
        } else if (name == "cluster" && inner.str() == "collectives") {
          read_collectives(node, reader.origin(), machine.cluster);
        } else if (name == "gpu" && inner.str() == "by_shape") {
          read_by_shape(node, reader.origin(), machine.gpu);
        } else {
          reader.read(name + ".", inner, node);
        }
      }
    } else {
      reader.read("", key, value);
    }
  }
}

bool is_count(const std::string& assignment) { return assignment.rfind("ssd.count=", 0) == 0; }

bool is_more_count(const std::string& assignment) {
  for (int set = 1; set < most_drive_sets; ++set) {
    if (assignment.rfind(drive_set_key(set, "count="), 0) == 0) return true;
  }
  return false;
}

// The number of drives of a set but the first, which has no table of drives: other drives than the
// file's need rates of their own.
void set_more_count(const std::vector<std::string>& overrides, int set, const std::string& source,
                    FieldReader& reader, Machine& machine) {
  Machine::Ssd& drives = machine.drives(set);
  const std::int64_t before = drives.count;
  const auto begins = [&](const std::string& assignment, const char* key) {
    return assignment.rfind(drive_set_key(set, key) + "=", 0) == 0;
  };
  for (const std::string& assignment : overrides) {
    if (begins(assignment, "count")) reader.override_with(assignment, "", source);
  }
  if (drives.count == before || before == 0 || drives.count == 0) return;
  const auto sets = [&](const char* key) {
    return std::any_of(overrides.begin(), overrides.end(),
                       [&](const std::string& one) { return begins(one, key); });
  };
  if (!sets("read") || !sets("write"))
    reader.fail({drive_set_key(set, "count"),
                 fmt::format("no bandwidths are known for {} drives of {}", drives.count,
                             drive_set_name(set)),
                 fmt::format("set {} and {} of all of them, too", drive_set_key(set, "read"),
                             drive_set_key(set, "write"))});
  rescale_queue_depths(drives, before);
  drives.capacity = drives.capacity / static_cast<std::uint64_t>(before) *
                    static_cast<std::uint64_t>(drives.count);
}

// `--set ssd.count=N` comes first: with other drives the file's bandwidths no longer hold (the
// table of drives gives new ones, or further --set do), and the capacity grows or shrinks with the
// drives.
void apply_overrides(const std::vector<std::string>& overrides, const std::string& source,
                     FieldReader& reader, Machine& machine) {
  Machine::Ssd& ssd = machine.ssd;
  const std::int64_t before = ssd.count;
  for (const std::string& assignment : overrides) {
    if (is_count(assignment)) reader.override_with(assignment, "", source);
  }
  const bool changed = ssd.count != before;
  for (int set = 1; set < most_drive_sets; ++set)
    set_more_count(overrides, set, source, reader, machine);
  if (changed) {
    for (const char* key : {"ssd.read", "ssd.write", "ssd.total"}) reader.forget(key);
    ssd.read = ssd.write = ssd.total = 0;
    rescale_queue_depths(ssd, before);
    if (before > 0) {
      // One that is out of range stays so, and is refused with all others.
      if (__builtin_mul_overflow(ssd.capacity / static_cast<std::uint64_t>(before),
                                 static_cast<std::uint64_t>(ssd.count), &ssd.capacity))
        ssd.capacity = std::numeric_limits<std::uint64_t>::max();
      machine.sources["ssd.capacity"] =
          fmt::format("{} drives of the size of the file's {}", ssd.count, before);
      const double more = static_cast<double>(ssd.count) / static_cast<double>(before);
      for (double* rate : {&ssd.cache_write, &ssd.cache_recovery}) *rate *= more;
      if (ssd.count == 0) ssd.cache = 0;  // no drives, no caches
    }
  }
  for (const std::string& assignment : overrides) {
    if (is_count(assignment) || is_more_count(assignment)) continue;
    reader.override_with(assignment, "", source);
    // A gain for every mix, whatever was measured of some.
    for (int set = 0; set < most_drive_sets; ++set) {
      if (assignment.rfind(drive_set_key(set, "mixed_gain="), 0) != 0) continue;
      machine.drives(set).by_read_share.clear();
      machine.drives(set).read_share_by_depth.clear();
    }
    // What is set aside of host memory is given in one way: the last one counts.
    if (assignment.rfind("host.reserved=", 0) == 0) machine.host.reserved_share = 0;
    if (assignment.rfind("host.reserved_share=", 0) == 0) machine.host.reserved = 0;
  }
  for (int set = 1; set < most_drive_sets; ++set) {
    Machine::Ssd& more = machine.drives(set);
    if (more.count > 0) continue;
    // None, whatever the file says of them; but for one that forgets their number.
    const auto is_of_set = [&](const std::string& key) {
      return key.rfind(drive_set_key(set, ""), 0) == 0 && reader.given(key);
    };
    const std::vector<std::string> keys = machine_keys();
    const auto given = std::find_if(keys.begin(), keys.end(), is_of_set);
    if (given != keys.end() && !reader.given(drive_set_key(set, "count")))
      reader.fail({*given,
                   fmt::format("there are no drives {}: {} is not given", drive_set_name(set),
                               drive_set_key(set, "count")),
                   "give their number, too"});
    more = {};
  }
  const bool bandwidths_known = !ssd.by_count.empty() || reader.given("ssd.drive_read") ||
                                (reader.given("ssd.read") && reader.given("ssd.write"));
  if (changed && ssd.count > 0 && !bandwidths_known) {
    reader.fail(
        {"ssd.count",
         fmt::format("no bandwidths are known for {} drive{}", ssd.count,
                     ssd.count == 1 ? "" : "s"),
         "set ssd.drive_read and ssd.drive_write of one drive, or ssd.read and ssd.write of all, "
         "too, or add [[ssd.by_count]] rows to the file"});
  }
}

// Bandwidths that are left to the table of drives.
void fill_from_table(const FieldReader& reader, Machine& machine) {
  Machine::Ssd& ssd = machine.ssd;
  if (ssd.by_count.empty() || ssd.count == 0) return;
  const Machine::Ssd::Row row = bandwidth_with(ssd, ssd.count);
  const std::int64_t least = ssd.by_count.begin()->first, most = ssd.by_count.rbegin()->first;
  const std::string source =
      ssd.count < least || ssd.count > most
          ? fmt::format("extrapolated to {} drives: ssd.by_count has {} to {}", ssd.count, least,
                        most)
          : fmt::format("ssd.by_count at {} drives", ssd.count);
  const auto fill = [&](const char* key, double& value, double tabulated) {
    if (reader.given(key)) return;
    value = tabulated;
    machine.sources[key] = source;
  };
  fill("ssd.read", ssd.read, row.read);
  fill("ssd.write", ssd.write, row.write);
  fill("ssd.total", ssd.total, row.total);
}

// Adam streams its state through memory, so memory bandwidth sets its rate: that of its cores, or
// of all DRAM. Where that of a core is not known, a core does 1.2e9 parameters a second (measured
// on one core of an AMD EPYC, Zen 4, with AVX-512).
void fill_adam_rates(const FieldReader& reader, Machine& machine) {
  constexpr double params_per_core_second = 1.2e9, gpu_bytes_per_param = 28;
  Machine::Host& host = machine.host;
  if (!reader.given("host.adam_rate")) {
    const double cores = host.adam_cores > 0 ? host.adam_cores : host.cores;
    const bool core_known = host.core_bandwidth > 0;
    const double of_core =
        core_known ? host.core_bandwidth / host.adam_bytes_per_param : params_per_core_second;
    host.adam_params_per_second =
        std::min(cores * of_core, host.bandwidth / host.adam_bytes_per_param);
    if (!std::isfinite(host.adam_params_per_second)) {
      reader.fail({"host.adam_rate", "what follows from the other keys of host is infinite",
                   "give host.cores, host.bandwidth and host.adam_bytes_per_param of a machine "
                   "that there is"});
    }
    machine.sources["host.adam_rate"] =
        core_known
            ? "derived: min(cores x host.core_bandwidth, host.bandwidth) / "
              "host.adam_bytes_per_param"
            : "derived: min(cores x 1.2 Gparam/s, host.bandwidth / host.adam_bytes_per_param)";
  }
  if (!reader.given("gpu.adam_rate")) {
    if (!(machine.gpu.memory_bandwidth > 0)) {
      reader.fail({"gpu.adam_rate",
                   "it is missing, and gpu.memory_bandwidth, from which it would follow, is 0",
                   "give one of the two"});
    }
    machine.gpu.adam_params_per_second = machine.gpu.memory_bandwidth / gpu_bytes_per_param;
    machine.sources["gpu.adam_rate"] = "derived: gpu.memory_bandwidth / 28 bytes per parameter";
  }
}

void require_keys(const FieldReader& reader, const Machine& machine) {
  std::vector<std::string> keys = {"name", "gpu.memory", "gpu.flops"};
  // One follows from the other.
  if (!reader.given("gpu.adam_rate")) keys.push_back("gpu.memory_bandwidth");
  for (const char* key : {"pcie.h2d", "pcie.d2h", "host.memory", "host.bandwidth", "host.cores"})
    keys.push_back(key);
  if (machine.ssd.count > 0) {
    keys.push_back("ssd.capacity");
    if (machine.ssd.by_count.empty()) keys.insert(keys.end(), {"ssd.read", "ssd.write"});
  }
  for (int set = 1; set < most_drive_sets; ++set) {
    if (machine.drives(set).count == 0) continue;
    for (const char* key : {"capacity", "read", "write"}) keys.push_back(drive_set_key(set, key));
  }
  reader.require(keys,
                 "begin with known parts, as parts = \"rtx3090+desktop-ddr4+2x990pro\", and set "
                 "what differs (docs/machine-files.md)");
}

}  // namespace

Machine read_machine(toml::table document, const std::string& origin,
                     const std::vector<std::string>& variant,
                     const std::vector<std::string>& overrides, MachineFile& file) {
  take_parts(document, origin);
  Machine machine;
  std::vector<Field> fields = fields_of(machine);
  append(fields, fields_of(file.scaling));
  const std::vector<std::string> keys = keys_of(fields);
  FieldReader reader(std::move(fields), origin, origin + ":1:1", &machine.sources);
  read_document(document, reader, machine);
  apply_overrides(variant, "chosen for this variant of " + machine.name, reader, machine);
  apply_overrides(overrides, "set on the command line", reader, machine);
  std::copy_if(keys.begin(), keys.end(), std::inserter(file.given, file.given.end()),
               [&](const std::string& key) { return reader.given(key); });
  fill_by_count(file.scaling, reader, machine.ssd);
  cap_cache(file.scaling, machine);
  require_keys(reader, machine);
  fill_from_table(reader, machine);
  fill_adam_rates(reader, machine);
  for (int set = 0; set < most_drive_sets; ++set) {
    if (machine.drives(set).count == 0 || reader.given(drive_set_key(set, "law"))) continue;
    machine.sources[drive_set_key(set, "law")] =
        "assumed: the file does not say how reads and writes share the drives";
  }
  if (const auto problem = find_problem(machine)) reader.fail(*problem);
  Machine::Host& host = machine.host;
  if (host.reserved > 0 && host.reserved_share > 0) {
    reader.fail({"host.reserved_share", "host.reserved is given, too", "keep one of them"});
  }
  if (host.reserved_share >= 1) {
    reader.fail({"host.reserved_share", "it leaves nothing of host.memory",
                 "give less than 1, for example 0.07"});
  }
  if (host.reserved_share > 0)
    host.reserved =
        static_cast<std::uint64_t>(host.reserved_share * static_cast<double>(host.memory));
  if (machine.host.reserved >= machine.host.memory) {
    reader.fail(
        {"host.reserved", "it leaves nothing of host.memory", "give less than host.memory"});
  }
  machine.host.memory -= machine.host.reserved;
  if (machine.gpu.context > 0 && machine.gpu.context >= machine.gpu.memory) {
    reader.fail({"gpu.context", "it leaves nothing of gpu.memory", "give less than gpu.memory"});
  }
  machine.gpu.memory -= machine.gpu.context;
  return machine;
}

std::string without_parts(const std::string& toml_text, const std::string& origin) {
  toml::table document = parse_toml(toml_text, origin);
  take_parts(document, origin);
  std::ostringstream text;
  text << document;
  return text.str();
}

Machine parse_machine(const std::string& toml_text, const std::string& origin,
                      const std::vector<std::string>& overrides) {
  MachineFile file;
  return read_machine(parse_toml(toml_text, origin), origin, {}, overrides, file);
}

std::vector<std::string> machine_keys() {
  Machine scratch;
  DriveScaling scaling;
  std::vector<Field> fields = fields_of(scratch);
  append(fields, fields_of(scaling));
  return keys_of(fields);
}

void check_machine_setting(const std::string& key, const std::string& value) {
  Machine scratch;
  DriveScaling scaling;
  std::vector<Field> fields = fields_of(scratch);
  append(fields, fields_of(scaling));
  set_field(fields, key, value);
}

std::string machine_to_toml(const Machine& machine) {
  Machine copy = as_in_file(machine);  // fields bind to variables that `set` could change
  if (copy.host.reserved_share > 0) copy.host.reserved = 0;  // follows from the share
  Sources other = machine.sources;
  std::string text, section;
  for (const Field& field : fields_of(copy)) {
    if (is_left_out(field) || is_of_absent_drives(field.key, machine)) continue;
    const std::size_t dot = field.key.find('.');
    const std::string name = dot == std::string::npos ? field.key : field.key.substr(dot + 1);
    if (dot != std::string::npos && field.key.substr(0, dot) != section) {
      section = field.key.substr(0, dot);
      text += "\n[" + section + "]\n";
    }
    const auto source = other.find(field.key);
    if (source == other.end()) {
      text += to_toml(name, field);
    } else {
      text += to_toml(name, field, source->second);
      other.erase(source);
    }
  }
  write_by_shape(machine.gpu, text);
  write_collectives(machine.cluster, text);
  write_by_count(machine.ssd, text);
  for (int set = 0; set < most_drive_sets; ++set) {
    write_by_queue_depth(machine, set, text);
    write_by_read_share(machine, set, text);
  }
  write_references(machine.references, text);
  write_trials(machine.trials, text);
  write_kernels(machine.kernels, text);
  if (!other.empty()) text += "\n[sources]\n";
  for (const auto& [key, source] : other) text += quoted(key) + " = " + quoted(source) + "\n";
  return text;
}

}  // namespace spillway
