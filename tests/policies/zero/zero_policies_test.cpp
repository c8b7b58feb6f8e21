// What the options of the ZeRO policies do beyond traffic: memory, order, waiting, errors.
#include <catch2/catch.hpp>

#include "policies/model/tensors.hpp"
#include "tests/policies/common/traffic.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/policies/zero/sub_groups.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

std::uint64_t peak(const Problem& problem, const std::string& policy, Tier tier) {
  return build_schedule(problem, policy, 2).use(tier).peak_bytes;
}

Problem on_4090(const std::string& model, std::int64_t batch) {
  Problem problem;
  problem.model = load_model(model);
  problem.machine = load_machine("rtx4090-12ssd");
  problem.workload.batch = problem.workload.micro_batch = batch;
  problem.framework = "deepspeed-0.9";
  return problem;
}

bool fits(const Problem& problem, const std::string& policy) {
  return build_schedule(problem, policy, 2).fits();
}

}  // namespace

TEST_CASE("Tensors cover each unit once, sub-groups cover all tensors in order") {
  for (const char* name : {"gpt-tiny", "gpt2-124m", "gpt-13b", "llama-7b"}) {
    const ModelSpec model = load_model(name);
    INFO(name);
    std::uint64_t all = 0;
    for (int unit = 0; unit <= model.layers; ++unit) {
      std::uint64_t next = 0;
      for (const TensorRange& tensor : unit_tensors(model, unit)) {
        CHECK(tensor.unit == unit);
        CHECK(tensor.first == next);
        CHECK(tensor.elements > 0);
        CHECK(tensor.first % element_alignment == 0);
        next += tensor.elements;
      }
      CHECK(next == static_cast<std::uint64_t>(unit_elements(model, unit)));
      all += next;
    }
    for (const std::uint64_t size : {1ull, 1'000'000ull, 100'000'000ull, 1'000'000'000'000ull}) {
      const auto groups = sub_groups(model, size);
      std::uint64_t covered = 0;
      for (std::size_t g = 0; g < groups.size(); ++g) {
        covered += elements_of(groups[g]);
        if (g + 1 < groups.size()) {
          CHECK(elements_of(groups[g]) >= size);
          CHECK(elements_of(groups[g]) - groups[g].back().elements < size);
        }
      }
      CHECK(covered == all);
    }
  }
  // A GPT's layer: qkv 3 C^2, projection C^2, up and down 4 C^2 each, with what is small.
  const auto tensors = unit_tensors(load_model("gpt-13b"), 0);
  REQUIRE(tensors.size() == 4);
  const double square = 5120.0 * 5120.0;
  const double matrices[] = {3, 1, 4, 4};
  for (std::size_t t = 0; t < 4; ++t) {
    CHECK(static_cast<double>(tensors[t].elements) == Approx(matrices[t] * square).epsilon(2e-3));
  }
  CHECK(unit_tensors(load_model("llama-7b"), 0).size() == 7);
}

TEST_CASE("What runs on an RTX 4090 is what Ratel (ICDE 2025) found to run") {
  // Fig. 5a, 13B: ZeRO-Infinity up to batch 32, ZeRO-Offload up to 16.
  for (const std::int64_t batch : {8, 16, 32})
    CHECK(fits(on_4090("gpt-13b", batch), "zero-infinity"));
  CHECK(!fits(on_4090("gpt-13b", 64), "zero-infinity"));
  for (const std::int64_t batch : {8, 16}) CHECK(fits(on_4090("gpt-13b", batch), "zero-offload"));
  CHECK(!fits(on_4090("gpt-13b", 32), "zero-offload"));
  // At batch 1, ZeRO-Infinity trains 30B at most with 256 GB of host memory (less what the system
  // takes of it), 135B with 768 GB; 65B and 175B are the next in the paper's table.
  CHECK(fits(on_4090("gpt-135b", 1), "zero-infinity"));
  CHECK(!fits(on_4090("gpt-175b", 1), "zero-infinity"));
  for (const bool large : {false, true}) {
    Problem problem = on_4090(large ? "gpt-65b" : "gpt-30b", 1);
    problem.machine = load_machine("rtx4090-12ssd", {"host.memory=256GB"});
    CHECK(fits(problem, "zero-infinity") == !large);
  }
}

namespace {

// What the host thread issues and waits for in the first forward: R(ead) and H(2d) with the layer,
// r and h for a wait, F for a layer's compute.
std::string host_thread(const Problem& problem, const std::string& policy, std::size_t most) {
  std::string text;
  const Schedule schedule = build_schedule(problem, policy, 1);
  for (const Task& task : schedule.tasks()) {
    if (task.kind == TaskKind::head || text.size() >= most) break;
    if (task.kind == TaskKind::read) text += fmt::format("R{} ", task.layer);
    if (task.kind == TaskKind::h2d) text += fmt::format("H{} ", task.layer);
    if (task.kind == TaskKind::forward) text += fmt::format("F{} ", task.layer);
    if (task.kind != TaskKind::barrier) continue;
    CHECK(task.holds() == LaneSet::all()
                              .without(lanes_of_ranks)
                              .without(lanes_of_stages)
                              .without(lanes_of_no_drives(1)));
    text += task.waits_for().contains(Lane::ssd_read) ? "r " : "h ";
  }
  return text;
}

}  // namespace

TEST_CASE("The host thread reads, waits and looks ahead as DeepSpeed's does") {
  Problem problem = tiny_problem(1, 1);
  problem.model = load_model("gpt-13b", {"layers=3"});
  problem.framework = "deepspeed-0.9";
  const std::string base = "zero-infinity:max_reuse_distance=0,checkpoints=gpu,";
  // Without prefetching each of four tensors is read, waited for, copied, waited for.
  CHECK(host_thread(problem, base + "prefetch_bucket_size=0", 1000) ==
        "R0 r H0 h R0 r H0 h R0 r H0 h R0 r H0 h F0 "
        "R1 r H1 h R1 r H1 h R1 r H1 h R1 r H1 h F1 "
        "R2 r H2 h R2 r H2 h R2 r H2 h R2 r H2 h F2 ");
  // Tensors of 79, 26, 105 and 105 million elements; q p f m. Cold: nothing is in flight, so the
  // first norm reads one tensor ahead, q, and each tensor the next one. The second norm finds f
  // being read: it waits, copies it ahead, and with 105 in flight reads on while no more than 210
  // were looked at: m, q1, p1. Fetching f copies m ahead and reads f1; fetching m waits for that,
  // copies q1 ahead, and reads m1, after which nothing more is looked at. Then the layer computes.
  CHECK(host_thread(problem, base + "prefetch_bucket_size=5e7", 70).substr(0, 60) ==
        "R0 r H0 h R0 r H0 h R0 r H0 R0 R1 R1 h r H0 R1 h r H1 R1 F0 ");
  // One slot: nothing is read before the tensor in it was used.
  CHECK(host_thread(problem, base + "param_buffer_count=1", 20).substr(0, 20) ==
        "R0 r H0 h R0 r H0 h ");
  // In host memory: copies ahead, up to a bucket, never a read.
  const std::string host = host_thread(problem, base + "parameters=host", 1000);
  CHECK(host.find_first_of("Rr") == std::string::npos);
  CHECK(host.substr(0, 13) == "H0 h H0 H0 h ");
}

TEST_CASE("Every option of the ZeRO policies makes a difference") {
  struct Change {
    std::string policy, option;
  };
  Problem problem = tiny_problem(1, 2);
  problem.model = load_model("gpt2-124m", {"layers=4"});
  problem.workload.sequence = 64;
  const auto fingerprint = [&](const std::string& policy) {
    return build_schedule(problem, policy, 2).fingerprint();
  };
  const std::vector<std::string> shared = {"recompute=needed", "prefetch_bucket_size=1e6",
                                           "max_live_parameters=1", "max_reuse_distance=0",
                                           "reduce_bucket_size=1e6"};
  std::vector<Change> changes;
  for (const std::string& option : shared) {
    changes.push_back({"zero-infinity", option});
    changes.push_back({"zero-offload:parameters=host", option});
  }
  for (const char* option :
       {"pipeline_read=on", "pipeline_write=on", "sub_group_size=1e6", "gradients=host",
        "parameters=host", "max_in_cpu=3e6", "param_buffer_count=2",
        "param_persistence_threshold=1e8", "checkpoints=gpu"}) {
    changes.push_back({"zero-infinity", option});
  }
  for (const char* option : {"parameters=gpu", "sub_group_size=1e6", "checkpoints=host"}) {
    changes.push_back(
        {"zero-offload", option == std::string("parameters=gpu") ? "parameters=host" : option});
  }
  for (const Change& change : changes) {
    // So many layers are used again within 1e9 elements that little is fetched twice.
    std::string base = change.policy;
    const bool names_reuse = change.option.rfind("max_reuse", 0) == 0;
    if (!names_reuse)
      base +=
          (base.find(':') == std::string::npos ? ":" : ",") + std::string("max_reuse_distance=0");
    const std::string changed =
        base + (base.find(':') == std::string::npos ? ":" : ",") + change.option;
    INFO(changed);
    CHECK(fingerprint(base) != fingerprint(changed));
  }
}

TEST_CASE("The ZeRO policies reject what DeepSpeed would stop at") {
  const auto rejects = [](const std::string& policy, const std::string& what) {
    INFO(policy);
    CHECK_THROWS_WITH(build_schedule(tiny_problem(2, 1), policy, 2), Catch::Contains(what));
  };
  rejects("zero-infinity:sub_group_size=0", "a whole number of elements from 1 to 1e+15");
  rejects("zero-infinity:prefetch_bucket_size=1.5", "a whole number of elements from 0 to 1e+15");
  rejects("zero-offload:reduce_bucket_size=many", "reduce_bucket_size=many");
}

TEST_CASE("max_reuse_distance=auto is 1e9, or 0 where that does not fit the GPU") {
  Problem problem = tiny_problem(1, 1);
  problem.model = load_model("gpt2-124m");
  for (const std::string name : {"zero-infinity:", "zero-offload:parameters=host,"}) {
    const std::string small = "prefetch_bucket_size=1,reduce_bucket_size=1";
    const std::string policy = name + small;
    const std::string zero =
        name + "prefetch_bucket_size=1,max_reuse_distance=0,reduce_bucket_size=1";
    const std::uint64_t least = peak(problem, zero, Tier::gpu);
    const std::uint64_t most = peak(problem, policy, Tier::gpu);
    REQUIRE(least < most);
    problem.machine.gpu.memory = most;
    CHECK(build_schedule(problem, policy, 2).policy() == policy);
    problem.machine.gpu.memory = most - 1;
    CHECK(build_schedule(problem, policy, 2).policy() == zero);
    CHECK(build_schedule(problem, policy, 2).use(Tier::gpu).peak_bytes == least);
    problem.machine.gpu.memory = plenty;
  }
}
