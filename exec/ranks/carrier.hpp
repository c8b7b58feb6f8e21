// What collectives stand on: bytes that go between ranks, from and to memory of one kind, and sums
// of what lies there. Over MPI it is host memory (host_carrier.hpp), over NCCL that of GPUs
// (exec/cuda/ranks).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "exec/ranks/transport.hpp"

namespace spillway {

class Carrier {
 public:
  using Outgoing = RankTransport::Outgoing;
  using Incoming = RankTransport::Incoming;

  virtual ~Carrier() = default;
  virtual int rank() const = 0;  // among those that it reaches
  virtual int size() const = 0;
  // Memory of this kind for a piece from each rank; 0 bytes: nothing is added up here.
  virtual std::uint64_t piece_bytes() const = 0;
  virtual std::byte* piece_of(int rank) = 0;

  // These are done in the order of the calls, at the latest when finish() returns. One thread at a
  // time; all ranks make the same calls in the same order. Where a rank is lost, they throw, and
  // nothing is to be done by it any more.
  // At most one block to and from each rank; both sides name the same bytes.
  virtual void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) = 0;
  // Both the same or apart; in host memory they may overlap.
  virtual void move(std::byte* to, const std::byte* from, std::uint64_t bytes) = 0;
  // to = ((from[0] + from[1]) + from[2]) + ..., in fp32 and this order, [+ to], rounded once;
  // n elements, fp32 (width 4) or bf16 (width 2). `to` may be one of `from`.
  virtual void add_up(std::span<const std::byte* const> from, std::byte* to, std::int64_t n,
                      std::uint64_t width, bool adds) = 0;
  virtual void finish() = 0;
};

}  // namespace spillway
