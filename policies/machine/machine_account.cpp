#include "policies/machine/machine_account.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "policies/machine/machine_fields.hpp"

namespace spillway {

namespace {

// What is taken where a key is left out. Keys that files must give are not here, nor are rates that
// always follow from others and say so in their source.
const std::map<std::string, std::string>& left_out_texts() {
  static const std::map<std::string, std::string> texts = {
      {"description", "none"},
      {"gpu.is_cpu", "a GPU computes"},
      {"gpu.context", "none: a plan may use all of gpu.memory"},
      {"gpu.memory_bandwidth", "not modelled: what memory bounds on the GPU takes no time"},
      {"gpu.launch", "starting a kernel takes no time"},
      {"gpu.cores", "a compute task keeps one core busy"},
      {"gpu.multiprocessors", "not known: products of all shapes go at one rate"},
      {"gpu.attention_flops", "attention goes at gpu.flops"},
      {"gpu.product_gain", "gpu.flops is of whole layers, with what memory bounds in them"},
      {"gpu.clock", "the card keeps its full clock"},
      {"gpu.gelu_backward", "the program's own kernel"},
      {"pcie.total", "both ways are independent"},
      {"pcie.pageable_h2d", "as pinned"},
      {"pcie.pageable_d2h", "as pinned"},
      {"pcie.latency", "a copy moves bytes at once"},
      {"host.reserved", "nothing is set aside"},
      {"host.reserved_share", "nothing is set aside by share"},
      {"host.core_bandwidth", "not known: threads do not compete for cores"},
      {"host.io_bandwidth", "copies of GPU and drives do not limit each other"},
      {"host.adam_bytes_per_param",
       "fp32 master, m and v read and written, 16-bit gradient read, 16-bit parameter written"},
      {"host.adam_cores", "the optimizer keeps all cores busy"},
      {"host.sync", "a barrier takes no time of its own"},
      {"host.wake", "a waiting thread goes on at once"},
      {"ssd.count", "no drives"},
      {"ssd.queue_depth", "as the executor has"},
      {"ssd.capacity", "no drives"},
      {"ssd.tbw", "not known: how long drives last is not told"},
      {"ssd.read", "no drives"},
      {"ssd.write", "no drives"},
      {"ssd.total", "law capped: the larger of ssd.read and ssd.write"},
      {"ssd.law", "capped"},
      {"ssd.mixed_gain", "law mixed: as its rows say, or as slow as reads and writes in turns"},
      {"ssd.cache", "none, or not known"},
      {"ssd.cache_write", "no write cache"},
      {"ssd.cache_recovery", "not known: the cache stays full while drives work"},
      {"ssd.read_latency", "a read moves bytes at once"},
      {"ssd.write_latency", "a write moves bytes at once"},
      {"ssd.cores", "transfers keep no core busy"},
      {"ssd.drive_read", "bandwidths are of all drives, not of one"},
      {"ssd.drive_write", "bandwidths are of all drives, not of one"},
      {"ssd.path", "drives have no path in common"},
      {"ssd.ceiling", "drives have no lanes in common"},
      {"cluster.nodes", "one server"},
      {"cluster.gpus", "one GPU a server"},
      {"cluster.nvlink", "GPUs reach each other over PCIe and host memory"},
      {"cluster.nvlink_latency", "a step of a collective moves bytes at once"},
      {"cluster.cores", "collectives keep no core busy"},
      {"cluster.switch_gpus", "each GPU has its own way to the host"},
      {"cluster.switch_link", "each GPU has its own way to the host"},
      {"cluster.nic", "one server"},
      {"cluster.nic_latency", "a step of a collective moves bytes at once"},
      {"cluster.leaf_nodes", "all servers reach each other alike"},
      {"cluster.spine", "as much as the servers below it have"},
      {"cluster.sharing", "host, drives and network are those of a whole server"}};
  return texts;
}

bool starts_with(const std::string& text, const char* begin) { return text.rfind(begin, 0) == 0; }

// "ssd.read" of "ssd2.read": what is said of the first set of drives holds for the others.
std::string key_of_first_set(const std::string& key) {
  for (int set = 1; set < most_drive_sets; ++set) {
    const std::string section = drive_set_key(set, "");
    if (starts_with(key, section.c_str())) return drive_set_key(0, key.substr(section.size()));
  }
  return key;
}

// What is said of the first set of drives, of that of a key.
std::string of_same_set(std::string text, const std::string& key) {
  const std::string first = drive_set_key(0, ""), own = key.substr(0, key.find('.') + 1);
  if (key_of_first_set(key) == key) return text;
  for (std::size_t at = text.find(first); at != std::string::npos;
       at = text.find(first, at + own.size()))
    text.replace(at, first.size(), own);
  return text;
}

// Whether a machine that nobody describes has the same value.
bool is_usual(const Field& field) {
  static const std::map<std::string, std::string> usual = [] {
    Machine machine;
    DriveScaling scaling;
    std::map<std::string, std::string> values;
    for (const Field& one : fields_of(machine)) values[one.key] = one.get();
    for (const Field& one : fields_of(scaling)) values[one.key] = one.get();
    return values;
  }();
  return usual.at(field.key) == field.get();
}

// Zero stands for what nobody knows, unless its source says that it is zero.
bool is_zero(const Field& field) {
  const std::string value = field.get();
  const bool is_number =
      field.form == Field::Form::number || value.find_first_of("0123456789") == 0;
  return value.empty() || (is_number && starts_with(value, "0"));
}

// `file`: what the machine's file says; null: not known any more.
MachineValue value_of(const Field& field, const std::map<std::string, std::string>& sources,
                      const MachineFile* file) {
  MachineValue value{field.key, field.get(), shown(field), Origin::given, "no source is given"};
  const auto source = sources.find(field.key);
  if (source != sources.end()) {
    value.source = source->second;
    value.origin = origin_of(source->second);
    return value;
  }
  const auto left_out = left_out_texts().find(key_of_first_set(field.key));
  if (left_out == left_out_texts().end() || !is_usual(field)) return value;
  if (file != nullptr && file->given.contains(field.key) && !is_zero(field)) return value;
  value.origin = Origin::assumed;
  value.source = "left out: " + of_same_set(left_out->second, field.key);
  if (is_zero(field)) value.shown = "-";
  return value;
}

class Tables {
 public:
  Tables(const Machine& machine, const DriveScaling& scaling)
      : machine_(machine), scaling_(scaling) {}

  std::vector<MachineTable> take() {
    shapes();
    drives();
    for (int set = 0; set < std::max(1, machine_.drive_sets()); ++set) {
      depths(set);
      mixes(set);
    }
    collectives();
    times("kernel", machine_.kernels);
    times("reference", machine_.references);
    trials();
    return std::move(tables_);
  }

 private:
  MachineTable& add(const std::string& key, std::size_t rows, std::vector<std::string> columns) {
    MachineTable table;
    table.key = key;
    table.summary = fmt::format("{} row{}", rows, rows == 1 ? "" : "s");
    table.columns = std::move(columns);
    const auto source = machine_.sources.find(key);
    table.source = source == machine_.sources.end() ? "no source is given" : source->second;
    if (source != machine_.sources.end()) table.origin = origin_of(source->second);
    return tables_.emplace_back(std::move(table));
  }

  void shapes() {
    if (machine_.gpu.by_shape.empty()) return;
    MachineTable& table =
        add("gpu.by_shape", machine_.gpu.by_shape.size(), {"tokens", "hidden", "share"});
    for (const Machine::Gpu::ShapeRate& row : machine_.gpu.by_shape)
      table.rows.push_back({fmt::format("{}", row.tokens), fmt::format("{}", row.hidden),
                            fmt::format("{:.4g}", row.share)});
  }

  void drives() {
    const auto& by_count = machine_.ssd.by_count;
    if (by_count.empty()) return;
    MachineTable& table =
        add("ssd.by_count", by_count.size(), {"drives", "read", "write", "total"});
    if (scaling_.given()) {
      table.origin = Origin::derived;
      table.source = fmt::format("n drives: 1 / (1 / (n x ssd.drive_read){}){}; writes likewise",
                                 scaling_.path > 0 ? " + 1 / ssd.path" : "",
                                 scaling_.ceiling > 0 ? ", at most ssd.ceiling" : "");
    }
    for (const auto& [count, row] : by_count) {
      if (scaling_.given() && !is_worth_showing(count)) continue;
      table.rows.push_back({fmt::format("{}", count), format_bytes_per_second(row.read),
                            format_bytes_per_second(row.write),
                            row.total > 0 ? format_bytes_per_second(row.total) : "-"});
    }
  }

  // Of a table of all numbers of drives: powers of two, and what the machine has.
  bool is_worth_showing(std::int64_t count) const {
    return (count & (count - 1)) == 0 || count == machine_.ssd.count;
  }

  void depths(int set) {
    const auto& by_depth = machine_.drives(set).by_queue_depth;
    if (by_depth.empty()) return;
    MachineTable& table = add(drive_set_key(set, "by_queue_depth"), by_depth.size(),
                              {"depth", "read", "write", "total"});
    for (const auto& [depth, row] : by_depth)
      table.rows.push_back({fmt::format("{:g}", depth), fmt::format("{:.4g}", row.read),
                            fmt::format("{:.4g}", row.write),
                            row.total > 0 ? fmt::format("{:.4g}", row.total) : "-"});
  }

  void mixes(int set) {
    const auto& any_depth = machine_.drives(set).by_read_share;
    const auto& by_depth = machine_.drives(set).read_share_by_depth;
    std::size_t rows = any_depth.size();
    for (const auto& [depth, gains] : by_depth) rows += gains.size();
    if (rows == 0) return;
    MachineTable& table =
        add(drive_set_key(set, "by_read_share"), rows, {"share", "gain", "depth"});
    for (const auto& [share, gain] : any_depth)
      table.rows.push_back({fmt::format("{:g}", share), fmt::format("{:.4g}", gain), "any"});
    for (const auto& [depth, gains] : by_depth) {
      for (const auto& [share, gain] : gains)
        table.rows.push_back(
            {fmt::format("{:g}", share), fmt::format("{:.4g}", gain), fmt::format("{:g}", depth)});
    }
  }

  void collectives() {
    const auto& rows = machine_.cluster.collectives;
    if (rows.empty()) return;
    MachineTable& table =
        add("cluster.collectives", rows.size(), {"kind", "gpus", "nodes", "bytes", "bandwidth"});
    for (const Machine::Cluster::Collective& row : rows)
      table.rows.push_back({row.kind, fmt::format("{}", row.gpus), fmt::format("{}", row.nodes),
                            format_bytes(static_cast<double>(row.bytes)),
                            format_bytes_per_second(row.bandwidth)});
  }

  // By kind: how many shapes, and the samples of all of them.
  void times(const char* key, const std::vector<KernelTime>& all) {
    if (all.empty()) return;
    struct OfKind {
      std::size_t shapes = 0, samples = 0;
    };
    std::map<std::string, OfKind> kinds;
    for (const KernelTime& one : all) {
      OfKind& kind = kinds[one.kind];
      ++kind.shapes;
      kind.samples += one.samples_ns.size();
    }
    MachineTable& table = add(key, all.size(), {"kind", "shapes", "samples"});
    for (const auto& [name, kind] : kinds)
      table.rows.push_back({name, fmt::format("{}", kind.shapes), fmt::format("{}", kind.samples)});
  }

  void trials() {
    if (machine_.trials.empty()) return;
    MachineTable& table = add("trial", machine_.trials.size(), {"policy", "predicted", "measured"});
    for (const TrialTime& trial : machine_.trials)
      table.rows.push_back({trial.policy,
                            format_seconds(static_cast<double>(trial.predicted_ns) * 1e-9),
                            format_seconds(static_cast<double>(trial.median_ns) * 1e-9)});
  }

  const Machine& machine_;
  const DriveScaling& scaling_;
  std::vector<MachineTable> tables_;
};

}  // namespace

std::string to_string(Origin origin) {
  switch (origin) {
    case Origin::given:
      return "given";
    case Origin::derived:
      return "derived";
    case Origin::assumed:
      return "assumed";
  }
  SPILLWAY_ASSERT(false);
}

Origin origin_of(const std::string& source) {
  if (source.find("assumed") != std::string::npos) return Origin::assumed;
  for (const char* rule : {"derived", "ssd.by_count at ", "extrapolated to "}) {
    if (starts_with(source, rule)) return Origin::derived;
  }
  return Origin::given;
}

bool MachineAccount::concerns(const std::string& key) const {
  if (starts_with(key, "ssd.")) return machine.ssd.count > 0 || key == "ssd.count";
  if (starts_with(key, "cluster.")) return machine.cluster.count() > 1;
  return true;
}

namespace {

// `file`: as in value_of().
MachineAccount account_with(const Machine& machine, const MachineFile* file) {
  DriveScaling scaling = file ? file->scaling : DriveScaling{};
  MachineAccount account;
  account.machine = machine;
  Machine in_file = as_in_file(account.machine);
  std::map<std::string, std::string> sources = in_file.sources;
  if (in_file.host.reserved_share > 0)
    sources["host.reserved"] = "derived: host.reserved_share x host.memory";
  for (const Field& field : fields_of(in_file)) {
    if (is_of_absent_drives(field.key, machine)) continue;
    account.values.push_back(value_of(field, sources, file));
    // One drive's keys stand behind those of all drives.
    if (field.key != "ssd.write" || !file) continue;
    for (const Field& of_drive : fields_of(scaling))
      account.values.push_back(value_of(of_drive, sources, file));
  }
  account.tables = Tables(account.machine, scaling).take();
  const auto of_drive = sources.find("ssd.drive_read");
  if (file || of_drive == sources.end()) return account;
  for (MachineTable& table : account.tables) {
    if (table.key != "ssd.by_count") continue;
    table.origin = Origin::derived;
    table.source = "scaled from the rates of one drive: " + of_drive->second;
  }
  return account;
}

}  // namespace

MachineAccount account_of_machine(const std::string& name_or_path,
                                  const std::vector<std::string>& overrides) {
  MachineFile file;
  const Machine machine = load_machine(name_or_path, overrides, file);
  return account_with(machine, &file);
}

MachineAccount account_of(const Machine& machine) { return account_with(machine, nullptr); }

}  // namespace spillway
