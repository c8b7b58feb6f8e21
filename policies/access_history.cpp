#include "policies/access_history.hpp"

#include <iterator>

namespace spillway {

namespace {

Predecessors nobody() {
  Predecessors all;
  all.fill(none);
  return all;
}

}  // namespace

void AccessHistory::split(std::uint64_t at) {
  auto it = runs_.upper_bound(at);
  if (it == runs_.begin()) return;
  --it;
  if (it->first == at || it->second.end <= at) return;
  Run tail = it->second;
  it->second.end = at;
  runs_.emplace_hint(std::next(it), at, tail);
}

void AccessHistory::read(std::uint64_t begin, std::uint64_t end, TaskId task, Lane lane,
                         Predecessors& predecessors) {
  split(begin);
  split(end);
  std::uint64_t at = begin;
  for (auto it = runs_.lower_bound(begin); at < end; ++it) {
    // A gap was never written; remember the reader, so that a later write waits for it.
    const std::uint64_t next = it == runs_.end() || it->first >= end ? end : it->first;
    if (at < next) {
      Run run{next, none, Lane::host_sync, nobody()};
      it = runs_.emplace_hint(it, at, run);
    }
    Run& run = it->second;
    if (run.writer != none) wait_for(predecessors, run.writer_lane, run.writer);
    run.readers[static_cast<std::size_t>(lane)] = task;
    at = run.end;
  }
}

void AccessHistory::write(std::uint64_t begin, std::uint64_t end, TaskId task, Lane lane,
                          Predecessors& predecessors) {
  split(begin);
  split(end);
  auto it = runs_.lower_bound(begin);
  while (it != runs_.end() && it->first < end) {
    const Run& run = it->second;
    if (run.writer != none) wait_for(predecessors, run.writer_lane, run.writer);
    for (std::size_t l = 0; l < run.readers.size(); ++l) {
      if (run.readers[l] != none) wait_for(predecessors, static_cast<Lane>(l), run.readers[l]);
    }
    it = runs_.erase(it);
  }
  runs_.emplace_hint(it, begin, Run{end, task, lane, nobody()});
}

}  // namespace spillway
