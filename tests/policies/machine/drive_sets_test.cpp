// Machine files with several sets of drives, and what they do together.
#include <catch2/catch.hpp>
#include <random>

#include "base/errors.hpp"
#include "policies/cost/link_rates.hpp"
#include "policies/machine/machine_account.hpp"
#include "policies/machine/machine_drives.hpp"
#include "policies/machine/rank_share.hpp"
#include "policies/schedule/program.hpp"

using namespace spillway;

namespace {

const std::vector<std::string> slow_drives = {"ssd2.count=2", "ssd2.capacity=8TB",
                                              "ssd2.read=1GB/s", "ssd2.write=500MB/s"};

Machine with_slow_drives() { return load_machine("rtx4090-2ssd", slow_drives); }

std::string refusal(std::vector<std::string> settings) {
  try {
    load_machine("rtx4090-2ssd", settings);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("A second set of drives is a memory with engines of its own, and is read back") {
  const Machine one = load_machine("rtx4090-2ssd"), two = with_slow_drives();
  CHECK(one.drive_sets() == 1);
  CHECK(memories_of(one) == std::vector{Tier::gpu, Tier::host, Tier::ssd});
  CHECK(two.drive_sets() == 2);
  CHECK(memories_of(two) == std::vector{Tier::gpu, Tier::host, Tier::ssd, drives_tier(1)});
  CHECK(capacities(two)[3] == 8'000'000'000'000);
  CHECK(two.drive_capacity() == one.ssd.capacity + 8'000'000'000'000);
  CHECK(std::string(to_string(drives_tier(1))) == "ssd2");
  CHECK(std::string(to_string(write_lane(3))) == "ssd4.write");
  const std::string text = machine_to_toml(two);
  const Machine again = parse_machine(text, "again");
  CHECK(machine_to_toml(again) == text);
  CHECK(again.drives(1).read == 1e9);
  CHECK(again.drives(1).count == 2);
  // A machine that has one set says nothing of others.
  CHECK(machine_to_toml(one).find("ssd2") == std::string::npos);
}

TEST_CASE("Each hop between two memories has one engine, and there is none past the host") {
  for (int set = 0; set < most_drive_sets; ++set) {
    const Route* const in = find_route(drives_tier(set), Tier::host);
    const Route* const out = find_route(Tier::host, drives_tier(set));
    REQUIRE(in != nullptr);
    REQUIRE(out != nullptr);
    CHECK((in->kind == TaskKind::read && in->engine == read_lane(set)));
    CHECK((out->kind == TaskKind::write && out->engine == write_lane(set)));
    CHECK(find_route(drives_tier(set), Tier::gpu) == nullptr);
    CHECK(find_route(Tier::gpu, drives_tier(set)) == nullptr);
    for (int other = 0; other < most_drive_sets; ++other)
      CHECK(find_route(drives_tier(set), drives_tier(other)) == nullptr);
    CHECK(drive_set(read_lane(set)) == set);
    CHECK(drive_set(write_lane(set)) == set);
    CHECK(is_read_lane(read_lane(set)));
    CHECK(!is_read_lane(write_lane(set)));
  }
  CHECK(!is_drive_lane(Lane::host_sync));
  CHECK(!is_drive_lane(Lane::stage_gradient_out));
}

TEST_CASE("Sets of drives that are not whole are refused, by their key") {
  using Catch::Contains;
  CHECK_THAT(refusal({"ssd2.count=2"}), Contains("ssd2.capacity"));
  CHECK_THAT(refusal({"ssd2.count=2", "ssd2.capacity=8TB", "ssd2.write=1GB/s"}),
             Contains("ssd2.read"));
  CHECK_THAT(refusal({"ssd3.count=2", "ssd3.capacity=8TB", "ssd3.read=1GB/s", "ssd3.write=1GB/s"}),
             Contains("ssd3.count") && Contains("there are no drives ssd2"));
  std::vector<std::string> deep = slow_drives;
  deep.push_back("ssd2.queue_depth=64");
  CHECK_THAT(refusal(deep), Contains("ssd2.queue_depth"));
  std::vector<std::string> gain = slow_drives;
  gain.insert(gain.end(), {"ssd2.law=mixed", "ssd2.mixed_gain=3"});
  CHECK_THAT(refusal(gain), Contains("ssd2.mixed_gain"));
  CHECK_THAT(refusal({"ssd5.count=1"}), Contains("ssd5.count"));
  // None of them: whatever else is said.
  std::vector<std::string> none = slow_drives;
  none.front() = "ssd2.count=0";
  CHECK(load_machine("rtx4090-2ssd", none).drive_sets() == 1);
}

TEST_CASE("Ranks of a node have their parts of every set, and together the whole") {
  const Machine node = with_slow_drives();
  const Machine rank = rank_share(node, 2);
  CHECK(rank.drives(1).read == 5e8);
  CHECK(rank.drives(1).capacity == 4'000'000'000'000);
  CHECK(whole_of(rank).drives(1).write == node.drives(1).write);
}

TEST_CASE("No distribution over the sets is faster than all of them together are said to be") {
  std::mt19937_64 random(11);
  const auto share = [&] { return static_cast<double>(random() % 1001) / 1000; };
  for (int round = 0; round < 400; ++round) {
    Machine machine = with_slow_drives();
    for (int set = 0; set < 2; ++set) {
      Machine::Ssd& drives = machine.drives(set);
      drives.law = static_cast<SsdLaw>(random() % 4);
      drives.read = 1e9 * (0.1 + share());
      drives.write = 1e9 * (0.1 + share());
      drives.total = random() % 2 == 0 ? 0 : drives.read + drives.write * share();
      drives.mixed_gain = 1 + share();
      drives.by_read_share.clear();
      drives.read_share_by_depth.clear();
      if (random() % 2 == 0) drives.by_read_share = {{0.1 + 0.8 * share(), 1 + share()}};
    }
    const Machine::Ssd all = with_drives_together(machine).ssd;
    const DriveRates together = drive_rates(all, all.at_queue_depth());
    for (int mix = 0; mix < 20; ++mix) {
      const double read = 1e9 * share(), written = 1e9 * share();
      const double read_first = share(), written_first = share();
      double slowest = 0;
      for (int set = 0; set < 2; ++set) {
        const Machine::Ssd& drives = machine.drives(set);
        const DriveRates rates = drive_rates(drives, drives.at_queue_depth());
        slowest = std::max(slowest,
                           rates.seconds(read * (set == 0 ? read_first : 1 - read_first),
                                         written * (set == 0 ? written_first : 1 - written_first)));
      }
      CHECK(together.seconds(read, written) <= slowest * (1 + 1e-9));
    }
  }
}

TEST_CASE("The account of a machine has the keys of its sets, with what is left out of them") {
  const MachineAccount account = account_of_machine("rtx4090-2ssd", slow_drives);
  const auto value = [&](const std::string& key) {
    const auto found = std::find_if(account.values.begin(), account.values.end(),
                                    [&](const MachineValue& one) { return one.key == key; });
    REQUIRE(found != account.values.end());
    return *found;
  };
  CHECK(value("ssd2.read").origin == Origin::given);
  CHECK(value("ssd2.law").origin == Origin::assumed);
  CHECK(value("ssd2.read_latency").source == "left out: a read moves bytes at once");
}
