// A body of code in a process of its own: one that may be killed, or hang, without the test.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace spillway::test {

struct ChildEnd {
  bool finished = false;   // the body returned
  bool timed_out = false;  // it did not end in time, and was killed
  int signal = 0;          // that ended it, e.g. SIGKILL; 0: none
  std::string said;        // all that it said, in order
  std::string uncaught;    // the exception it ended with: "message | hint"
};

// Forks and runs `body` there; `say` sends text to the parent, where it is kept even if the child
// is killed right after. Call it while no other thread runs. Catch2's checks belong into the
// parent. Throws std::runtime_error where there can be no child.
ChildEnd run_in_child(
    const std::function<void(const std::function<void(const std::string&)>& say)>& body,
    std::chrono::seconds limit);

}  // namespace spillway::test
