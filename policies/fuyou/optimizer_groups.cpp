#include "policies/fuyou/optimizer_groups.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "policies/model/gpt_layout.hpp"

namespace spillway {

std::uint64_t elements_of(const OptimizerGroup& group) {
  std::uint64_t elements = 0;
  for (const OptimizerPart& part : group) elements += part.elements;
  return elements;
}

std::vector<OptimizerGroup> optimizer_groups(const ModelSpec& model, std::uint64_t most) {
  constexpr std::uint64_t most_groups = 1'000'000;
  constexpr auto grid = static_cast<std::uint64_t>(element_alignment);
  const int layers = static_cast<int>(model.layers);
  std::vector<OptimizerGroup> groups;
  std::uint64_t in_last = 0;  // elements of the last group
  for (int place = 0; place <= layers; ++place) {
    const int unit = place < layers ? layers - 1 - place : layers;
    const auto elements = static_cast<std::uint64_t>(unit_elements(model, unit));
    const std::uint64_t limit = most == 0 ? elements : most;
    const bool joins = most > 0 && !groups.empty() && in_last + elements <= most;
    if (joins) {
      groups.back().push_back({unit, 0, elements});
      in_last += elements;
      continue;
    }
    const std::uint64_t pieces = (elements + limit - 1) / limit;
    if (groups.size() + pieces > most_groups) {
      throw InputError(
          fmt::format("groups of {} elements are too many for the {} parameters of model {}: more "
                      "than {}",
                      most, model.parameters(), model.name, most_groups),
          "make groups larger, or leave the option out");
    }
    const std::uint64_t cells = elements / grid;
    const std::uint64_t size = std::max<std::uint64_t>(1, (cells + pieces - 1) / pieces) * grid;
    for (std::uint64_t first = 0; first < elements; first += size)
      groups.push_back({{unit, first, std::min(size, elements - first)}});
    in_last = elements_of(groups.back());
  }
  return groups;
}

}  // namespace spillway
