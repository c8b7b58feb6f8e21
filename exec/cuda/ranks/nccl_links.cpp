#include "exec/cuda/ranks/nccl_links.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <thread>
#include <tuple>
#include <vector>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "exec/cuda/device/launch.hpp"
#include "exec/cuda/ranks/add_up.hpp"

namespace spillway::cuda {

namespace {

// Of the multiprocessors: six links at once, which is as many as a rank has, leave half of them.
constexpr int share_of_link = 12, most_blocks = 16;
constexpr auto longest_abort = std::chrono::seconds(5);

std::shared_ptr<std::byte> take(std::uint64_t bytes) {
  void* memory = nullptr;
  const cudaError_t result = cudaMalloc(&memory, std::max<std::uint64_t>(bytes, 256));
  if (result != cudaSuccess) {
    cudaGetLastError();
    throw MachineError(
        fmt::format("cannot take {} of GPU memory for what ranks tell each other: {}",
                    format_bytes(static_cast<double>(bytes)), cudaGetErrorName(result)),
        "end other programs on the GPU (nvidia-smi lists them)");
  }
  return {static_cast<std::byte*>(memory), [](std::byte* taken) { cudaFree(taken); }};
}

// Looks again and again, soon at first.
class Patience {
 public:
  explicit Patience(const std::function<void()>& waiting) : waiting_(waiting) {}
  void wait() {
    if (waiting_) waiting_();
    if (++looked_ < 100) return std::this_thread::yield();
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(sleep_ * 2, std::chrono::microseconds(200));
  }

 private:
  const std::function<void()>& waiting_;
  int looked_ = 0;
  std::chrono::microseconds sleep_{10};
};

class NcclCarrier : public Carrier {
 public:
  NcclCarrier(int device, const NcclFunctions& nccl, const GpuLinks::Link& link)
      : device_(device), nccl_(nccl), link_(link) {
    use_device();
    int multiprocessors = 0;
    SPILLWAY_CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    cudaStream_t stream = nullptr;
    SPILLWAY_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    stream_.reset(stream, [](cudaStream_t made) { static_cast<void>(cudaStreamDestroy(made)); });
    if (link.piece_bytes > 0)
      pieces_ = take(link.piece_bytes * static_cast<std::uint64_t>(link.count));
    NcclId id;
    SPILLWAY_ASSERT(link.id.size() == id.bytes.size());
    std::memcpy(id.bytes.data(), link.id.data(), id.bytes.size());
    NcclConfig config;
    config.blocking = 0;
    config.most_blocks = std::clamp(multiprocessors / share_of_link, 1, most_blocks);
    try {
      settle(nccl_.join(&communicator_, link.count, id, link.own, &config), "ncclCommInitRank");
      try_out();
    } catch (...) {
      abort();
      throw;
    }
  }

  int rank() const override { return link_.own; }
  int size() const override { return link_.count; }
  std::uint64_t piece_bytes() const override { return link_.piece_bytes; }
  std::byte* piece_of(int rank) override {
    return pieces_.get() + static_cast<std::uint64_t>(rank) * link_.piece_bytes;
  }

  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming) override {
    use_device();
    guarded([&] {
      check(nccl_.begin_group(), "ncclGroupStart");
      for (const Outgoing& one : outgoing) {
        if (one.bytes > 0)
          check(nccl_.send(one.data, one.bytes, NcclFunctions::bytes, one.to, communicator_,
                           stream_.get()),
                "ncclSend");
      }
      for (const Incoming& one : incoming) {
        if (one.bytes > 0)
          check(nccl_.receive(one.data, one.bytes, NcclFunctions::bytes, one.from, communicator_,
                              stream_.get()),
                "ncclRecv");
      }
      settle(nccl_.end_group(), "ncclGroupEnd");
    });
  }

  void move(std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    use_device();
    // Parts of a whole are moved to their own places, so that both are the same or apart.
    if (to == from || bytes == 0) return;
    SPILLWAY_ASSERT(to + bytes <= from || from + bytes <= to);
    SPILLWAY_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_.get()));
  }

  void add_up(std::span<const std::byte* const> from, std::byte* to, std::int64_t n,
              std::uint64_t width, bool adds) override {
    use_device();
    cuda::add_up(from, to, n, width, adds, stream_.get());
  }

  void finish() override {
    use_device();
    guarded([&] {
      Patience patience(link_.waiting);
      while (true) {
        const cudaError_t of_stream = cudaStreamQuery(stream_.get());
        if (of_stream != cudaErrorNotReady) SPILLWAY_CUDA(of_stream);
        int of_link = NcclFunctions::success;
        check(nccl_.state(communicator_, &of_link), "ncclCommGetAsyncError");
        check(of_link, "what ranks tell each other");
        if (of_stream == cudaSuccess) return;
        patience.wait();
      }
    });
  }

 private:
  void use_device() const { SPILLWAY_CUDA(cudaSetDevice(device_)); }

  [[noreturn]] void fail(int result, const char* call) const {
    const char* const more = nccl_.last_error(communicator_);
    throw MachineError(
        fmt::format("{} in {}{}{}", nccl_.error_text(result), call,
                    more != nullptr && *more != 0 ? ": " : "", more != nullptr ? more : ""),
        "NCCL_DEBUG=INFO says more; SPILLWAY_NCCL=off goes by way of the host's memory instead");
  }
  // A call in a group, which only notes down.
  void check(int result, const char* call) const {
    if (result != NcclFunctions::success && result != NcclFunctions::in_progress)
      fail(result, call);
  }
  // Waits until a call that does not block has done what it is for.
  void settle(int result, const char* call) {
    Patience patience(link_.waiting);
    while (result == NcclFunctions::in_progress) {
      patience.wait();
      const int asked = nccl_.state(communicator_, &result);
      check(asked, "ncclCommGetAsyncError");
    }
    check(result, call);
  }
  // Where a rank is lost a kernel would wait for it for ever.
  template <class Body>
  void guarded(const Body& body) {
    if (communicator_ == nullptr)
      throw MachineError("what ranks tell each other has failed before");
    try {
      body();
    } catch (...) {
      abort();
      throw;
    }
  }
  // Ends what the link is at. That may wait for others, who may be gone: not for long. What still
  // runs then keeps its stream and its memory to the end of the process: to give them back would be
  // to wait for it.
  void abort() {
    if (communicator_ == nullptr) return;
    const auto done = std::make_shared<std::promise<void>>();
    std::future<void> is_done = done->get_future();
    std::thread([done, abort = nccl_.abort, communicator = communicator_, device = device_] {
      cudaSetDevice(device);
      abort(communicator);
      done->set_value();
    }).detach();
    communicator_ = nullptr;
    if (is_done.wait_for(longest_abort) != std::future_status::ready)
      new std::tuple(stream_, pieces_, tried_);
  }

  // All connections are made, and take their memory, when they are first used.
  void try_out() {
    constexpr std::size_t bytes = 4096;
    const auto count = static_cast<std::size_t>(link_.count);
    tried_ = take((count + 1) * bytes);
    std::byte* const memory = tried_.get();
    const auto pattern = [](std::size_t of, std::size_t at) {
      return static_cast<unsigned char>(17 * (of + 1) + at + at / 256);
    };
    const auto own = static_cast<std::size_t>(link_.own);
    std::vector<unsigned char> sent(bytes), arrived(count * bytes, 0);
    for (std::size_t i = 0; i < bytes; ++i) sent[i] = pattern(own, i);
    SPILLWAY_CUDA(
        cudaMemcpyAsync(memory, sent.data(), bytes, cudaMemcpyHostToDevice, stream_.get()));
    std::vector<Outgoing> outgoing;
    std::vector<Incoming> incoming;
    for (std::size_t k = 0; k < count; ++k) {
      if (k == own) continue;
      if (!link_.one_way || own == 0) outgoing.push_back({static_cast<int>(k), memory, bytes});
      if (!link_.one_way || own == 1)
        incoming.push_back({static_cast<int>(k), memory + (k + 1) * bytes, bytes});
    }
    exchange(outgoing, incoming);
    finish();
    SPILLWAY_CUDA(cudaMemcpyAsync(arrived.data(), memory + bytes, arrived.size(),
                                  cudaMemcpyDeviceToHost, stream_.get()));
    SPILLWAY_CUDA(cudaStreamSynchronize(stream_.get()));
    for (const Incoming& one : incoming) {
      const auto from = static_cast<std::size_t>(one.from);
      for (std::size_t i = 0; i < bytes; ++i) {
        if (arrived[from * bytes + i] != pattern(from, i))
          throw MachineError(
              "what another rank's GPU has sent has not arrived as it was",
              "NCCL_P2P_DISABLE=1 keeps NCCL from reading the memory of other GPUs, which some "
              "machines get wrong; SPILLWAY_NCCL=off goes by way of the host's memory");
      }
    }
    tried_.reset();
  }

  int device_;
  NcclFunctions nccl_;
  GpuLinks::Link link_;
  std::shared_ptr<CUstream_st> stream_;
  std::shared_ptr<std::byte> pieces_, tried_;
  // One that has done its work stays to the end of the process, which is near: to destroy it would
  // be to wait until the others destroy theirs, whatever they are at.
  NcclComm communicator_ = nullptr;
};

}  // namespace

NcclLinks::NcclLinks(int device, const std::string& file) : device_(device), nccl_(nccl(file)) {}

std::string NcclLinks::library() const {
  int version = 0;
  static_cast<void>(nccl_.version(&version));
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string NcclLinks::new_id() {
  NcclId id;
  if (const int result = nccl_.new_id(&id); result != NcclFunctions::success)
    throw MachineError(fmt::format("{} in ncclGetUniqueId", nccl_.error_text(result)),
                       "NCCL_DEBUG=INFO says more; SPILLWAY_NCCL=off goes by way of the host's "
                       "memory instead");
  return {id.bytes.data(), id.bytes.size()};
}

std::unique_ptr<Carrier> NcclLinks::join(const Link& link) {
  return std::make_unique<NcclCarrier>(device_, nccl_, link);
}

std::shared_ptr<std::byte> NcclLinks::memory(std::uint64_t bytes) {
  SPILLWAY_CUDA(cudaSetDevice(device_));
  std::shared_ptr<std::byte> taken = take(bytes);
  SPILLWAY_CUDA(cudaMemset(taken.get(), 0, bytes));
  SPILLWAY_CUDA(cudaDeviceSynchronize());
  return taken;
}

}  // namespace spillway::cuda
