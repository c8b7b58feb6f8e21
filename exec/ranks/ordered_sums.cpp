#include "exec/ranks/ordered_sums.hpp"

#include <algorithm>
#include <numeric>

#include "base/errors.hpp"
#include "base/rounding.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t whole_elements = 64;  // parts of an equal share are whole cache lines

// How much of a part there is from `at` on, a piece at most.
std::uint64_t piece_from(std::uint64_t part, std::uint64_t at, std::uint64_t most) {
  return part > at ? std::min(most, part - at) : 0;
}

}  // namespace

std::vector<int> all_ranks(int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

RankParts::RankParts(std::vector<std::uint64_t> of_all)
    : members(all_ranks(static_cast<int>(of_all.size()))), bytes(std::move(of_all)) {}

void OrderedSums::all_gather(const std::byte* own, std::byte* whole, const RankParts& parts) {
  gather(own, whole, parts);
  carrier_.finish();
}

void OrderedSums::broadcast(std::byte* part, std::uint64_t bytes, std::size_t from,
                            const std::vector<int>& members) {
  outgoing_.clear();
  incoming_.clear();
  if (members.at(from) != carrier_.rank()) {
    incoming_.push_back({members[from], part, bytes});
  } else {
    for (const int member : members) {
      if (member != carrier_.rank()) outgoing_.push_back({member, part, bytes});
    }
  }
  carrier_.exchange(outgoing_, incoming_);
  carrier_.finish();
}

void OrderedSums::reduce_scatter(const std::byte* whole, std::byte* own, const RankParts& parts,
                                 std::uint64_t width, bool adds) {
  reduce(whole, own, parts, width, adds);
  carrier_.finish();
}

std::size_t OrderedSums::own_place(const RankParts& parts) const {
  SPILLWAY_ASSERT(parts.members.size() == parts.bytes.size());
  const auto own = std::find(parts.members.begin(), parts.members.end(), carrier_.rank());
  SPILLWAY_ASSERT(own != parts.members.end(), "a rank is one of its group");
  return static_cast<std::size_t>(own - parts.members.begin());
}

void OrderedSums::gather(const std::byte* own, std::byte* whole, const RankParts& parts) {
  const std::size_t me = own_place(parts);
  outgoing_.clear();
  incoming_.clear();
  std::uint64_t at = 0;
  for (std::size_t place = 0; place < parts.bytes.size(); ++place) {
    if (place == me && whole + at != own) carrier_.move(whole + at, own, parts.bytes[me]);
    if (place != me) {
      outgoing_.push_back({parts.members[place], own, parts.bytes[me]});
      incoming_.push_back({parts.members[place], whole + at, parts.bytes[place]});
    }
    at += parts.bytes[place];
  }
  carrier_.exchange(outgoing_, incoming_);
}

void OrderedSums::reduce(const std::byte* whole, std::byte* own, const RankParts& parts,
                         std::uint64_t width, bool adds) {
  const std::size_t me = own_place(parts), count = parts.bytes.size();
  std::vector<std::uint64_t> begins(count);
  std::exclusive_scan(parts.bytes.begin(), parts.bytes.end(), begins.begin(), std::uint64_t{0});
  const std::uint64_t longest = *std::max_element(parts.bytes.begin(), parts.bytes.end());
  const std::uint64_t piece = carrier_.piece_bytes();
  SPILLWAY_ASSERT(piece > 0);
  // Added up in the order of the ranks, whatever their places.
  std::vector<std::size_t> places(count);
  std::iota(places.begin(), places.end(), std::size_t{0});
  std::sort(places.begin(), places.end(),
            [&](std::size_t a, std::size_t b) { return parts.members[a] < parts.members[b]; });
  std::vector<const std::byte*> from;
  for (std::uint64_t at = 0; at < longest; at += piece) {
    const std::uint64_t mine = piece_from(parts.bytes[me], at, piece);
    outgoing_.clear();
    incoming_.clear();
    from.clear();
    for (const std::size_t place : places) {
      const int rank = parts.members[place];
      from.push_back(place == me ? whole + begins[me] + at : carrier_.piece_of(rank));
      if (place == me) continue;
      outgoing_.push_back(
          {rank, whole + begins[place] + at, piece_from(parts.bytes[place], at, piece)});
      incoming_.push_back({rank, carrier_.piece_of(rank), mine});
    }
    carrier_.exchange(outgoing_, incoming_);
    if (mine > 0)
      carrier_.add_up(from, own + at, static_cast<std::int64_t>(mine / width), width, adds);
  }
}

void OrderedSums::all_reduce(std::byte* whole, std::uint64_t bytes, std::uint64_t width,
                             const std::vector<int>& members) {
  const std::uint64_t size = members.size(), grain = whole_elements * width;
  const std::uint64_t share = round_up(bytes / size, grain);
  RankParts parts(members, {});
  std::uint64_t begin = 0, mine = 0;
  for (std::uint64_t place = 0; place < size; ++place) {
    if (members[place] == carrier_.rank()) mine = begin;
    parts.bytes.push_back(place + 1 == size ? bytes - begin : std::min(share, bytes - begin));
    begin += parts.bytes.back();
  }
  reduce(whole, whole + mine, parts, width, false);
  gather(whole + mine, whole, parts);
  carrier_.finish();
}

HostSums::HostSums(RankTransport& transport, RankChannel channel, std::function<void()> waiting)
    : HostSums(std::make_unique<HostCarrier>(transport, channel, std::move(waiting))) {}

HostSums::HostSums(std::unique_ptr<HostCarrier> carrier)
    : OrderedSums(*carrier), carrier_(std::move(carrier)) {}

void HostSums::all_to_all(std::span<const std::byte> own, std::span<std::byte> all,
                          const std::vector<int>& members) {
  const RankParts parts(members, std::vector<std::uint64_t>(members.size(), own.size()));
  SPILLWAY_ASSERT(all.size() == own.size() * members.size());
  all_gather(own.data(), all.data(), parts);
}

void HostSums::all_reduce(std::span<double> values, const std::vector<int>& members) {
  SPILLWAY_ASSERT(std::is_sorted(members.begin(), members.end()));
  std::vector<double> all(values.size() * members.size());
  all_to_all(std::as_bytes(values), std::as_writable_bytes(std::span(all)), members);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = all[i];
    for (std::size_t r = 1; r < members.size(); ++r) values[i] += all[r * values.size() + i];
  }
}

}  // namespace spillway
