#include "policies/cost/assumed_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "policies/machine/machine_account.hpp"
#include "policies/machine/rank_share.hpp"

namespace spillway {

namespace {

using Change = std::function<void(Machine&)>;

constexpr std::uint32_t bit(Work work) { return std::uint32_t{1} << static_cast<unsigned>(work); }
constexpr std::uint32_t on_gpu =
    bit(Work::compute) | bit(Work::gpu_optimizer) | bit(Work::gpu_norm);
constexpr std::uint32_t on_cpu = bit(Work::cpu_optimizer) | bit(Work::cpu_norm);
constexpr std::uint32_t pageable = bit(Work::pageable_h2d) | bit(Work::pageable_d2h);
constexpr std::uint32_t copies = bit(Work::h2d) | bit(Work::d2h) | pageable;
constexpr std::uint32_t of_drives = bit(Work::read) | bit(Work::write);
constexpr std::uint32_t between_gpus = bit(Work::collective);
constexpr std::uint32_t any_work = 0;

std::string rate_text(double bytes_per_second) { return format_bytes_per_second(bytes_per_second); }
std::string time_text(std::int64_t ns) { return format_seconds(static_cast<double>(ns) * 1e-9); }

// The table of docs/machine-files.md, "Ranges of what is assumed".
class Assumptions {
 public:
  explicit Assumptions(const Machine& machine) : machine_(machine) {}

  std::vector<AssumedValue> take() {
    of_gpu();
    of_shapes();
    of_pcie();
    of_host();
    if (machine_.ssd.count > 0) of_ssd();
    if (machine_.cluster.count() > 1) of_cluster();
    of_memory();
    return std::move(values_);
  }

 private:
  const std::string* source(const std::string& key) const {
    const auto found = machine_.sources.find(key);
    return found == machine_.sources.end() ? nullptr : &found->second;
  }
  bool says_assumed(const std::string& key) const {
    const std::string* const text = source(key);
    return text != nullptr && origin_of(*text) == Origin::assumed;
  }
  // A value of zero stands for one that is not known, unless its source says that it is zero.
  bool is_unknown(const std::string& key, double value) const {
    return value == 0 && (source(key) == nullptr || says_assumed(key));
  }

  AssumedValue value(std::vector<std::string> keys, std::string shown) const {
    AssumedValue one;
    const std::string* const text = source(keys.front().c_str());
    one.why = text == nullptr ? "left out" : *text;
    one.keys = std::move(keys);
    one.value = std::move(shown);
    return one;
  }
  void add(AssumedValue one, std::string low, Change set_low, std::string high, Change set_high,
           std::string range_source, std::uint32_t works) {
    one.low = std::move(low);
    one.high = std::move(high);
    one.set_low = std::move(set_low);
    one.set_high = std::move(set_high);
    one.range_source = std::move(range_source);
    one.works = works;
    values_.push_back(std::move(one));
  }

  // A rate that the file assumes: assumed_margin lower and higher. `scale` multiplies it.
  template <class Scale>
  void margin(const std::string& key, std::string shown, std::uint32_t works, const Scale& scale) {
    if (!says_assumed(key)) return;
    add(
        value({key}, std::move(shown)), "20 % lower",
        [scale](Machine& m) { scale(m, 1 - assumed_margin); }, "20 % higher",
        [scale](Machine& m) { scale(m, 1 + assumed_margin); },
        "no more is known of an assumed rate: measured ones are within a fifth of what files "
        "assume",
        works);
  }

  // A latency: where it is left out, from none to what the shipped machines have; where it is
  // assumed, from none to twice as much.
  template <class At>
  void latency(const std::string& key, std::uint32_t works, std::int64_t usual_ns,
               const char* usual_source, const At& at) {
    Machine copy = machine_;
    const std::int64_t ns = at(copy);
    const bool unknown = is_unknown(key, static_cast<double>(ns));
    if (!unknown && !says_assumed(key)) return;
    const std::int64_t most = unknown ? usual_ns : 2 * ns;
    add(
        value({key}, unknown ? "none" : time_text(ns)), "none", [at](Machine& m) { at(m) = 0; },
        time_text(most), [at, most](Machine& m) { at(m) = most; },
        unknown ? usual_source : "none to twice what the file assumes", works);
  }

  void of_gpu() {
    if (machine_.gpu.is_cpu) return;
    const Machine::Gpu& gpu = machine_.gpu;
    margin("gpu.flops", format_flops_per_second(gpu.flops), bit(Work::compute),
           [](Machine& m, double by) { m.gpu.flops *= by; });
    margin("gpu.memory_bandwidth", rate_text(gpu.memory_bandwidth), on_gpu,
           [](Machine& m, double by) { m.gpu.memory_bandwidth *= by; });
    if (is_unknown("gpu.memory_bandwidth", gpu.memory_bandwidth)) {
      const double low = gpu.flops / 237;
      add(
          value({"gpu.memory_bandwidth"}, "not modelled"), rate_text(low),
          [low](Machine& m) { m.gpu.memory_bandwidth = low; }, "not modelled", [](Machine&) {},
          "gpu.flops / 237: the card with the least bandwidth for its rate of those that are "
          "described (H100)",
          on_gpu);
    }
    const std::string* const adam = source("gpu.adam_rate");
    if (adam != nullptr && adam->rfind("derived: gpu.memory_bandwidth", 0) == 0) {
      add(
          value({"gpu.adam_rate"},
                fmt::format("{:.3g} Gparam/s", gpu.adam_params_per_second / 1e9)),
          "0.8 of it", [](Machine& m) { m.gpu.adam_params_per_second *= 0.8; }, "as derived",
          [](Machine&) {},
          "kernels that stream reach nine tenths of gpu.memory_bandwidth (shape_times.hpp), and "
          "fp32 "
          "gradients make 30 or 32 bytes a parameter of the 28",
          bit(Work::gpu_optimizer) | bit(Work::gpu_norm));
    }
    margin("gpu.adam_rate", fmt::format("{:.3g} Gparam/s", gpu.adam_params_per_second / 1e9),
           bit(Work::gpu_optimizer) | bit(Work::gpu_norm),
           [](Machine& m, double by) { m.gpu.adam_params_per_second *= by; });
    latency("gpu.launch", on_gpu, 10'000,
            "10 us: what StarPU charges for submitting a kernel, as the described cards have it",
            [](Machine& m) -> std::int64_t& { return m.gpu.launch_ns; });
  }

  // What a file may say of products and attention beside gpu.flops. Measured kernels contain it.
  void of_shapes() {
    const Machine::Gpu& gpu = machine_.gpu;
    if (gpu.is_cpu || !machine_.kernels.empty()) return;
    if (is_unknown("gpu.multiprocessors", static_cast<double>(gpu.multiprocessors)) &&
        gpu.by_shape.empty()) {
      add(
          value({"gpu.multiprocessors"}, "one rate for products of all shapes"),
          "waves of tiles on 170", [](Machine& m) { m.gpu.multiprocessors = 170; },
          "one rate for all shapes", [](Machine&) {},
          "the most that a described card has (RTX 5090): the fewer, the less small products lose",
          bit(Work::compute));
    }
    margin("gpu.attention_flops", format_flops_per_second(gpu.attention_flops), bit(Work::compute),
           [](Machine& m, double by) { m.gpu.attention_flops *= by; });
    if (is_unknown("gpu.attention_flops", gpu.attention_flops)) {
      add(
          value({"gpu.attention_flops"}, "as gpu.flops"), "0.57 of gpu.flops",
          [](Machine& m) { m.gpu.attention_flops = 0.57 * m.gpu.flops; }, "1.5 times gpu.flops",
          [](Machine& m) { m.gpu.attention_flops = 1.5 * m.gpu.flops; },
          "the described cards: H100 and H200 have 0.57, RTX 5090 has 1.50", bit(Work::compute));
    }
    if (is_unknown("gpu.product_gain", gpu.product_gain) && gpu.memory_bandwidth > 0) {
      add(
          value({"gpu.product_gain"}, "gpu.flops is of whole layers"),
          "gpu.flops is of products alone", [](Machine& m) { m.gpu.product_gain = 1; },
          "of whole layers", [](Machine&) {},
          "by definition: norms, GELU and what else memory bounds come beside products, or are in "
          "the rate",
          bit(Work::compute));
    }
  }

  void of_pcie() {
    const Machine::Pcie& pcie = machine_.pcie;
    margin("pcie.h2d", rate_text(pcie.h2d), copies | between_gpus,
           [](Machine& m, double by) { m.pcie.h2d *= by; });
    margin("pcie.d2h", rate_text(pcie.d2h), copies | between_gpus,
           [](Machine& m, double by) { m.pcie.d2h *= by; });
    if (is_unknown("pcie.total", pcie.total)) {
      add(
          value({"pcie.total"}, "both ways are independent"), "0.7 of both ways together",
          [](Machine& m) { m.pcie.total = 0.7 * (m.pcie.h2d + m.pcie.d2h); }, "independent",
          [](Machine&) {},
          "nvbandwidth: copies to an RTX 4090 go at 11 to 16 GB/s of 25 beside copies from it "
          "(NVIDIA/nvbandwidth, issue 15), to an RTX 5090 at 51 of 56 "
          "(tinygrad/open-gpu-kernel-modules, issue 29)",
          copies | between_gpus);
    }
    of_pageable();
    latency("pcie.latency", copies, 10'000,
            "10 us: what StarPU charges for submitting a transfer, as the described cards have it",
            [](Machine& m) -> std::int64_t& { return m.pcie.latency_ns; });
  }

  void of_pageable() {
    if (machine_.gpu.is_cpu) return;
    const bool to_gpu = is_unknown("pcie.pageable_h2d", machine_.pcie.pageable_h2d),
               from_gpu = is_unknown("pcie.pageable_d2h", machine_.pcie.pageable_d2h);
    if (!to_gpu && !from_gpu) return;
    std::vector<std::string> keys;
    if (to_gpu) keys.emplace_back("pcie.pageable_h2d");
    if (from_gpu) keys.emplace_back("pcie.pageable_d2h");
    add(
        value(std::move(keys), "as pinned"), "a tenth of pinned",
        [to_gpu, from_gpu](Machine& m) {
          if (to_gpu) m.pcie.pageable_h2d = 0.1 * m.pcie.h2d;
          if (from_gpu) m.pcie.pageable_d2h = 0.1 * m.pcie.d2h;
        },
        "as pinned", [](Machine&) {},
        "fitted on the server of Ratel: 3.8 to and 2.06 GB/s from the GPU, of 21; 5 to 6 of 11 to "
        "12 (rapidsai/dask-cuda, pull request 98); 93 of 97 on a GH200 (vortex-data/vortex, pull "
        "request 7815)",
        pageable);
  }

  void of_host() {
    const Machine::Host& host = machine_.host;
    margin("host.bandwidth", rate_text(host.bandwidth), any_work,
           [](Machine& m, double by) { m.host.bandwidth *= by; });
    of_cores();
    of_adam();
    latency("host.sync", bit(Work::nothing), 40'000,
            "40 us: a thread wakes another by a condition variable in 38 us on two cores of an AMD "
            "EPYC (Zen 4)",
            [](Machine& m) -> std::int64_t& { return m.host.sync_ns; });
    if (machine_.gpu.is_cpu) return;
    latency("host.wake", on_cpu, 40'000,
            "40 us: a thread wakes another by a condition variable in 38 us on two cores of an AMD "
            "EPYC (Zen 4)",
            [](Machine& m) -> std::int64_t& { return m.host.wake_ns; });
  }

  void of_cores() {
    if (machine_.gpu.is_cpu) return;
    const double known = machine_.host.core_bandwidth;
    const bool unknown = is_unknown("host.core_bandwidth", known);
    if (!unknown && !says_assumed("host.core_bandwidth")) return;
    const double least = 10e9, most = 30e9;
    add(
        value({"host.core_bandwidth"},
              unknown ? "threads do not compete for cores" : rate_text(known)),
        rate_text(least), [least](Machine& m) { m.host.core_bandwidth = least; },
        unknown ? "not limited" : rate_text(most),
        [unknown, most](Machine& m) {
          if (!unknown) m.host.core_bandwidth = most;
        },
        "one core that streams: 10 to 13 GB/s on servers with DDR4, 20 to 30 on desktops "
        "(machines/parts/hosts)",
        any_work);
  }

  void of_adam() {
    const double rate = machine_.host.adam_params_per_second;
    const std::string shown = fmt::format("{:.3g} Gparam/s", rate / 1e9);
    const std::string* const text = source("host.adam_rate");
    if (text == nullptr || text->rfind("derived: min(cores", 0) != 0)
      return margin("host.adam_rate", shown, on_cpu,
                    [](Machine& m, double by) { m.host.adam_params_per_second *= by; });
    add(
        value({"host.adam_rate"}, shown), "0.4 of it",
        [](Machine& m) { m.host.adam_params_per_second *= 0.4; }, "as derived", [](Machine&) {},
        "0.57 on two Xeon 8168 (ZeRO-Offload, ATC 2021: 10 billion parameters in 2.6 s); 0.99 on "
        "two cores of an AMD EPYC (docs/speed.md); 0.4 is assumed, 30 % below the former",
        on_cpu);
  }

  void of_ssd() {
    const Machine::Ssd& ssd = machine_.ssd;
    const auto both = [](Machine& m, double by) {
      m.ssd.read *= by;
      m.ssd.write *= by;
      m.ssd.total *= by;
    };
    const auto reads = [](Machine& m, double by) { m.ssd.read *= by; };
    const auto writes = [](Machine& m, double by) { m.ssd.write *= by; };
    margin("ssd.read", rate_text(ssd.read), of_drives, reads);
    margin("ssd.write", rate_text(ssd.write), of_drives, writes);
    margin("ssd.drive_read", rate_text(ssd.read) + " of all", of_drives, reads);
    margin("ssd.drive_write", rate_text(ssd.write) + " of all", of_drives, writes);
    margin("ssd.by_count",
           fmt::format("{} read, {} written", rate_text(ssd.read), rate_text(ssd.write)), of_drives,
           both);
    of_scaling();
    of_mixes();
    for (int set = 1; set < machine_.drive_sets(); ++set) {
      const Machine::Ssd& more = machine_.drives(set);
      margin(drive_set_key(set, "read"), rate_text(more.read), bit(read_of(set)),
             [set](Machine& m, double by) { m.drives(set).read *= by; });
      margin(drive_set_key(set, "write"), rate_text(more.write), bit(write_of(set)),
             [set](Machine& m, double by) { m.drives(set).write *= by; });
      const std::string law = drive_set_key(set, "law");
      if (says_assumed(law))
        add(
            value({law}, "as files leave it"), "simplex",
            [set](Machine& m) { m.drives(set).law = SsdLaw::simplex; }, "duplex",
            [set](Machine& m) { m.drives(set).law = SsdLaw::duplex; },
            "by definition: no mix is slower than reads and writes in turns, none faster than "
            "both alone",
            bit(read_of(set)) | bit(write_of(set)));
      latency(drive_set_key(set, "read_latency"), bit(read_of(set)), 80'000,
              "80 us: usual for NAND flash, as the described drives have it",
              [set](Machine& m) -> std::int64_t& { return m.drives(set).read_latency_ns; });
      latency(drive_set_key(set, "write_latency"), bit(write_of(set)), 15'000,
              "15 us: usual with a protected write cache, as the described drives have it",
              [set](Machine& m) -> std::int64_t& { return m.drives(set).write_latency_ns; });
    }
    latency("ssd.read_latency", bit(Work::read), 80'000,
            "80 us: usual for NAND flash, as the described drives have it",
            [](Machine& m) -> std::int64_t& { return m.ssd.read_latency_ns; });
    latency("ssd.write_latency", bit(Work::write), 15'000,
            "15 us: usual with a protected write cache, as the described drives have it",
            [](Machine& m) -> std::int64_t& { return m.ssd.write_latency_ns; });
  }

  // What holds many drives back: n drives of rate d do r, 1 / r = 1 / (n d) + 1 / path, and no more
  // than a ceiling. The rows of the table that follows from a single drive tell all three.
  struct DriveLaw {
    double of_drive = 0, of_path = 0;  // 1 / rate; 0: there is no path
    double ceiling = 0;                // infinity: none that a row reaches

    double rate(std::int64_t drives, double path_by, double ceiling_by) const {
      return std::min(1 / (of_drive / static_cast<double>(drives) + of_path / path_by),
                      ceiling * ceiling_by);
    }
  };
  static std::optional<DriveLaw> law_of(const std::map<std::int64_t, Machine::Ssd::Row>& rows,
                                        double Machine::Ssd::Row::*rate) {
    if (rows.size() < 3 || !rows.contains(1) || !rows.contains(2)) return std::nullopt;
    const double one = rows.at(1).*rate, two = rows.at(2).*rate;
    const double most = rows.rbegin()->second.*rate;
    const bool is_level = std::next(rows.rbegin())->second.*rate == most;
    if (!(one > 0) || (is_level && one == most)) return std::nullopt;
    DriveLaw law;
    law.ceiling = is_level ? most : std::numeric_limits<double>::infinity();
    // Where two drives are at the ceiling the path is not told.
    if (two < law.ceiling) law.of_path = std::max(0.0, 2 / two - 1 / one);
    if (law.of_path * one < 1e-9) law.of_path = 0;
    law.of_drive = 1 / one - law.of_path;
    return law;
  }

  void of_scaling() {
    using Row = Machine::Ssd::Row;
    const auto& rows = machine_.ssd.by_count;
    const auto read = law_of(rows, &Row::read), write = law_of(rows, &Row::write);
    if (!read || !write) return;
    // Rates that were set by hand do not follow from it.
    const auto changed = [](const DriveLaw& law, std::int64_t drives, double rate, double path_by,
                            double ceiling_by) {
      const bool follows = std::abs(law.rate(drives, 1, 1) / rate - 1) < 1e-6;
      return follows ? law.rate(drives, path_by, ceiling_by) : rate;
    };
    const auto change = [=](Machine& m, double path_by, double ceiling_by) {
      const bool is_larger = m.ssd.total == std::max(m.ssd.read, m.ssd.write);
      m.ssd.read = changed(*read, m.ssd.count, m.ssd.read, path_by, ceiling_by);
      m.ssd.write = changed(*write, m.ssd.count, m.ssd.write, path_by, ceiling_by);
      if (is_larger) m.ssd.total = std::max(m.ssd.read, m.ssd.write);
    };
    if (read->of_path > 0)
      margin("ssd.path", rate_text(1 / read->of_path), of_drives,
             [change](Machine& m, double by) { change(m, by, 1); });
    if (std::isfinite(read->ceiling))
      margin("ssd.ceiling", rate_text(read->ceiling), of_drives,
             [change](Machine& m, double by) { change(m, 1, by); });
  }

  // How reads and writes share the drives: one assumption, whichever key would say it.
  void of_mixes() {
    const Machine::Ssd& ssd = machine_.ssd;
    const std::string* const text = source("ssd.total");
    const bool from_table = text != nullptr && origin_of(*text) == Origin::derived;
    const bool caps_at_larger =
        is_unknown("ssd.total", ssd.total) || (ssd.total == 0 && from_table);
    if (says_assumed("ssd.law")) {
      static constexpr std::array<const char*, 4> names = {"simplex", "duplex", "capped", "mixed"};
      return add(
          value(caps_at_larger && ssd.law == SsdLaw::capped
                    ? std::vector<std::string>{"ssd.law", "ssd.total"}
                    : std::vector<std::string>{"ssd.law"},
                names.at(static_cast<std::size_t>(ssd.law))),
          "simplex", [](Machine& m) { m.ssd.law = SsdLaw::simplex; }, "duplex",
          [](Machine& m) { m.ssd.law = SsdLaw::duplex; },
          "by definition: no mix is slower than reads and writes in turns, none faster than "
          "both alone",
          of_drives);
    }
    if (ssd.law == SsdLaw::capped && caps_at_larger) {
      // No total is as slow as reads and writes in turns for every mix, and leaves reads alone as
      // fast as they are.
      add(
          value({"ssd.total"}, "the larger of ssd.read and ssd.write"), "in turns (simplex)",
          [](Machine& m) { m.ssd.law = SsdLaw::simplex; }, "both alone",
          [](Machine& m) { m.ssd.total = m.ssd.read + m.ssd.write; },
          "by definition: no mix is slower than reads and writes in turns, none faster than both "
          "alone",
          of_drives);
    } else if (ssd.law == SsdLaw::capped) {
      margin("ssd.total", rate_text(ssd.total), of_drives,
             [](Machine& m, double by) { m.ssd.total *= by; });
    }
    const bool no_rows = ssd.by_read_share.empty() && ssd.read_share_by_depth.empty();
    if (ssd.law == SsdLaw::mixed && no_rows &&
        (says_assumed("ssd.mixed_gain") ||
         (ssd.mixed_gain == 1 && source("ssd.mixed_gain") == nullptr))) {
      add(
          value({"ssd.mixed_gain"}, fmt::format("{:g}", ssd.mixed_gain)), "1",
          [](Machine& m) { m.ssd.mixed_gain = 1; }, "2", [](Machine& m) { m.ssd.mixed_gain = 2; },
          "by definition: 1 is reads and writes in turns, 2 both alone", of_drives);
    }
  }

  void of_cluster() {
    const Machine::Cluster& cluster = machine_.cluster;
    margin("cluster.nvlink", rate_text(cluster.nvlink), between_gpus,
           [](Machine& m, double by) { m.cluster.nvlink *= by; });
    margin("cluster.switch_link", rate_text(cluster.switch_link), copies | between_gpus,
           [](Machine& m, double by) { m.cluster.switch_link *= by; });
    margin("cluster.nic", rate_text(cluster.nic), between_gpus,
           [](Machine& m, double by) { m.cluster.nic *= by; });
    margin("cluster.spine", rate_text(cluster.spine), between_gpus,
           [](Machine& m, double by) { m.cluster.spine *= by; });
    latency("cluster.nvlink_latency", between_gpus, 3'400,
            "3.4 us: NCCL, src/graph/tuning.cc, a step of a ring over NVLink, Simple protocol",
            [](Machine& m) -> std::int64_t& { return m.cluster.nvlink_latency_ns; });
    if (cluster.nodes > 1) {
      latency(
          "cluster.nic_latency", between_gpus, 14'000,
          "14 us: NCCL, src/graph/tuning.cc, a step of a ring over the network, Simple protocol",
          [](Machine& m) -> std::int64_t& { return m.cluster.nic_latency_ns; });
    }
  }

  // What decides which plan there is, or how long drives last, and is not a time of any task.
  void of_memory() {
    // Where 0 stands for what is not known: `unknown`, in words.
    const auto told = [&](const char* key, double bytes, const char* unknown = nullptr) {
      if (unknown != nullptr && is_unknown(key, bytes))
        values_.push_back(value({key}, unknown));
      else if (says_assumed(key))
        values_.push_back(value({key}, format_bytes(bytes)));
    };
    const Machine::Host& host = machine_.host;
    // The keys are of all that is there, also of what no plan may take.
    const Machine::Gpu& gpu = machine_.gpu;
    told("gpu.memory", static_cast<double>(gpu.memory + (gpu.limit == 0 ? gpu.context : 0)));
    if (machine_.backend() == Backend::cuda)
      told("gpu.context", static_cast<double>(machine_.gpu.context), "none");
    told("host.memory", static_cast<double>(host.memory + host.reserved + host.beside));
    // One of both is enough.
    if (host.reserved_share == 0) told("host.reserved", static_cast<double>(host.reserved), "none");
    if (says_assumed("host.reserved_share"))
      values_.push_back(value({"host.reserved_share"}, fmt::format("{:g}", host.reserved_share)));
    if (machine_.ssd.count == 0) return;
    told("ssd.capacity", static_cast<double>(machine_.ssd.capacity));
    told("ssd.tbw", static_cast<double>(machine_.ssd.tbw), "not known");
    told("ssd.cache", static_cast<double>(machine_.ssd.cache), "none, or not known");
  }

  const Machine& machine_;
  std::vector<AssumedValue> values_;
};

}  // namespace

std::string AssumedValue::name() const { return fmt::format("{}", fmt::join(keys, " and ")); }

std::vector<AssumedValue> assumed_values(const Machine& machine) {
  std::vector<AssumedValue> all = Assumptions(machine).take();
  if (machine.cluster.sharing == 1) return all;
  // Keys are of the whole computer, what is set of a rank's share of it.
  const std::vector<AssumedValue> whole = Assumptions(whole_of(machine)).take();
  SPILLWAY_ASSERT(whole.size() == all.size());
  for (std::size_t k = 0; k < all.size(); ++k) {
    all[k].value = whole[k].value;
    all[k].low = whole[k].low;
    all[k].high = whole[k].high;
  }
  return all;
}

}  // namespace spillway
