// A value for each layer, in runs of layers that have the same: "00x39/ff" is 39 layers with 00 and
// one with ff, "00x*/ff" the same for a model of any depth.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "policies/movement/domains.hpp"

namespace spillway {

template <class T>
class ByLayer {
 public:
  static constexpr int others = 0;  // as many layers as the other runs leave
  struct Run {
    T value{};
    int layers = others;
    bool operator==(const Run&) const = default;
  };

  ByLayer(const T& of_all = T{}) : runs_{{of_all, others}} {}
  // At most one of the runs is of `others`. Runs next to each other with the same value become one.
  explicit ByLayer(const std::vector<Run>& runs) {
    for (const Run& run : runs) {
      const bool is_open = run.layers == others;
      if (!runs_.empty() && runs_.back().value == run.value) {
        int& layers = runs_.back().layers;
        layers = is_open || layers == others ? others : layers + run.layers;
      } else {
        runs_.push_back(run);
      }
    }
  }
  static ByLayer of_each(const std::vector<T>& values) {
    std::vector<Run> runs;
    for (const T& value : values) runs.push_back({value, 1});
    return ByLayer(runs);
  }

  static ByLayer but_last(const T& of_others, const T& of_last) {
    return ByLayer({{of_others, others}, {of_last, 1}});
  }

  const std::vector<Run>& runs() const { return runs_; }
  // Whether the runs are of as many layers as that.
  bool suits(int layers) const {
    const int fixed = fixed_layers();
    return has_others() ? fixed <= layers : fixed == layers;
  }
  // Of a layer of a model with `layers` of them, which suits.
  const T& at(int layer, int layers) const {
    int end = 0;
    for (const Run& run : runs_) {
      end += run.layers == others ? layers - fixed_layers() : run.layers;
      if (layer < end) return run.value;
    }
    return runs_.back().value;
  }
  template <class Holds>
  bool any(const Holds& holds) const {
    return std::any_of(runs_.begin(), runs_.end(),
                       [&](const Run& run) { return holds(run.value); });
  }
  // Calls `change(value, layers)` for every run, with the number of its layers.
  template <class Change>
  void change(int layers, const Change& change) {
    const int open = layers - fixed_layers();
    for (Run& run : runs_) change(run.value, run.layers == others ? open : run.layers);
  }
  bool operator==(const ByLayer&) const = default;

 private:
  int fixed_layers() const {
    int layers = 0;
    for (const Run& run : runs_) layers += run.layers;
    return layers;
  }
  bool has_others() const {
    return std::any_of(runs_.begin(), runs_.end(),
                       [](const Run& run) { return run.layers == others; });
  }

  std::vector<Run> runs_;
};

// Values of another domain, by layer. One value alone is that of all layers.
template <class Domain>
struct LayersOf {
  using Value = ByLayer<typename Domain::Value>;
  Domain one;

  std::string write(const Value& value) const {
    std::string text;
    for (const auto& run : value.runs()) {
      if (!text.empty()) text += '/';
      text += one.write(run.value);
      if (value.runs().size() == 1 && run.layers == Value::others) continue;
      if (run.layers == Value::others) text += "x*";
      if (run.layers > 1 || (run.layers == 1 && value.runs().size() == 1))
        text += fmt::format("x{}", run.layers);
    }
    return text;
  }
  bool read(const std::string& text, Value& value) const {
    std::vector<typename Value::Run> runs;
    std::istringstream list(text);
    int open = 0;
    for (std::string part; std::getline(list, part, '/');) {
      const std::size_t times = part.rfind('x');
      typename Value::Run run;
      run.layers = times == std::string::npos ? 1 : Value::others;
      if (!one.read(part.substr(0, times), run.value)) return false;
      constexpr int most_layers = 1'000'000;
      const std::string count = times == std::string::npos ? "1" : part.substr(times + 1);
      if (count == "*") {
        ++open;
      } else if (!read_number(count, run.layers) || run.layers < 1 || run.layers > most_layers) {
        return false;
      }
      if (times == std::string::npos && text.find('/') == std::string::npos) {
        run.layers = Value::others;
      }
      runs.push_back(run);
    }
    if (runs.empty() || open > 1 || text.back() == '/') return false;
    value = Value(runs);
    return true;
  }
  bool holds(const Value& value) const {
    return !value.any([&](const auto& run) { return !one.holds(run); });
  }
  std::string describe() const {
    return one.describe() + "; by layer as in VALUEx3/VALUEx*/VALUE, the lowest layers first";
  }
  std::vector<std::string> samples(int count) const {
    std::vector<std::string> all = one.samples(count);
    if (all.size() > 1) all.push_back(all.front() + "x*/" + all.back());
    return all;
  }
};

}  // namespace spillway
