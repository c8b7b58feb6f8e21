// What is frozen has no copy but the checkpoint's own files, and changes no number by where it
// rests.

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "base/errors.hpp"
#include "exec/data/merged_weights.hpp"
#include "exec/data/model_writer.hpp"
#include "exec/run/frozen_origin.hpp"
#include "exec/run/training.hpp"
#include "policies/machine/memory_beside.hpp"
#include "policies/model/peft.hpp"
#include "policies/model/units.hpp"
#include "tests/exec/io_test_support.hpp"
#include "tests/exec/training_support.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

namespace fs = std::filesystem;

std::string bytes_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Moves the data of a safetensors file to where its header ends, on no grid.
void unalign(const fs::path& path) {
  const std::string whole = bytes_of_file(path);
  std::uint64_t length = 0;
  std::memcpy(&length, whole.data(), sizeof length);
  std::string header = whole.substr(sizeof length, length);
  header.resize(header.find_last_not_of(' ') + 1);
  header.resize((header.size() + 7) / 8 * 8 + 40, ' ');
  const std::uint64_t shorter = header.size();
  REQUIRE((shorter + sizeof shorter) % 4096 != 0);
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(&shorter), sizeof shorter);
  out << header << whole.substr(sizeof length + length);
}

// A folder with the weights of a model as they are drawn from `seed`.
fs::path write_base(const fs::path& folder, const ModelSpec& model, std::uint64_t seed,
                    ElementType type = ElementType::f32) {
  fs::create_directories(folder);
  const ModelSpec base = base_model(model);
  const StateValues drawn = initial_state(base, seed);
  write_weights(Directory(folder), base,
                [&](std::int64_t unit, std::uint64_t first, std::uint64_t count, float* to) {
                  drawn(unit, 0, first, count, to);
                },
                {.type = type, .progress = {}});
  unalign(folder / SafetensorsFolder::single_file);
  return folder;
}

TrainingOptions lora(const Workbench& bench, const std::string& policy, const fs::path& base,
                     const std::string& model = "llama-tiny", int layers = 3, int hidden = 32) {
  TrainingOptions options = bench.options(policy, layers, hidden, 2, model);
  options.problem.model.lora_rank = 3;
  options.problem.model.lora_alpha = 6;
  options.problem.model.lora_dropout = 0.1;
  options.steps = 6;
  options.weights = std::make_shared<Checkpoint>(base, options.problem.model);
  set_memory_beside(options.problem,
                    FrozenFiles::why_not(options.problem, *options.weights).empty());
  return options;
}

constexpr const char* on_the_ssd =
    "greedysnake:snake=off,parameters_ssd=1,optimizer_ssd=0.5,checkpoints_ssd=1,alpha=0";

struct Run {
  Losses losses;
  bool in_place = false;
  std::uint64_t store = 0, in_store = 0;
  std::uint64_t read = 0;  // of the ssd tier, in all steps
};

Run run(const TrainingOptions& options, std::int64_t stop_at = -1) {
  Training training(options);
  Run run;
  training.remove_previous_store();
  run.in_place = training.frozen_files() != nullptr;
  run.in_store = training.frozen_bytes_in_store();
  run.store = training.store() ? training.store()->size() : 0;
  run.losses.weights_hash = training
                                .run(
                                    [&](const StepResult& step) {
                                      run.losses.of_step.push_back(step.loss);
                                      run.read += step.ssd_bytes_read;
                                      if (step.step + 1 == stop_at) training.request_stop();
                                    },
                                    nullptr)
                                .weights_hash;
  return run;
}

}  // namespace

TEST_CASE("frozen weights read in place make the numbers of those that are resident", "[store]") {
  const Workbench bench;
  for (const char* model : {"llama-tiny", "qwen-tiny"}) {
    INFO(model);
    const TrainingOptions shape = bench.options("resident", 3, 32, 2, model);
    const fs::path base = write_base(bench.root() / model, shape.problem.model, 5);
    const std::string before = bytes_of_file(base / SafetensorsFolder::single_file);
    const Run resident = run(lora(bench, "resident", base, model));
    CHECK_FALSE(resident.in_place);
    const Run in_place = run(lora(bench, on_the_ssd, base, model));
    CHECK(in_place.in_place);
    CHECK(in_place.in_store == 0);
    CHECK(difference(resident.losses, in_place.losses) == "");
    TrainingOptions copied = lora(bench, on_the_ssd, base, model);
    set_memory_beside(copied.problem, false);
    const Run in_store = run(copied);
    CHECK_FALSE(in_store.in_place);
    CHECK(difference(resident.losses, in_store.losses) == "");
    CHECK(in_store.in_store > 0);
    // The store has no room for what is in the files.
    CHECK(in_store.store == in_place.store + in_store.in_store);
    CHECK(bytes_of_file(base / SafetensorsFolder::single_file) == before);
  }
}

// Frozen weights of BF16 and training in bf16, of F32 and in fp32: a quarter of their bytes is all
// the host memory there is beside the buffer for reading.
TEST_CASE("frozen weights of the type that is computed with are read in place in any precision",
          "[store]") {
  const Workbench bench;
  for (const Precision precision : {Precision::bf16, Precision::fp32}) {
    const bool narrow = precision == Precision::bf16;
    INFO((narrow ? "bf16" : "fp32"));
    const auto options_of = [&](const std::string& policy, const fs::path& base) {
      TrainingOptions options = bench.options(policy, 40, 128, 2, "llama-tiny");
      options.problem.workload.precision = precision;
      options.problem.model.lora_rank = 2;
      options.problem.model.lora_alpha = 4;
      options.steps = 3;
      if (!base.empty())
        options.weights = std::make_shared<Checkpoint>(base, options.problem.model);
      return options;
    };
    const ModelSpec model = options_of("resident", {}).problem.model;
    const fs::path base = write_base(bench.root() / (narrow ? "narrow" : "wide"), model, 5,
                                     narrow ? ElementType::bf16 : ElementType::f32);
    const auto frozen_bytes = static_cast<std::uint64_t>(model.parameters()) * (narrow ? 2 : 4);
    const Run resident = run(options_of("resident", base));
    TrainingOptions small = options_of(on_the_ssd, base);
    set_memory_beside(small.problem, false);
    small.problem.machine.host.memory = frozen_bytes / 4;
    TrainingOptions copied = small;
    small.problem.machine.host.memory += frozen_buffer_bytes;
    set_memory_beside(small.problem, true);
    const Run in_place = run(small);
    CHECK(in_place.in_place);
    CHECK(in_place.in_store == 0);
    CHECK(in_place.read > static_cast<std::uint64_t>(small.steps) * frozen_bytes);
    CHECK(difference(resident.losses, in_place.losses) == "");
    const Run in_store = run(copied);
    CHECK_FALSE(in_store.in_place);
    CHECK(in_store.in_store > 0);
    CHECK(in_store.read == in_place.read);
    CHECK(difference(resident.losses, in_store.losses) == "");
  }
}

TEST_CASE("with a quarter of the frozen weights' bytes as host memory the numbers are the same",
          "[store]") {
  const Workbench bench;
  const auto options = [&](const std::string& policy, const fs::path& base) {
    TrainingOptions one = lora(bench, policy, base, "llama-tiny", 48, 256);
    one.steps = 2;
    one.guard_bytes = 0;
    return one;
  };
  const fs::path base = write_base(
      bench.root() / "base", bench.options("resident", 48, 256, 2, "llama-tiny").problem.model, 5);
  const std::uint64_t limit = fs::file_size(base / SafetensorsFolder::single_file) / 4;
  const Run resident = run(options("resident", base));
  CHECK_FALSE(resident.in_place);
  TrainingOptions limited = options("spillway:parameters.rest=ssd:1,order.row=1", base);
  set_memory_beside(limited.problem, false);
  limited.problem.machine.host.memory = limit;
  limited.problem.machine.gpu.memory = 64'000'000;  // nor does it hold them all
  set_memory_beside(limited.problem, true);
  Training training(limited);
  REQUIRE(training.frozen_files() != nullptr);
  const FrozenFiles& files = *training.frozen_files();
  CHECK(files.bytes() > 3 * limit);
  Losses losses;
  losses.weights_hash =
      training.run([&](const StepResult& step) { losses.of_step.push_back(step.loss); }, nullptr)
          .weights_hash;
  CHECK(difference(resident.losses, losses) == "");
  CHECK(files.bytes_read() > files.bytes());
  CHECK(training.schedule().use(Tier::host).peak_bytes + files.memory_bytes() <= limit);
  CHECK(training.highest_use(Tier::host) + files.memory_bytes() <= limit);
  CHECK(training.highest_written(Tier::host) + files.memory_bytes() <= limit);
}

TEST_CASE("a file that is written to while it is read in place ends the training", "[store]") {
  const Workbench bench;
  const TrainingOptions shape = bench.options("resident", 3, 32, 2, "llama-tiny");
  const fs::path base = write_base(bench.root() / "base", shape.problem.model, 5);
  Training training(lora(bench, on_the_ssd, base));
  REQUIRE(training.frozen_files() != nullptr);
  std::int64_t steps = 0;
  const auto change = [&](const StepResult&) {
    if (++steps != 2) return;
    std::fstream file(base / SafetensorsFolder::single_file,
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('x');
  };
  CHECK_THROWS_WITH(training.run(change, nullptr), Catch::Contains("was written to"));
  CHECK(steps >= 2);
  CHECK(steps < 6);
}

TEST_CASE("what lies transposed in its files is copied to the store", "[store]") {
  const Workbench bench;
  const TrainingOptions shape = bench.options("resident", 3, 32, 2);
  const fs::path base = write_base(bench.root() / "gpt", shape.problem.model, 5);
  const Run resident = run(lora(bench, "resident", base, "gpt-tiny"));
  const Run copied = run(lora(bench, on_the_ssd, base, "gpt-tiny"));
  CHECK_FALSE(copied.in_place);
  CHECK(copied.in_store > 0);
  CHECK(difference(resident.losses, copied.losses) == "");
}

TEST_CASE("a training of adapters goes on bit for bit, beside the weights that it began with",
          "[store]") {
  const Workbench bench;
  const TrainingOptions shape = bench.options("resident", 3, 32, 2, "llama-tiny");
  const fs::path base = write_base(bench.root() / "base", shape.problem.model, 5);
  const Run whole = run(lora(bench, "resident", base));
  for (const char* policy : {"resident", on_the_ssd}) {
    INFO(policy);
    TrainingOptions options = lora(bench, policy, base);
    options.durability = {DurabilityMode::on, 1};
    StoreLocation location;
    std::size_t done = 0;
    {
      Training first(options);
      first.run(
          [&](const StepResult& step) {
            ++done;
            if (step.step + 1 == 3) first.request_stop();
          },
          nullptr);
      location = first.store_location();
    }
    options.resume = find_resume_point(location);
    options.run = options.resume->run;
    TrainingOptions without = options;
    without.weights = nullptr;
    CHECK_THROWS_AS(Training(without), InputError);
    const fs::path other = write_base(bench.root() / "other", shape.problem.model, 6);
    TrainingOptions with_other = options;
    with_other.weights = std::make_shared<Checkpoint>(other, options.problem.model);
    const std::string message = message_of<InputError>([&] { Training{with_other}; });
    CHECK(message.find("are not those that the run began with") != std::string::npos);
    options.weights = std::make_shared<Checkpoint>(base, options.problem.model);
    const Run tail = run(options);
    REQUIRE(done + tail.losses.of_step.size() == whole.losses.of_step.size());
    for (std::size_t i = 0; i < tail.losses.of_step.size(); ++i)
      CHECK(tail.losses.of_step[i] == whole.losses.of_step[done + i]);
    CHECK(tail.losses.weights_hash == whole.losses.weights_hash);
    fs::remove_all(other);
  }
}

TEST_CASE("adapters written by training are read again as they were, and merged into W + s B A",
          "[store]") {
  const Workbench bench;
  for (const char* name : {"gpt-tiny", "llama-tiny", "qwen-tiny"}) {
    INFO(name);
    TrainingOptions shape = bench.options("resident", 3, 32, 2, name);
    const fs::path base = write_base(bench.root() / name, shape.problem.model, 5);
    TrainingOptions options = lora(bench, "resident", base, name);
    options.optimizer.learning_rate = 0.1;
    const fs::path adapter = bench.root() / (std::string(name) + "-adapter");
    fs::create_directories(adapter);
    Training training(options);
    training.run([](const StepResult&) {}, nullptr);
    training.export_model(Directory(adapter));
    const ModelSpec& model = options.problem.model;
    Checkpoint read(adapter, model, make_usual_ring, CheckpointPart::adapter);
    Checkpoint weights(base, model);
    const auto values = [](Checkpoint& from) {
      return [&](std::int64_t unit, std::uint64_t first, std::uint64_t count, float* to) {
        from.read(unit, first, count, to);
      };
    };
    const WeightValues merged = merged_weights(model, values(weights), values(read));
    const auto elements = static_cast<std::size_t>(unit_elements(model, 1));
    std::vector<float> w(elements), ab(elements), found(elements);
    weights.read(1, 0, elements, w.data());
    read.read(1, 0, elements, ab.data());
    // In pieces that begin and end within rows.
    for (std::size_t at = 0; at < elements; at += 1000)
      merged(1, at, std::min<std::size_t>(1000, elements - at), found.data() + at);
    bool changed = false;
    for (const AdaptedMatrix& one : adapted_matrices(model)) {
      for (std::int64_t r = 0; r < one.rows; ++r) {
        for (std::int64_t c = 0; c < one.columns; ++c) {
          float sum = 0;
          for (std::int64_t k = 0; k < model.lora_rank; ++k)
            sum += ab[static_cast<std::size_t>(one.b + r * model.lora_rank + k)] *
                   ab[static_cast<std::size_t>(one.a + k * one.columns + c)];
          const auto i = static_cast<std::size_t>(one.matrix + r * one.columns + c);
          REQUIRE(found[i] == Approx(w[i] + 2 * sum).margin(1e-6));
          changed = changed || found[i] != w[i];
          w[i] = found[i];
        }
      }
    }
    CHECK(changed);
    const auto trained = static_cast<std::size_t>(trained_elements(model, 1));
    CHECK(std::equal(w.begin() + static_cast<std::ptrdiff_t>(trained), w.end(),
                     found.begin() + static_cast<std::ptrdiff_t>(trained)));
    // A training that begins with them has them.
    TrainingOptions again = lora(bench, "resident", base, name);
    again.adapter =
        std::make_shared<Checkpoint>(adapter, model, make_usual_ring, CheckpointPart::adapter);
    again.optimizer.learning_rate = again.optimizer.weight_decay = 0;
    again.steps = 1;
    Training second(again);
    second.run([](const StepResult&) {}, nullptr);
    const fs::path copy = bench.root() / (std::string(name) + "-copy");
    fs::create_directories(copy);
    second.export_model(Directory(copy));
    CHECK(bytes_of_file(copy / adapter_weights_file) ==
          bytes_of_file(adapter / adapter_weights_file));
  }
}
