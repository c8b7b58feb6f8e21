#include "base/errors.hpp"

#include <fmt/core.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/text.hpp"

namespace spillway {

InputError::InputError(const std::string& file, int line, const Message& what, Message hint)
    : Error(Message(file.empty() ? ""
                    : line > 0   ? fmt::format("{}:{}: ", file, line)
                                 : file + ": ") +
                what,
            std::move(hint)) {}

namespace {

const char* remedy(int error_number) {
  switch (error_number) {
    case ENOSPC:
      return "the disk is full: free space there or name another directory";
    case EDQUOT:
      return "the disk quota is used up: free space there or name another directory";
    case EACCES:
    case EPERM:
      return "check the permissions, or choose a directory you own";
    case ENOENT:
      return "check the spelling of the path";
    case ENOTDIR:
      return "a part of the path is a file where a folder is expected";
    case EISDIR:
      return "this is a folder: name a file in it";
    case EROFS:
      return "the file system is mounted read-only: name another directory";
    case EIO:
      return "the device reported a read or write error: check `dmesg` and the drive's health";
    case ENOMEM:
      return "not enough memory or locked-memory limit: lower the limits given, or raise `ulimit "
             "-l`";
    case EMFILE:
      return "too many open files: raise `ulimit -n`";
    default:
      return "";
  }
}

}  // namespace

MachineError MachineError::from_errno(const Message& what, int error_number, Message hint) {
  if (hint.empty()) hint = remedy(error_number);
  return MachineError(what + (std::string(": ") + std::strerror(error_number)), std::move(hint));
}

void bug(const char* condition, const char* file, int line, const std::string& detail) {
  std::fprintf(stderr, "spillway: internal error: %s is false at %s:%d%s%s\n", condition, file,
               line, detail.empty() ? "" : ": ", printable(detail).c_str());
  std::abort();
}

}  // namespace spillway
