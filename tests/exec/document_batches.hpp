// Batches of several documents a sequence, with targets that do not count: what the tests of masks
// and borders train on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "exec/data/batches.hpp"

namespace spillway::test {

// (sequences, T) each: documents of random lengths one after the other, the last of a sequence cut
// off. Of a document, the last token has no target, and the first half has none that counts in
// every other document.
struct PackedDocuments {
  std::vector<std::int32_t> tokens, targets, starts;
  std::int64_t sequence_length;

  PackedDocuments(std::int64_t vocabulary, std::int64_t sequence, std::int64_t sequences,
                  std::int64_t longest, std::uint64_t seed)
      : sequence_length(sequence) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::int64_t end) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
    };
    for (std::int64_t row = 0; row < sequences * sequence;) {
      const std::int64_t start = row % sequence;
      const std::int64_t length = std::min(below(longest) + 1, sequence - start);
      const std::int64_t masked = below(2) == 0 ? length / 2 : 0;
      std::int64_t token = below(vocabulary);
      for (std::int64_t i = 0; i < length; ++i, ++row) {
        tokens.push_back(static_cast<std::int32_t>(token));
        token = (3 * token + 1 + below(2)) % vocabulary;  // which can be learned
        const bool counts = i >= masked && i + 1 < length;
        targets.push_back(counts ? static_cast<std::int32_t>(token) : no_target);
        starts.push_back(static_cast<std::int32_t>(start));
      }
    }
    if (counted() == 0) targets[0] = tokens[0];
  }

  std::int64_t counted() const {
    return static_cast<std::int64_t>(targets.size()) -
           std::count(targets.begin(), targets.end(), no_target);
  }
  void count_all() {
    for (std::size_t row = 0; row < targets.size(); ++row) targets[row] = tokens[row];
  }
  // The first row and the length of each.
  std::vector<std::pair<std::int64_t, std::int64_t>> documents() const {
    std::vector<std::pair<std::int64_t, std::int64_t>> all;
    for (std::size_t row = 0; row < starts.size(); ++row) {
      const auto token = static_cast<std::int64_t>(row) % sequence_length;
      if (token == starts[row]) all.emplace_back(static_cast<std::int64_t>(row), 0);
      ++all.back().second;
    }
    return all;
  }
};

// Every sequence of every step has documents of its own. Without borders, only the targets that do
// not count are left of this.
class DocumentBatches : public Batches {
 public:
  explicit DocumentBatches(std::uint64_t seed, bool has_borders = true,
                           std::int64_t vocabulary = 256)
      : seed_(seed), has_borders_(has_borders), vocabulary_(vocabulary) {}

  void require(std::int64_t, std::int64_t) const override {}
  void batch(std::int64_t step, std::int64_t first_sequence, std::int64_t sequences,
             std::int64_t sequence_length, std::int32_t* tokens, std::int32_t* targets,
             std::int32_t* starts) const override {
    for (std::int64_t i = 0; i < sequences; ++i) {
      const PackedDocuments one = sequence(step, first_sequence + i, sequence_length);
      tokens = std::copy(one.tokens.begin(), one.tokens.end(), tokens);
      targets = std::copy(one.targets.begin(), one.targets.end(), targets);
      if (has_borders_) starts = std::copy(one.starts.begin(), one.starts.end(), starts);
    }
  }
  bool has_borders() const override { return has_borders_; }
  std::int64_t counted_tokens(std::int64_t step, std::int64_t sequences,
                              std::int64_t sequence_length) const override {
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < sequences; ++i)
      sum += sequence(step, i, sequence_length).counted();
    return sum;
  }
  std::uint64_t size() const override { return 1; }
  std::uint64_t hash() const override { return seed_ * 2 + (has_borders_ ? 1 : 0); }

 private:
  PackedDocuments sequence(std::int64_t step, std::int64_t index, std::int64_t length) const {
    const std::uint64_t seed = (seed_ * 1000 + static_cast<std::uint64_t>(step)) * 1000;
    return {vocabulary_, length, 1, std::max<std::int64_t>(length / 2, 1),
            seed + static_cast<std::uint64_t>(index)};
  }
  std::uint64_t seed_;
  bool has_borders_;
  std::int64_t vocabulary_;
};

}  // namespace spillway::test
