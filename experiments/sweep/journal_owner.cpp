#include "experiments/sweep/journal_owner.hpp"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <fstream>

#include "base/errors.hpp"
#include "experiments/sweep/sweep_settings.hpp"

namespace spillway {

namespace {

constexpr std::size_t longest_host = 32, digits = 8;

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "host";
  std::string text(name.data());
  text = text.substr(0, std::min(text.find('.'), longest_host));
  for (char& c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '-';
  }
  return text.empty() ? "host" : text;
}

// Drawn by the kernel as it starts.
std::string boot_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  return file >> text ? text : random_word();
}

}  // namespace

std::string random_word() {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != sizeof random) {
    throw MachineError::from_errno("cannot get random bytes", errno);
  }
  return fmt::format("{:016x}", random);
}

std::string this_kernel() { return host_name() + "-" + hash_of(boot_identity()).substr(0, digits); }

}  // namespace spillway
