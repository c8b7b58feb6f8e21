// The ranks of a training, as one of them sees the others: collectives for its lanes, agreement for
// the thread that trains, and a watch that knows when one of them is gone.
//
// A thread of its own tells the others, a few times a second, that this rank is there, how many
// tasks it has done and which step it has committed. A rank is lost when its process has ended,
// when it says that it has failed, or when nothing is heard of it for RankTimes::silence; and, for
// whoever waits for it in a collective, when it has not done a single task for
// RankTimes::no_progress. From then on every wait throws RankLost, which names it.
//
// Every rank makes the same calls in the same order: lanes on their channels, one thread on
// control.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/errors.hpp"
#include "exec/ranks/ordered_sums.hpp"
#include "exec/ranks/transport.hpp"
#include "policies/schedule/task.hpp"

namespace spillway {

class RankLost : public MachineError {
 public:
  // `had_committed`: whether all ranks had, since they started.
  RankLost(int rank, const std::string& what, bool had_committed);
  int rank() const { return rank_; }

 private:
  int rank_;
};

struct RankTimes {
  std::chrono::milliseconds between_notes{100};
  std::chrono::milliseconds silence{10'000};
  std::chrono::milliseconds no_progress{300'000};
};

// The channel of a lane of collectives or messages.
RankChannel channel_of(Lane lane);

class RankTeam {
 public:
  // Of all ranks together. Throws RankLost where one is not there.
  explicit RankTeam(std::unique_ptr<RankTransport> transport, RankTimes times = {});
  // Waits a moment for the others to come to their ends, too.
  ~RankTeam();
  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;

  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  RankTransport::OnHost on_host() const { return transport_->on_host(); }
  bool leads() const { return rank() == 0; }  // the one that talks, and writes the run's folder
  std::string library() const { return transport_->library(); }

  // -- lanes: ranks_gather, ranks_reduce, ranks_spread --
  HostSums& on(Lane lane);
  // -- lanes between stages of a pipeline: of one message, whole --
  void send(Lane lane, int to, std::span<const std::byte> message);
  void receive(Lane lane, int from, std::span<std::byte> message);
  // What who receives on a lane tells who has sent to it, which waits for that.
  void answer(Lane lane, int sender, std::span<const std::byte> message);
  void receive_answer(Lane lane, int receiver, std::span<std::byte> message);
  // For who waits for others by other means: to be called again and again. Throws RankLost where
  // one is lost.
  void look_while_waiting() const;
  // A task of any lane is done; of these, the wait of its channel is over.
  void task_done(Lane lane);
  // The same of all lanes: whoever waited in one of them does not any more.
  void waits_done();

  // -- agreement, by the thread that trains --
  void barrier();
  // What every rank gives, in order of the ranks; of any length.
  std::vector<std::string> gather(const std::string& own);
  // What rank 0 gives.
  std::string from_first(const std::string& own);
  // `own` of all ranks, in their order; all give as many.
  std::vector<double> gather(std::span<const double> own);
  HostSums& control() { return *control_; }
  // All ranks give the same text; else throws InputError on all of them: "what differs between the
  // ranks: ...". Lines that differ are shown.
  void require_equal(const std::string& what, const std::string& text);

  // -- the watch; from any thread --
  // This rank has committed `version`.
  void committed(std::int64_t version);
  // The last version that all ranks have committed; -1: none yet.
  std::int64_t committed_by_all() const;
  // Of rank 0, which knows of those who read commits: what was committed before `version` may be
  // overwritten. The others wait for it.
  void released(std::int64_t version);
  std::int64_t released_by_first() const;
  // This rank ends because of an error: the others are told why, and end, too; all waits of its own
  // end with an error. Nothing is exchanged any more.
  void fail(std::exception_ptr why);
  // Throws RankLost where one is lost.
  void require_all() const;
  // Called once, on the watch's thread, when one is lost; at once where one is already. Empty:
  // nobody is called from the return on.
  void on_loss(std::function<void(std::exception_ptr)> listener);

 private:
  using Clock = std::chrono::steady_clock;
  struct Note;
  // What is known of another rank, by the watch alone but for `committed`.
  struct Other {
    ~Other();
    int process =
        -1;  // a descriptor of it, where it is on this computer; -1: it is not, or unknown
    std::string name;  // "rank 1 (process 123 on node)"
    Clock::time_point heard, progressed;
    std::uint64_t tasks = 0;
    std::atomic<std::int64_t> committed{-1}, released{-1};
    bool done = false;  // it has come to its end
  };

  void meet();
  void watch();
  void tell_all(bool done);
  void hear_all();
  void look_at_all();
  bool others_done() const;
  void lose(int rank, const std::string& what);
  void wait_on(RankChannel channel);
  std::function<void()> waiting(Lane lane) {
    return [this, channel = channel_of(lane)] { wait_on(channel); };
  }

  std::unique_ptr<RankTransport> transport_;
  RankTimes times_;
  std::unique_ptr<HostSums> control_, gather_, reduce_, spread_;
  std::vector<std::unique_ptr<Other>> others_;  // by rank; of this one, too
  std::atomic<std::uint64_t> tasks_{0};
  std::atomic<std::int64_t> committed_{-1}, released_{-1};
  // When the wait on a channel began, in ns of Clock; 0: nobody waits.
  std::array<std::atomic<std::int64_t>, rank_channel_count> waiting_since_{};
  std::atomic<bool> lost_{false}, failed_{false}, cancelled_{false}, ending_{false};
  std::atomic<std::uint32_t> news_{0};  // for the watch to tell at once
  mutable std::mutex mutex_;            // of the three below
  std::exception_ptr loss_;
  std::function<void(std::exception_ptr)> listener_;
  std::string failure_;
  std::thread watch_;
};

}  // namespace spillway
