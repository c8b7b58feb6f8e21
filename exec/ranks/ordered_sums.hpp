// Collectives in which it is stated what is computed, and nothing is left to a library.
//
// A sum over ranks, all or some, is added up in fp32, in ascending order of the ranks, element by
// element, and rounded once where it is kept in bf16: ((g0 + g1) + g2) + ... The ranks exchange
// parts of what is summed, and each adds up its own part, or, where all ranks get the whole sum, an
// equal share of it; so no bit depends on algorithms of an MPI library, on the sizes of messages,
// or on who comes first. One rank that sums gradients in as many groups (Workload::gradient_groups)
// has these bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "exec/ranks/carrier.hpp"
#include "exec/ranks/host_carrier.hpp"

namespace spillway {

// The ranks that take part, and the bytes of each one's part of a whole, by their places in it.
struct RankParts {
  // Of all ranks, in their order.
  RankParts(std::vector<std::uint64_t> of_all);
  RankParts(std::vector<int> of, std::vector<std::uint64_t> their_bytes)
      : members(std::move(of)), bytes(std::move(their_bytes)) {}

  std::vector<int> members;
  std::vector<std::uint64_t> bytes;
};
std::vector<int> all_ranks(int count);

// In memory of the carrier's kind, by one thread at a time.
class OrderedSums {
 public:
  explicit OrderedSums(Carrier& carrier) : carrier_(carrier) {}

  // Every rank's `own` to its place in every rank's `whole`. `own` may be there already.
  void all_gather(const std::byte* own, std::byte* whole, const RankParts& parts);
  // From the member at place `from` to the others.
  void broadcast(std::byte* part, std::uint64_t bytes, std::size_t from,
                 const std::vector<int>& members);
  // The sum of all wholes: this rank's part of it to `own`, or added to what is there. Elements are
  // fp32 (width 4) or bf16 (width 2).
  void reduce_scatter(const std::byte* whole, std::byte* own, const RankParts& parts,
                      std::uint64_t width, bool adds);
  // The sum of the members' wholes, in place of each.
  void all_reduce(std::byte* whole, std::uint64_t bytes, std::uint64_t width,
                  const std::vector<int>& members);
  void all_reduce(std::byte* whole, std::uint64_t bytes, std::uint64_t width) {
    all_reduce(whole, bytes, width, all_ranks(carrier_.size()));
  }

 private:
  void gather(const std::byte* own, std::byte* whole, const RankParts& parts);
  void reduce(const std::byte* whole, std::byte* own, const RankParts& parts, std::uint64_t width,
              bool adds);
  std::size_t own_place(const RankParts& parts) const;

  Carrier& carrier_;
  std::vector<Carrier::Outgoing> outgoing_;
  std::vector<Carrier::Incoming> incoming_;
};

// The same in host memory, and what is made there.
class HostSums : public OrderedSums {
 public:
  HostSums(RankTransport& transport, RankChannel channel, std::function<void()> waiting);

  using OrderedSums::all_reduce;
  // Of fp64; members in order of the ranks.
  void all_reduce(std::span<double> values, const std::vector<int>& members);
  void all_reduce(std::span<double> values) { all_reduce(values, all_ranks(carrier_->size())); }
  // Bytes from each member to all, by their places; all give as many.
  void all_to_all(std::span<const std::byte> own, std::span<std::byte> all,
                  const std::vector<int>& members);
  void all_to_all(std::span<const std::byte> own, std::span<std::byte> all) {
    all_to_all(own, all, all_ranks(carrier_->size()));
  }

 private:
  explicit HostSums(std::unique_ptr<HostCarrier> carrier);

  std::unique_ptr<HostCarrier> carrier_;
};

}  // namespace spillway
