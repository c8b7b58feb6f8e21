// What each task of a schedule demands of the machine.
//
// Resources: gpu (seconds), cores, dram (bytes/s), pcie.h2d, pcie.d2h, and pcie.total where the
// machine limits both ways together; for the SSDs by the machine's law (bytes/s):
//
//   capped    ssd.read <= R, ssd.write <= W, ssd.total <= RW, which defaults to max(R, W)
//             (SimGrid's disk model)
//   duplex    ssd.read <= R, ssd.write <= W
//   simplex   ssd.time <= 1 s/s: a byte read takes 1/R of it, a byte written 1/W
//             (times of reads and writes add up, as in GreedySnake's linear program)
//
// R, W and RW are those of the machine at its queue depth (docs/machine-files.md).
//
// A machine built without host.bandwidth or host.cores (0; files must give them) is not limited by
// them.
//
// Tasks; alone, each takes latency + amount / rate:
//
//   compute      gpu.launch + FLOPs / gpu.flops; where the machine file has measured kernels,
//                gpu.launch + the kernel's time (policies/cost/kernel_times.hpp).
//                The embedding is bound by memory: bytes / gpu.memory_bandwidth (0 if not given)
//   h2d, d2h     pcie.latency + bytes / pcie rate; 1 byte of DRAM per byte
//                with pageable host memory pcie.pageable_h2d, _d2h and 3 bytes of DRAM per byte
//   read, write  ssd latency + bytes / ssd rate; 1 byte of DRAM per byte, so that a byte bounced
//                between SSD and GPU costs two
//   optimizer    on cpu.optimizer: params / host.adam_rate; adam_bytes_per_param of DRAM each;
//                a task with pass_bytes takes that much more of both, in proportion.
//                28 are: fp32 master, m and v read and written (24), 16-bit gradient read and
//                parameter written (2 + 2). Keeps host.adam_cores busy (0: all). Starts host.wake
//                late: a thread of the host learns that its data is there.
//                On gpu.compute: gpu.launch + params / gpu.adam_rate, or memory_bandwidth / 28.
//                Where the machine file has measured optimizers of a GPU machine, both rates are of
//                an AdamW that moves adam_bytes_per_param, and both times (and the DRAM) go with
//                the bytes that the problem's moves: 24 (16 with moments in bf16) + its gradient's
//                + its parameter's. Elsewhere they go with these bytes over those with fp32 moments
//   norm         of a gradient, on either lane: the optimizer's latency there + bytes / rate; 1
//   byte
//                of DRAM per byte on the host. The rate is the measured one, else that at which
//                AdamW passes over its bytes, on a GPU 28 per parameter
//   barrier      host.sync
//
// Fairness: equal bytes per second of what is shared; so the CPU optimizer weighs
// 1 / adam_bytes_per_param.
//
// With gpu.is_cpu the CPU backend stands in for the GPU, and everything runs on the host's cores:
//
//   compute      gpu.launch + the measured kernel, extrapolated where there is none; gpu.cores
//                (0: one; less than one where compute is throttled, for the core sleeps meanwhile)
//   h2d, d2h     a memcpy: 2 bytes of DRAM per byte (read and written); 1 core while it copies at
//                full speed. A link slower than one core copies (bandwidth / 2 / cores) is
//                throttled: the core sleeps the rest of the time and is not charged for it
//   read, write  ssd.cores while running
//   optimizer    gpu.launch + params / rate; adam_cores (0: one), on either lane
//
// Fairness there is by cores, for the operating system gives every thread the same share of them.
#pragma once

#include "policies/schedule/schedule.hpp"
#include "sim/engine.hpp"

namespace spillway {

struct CostedSchedule {
  ActivityGraph graph;  // activity i is task i; lane l is Lane(l); refers to the schedule for names
  bool extrapolated = false;  // some compute time was not measured at its shape
};

// Throws InputError where the schedule needs a rate the machine file does not give (e.g. ssd.read).
CostedSchedule cost_schedule(const Schedule& schedule);

}  // namespace spillway
