// A value of every field of a workload that is always written, which the field does not have by
// itself: for tests of what reads or writes all of them. Together they are a workload of gpt-tiny.
#pragma once

#include "policies/workload/workload_fields.hpp"

namespace spillway::test {

inline WorkloadTexts unusual_workload() {
  return {{"batch", "12"},         {"micro_batch", "6"},
          {"sequence", "24"},      {"sequences_at_once", "2"},
          {"precision", "bf16"},   {"gradient_bits", "32"},
          {"moments", "bf16"},     {"gradient_clip", "layer=0.5"},
          {"on_nonfinite", "skip"}};
}

}  // namespace spillway::test
