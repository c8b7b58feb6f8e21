// RUN/checkpoints: the weights of the last few of every K-th step, each a folder like one that
// `export` writes: step-000500, step-001000 ...
//
// A thread beside training writes them from the committed state in the store. A folder takes its
// name once it is complete and durable, and only then the oldest one goes: a crash leaves no fewer
// than there were. Where one cannot be written (the drive is full), training and its commits go on
// without it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/directory.hpp"
#include "exec/io/io_choice.hpp"
#include "exec/run/export_lock.hpp"

namespace spillway {

// Which steps a run keeps.
struct KeepRule {
  std::int64_t most = 0;   // folders; 0: none is kept
  std::int64_t every = 0;  // steps
};

// Of one step: what was written, or why it was not.
struct KeptStep {
  std::int64_t step = 0;
  std::filesystem::path folder;
  std::string error;  // empty: it is kept
};

class KeptCheckpoints {
 public:
  // `run`: the folder of the run, which is locked by its caller.
  KeptCheckpoints(const std::filesystem::path& run, KeepRule rule, RingFactory make_ring);
  // Ends the thread; what it is writing is given up.
  ~KeptCheckpoints();
  KeptCheckpoints(const KeptCheckpoints&) = delete;
  KeptCheckpoints& operator=(const KeptCheckpoints&) = delete;

  // `step` is the newest commit. Where it is one to be kept and is not yet, its state is held from
  // the return on (ExportLock) until it is written. From any thread; not while a step is held.
  void committed(std::int64_t step);
  // Returns once nothing is being written.
  void wait();
  // The step whose weights are being written.
  std::optional<std::int64_t> writing();
  // What has come to its end since the last call, in order.
  std::vector<KeptStep> news();

  static constexpr const char* folder_name = "checkpoints";

 private:
  void main();
  KeptStep keep(std::int64_t step);
  void remove_oldest();

  std::filesystem::path run_;
  KeepRule rule_;
  RingFactory make_ring_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::int64_t> held_;  // the step to be written, or being written
  std::optional<ExportLock> lock_;    // that holds it
  std::vector<KeptStep> news_;
  bool ending_ = false;
  std::thread thread_;
};

// RUN/checkpoints/step-000500; whether it is there with its weights; and the steps of all that are,
// ascending.
std::filesystem::path kept_folder(const std::filesystem::path& run, std::int64_t step);
bool is_kept(const std::filesystem::path& run, std::int64_t step);
std::vector<std::int64_t> kept_steps(const std::filesystem::path& run);

}  // namespace spillway
