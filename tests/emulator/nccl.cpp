// NCCL between emulated GPUs, of one process or of several: pairs of sockets. What a group says is
// done by its stream, so that a missing wait shows; nothing is done before all sides are there.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "exec/cuda/ranks/nccl.hpp"
#include "tests/emulator/calls.hpp"
#include "tests/emulator/stream.hpp"

struct ncclComm {
  int rank = 0, count = 1;
  std::vector<int> sockets;  // by rank
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  CUstream_st* stream = nullptr;  // that was given work last
  std::atomic<int> state{0};
  std::atomic<int> in_progress{0};  // so many questions for its state are answered by that
  ~ncclComm() {
    for (const int one : sockets)
      if (one >= 0) ::close(one);
  }
};

namespace emulator {
namespace {

using spillway::cuda::NcclComm;
using spillway::cuda::NcclConfig;
using spillway::cuda::NcclFunctions;
using spillway::cuda::NcclId;

constexpr int remote_error = 6, unhandled_cuda_error = 1, invalid_usage = 5;

struct Move {
  NcclComm communicator;
  cudaStream_t stream;
  int peer;
  char* data;
  std::size_t bytes;
  bool sends;
};

thread_local int depth = 0;
thread_local std::vector<Move> group;

// All live to the end, as those of NCCL that nobody destroys.
NcclComm kept(std::unique_ptr<ncclComm> communicator) {
  static std::mutex mutex;
  static auto* const all = new std::vector<std::unique_ptr<ncclComm>>;
  const std::lock_guard lock(mutex);
  return all->emplace_back(std::move(communicator)).get();
}

sockaddr_un address_of(const NcclId& id, int rank) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // Abstract: gone with its last user.
  const std::string name = std::string(id.bytes.data()) + "-" + std::to_string(rank);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return address;
}

template <class Try>
bool within_time(const Try& try_it) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  while (!try_it()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// As much as goes without waiting; false: the other side is gone.
bool go_on(Move& move, int socket) {
  const ssize_t done = move.sends
                           ? ::send(socket, move.data, move.bytes, MSG_DONTWAIT | MSG_NOSIGNAL)
                           : ::recv(socket, move.data, move.bytes, MSG_DONTWAIT);
  if (done == 0) return false;
  if (done < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  move.data += done;
  move.bytes -= static_cast<std::size_t>(done);
  return true;
}

// What a group says of one communicator, on its stream.
void carry(std::vector<Move> moves, const std::atomic<bool>& aborted) {
  while (!aborted.load()) {
    bool done = true;
    for (Move& one : moves) {
      if (one.bytes == 0) continue;
      if (!go_on(one, one.communicator->sockets[static_cast<std::size_t>(one.peer)])) {
        one.communicator->state = remote_error;
        return;
      }
      done = done && one.bytes == 0;
    }
    if (done) return;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

int result_of(cudaError_t error) { return error == cudaSuccess ? 0 : unhandled_cuda_error; }

int version(int* number) {
  *number = 22809;
  return 0;
}

const char* error_text(int result) {
  return result == 0 ? "no error" : result == remote_error ? "remote process exited" : "unhandled";
}

const char* last_error(NcclComm) { return ""; }

int new_id(NcclId* id) {
  static std::atomic<int> made{0};
  const std::string text =
      "spillway-nccl-" + std::to_string(::getpid()) + "-" + std::to_string(made++);
  id->bytes.fill(0);
  std::memcpy(id->bytes.data(), text.data(), text.size());
  return 0;
}

// Calls that do not block are in progress for a while.
int begin_progress(NcclComm communicator) {
  communicator->in_progress = 3;
  return NcclFunctions::in_progress;
}

int join(NcclComm* made, int count, NcclId id, int rank, NcclConfig* config) {
  if (const cudaError_t error = enter("ncclCommInitRankConfig"); error != cudaSuccess)
    return result_of(error);
  if (config->size != sizeof(NcclConfig) || config->blocking != 0) return invalid_usage;
  auto communicator = std::make_unique<ncclComm>();
  communicator->rank = rank;
  communicator->count = count;
  communicator->sockets.assign(static_cast<std::size_t>(count), -1);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
  const sockaddr_un own = address_of(id, rank);
  ::bind(listener, reinterpret_cast<const sockaddr*>(&own), sizeof own);
  ::listen(listener, count);
  bool there = true;
  for (int other = 0; other < rank && there; ++other) {
    const sockaddr_un to = address_of(id, other);
    there = within_time([&] {
      const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
      if (::connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0 &&
          ::send(socket, &rank, sizeof rank, MSG_NOSIGNAL) == sizeof rank) {
        communicator->sockets[static_cast<std::size_t>(other)] = socket;
        return true;
      }
      ::close(socket);
      return false;
    });
  }
  for (int other = rank + 1; other < count && there; ++other) {
    there = within_time([&] {
      const int socket = ::accept(listener, nullptr, nullptr);
      if (socket < 0) return false;
      int from = 0;
      ::recv(socket, &from, sizeof from, MSG_WAITALL);
      communicator->sockets[static_cast<std::size_t>(from)] = socket;
      return true;
    });
  }
  ::close(listener);
  if (!there) return remote_error;
  *made = kept(std::move(communicator));
  return begin_progress(*made);
}

int state(NcclComm communicator, int* result) {
  const bool is_in_progress = communicator->in_progress > 0 && communicator->in_progress-- > 0;
  *result = is_in_progress ? NcclFunctions::in_progress : communicator->state.load();
  return 0;
}

// What is under way ends without being done.
int abort(NcclComm communicator) {
  static_cast<void>(enter("ncclCommAbort"));
  communicator->aborted->store(true);
  if (communicator->stream != nullptr) drain(*communicator->stream);
  return 0;
}

int begin_group() {
  ++depth;
  return 0;
}

int end_group() {
  const cudaError_t error = enter("ncclGroupEnd");
  if (--depth > 0) return 0;
  std::vector<Move> moves = std::move(group);
  group.clear();
  if (error != cudaSuccess) return result_of(error);
  if (moves.empty()) return 0;
  CUstream_st* const stream = find_stream(moves.front().stream);
  if (stream == nullptr) return invalid_usage;
  moves.front().communicator->stream = stream;
  const NcclComm communicator = moves.front().communicator;
  const auto aborted = communicator->aborted;
  const cudaError_t submitted = submit(
      *stream, {[moves = std::move(moves), aborted](std::uint64_t) { carry(moves, *aborted); }});
  return submitted == cudaSuccess ? begin_progress(communicator) : result_of(submitted);
}

int note(Move move) {
  group.push_back(move);
  return 0;
}
int send(const void* data, std::size_t bytes, int, int peer, NcclComm communicator,
         cudaStream_t stream) {
  return note(
      {communicator, stream, peer, static_cast<char*>(const_cast<void*>(data)), bytes, true});
}
int receive(void* data, std::size_t bytes, int, int peer, NcclComm communicator,
            cudaStream_t stream) {
  return note({communicator, stream, peer, static_cast<char*>(data), bytes, false});
}

}  // namespace
}  // namespace emulator

namespace spillway::cuda {

NcclFunctions nccl(const std::string&) {
  using namespace emulator;  // NOLINT(google-build-using-namespace)
  return {version, error_text,  last_error, new_id, join,   state,
          abort,   begin_group, end_group,  send,   receive};
}

}  // namespace spillway::cuda
