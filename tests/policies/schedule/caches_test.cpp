// Which operands of a layer's pass a CPU's caches hold, by what the tasks before have touched.
#include "policies/schedule/caches.hpp"

#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "policies/common/policy.hpp"

using namespace spillway;

namespace {

constexpr std::uint64_t mebi = std::uint64_t{1} << 20;

// Tasks on buffers that lie one after the other in each memory.
struct Written {
  std::vector<Task> tasks;
  std::vector<Access> accesses;
  std::vector<BufferInfo> buffers;

  BufferId buffer(Tier tier, std::uint64_t bytes) {
    BufferInfo info;
    info.tier = tier;
    info.bytes = bytes;
    for (const BufferInfo& other : buffers)
      if (other.tier == tier) info.offset += other.bytes;
    buffers.push_back(info);
    return static_cast<BufferId>(buffers.size() - 1);
  }

  std::size_t task(TaskKind kind, const std::vector<Access>& own) {
    Task task;
    task.kind = kind;
    task.first_access = static_cast<std::uint32_t>(accesses.size());
    task.access_count = static_cast<std::uint8_t>(own.size());
    accesses.insert(accesses.end(), own.begin(), own.end());
    tasks.push_back(task);
    return tasks.size() - 1;
  }

  Access all_of(BufferId buffer, Role role, Mode mode) const {
    return {buffer, role, mode, 0, buffers[buffer].bytes};
  }

  int cached(std::size_t task) {
    mark_cached_operands(tasks, accesses, buffers);
    return tasks[task].in_caches;
  }
};

}  // namespace

TEST_CASE("Parameters that were just used are in the caches, until as much else has moved") {
  Written w;
  const BufferId layer = w.buffer(Tier::gpu, 3 * mebi), other = w.buffer(Tier::gpu, cached_bytes),
                 more = w.buffer(Tier::host, mebi), file = w.buffer(Tier::ssd, 100 * mebi);
  const auto forward = [&] {
    return w.task(TaskKind::forward, {w.all_of(layer, Role::parameters, Mode::read)});
  };
  const auto touch = [&](BufferId buffer) {
    w.task(TaskKind::head, {w.all_of(buffer, Role::parameters, Mode::read)});
  };
  const std::size_t first = forward(), second = forward();
  touch(other);
  const std::size_t third = forward();  // the limit
  touch(other);
  touch(more);
  const std::size_t fourth = forward();
  touch(file);  // in no memory
  const std::size_t fifth = forward();
  CHECK(w.cached(first) == 0);
  CHECK(w.cached(second) == all_in_caches);
  CHECK(w.cached(third) == all_in_caches);
  CHECK(w.cached(fourth) == 0);
  CHECK(w.cached(fifth) == all_in_caches);
}

TEST_CASE("Operands count by their bytes, and what is written twice") {
  Written w;
  const BufferId parameters = w.buffer(Tier::gpu, 2 * mebi), gradient = w.buffer(Tier::gpu, mebi),
                 saved = w.buffer(Tier::gpu, 3 * mebi), scratch = w.buffer(Tier::gpu, mebi),
                 source = w.buffer(Tier::host, 2 * mebi);
  // Copied to the GPU, of which a CPU's caches keep a copy.
  w.task(TaskKind::h2d, {w.all_of(source, Role::source, Mode::read),
                         w.all_of(parameters, Role::destination, Mode::write)});
  const std::size_t backward =
      w.task(TaskKind::backward, {w.all_of(parameters, Role::parameters, Mode::read),
                                  w.all_of(gradient, Role::gradient, Mode::read_write),
                                  w.all_of(saved, Role::saved, Mode::read),
                                  w.all_of(scratch, Role::scratch, Mode::read_write)});
  CHECK(w.cached(backward) == 2);  // 2 MiB of 2 + 2 x 1 + 3
  const std::size_t head =
      w.task(TaskKind::head, {w.all_of(gradient, Role::gradient, Mode::write)});
  CHECK(w.cached(head) == 0);  // timed with one kernel
}

TEST_CASE("What a task moves beside its operands takes their place in the caches") {
  Written w;
  const BufferId parameters = w.buffer(Tier::gpu, 3 * mebi),
                 scratch = w.buffer(Tier::gpu, cached_bytes);
  const auto forward = [&](bool with_scratch) {
    std::vector<Access> own = {w.all_of(parameters, Role::parameters, Mode::read)};
    if (with_scratch) own.push_back(w.all_of(scratch, Role::scratch, Mode::read_write));
    return w.task(TaskKind::forward, own);
  };
  forward(true);
  const std::size_t kept = forward(false);  // the limit
  w.task(TaskKind::head, {w.all_of(parameters, Role::parameters, Mode::read)});
  forward(true);
  w.task(TaskKind::head, {w.all_of(w.buffer(Tier::host, mebi), Role::parameters, Mode::read)});
  const std::size_t lost = forward(false);
  CHECK(w.cached(kept) == all_in_caches);
  CHECK(w.cached(lost) == 0);
}

TEST_CASE("Slots that take turns keep parameters in the caches, and only a CPU is asked") {
  Problem problem;
  problem.model = load_model("gpt-small", {"layers=16"});
  problem.machine = load_machine("testbed");
  problem.machine.gpu.memory = 512 * mebi;
  problem.workload = {4, 2, 128, Precision::fp32, GradientWidth::automatic};
  const auto forward_in_caches = [&](const char* policy) {
    const Schedule schedule = build_schedule(problem, policy, 2);
    int cached = 0, count = 0;
    for (const Task& task : schedule.tasks()) {
      if (task.kind != TaskKind::forward) continue;
      cached += task.in_caches;
      ++count;
    }
    return static_cast<double>(cached) / count;
  };
  REQUIRE(problem.machine.gpu.is_cpu);
  const double resident = forward_in_caches("resident"), slots = forward_in_caches("fuyou");
  CHECK(resident < 0.6 * all_in_caches);
  CHECK(slots > 0.9 * all_in_caches);
  problem.machine.gpu.is_cpu = false;
  CHECK(forward_in_caches("fuyou") == 0);
}
