#include "experiments/plan/hints.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "base/units.hpp"

namespace spillway {
namespace {

// The question with a remedy applied, as the program applies the flags it is written as.
FitQuestion applied(FitQuestion question, const Remedy& remedy) {
  Machine& machine = question.problem.machine;
  for (const auto& [setting, value] : remedy.changes) {
    INFO(setting << " = " << value);
    if (setting == "micro_batch") {
      question.problem.workload.micro_batch = std::stoll(value);
      question.choose_micro_batch = false;
    } else if (setting == "policy") {
      question.policies = {value};
    } else if (setting == "durability") {
      REQUIRE(value == "off");
      question.durability.mode = DurabilityMode::off;
    } else if (setting == "gpu.memory") {
      machine.gpu.memory = parse_bytes(value);
    } else if (setting == "host.memory") {
      machine.host.memory = parse_bytes(value);
    } else if (setting == "host.reserved") {
      machine.host.memory += machine.host.reserved - parse_bytes(value);
    } else if (setting == "ssd.capacity") {
      machine.ssd.capacity = parse_bytes(value);
    } else if (setting == "ssd.count") {
      machine.ssd.count = std::stoll(value);
    } else if (setting == "ssd.read") {
      machine.ssd.read = parse_bytes_per_second(value);
    } else if (setting == "ssd.write") {
      machine.ssd.write = parse_bytes_per_second(value);
    } else {
      FAIL("a setting that nobody can give");
    }
  }
  return question;
}

bool fits(const FitQuestion& question) {
  const WholeRun run{question.durability, {}};
  return evaluate_candidates(question.problem, question.choose_micro_batch, question.policies, run,
                             question.steps)
      .chosen.has_value();
}

std::string described(const FitQuestion& question) {
  return question.problem.model.name + " on " + question.problem.machine.name + ", " +
         question.policies[0] + ", batch " + std::to_string(question.problem.workload.batch) +
         " by " + std::to_string(question.problem.workload.micro_batch);
}

FitQuestion random_question(std::mt19937_64& random) {
  const auto below = [&](std::uint64_t n) { return static_cast<std::size_t>(random() % n); };
  const auto one_of = [&](const auto& choices) { return choices[below(std::size(choices))]; };
  FitQuestion question;
  Problem& problem = question.problem;
  static const char* const models[] = {"gpt-tiny", "gpt-small", "gpt2-355m", "gpt3-1.3b",
                                       "gpt-13b"};
  static const char* const machines[] = {"testbed", "a100-80gb", "rtx4090-12ssd", "h200"};
  problem.model = load_model(one_of(models));
  problem.machine = load_machine(one_of(machines));
  static const std::int64_t batches[] = {1, 2, 4, 6, 8, 16};
  problem.workload.batch = problem.workload.micro_batch = one_of(batches);
  problem.workload.sequence = std::min<std::int64_t>(problem.model.positions, 512);
  question.choose_micro_batch = below(2) == 0;
  question.durability = {below(3) == 0 ? DurabilityMode::off : DurabilityMode::on, 0};
  question.steps = 2 + static_cast<int>(below(3));
  std::vector<std::string> policies = candidate_policies();
  policies.insert(policies.end(),
                  {"zero-infinity:gradients=host,parameters=host", "greedysnake:optimizer_ssd=0",
                   "fuyou:state_buffers=8", "zero-offload"});
  question.policies =
      below(10) == 0 ? candidate_policies() : std::vector<std::string>{one_of(policies)};
  // Sizes about what the model takes, so that now this and now that is too small.
  const double state = 16.0 * static_cast<double>(problem.model.parameters());
  const auto some = [&] {
    return static_cast<std::uint64_t>(state * std::pow(2, static_cast<double>(below(13)) - 7));
  };
  problem.machine.gpu.memory = some();
  if (below(2) == 0) problem.machine.host.reserved = some() / 4;
  problem.machine.host.memory = some();
  problem.machine.ssd.capacity = some();
  if (below(8) == 0) problem.machine.ssd = {};
  return question;
}

TEST_CASE("every hint of 200 random settings that do not fit makes them fit", "[slow]") {
  const std::uint64_t seed = std::random_device()();
  std::mt19937_64 random(seed);
  int unfit = 0, hints = 0;
  for (int tried = 0; unfit < 200; ++tried) {
    REQUIRE(tried < 2000);
    const FitQuestion question = random_question(random);
    INFO("seed " << seed << ", setting " << tried << ": " << described(question));
    if (fits(question)) continue;
    ++unfit;
    const Remedies remedies = find_remedies(question);
    CHECK_FALSE(remedies.empty());
    for (const Remedy& remedy : remedies) {
      INFO(advice_of(Remedies{remedy}).text());
      REQUIRE_FALSE(remedy.changes.empty());
      CHECK(fits(applied(question, remedy)));
      ++hints;
    }
  }
  WARN(hints << " hints for 200 settings");
}

FitQuestion gpt65b() {
  FitQuestion question;
  question.problem.model = load_model("gpt-65b");
  question.problem.machine =
      load_machine("rtx4090-12ssd", {"ssd.count=4", "host.memory=256GB", "host.reserved=56GB"});
  question.problem.workload = {32, 32, 1024, Precision::bf16, GradientWidth::automatic};
  question.choose_micro_batch = true;
  question.policies = {"zero-infinity"};
  question.problem.framework = "deepspeed-0.9";  // ours needs less host memory
  question.durability.mode = DurabilityMode::on;
  return question;
}

TEST_CASE("the least host memory is that of the best micro-batch, and the reserve is named",
          "[slow]") {
  const FitQuestion question = gpt65b();
  REQUIRE(question.problem.machine.host.memory == 200'000'000'000);
  REQUIRE_FALSE(fits(question));
  const Remedies remedies = find_remedies(question);
  const auto with_host = std::find_if(remedies.begin(), remedies.end(), [](const Remedy& remedy) {
    return remedy.changes.back().name == "host.memory";
  });
  REQUIRE(with_host != remedies.end());
  const std::uint64_t tier = parse_bytes(with_host->changes.back().value);
  // 56 GB more have to be installed.
  CHECK_THAT(with_host->note, Catch::Contains("host.reserved keeps 56GB"));
  // No micro-batch makes it fit in 3 % less.
  FitQuestion less = question;
  less.problem.machine.host.memory = tier - tier / 33;
  CHECK_FALSE(fits(less));
  for (const Remedy& remedy : remedies) CHECK(fits(applied(question, remedy)));
}

TEST_CASE("a reserve that is a share grows with what has to be installed", "[slow]") {
  FitQuestion question = gpt65b();
  question.problem.machine = load_machine(
      "rtx4090-12ssd", {"ssd.count=4", "host.memory=215GB", "host.reserved_share=0.5"});
  REQUIRE_FALSE(fits(question));
  const Remedies remedies = find_remedies(question);
  const auto with_host = std::find_if(remedies.begin(), remedies.end(), [](const Remedy& remedy) {
    return remedy.changes.back().name == "host.memory";
  });
  REQUIRE(with_host != remedies.end());
  // As much again.
  CHECK_THAT(with_host->note, Catch::Contains("keeps " + with_host->changes.back().value));
}

TEST_CASE("a fixed micro-batch that is too large is the first thing to change") {
  // Working memory for 8 sequences fits in 20 GB, for 32 it does not.
  FitQuestion question = gpt65b();
  question.problem.model = load_model("gpt-6b");
  question.problem.machine = load_machine("rtx4090-12ssd");
  question.problem.machine.gpu.memory = 20'000'000'000;
  question.policies = {"zero-offload"};
  question.problem.framework = "deepspeed-0.9";  // autograd keeps the whole micro-batch
  question.choose_micro_batch = false;
  REQUIRE_FALSE(fits(question));
  const Remedies remedies = find_remedies(question);
  REQUIRE_FALSE(remedies.empty());
  REQUIRE(remedies[0].changes[0].name == "micro_batch");
  // The largest that fits.
  const std::int64_t found = std::stoll(remedies[0].changes[0].value);
  CHECK(found < 32);
  CHECK(fits(applied(question, remedies[0])));
  FitQuestion larger = question;
  larger.problem.workload.micro_batch = 2 * found;
  CHECK_FALSE(fits(larger));
}

TEST_CASE("what only the second copies make too large fits without durability", "[slow]") {
  FitQuestion question = gpt65b();
  question.problem.machine = load_machine("rtx4090-12ssd");
  question.problem.machine.ssd.capacity = 1'200'000'000'000;  // 65e9 x 14 bytes, not x 26
  REQUIRE_FALSE(fits(question));
  const Remedies remedies = find_remedies(question);
  const auto is_durability = [](const Remedy& remedy) {
    return remedy.changes == std::vector<Setting>{{"durability", "off"}};
  };
  CHECK(std::any_of(remedies.begin(), remedies.end(), is_durability));
}

TEST_CASE("another policy is named however many micro-batches there are to try") {
  FitQuestion question;
  question.problem.model = load_model("gpt-65b");
  question.problem.machine = load_machine("rtx3090+desktop-ddr4+2x990pro");
  question.problem.workload.batch = 256;
  question.choose_micro_batch = true;
  question.policies = {"zero-infinity"};
  const Remedies remedies = find_remedies(question);
  const auto is_policy = [](const Remedy& remedy) {
    return remedy.changes == std::vector<Setting>{{"policy", "fuyou"}};
  };
  CHECK(std::any_of(remedies.begin(), remedies.end(), is_policy));
}

TEST_CASE("looking for other policies leaves the policy's own remedies") {
  FitQuestion question;
  question.problem.model = load_model("gpt-175b");
  question.problem.machine = load_machine("rtx4090-2ssd");
  question.problem.workload.batch = 64;
  question.choose_micro_batch = true;
  question.policies = {"zero-infinity"};
  CHECK_FALSE(find_remedies(question).empty());
}

TEST_CASE("of a policy that is searched for, the memory is named that its nearest plan takes") {
  FitQuestion question;
  question.problem.model = load_model("gpt-13b");
  question.problem.machine = load_machine("rtx4090-2ssd");
  question.problem.machine.gpu.memory = 8'000'000'000;
  question.problem.machine.host.memory = 3'000'000'000;
  question.problem.workload = {8, 1, 1024, Precision::bf16, GradientWidth::automatic};
  question.policies = {"spillway"};
  const Candidates candidates =
      evaluate_candidates(question.problem, false, question.policies, {}, question.steps);
  try {
    fail_to_fit(candidates, question);
    FAIL("it does not fit");
  } catch (const FitError& error) {
    const std::string advice = error.hint();
    INFO(advice);
    CHECK(advice.find("host.memory = 4.") != std::string::npos);
  }
}

TEST_CASE("where more host memory is enough no larger GPU is asked for") {
  // In one micro-batch both lack, in smaller ones more of the host's alone.
  FitQuestion question;
  question.problem.model = load_model("qwen2.5-14b");
  question.problem.machine = load_machine("rtx4080-12ssd", {"host.memory=96GB"});
  question.problem.workload = {20, 20, 1024, Precision::bf16, GradientWidth::automatic};
  question.policies = {"zero-offload"};
  question.choose_micro_batch = true;
  bool is_told = false;
  for (const Remedy& remedy : find_remedies(question)) {
    if (remedy.changes.front().name != "host.memory") continue;
    is_told = true;
    CHECK(remedy.changes.size() == 1);
    CHECK(fits(applied(question, remedy)));
  }
  CHECK(is_told);
  // Nor is another policy an answer where this one was named to be compared.
  question.other_policies = false;
  for (const Remedy& remedy : find_remedies(question))
    for (const Setting& change : remedy.changes) CHECK(change.name != "policy");
}

TEST_CASE("where nothing was found the hint says that it was looked for") {
  CHECK_THAT(advice_of(Remedies{}).text(), Catch::Contains("was tried"));
}

}  // namespace
}  // namespace spillway
