// Who must wait for whom, against a list of every access to every byte.
#include <catch2/catch.hpp>

#include <random>
#include <vector>

#include "policies/schedule/access_history.hpp"

using namespace spillway;

namespace {

constexpr std::uint64_t arena = 48;  // bytes

// Every byte on its own: its last writer, and each lane's last reader since.
class ByteByByte {
 public:
  ByteByByte() { bytes_.resize(arena); }

  void read(std::uint64_t begin, std::uint64_t end, TaskId task, Lane lane, Predecessors& all) {
    for (std::uint64_t b = begin; b < end; ++b) {
      Byte& byte = bytes_[b];
      if (byte.writer != none) wait_for(all, byte.writer_lane, byte.writer);
      byte.readers[static_cast<std::size_t>(lane)] = task;
    }
  }
  void write(std::uint64_t begin, std::uint64_t end, TaskId task, Lane lane, Predecessors& all) {
    for (std::uint64_t b = begin; b < end; ++b) {
      Byte& byte = bytes_[b];
      if (byte.writer != none) wait_for(all, byte.writer_lane, byte.writer);
      for (std::size_t l = 0; l < byte.readers.size(); ++l) {
        if (byte.readers[l] != none) wait_for(all, static_cast<Lane>(l), byte.readers[l]);
      }
      byte = {};
      byte.writer = task;
      byte.writer_lane = lane;
    }
  }

 private:
  struct Byte {
    Byte() { readers.fill(none); }
    TaskId writer = none;
    Lane writer_lane = Lane::host_sync;
    Predecessors readers;
  };
  std::vector<Byte> bytes_;
};

struct LiveBuffer {
  std::uint64_t begin, end;
  AccessHistory::Place place;
};

Predecessors nobody() {
  Predecessors all;
  all.fill(none);
  return all;
}

}  // namespace

TEST_CASE("Buffers that come and go over the same bytes wait for what each byte says") {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto below = [&](std::uint64_t bound) { return random() % bound; };
    AccessHistory history;
    ByteByByte reference;
    std::vector<LiveBuffer> live;
    std::vector<AccessHistory::Place> hints = {none};
    // Whole accesses and a few fixed cuts are as frequent as in schedules, or all cuts alike.
    const std::uint64_t grid = 1 + below(8);
    for (TaskId task = 0; task < 600; ++task) {
      if (live.empty() || below(6) == 0) {
        const std::uint64_t begin = below(arena), end = begin + 1 + below(arena - begin);
        // It takes the place of the buffers it overlaps.
        std::erase_if(live, [&](const LiveBuffer& b) { return b.begin < end && begin < b.end; });
        const auto place = history.open(begin, end, hints[below(hints.size())]);
        live.push_back({begin, end, place});
        hints.push_back(place);
      }
      const LiveBuffer& buffer = live[below(live.size())];
      std::uint64_t begin = buffer.begin, end = buffer.end;
      if (below(3) > 0) {
        begin += below((end - begin + grid - 1) / grid) * grid;
        end = std::min(end, begin + grid);
      }
      const auto lane = static_cast<Lane>(below(lane_count));
      Predecessors given = nobody(), expected = nobody();
      if (below(2) == 0) {
        history.read(buffer.place, begin, end, task, lane, given);
        reference.read(begin, end, task, lane, expected);
      } else {
        history.write(buffer.place, begin, end, task, lane, given);
        reference.write(begin, end, task, lane, expected);
      }
      if (given != expected) FAIL("task " << task << " on [" << begin << ", " << end << ")");
    }
  }
}

TEST_CASE("Reading a buffer again and again costs the same however many pieces it was written in") {
  const auto cost_of_reads = [](std::uint64_t pieces) {
    AccessHistory history;
    const auto place = history.open(0, 4096 * pieces);
    Predecessors all = nobody();
    TaskId task = 0;
    for (std::uint64_t p = 0; p < pieces; ++p) {
      history.write(place, 4096 * p, 4096 * (p + 1), task++, Lane::pcie_h2d, all);
    }
    history.read(place, 0, 4096 * pieces, task++, Lane::gpu_compute, all);
    const std::uint64_t before = history.operations();
    for (int i = 0; i < 100; ++i) {
      history.read(place, 0, 4096 * pieces, task++, Lane::gpu_compute, all);
    }
    return history.operations() - before;
  };
  CHECK(cost_of_reads(1000) == cost_of_reads(1));
}
