#include "exec/cuda/matmul/matmul_choices.hpp"

#include <fmt/core.h>

#include <charconv>
#include <iterator>
#include <sstream>
#include <string_view>

#include "base/errors.hpp"
#include "exec/cuda/device/launch.hpp"

namespace spillway::cuda {

namespace {

// 16 hexadecimal digits for each of an algorithm's words; words that are zero at the end are left
// out.
std::string hex_of(const cublasLtMatmulAlgo_t& algorithm) {
  std::size_t words = std::size(algorithm.data);
  while (words > 1 && algorithm.data[words - 1] == 0) --words;
  std::string text;
  for (std::size_t i = 0; i < words; ++i) text += fmt::format("{:016x}", algorithm.data[i]);
  return text;
}

cublasLtMatmulAlgo_t algorithm_in(std::string_view hex) {
  constexpr std::size_t digits = 16;
  cublasLtMatmulAlgo_t algorithm{};
  bool well_formed =
      !hex.empty() && hex.size() % digits == 0 && hex.size() / digits <= std::size(algorithm.data);
  for (std::size_t i = 0; well_formed && i < hex.size() / digits; ++i) {
    const char* const begin = hex.data() + i * digits;
    std::uint64_t word = 0;
    const auto [end, error] = std::from_chars(begin, begin + digits, word, 16);
    well_formed = error == std::errc() && end == begin + digits;
    algorithm.data[i] = word;
  }
  if (!well_formed) {
    throw InputError(
        fmt::format("a commit record that cannot be read: \"{}\" is no algorithm of a matrix "
                    "product",
                    hex),
        "use the version of Spillway that wrote it");
  }
  return algorithm;
}

}  // namespace

std::string MatmulChoices::to_text() const {
  std::string text = made_by + "\n";
  for (const auto& [shape, algorithm] : algorithms)
    text += fmt::format("{} {}\n", shape, hex_of(algorithm));
  return text;
}

MatmulChoices MatmulChoices::parse(const std::string& text) {
  MatmulChoices choices;
  std::istringstream lines(text);
  std::getline(lines, choices.made_by);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = line.find(' ');
    const std::string shape = line.substr(0, space);
    const std::string hex = space == std::string::npos ? "" : line.substr(space + 1);
    choices.algorithms[shape] = algorithm_in(hex);
  }
  return choices;
}

std::string matmul_maker() {
  int device = 0;
  SPILLWAY_CUDA(cudaGetDevice(&device));
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    SPILLWAY_CUDA(cudaDeviceGetAttribute(&value, which, device));
    return value;
  };
  return fmt::format("cuBLASLt {} on compute capability {}.{} with {} multiprocessors",
                     cublasLtGetVersion(), attribute(cudaDevAttrComputeCapabilityMajor),
                     attribute(cudaDevAttrComputeCapabilityMinor),
                     attribute(cudaDevAttrMultiProcessorCount));
}

}  // namespace spillway::cuda
