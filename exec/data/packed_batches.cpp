#include "exec/data/packed_batches.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/errors.hpp"
#include "text/tokens/permutation.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t order_of_epoch = ~std::uint64_t{0};  // where a source's number stands

std::uint64_t key_of(std::uint64_t seed, std::uint64_t source, std::uint64_t pass) {
  const std::array<std::uint64_t, 2> what = {source, pass};
  return XXH3_64bits_withSeed(what.data(), sizeof what, seed);
}

std::uint64_t bits_of(double value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

}  // namespace

PackedBatches::PackedBatches(std::vector<Source> sources, const PackSettings& settings,
                             const Order& order, const HoldOut& hold_out)
    : sources_(std::move(sources)), settings_(settings), order_(order), hold_out_(hold_out) {
  SPILLWAY_ASSERT(!sources_.empty() && order.sequences_per_step > 0);
  first_in_epoch_.push_back(0);
  for (const Source& source : sources_) {
    SPILLWAY_ASSERT(source.weight > 0 && source.weight < 1e6);
    const double wanted = static_cast<double>(source.sequences->sequences()) * source.weight;
    first_in_epoch_.push_back(
        first_in_epoch_.back() +
        std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::llround(wanted))));
    has_borders_ = has_borders_ || source.sequences->has_borders();
  }
}

void PackedBatches::require(std::int64_t sequence_length, std::int64_t vocabulary) const {
  SPILLWAY_ASSERT(sequence_length == settings_.sequence);  // what it was packed for
  for (const Source& source : sources_)
    source.corpus->require_below(static_cast<std::uint64_t>(vocabulary));
}

std::uint64_t PackedBatches::number_of(std::int64_t step, std::int64_t index) const {
  SPILLWAY_ASSERT(step >= 0 && index >= 0 && index < order_.sequences_per_step);
  return static_cast<std::uint64_t>(step) * static_cast<std::uint64_t>(order_.sequences_per_step) +
         static_cast<std::uint64_t>(index);
}

bool PackedBatches::is_there(std::int64_t step, std::int64_t index) const {
  return order_.shuffled || number_of(step, index) < epoch_sequences();
}

PackedBatches::Place PackedBatches::place(std::int64_t step, std::int64_t index) const {
  SPILLWAY_ASSERT(is_there(step, index));
  const std::uint64_t number = number_of(step, index);
  const std::uint64_t epoch = number / epoch_sequences();
  std::uint64_t in_epoch = number % epoch_sequences();
  if (order_.shuffled)
    in_epoch = Permutation(epoch_sequences(), key_of(order_.seed, order_of_epoch, epoch))(in_epoch);
  const auto next = std::upper_bound(first_in_epoch_.begin(), first_in_epoch_.end(), in_epoch);
  Place place{static_cast<std::size_t>(next - first_in_epoch_.begin()) - 1, 0};
  // How many sequences of the source were seen before, in all epochs.
  const std::uint64_t first = first_in_epoch_[place.source];
  const std::uint64_t seen =
      epoch * (first_in_epoch_[place.source + 1] - first) + (in_epoch - first);
  const std::uint64_t sequences = sources_[place.source].sequences->sequences();
  place.sequence = seen % sequences;
  if (order_.shuffled)
    place.sequence =
        Permutation(sequences, key_of(order_.seed, place.source, seen / sequences))(place.sequence);
  return place;
}

void PackedBatches::batch(std::int64_t step, std::int64_t first_sequence, std::int64_t sequences,
                          std::int64_t sequence_length, std::int32_t* tokens, std::int32_t* targets,
                          std::int32_t* starts) const {
  SPILLWAY_ASSERT(sequence_length == settings_.sequence);
  SPILLWAY_ASSERT(starts != nullptr || !has_borders_);
  for (std::int64_t i = 0; i < sequences; ++i) {
    const std::int64_t row = i * sequence_length;
    if (!is_there(step, first_sequence + i)) {
      std::fill_n(tokens + row, sequence_length, 0);
      std::fill_n(targets + row, sequence_length, no_target);
      if (starts != nullptr) std::fill_n(starts + row, sequence_length, 0);
      continue;
    }
    fill(place(step, first_sequence + i), tokens + row, targets + row,
         starts == nullptr ? nullptr : starts + row);
  }
}

// What is left of the sequence after its documents is a document of its own, of token 0, that is
// not trained on; without borders nothing before it can see it.
void PackedBatches::fill(const Place& place, std::int32_t* tokens, std::int32_t* targets,
                         std::int32_t* starts) const {
  const Source& source = sources_[place.source];
  const TokenCorpus& corpus = *source.corpus;
  const auto length = static_cast<std::uint64_t>(settings_.sequence);
  const bool borders = source.sequences->has_borders();
  std::uint64_t at = 0;
  const auto begin_document = [&](std::uint64_t count) {
    if (starts != nullptr)
      std::fill_n(starts + at, count, borders ? static_cast<std::int32_t>(at) : 0);
  };
  for (const Segment& segment : source.sequences->segments(place.sequence)) {
    SPILLWAY_ASSERT(segment.count <= length - at);
    begin_document(segment.count);
    corpus.read(segment.first, {tokens + at, segment.count});
    corpus.read(segment.first + 1, {targets + at, segment.count});
    if (!corpus.all_trained()) {
      for (std::uint64_t i = 0; i < segment.count; ++i)
        if (!corpus.is_trained(segment.first + 1 + i)) targets[at + i] = no_target;
    }
    at += segment.count;
  }
  begin_document(length - at);
  std::fill(tokens + at, tokens + length, 0);
  std::fill(targets + at, targets + length, no_target);
}

std::int64_t PackedBatches::counted_tokens(std::int64_t step, std::int64_t sequences,
                                           std::int64_t sequence_length) const {
  SPILLWAY_ASSERT(sequence_length == settings_.sequence);
  std::uint64_t counted = 0;
  for (std::int64_t i = 0; i < sequences; ++i) {
    if (!is_there(step, i)) break;
    const Place where = place(step, i);
    counted += sources_[where.source].sequences->counted(where.sequence);
  }
  return static_cast<std::int64_t>(counted);
}

std::uint64_t PackedBatches::size() const {
  std::uint64_t tokens = 0;
  for (const Source& source : sources_) tokens += source.corpus->tokens();
  return tokens;
}

std::uint64_t PackedBatches::hash() const {
  std::vector<std::uint64_t> all = {
      static_cast<std::uint64_t>(settings_.packing), static_cast<std::uint64_t>(settings_.too_long),
      PackedSequences::most_in_window, hold_out_.documents, bits_of(hold_out_.fraction)};
  for (const Source& source : sources_)
    all.insert(all.end(), {source.corpus->hash(), bits_of(source.weight)});
  return XXH3_64bits(all.data(), all.size() * sizeof all.front());
}

std::int64_t PackedBatches::steps_in(double epochs) const {
  const double sequences = epochs * static_cast<double>(epoch_sequences());
  return std::max<std::int64_t>(
      1, static_cast<std::int64_t>(
             std::ceil(sequences / static_cast<double>(order_.sequences_per_step) - 1e-9)));
}

}  // namespace spillway
