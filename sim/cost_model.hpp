// What each task of a schedule demands of the machine.
//
// Resources: gpu (seconds), cores, dram (bytes/s), pcie.h2d, pcie.d2h, and pcie.total where the
// machine limits both ways together; for the SSDs by the machine's law (bytes/s):
//   capped    ssd.read <= R, ssd.write <= W, ssd.total <= RW; RW defaults to max(R, W) (as
//   SimGrid's disks) duplex    ssd.read <= R, ssd.write <= W simplex   ssd.time <= 1 s/s, of which
//   a byte read takes 1/R and a byte written 1/W (GreedySnake's linear
//             program: times of reads and writes add up)
// Where the machine file leaves host.bandwidth or host.cores out (0), they do not limit.
//
// Tasks (time alone = latency + amount / rate):
//   compute      gpu.launch + FLOPs / gpu.flops; the embedding is bound by memory: bytes /
//   gpu.memory_bandwidth
//                (0 if that is not given). Where the machine file has measured kernels: gpu.launch
//                + the kernel's time (sim/kernel_times.hpp)
//   h2d, d2h     pcie.latency + bytes / pcie rate; 1 byte of DRAM per byte
//   read, write  ssd latency + bytes / ssd rate; 1 byte of DRAM per byte: a byte bounced between
//   SSD and GPU
//                costs two in all
//   optimizer    on cpu.optimizer: params / host.adam_rate; DRAM adam_bytes_per_param each (28:
//   fp32
//                master, m and v read and written, 24 B; gradient read and parameter written, 2 B
//                each); it keeps host.adam_cores busy (0: all). on gpu.compute: gpu.launch + params
//                / gpu.adam_rate, or memory_bandwidth / 28
//   barrier      nothing
// Fairness: equal bytes per second of what they share; the CPU optimizer's weight is 1 /
// adam_bytes_per_param.
//
// With gpu.is_cpu the CPU backend stands in for the GPU and everything runs on the host's cores:
//   compute      gpu.launch + the measured kernel, extrapolated where there is none; 1 core
//   h2d, d2h     a memcpy: 2 bytes of DRAM per byte (read and written); 1 core while it copies at
//   full speed.
//                A link slower than one core copies (bandwidth / 2 / cores) is throttled: the core
//                sleeps the rest of the time and is not charged for it
//   read, write  ssd.cores while running
//   optimizer    gpu.launch + params / rate; adam_cores (0: one), on either lane
// Fairness is by cores there, for the operating system shares cores equally among threads: one unit
// of weight takes the same share of a core, whatever it does with it.
#pragma once

#include "policies/schedule.hpp"
#include "sim/engine.hpp"

namespace spillway {

struct CostedSchedule {
  ActivityGraph graph;  // activity i is task i; lane l is Lane(l); refers to the schedule for names
  bool extrapolated = false;  // some compute time was not measured at its shape
};

// Throws InputError where the schedule needs a rate the machine file does not give (e.g. ssd.read).
CostedSchedule cost_schedule(const Schedule& schedule);

}  // namespace spillway
