// docs/write-a-policy.md: the plugin there is a policy that works.
#include <catch2/catch.hpp>

#include <algorithm>

#include "policies/common/registry.hpp"
#include "tests/plugins/hybrid.cpp"
#include "tests/policies/check_schedule.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway::test;

TEST_CASE(
    "docs/write-a-policy.md: the plugin's policy is free of races and computes what it must") {
  REQUIRE(spillway_plugin.count == 1);
  for (const int layers : layer_grid) {
    for (const int micro_batches : micro_batch_grid) {
      for (const char* lower : {"0", "0.5", "1"}) {
        for (const char* ssd : {"0", "0.5", "1"}) {
          INFO(layers << " layers, " << micro_batches << " micro-batches, lower " << lower
                      << ", on the SSD " << ssd);
          const std::unique_ptr<Policy> policy = spillway_plugin.factories[0]();
          policy->set("lower", lower);
          policy->set("optimizer_ssd", ssd);
          check_schedule(build_schedule(tiny_problem(layers, micro_batches), *policy, 3));
        }
      }
    }
  }
}

namespace {

PolicyFactory hybrid_named(const std::string& name) {
  class Named : public Policy {
   public:
    explicit Named(const std::string& name) : Policy(name, "a test", "the plugin's plan") {}
    Plan plan(const Problem& problem, const Costs& costs) const override {
      return Hybrid().plan(problem, costs);
    }
  };
  return [name] { return std::make_unique<Named>(name); };
}

bool knows(const std::string& name) {
  const std::vector<PolicyInfo> all = known_policies();
  return std::any_of(all.begin(), all.end(),
                     [&](const PolicyInfo& info) { return info.name == name; });
}

}  // namespace

TEST_CASE("A policy that is added is known by its name, with the options that every policy has") {
  const PolicyOrigin origin{"python", "tests.Added", "1"};
  add_policies({hybrid_named("added")}, origin);
  CHECK(knows("added"));
  CHECK(canonical_policy("added:retention=never") == "added");
  CHECK(origin_of_policy("added:retention=nearest") == origin);
  CHECK_FALSE(origin_of_policy("greedysnake"));
  const Problem problem = tiny_problem(3, 2);
  CHECK(build_schedule(problem, "added", 2).fingerprint() ==
        build_schedule(problem, *hybrid_named("added")(), 2).fingerprint());
  // The class written anew takes the place of the one before; another class does not.
  add_policies({hybrid_named("added")}, {"python", "tests.Added", "2"});
  CHECK(origin_of_policy("added")->hash == "2");
  check_error(
      [] {
        add_policies({hybrid_named("added")}, {"python", "tests.Other", "2"});
      },
      "tests.Other: there is a policy added already, from tests.Added", "another name");
  const std::vector<PolicyInfo> builtin = builtin_policies();
  CHECK(std::none_of(builtin.begin(), builtin.end(),
                     [](const PolicyInfo& info) { return info.name == "added"; }));
}

TEST_CASE("What is no policy to add is refused, and nothing of its origin is added") {
  const PolicyOrigin origin{"plugin", "/a.so", "1"};
  const auto refused = [&](const std::string& name, const std::string& what,
                           const std::string& hint) {
    check_error(
        [&] {
          add_policies({hybrid_named("fine"), hybrid_named(name)}, origin);
        },
        what, hint);
    CHECK_FALSE(knows("fine"));
  };
  refused("auto", "/a.so: 'auto' is no name for a policy", "fastest");
  refused("a:b", "/a.so: 'a:b' is no name for a policy", "letters");
  refused("", "/a.so: '' is no name for a policy", "letters");
  refused("resident", "/a.so: there is a policy resident already, which is built in", "another");
  refused("fine", "/a.so: there is a policy fine already, from /a.so", "another");
  class Retains : public Policy {
   public:
    Retains() : Policy("retains", "", "") {}
    Plan plan(const Problem&, const Costs&) const override { return {}; }

   private:
    Option<bool> retention_ = option("retention", "on", on_off(), {}, "");
  };
  check_error([&] { add_policies({[] { return std::make_unique<Retains>(); }}, origin); },
              "/a.so: policy retains: option retention is one that every policy has", "another");
}

TEST_CASE("A policy that was recorded and is not known is asked for") {
  CHECK_NOTHROW(require_policy("resident", {}, "a trace"));
  CHECK_NOTHROW(require_policy("greedysnake", PolicyOrigin{"plugin", "/a.so", ""}, "a trace"));
  check_error(
      [] {
        require_policy("gone:a=1", PolicyOrigin{"plugin", "/a.so", ""}, "t.json");
      },
      "t.json: its policy gone comes from the plugin /a.so, which is not loaded", "plugin = /a.so");
  check_error(
      [] {
        require_policy("gone", PolicyOrigin{"python", "mine.Gone", ""}, "t.json");
      },
      "t.json: its policy gone is the Python class mine.Gone", "register");
}
