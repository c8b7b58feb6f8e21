// Journals: nothing that was written is lost, nothing torn is believed.
#include "experiments/sweep/sweep_journal.hpp"

#include <sched.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <fstream>
#include <set>
#include <thread>

#include "experiments/sweep/journal_owner.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/refused_calls.hpp"
#include "tests/temporary_folder.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;

fs::path journal_in(const test::TemporaryFolder& folder) {
  return folder / "parts" / "all.journal";
}

const std::string one(32, '1'), two(32, '2'), three(32, '3');

void add(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::app) << text;
}

TEST_CASE("what is appended is read back, from all journals of a folder") {
  const test::TemporaryFolder folder;
  CHECK(read_journals(folder.path()).empty());
  {
    SweepJournal all(folder.path(), "all"), shard(folder.path(), "shard-1-of-2");
    all.append(one, R"({"a":1})");
    shard.append(two, R"({"a":2})");
  }
  std::size_t damaged = 99;
  CHECK(read_journals(folder.path(), &damaged) ==
        SweepResults{{one, R"({"a":1})"}, {two, R"({"a":2})"}});
  CHECK(damaged == 0);
}

TEST_CASE("cut off anywhere, a journal gives its whole lines, and goes on after them") {
  const test::TemporaryFolder folder;
  {
    SweepJournal journal(folder.path(), "all");
    journal.append(one, R"({"a":1})");
    journal.append(two, R"({"a":2})");
  }
  const auto whole = fs::file_size(journal_in(folder));
  const auto line = whole / 2;
  for (auto length = line; length < whole; ++length) {
    fs::resize_file(journal_in(folder), length);
    INFO("cut at " << length << " of " << whole);
    std::size_t damaged = 99;
    CHECK(read_journals(folder.path(), &damaged) == SweepResults{{one, R"({"a":1})"}});
    CHECK(damaged == (length > line ? 1 : 0));
    SweepJournal journal(folder.path(), "all");
    CHECK(fs::file_size(journal_in(folder)) == line);
    journal.append(two, R"({"a":2})");
    CHECK(read_journals(folder.path(), &damaged).size() == 2);
    CHECK(damaged == 0);
  }
}

TEST_CASE("a line with a byte changed is dropped, the others stay") {
  const test::TemporaryFolder folder;
  {
    SweepJournal journal(folder.path(), "all");
    for (const std::string& identity : {one, two, three}) journal.append(identity, R"({"a":7})");
  }
  const auto line = static_cast<std::streamoff>(fs::file_size(journal_in(folder)) / 3);
  for (std::streamoff at = line; at < 2 * line - 1; ++at) {
    std::fstream file(journal_in(folder), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char before = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(before ^ 1));
    file.close();
    std::size_t damaged = 0;
    const SweepResults results = read_journals(folder.path(), &damaged);
    INFO("byte " << at);
    CHECK(results.count(one) == 1);
    CHECK(results.count(two) == 0);
    CHECK(results.count(three) == 1);
    CHECK(damaged >= 1);
    std::fstream back(journal_in(folder), std::ios::in | std::ios::out | std::ios::binary);
    back.seekp(at);
    back.put(before);
  }
}

TEST_CASE("lines that are none of ours are dropped") {
  const test::TemporaryFolder folder;
  { SweepJournal(folder.path(), "all").append(one, "{}"); }
  add(journal_in(folder), "\nnonsense\n" + std::string(200, 'x') + "\n");
  std::size_t damaged = 0;
  CHECK(read_journals(folder.path(), &damaged).size() == 1);
  CHECK(damaged == 3);
}

TEST_CASE("two writers of one journal are refused") {
  const test::TemporaryFolder folder;
  const SweepJournal first(folder.path(), "all");
  check_error([&] { SweepJournal(folder.path(), "all"); },
              journal_in(folder).string() + ": another process is writing here", "shard = 1/2");
}

TEST_CASE("on a file system without locks every writer has a journal of its own") {
  for (const int error_number : {ENOSYS, EOPNOTSUPP, ENOLCK}) {
    const test::TemporaryFolder folder;
    bool refused = false;
    std::thread([&] {
      refused = test::refuse_call(SYS_flock, static_cast<unsigned>(error_number));
      if (!refused) return;
      SweepJournal first(folder.path(), "all"), second(folder.path(), "all");
      first.append(one, R"({"a":1})");
      second.append(two, R"({"a":2})");
      first.append(three, R"({"a":3})");
    }).join();
    if (!refused) {
      WARN("this kernel takes no seccomp filter");
      return;
    }
    std::size_t damaged = 99;
    CHECK(read_journals(folder.path(), &damaged) ==
          SweepResults{{one, R"({"a":1})"}, {two, R"({"a":2})"}, {three, R"({"a":3})"}});
    CHECK(damaged == 0);
  }
}

TEST_CASE("a journal at a path of its own is refused where there are no locks") {
  const test::TemporaryFolder folder;
  bool refused = false;
  std::string message;
  std::thread([&] {
    refused = test::refuse_call(SYS_flock, ENOSYS);
    try {
      SweepJournal(folder / "prices.journal");
    } catch (const MachineError& error) {
      message = error.what();
    }
  }).join();
  if (refused) CHECK_THAT(message, Catch::Contains("prices.journal: cannot lock"));
}

TEST_CASE("a journal's owner is this host and this start of its kernel") {
  const std::string here = this_kernel();
  CHECK(here == this_kernel());
  CHECK(here.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") ==
        std::string::npos);
  std::set<std::string> words;
  for (int i = 0; i < 100; ++i) words.insert(random_word());
  CHECK(words.size() == 100);
  const auto called = [](const std::string& name) {
    std::string kernel;
    std::thread([&] {
      if (::unshare(CLONE_NEWUTS) == 0 && ::sethostname(name.data(), name.size()) == 0)
        kernel = this_kernel();
    }).join();
    return kernel;
  };
  const std::string other = called("node-7.cluster.example");
  if (other.empty()) {
    WARN("this user cannot give a thread another host name");
    return;
  }
  CHECK_THAT(other, Catch::StartsWith("node-7-"));
  // A path is not left by it.
  CHECK_THAT(called("../../a b"), !Catch::Contains("/") && !Catch::Contains(" "));
  CHECK(this_kernel() == here);
}

}  // namespace
}  // namespace spillway
