// Every policy, over settings, layers, micro-batches and memory: no race, and every task reads what
// it must.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include <random>

#include "policies/model_state.hpp"
#include "tests/policies/check_schedule.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

TEST_CASE("Every policy's schedule is free of races and computes what it must") {
  for (const Precision precision : {Precision::bf16, Precision::fp32}) {
    for (const int layers : layer_grid) {
      for (const int micro_batches : micro_batch_grid) {
        const Problem problem = tiny_problem(layers, micro_batches, precision);
        for (const std::string& policy : policy_settings()) {
          INFO(policy << ", " << layers << " layers, " << micro_batches << " micro-batches, "
                      << (precision == Precision::bf16 ? "bf16" : "fp32"));
          check_schedule(build_schedule(problem, policy, 3));
        }
      }
    }
  }
}

namespace {

// A setting of a random policy: every option is left out, or gets a value its help names.
std::string random_policy(std::mt19937& random) {
  const auto one_of = [&](std::vector<std::string> values) {
    return values[random() % values.size()];
  };
  const auto fraction = [&] {
    return fmt::format("{:g}", static_cast<double>(random() % 1001) / 1000);
  };
  const auto maybe_auto = [&] { return random() % 2 ? std::string("auto") : fraction(); };
  const auto recompute = [&] { return ",recompute=" + one_of({"full", "needed"}); };
  switch (random() % 5) {
    case 0:
      return "resident:recompute=" + one_of({"off", "needed", "full"});
    case 1:
      return "zero-offload:parameters=" + one_of({"auto", "gpu", "host"}) +
             ",checkpoints=" + one_of({"gpu", "host"}) + recompute();
    case 2:
      return "zero-infinity:pipeline=" + one_of({"on", "off"}) +
             ",gradients=" + one_of({"ssd", "host"}) + ",parameters=" + one_of({"ssd", "host"}) +
             ",checkpoints=" + one_of({"gpu", "host"}) +
             fmt::format(",read_ahead={}", random() % 17) + recompute();
    case 3:
      return "fuyou:optimizer=" + one_of({"optimized", "naive", "serial"}) +
             ",checkpoints_ssd=" + maybe_auto() + recompute();
    default:
      return "greedysnake:alpha=" + fraction() + ",snake=" + one_of({"on", "off"}) +
             ",optimizer_ssd=" + maybe_auto() + ",checkpoints_ssd=" + maybe_auto() +
             ",parameters_ssd=" + maybe_auto() + recompute();
  }
}

Problem random_problem(std::mt19937& random) {
  const auto between = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  Problem problem =
      tiny_problem(between(1, 6), between(1, 9), random() % 2 ? Precision::bf16 : Precision::fp32);
  problem.workload.micro_batch = between(1, 3);
  problem.workload.batch = problem.workload.micro_batch * between(1, 9);
  problem.workload.gradient = random() % 2 ? GradientWidth::bits32 : GradientWidth::automatic;
  if (random() % 4 == 0) {
    problem.model.architecture = Architecture::llama;
    problem.model.kv_heads = 1;
    problem.model.ffn = between(40, 400);
  }
  return problem;
}

}  // namespace

TEST_CASE("Random policies on random problems are free of races and compute what they must") {
  for (unsigned seed = 1; seed <= 400; ++seed) {
    std::mt19937 random(seed);
    Problem problem = random_problem(random);
    const std::string policy = random_policy(random);
    const int steps = 1 + static_cast<int>(random() % 4);
    INFO("seed " << seed << ": " << policy << ", " << problem.model.layers << " layers, "
                 << problem.workload.micro_batches() << " micro-batches, " << steps << " steps");
    const Schedule roomy = build_schedule(problem, policy, steps);
    check_schedule(roomy);
    // With less host memory than that, options left at auto take another value.
    problem.machine.host.memory = roomy.use(Tier::host).peak_bytes * (50 + random() % 50) / 100;
    const Schedule tight = build_schedule(problem, policy, steps);
    check_schedule(tight);
  }
}

TEST_CASE("A schedule fits in exactly the memory it says it needs, and in no less") {
  for (const int micro_batches : {1, 2, 5}) {
    for (const std::string& policy : policy_settings()) {
      INFO(policy << ", " << micro_batches << " micro-batches");
      const Schedule roomy = build_schedule(tiny_problem(3, micro_batches), policy, 3);
      const Problem tight = tightened(roomy);
      const Schedule fitted = build_schedule(tight, roomy.policy(), 3);
      CHECK(fitted.fits());
      check_schedule(fitted);
      if (policy.rfind("zero-offload", 0) != 0) {  // its parameters=auto looks at the GPU's memory
        CHECK(fitted.fingerprint() == roomy.fingerprint());
      }
      Problem less = tight;
      for (std::uint64_t* memory :
           {&less.machine.gpu.memory, &less.machine.host.memory, &less.machine.ssd.capacity}) {
        if (*memory == 0) continue;
        *memory -= 1;
        CHECK(!build_schedule(less, fitted.policy(), 3).fits());
        *memory += 1;
      }
    }
  }
}

namespace {

std::string with(const std::string& policy, const PolicyOptions& options) {
  std::string text = policy;
  char separator = policy.find(':') == std::string::npos ? ':' : ',';
  for (const auto& [name, value] : options) {
    text += fmt::format("{}{}={}", separator, name, value);
    separator = ',';
  }
  return text;
}

}  // namespace

TEST_CASE("Options left at auto take the least of the SSD that fits") {
  for (const std::string policy : {"greedysnake", "greedysnake:alpha=0.5,parameters_ssd=0.3",
                                   "fuyou", "fuyou:optimizer=naive"}) {
    const std::vector<PolicyOptions> placements = make_policy(policy)->placements();
    // Many sequences in fuyou's micro-batch, so that checkpoints count.
    Problem problem = policy[0] == 'f' ? tiny_problem(7, 1) : tiny_problem(4, 8);
    if (policy[0] == 'f') problem.workload.batch = problem.workload.micro_batch = 128;
    std::vector<Schedule> alternatives;
    for (const PolicyOptions& options : placements)
      alternatives.push_back(build_schedule(problem, with(policy, options), 2));
    const std::uint64_t most = alternatives.front().use(Tier::host).peak_bytes;
    const std::uint64_t least = alternatives.back().use(Tier::host).peak_bytes;
    REQUIRE(least < most);
    for (int k = 0; k <= 16; ++k) {
      problem.machine.host.memory = least + (most - least) * static_cast<std::uint64_t>(k) / 16;
      INFO(policy << " in " << problem.machine.host.memory << " bytes of host memory, of " << least
                  << " to " << most);
      const Schedule chosen = build_schedule(problem, policy, 2);
      CHECK(chosen.fits());
      std::size_t expected = 0;
      while (alternatives[expected].use(Tier::host).peak_bytes > problem.machine.host.memory)
        ++expected;
      CHECK(chosen.policy() == alternatives[expected].policy());
      // With no more of the SSD than that, the answer is the same; with less, nothing fits.
      Problem scarce = problem;
      scarce.machine.ssd.capacity = chosen.use(Tier::ssd).peak_bytes;
      CHECK(build_schedule(scarce, policy, 2).policy() == chosen.policy());
    }
  }
}

TEST_CASE("A machine without an SSD runs what fits without one") {
  Problem problem = tiny_problem(4, 8);
  problem.machine.ssd = {};
  const Schedule schedule = build_schedule(problem, "greedysnake", 3);
  CHECK(schedule.fits());
  CHECK(schedule.use(Tier::ssd).peak_bytes == 0);
  CHECK(schedule.policy() == "greedysnake:optimizer_ssd=0,checkpoints_ssd=0,parameters_ssd=0");
  // Fuyou's states rest on the SSD whatever its options: no more than them is asked for.
  problem.machine.ssd = {};
  CHECK(build_schedule(problem, "fuyou", 3).policy() == "fuyou:checkpoints_ssd=0");
}

TEST_CASE("zero-offload keeps parameters in host memory where the GPU has no room for them") {
  // Many sequences: activations take most of the GPU's memory, parameters less than half.
  Problem problem = tiny_problem(7, 1);
  problem.workload.batch = problem.workload.micro_batch = 64;
  const std::uint64_t enough =
      build_schedule(problem, "zero-offload:parameters=host", 2).use(Tier::gpu).peak_bytes;
  const std::uint64_t more =
      build_schedule(problem, "zero-offload:parameters=gpu", 2).use(Tier::gpu).peak_bytes;
  REQUIRE(enough < more);
  problem.machine.gpu.memory = enough;
  CHECK(build_schedule(problem, "zero-offload", 2).fits());
  CHECK(build_schedule(problem, "zero-offload", 2).policy() == "zero-offload:parameters=host");
  problem.machine.gpu.memory = more;
  CHECK(build_schedule(problem, "zero-offload", 2).policy() == "zero-offload");
  CHECK(build_schedule(problem, "zero-offload", 2).use(Tier::gpu).peak_bytes == more);
}

TEST_CASE("Delaying nothing updates in the same step, delaying all in the next") {
  for (const auto& [alpha, delay] : {std::pair{"0", 0}, std::pair{"1", 1}}) {
    const Schedule schedule =
        build_schedule(tiny_problem(3, 2), fmt::format("greedysnake:alpha={}", alpha), 3);
    int updates = 0;
    for (const Task& task : schedule.tasks()) {
      if (task.kind != TaskKind::optimizer || task.layer == 3) continue;
      ++updates;
      CHECK(task.step - task.update == delay);
      CHECK(task.params == 7 * 2048);
    }
    CHECK(updates == 3 * 3);
  }
}

TEST_CASE(
    "Runs of elements are cut on the grid, in the order GPU, host, SSD, and cover the unit once") {
  // 7 cells of 2048 elements; a fraction is rounded to whole cells, halves up, and the SSD's gives
  // way.
  struct Case {
    Placement placement;
    std::uint64_t gpu, host, ssd;
  };
  for (const Case& c :
       {Case{{1, 0, 0}, 7, 0, 0}, Case{{0, 1, 0}, 0, 7, 0}, Case{{0, 0, 1}, 0, 0, 7},
        Case{{0, 0.5, 0.5}, 0, 3, 4}, Case{{0.5, 0, 0.5}, 4, 0, 3},
        Case{{0.5, 0.25, 0.25}, 4, 1, 2}, Case{{0, 0.95, 0.05}, 0, 7, 0},
        Case{{0, 0.92, 0.08}, 0, 6, 1}, Case{{0.1, 0.8, 0.1}, 1, 5, 1}}) {
    Program program(tiny_problem(1, 1));
    ModelState state(program);
    state.place_parameters(0, c.placement);
    state.place_optimizer(0, c.placement);
    state.place_parameters(1, {.gpu = 1});
    state.place_optimizer(1, {.host = 1});
    const Schedule schedule = std::move(program).finish("by hand", 0);
    CHECK(find_home_error(schedule) == "");
    std::uint64_t cells[tier_count] = {};
    int last_tier = 0;
    for (const HomePart& home : schedule.homes()) {
      if (home.unit != 0 || home.kind != BufferKind::parameters) continue;
      const int tier = static_cast<int>(schedule.buffers()[home.where.buffer.id].tier);
      CHECK(tier >= last_tier);
      last_tier = tier;
      cells[tier] += home.elements / 2048;
    }
    INFO(c.placement.gpu << " " << c.placement.host << " " << c.placement.ssd);
    CHECK(cells[0] == c.gpu);
    CHECK(cells[1] == c.host);
    CHECK(cells[2] == c.ssd);
  }
}

TEST_CASE("Fractions of a run, on the element grid") {
  CHECK(fraction_of(7 * 2048, 0) == 0);
  CHECK(fraction_of(7 * 2048, 1) == 7 * 2048);
  CHECK(fraction_of(7 * 2048, 0.5) == 4 * 2048);
  CHECK(fraction_of(7 * 2048, 0.07) == 0);
  CHECK(fraction_of(7 * 2048, 0.08) == 2048);
  CHECK(fraction_of(std::uint64_t{2048} << 30, 0.25) == std::uint64_t{512} << 30);
}

TEST_CASE(
    "The canonical text leaves defaults out, in the order of the options, and names the same "
    "schedule") {
  CHECK(canonical_policy("greedysnake:snake=off,alpha=0.5") == "greedysnake:alpha=0.5,snake=off");
  CHECK(canonical_policy("greedysnake:alpha=0.25,snake=on") == "greedysnake");
  CHECK(canonical_policy("fuyou:") == "fuyou");
  for (const std::string& policy : policy_settings()) {
    INFO(policy);
    CHECK(canonical_policy(canonical_policy(policy)) == canonical_policy(policy));
    const Problem problem = tiny_problem(3, 5);
    const Schedule schedule = build_schedule(problem, policy, 2);
    CHECK(canonical_policy(schedule.policy()) == schedule.policy());
    const Schedule again = build_schedule(problem, schedule.policy(), 2);
    CHECK(again.policy() == schedule.policy());
    CHECK(again.fingerprint() == schedule.fingerprint());
    CHECK(build_schedule(problem, canonical_policy(policy), 2).fingerprint() ==
          schedule.fingerprint());
  }
}

TEST_CASE("What is wrong with a policy's text is said, with what would be right") {
  const auto rejects = [](const std::string& text, const std::string& what,
                          const std::string& hint) {
    INFO(text);
    check_error([&] { make_policy(text); }, what, hint);
    check_error([&] { canonical_policy(text); }, what, hint);
    check_error([&] { build_schedule(tiny_problem(1, 1), text, 1); }, what, hint);
  };
  rejects("greedysnak", "unknown policy 'greedysnak'", "greedysnake");
  rejects("", "unknown policy ''", "resident, zero-offload, zero-infinity, fuyou, greedysnake");
  rejects("fuyou:alpha=0.2", "policy fuyou has no option 'alpha'",
          "optimizer, checkpoints_ssd, recompute");
  rejects("fuyou:optimizer", "policy fuyou: 'optimizer' is not OPTION=VALUE",
          "greedysnake:alpha=0.2,snake=off");
  rejects("fuyou:=naive", "policy fuyou: '=naive' is not OPTION=VALUE", "");
  rejects("fuyou:recompute=full,recompute=full", "policy fuyou: option 'recompute' is given twice",
          "once");
  rejects("fuyou:optimizer=fast",
          "policy fuyou: option optimizer=fast is not one of optimized | naive | serial", "naive");
  rejects("greedysnake:snake=yes", "policy greedysnake: option snake=yes is not on or off", "on:");
  for (const char* value : {"1.5", "-0.1", "nan", "inf", "", "0.5x", " 0.5", "1e400"}) {
    rejects(fmt::format("greedysnake:alpha={}", value),
            fmt::format("policy greedysnake: option alpha={} is not a number from 0 to 1", value),
            "fraction");
  }
  for (const char* value : {"-1", "17", "2.5", "", "99999999999"}) {
    rejects(
        fmt::format("zero-infinity:read_ahead={}", value),
        fmt::format("policy zero-infinity: option read_ahead={} is not a whole number from 0 to 16",
                    value),
        "blocks");
  }
}

TEST_CASE(
    "Every option of every policy has a default that it accepts, and rejects nonsense with its "
    "help") {
  for (const PolicyInfo& info : builtin_policies()) {
    CHECK(!info.paper.empty());
    CHECK(!info.idea.empty());
    for (const PolicyOption& option : info.options) {
      INFO(info.name << " " << option.name);
      CHECK(canonical_policy(info.name + ":" + option.name + "=" + option.default_value) ==
            info.name);
      check_error([&] { make_policy(info.name + ":" + option.name + "=nonsense"); },
                  fmt::format("policy {}: option {}=nonsense is not ", info.name, option.name),
                  option.help);
    }
  }
}
