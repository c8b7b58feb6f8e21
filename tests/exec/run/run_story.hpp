// What users do to the folders of their runs: they copy, move, link, put back and delete them,
// share SSD directories between them, kill and resume. A story is a random sequence of such deeds
// over a few runs, told to the code that `spillway train` and `spillway store` use; beside it a
// model keeps what must survive.
//
// After every deed: no file of the user's has changed; every run that was not at work has the state
// it had, whole; and a deed that had to succeed has. At the end every run whose state is its own
// goes on to its last step, with the weights of a run that nothing happened to.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/exec/training_support.hpp"

namespace spillway::test {

struct Deeds {
  std::map<std::string, std::uint64_t> done;  // by kind
  std::map<std::string, std::uint64_t> refused;
};

class RunStories {
 public:
  RunStories();
  // Fails the running test where something is lost or touched that must not be.
  void tell(std::uint64_t seed);
  const Deeds& deeds() const { return deeds_; }

  static constexpr std::int64_t last_step = 8;
  static constexpr std::uint64_t trainings = 2;  // with different seeds

 private:
  Workbench bench_;
  std::vector<std::uint64_t> hashes_;  // of the weights at the last step, by seed - 1
  Deeds deeds_;
};

}  // namespace spillway::test
