// Holds every figure of a calibration to one speed of the machine.
//
// A shared machine changes its speed within seconds (a core whose sibling works for somebody else
// is a quarter slower), so a figure is of the moment in which it was taken. References
// (reference_kernels.hpp) timed between figures and their samples say how slow the machine was just
// then, and each sample is divided by that. What the references took over all of the calibration is
// the speed that the machine file is of. They are always timed in whole rounds, as they are around
// a training later, though without those of the drives: what a reference finds in the caches is 4
// to 7 % of its time, and depends on what ran before it.
//
// Drives have figures at the end of a calibration only. Their references are timed at its start,
// between those figures, and at its end: a drive that minutes of writing have slowed down, and one
// that rested, are both what a training may find.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "experiments/calibrate/drift.hpp"
#include "experiments/calibrate/reference_kernels.hpp"
#include "experiments/calibrate/sampler.hpp"

namespace spillway {

class SpeedGauge {
 public:
  // Takes the first references. Throws MachineError, as ReferenceKernels does.
  SpeedGauge(const std::vector<std::filesystem::path>& directories, const IoChoice& io);

  // The rule with references timed between samples, which are divided by the slowness of the one of
  // this kind. It refers to this object.
  SamplingRule held(SamplingRule rule, const std::string& kind);

  // Samples beside which other work goes on: references are timed before and after all of them.
  std::vector<std::int64_t> held(const std::string& kind,
                                 const std::function<std::vector<std::int64_t>()>& measure);

  // Before each figure of the drives: times all references, those of the drives too.
  void take_with_drives();

  // After all figures, those of the drives last: takes the last references, gives the machine all
  // of them, and brings its figures of the processor and the memory from the speed of the first to
  // the mean of all. Drives stay as they were measured.
  void finish(Machine& machine);

  ReferenceKernels& kernels() { return kernels_; }

 private:
  double slowness(const std::string& kind);  // timed anew every second
  void take();

  ReferenceKernels kernels_;
  std::vector<KernelTime> first_, latest_, all_;
  std::chrono::steady_clock::time_point taken_;  // the latest
};

}  // namespace spillway
