// Reference kernels: fixed pieces of work whose times say how fast this computer is just now.
//
// Shared machines change speed by 10 to 25 % within minutes. `calibrate` keeps the references'
// times beside the rates it measures; what they take later over that is the drift of the machine
// (drift.hpp). Each takes 10 to 50 ms on a fast core:
//
//   compute  forward and backward of a layer, operands in no cache and in cache, one thread
//   adam     AdamW on parameters that are in no cache, one thread
//   copy     memcpy between memories that are in no cache, one thread
//   copies   the same on two threads at once, in opposite directions
//   read     32 MiB of a test file, with checksums, as training reads
//   write    32 MiB of it, the same way
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "exec/io/io_choice.hpp"
#include "policies/machine/machine.hpp"

namespace spillway {

class ReferenceKernels {
 public:
  // Writes a test file of 64 MiB in each of `directories`, in a folder of its own that goes with
  // this object; without directories drives have no reference. Throws MachineError.
  explicit ReferenceKernels(const std::vector<std::filesystem::path>& directories,
                            const IoChoice& io = usual_io());
  ~ReferenceKernels();

  // Runs all of them, or those of the processor, `rounds` times in turn, at least once, and returns
  // their times; once more before that, untimed.
  std::vector<KernelTime> take(int rounds, bool with_drives = true);

  // All of them, reference_rounds times, around each of several trainings in a row. Those after one
  // training are those before the next, where that begins within a second.
  std::vector<KernelTime> before_training();
  std::vector<KernelTime> after_training();

 private:
  struct Work;
  std::unique_ptr<Work> work_;
  std::vector<KernelTime> latest_;               // after a training
  std::chrono::steady_clock::time_point ended_;  // when these were timed
};

// Rounds that take, with the one before them, a second on a fast machine, and of calibration at its
// start and end.
inline constexpr int reference_rounds = 5, calibration_rounds = 8;

// Both measurements as one: their samples together.
std::vector<KernelTime> joined(const std::vector<KernelTime>& first,
                               const std::vector<KernelTime>& second);

}  // namespace spillway
