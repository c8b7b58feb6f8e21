// The module spillway_mpi: an MPI library as a RankTransport. It is loaded on demand
// (exec/ranks/mpi_module.hpp) and links nothing of Spillway.
//
// Only nonblocking calls between pairs of ranks are used. Who waits looks again and again, sleeping
// in between: a library that spins would take the core that the work needs, and nobody who waits
// inside of it could be told that a rank has died.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "exec/ranks/transport.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t longest_message = std::uint64_t{1} << 30;  // MPI counts in int
constexpr int note_tag = 1;

class MpiTransport : public RankTransport {
 public:
  MpiTransport() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    for (MPI_Comm& one : communicators_) MPI_Comm_dup(MPI_COMM_WORLD, &one);
    MPI_Comm of_host = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &of_host);
    MPI_Comm_rank(of_host, &on_host_.number);
    MPI_Comm_size(of_host, &on_host_.count);
    MPI_Comm_free(&of_host);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string library() const override {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    const std::string all(text.data(), static_cast<std::size_t>(length));
    return all.substr(0, std::min(all.find(','), all.find('\n')));
  }

  OnHost on_host() const override { return on_host_; }

  void exchange(RankChannel channel, std::span<const Outgoing> outgoing,
                std::span<const Incoming> incoming, const std::function<void()>& waiting) override {
    std::vector<MPI_Request> requests;
    const MPI_Comm communicator = of(channel);
    for (const Incoming& one : incoming) {
      in_pieces(one.bytes, [&](std::uint64_t from, int count) {
        MPI_Irecv(one.data + from, count, MPI_BYTE, one.from, 0, communicator,
                  &requests.emplace_back());
      });
    }
    for (const Outgoing& one : outgoing) {
      in_pieces(one.bytes, [&](std::uint64_t from, int count) {
        MPI_Isend(one.data + from, count, MPI_BYTE, one.to, 0, communicator,
                  &requests.emplace_back());
      });
    }
    try {
      wait(requests, waiting);
    } catch (...) {
      broken_ = true;
      throw;
    }
  }

  void tell(int to, std::span<const std::byte> note) override {
    if (broken_) return;
    std::erase_if(notes_, [](Note& one) {
      int done = 0;
      MPI_Test(&one.request, &done, MPI_STATUS_IGNORE);
      return done != 0;
    });
    Note& one = notes_.emplace_back();
    one.bytes = std::make_unique<std::byte[]>(note.size());
    std::memcpy(one.bytes.get(), note.data(), note.size());
    MPI_Isend(one.bytes.get(), static_cast<int>(note.size()), MPI_BYTE, to, note_tag,
              of(RankChannel::notes), &one.request);
  }

  bool hear(int from, std::span<std::byte> note) override {
    if (broken_) return false;
    int there = 0;
    MPI_Iprobe(from, note_tag, of(RankChannel::notes), &there, MPI_STATUS_IGNORE);
    if (there == 0) return false;
    MPI_Recv(note.data(), static_cast<int>(note.size()), MPI_BYTE, from, note_tag,
             of(RankChannel::notes), MPI_STATUS_IGNORE);
    return true;
  }

  void finish() override {
    if (!broken_) MPI_Finalize();
  }

 private:
  struct Note {
    std::unique_ptr<std::byte[]> bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  MPI_Comm of(RankChannel channel) const {
    return communicators_[static_cast<std::size_t>(messages_of(channel))];
  }
  template <class Take>
  static void in_pieces(std::uint64_t bytes, const Take& take) {
    for (std::uint64_t done = 0; done < bytes; done += longest_message)
      take(done, static_cast<int>(std::min(longest_message, bytes - done)));
  }
  // Soon after the other side is there it is nearly always done; else others need the core.
  static void wait(std::vector<MPI_Request>& requests, const std::function<void()>& waiting) {
    constexpr int soon = 20;
    constexpr auto shortest = std::chrono::microseconds(20),
                   longest = std::chrono::microseconds(500);
    auto sleep = shortest;
    for (int looked = 0;; ++looked) {
      int done = 0;
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
      if (done != 0) return;
      waiting();
      if (looked < soon) {
        std::this_thread::yield();
        continue;
      }
      std::this_thread::sleep_for(sleep);
      sleep = std::min(sleep * 2, longest);
    }
  }

  int rank_ = 0, size_ = 1;
  OnHost on_host_;
  std::array<MPI_Comm, rank_channel_count> communicators_{};
  std::deque<Note> notes_;  // under way
  std::atomic<bool> broken_{false};
};

}  // namespace

}  // namespace spillway

extern "C" {

const char* spillway_mpi_version() { return SPILLWAY_VERSION; }

// Null where the library cannot be called by several threads.
spillway::RankTransport* spillway_mpi_start() {
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS ||
      provided < MPI_THREAD_MULTIPLE)
    return nullptr;
  return new spillway::MpiTransport;
}
}
