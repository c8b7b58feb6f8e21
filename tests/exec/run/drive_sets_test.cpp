// Training on several sets of drives: the bits of one set, commits on all of them, and any number
// of sets to go on with.
#include <catch2/catch.hpp>
#include <fstream>
#include <vector>

#include "base/errors.hpp"
#include "exec/run/training.hpp"
#include "exec/store/store_check.hpp"
#include "tests/exec/io_test_support.hpp"
#include "tests/exec/training_support.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;
using test::PartOfTraining;
using test::put_on_sets;
using test::train_until;
using test::Workbench;

const std::vector<std::string>& policies_on_drives() {
  static const std::vector<std::string> all = {
      "zero-infinity",
      "zero-infinity:pipeline_read=on,pipeline_write=on,max_reuse_distance=0",
      "fuyou",
      "fuyou:optimizer=serial",
      "greedysnake:snake=off,optimizer_ssd=1,alpha=0.3",
      "greedysnake:snake=off,optimizer_ssd=0.5,checkpoints_ssd=1,parameters_ssd=0.5,alpha=0.2"};
  return all;
}

TrainingOptions durable(const Workbench& bench, const std::string& policy) {
  TrainingOptions options = bench.options(policy);
  fs::create_directories(bench.root() / "ssd-c");
  options.ssd.push_back(bench.root() / "ssd-c");
  options.durability = {DurabilityMode::on, 2};
  options.guard_bytes = 0;
  options.stripe_bytes = 8192;  // so that a store this small lies on all of its drives
  options.steps = 24;
  return options;
}

std::uint64_t bytes_in(const fs::path& folder) {
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) bytes += entry.file_size();
  return bytes;
}

TEST_CASE(
    "on several sets of drives every loss and weight is as on one, and none is touched beyond",
    "[store]") {
  const Workbench bench;
  const test::Losses one = test::train_within_plan(bench.options("resident"));
  for (const std::string& policy : policies_on_drives()) {
    for (const std::vector<std::uint32_t>& sets :
         {std::vector<std::uint32_t>{1, 2}, {2, 1}, {1, 1, 1}}) {
      INFO(policy << ", " << sets.size() << " sets");
      TrainingOptions options = bench.options(policy);
      fs::create_directories(bench.root() / "ssd-c");
      options.ssd.push_back(bench.root() / "ssd-c");
      put_on_sets(options, sets);
      CHECK(test::difference(test::train_within_plan(options), one) == "");
    }
  }
}

TEST_CASE("what is committed on several sets is on all of them, and goes on in place", "[store]") {
  const Workbench bench;
  TrainingOptions plain = durable(bench, "resident");
  plain.durability = {};
  const PartOfTraining whole = train_until(plain);
  for (const std::string& policy : policies_on_drives()) {
    INFO(policy);
    TrainingOptions options = durable(bench, policy);
    put_on_sets(options, {1, 2});
    const PartOfTraining head = train_until(options, 9);
    REQUIRE(head.steps < options.steps);
    for (const char* folder : {"ssd-a", "ssd-b", "ssd-c"})
      CHECK(bytes_in(bench.root() / folder) > (std::uint64_t{16} << 10));
    options.resume = find_resume_point(head.location);
    CHECK(options.resume->record.identity.sets.size() == 2);
    CHECK(check_store(*options.resume, [](auto, auto) {}).empty());
    const PartOfTraining tail = train_until(options);
    CHECK(tail.location == head.location);
    CHECK(tail.first == head.steps);
    CHECK(tail.hash == whole.hash);
    CHECK(tail.losses ==
          std::vector<double>(whole.losses.begin() + tail.first, whole.losses.end()));
    CHECK(files_of(tail.location).empty());
  }
}

TEST_CASE("a training goes on with more sets of drives, fewer, or other ones", "[store]") {
  const Workbench bench;
  TrainingOptions plain = durable(bench, "resident");
  plain.durability = {};
  const PartOfTraining whole = train_until(plain);
  const std::vector<std::vector<std::uint32_t>> all = {{}, {1, 2}, {2, 1}, {1, 1, 1}, {}, {1, 2}};
  TrainingOptions options = durable(bench, "fuyou");
  PartOfTraining last = train_until(options, 2);
  for (std::size_t i = 1; i < all.size(); ++i) {
    INFO("change " << i);
    options = durable(bench, policies_on_drives()[i % policies_on_drives().size()]);
    if (!all[i].empty()) put_on_sets(options, all[i], 0x31 + i);
    const StoreLocation before = last.location;
    options.resume = find_resume_point(before);
    last = train_until(options, last.steps + 1);
    CHECK_FALSE(last.location == before);
    CHECK(files_of(before).empty());
    REQUIRE(last.first == options.resume->record.version);
    for (std::size_t step = 0; step < last.losses.size(); ++step)
      REQUIRE(last.losses[step] == whole.losses[static_cast<std::size_t>(last.first) + step]);
  }
}

TEST_CASE("a plan for two sets of drives is refused where directories of one are named",
          "[store]") {
  const Workbench bench;
  TrainingOptions options = durable(bench, "fuyou");
  put_on_sets(options, {1, 2});
  options.ssd_sets = {};
  try {
    Training training(options);
    FAIL("there is no place for the second set");
  } catch (const InputError& error) {
    CHECK(std::string(error.what()).find("ssd2") != std::string::npos);
  }
}

TEST_CASE("a damaged chunk on the second set is found there", "[store]") {
  const Workbench bench;
  TrainingOptions options = durable(bench, "fuyou");
  put_on_sets(options, {1, 2});
  const PartOfTraining head = train_until(options, 5);
  const ResumePoint point = find_resume_point(head.location);
  const fs::path file = store_file(head.location.directories[1], 1, head.location.generation);
  // A bit of every block, so that the committed copy has its part.
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  for (std::uint64_t at = store_header_bytes + 17; at < fs::file_size(file); at += 4096) {
    bytes.seekg(static_cast<std::streamoff>(at));
    const int byte = bytes.get();
    bytes.seekp(static_cast<std::streamoff>(at));
    bytes.put(static_cast<char>(byte ^ 1));
  }
  bytes.close();
  const std::vector<BadChunk> bad = check_store(point, [](auto, auto) {});
  REQUIRE(!bad.empty());
  for (const BadChunk& one : bad) CHECK(one.file == file);
}

}  // namespace
}  // namespace spillway
