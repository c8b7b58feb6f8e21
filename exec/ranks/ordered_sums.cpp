#include "exec/ranks/ordered_sums.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/errors.hpp"
#include "exec/cpu/bf16.hpp"
#include "exec/cpu/kernels_cpu.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t whole_elements = 64;  // parts of an equal share are whole cache lines

// How much of a part there is from `at` on, a piece at most.
std::uint64_t piece_from(std::uint64_t part, std::uint64_t at, std::uint64_t most) {
  return part > at ? std::min(most, part - at) : 0;
}

template <class Element>
void add_in_order(const std::vector<const std::byte*>& from, std::int64_t n, float* sum) {
  const CpuKernels& kernels = cpu_kernels(best_cpu_variant());
  for (std::size_t r = 0; r < from.size(); ++r) {
    const auto* const values = reinterpret_cast<const Element*>(from[r]);
    if constexpr (std::is_same_v<Element, float>) {
      if (r == 0)
        std::copy_n(values, n, sum);
      else
        kernels.add(sum, values, sum, n);
    } else {
      if (r == 0)
        kernels.widen(values, sum, n);
      else
        kernels.add_from_bf16(sum, values, sum, n);
    }
  }
}

}  // namespace

OrderedSums::OrderedSums(RankTransport& transport, RankChannel channel,
                         std::function<void()> waiting)
    : transport_(transport),
      channel_(channel),
      waiting_(std::move(waiting)),
      pieces_(static_cast<std::size_t>(transport.size()) * piece_bytes),
      sum_(piece_bytes / sizeof(bf16)) {}

void OrderedSums::all_gather(const std::byte* own, std::byte* whole, PartBytes parts) {
  SPILLWAY_ASSERT(parts.size() == static_cast<std::size_t>(transport_.size()));
  const auto me = static_cast<std::size_t>(transport_.rank());
  outgoing_.clear();
  incoming_.clear();
  std::uint64_t at = 0;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    if (r == me && whole + at != own) std::memmove(whole + at, own, parts[me]);
    if (r != me) {
      outgoing_.push_back({static_cast<int>(r), own, parts[me]});
      incoming_.push_back({static_cast<int>(r), whole + at, parts[r]});
    }
    at += parts[r];
  }
  transport_.exchange(channel_, outgoing_, incoming_, waiting_);
}

void OrderedSums::reduce_scatter(const std::byte* whole, std::byte* own, PartBytes parts,
                                 std::uint64_t width, bool adds) {
  SPILLWAY_ASSERT(parts.size() == static_cast<std::size_t>(transport_.size()) &&
                  (width == sizeof(float) || width == sizeof(bf16)));
  const auto me = static_cast<std::size_t>(transport_.rank());
  std::vector<std::uint64_t> begins(parts.size());
  std::exclusive_scan(parts.begin(), parts.end(), begins.begin(), std::uint64_t{0});
  const std::uint64_t longest = *std::max_element(parts.begin(), parts.end());
  const CpuKernels& kernels = cpu_kernels(best_cpu_variant());
  std::vector<const std::byte*> from(parts.size());
  for (std::uint64_t at = 0; at < longest; at += piece_bytes) {
    const std::uint64_t mine = piece_from(parts[me], at, piece_bytes);
    outgoing_.clear();
    incoming_.clear();
    for (std::size_t r = 0; r < parts.size(); ++r) {
      from[r] = r == me ? whole + begins[me] + at : piece_of(static_cast<int>(r));
      if (r == me) continue;
      outgoing_.push_back(
          {static_cast<int>(r), whole + begins[r] + at, piece_from(parts[r], at, piece_bytes)});
      incoming_.push_back({static_cast<int>(r), piece_of(static_cast<int>(r)), mine});
    }
    transport_.exchange(channel_, outgoing_, incoming_, waiting_);
    if (mine == 0) continue;
    const auto n = static_cast<std::int64_t>(mine / width);
    if (width == sizeof(float)) {
      add_in_order<float>(from, n, sum_.data());
      auto* const to = reinterpret_cast<float*>(own + at);
      if (adds)
        kernels.add(to, sum_.data(), to, n);
      else
        std::copy_n(sum_.data(), n, to);
    } else {
      add_in_order<bf16>(from, n, sum_.data());
      auto* const to = reinterpret_cast<bf16*>(own + at);
      if (adds) kernels.add_from_bf16(sum_.data(), to, sum_.data(), n);
      kernels.round_to_bf16(sum_.data(), to, n);
    }
  }
}

void OrderedSums::all_reduce(std::byte* whole, std::uint64_t bytes, std::uint64_t width) {
  const auto size = static_cast<std::uint64_t>(transport_.size());
  const std::uint64_t grain = whole_elements * width;
  const std::uint64_t share = (bytes / size + grain - 1) / grain * grain;
  std::vector<std::uint64_t> parts;
  std::uint64_t begin = 0, mine = 0;
  for (std::uint64_t r = 0; r < size; ++r) {
    if (r == static_cast<std::uint64_t>(transport_.rank())) mine = begin;
    parts.push_back(r + 1 == size ? bytes - begin : std::min(share, bytes - begin));
    begin += parts.back();
  }
  reduce_scatter(whole, whole + mine, parts, width, false);
  all_gather(whole + mine, whole, parts);
}

void OrderedSums::all_to_all(std::span<const std::byte> own, std::span<std::byte> all) {
  const std::vector<std::uint64_t> parts(static_cast<std::size_t>(transport_.size()), own.size());
  SPILLWAY_ASSERT(all.size() == own.size() * parts.size());
  all_gather(own.data(), all.data(), parts);
}

void OrderedSums::all_reduce(std::span<double> values) {
  std::vector<double> all(values.size() * static_cast<std::size_t>(transport_.size()));
  all_to_all(std::as_bytes(values), std::as_writable_bytes(std::span(all)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = all[i];
    for (std::size_t r = 1; r < static_cast<std::size_t>(transport_.size()); ++r)
      values[i] += all[r * values.size() + i];
  }
}

}  // namespace spillway
