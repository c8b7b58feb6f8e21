// Collectives of several ranks as another program makes them: module by module, in buckets, with
// gradients in its own width; and what its host does between backward and the updates.
#pragma once

#include <span>
#include <vector>

#include "policies/framework/framework.hpp"
#include "policies/schedule/rewriting.hpp"

namespace spillway {

// Those of one purpose that go together, until they are as large as a bucket.
class JoinedCollectives {
 public:
  // Of `bytes` at most; 0: each by itself.
  JoinedCollectives(Rewriting& again, std::uint64_t bytes) : again_(again), most_(bytes) {}
  void add(const Task& task, std::span<const Access> accesses);
  // Emits what waits for others.
  void flush();
  // What the last of them read, and whose memory nothing is to take before the next one: a program
  // that reduces in buckets has two.
  const std::vector<Access>& held() const { return held_; }
  void let_go() { held_.clear(); }

 private:
  Rewriting& again_;
  std::uint64_t most_;
  Task task_;
  std::vector<Access> accesses_, held_;
};

class RankCollectives {
 public:
  // Keeps references to all of them.
  RankCollectives(Rewriting& again, const Framework& framework, const Problem& problem);

  // Gradients on the GPU take what they take in the other program's sums.
  void shrink_gradients();
  void pass(HostPoint point);
  // A collective of the schedule.
  void add(Task task, std::span<const Access> accesses);
  // Called before any other task: emits what it uses or waits for.
  void before(const Task& task);
  // The accesses of a task that is emitted next, with what it holds.
  std::span<const Access> holding(const Task& task, std::span<const Access> accesses);
  void flush();

 private:
  Rewriting& again_;
  const Framework& framework_;
  const Problem& problem_;
  std::uint64_t width_, summed_;  // bytes of a gradient in the schedule, and in the other's sums
  JoinedCollectives reduced_, spread_;
  std::vector<Access> holding_;
};

}  // namespace spillway
