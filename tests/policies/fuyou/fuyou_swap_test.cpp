// What fuyou swaps, as its schedules show it: which tensors leave, when, how far, and that they
// come back; and the pieces in which it updates.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include <map>
#include <set>

#include "policies/fuyou/swap_plan.hpp"
#include "policies/model/operators.hpp"
#include "tests/policies/check_schedule.hpp"
#include "tests/policies/races.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

constexpr int last_step = 1;

Schedule steps_of(const Problem& problem, const std::string& policy) {
  return build_schedule(problem, policy, last_step + 1);
}

// The copies of saved tensors of one kind in the last step, in order.
std::vector<Task> saved_copies(const Schedule& schedule, TaskKind kind) {
  std::vector<Task> found;
  for (const Task& task : schedule.tasks()) {
    if (task.step != last_step || task.kind != kind) continue;
    const Access& destination = schedule.accesses(task)[1];
    if (schedule.buffers()[destination.buffer].kind == BufferKind::saved) found.push_back(task);
  }
  return found;
}

std::uint64_t bytes_of(const std::vector<Task>& tasks) {
  std::uint64_t bytes = 0;
  for (const Task& task : tasks) bytes += task.bytes;
  return bytes;
}

// By layer, what forward saves in the last step; backward must find just that.
std::vector<SavedMask> masks_of(const Schedule& schedule) {
  std::vector<SavedMask> masks(static_cast<std::size_t>(schedule.problem().model.layers));
  for (const Task& task : schedule.tasks()) {
    if (task.step != last_step) continue;
    SavedMask& mask = masks[static_cast<std::size_t>(std::max(task.layer, 0)) % masks.size()];
    if (task.kind == TaskKind::forward) mask = task.saves;
    if (task.kind == TaskKind::backward) CHECK(task.available == mask);
  }
  return masks;
}

Problem paper_problem(std::int64_t batch, const std::vector<std::string>& machine = {}) {
  Problem problem;
  problem.model = load_model("gpt-13b");
  problem.machine = load_machine("rtx4090-12ssd", machine);
  problem.workload = {batch, batch, 1024, Precision::bf16, GradientWidth::automatic};
  return problem;
}

}  // namespace

TEST_CASE("A saved buffer holds the tensors of its mask one after the other, sequences in a row") {
  const Problem problem = tiny_problem(1, 1);
  const auto whole = saved_layout(problem, gpt_saved::all, 1);
  REQUIRE(whole.size() == 8);
  for (int mask = 0; mask < 256; ++mask) {
    for (const std::int64_t sequences : {1, 3}) {
      std::uint64_t next = 0;
      std::uint8_t present = 0;
      for (const SavedLayout& tensor :
           saved_layout(problem, static_cast<SavedMask>(mask), sequences)) {
        CHECK(tensor.offset == next);
        CHECK(tensor.offset % 4096 == 0);
        const std::uint64_t columns = static_cast<std::uint64_t>(tensor.width);
        CHECK(tensor.stride == 16 * columns * (tensor.tensor == gpt_saved::statistics ? 4 : 2));
        const std::uint64_t exact = tensor.stride * static_cast<std::uint64_t>(sequences);
        CHECK(tensor.bytes == (exact + 4095) / 4096 * 4096);
        next = tensor.offset + tensor.bytes;
        present = static_cast<std::uint8_t>(present | tensor.tensor);
      }
      CHECK(present == mask);
      CHECK(saved_bytes(problem, static_cast<SavedMask>(mask), sequences) == next);
    }
  }
}

TEST_CASE("The key of a measured kernel tells every set of saved tensors from every other") {
  const Problem problem = tiny_problem(1, 1);
  std::set<std::string> forward, backward;
  for (int mask = 0; mask < 256; ++mask) {
    Task task;
    task.kind = TaskKind::forward;
    task.saves = static_cast<SavedMask>(mask);
    forward.insert(kernel_shape(problem, task));
    task.kind = TaskKind::backward;
    task.available = static_cast<SavedMask>(mask);
    backward.insert(kernel_shape(problem, task));
  }
  CHECK(forward.size() == 256);
  CHECK(backward.size() == 256);
}

TEST_CASE("swap=none recomputes whole layers, or what backward needs, and swap=all nothing") {
  const Problem problem = tiny_problem(4, 2);
  const double layer = problem.model.layer_forward_flops(2, 16);
  const auto backward_flops = [&](const std::string& policy) {
    std::set<double> flops;
    for (const Task& task : steps_of(problem, policy).tasks())
      if (task.kind == TaskKind::backward) flops.insert(task.flops);
    return flops;
  };
  using Flops = std::set<double>;
  CHECK(backward_flops("fuyou:swap=none") == Flops{3 * layer});
  const double down_projection = 2.0 * 2 * 16 * 32 * 128;
  CHECK(backward_flops("fuyou:swap=none,recompute=needed") == Flops{3 * layer - down_projection});
  CHECK(backward_flops("fuyou:swap=0") == Flops{3 * layer - down_projection});
  CHECK(backward_flops("fuyou:swap=all") == Flops{2 * layer});
}

TEST_CASE("Every swapped tensor leaves once and comes back once, but for the last layer's") {
  for (const int layers : layer_grid) {
    for (const int micro_batches : {1, 3}) {
      const Problem problem = tiny_problem(layers, micro_batches);
      for (const char* swap : {"all", "0.3", "0.7", "100KiB"}) {
        INFO(layers << " layers, " << micro_batches << " micro-batches, swap " << swap);
        const Schedule schedule =
            steps_of(problem, fmt::format("fuyou:checkpoints_ssd=0,swap={}", swap));
        std::uint64_t tensors = 0, bytes = 0;
        const auto masks = masks_of(schedule);
        for (std::size_t layer = 0; layer + 1 < masks.size(); ++layer) {
          for (const SavedLayout& tensor : saved_layout(problem, masks[layer], 2)) {
            ++tensors;
            bytes += tensor.bytes;
          }
        }
        for (const TaskKind kind : {TaskKind::d2h, TaskKind::h2d}) {
          const auto copies = saved_copies(schedule, kind);
          CHECK(copies.size() == tensors * static_cast<std::uint64_t>(micro_batches));
          CHECK(bytes_of(copies) == bytes * static_cast<std::uint64_t>(micro_batches));
        }
        CHECK(saved_copies(schedule, TaskKind::write).empty());
      }
    }
  }
}

TEST_CASE("A fraction or a number of bytes swaps no more than that, by falling benefit") {
  const Problem problem = tiny_problem(7, 1);
  const auto in_order = by_benefit(swap_operators(problem));
  double all = 0;
  for (const SwapOperator& one : in_order) all += one.bytes;
  std::size_t before = 0;
  for (int percent = 0; percent <= 100; percent += 5) {
    const double amount = percent / 100.0;
    const auto expected = swaps_within(in_order, amount * all);
    CHECK(expected.size() >= before);
    before = expected.size();
    const auto masks = swap_masks(expected, 7);
    CHECK(masks_of(steps_of(problem, fmt::format("fuyou:swap={:g}", amount))) == masks);
    CHECK(masks_of(steps_of(problem, fmt::format("fuyou:swap={}B", static_cast<std::uint64_t>(
                                                                       amount * all)))) == masks);
  }
  CHECK(before == in_order.size());
}

TEST_CASE("What overflows to the SSD is what was produced first, tensor by tensor") {
  const Problem problem = tiny_problem(7, 1);
  for (const double fraction : {0.0, 0.1, 0.35, 0.5, 1.0}) {
    INFO("fraction " << fraction);
    const Schedule schedule =
        steps_of(problem, fmt::format("fuyou:swap=all,checkpoints_ssd={:g}", fraction));
    // Layers' inputs and tensors in the order in which they leave the GPU within a layer.
    std::vector<std::pair<int, std::uint64_t>> left, overflowed;
    for (const Task& task : schedule.tasks()) {
      if (task.step != last_step) continue;
      const BufferKind kind = task.access_count == 2
                                  ? schedule.buffers()[schedule.accesses(task)[0].buffer].kind
                                  : BufferKind::scratch;
      if (kind != BufferKind::saved && kind != BufferKind::checkpoint) continue;
      if (task.kind == TaskKind::d2h) left.emplace_back(task.layer, task.bytes);
      if (task.kind == TaskKind::write) overflowed.emplace_back(task.layer, task.bytes);
    }
    std::stable_sort(left.begin(), left.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::stable_sort(overflowed.begin(), overflowed.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    REQUIRE(left.size() == 6 * 9);
    REQUIRE(overflowed.size() <= left.size());
    double all = 0, gone = 0, largest = 0;
    for (const auto& one : left) all += static_cast<double>(one.second);
    for (const auto& one : left) largest = std::max(largest, static_cast<double>(one.second));
    // What the last of them made is used again before it could return: it stays in host memory.
    double soon = 0;
    for (const auto& one : left)
      soon += one.first == left.back().first ? static_cast<double>(one.second) : 0;
    for (std::size_t i = 0; i < overflowed.size(); ++i) {
      CHECK(overflowed[i] == left[i]);
      gone += static_cast<double>(overflowed[i].second);
    }
    CHECK(std::abs(gone - std::min(fraction * all, all - soon)) <= largest / 2);
  }
}

TEST_CASE(
    "With swap=auto the cost model decides: more where the GPU is the limit, less on fewer SSDs") {
  const auto swapped = [](const Problem& problem) {
    double bytes = 0;
    for (const SavedMask mask : masks_of(steps_of(problem, "fuyou:swap=auto")))
      bytes += static_cast<double>(saved_bytes(problem, mask));
    return bytes;
  };
  // 13B: at batch 8 to 32 backward waits for the SSD, whatever the GPU recomputes; at 64 it does
  // not.
  CHECK(swapped(paper_problem(8)) == 0);
  const double at_64 = swapped(paper_problem(64));
  CHECK(at_64 > 0);
  CHECK(swapped(paper_problem(64, {"ssd.count=3"})) < at_64);
  CHECK(swapped(paper_problem(64, {"pcie.h2d=5GB/s", "pcie.d2h=5GB/s"})) < at_64);
  CHECK(swapped(paper_problem(64, {"gpu.flops=1000TFLOPS"})) == 0);
  // One whole tensor of one layer, or nothing: as the masks show; and it is Algorithm 1's choice.
  const Problem problem = paper_problem(64);
  const SwapModel model = swap_model(problem, Costs(problem), 1e15);
  const auto chosen =
      choose_swaps(model, by_benefit(swap_operators(problem)), model.inter_block_bytes,
                   40 * recompute_flops(problem, saved_none, false));
  double most = 0;
  for (const SwapOperator& one : chosen) most += one.bytes;
  CHECK(at_64 <= most);
}

TEST_CASE("swap=auto takes no more than fits where recomputing everything would") {
  for (const std::int64_t batch : {1, 8, 32, 48, 64, 96, 128}) {
    for (const char* gpu : {"12GB", "16GB", "24GB"}) {
      for (const char* host : {"128GB", "768GB"}) {
        INFO("batch " << batch << ", GPU " << gpu << ", host " << host);
        const Problem problem = paper_problem(
            batch, {fmt::format("gpu.memory={}", gpu), fmt::format("host.memory={}", host)});
        if (!build_schedule(problem, "fuyou:swap=none", 2).fits()) continue;
        CHECK(build_schedule(problem, "fuyou:swap=auto", 2).fits());
      }
    }
  }
}

namespace {

// Reads and writes of optimizer state, in program order.
std::string state_order(const std::string& policy) {
  std::string text;
  const Schedule schedule = steps_of(tiny_problem(3, 1), policy);
  for (const Task& task : schedule.tasks()) {
    if (task.step != last_step || (task.kind != TaskKind::read && task.kind != TaskKind::write))
      continue;
    const BufferInfo& from = schedule.buffers()[schedule.accesses(task)[0].buffer];
    if (from.kind == BufferKind::optimizer_state)
      text += fmt::format("{}{} ", task.kind == TaskKind::read ? 'R' : 'W', task.layer);
  }
  return text;
}

}  // namespace

TEST_CASE("Places for optimizer state: so many groups are read before the first is written") {
  // Three layers, then the embedding (unit 3), whose gradient completes last.
  CHECK(state_order("fuyou:state_buffers=1") == "R2 W2 R1 W1 R0 W0 R3 W3 ");
  CHECK(state_order("fuyou") == "R2 R1 W2 R0 W1 R3 W0 W3 ");
  CHECK(state_order("fuyou:state_buffers=3") == "R2 R1 W2 R0 R3 W1 W0 W3 ");
  CHECK(state_order("fuyou:group=3e4") ==
        "R2 R1 R0 R3 W2 W1 W0 W3 ");  // two layers of 14336, 1 and 1
  CHECK(state_order("fuyou:optimizer=naive,group=1e4") ==
        "R2 W2 R2 W2 R1 W1 R1 W1 R0 W0 R0 W0 R3 W3 ");
}

TEST_CASE("A read into a place waits for the write from it, however early its lane is free") {
  // R(i-2) after W(i): two places, each written out before it is read into again.
  for (const char* policy : {"fuyou", "fuyou:optimizer=serial", "fuyou:group=1e4"}) {
    const Schedule schedule = steps_of(tiny_problem(5, 2), policy);
    std::map<BufferId, TaskId> written;  // the last write out of a place
    for (TaskId id = 0; id < schedule.tasks().size(); ++id) {
      const Task& task = schedule.tasks()[id];
      if (task.kind != TaskKind::read && task.kind != TaskKind::write) continue;
      const Access& host = schedule.accesses(task)[task.kind == TaskKind::read ? 1 : 0];
      if (schedule.buffers()[host.buffer].kind != BufferKind::optimizer_state) continue;
      CHECK(schedule.buffers()[host.buffer].persistent);
      if (task.kind == TaskKind::write) {
        written[host.buffer] = id;
      } else if (written.count(host.buffer) != 0) {
        CHECK(certainly_before(schedule, written[host.buffer], id));
      }
    }
    CHECK(written.size() == 2);
  }
}
