#include "experiments/speed/speed_figures.hpp"

#include <algorithm>
#include <cmath>

#include "experiments/speed/speed_gpu.hpp"

namespace spillway {

double quantile_of(std::vector<double> values, double quantile) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double place = quantile * static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(std::lround(place))];
}

double SpeedFigure::ratio() const { return median(ratios); }

bool SpeedFigure::met() const {
  if (target <= 0) return true;
  if (roofline_what.empty()) return value <= target;
  return ratios.empty() || ratio() >= target;
}

std::vector<FigureTest> figure_tests() {
  std::vector<FigureTest> tests = {
      {"ssd",
       "the lanes of the SSD store against fio, and over threads against over io_uring, in turn on "
       "the same drives",
       measure_ssd_lanes},
      {"adam", "AdamW against memory streaming with the same reads and writes", measure_adam},
      {"executor", "tasks that do nothing: what running one costs beside its work",
       measure_executor},
      {"training", "a training run that the SSD bounds: how busy the SSD lanes are",
       measure_training},
      {"pricing", "how long it takes to price a plan of gpt-175b with 16 micro-batches",
       measure_pricing, true},
      {"building", "what building schedules of 10^5 to 10^7 tasks costs a task",
       [](const FigureOptions& options) {
         return measure_building(options, {1e5, 1e6, 1e7});
       },
       true},
  };
  for (FigureTest& test : gpu_figure_tests()) tests.push_back(std::move(test));
  return tests;
}

}  // namespace spillway
