#include "experiments/train/training_guards.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace spillway {

bool EvaluationWatch::take(std::int64_t step, double loss) {
  const bool is_best = std::isfinite(loss) && (!best_ || loss < best_->loss);
  if (is_best) best_ = Best{step, loss};
  if (std::isfinite(loss) && (!reference_ || loss < *reference_ - margin_)) {
    reference_ = loss;
    not_better_ = 0;
  } else {
    ++not_better_;
  }
  return is_best;
}

void SpikeWatch::take(double loss) {
  if (!std::isfinite(loss)) return;
  losses_.push_back(loss);
  if (losses_.size() > most_losses) losses_.pop_front();
}

double SpikeWatch::average() const {
  return std::accumulate(losses_.begin(), losses_.end(), 0.0) /
         static_cast<double>(std::max<std::size_t>(losses_.size(), 1));
}

bool SpikeWatch::is_spike(double loss) const {
  if (deviations_ <= 0 || losses_.size() < fewest_losses || !std::isfinite(loss)) return false;
  const double mean = average();
  double squares = 0;
  for (const double one : losses_) squares += (one - mean) * (one - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(losses_.size() - 1));
  return loss > mean + deviations_ * std::max(deviation, mean / 100);
}

std::int64_t left_out_in_a_row(const std::vector<std::int64_t>& left_out) {
  std::int64_t count = left_out.empty() ? 0 : 1;
  for (std::size_t k = left_out.size(); k > 1 && left_out[k - 1] == left_out[k - 2] + 1; --k)
    ++count;
  return count;
}

}  // namespace spillway
