// Threads that share one piece of work at a time: what a lane uses to keep more than one core busy.
//
// Work is cut into pieces by the caller, never by the number of threads, so that what a piece
// computes, and the order in which results are added up, does not depend on how many threads there
// are. Threads wait on a futex between runs; nothing is allocated after construction.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace spillway {

class ThreadPool {
 public:
  // `threads` in all, the caller's own among them: one starts none.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls work(0) .. work(pieces - 1), each once, on any thread, and returns when all are done. One
  // caller at a time. `work` must not throw.
  template <class Work>
  void run(std::int64_t pieces, const Work& work) {
    run_erased(pieces, &work, [](const void* context, std::int64_t piece) {
      (*static_cast<const Work*>(context))(piece);
    });
  }

 private:
  using Call = void (*)(const void* context, std::int64_t piece);

  void run_erased(std::int64_t pieces, const void* context, Call call);
  void help();  // a thread's main
  void take_pieces();

  std::vector<std::thread> threads_;
  std::atomic<std::uint32_t> generation_{0};  // bumped when there is work, or the end has come
  std::atomic<std::uint32_t> busy_{0};        // helpers that have not finished this generation
  std::atomic<std::int64_t> next_{0};
  std::int64_t pieces_ = 0;
  const void* context_ = nullptr;
  Call call_ = nullptr;
  std::atomic<bool> ending_{false};
};

}  // namespace spillway
