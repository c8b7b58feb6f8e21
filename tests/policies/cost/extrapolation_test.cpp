// What of a prediction lies beyond the tables of a machine file, said; what lies between their
// rows, not.
#include "policies/cost/extrapolation.hpp"

#include <catch2/catch.hpp>

#include "policies/cost/shape_times.hpp"
#include "tests/policies/cost/problems.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

using Texts = std::vector<std::string>;

Texts texts_of(const Problem& problem, const std::vector<TaskKind>& kinds,
               bool extrapolated = false) {
  Extrapolation extrapolation(problem);
  for (const TaskKind kind : kinds) {
    Task task;
    task.kind = kind;
    TaskCost cost;
    cost.work = kind == TaskKind::read    ? Work::read
                : kind == TaskKind::write ? Work::write
                : kind == TaskKind::h2d   ? Work::h2d
                                          : Work::compute;
    cost.extrapolated = extrapolated;
    extrapolation.add(task, cost, {});
  }
  return extrapolation.texts();
}

Problem with_drives(std::int64_t count) {
  Problem problem = small_problem(round_machine());
  Machine::Ssd& ssd = problem.machine.ssd;
  ssd.by_count = {{1, {4e9, 2e9, 4e9}}, {4, {12e9, 8e9, 12e9}}};
  ssd.count = count;
  ssd.read = count > 4 ? 12e9 : 6e9;  // as the last row has it
  ssd.write = 8e9;
  return problem;
}

}  // namespace

TEST_CASE("More drives than the table has rows for are told where a task reads or writes them") {
  CHECK(texts_of(with_drives(2), {TaskKind::read}).empty());  // between two rows
  CHECK(texts_of(with_drives(8), {TaskKind::read}) ==
        Texts{"8 drives: ssd.by_count has rows for 1 to 4"});
  CHECK(texts_of(with_drives(8), {TaskKind::write}).size() == 1);
  CHECK(texts_of(with_drives(8), {TaskKind::h2d, TaskKind::forward}).empty());
  // Somebody knows the bandwidths of eight: nothing is told from the table.
  Problem known = with_drives(8);
  known.machine.ssd.read = 30e9;
  known.machine.ssd.write = 16e9;
  CHECK(texts_of(known, {TaskKind::read}).empty());
}

TEST_CASE("A queue depth outside of the rows is told, unless the last row has the full bandwidth") {
  Problem problem = small_problem(round_machine());
  Machine::Ssd& ssd = problem.machine.ssd;
  ssd.by_queue_depth = {{4, {0.6, 0.7, 0}}, {16, {0.9, 1, 0}}};
  for (const std::int64_t depth : {4, 8, 16}) {
    ssd.queue_depth = depth;
    CHECK(texts_of(problem, {TaskKind::read}).empty());
  }
  ssd.queue_depth = 2;
  CHECK(texts_of(problem, {TaskKind::read}) ==
        Texts{"queue depth 2: ssd.by_queue_depth has rows for 4 to 16"});
  ssd.queue_depth = 32;
  CHECK(texts_of(problem, {TaskKind::read}).size() == 1);
  ssd.by_queue_depth[16].read = 1;
  CHECK(texts_of(problem, {TaskKind::read}).empty());
}

TEST_CASE("Mixes measured at other queue depths are told where reads and writes mix") {
  Problem problem = small_problem(round_machine());
  Machine::Ssd& ssd = problem.machine.ssd;
  ssd.law = SsdLaw::mixed;
  ssd.read_share_by_depth = {{4, {{0.5, 1.2}}}, {16, {{0.5, 1.4}}}};
  ssd.queue_depth = 32;
  CHECK(texts_of(problem, {TaskKind::read}).empty());
  CHECK(texts_of(problem, {TaskKind::read, TaskKind::write}) ==
        Texts{"queue depth 32: ssd.by_read_share has rows for 4 to 16"});
  ssd.queue_depth = 16;
  CHECK(texts_of(problem, {TaskKind::read, TaskKind::write}).empty());
}

TEST_CASE("Kernels that were not measured at their shape are told by kind, once") {
  Problem problem = small_problem(cpu_machine(2));
  CHECK(texts_of(problem, {TaskKind::backward, TaskKind::forward, TaskKind::forward}, true) ==
        Texts{"kernels of forward, backward in micro-batches of 4 x 128 tokens: none is measured"});
  problem.machine.kernels.push_back({"forward", "another shape", 1e9, 1'000'000, 0, {}});
  CHECK(texts_of(problem, {TaskKind::forward}, true) ==
        Texts{"kernels of forward in micro-batches of 4 x 128 tokens: not measured at this shape"});
  CHECK(texts_of(problem, {TaskKind::forward}, false).empty());
}

TEST_CASE("Products outside of the table of shapes are told by tokens and by columns") {
  Problem problem = small_problem(round_machine());  // 128 columns
  auto& rows = problem.machine.gpu.by_shape;
  const std::int64_t tokens = sequences_of_kernel(problem) * problem.workload.sequence;
  rows = {
      {tokens / 2, 64, 0.5}, {tokens * 2, 64, 0.9}, {tokens / 2, 256, 0.6}, {tokens * 2, 256, 0.9}};
  CHECK(texts_of(problem, {TaskKind::forward}).empty());
  CHECK(texts_of(problem, {TaskKind::read}).empty());
  rows[3].tokens = tokens - 1;
  CHECK(texts_of(problem, {TaskKind::forward}) ==
        Texts{fmt::format("products of {} tokens: gpu.by_shape has rows for {} to {}", tokens,
                          tokens / 2, tokens - 1)});
  rows = {{tokens, 256, 0.6}, {tokens, 512, 0.9}};
  CHECK(texts_of(problem, {TaskKind::forward}) ==
        Texts{"layers of 128 columns: gpu.by_shape has rows for 256 to 512"});
  // Kernels that were measured at the very shape ask no table.
  problem.machine.kernels.push_back({"forward", "this shape", 1e9, 1'000'000, 0, {}});
  CHECK(texts_of(problem, {TaskKind::forward}).empty());
  CHECK(texts_of(problem, {TaskKind::forward}, true).size() == 2);
}

TEST_CASE("Collectives of more or fewer bytes than were measured are told by kind and mesh") {
  Problem problem = small_problem(round_machine());
  problem.machine.cluster.collectives = {{"all_gather", 8, 2, 1'000'000, 50e9},
                                         {"all_gather", 8, 2, 100'000'000, 90e9},
                                         {"all_reduce", 8, 2, 100'000'000, 90e9}};
  const std::vector<RankGroup> groups = {{Mesh{8, 2}}, {Mesh{4, 1}}};
  const auto told = [&](TaskKind kind, std::uint8_t group,
                        const std::vector<std::uint64_t>& sizes) {
    Extrapolation extrapolation(problem);
    for (const std::uint64_t bytes : sizes) {
      Task task;
      task.kind = kind;
      task.bytes = bytes;
      task.group = group;
      TaskCost cost;
      cost.work = Work::collective;
      extrapolation.add(task, cost, groups);
    }
    return extrapolation.texts();
  };
  CHECK(told(TaskKind::all_gather, 0, {1'000'000, 5'000'000, 100'000'000}).empty());
  CHECK(told(TaskKind::all_gather, 0, {5'000'000, 2'000'000'000}) ==
        Texts{"all_gather of 5.00 MB to 2.00 GB over 2 x 8 GPUs: cluster.collectives has rows for "
              "1.00 MB to 100.00 MB"});
  CHECK(told(TaskKind::all_reduce, 0, {2'000}).size() == 1);
  // Links tell the time of what has no rows.
  CHECK(told(TaskKind::all_gather, 1, {2'000'000'000}).empty());
  CHECK(told(TaskKind::reduce_scatter, 0, {2'000'000'000}).empty());
}
