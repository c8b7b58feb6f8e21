#include "policies/machine/memory_beside.hpp"

#include <algorithm>

namespace spillway {

void set_memory_beside(Problem& problem, bool frozen_in_place) {
  problem.frozen_in_place = frozen_in_place && problem.model.has_frozen();
  Machine::Host& host = problem.machine.host;
  host.memory += host.beside;
  host.beside = 0;
  const std::uint64_t wanted = memory_beside(problem);
  if (wanted == 0 || host.memory == 0) return;
  host.beside = std::min(wanted, host.memory - 1);
  host.memory -= host.beside;
}

std::uint64_t memory_beside(const Problem& problem) {
  return problem.sample_memory + (problem.frozen_in_place ? frozen_buffer_bytes : 0);
}

std::string what_is_beside(const Problem& problem) {
  std::string text;
  if (problem.frozen_in_place) text = "memory that frozen weights are read through";
  if (problem.sample_memory > 0)
    text += (text.empty() ? "" : " and of ") + std::string("memory that writes samples");
  return text;
}

}  // namespace spillway
