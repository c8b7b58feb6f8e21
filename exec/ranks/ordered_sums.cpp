#include "exec/ranks/ordered_sums.hpp"

#include <algorithm>
#include <numeric>

#include "base/errors.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t whole_elements = 64;  // parts of an equal share are whole cache lines

// How much of a part there is from `at` on, a piece at most.
std::uint64_t piece_from(std::uint64_t part, std::uint64_t at, std::uint64_t most) {
  return part > at ? std::min(most, part - at) : 0;
}

}  // namespace

void OrderedSums::all_gather(const std::byte* own, std::byte* whole, PartBytes parts) {
  gather(own, whole, parts);
  carrier_.finish();
}

void OrderedSums::reduce_scatter(const std::byte* whole, std::byte* own, PartBytes parts,
                                 std::uint64_t width, bool adds) {
  reduce(whole, own, parts, width, adds);
  carrier_.finish();
}

void OrderedSums::gather(const std::byte* own, std::byte* whole, PartBytes parts) {
  SPILLWAY_ASSERT(parts.size() == static_cast<std::size_t>(carrier_.size()));
  const auto me = static_cast<std::size_t>(carrier_.rank());
  outgoing_.clear();
  incoming_.clear();
  std::uint64_t at = 0;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    if (r == me && whole + at != own) carrier_.move(whole + at, own, parts[me]);
    if (r != me) {
      outgoing_.push_back({static_cast<int>(r), own, parts[me]});
      incoming_.push_back({static_cast<int>(r), whole + at, parts[r]});
    }
    at += parts[r];
  }
  carrier_.exchange(outgoing_, incoming_);
}

void OrderedSums::reduce(const std::byte* whole, std::byte* own, PartBytes parts,
                         std::uint64_t width, bool adds) {
  SPILLWAY_ASSERT(parts.size() == static_cast<std::size_t>(carrier_.size()));
  const auto me = static_cast<std::size_t>(carrier_.rank());
  std::vector<std::uint64_t> begins(parts.size());
  std::exclusive_scan(parts.begin(), parts.end(), begins.begin(), std::uint64_t{0});
  const std::uint64_t longest = *std::max_element(parts.begin(), parts.end());
  const std::uint64_t piece = carrier_.piece_bytes();
  SPILLWAY_ASSERT(piece > 0);
  std::vector<const std::byte*> from(parts.size());
  for (std::uint64_t at = 0; at < longest; at += piece) {
    const std::uint64_t mine = piece_from(parts[me], at, piece);
    outgoing_.clear();
    incoming_.clear();
    for (std::size_t r = 0; r < parts.size(); ++r) {
      from[r] = r == me ? whole + begins[me] + at : carrier_.piece_of(static_cast<int>(r));
      if (r == me) continue;
      outgoing_.push_back(
          {static_cast<int>(r), whole + begins[r] + at, piece_from(parts[r], at, piece)});
      incoming_.push_back({static_cast<int>(r), carrier_.piece_of(static_cast<int>(r)), mine});
    }
    carrier_.exchange(outgoing_, incoming_);
    if (mine > 0)
      carrier_.add_up(from, own + at, static_cast<std::int64_t>(mine / width), width, adds);
  }
}

void OrderedSums::all_reduce(std::byte* whole, std::uint64_t bytes, std::uint64_t width) {
  const auto size = static_cast<std::uint64_t>(carrier_.size());
  const std::uint64_t grain = whole_elements * width;
  const std::uint64_t share = (bytes / size + grain - 1) / grain * grain;
  std::vector<std::uint64_t> parts;
  std::uint64_t begin = 0, mine = 0;
  for (std::uint64_t r = 0; r < size; ++r) {
    if (r == static_cast<std::uint64_t>(carrier_.rank())) mine = begin;
    parts.push_back(r + 1 == size ? bytes - begin : std::min(share, bytes - begin));
    begin += parts.back();
  }
  reduce(whole, whole + mine, parts, width, false);
  gather(whole + mine, whole, parts);
  carrier_.finish();
}

HostSums::HostSums(RankTransport& transport, RankChannel channel, std::function<void()> waiting)
    : HostSums(std::make_unique<HostCarrier>(transport, channel, std::move(waiting))) {}

HostSums::HostSums(std::unique_ptr<HostCarrier> carrier)
    : OrderedSums(*carrier),
      carrier_(std::move(carrier)),
      ranks_(static_cast<std::size_t>(carrier_->size())) {}

void HostSums::all_to_all(std::span<const std::byte> own, std::span<std::byte> all) {
  const std::vector<std::uint64_t> parts(ranks_, own.size());
  SPILLWAY_ASSERT(all.size() == own.size() * parts.size());
  all_gather(own.data(), all.data(), parts);
}

void HostSums::all_reduce(std::span<double> values) {
  std::vector<double> all(values.size() * ranks_);
  all_to_all(std::as_bytes(values), std::as_writable_bytes(std::span(all)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = all[i];
    for (std::size_t r = 1; r < ranks_; ++r) values[i] += all[r * values.size() + i];
  }
}

}  // namespace spillway
