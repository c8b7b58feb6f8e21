// Host memory, over what an MPI library carries.
#pragma once

#include <functional>
#include <vector>

#include "exec/ranks/carrier.hpp"

namespace spillway {

class HostCarrier : public Carrier {
 public:
  // On one channel. `waiting`: as RankTransport::exchange() has it. Takes memory for a piece from
  // each rank at once.
  HostCarrier(RankTransport& transport, RankChannel channel, std::function<void()> waiting);

  int rank() const override { return transport_.rank(); }
  int size() const override { return transport_.size(); }
  std::uint64_t piece_bytes() const override { return bytes_of_piece; }
  std::byte* piece_of(int rank) override {
    return pieces_.data() + static_cast<std::size_t>(rank) * bytes_of_piece;
  }
  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) override;
  void move(std::byte* to, const std::byte* from, std::uint64_t bytes) override;
  void add_up(std::span<const std::byte* const> from, std::byte* to, std::int64_t n,
              std::uint64_t width, bool adds) override;
  void finish() override {}

 private:
  static constexpr std::uint64_t bytes_of_piece = std::uint64_t{1} << 20;

  RankTransport& transport_;
  RankChannel channel_;
  std::function<void()> waiting_;
  std::vector<std::byte> pieces_;
  std::vector<float> sum_;  // of a piece
};

}  // namespace spillway
