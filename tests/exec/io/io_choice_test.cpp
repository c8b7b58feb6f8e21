// Which ring the store has: io_uring where trying it shows that it works, else threads, with the
// reason.
#include "exec/io/io_choice.hpp"

#include <catch2/catch.hpp>
#include <cerrno>
#include <functional>
#include <optional>
#include <stdexcept>

#include "exec/io/io_uring.hpp"
#include "tests/exec/io_test_support.hpp"
#include "tests/refused_calls.hpp"

namespace spillway::test {
namespace {

// On a thread of its own, on which the call is refused. 0: it returns as if it had worked.
template <class Result>
Result where_refused(long call, unsigned error_number, const std::function<Result()>& body) {
  std::optional<Result> result;
  on_thread([&] {
    if (!refuse_call(call, error_number)) throw std::runtime_error("no seccomp filters here");
    result.emplace(body());
  });
  return std::move(*result);
}

struct Refusal {
  const char* what;
  long call;
  unsigned error_number;
  const char* why;
  const char* remedy;
};
constexpr Refusal refusals[] = {{"a container's default profile", SYS_io_uring_setup, EPERM,
                                 "Operation not permitted", "kernel.io_uring_disabled"},
                                {"a kernel without io_uring", SYS_io_uring_setup, ENOSYS,
                                 "Function not implemented", "Linux 5.6"},
                                {"a profile that knows the first call only", SYS_io_uring_enter,
                                 EPERM, "Operation not permitted", "io_uring_enter"},
                                {"a ring that completes nothing", SYS_io_uring_enter, 0,
                                 "it completes nothing", "threads with pread and pwrite"}};

bool is_refused_to_all() { return usual_io().method == IoMethod::threads; }

}  // namespace

TEST_CASE("io_uring that is refused in any way is found out by trying it") {
  for (const Refusal& refusal : refusals) {
    INFO(refusal.what);
    if (is_refused_to_all() && refusal.call == SYS_io_uring_enter) continue;  // never called
    const auto found = where_refused<std::optional<IoUringRefusal>>(
        refusal.call, refusal.error_number,
        [] { return try_io_uring(8, std::chrono::milliseconds(50)); });
    REQUIRE(found.has_value());
    CHECK(found->why == refusal.why);
    CHECK_THAT(found->error.hint(), Catch::Contains(refusal.remedy));
  }
}

TEST_CASE("a ring that is not refused completes what it is tried with") {
  if (is_refused_to_all()) {
    WARN("skipped: io_uring is refused here: " << usual_io().io_uring_refused);
    return;
  }
  CHECK_FALSE(try_io_uring(1).has_value());
  CHECK_FALSE(try_io_uring(32).has_value());
}

TEST_CASE("io_uring is chosen where it works, threads with the reason where it does not") {
  const auto refused = [](IoMethod wanted) {
    return where_refused<IoChoice>(SYS_io_uring_setup, EPERM, [=] { return choose_io(wanted); });
  };
  const IoChoice automatic = refused(IoMethod::automatic);
  CHECK(automatic.method == IoMethod::threads);
  CHECK_THAT(to_text(automatic, 4), Catch::Equals("4 threads with pread and pwrite (io_uring: "
                                                  "Operation not permitted)"));
  const IoChoice threads = refused(IoMethod::threads);  // nothing is wrong then
  CHECK(threads.method == IoMethod::threads);
  CHECK(to_text(threads, 1) == "1 thread with pread and pwrite");
  const std::string message = message_of<MachineError>([&] { refused(IoMethod::uring); });
  CHECK_THAT(message, Catch::Contains("cannot use io_uring: Operation not permitted") &&
                          Catch::Contains("kernel.io_uring_disabled") &&
                          Catch::Contains("seccomp"));
  CHECK_THAT(message_of<MachineError>([&] {
               where_refused<IoChoice>(SYS_io_uring_setup, ENOSYS,
                                       [] { return choose_io(IoMethod::uring); });
             }),
             Catch::Contains("this kernel has no io_uring"));
  if (is_refused_to_all()) return;
  CHECK(choose_io(IoMethod::automatic).method == IoMethod::uring);
  CHECK(to_text(choose_io(IoMethod::uring), 32) == "io_uring");
}

}  // namespace spillway::test
