// What the I/O tests share: folders that clean up after themselves, small file systems, threads
// with less rights. Where the machine does not allow one, the caller says so with WARN and returns.
#pragma once

#include <linux/capability.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>

#include "base/errors.hpp"
#include "tests/temporary_folder.hpp"

namespace spillway::test {

// A file system of its own in a temporary folder; needs the right to mount.
class SmallFilesystem {
 public:
  SmallFilesystem(const char* type, const char* options)
      : mounted_(::mount("spillway-test", folder_.path().c_str(), type, 0, options) == 0) {
    if (!mounted_)
      reason_ = std::string("no right to mount a ") + type + ": " + std::strerror(errno);
  }
  ~SmallFilesystem() {
    if (mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  SmallFilesystem(const SmallFilesystem&) = delete;
  SmallFilesystem& operator=(const SmallFilesystem&) = delete;
  bool mounted() const { return mounted_; }
  const std::string& reason() const { return reason_; }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
  bool mounted_;
  std::string reason_;
};

// Runs `body` on a thread of its own and rethrows what it throws (Catch2 checks belong outside of
// it).
inline void on_thread(const std::function<void()>& body) {
  std::exception_ptr thrown;
  std::thread([&] {
    try {
      body();
    } catch (...) {
      thrown = std::current_exception();
    }
  }).join();
  if (thrown) std::rethrow_exception(thrown);
}

// The same without the superuser's rights: permissions and limits hold for this thread even as
// root.
inline void without_privileges(const std::function<void()>& body) {
  on_thread([&] {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
    if (::syscall(SYS_capset, &header, none) != 0) throw std::runtime_error("capset failed");
    body();
  });
}

inline void write_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline bool holds_nothing(const std::filesystem::path& folder) {
  return std::filesystem::directory_iterator(folder) == std::filesystem::directory_iterator();
}

// What `body` throws as `Failure`, as "message | hint"; fails the test when it throws nothing of
// the kind.
template <typename Failure>
std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Failure& failure) {
    return std::string(failure.what()) + " | " + failure.hint();
  }
  FAIL("nothing was thrown");
  return "";
}

}  // namespace spillway::test
