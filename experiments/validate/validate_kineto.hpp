// A training that another program ran, as PyTorch's profiler recorded it, held against a simulated
// schedule: by lane and by kind of task, since the two have no tasks in common.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/plan/evaluate.hpp"
#include "experiments/validate/kineto_import.hpp"

namespace spillway {

// Seconds a step.
struct KinetoQuantity {
  std::string name;
  double predicted_seconds = 0;
  std::optional<double> measured_seconds;  // nothing: no rule of the mapping has it

  // predicted / measured - 1; nothing: not measured, or measured as nothing.
  std::optional<double> error() const;
};

struct KinetoValidation {
  Evaluation prediction;
  KinetoImport measured;
  double predicted_step_seconds = 0, measured_step_seconds = 0;
  double error = 0;                   // predicted / measured - 1
  std::vector<KinetoQuantity> kinds;  // of both, most measured seconds first
  std::vector<KinetoQuantity> lanes;  // likewise; seconds that the lane is busy
};

// `prediction` has a result. The measured step is the median over the steps that count, the
// predicted one that of docs/traces.md. Kinds that the mapping puts together are added up.
KinetoValidation validate_kineto(Evaluation prediction, KinetoImport measured);

}  // namespace spillway
