// The machine to train on: capacities, rates, latencies, each with a source.
//
// Read from TOML (docs/machine-files.md); rates are bytes/s, times integer nanoseconds. What the
// numbers cost a task is written in policies/cost/costs.hpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "policies/machine/drive_sets.hpp"
#include "policies/workload/backend.hpp"

namespace spillway {

// How reads and writes share the drives.
enum class SsdLaw : std::uint8_t {
  simplex,  // times add: bytes_r / R + bytes_w / W <= t
  duplex,   // independent
  capped,   // read <= R, write <= W, read + write <= RW
  mixed     // read <= R, write <= W, and a mix is `mixed_gain` faster than with simplex
};

// How many requests a lane of the executor keeps in flight (SsdStoreOptions::queue_depth).
inline constexpr std::int64_t executor_queue_depth = 32;
inline constexpr std::int64_t deepest_queue = 4096;

// One measured kernel: the time of a task kind at an exact shape, with its raw samples.
struct KernelTime {
  std::string kind;   // task kind name, e.g. "forward", "backward", "optimizer"
  std::string shape;  // exact shape key, see kernel_shape() in policies/schedule/program.hpp
  double flops = 0;   // work of the sample, for interpolation between shapes
  std::int64_t median_ns = 0;
  double spread = 0;  // (p80 - p20) / median
  std::vector<std::int64_t> samples_ns;
};

// A short training on the machine after it was measured: what its step was predicted to take, and
// took.
struct TrialTime {
  std::string policy;
  std::int64_t batch = 0, micro_batch = 0;
  std::int64_t predicted_ns = 0, median_ns = 0;
  double spread = 0;  // as that of a kernel
  std::vector<std::int64_t> samples_ns = {};
};

struct Machine {
  std::string name;
  std::string description;

  struct Gpu {
    bool is_cpu = false;  // the CPU backend stands in: compute and copies use host cores and DRAM
    std::uint64_t memory = 0;  // usable bytes, of the schedule: what the file gives, less `context`
    std::uint64_t context = 0;  // bytes that the CUDA context and its libraries take
    // Training on a GPU takes so many bytes beside `memory` (gpu_workspaces.hpp), and was told to
    // take `limit` at most in all. 0: not known, not told. No keys of the file.
    std::uint64_t workspaces = 0, limit = 0;
    double flops = 0;             // sustained matrix FLOP/s (peak x efficiency)
    double memory_bandwidth = 0;  // bytes/s; 0: not modelled
    double adam_params_per_second = 0;
    std::int64_t launch_ns = 0;        // per compute task
    double cores = 0;                  // host cores a compute task keeps busy (CPU backend); 0: one
    std::int64_t multiprocessors = 0;  // on which tiles of products run in waves; 0: not known
    double attention_flops = 0;        // sustained, of attention's products; 0: as flops
    // Rate of large products over `flops`. With it, operators beside products take the bytes that
    // they move; 0: `flops` is of whole layers, beside which they count nothing.
    double product_gain = 0;
    double clock = 1;  // share of the clock of `flops` kept under the power limit
    // Shares of `flops` that products of so many tokens by a hidden size reach, as measured.
    struct ShapeRate {
      std::int64_t tokens = 0, hidden = 0;
      double share = 1;
    };
    std::vector<ShapeRate> by_shape;
    // What computes GELU's backward in training on it: "kernel", "dgelu" or "dgelu-bgrad"
    // (docs/cuda.md). Part of the numbers of a training.
    std::string gelu_backward = "kernel";
  } gpu;

  struct Pcie {
    double h2d = 0, d2h = 0;                    // bytes/s each way, pinned
    double total = 0;                           // both ways together; 0: duplex, independent
    double pageable_h2d = 0, pageable_d2h = 0;  // bytes/s, host memory not pinned; 0: as pinned
    std::int64_t latency_ns = 0;                // per copy
  } pcie;

  struct Host {
    std::uint64_t memory = 0;    // usable bytes: what the file gives, less `reserved`
    std::uint64_t reserved = 0;  // bytes of it for the system and for what cannot be pinned
    double reserved_share = 0;   // of the installed memory, for the same; 0: `reserved`
    // Taken of `memory` already: what works beside the schedule (memory_beside.hpp). No key of the
    // file.
    std::uint64_t beside = 0;
    double bandwidth = 0;       // DRAM bytes/s, reads + writes
    double core_bandwidth = 0;  // of one core, reads + writes; 0: not known
    double io_bandwidth = 0;    // bytes/s of all copies over PCIe, GPU and drives; 0: not limited
    double cores = 0;
    double adam_params_per_second = 0;
    double adam_bytes_per_param = 28;  // DRAM traffic of the CPU optimizer
    double adam_cores = 0;             // cores it keeps busy; 0: all
    std::int64_t sync_ns = 0;          // per barrier: the host thread wakes and submits anew
    std::int64_t wake_ns = 0;  // per task of the CPU beside a GPU: a thread learns of its data
  } host;

  struct Ssd {
    std::int64_t count = 0;      // drives; 0: none
    std::uint64_t capacity = 0;  // bytes, all drives
    std::uint64_t tbw = 0;       // bytes that one drive is rated to be written; 0: not known
    double read = 0, write = 0;  // bytes/s with `count` drives
    double total = 0;            // mixed cap (law capped); 0: max(read, write)
    SsdLaw law = SsdLaw::capped;
    // Law mixed: what a mix of reads and writes reaches over what it does where times add (simplex,
    // 1), by share of bytes that are read; `mixed_gain` for every mix where no row says more.
    double mixed_gain = 1;
    std::map<double, double> by_read_share;
    // The same by requests in flight on each lane, over all drives: in place of by_read_share.
    std::map<double, std::map<double, double>> read_share_by_depth;
    // The fast write cache of one drive: bytes, the rate of all drives until it is full, and the
    // rate at which all drives empty it. 0: none, or not known.
    std::uint64_t cache = 0;
    double cache_write = 0, cache_recovery = 0;
    std::int64_t read_latency_ns = 0, write_latency_ns = 0;
    double cores = 0;  // host cores a running transfer keeps busy (CPU backend)
    // Bandwidths by number of drives {count -> read, write, total}, interpolated; may be empty.
    struct Row {
      double read = 0, write = 0, total = 0;
    };
    std::map<std::int64_t, Row> by_count;
    // Requests that a lane keeps in flight, over all drives.
    std::int64_t queue_depth = executor_queue_depth;
    // Shares of read, write and total (0 < share <= 1; total 0: the larger of both) by requests in
    // flight, interpolated; may be empty.
    std::map<double, Row> by_queue_depth;

    // read, write and total as they are with queue_depth requests in flight.
    Row at_queue_depth() const;
    // Gains by read share with queue_depth requests in flight: linear in depth between the rows
    // of a share, and beyond them as at the ends.
    std::map<double, double> gains_at_queue_depth() const;
    // Whether the bandwidths are guessed from the table of drives: it has no row for so many, nor
    // rows on both sides, and nobody has given them.
    bool extrapolated() const;
  } ssd;
  // Sets of drives that are not as fast as the first, one after the other; the rest have no drives.
  std::array<Ssd, most_drive_sets - 1> more_ssd;

  int drive_sets() const {
    int sets = ssd.count > 0 ? 1 : 0;
    for (const Ssd& one : more_ssd) sets += one.count > 0 ? 1 : 0;
    return sets;
  }
  // What a schedule has of memories: that of the GPU, the host, and each set of drives.
  int memories() const { return 2 + std::max(1, drive_sets()); }
  const Ssd& drives(int set) const {
    return set == 0 ? ssd : more_ssd[static_cast<std::size_t>(set) - 1];
  }
  Ssd& drives(int set) { return set == 0 ? ssd : more_ssd[static_cast<std::size_t>(set) - 1]; }
  // Bytes of all sets.
  std::uint64_t drive_capacity() const {
    std::uint64_t all = ssd.capacity;
    for (const Ssd& one : more_ssd) all += one.capacity;
    return all;
  }

  // Several GPUs. `gpu` and `pcie` are of one GPU; `host` and drives are of a node in a file, and
  // in a Problem what one of `sharing` ranks of the node has of them (rank_share.hpp).
  struct Cluster {
    std::int64_t nodes = 1, gpus = 1;  // GPUs of a node
    double nvlink = 0;  // bytes/s each way between a GPU and those of its node together; 0: they
                        // reach each other through host memory
    std::int64_t nvlink_latency_ns = 0;  // of a step of a collective between them
    // Host cores that a rank's collective keeps busy while it moves (CPU backend).
    double cores = 0;
    // GPUs of a node, in their order, that share a way to its host: a PCIe switch, or a socket. 0:
    // each has its own; and bytes/s each way of it.
    std::int64_t switch_gpus = 0;
    double switch_link = 0;
    double nic = 0;                   // bytes/s each way of a node, to all others together
    std::int64_t nic_latency_ns = 0;  // of a step of a collective between nodes
    std::int64_t leaf_nodes = 0;      // nodes under a leaf switch; 0: all reach each other alike
    double spine = 0;  // bytes/s each way of a leaf to all others; 0: what its nodes have
    // Ranks of a node whose share `host` and `ssd` are; 1 in files that people write.
    std::int64_t sharing = 1;
    // Of them those behind one switch.
    std::int64_t ranks_of_switch() const {
      return switch_link > 0 ? std::min(switch_gpus, sharing) : 1;
    }
    // Bus bandwidths as nccl-tests counts them, of a collective over so many GPUs of a node and
    // nodes, by the bytes of the whole: interpolated, in place of what the links say.
    struct Collective {
      std::string kind;  // "all_gather", "reduce_scatter", "all_reduce", "broadcast"
      std::int64_t gpus = 1, nodes = 1;
      std::uint64_t bytes = 0;
      double bandwidth = 0;
    };
    std::vector<Collective> collectives = {};
    std::int64_t count() const { return nodes * gpus; }
  } cluster;

  // What the rates are of.
  Backend backend() const { return gpu.is_cpu ? Backend::cpu : Backend::cuda; }

  // Reference kernels of the processor, its memory and the drives, as they were when the rates were
  // measured: what the machine does now over these is its drift.
  std::vector<KernelTime> references;
  std::vector<TrialTime> trials;               // how far predictions were off when it was measured
  std::vector<KernelTime> kernels;             // measured kernels; empty for datasheet machines
  std::map<std::string, std::string> sources;  // dotted key -> where the number is from
};

// Built-in machines (from machines/*.toml, embedded), in a stable order.
const std::vector<Machine>& builtin_machines();

// A built-in name or the path of a TOML file; `overrides` are the KEY=VALUE of --set, e.g.
// "ssd.count=6" (bandwidths follow by_count), "host.memory=256GB". Throws InputError with
// file:line.
Machine load_machine(const std::string& name_or_path,
                     const std::vector<std::string>& overrides = {});
Machine parse_machine(const std::string& toml_text, const std::string& origin,
                      const std::vector<std::string>& overrides = {});
std::string machine_to_toml(const Machine& machine);

// The keys that overrides may set, in the order of docs/machine-files.md.
std::vector<std::string> machine_keys();
// Whether `value` is of the form that `key` takes, e.g. "ssd.count", "6". Throws InputError,
// without a place, where it is not, and where there is no such key.
void check_machine_setting(const std::string& key, const std::string& value);

}  // namespace spillway
