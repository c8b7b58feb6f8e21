#include "experiments/validate/validate_kineto.hpp"

#include <algorithm>
#include <map>

#include "base/errors.hpp"
#include "sim/to_trace.hpp"
#include "traces/compare.hpp"

namespace spillway {

namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

void sort_rows(std::vector<KinetoQuantity>& rows) {
  std::stable_sort(rows.begin(), rows.end(), [](const KinetoQuantity& a, const KinetoQuantity& b) {
    const auto key = [](const KinetoQuantity& one) {
      return std::pair(one.measured_seconds.value_or(-1), one.predicted_seconds);
    };
    return key(a) > key(b);
  });
}

// Every name that either has; `parts_of` gives the predicted names that a measured one stands for.
template <class Quantities, class Parts>
std::vector<KinetoQuantity> rows_of(const Quantities& predicted,
                                    const std::vector<LaneTime>& measured, const Parts& parts_of) {
  std::map<std::string, double> left;
  for (const auto& one : predicted) {
    if (one.predicted_seconds > 0) left[one.name] = one.predicted_seconds;
  }
  std::vector<KinetoQuantity> rows;
  for (const LaneTime& one : measured) {
    KinetoQuantity row{one.name, 0, one.seconds};
    for (const std::string& part : parts_of(one.name)) {
      const auto at = left.find(part);
      if (at == left.end()) continue;
      row.predicted_seconds += at->second;
      left.erase(at);
    }
    rows.push_back(std::move(row));
  }
  for (const auto& [name, seconds] : left) rows.push_back({name, seconds, std::nullopt});
  sort_rows(rows);
  return rows;
}

// "forward+head" -> forward, head.
std::vector<std::string> parts_of_sum(const std::string& name) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin <= name.size()) {
    const std::size_t end = std::min(name.find('+', begin), name.size());
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

std::optional<double> KinetoQuantity::error() const {
  if (!measured_seconds || *measured_seconds <= 0) return std::nullopt;
  return predicted_seconds / *measured_seconds - 1;
}

KinetoValidation validate_kineto(Evaluation prediction, KinetoImport measured) {
  SPILLWAY_ASSERT(prediction.result.has_value());
  const Trace trace = to_trace(prediction.schedule, *prediction.result);
  const TraceComparison predicted = compare_traces(trace, trace);
  KinetoValidation validation{std::move(prediction), std::move(measured), 0, 0, 0, {}, {}};
  validation.predicted_step_seconds = predicted.predicted.median_seconds;
  validation.measured_step_seconds = median(validation.measured.step_seconds);
  validation.error = validation.predicted_step_seconds / validation.measured_step_seconds - 1;
  validation.kinds = rows_of(predicted.kinds, validation.measured.kinds, parts_of_sum);
  validation.lanes = rows_of(predicted.lanes, validation.measured.lanes,
                             [](const std::string& name) { return std::vector{name}; });
  return validation;
}

}  // namespace spillway
