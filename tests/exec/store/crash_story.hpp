// A training that is killed again and again, and goes on each time: what a crash may do to it, and
// what must hold whenever it does.
//
// An incarnation is one process that trains (a forked child). It ends by a power cut at some
// request to its drive, by SIGKILL at some time, by a stop that was asked for, or with all steps
// done. Whatever it was, the next one goes on from the last commit: as before, or under another
// policy, placement, stripe set or commit interval. A story is a sequence of incarnations until all
// steps are done; all that is random in it follows from its seed, but for where threads are when
// the end comes.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/exec/training_support.hpp"

namespace spillway::test {

// What its incarnations are up against.
enum class Trouble : std::uint8_t {
  crashes,  // power cuts and kills
  faults    // of the drive, one each: it goes on exactly, or stops and says where and what to do
};

// How often incarnations were killed, and when; what faults did.
struct Moments {
  std::uint64_t stories = 0;
  std::uint64_t power_cuts = 0, kills = 0;  // SIGKILL either way
  std::uint64_t over_threads = 0;           // of these, with rings of threads
  std::uint64_t before_first_commit = 0;    // of the training: it starts anew
  std::uint64_t starting = 0;               // in the constructor: filling, moving, committing anew
  std::map<std::string, std::uint64_t> of_policy;
  std::uint64_t all() const { return power_cuts + kills; }
  std::uint64_t faults = 0;   // that happened
  std::uint64_t stopped = 0;  // by one: with a message
  std::uint64_t lost = 0;     // trainings whose committed state a flipped write had hit: refused
};

// The policies that take part beside random ones: every built-in one, with state of the optimizer
// on the ssd, in host memory and on the gpu, updates delayed or not.
const std::vector<std::string>& crash_policies();

class CrashStories {
 public:
  // Trains once without a disturbance, in this process.
  CrashStories();

  // Fails the running test where a number differs from the undisturbed ones, more is lost than may
  // be, or an incarnation hangs or ends with an error.
  void tell(std::uint64_t seed, Trouble trouble = Trouble::crashes);
  const Moments& moments() const { return moments_; }

 private:
  Workbench bench_;
  std::array<Losses, 2> undisturbed_;  // by MomentWidth
  Moments moments_;
};

}  // namespace spillway::test
