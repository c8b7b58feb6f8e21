#include "exec/run/run_identity.hpp"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cerrno>

#include "base/directory.hpp"
#include "base/errors.hpp"
#include "exec/run/saved_run.hpp"

namespace spillway {

namespace fs = std::filesystem;

namespace {

// statfs(2) and the sources of the file systems themselves.
constexpr std::array<long, 9> shared_file_systems = {
    0x6969,      // NFS
    0x517B,      // SMB
    0xFF534D42,  // CIFS
    0xFE534D42,  // SMB2
    0x65735546,  // FUSE: sshfs, s3fs, GlusterFS
    0x0BD00BD0,  // Lustre
    0x47504653,  // GPFS
    0x00C36400,  // Ceph
    0x01021997,  // 9P
};

bool may_be_shared(int descriptor) {
  struct statfs status {};
  if (::fstatfs(descriptor, &status) != 0) return true;
  return std::find(shared_file_systems.begin(), shared_file_systems.end(),
                   static_cast<long>(status.f_type)) != shared_file_systems.end();
}

}  // namespace

RunId new_run_id() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw MachineError::from_errno("cannot get random bytes", errno);
  }
  std::string id;
  for (const unsigned char byte : bytes) id += fmt::format("{:02x}", byte);
  return id;
}

bool is_run_id(const std::string& text) {
  return text.size() == 32 && std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isdigit(c) != 0 || (c >= 'a' && c <= 'f');
         });
}

Surroundings this_computer() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) name[0] = '?';
  return {name.data(), may_be_shared};
}

RunHome home_of(const fs::path& folder, const Surroundings& here) {
  return home_of(Directory(folder), here);
}

RunHome home_of(const Directory& directory, const Surroundings& here) {
  struct stat status {};
  struct statfs system {};
  if (::fstat(directory.descriptor(), &status) != 0 ||
      ::fstatfs(directory.descriptor(), &system) != 0) {
    throw MachineError::from_errno("cannot look at " + directory.path().string(), errno);
  }
  return {here.host, directory.path().string(), std::bit_cast<std::uint64_t>(system.f_fsid),
          status.st_ino};
}

RunId id_of_run_in(const fs::path& folder) {
  try {
    return SavedRun::load(Directory(folder)).id;
  } catch (const Error&) {
    return {};
  }
}

Relation relation(const RunHome& written_down, const RunHome& now, const RunId& id) {
  if (written_down.file_system == now.file_system && written_down.inode == now.inode)
    return Relation::same;
  if (written_down.host != now.host) return Relation::unknown;
  if (written_down.path == now.path) return Relation::put_back;
  return id_of_run_in(written_down.path) == id ? Relation::copied : Relation::moved;
}

std::string to_text(const RunHome& home) {
  if (home.path.empty()) return "a training without a run folder";
  return fmt::format("{}:{}", home.host, home.path);
}

RunIdentity homeless_run() { return {new_run_id(), {}}; }

}  // namespace spillway
