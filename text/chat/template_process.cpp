#include "text/chat/template_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/errors.hpp"
#include "base/text.hpp"

namespace spillway {

namespace embedded {
const std::vector<std::pair<std::string, std::string>>& chat_files();
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t most_first_reply = 1 << 16;

// Debian's, which sees what apt installs, before those on PATH.
std::vector<std::string> pythons() {
  std::vector<std::string> found = {"/usr/bin/python3"};
  const char* const path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    if (rest.starts_with('/')) found.push_back(std::string(rest.substr(0, end)) + "/python3");
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  std::vector<std::string> usable;
  for (const std::string& one : found) {
    const bool is_new = std::find(usable.begin(), usable.end(), one) == usable.end();
    if (is_new && ::access(one.c_str(), X_OK) == 0) usable.push_back(one);
  }
  return usable;
}

// Both ends closed in other programs that this one starts, and neither of them waits.
std::array<FileDescriptor, 2> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw MachineError::from_errno("cannot make a pipe for the chat template", errno);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

void do_not_wait(const FileDescriptor& file) { ::fcntl(file.get(), F_SETFL, O_NONBLOCK); }

// A pipe whose reader has gone must not end this program: blocks SIGPIPE in this thread, and takes
// the one that a write may have brought.
class WithoutPipeSignal {
 public:
  WithoutPipeSignal() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  WithoutPipeSignal(const WithoutPipeSignal&) = delete;
  WithoutPipeSignal& operator=(const WithoutPipeSignal&) = delete;
  ~WithoutPipeSignal() {
    if (::sigismember(&before_, SIGPIPE) == 1) return;
    const timespec now{0, 0};
    while (::sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) continue;
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_, before_;
};

struct Ended {};  // the child has closed its end
struct Late {};   // it took too long

void wait_for(int descriptor, short events, Clock::time_point deadline) {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) throw Late{};
    pollfd file{descriptor, events, 0};
    const int ready = ::poll(&file, 1, static_cast<int>(left));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR)
      throw MachineError::from_errno("cannot wait for the chat template", errno);
  }
}

void write_all(int descriptor, std::string_view bytes, Clock::time_point deadline) {
  const WithoutPipeSignal without;
  while (!bytes.empty()) {
    wait_for(descriptor, POLLOUT, deadline);
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count > 0) bytes.remove_prefix(static_cast<std::size_t>(count));
    if (count < 0 && errno != EINTR && errno != EAGAIN) throw Ended{};
  }
}

void read_all(int descriptor, char* bytes, std::size_t size, Clock::time_point deadline) {
  while (size > 0) {
    wait_for(descriptor, POLLIN, deadline);
    const ssize_t count = ::read(descriptor, bytes, size);
    if (count == 0) throw Ended{};
    if (count < 0 && errno != EINTR && errno != EAGAIN) throw Ended{};
    if (count < 0) continue;
    bytes += count;
    size -= static_cast<std::size_t>(count);
  }
}

}  // namespace

TemplateProcess::TemplateProcess(const std::string& first, std::chrono::seconds time)
    : time_(time) {
  for (const std::string& python : pythons())
    if (start(python, first)) return;
  throw InputError("a model's own chat template needs python3 with jinja2, which are not installed",
                   "apt-get install python3-jinja2 (or: pip install jinja2), or take a built-in "
                   "template: " +
                       Setting{"chat_template", "chatml"});
}

TemplateProcess::~TemplateProcess() { end(); }

bool TemplateProcess::start(const std::string& python, const std::string& first) {
  auto to_child = make_pipe(), from_child = make_pipe();
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, to_child[0].get(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, from_child[1].get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  // The program's environment may hold secrets: a template has no need of them.
  std::vector<std::string> environment = {"LANG=C.UTF-8"};
  for (const char* name : {"PATH", "HOME", "LD_LIBRARY_PATH"})
    if (const char* value = std::getenv(name))
      environment.push_back(std::string(name) + "=" + value);
  std::string script = embedded::chat_files().at(0).second, isolated = "-I", option = "-c",
              program = python;
  std::array<char*, 5> arguments = {program.data(), isolated.data(), option.data(), script.data(),
                                    nullptr};
  std::vector<char*> variables;
  for (std::string& one : environment) variables.push_back(one.data());
  variables.push_back(nullptr);
  const int failure =
      ::posix_spawn(&child_, python.c_str(), &actions, nullptr, arguments.data(), variables.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) {
    child_ = -1;
    return false;
  }
  to_ = std::move(to_child[1]);
  from_ = std::move(from_child[0]);
  do_not_wait(to_);
  do_not_wait(from_);
  to_child[0] = FileDescriptor();
  from_child[1] = FileDescriptor();
  try {
    reply_ = exchange(first, most_first_reply);
  } catch (const Ended&) {
    end();
    return false;
  } catch (const Late&) {
    end();
    throw InputError(fmt::format("the chat template is not compiled after {} s", time_.count()),
                     "the template asks for too much, or this machine is very busy");
  }
  const bool has_jinja = reply_.find("\"missing\"") == std::string::npos;
  if (!has_jinja) end();
  return has_jinja;
}

std::string TemplateProcess::exchange(const std::string& message, std::uint64_t most_bytes) {
  const Clock::time_point deadline = Clock::now() + time_;
  const auto size = static_cast<std::uint32_t>(message.size());
  char head[sizeof size];
  std::memcpy(head, &size, sizeof size);
  write_all(to_.get(), {head, sizeof head}, deadline);
  write_all(to_.get(), message, deadline);
  std::uint32_t length = 0;
  read_all(from_.get(), reinterpret_cast<char*>(&length), sizeof length, deadline);
  if (length > most_bytes)
    throw InputError(fmt::format("the chat template wrote {} bytes, more than it may", length),
                     "is this the right template?");
  std::string answer(length, '\0');
  read_all(from_.get(), answer.data(), answer.size(), deadline);
  return answer;
}

std::string TemplateProcess::ask(const std::string& message, std::uint64_t most_bytes) {
  SPILLWAY_ASSERT(child_ >= 0, "the process of a chat template has ended before");
  try {
    return exchange(message, most_bytes);
  } catch (const InputError&) {
    end();
    throw;
  } catch (const Late&) {
    end();
    throw InputError(fmt::format("the chat template took longer than {} s", time_.count()),
                     "the template does not end, or this machine is very busy");
  } catch (const Ended&) {
    end();
    throw InputError("the process of the chat template has ended",
                     "the template used more than it may have, or somebody ended the process");
  }
}

void TemplateProcess::end() noexcept {
  to_ = FileDescriptor();
  from_ = FileDescriptor();
  if (child_ < 0) return;
  ::kill(child_, SIGKILL);
  while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) continue;
  child_ = -1;
}

}  // namespace spillway
