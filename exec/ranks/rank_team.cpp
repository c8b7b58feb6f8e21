#include "exec/ranks/rank_team.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <sstream>

namespace spillway {

namespace {

constexpr auto watch_interval = std::chrono::milliseconds(5);
// How long the last to end waits for the others, so that MPI ends in good order.
constexpr auto longest_end = std::chrono::seconds(3);
constexpr std::size_t longest_failure = 400;

double seconds_of(std::chrono::milliseconds time) {
  return static_cast<double>(time.count()) / 1e3;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

// -1 where the kernel cannot give one.
int descriptor_of_process(int process) {
  return static_cast<int>(::syscall(SYS_pidfd_open, process, 0));
}

// Whether the process of a descriptor has ended, be it that nobody has asked for its status yet.
bool has_ended(int descriptor) {
  pollfd one{descriptor, POLLIN, 0};
  return ::poll(&one, 1, 0) > 0 && (one.revents & POLLIN) != 0;
}

}  // namespace

RankLost::RankLost(int rank, const std::string& what, bool had_committed)
    : MachineError(
          what, had_committed
                    ? "what all ranks had committed is safe: go on with it by " + Setting{"resume"}
                    : Message("nothing was committed since the ranks started; what was "
                              "before is as it was")),
      rank_(rank) {}

RankChannel channel_of(Lane lane) {
  switch (lane) {
    case Lane::ranks_gather:
      return RankChannel::gather;
    case Lane::ranks_reduce:
      return RankChannel::reduce;
    case Lane::stage_in:
      return RankChannel::stage_in;
    case Lane::stage_out:
      return RankChannel::stage_out;
    case Lane::stage_gradient_in:
      return RankChannel::stage_gradient_in;
    case Lane::stage_gradient_out:
      return RankChannel::stage_gradient_out;
    default:
      SPILLWAY_ASSERT(lane == Lane::ranks_spread);
      return RankChannel::spread;
  }
}

// Of one size, whatever the ranks' compilers make of it: all ranks run the same program.
struct RankTeam::Note {
  std::uint64_t tasks = 0;
  std::int64_t committed = -1, released = -1;
  std::uint8_t done = 0, failed = 0;
  std::array<char, longest_failure + 1> failure{};
};

RankTeam::Other::~Other() {
  if (process >= 0) ::close(process);
}

RankTeam::RankTeam(std::unique_ptr<RankTransport> transport, RankTimes times)
    : transport_(std::move(transport)), times_(times) {
  static_assert(sizeof(Note) <= RankTransport::longest_note);
  const auto make = [&](RankChannel channel) {
    return std::make_unique<HostSums>(*transport_, channel, [this, channel] { wait_on(channel); });
  };
  control_ = make(RankChannel::control);
  gather_ = make(RankChannel::gather);
  reduce_ = make(RankChannel::reduce);
  spread_ = make(RankChannel::spread);
  for (int rank = 0; rank < size(); ++rank) {
    others_.push_back(std::make_unique<Other>());
    others_.back()->heard = others_.back()->progressed = Clock::now();
    others_.back()->name = fmt::format("rank {}", rank);
  }
  watch_ = std::thread([this] { watch(); });
  try {
    meet();
  } catch (...) {
    ending_ = true;
    watch_.join();
    throw;
  }
}

RankTeam::~RankTeam() {
  ending_ = true;
  news_.fetch_add(1);
  watch_.join();
  if (!lost_ && !cancelled_ && others_done()) transport_->finish();
}

// Who the others are.
void RankTeam::meet() {
  const std::string here = host_name();
  const std::vector<std::string> all = gather(fmt::format("{} {}", ::getpid(), here));
  for (int rank = 0; rank < size(); ++rank) {
    std::istringstream text(all[static_cast<std::size_t>(rank)]);
    int process = 0;
    std::string host;
    text >> process >> host;
    Other& other = *others_[static_cast<std::size_t>(rank)];
    const std::lock_guard lock(mutex_);
    other.name = fmt::format("rank {} (process {} on {})", rank, process, host);
    if (rank != this->rank() && host == here && process != ::getpid())
      other.process = descriptor_of_process(process);
  }
}

HostSums& RankTeam::on(Lane lane) {
  switch (channel_of(lane)) {
    case RankChannel::gather:
      return *gather_;
    case RankChannel::reduce:
      return *reduce_;
    default:
      return *spread_;
  }
}

void RankTeam::send(Lane lane, int to, std::span<const std::byte> message) {
  const RankTransport::Outgoing one{to, message.data(), message.size()};
  transport_->exchange(channel_of(lane), std::span(&one, 1), {}, waiting(lane));
}

void RankTeam::receive(Lane lane, int from, std::span<std::byte> message) {
  const RankTransport::Incoming one{from, message.data(), message.size()};
  transport_->exchange(channel_of(lane), {}, std::span(&one, 1), waiting(lane));
}

void RankTeam::answer(Lane lane, int sender, std::span<const std::byte> message) {
  const RankTransport::Outgoing one{sender, message.data(), message.size()};
  transport_->exchange(answers_to(channel_of(lane)), std::span(&one, 1), {}, waiting(lane));
}

void RankTeam::receive_answer(Lane lane, int receiver, std::span<std::byte> message) {
  const RankTransport::Incoming one{receiver, message.data(), message.size()};
  transport_->exchange(answers_to(channel_of(lane)), {}, std::span(&one, 1), waiting(lane));
}

// -- agreement ------------------------------------------------------------------------------------

void RankTeam::barrier() { gather(std::string()); }

std::vector<std::string> RankTeam::gather(const std::string& own) {
  const auto count = static_cast<std::size_t>(size());
  std::vector<std::uint64_t> lengths(count);
  const std::uint64_t length = own.size();
  control_->all_to_all(std::as_bytes(std::span(&length, 1)),
                       std::as_writable_bytes(std::span(lengths)));
  std::uint64_t sum = 0;
  for (const std::uint64_t one : lengths) sum += one;
  std::string all(sum, '\0');
  control_->all_gather(reinterpret_cast<const std::byte*>(own.data()),
                       reinterpret_cast<std::byte*>(all.data()), lengths);
  waiting_since_[static_cast<std::size_t>(RankChannel::control)] = 0;
  std::vector<std::string> texts;
  std::size_t at = 0;
  for (const std::uint64_t one : lengths) {
    texts.push_back(all.substr(at, one));
    at += one;
  }
  return texts;
}

std::string RankTeam::from_first(const std::string& own) {
  return gather(leads() ? own : std::string()).front();
}

std::vector<double> RankTeam::gather(std::span<const double> own) {
  std::vector<double> all(own.size() * static_cast<std::size_t>(size()));
  control_->all_to_all(std::as_bytes(own), std::as_writable_bytes(std::span(all)));
  return all;
}

void RankTeam::require_equal(const std::string& what, const std::string& text) {
  const std::vector<std::string> all = gather(text);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    std::istringstream first(all[0]), other(all[rank]);
    std::string a, b;
    do {
      a.clear();
      b.clear();
      std::getline(first, a);
      std::getline(other, b);
    } while (a == b && (first || other));
    throw InputError(fmt::format("the ranks do not agree on {}: rank 0 has '{}', rank {} '{}'",
                                 what, a, rank, b),
                     "start all ranks by one mpirun, with the same program, settings and data");
  }
}

// -- the watch ------------------------------------------------------------------------------------

void RankTeam::look_while_waiting() const {
  if (lost_.load(std::memory_order_acquire)) require_all();
  if (cancelled_.load(std::memory_order_acquire))
    throw MachineError("this rank has given up waiting for the others");
}

void RankTeam::wait_on(RankChannel channel) {
  look_while_waiting();
  auto& since = waiting_since_[static_cast<std::size_t>(channel)];
  if (since.load(std::memory_order_relaxed) == 0)
    since.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
}

void RankTeam::task_done(Lane lane) {
  tasks_.fetch_add(1, std::memory_order_relaxed);
  if (lanes_of_ranks.contains(lane) || lanes_of_stages.contains(lane))
    waiting_since_[static_cast<std::size_t>(channel_of(lane))].store(0, std::memory_order_relaxed);
}

void RankTeam::waits_done() {
  for (std::atomic<std::int64_t>& since : waiting_since_) since.store(0, std::memory_order_relaxed);
}

void RankTeam::committed(std::int64_t version) {
  if (committed_.exchange(version) == version) return;
  news_.fetch_add(1, std::memory_order_release);
}

std::int64_t RankTeam::committed_by_all() const {
  std::int64_t all = committed_.load(std::memory_order_acquire);
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != this->rank())
      all = std::min(
          all, others_[static_cast<std::size_t>(rank)]->committed.load(std::memory_order_acquire));
  }
  return all;
}

void RankTeam::released(std::int64_t version) {
  if (released_.exchange(version) == version) return;
  news_.fetch_add(1, std::memory_order_release);
}

std::int64_t RankTeam::released_by_first() const {
  return leads() ? released_.load() : others_.front()->released.load(std::memory_order_acquire);
}

void RankTeam::fail(std::exception_ptr why) {
  std::string text = "an error that says nothing";
  try {
    std::rethrow_exception(why);
  } catch (const RankLost&) {
    if (lost_) return;  // the others find out by themselves
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
  }
  {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = text.substr(0, longest_failure);
  }
  failed_.store(true);
  news_.fetch_add(1);
}

void RankTeam::require_all() const {
  const std::lock_guard lock(mutex_);
  if (loss_) std::rethrow_exception(loss_);
}

void RankTeam::on_loss(std::function<void(std::exception_ptr)> listener) {
  const std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
  if (listener_ && loss_) listener_(loss_);
}

void RankTeam::lose(int rank, const std::string& what) {
  if (lost_) return;
  const std::lock_guard lock(mutex_);
  loss_ = std::make_exception_ptr(RankLost(
      rank, others_[static_cast<std::size_t>(rank)]->name + " " + what, committed_by_all() >= 0));
  lost_.store(true, std::memory_order_release);
  if (listener_) listener_(loss_);
}

bool RankTeam::others_done() const {
  return std::all_of(others_.begin(), others_.end(), [&](const auto& other) {
    return other == others_[static_cast<std::size_t>(rank())] || other->done;
  });
}

void RankTeam::tell_all(bool done) {
  Note note;
  note.tasks = tasks_.load(std::memory_order_relaxed);
  note.committed = committed_.load(std::memory_order_acquire);
  note.released = released_.load(std::memory_order_acquire);
  note.done = done ? 1 : 0;
  if (failed_) {
    const std::lock_guard lock(mutex_);
    note.failed = 1;
    std::memcpy(note.failure.data(), failure_.data(), failure_.size());
  }
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != this->rank()) transport_->tell(rank, std::as_bytes(std::span(&note, 1)));
  }
}

void RankTeam::hear_all() {
  Note note;
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == this->rank()) continue;
    Other& other = *others_[static_cast<std::size_t>(rank)];
    while (transport_->hear(rank, std::as_writable_bytes(std::span(&note, 1)))) {
      other.heard = Clock::now();
      if (note.tasks != other.tasks) other.progressed = other.heard;
      other.tasks = note.tasks;
      other.committed.store(note.committed, std::memory_order_release);
      other.released.store(note.released, std::memory_order_release);
      if (note.failed != 0) {
        note.failure.back() = 0;
        lose(rank, fmt::format("has failed: {}", note.failure.data()));
      }
      if (note.done != 0) other.done = true;
    }
  }
}

// Who is lost.
void RankTeam::look_at_all() {
  const auto now = Clock::now();
  std::int64_t waits_since = 0;
  for (const Lane lane :
       {Lane::ranks_gather, Lane::ranks_reduce, Lane::ranks_spread, Lane::stage_in, Lane::stage_out,
        Lane::stage_gradient_in, Lane::stage_gradient_out}) {
    const std::int64_t since = waiting_since_[static_cast<std::size_t>(channel_of(lane))];
    if (since != 0 && (waits_since == 0 || since < waits_since)) waits_since = since;
  }
  const bool waits_long =
      waits_since != 0 &&
      now - Clock::time_point(Clock::duration(waits_since)) > times_.no_progress;
  for (int rank = 0; rank < size() && !lost_; ++rank) {
    Other& other = *others_[static_cast<std::size_t>(rank)];
    if (rank == this->rank() || other.done) continue;
    int process = -1;
    {
      const std::lock_guard lock(mutex_);
      process = other.process;
    }
    if (process >= 0 && has_ended(process)) {
      hear_all();  // it may have said why
      if (!other.done) lose(rank, "has died");
    } else if (now - other.heard > times_.silence) {
      lose(rank,
           fmt::format("has not been heard of for {:.3g} s: it hangs, or its computer is gone",
                       seconds_of(times_.silence)));
    } else if (waits_long && now - other.progressed > times_.no_progress) {
      lose(rank, fmt::format("has done nothing for {:.3g} s while others wait for it",
                             seconds_of(times_.no_progress)));
    }
  }
}

void RankTeam::watch() {
  auto told = Clock::time_point{};
  std::uint32_t seen = news_.load() - 1;
  std::optional<Clock::time_point> end;
  while (true) {
    const auto now = Clock::now();
    const std::uint32_t news = news_.load(std::memory_order_acquire);
    const bool ending = ending_.load();
    if (news != seen || now - told > times_.between_notes) {
      tell_all(ending);
      seen = news;
      told = now;
    }
    hear_all();
    if (failed_) cancelled_.store(true, std::memory_order_release);  // the others have been told
    if (!lost_ && !cancelled_) look_at_all();
    if (ending) {
      if (!end) {
        end = now + longest_end;
        tell_all(true);
      }
      if (lost_ || cancelled_ || others_done() || now > *end) return;
    }
    std::this_thread::sleep_for(watch_interval);
  }
}

}  // namespace spillway
