// What every byte of every tier holds, as a name instead of a number.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "policies/schedule/task.hpp"

namespace spillway::test {

enum class Held {
  nothing,          // never written, or no longer anyone's
  scratch,          // written, but of no meaning to another task
  parameters,       // of `unit` after `version` updates
  optimizer_state,  // of elements [first, first + elements) of `unit` after `version` updates
  gradient,         // of `unit` in step `version`, summed over the micro-batches in `summed`
  head_gradient,    // the tied head's share of the same
  activation,  // input of layer `unit` (the head's: unit = L) for `micro_batch` in step `version`
  activation_gradient,  // of the same
  saved,  // tensor `first` (the bit of a SavedTensor) that layer `unit` kept for backward
  norm    // of the gradient of `unit` in step `version`
};

struct Value {
  Held held = Held::nothing;
  int unit = -1;
  int version = -1;
  int micro_batch = -1;
  std::uint64_t summed = 0;  // one bit per micro-batch
  std::uint64_t first = 0, elements = 0;
  bool operator==(const Value&) const = default;
};

std::string to_string(const Value& value);

// One tier. A range of bytes [begin, end) holds bytes `from`, `from` + 1, ... of a value.
class ShadowMemory {
 public:
  void write(std::uint64_t begin, std::uint64_t bytes, const Value& value, std::uint64_t from);
  // Empty when [begin, begin + bytes) holds exactly bytes `from` ... of `value`; else what it holds
  // instead.
  std::string expect(std::uint64_t begin, std::uint64_t bytes, const Value& value,
                     std::uint64_t from) const;

  struct Run {
    std::uint64_t begin = 0, end = 0;
    Value value;
    std::uint64_t from = 0;
  };
  // The run that holds byte `at`, from there on; `nothing` up to the next run where there is none.
  Run at(std::uint64_t at) const;

 private:
  void split(std::uint64_t at);
  std::map<std::uint64_t, Run> runs_;  // by begin, disjoint
};

}  // namespace spillway::test
