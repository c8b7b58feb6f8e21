// What the events of a run tell, all in all: everything that is shown of a run, while it trains and
// later, is told from here (docs/metrics.md has the formulas).
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace spillway {

struct StepPoint {
  std::int64_t step = 0;  // counted from 0
  double loss = 0, loss_average = 0;
  double loss_sum = 0, loss_weight = 0;  // of which that is the quotient
  double seconds = 0, tokens_per_second = 0;
  std::optional<double> gradient_norm, learning_rate, mfu, gpu_power_watts, gpu_clock_mhz;
  bool skipped = false;
  double ssd_bytes_read = 0, ssd_bytes_written = 0;
  double time = 0;  // at its end, seconds since 1970; what the run did not say counts from 0
};

struct EvaluationPoint {
  std::int64_t step = 0;  // steps trained before
  double loss = 0, perplexity = 0, seconds = 0, time = 0;
};

class RunHistory {
 public:
  // What the last event `start` says.
  struct Start {
    std::string model, policy, device;
    std::int64_t steps = 0, first_step = 0;  // of the whole run; where this part of it begins
    double time = 0;
    double tokens_per_step = 0;
    double model_flops = 0;   // of a step; 0: not known
    double device_flops = 0;  // per second; 0: not known
    std::optional<double> predicted_step_seconds;
    bool evaluates = false;
    std::int64_t evaluate_every = 0;             // 0: before the first step and after the last
    std::map<std::string, double> lane_bytes;    // of a step
    std::map<std::string, double> memory_bytes;  // planned peak by tier
  };
  enum class End : std::uint8_t { none, interrupted, complete };

  // Any event, of a file that may come from somebody else; one that is not as ours are changes
  // nothing that is told here. What an event `start` overtakes is forgotten.
  void take(const nlohmann::json& event);

  bool begun() const { return begun_; }
  const Start& start() const { return start_; }
  const std::vector<StepPoint>& steps() const { return steps_; }
  const std::vector<EvaluationPoint>& evaluations() const { return evaluations_; }
  End end() const { return end_; }

  // Steps that are done: one more than the last that was told.
  std::int64_t steps_done() const;
  // Averages of the last steps, so that they do not jump about; 0 before the first.
  double average_step_seconds() const { return step_seconds_; }
  // Over the average step; nothing before the first.
  std::optional<double> tokens_per_second() const;
  std::optional<double> mfu() const;
  // Seconds that the steps and evaluations which are left take, as far as that can be told.
  double seconds_left() const;

 private:
  void take_start(const nlohmann::json& event);
  void take_step(const nlohmann::json& event);
  void take_evaluation(const nlohmann::json& event);
  void forget_from(std::int64_t step);

  bool begun_ = false;
  Start start_;
  std::vector<StepPoint> steps_;
  std::vector<EvaluationPoint> evaluations_;
  End end_ = End::none;
  double time_ = 0;
  double step_seconds_ = 0, seconds_sum_ = 0, seconds_weight_ = 0;
};

}  // namespace spillway
