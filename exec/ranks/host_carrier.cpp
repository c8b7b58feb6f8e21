#include "exec/ranks/host_carrier.hpp"

#include <algorithm>
#include <cstring>

#include "base/errors.hpp"
#include "exec/cpu/bf16.hpp"
#include "exec/cpu/kernels_cpu.hpp"

namespace spillway {

namespace {

template <class Element>
void add_in_order(std::span<const std::byte* const> from, std::int64_t n, float* sum) {
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

HostCarrier::HostCarrier(RankTransport& transport, RankChannel channel,
                         std::function<void()> waiting)
    : transport_(transport),
      channel_(channel),
      waiting_(std::move(waiting)),
      pieces_(static_cast<std::size_t>(transport.size()) * bytes_of_piece),
      sum_(bytes_of_piece / sizeof(bf16)) {}

void HostCarrier::exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) {
  transport_.exchange(channel_, outgoing, incoming, waiting_);
}

void HostCarrier::move(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  std::memmove(to, from, bytes);
}

void HostCarrier::add_up(std::span<const std::byte* const> from, std::byte* to, std::int64_t n,
                         std::uint64_t width, bool adds) {
  const CpuKernels& kernels = cpu_kernels(best_cpu_variant());
  SPILLWAY_ASSERT(static_cast<std::size_t>(n) <= sum_.size());
  if (width == sizeof(float)) {
    add_in_order<float>(from, n, sum_.data());
    auto* const sums = reinterpret_cast<float*>(to);
    if (adds)
      kernels.add(sums, sum_.data(), sums, n);
    else
      std::copy_n(sum_.data(), n, sums);
  } else {
    SPILLWAY_ASSERT(width == sizeof(bf16));
    add_in_order<bf16>(from, n, sum_.data());
    auto* const sums = reinterpret_cast<bf16*>(to);
    if (adds) kernels.add_from_bf16(sum_.data(), sums, sum_.data(), n);
    kernels.round_to_bf16(sum_.data(), sums, n);
  }
}

}  // namespace spillway
