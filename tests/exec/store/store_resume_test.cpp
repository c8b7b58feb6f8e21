// Stores that are opened again, moved and left behind: what counts is never lost, and what belongs
// to somebody else is not touched.
#include <catch2/catch.hpp>
#include <mutex>
#include <vector>

#include "base/errors.hpp"
#include "exec/run/training.hpp"
#include "exec/store/store_check.hpp"
#include "tests/exec/io/rings.hpp"
#include "tests/exec/io_test_support.hpp"
#include "tests/exec/training_support.hpp"

namespace spillway::test {
namespace {

const char* const on_ssd = "greedysnake:snake=off,optimizer_ssd=1";

TrainingOptions durable(const Workbench& bench, const std::string& policy) {
  TrainingOptions options = bench.options(policy, 2, 16, 2);
  options.durability = {DurabilityMode::on, 1};
  options.steps = 12;
  return options;
}

struct Ended {
  std::int64_t steps = 0;
  std::uint64_t hash = 0;
  StoreLocation location;
};

Ended train(const TrainingOptions& options, std::int64_t stop_at = -1) {
  Training training(options);
  training.remove_previous_store();
  const TrainingResult result = training.run(
      [&](const StepResult& step) {
        if (step.step + 1 == stop_at) training.request_stop();
      },
      nullptr);
  return {result.steps, result.weights_hash, training.store_location()};
}

// Notes what is asked of the drive, in order, over all rings of a kind.
class Notes {
 public:
  explicit Notes(IoMethod rings) : make_(factory_of(rings)) {}
  struct Note {
    IoKind kind;
    bool record;  // the file of records, which is a ring's last
    std::uint64_t offset;
  };
  auto factory() {
    return [this](std::span<const int> files, unsigned depth) -> std::unique_ptr<IoRing> {
      return std::make_unique<Ring>(*this, files, depth);
    };
  }
  std::vector<Note> notes;

 private:
  class Ring final : public IoRing {
   public:
    Ring(Notes& notes, std::span<const int> files, unsigned depth)
        : notes_(notes), files_(files.size()), ring_(notes.make_(files, depth)) {}
    void queue(const IoRequest& request) override {
      {
        const std::lock_guard lock(notes_.mutex_);
        notes_.notes.push_back({request.kind, request.file + 1 == files_, request.file_offset});
      }
      ring_->queue(request);
    }
    int submit_and_wait() override { return ring_->submit_and_wait(); }
    std::size_t reap(std::span<IoCompletion> completions) override {
      return ring_->reap(completions);
    }
    void pause(unsigned attempt) override { ring_->pause(attempt); }
    void register_memory(std::span<std::byte> memory) override { ring_->register_memory(memory); }
    const std::vector<std::string>& warnings() const override { return ring_->warnings(); }

   private:
    Notes& notes_;
    std::size_t files_;
    std::unique_ptr<IoRing> ring_;
  };
  const RingFactory make_;
  std::mutex mutex_;
};

TEST_CASE("a record that may be in the drive's cache only is made durable before it is relied on",
          "[store]") {
  const Workbench bench(folder_for_many_runs());
  TrainingOptions options = durable(bench, on_ssd);
  options.resume = find_resume_point(train(options, 3).location);
  Notes notes(GENERATE(from_range(rings())));
  options.make_ring = notes.factory();
  train(options);
  bool synced = false;
  for (const Notes::Note& note : notes.notes) {
    if (note.kind == IoKind::sync && note.record) synced = true;
    if (note.kind == IoKind::write) break;
  }
  CHECK(synced);
}

TEST_CASE("every record is written by turns after a sync of all stripes, and then synced",
          "[store]") {
  const Workbench bench(folder_for_many_runs());
  const IoMethod ring = GENERATE(from_range(rings()));
  for (const char* policy : {"resident", on_ssd}) {
    INFO(policy << " over " << to_string(ring));
    TrainingOptions options = durable(bench, policy);
    Notes notes(ring);
    options.make_ring = notes.factory();
    train(options);
    int stripes_synced = 0, records = 0;
    bool record_open = false;
    std::uint64_t last_place = 1;
    for (const Notes::Note& note : notes.notes) {
      if (note.kind == IoKind::sync && !note.record) ++stripes_synced;
      if (note.kind == IoKind::sync && note.record) record_open = false;
      if (note.kind == IoKind::write && note.record) {
        ++records;
        CHECK(note.offset != last_place);  // the record before stays whole
        last_place = note.offset;
        CHECK(stripes_synced == 2);  // directories
        CHECK_FALSE(record_open);
        stripes_synced = 0;
        record_open = true;
      }
    }
    CHECK_FALSE(record_open);
    CHECK(records == 13);  // of versions 0 .. 12
  }
}

TEST_CASE("a stripe of another training is not overwritten, unless asked for", "[store]") {
  const Workbench bench(folder_for_many_runs());
  TrainingOptions options = durable(bench, on_ssd);
  const Ended other = train(options, 3);
  fs::create_directories(bench.root() / "ssd-c");
  TrainingOptions mine = durable(bench, on_ssd);
  mine.ssd = {bench.root() / "ssd-c", bench.root() / "ssd-b"};
  CHECK_THAT(message_of<InputError>([&] { Training training(mine); }),
             Catch::Contains("ssd-b") && Catch::Contains("belongs to another training") &&
                 Catch::Contains("overwrite"));
  CHECK(check_store(find_resume_point(other.location), [](auto, auto) {}).empty());
  mine.overwrite = true;
  CHECK(train(mine).steps == 12);
}

TEST_CASE("a training that goes on without commits leaves the last one alone until it is done",
          "[store]") {
  const Workbench bench(folder_for_many_runs());
  const std::uint64_t hash = train(durable(bench, "resident")).hash;
  for (const char* policy : {"resident", on_ssd}) {
    INFO(policy);
    TrainingOptions options = durable(bench, on_ssd);
    const Ended head = train(options, 3);
    options = durable(bench, policy);
    options.durability = {};
    options.resume = find_resume_point(head.location);
    Training training(options);
    REQUIRE(training.previous_store() == head.location);
    CHECK(training.run([](const StepResult&) {}, nullptr).weights_hash == hash);
    CHECK(find_resume_point(head.location).record.version == head.steps);
    // Nobody else can go on with it, or look into it, while it may still be needed.
    CHECK_THAT(message_of<MachineError>(
                   [&] { check_store(find_resume_point(head.location), [](auto, auto) {}); }),
               Catch::Contains("in use by another run"));
    training.remove_previous_store();
    CHECK(files_of(head.location).empty());
  }
}

TEST_CASE("a training with all its steps behind it can be opened for its weights, also moved",
          "[store]") {
  const Workbench bench(folder_for_many_runs());
  TrainingOptions options = durable(bench, on_ssd);
  options.keep_store = true;
  const Ended whole = train(options);
  for (const char* policy : {on_ssd, "resident", "zero-offload"}) {
    INFO(policy);
    options.policy = policy;
    options.resume = find_resume_point(whole.location);
    options.may_be_done = true;
    Training training(options);
    CHECK(training.first_step() == 12);
    const TrainingResult result = training.run([](const StepResult&) { FAIL("a step"); }, nullptr);
    CHECK(result.steps == 12);
    CHECK(result.weights_hash == whole.hash);
  }
  options.may_be_done = false;
  CHECK_THAT(message_of<InputError>([&] { Training training(options); }),
             Catch::Contains("larger steps"));
}

TEST_CASE("a training that failed, or was never run, goes on from its last commit", "[store]") {
  const Workbench bench(folder_for_many_runs());
  const std::uint64_t hash = train(durable(bench, "resident")).hash;
  for (const char* policy : {"resident", on_ssd}) {
    INFO(policy);
    TrainingOptions options = durable(bench, policy);
    const Ended head = train(options, 2);
    // Opened, and closed again while the committer sleeps: nothing has changed.
    for (int i = 0; i < 2; ++i) {
      options.resume = find_resume_point(head.location);
      CHECK(options.resume->record.version == head.steps);
      const Training training(options);
    }
    // A report that throws ends it: the step it was told of is not committed.
    options.resume = find_resume_point(head.location);
    {
      Training training(options);
      CHECK_THROWS_WITH(training.run(
                            [&](const StepResult& step) {
                              if (step.step == head.steps + 2) throw std::runtime_error("enough");
                            },
                            nullptr),
                        "enough");
    }
    options.resume = find_resume_point(head.location);
    CHECK(options.resume->record.version >= head.steps);
    CHECK(options.resume->record.version <= head.steps + 2);
    CHECK(train(options).hash == hash);
  }
}

TEST_CASE("weights that cannot be written leave the committed state where it is", "[store]") {
  const Workbench bench(folder_for_many_runs());
  TrainingOptions options = durable(bench, on_ssd);
  StoreLocation location;
  {
    Training training(options);
    training.run([](const StepResult&) {}, nullptr);
    location = training.store_location();
    fs::create_directories(bench.root() / "taken/model.safetensors");
    CHECK_THROWS(training.export_model(Directory(bench.root() / "taken")));
  }
  options.resume = find_resume_point(location);
  options.may_be_done = true;
  {
    Training training(options);
    training.run([](const StepResult&) {}, nullptr);
    training.export_model(Directory(bench.root()));
  }
  CHECK(files_of(location).empty());
}

// Gives every file of the folder another end of its name.
void rename_files(const fs::path& folder, const std::string& from, const std::string& to) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  for (const fs::path& file : files) {
    const std::string name = file.string();
    fs::rename(file, name.substr(0, name.size() - from.size()) + to);
  }
}

TEST_CASE("a directory that vanishes stops committed training with a message, as a missing one",
          "[store]") {
  const Workbench bench(folder_for_many_runs());
  for (const char* policy : {"resident", on_ssd}) {
    for (const char* which : {"ssd-a", "ssd-b"}) {
      INFO(policy << ", " << which);
      TrainingOptions options = durable(bench, policy);
      fs::create_directories(bench.root() / which);
      std::int64_t committed = 0;
      const std::string message = message_of<MachineError>([&] {
        Training training(options);
        training.run(
            [&](const StepResult& step) {
              if (step.step == 4) rename_files(bench.root() / which, "", ".away");
            },
            nullptr, [&](std::int64_t version) { committed = version; });
      });
      CHECK_THAT(message, Catch::Contains(which) && Catch::Contains("is gone from its directory") &&
                              Catch::Contains("resume"));
      CHECK(committed <= 5);
      // Without it there is nothing to go on from; with it again there is.
      const StoreLocation location{options.ssd, 0};
      const std::string missing = message_of<InputError>([&] {
        options.resume = find_resume_point(location);
        Training training(options);
      });
      CHECK_THAT(missing, Catch::Contains(which));
      rename_files(bench.root() / which, ".away", "");
      options.resume = find_resume_point(location);
      CHECK(options.resume->record.version >= committed);
      CHECK(train(options).steps == 12);
    }
  }
}

TEST_CASE("what lies in a directory is found, and a chunk that was changed is named", "[store]") {
  const Workbench bench(folder_for_many_runs());
  TrainingOptions options = durable(bench, on_ssd);
  const Ended head = train(options, 3);
  const std::vector<StoreLocation> found = find_stores(bench.root() / "ssd-a");
  REQUIRE(found.size() == 1);
  CHECK(found[0].generation == head.location.generation);
  CHECK(found[0].directories.size() == 2);
  CHECK(find_stores(bench.root() / "ssd-b").empty());
  const ResumePoint point = find_resume_point(found[0]);
  const StatePart& part = point.record.identity.parts[0];
  const fs::path file = store_file(found[0].directories[0], 0, found[0].generation);
  // The first stripe is as long as all that is stored here.
  const std::uint64_t at =
      store_header_bytes + part.address[static_cast<std::size_t>(point.record.copy())];
  std::string bytes = read_file(file);
  REQUIRE(at < bytes.size());
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<std::streamoff>(at))
      .put(bytes[at]);
  const std::vector<BadChunk> bad = check_store(point, [](auto, auto) {});
  REQUIRE(bad.size() == 1);
  CHECK(bad[0].unit == part.unit);
  CHECK(bad[0].file == file);
  CHECK(bad[0].offset == at);
}

TEST_CASE("a forged record whose chunks cross the store's own boundaries is refused", "[store]") {
  const Workbench bench(folder_for_many_runs());
  TrainingOptions options = durable(bench, on_ssd);
  options.stripe_bytes = 8192;  // several chunks a part
  const Ended head = train(options, 3);
  ResumePoint point = find_resume_point(head.location);
  auto& parts = point.record.chunks;
  const auto long_one = std::find_if(parts.begin(), parts.end(),
                                     [](const auto& chunks) { return chunks.size() > 1; });
  REQUIRE(long_one != parts.end());
  long_one->erase(long_one->begin());  // the second one now begins where the first did
  CHECK_THAT(message_of<InputError>([&] { check_store(point, [](auto, auto) {}); }),
             Catch::Contains("as no run does"));
}

}  // namespace
}  // namespace spillway::test
