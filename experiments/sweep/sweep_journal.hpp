// The results of a sweep on disk: a folder of journals, one line a point, that survive a kill at
// any moment.
//
// FOLDER/parts/NAME.journal, each line `IDENTITY CHECKSUM RESULT\n` with RESULT one JSON object.
// One process appends to a journal, any number read it. A line is one write(): a process that is
// killed loses nothing it wrote. The file is synced every few seconds and at the end: a machine
// that loses power loses the last seconds, whose points are run again. A line that is torn or
// damaged, or is being written while it is read, fails its checksum and is dropped.
//
// Who appends holds a lock on the file (flock). Several hosts may share the folder, and a shared
// file system may keep a lock from the other hosts, or know none. So the names of a sweep's
// journals hold that of the running kernel, within which locks hold (journal_owner.hpp), and where
// there are no locks a process appends to a new file that no other has.
#pragma once

#include <chrono>
#include <filesystem>
#include <mutex>
#include <string>
#include <unordered_map>

namespace spillway {

using SweepResults = std::unordered_map<std::string, std::string>;  // identity -> JSON text

// All results in the journals of a sweep's folder; none where there is no such folder. `damaged`
// counts the lines that were dropped. Throws MachineError.
SweepResults read_journals(const std::filesystem::path& folder, std::size_t* damaged = nullptr);

// Those of one journal; none where there is no such file. Throws MachineError, and InputError where
// the file is no journal.
SweepResults read_journal(const std::filesystem::path& path, std::size_t* damaged = nullptr);

// Whether the folder is that of a sweep: results and pictures in it are written over.
bool holds_journals(const std::filesystem::path& folder);

class SweepJournal {
 public:
  // Creates the folder and the journal, or goes on with it; a torn end is cut off. On a file system
  // without locks it is a new one, `name` with a random ending. Throws InputError where another
  // process writes to it, MachineError where it cannot be written.
  SweepJournal(const std::filesystem::path& folder, const std::string& name);
  // The journal at a path of its own, in a folder that is there; it needs locks.
  explicit SweepJournal(const std::filesystem::path& path);
  ~SweepJournal();
  SweepJournal(const SweepJournal&) = delete;
  SweepJournal& operator=(const SweepJournal&) = delete;

  // Any thread. Throws MachineError (disk full, ...); what was appended before is whole.
  void append(const std::string& identity, const std::string& json);
  // Makes everything appended durable. Throws MachineError.
  void sync();

 private:
  [[noreturn]] void fail(const std::string& what, int error_number) const;
  // Opens path_. False, with nothing open, where the file system has no locks.
  bool open_locked();
  void open_as_new(const std::string& name);
  void cut_torn_line();
  void close() noexcept;
  void sync_locked();

  std::mutex mutex_;
  std::filesystem::path path_;
  int file_ = -1;
  std::int64_t length_ = 0;  // of whole lines
  std::chrono::steady_clock::time_point synced_;
};

}  // namespace spillway
