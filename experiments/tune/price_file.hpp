// A file of prices, so that a search that was stopped goes on where it was: one line a plan, which
// survives a kill at any moment.
//
// A line is `IDENTITY CHECKSUM RESULT` as in journals of sweeps (sweep_journal.hpp), its identity
// that of the program, the problem and the plan. The search itself is not in the file: the same
// search asks for the same prices, and finds those that are known at once.
#pragma once

#include <filesystem>
#include <string>

#include "experiments/sweep/sweep_journal.hpp"
#include "experiments/tune/pricer.hpp"

namespace spillway {

class PriceFile : public PriceJournal {
 public:
  // Goes on with the file, or begins it. `program`: which program computes the prices; those of
  // another are not used. Throws InputError where the file is something else or another process
  // writes to it, MachineError where it cannot be written.
  PriceFile(const std::filesystem::path& path, std::string program);

  bool find(const std::string& key, TrialPrice& price) override;
  void add(const std::string& key, const TrialPrice& price) override;

  std::size_t known() const { return known_.size(); }  // lines, when it was opened

 private:
  std::string identity_of(const std::string& key) const;

  const std::string program_;
  const SweepResults known_;
  SweepJournal journal_;
};

}  // namespace spillway
