#include "exec/cpu/thread_pool.hpp"

#include "base/errors.hpp"

namespace spillway {

ThreadPool::ThreadPool(int threads) {
  SPILLWAY_ASSERT(threads >= 1);
  threads_.reserve(static_cast<std::size_t>(threads) - 1);
  for (int i = 1; i < threads; ++i) threads_.emplace_back([this] { help(); });
}

ThreadPool::~ThreadPool() {
  ending_ = true;
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run_erased(std::int64_t pieces, const void* context, Call call) {
  if (threads_.empty() || pieces <= 1) {
    for (std::int64_t piece = 0; piece < pieces; ++piece) call(context, piece);
    return;
  }
  pieces_ = pieces;
  context_ = context;
  call_ = call;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<std::uint32_t>(threads_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  take_pieces();
  // Every helper has looked at this generation before the next may begin.
  for (std::uint32_t left = busy_.load(std::memory_order_acquire); left != 0;
       left = busy_.load(std::memory_order_acquire)) {
    busy_.wait(left, std::memory_order_acquire);
  }
}

void ThreadPool::help() {
  std::uint32_t seen = 0;
  while (true) {
    generation_.wait(seen, std::memory_order_acquire);
    ++seen;  // a generation ends only when all have seen it, so none is skipped
    if (ending_) return;
    take_pieces();
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
  }
}

void ThreadPool::take_pieces() {
  for (std::int64_t piece = next_.fetch_add(1, std::memory_order_relaxed); piece < pieces_;
       piece = next_.fetch_add(1, std::memory_order_relaxed)) {
    call_(context_, piece);
  }
}

}  // namespace spillway
