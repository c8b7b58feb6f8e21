#include "exec/io/io_choice.hpp"

#include <fmt/format.h>

#include "exec/io/io_threads.hpp"
#include "exec/io/io_uring.hpp"

namespace spillway {

namespace {

// Deep enough that a limit of locked memory, which old kernels charge rings to, shows.
constexpr unsigned trial_depth = 32;

constexpr auto make_thread_ring = [](std::span<const int> files, unsigned depth) {
  return make_io_threads(files, depth);
};

}  // namespace

IoChoice choose_io(IoMethod wanted) {
  if (wanted == IoMethod::threads) return {IoMethod::threads, "", make_thread_ring};
  const std::optional<IoUringRefusal> refusal = try_io_uring(trial_depth);
  if (!refusal) return {IoMethod::uring, "", make_io_uring};
  if (wanted == IoMethod::uring) throw refusal->error;
  return {IoMethod::threads, refusal->why, make_thread_ring};
}

const IoChoice& usual_io() {
  static const IoChoice usual = choose_io(IoMethod::automatic);
  return usual;
}

std::unique_ptr<IoRing> make_usual_ring(std::span<const int> files, unsigned depth) {
  return usual_io().make_ring(files, depth);
}

std::string name_of(const IoChoice& choice, unsigned depth) {
  if (choice.method == IoMethod::uring) return "io_uring";
  const unsigned threads = io_threads_of(depth);
  return fmt::format("{} thread{} with pread and pwrite", threads, threads == 1 ? "" : "s");
}

std::string to_text(const IoChoice& choice, unsigned depth) {
  if (choice.io_uring_refused.empty()) return name_of(choice, depth);
  return fmt::format("{} (io_uring: {})", name_of(choice, depth), choice.io_uring_refused);
}

}  // namespace spillway
