// Who may go on in a run's folder, as two computers see it, and what a folder is to the one that
// was written down.
#include "exec/run/run_folder.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/exec/io_test_support.hpp"
#include "tests/exec/training_support.hpp"

namespace spillway::test {
namespace {

namespace fs = std::filesystem;

Surroundings computer(const char* name, bool shares) {
  return shares ? Surroundings{name, [](int) { return true; }}
                : Surroundings{name, [](int) { return false; }};
}

// A run that has committed some steps, in `run`, with its state in `ssd` (empty: inside).
void begin(const Workbench& bench, const fs::path& run, const std::vector<fs::path>& ssd,
           const Surroundings& here) {
  RunFolder folder = RunFolder::create(run.string(), "tiny", here);
  TrainingOptions options = bench.options("greedysnake:snake=off,optimizer_ssd=1", 1, 16, 1);
  options.steps = 3;
  options.ssd = ssd.empty() ? std::vector<fs::path>{folder.make_ssd_folder()} : ssd;
  options.durability = {DurabilityMode::on, 1};
  options.keep_store = true;
  options.run = folder.identity();
  folder.save();
  Training training(options);
  folder.keep();
  folder.remember_store(training.store_location());
  training.run([](const StepResult&) {}, nullptr);
}

}  // namespace

TEST_CASE("a run at work on another computer is not joined, nor one that ended there in silence",
          "[store]") {
  const Workbench bench(folder_for_many_runs());
  const fs::path run = bench.root() / "run";
  begin(bench, run, {}, computer("here", true));
  // Ended as it should: everybody may go on.
  { RunFolder::open(run.string(), false, computer("there", true)); }
  // It says that it is at work, and the lock of the other computer's kernel does not reach us.
  write_file(run / "run.lock", "there\nprocess 7 since then\n");
  const auto open_on = [&](const Surroundings& here, bool take_over) {
    RunFolder::open(run.string(), take_over, here);
  };
  const std::string refused =
      message_of<MachineError>([&] { open_on(computer("here", true), false); });
  CHECK_THAT(refused, Catch::Contains("on another computer") &&
                          Catch::Contains("there process 7 since then") &&
                          Catch::Contains("take_over"));
  // On a drive of this computer nobody else can be at work: the kernel knows.
  open_on(computer("here", false), false);
  write_file(run / "run.lock", "there\nprocess 7 since then\n");
  open_on(computer("here", true), true);
  // The one itself, which crashed.
  write_file(run / "run.lock", "there\nprocess 7 since then\n");
  open_on(computer("there", true), false);
}

TEST_CASE("a folder is opened by one run at a time, which is named to the others", "[store]") {
  const Workbench bench(folder_for_many_runs());
  const fs::path run = bench.root() / "run";
  begin(bench, run, {}, this_computer());
  const RunFolder first = RunFolder::open(run.string());
  CHECK_THAT(
      message_of<MachineError>([&] { RunFolder::open(run.string()); }),
      Catch::Contains("is at work") && Catch::Contains("process " + std::to_string(::getpid())));
}

TEST_CASE(
    "state outside of its folder is not taken from a run of another computer, where both see it",
    "[store]") {
  const Workbench bench(folder_for_many_runs());
  const fs::path run = bench.root() / "run", copy = bench.root() / "copy";
  begin(bench, run, {bench.root() / "ssd-a", bench.root() / "ssd-b"}, computer("there", true));
  fs::copy(run, copy, fs::copy_options::recursive);
  const auto go_on = [&](const Surroundings& here, bool take_over) {
    RunFolder folder = RunFolder::open(copy.string(), take_over, here);
    return folder.resume({{}, take_over, {}}).point->record.version;
  };
  CHECK_THAT(message_of<InputError>([&] { go_on(computer("here", true), false); }),
             Catch::Contains("belongs to two runs: there:" + run.string()) &&
                 Catch::Contains("here:" + copy.string()));
  // A drive of this computer: the other one cannot have it.
  CHECK(go_on(computer("here", false), false) == 3);
}

TEST_CASE("a folder is the same, put back, moved, copied or on another computer", "[store]") {
  const Workbench bench(folder_for_many_runs());
  const Surroundings here = this_computer();
  const fs::path run = bench.root() / "run", copy = bench.root() / "copy";
  begin(bench, run, {}, here);
  const RunId id = id_of_run_in(run);
  REQUIRE(is_run_id(id));
  const RunHome home = home_of(run, here);
  fs::copy(run, copy, fs::copy_options::recursive);
  CHECK(relation(home, home_of(run, here), id) == Relation::same);
  CHECK(relation(home, home_of(copy, here), id) == Relation::copied);
  CHECK(relation(home, home_of(copy, computer("there", true)), id) == Relation::unknown);
  fs::rename(run, bench.root() / "renamed");
  CHECK(relation(home, home_of(bench.root() / "renamed", here), id) == Relation::same);
  CHECK(relation(home, home_of(copy, here), id) == Relation::moved);
  fs::rename(copy, run);
  CHECK(relation(home, home_of(run, here), id) == Relation::put_back);
  // Another run in the old place is no original.
  fs::rename(run, copy);
  begin(bench, run, {}, here);
  CHECK(relation(home, home_of(copy, here), id) == Relation::moved);
}

TEST_CASE("a crash while a copy becomes a run of its own leaves it able to go on", "[store]") {
  const Workbench bench(folder_for_many_runs());
  const fs::path run = bench.root() / "run", copy = bench.root() / "copy";
  begin(bench, run, {}, this_computer());
  fs::copy(run, copy, fs::copy_options::recursive);
  const RunId id = id_of_run_in(run);
  // After run.json had the new id, and the header of one of two files.
  const RunId fresh = new_run_id();
  {
    const Directory folder(copy);
    SavedRun saved = SavedRun::load(folder);
    saved.id = fresh;
    saved.former_ids = {id};
    saved.home = home_of(copy, this_computer());
    saved.save(folder);
    const Directory ssd(folder, "ssd");
    const auto file = ssd.open(record_name(0), O_RDWR, FileUse::change);
    REQUIRE(file.has_value());
    StoreHeader header = *read_header(file->get(), "record");
    header.run.id = fresh;
    write_header(file->get(), "record", header);
  }
  RunFolder folder = RunFolder::open(copy.string());
  const ResumeState state = folder.resume({});
  CHECK(state.point->record.version == 3);
  CHECK(state.point->run.id == fresh);
  CHECK(read_header(copy / "ssd" / stripe_name(0, 0))->run.id == fresh);
  CHECK(read_header(run / "ssd" / stripe_name(0, 0))->run.id == id);
  CHECK(SavedRun::load(Directory(copy)).former_ids.empty());
}

TEST_CASE("a later store that the folder does not know of is taken where it says so only",
          "[store]") {
  const Workbench bench(folder_for_many_runs());
  const fs::path run = bench.root() / "run", elsewhere = bench.root() / "elsewhere";
  begin(bench, run, {bench.root() / "ssd-a"}, this_computer());
  // What a move to another directory leaves that is broken off before run.json knows of it.
  fs::create_directory(elsewhere);
  for (const auto& [from, to] : {std::pair(stripe_name(0, 0), stripe_name(0, 1)),
                                 std::pair(record_name(0), record_name(1))}) {
    fs::copy_file(bench.root() / "ssd-a" / from, elsewhere / to);
    const auto file = Directory(elsewhere).open(to, O_RDWR, FileUse::change);
    StoreHeader header = *read_header(file->get(), to);
    header.generation = 1;
    write_header(file->get(), to, header);
  }
  fs::rename(bench.root() / "ssd-a", bench.root() / "unmounted");
  const auto go_on = [&](bool take_over) {
    RunFolder folder = RunFolder::open(run.string());
    return folder.resume({{elsewhere}, take_over, {}}).point->location.generation;
  };
  CHECK_THAT(message_of<InputError>([&] { go_on(false); }),
             Catch::Contains("does not know of it") && Catch::Contains("take_over"));
  CHECK(go_on(true) == 1);
}

TEST_CASE("what a killed run was writing goes when its folder is opened, and nothing else",
          "[store]") {
  const Workbench bench(folder_for_many_runs());
  const fs::path run = bench.root() / "run";
  begin(bench, run, {}, this_computer());
  for (const char* name :
       {".model.safetensors.partial-0123456789abcdef",
        ".model-00001-of-00002.safetensors.partial-0123456789abcdef",
        ".mine.partial-0123456789abcdef", ".model.safetensors.partial-mine", "notes"})
    write_file(run / name, "text");
  { RunFolder::open(run.string()); }
  CHECK_FALSE(fs::exists(run / ".model.safetensors.partial-0123456789abcdef"));
  CHECK_FALSE(fs::exists(run / ".model-00001-of-00002.safetensors.partial-0123456789abcdef"));
  CHECK(fs::exists(run / ".mine.partial-0123456789abcdef"));
  CHECK(fs::exists(run / ".model.safetensors.partial-mine"));
  CHECK(fs::exists(run / "notes"));
}

}  // namespace spillway::test
