// What a training is watched for: whether its evaluations still get better, and losses that jump.
// Both are functions of the losses before alone, so that a resumed training decides as one that
// never stopped.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace spillway {

struct Best {
  std::int64_t step = 0;  // steps trained before the evaluation
  double loss = 0;
};

class EvaluationWatch {
 public:
  // `patience`: evaluations in a row that may be no better than the best before them by more than
  // `margin`; 0: any number.
  explicit EvaluationWatch(std::int64_t patience = 0, double margin = 0)
      : patience_(patience), margin_(margin) {}

  // Whether the loss is the lowest so far; one that is not finite is not.
  bool take(std::int64_t step, double loss);
  // The lowest so far; nothing before the first.
  const std::optional<Best>& best() const { return best_; }
  // Evaluations since one that was better by more than the margin.
  std::int64_t not_better() const { return not_better_; }
  bool out_of_patience() const { return patience_ > 0 && not_better_ >= patience_; }

 private:
  std::int64_t patience_;
  double margin_;
  std::optional<Best> best_;
  std::optional<double> reference_;
  std::int64_t not_better_ = 0;
};

// A loss far above those of the steps before it, of which the update is better left out. Batches
// that raise it are left out and training goes on from before them, as in PaLM (Chowdhery et al.,
// 2022, section 5.1).
class SpikeWatch {
 public:
  static constexpr std::size_t most_losses = 50, fewest_losses = 20;
  // In a row that may be left out: then it is not the batch.
  static constexpr std::int64_t most_left_out = 10;

  // `deviations`: how far above the average, in standard deviations; 0: nothing is a spike.
  explicit SpikeWatch(double deviations = 0) : deviations_(deviations) {}

  // The loss of a step that was taken.
  void take(double loss);
  // Whether `loss` would be a spike: above the average of the last most_losses by more than the
  // deviations, each of at least a hundredth of that average. Never before there are fewest_losses,
  // nor where it is not finite, which on_nonfinite is for.
  bool is_spike(double loss) const;
  double average() const;

 private:
  double deviations_;
  std::deque<double> losses_;
};

// How many of the ascending `left_out` follow each other up to the last one.
std::int64_t left_out_in_a_row(const std::vector<std::int64_t>& left_out);

}  // namespace spillway
