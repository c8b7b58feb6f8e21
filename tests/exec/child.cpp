#include "tests/exec/child.hpp"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <stdexcept>

#include "base/errors.hpp"

namespace spillway::test {

namespace {

using Clock = std::chrono::steady_clock;

void send(int descriptor, const std::string& text) {
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t result = ::write(descriptor, text.data() + sent, text.size() - sent);
    if (result < 0 && errno != EINTR) ::_exit(4);  // the parent is gone
    if (result > 0) sent += static_cast<std::size_t>(result);
  }
}

// Until the other end is closed; false when the time is over before.
bool receive(int descriptor, Clock::time_point until, std::string& text) {
  std::array<char, 4096> piece;
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd wait{descriptor, POLLIN, 0};
    const int ready = ::poll(&wait, 1, static_cast<int>(std::max<long long>(left, 0)));
    if (ready == 0) return false;
    if (ready < 0) continue;  // EINTR
    const ssize_t result = ::read(descriptor, piece.data(), piece.size());
    if (result == 0) return true;
    if (result > 0) text.append(piece.data(), static_cast<std::size_t>(result));
  }
}

constexpr char error_mark = '\1';  // what follows it is an uncaught exception

}  // namespace

ChildEnd run_in_child(
    const std::function<void(const std::function<void(const std::string&)>& say)>& body,
    std::chrono::seconds limit) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("no fork");
  if (child == 0) {
    ::close(ends[0]);
    std::string failure;
    try {
      body([&](const std::string& text) { send(ends[1], text); });
      ::_exit(0);
    } catch (const Error& error) {
      failure = std::string(error.what()) + " | " + error.hint();
    } catch (const std::exception& error) {
      failure = error.what();
    }
    send(ends[1], error_mark + failure);
    ::_exit(3);
  }
  ::close(ends[1]);
  ChildEnd end;
  end.timed_out = !receive(ends[0], Clock::now() + limit, end.said);
  ::close(ends[0]);
  if (end.timed_out) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  end.finished = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  if (const std::size_t mark = end.said.find(error_mark); mark != std::string::npos) {
    end.uncaught = end.said.substr(mark + 1);
    end.said.resize(mark);
  }
  return end;
}

}  // namespace spillway::test
