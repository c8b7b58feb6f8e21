// How bytes get from rank to rank: what an MPI library is asked for, and nothing else. The module
// spillway_mpi has it (exec/ranks/mpi), tests have one between threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace spillway {

// Each has a communicator of its own, so that those who wait on one hold up no other.
enum class RankChannel : std::uint8_t {
  control,  // of the thread that trains
  gather,   // of the lanes of these names
  reduce,
  spread,
  notes,  // of the thread that watches the others
  // Of the lanes of these names: what one side sends on an `out` the other receives on the `in`.
  stage_in,
  stage_out,
  stage_gradient_in,
  stage_gradient_out,
  // What who receives on the lanes `in` answers who sends on an `out`, in the other direction: used
  // by both of a rank's lanes.
  stage_answer,
  stage_gradient_answer
};
inline constexpr int rank_channel_count = 11;
// The channel whose messages a channel has: an `in` those of its `out`.
constexpr RankChannel messages_of(RankChannel channel) {
  return channel == RankChannel::stage_in            ? RankChannel::stage_out
         : channel == RankChannel::stage_gradient_in ? RankChannel::stage_gradient_out
                                                     : channel;
}

// The channel of what is answered to the messages of a channel.
constexpr RankChannel answers_to(RankChannel channel) {
  return messages_of(channel) == RankChannel::stage_out ? RankChannel::stage_answer
                                                        : RankChannel::stage_gradient_answer;
}

class RankTransport {
 public:
  struct Outgoing {
    int to = 0;
    const std::byte* data = nullptr;
    std::uint64_t bytes = 0;
  };
  struct Incoming {
    int from = 0;
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
  };
  static constexpr std::size_t longest_note = 512;

  virtual ~RankTransport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string library() const = 0;  // "Open MPI 4.1.4"
  // This rank's number among those of its computer, and how many these are.
  struct OnHost {
    int number = 0, count = 1;
  };
  virtual OnHost on_host() const = 0;

  // Returns once all of it has arrived. Both sides name the same bytes, and every rank makes the
  // same calls on a channel in the same order. `waiting` is called again and again meanwhile; what
  // it throws comes out, and nothing is to be exchanged any more then. One thread at a time on each
  // channel; at most one block to and from each rank.
  virtual void exchange(RankChannel channel, std::span<const Outgoing> outgoing,
                        std::span<const Incoming> incoming,
                        const std::function<void()>& waiting) = 0;

  // Notes: they arrive in order, sooner or later, and neither call waits. Of one thread.
  virtual void tell(int to, std::span<const std::byte> note) = 0;
  // The next note of that rank, as long as `note`; false: there is none yet.
  virtual bool hear(int from, std::span<std::byte> note) = 0;

  // Called by every rank, once nothing is under way.
  virtual void finish() = 0;
};

}  // namespace spillway
