#include "exec/data/checkpoint.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "exec/data/model_writer.hpp"
#include "test_paths.hpp"
#include "tests/exec/io_test_support.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

ModelSpec tiny(Architecture architecture) {
  ModelSpec model;
  model.name = "tiny";
  model.architecture = architecture;
  model.layers = 3;
  model.hidden = 48;
  model.heads = model.kv_heads = 4;
  model.ffn = 192;
  model.vocabulary = 101;
  model.positions = 29;
  if (architecture == Architecture::gpt) return model;
  model.kv_heads = 2;
  model.ffn = 80;
  model.qkv_bias = true;
  model.qk_norm = true;
  model.tied = false;
  return model;
}

// Of an element: a number that bf16 and half precision hold, too.
float value_at(std::int64_t unit, std::uint64_t element) {
  return static_cast<float>((element * 7 + static_cast<std::uint64_t>(unit) * 13) % 251) - 125;
}

void some_values(std::int64_t unit, std::uint64_t first, std::uint64_t count, float* to) {
  for (std::uint64_t i = 0; i < count; ++i) to[i] = value_at(unit, first + i);
}

// What a unit holds, padding included.
std::vector<float> whole_unit(const ModelSpec& model, std::int64_t unit) {
  std::vector<float> values(static_cast<std::size_t>(unit_elements(model, unit)));
  for (const TensorLayout& tensor : unit_layout(model, unit))
    some_values(unit, static_cast<std::uint64_t>(tensor.offset),
                static_cast<std::uint64_t>(tensor.elements()),
                &values[static_cast<std::size_t>(tensor.offset)]);
  return values;
}

void check_all(Checkpoint& checkpoint, const ModelSpec& model) {
  for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
    const std::vector<float> expected = whole_unit(model, unit);
    std::vector<float> read(expected.size(), -1);
    checkpoint.read(unit, 0, read.size(), read.data());
    CHECK(read == expected);
  }
}

// The weights in one file, as a list that a test may change before it is written.
struct Stored {
  SafetensorsTensor tensor;
  std::vector<float> values;
};

std::vector<Stored> stored(const ModelSpec& model) {
  std::vector<Stored> all;
  for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
    for (const HuggingFaceTensor& tensor : hugging_face_tensors(model, unit)) {
      Stored& one = all.emplace_back(Stored{{tensor.name, tensor.shape}, {}});
      const std::int64_t rows = tensor.tensor.rows, columns = tensor.tensor.columns;
      for (std::int64_t i = 0; i < tensor.tensor.elements(); ++i) {
        const std::int64_t element = tensor.transposed ? i % rows * columns + i / rows : i;
        one.values.push_back(
            value_at(unit, static_cast<std::uint64_t>(tensor.tensor.offset + element)));
      }
    }
  }
  return all;
}

void write(const std::filesystem::path& path, const std::vector<Stored>& all) {
  std::vector<SafetensorsTensor> tensors;
  for (const Stored& one : all) tensors.push_back(one.tensor);
  write_safetensors(path, tensors,
                    [&](std::size_t index, std::uint64_t offset, std::span<std::byte> piece) {
                      const std::uint64_t width = bytes_of(all[index].tensor.type);
                      narrow(all[index].tensor.type, all[index].values.data() + offset / width,
                             piece.size() / width, piece.data());
                    });
}

std::string refusal(const ModelSpec& model, const std::vector<Stored>& all) {
  const TemporaryFolder folder;
  write(folder / "model.safetensors", all);
  return message_of<InputError>([&] { Checkpoint(folder.path(), model); });
}

Stored& named(std::vector<Stored>& all, const std::string& name) {
  for (Stored& one : all) {
    if (one.tensor.name == name) return one;
  }
  FAIL("there is no tensor " + name);
  return all.front();
}

// A ring that counts the bytes that are read.
class CountingRing final : public IoRing {
 public:
  CountingRing(std::unique_ptr<IoRing> ring, std::atomic<std::uint64_t>& bytes)
      : ring_(std::move(ring)), bytes_(bytes) {}
  void queue(const IoRequest& request) override {
    bytes_ += request.bytes;
    ring_->queue(request);
  }
  int submit_and_wait() override { return ring_->submit_and_wait(); }
  void submit_now() override { ring_->submit_now(); }
  std::size_t reap(std::span<IoCompletion> all) override { return ring_->reap(all); }
  void register_memory(std::span<std::byte> memory) override { ring_->register_memory(memory); }
  const std::vector<std::string>& warnings() const override { return ring_->warnings(); }

 private:
  std::unique_ptr<IoRing> ring_;
  std::atomic<std::uint64_t>& bytes_;
};

// Writes the weights of a model as a file of holes: all of them are zero, but for the first two of
// each tensor, which are its number.
void write_sparse(const std::filesystem::path& path, const ModelSpec& model) {
  std::vector<SafetensorsTensor> tensors;
  std::uint64_t bytes = 0;
  nlohmann::ordered_json header;
  std::vector<std::uint64_t> begins;
  for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
    for (const HuggingFaceTensor& tensor : hugging_face_tensors(model, unit)) {
      const auto end = bytes + static_cast<std::uint64_t>(tensor.tensor.elements()) * sizeof(float);
      header[tensor.name] = {
          {"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {bytes, end}}};
      begins.push_back(bytes);
      bytes = end;
    }
  }
  const std::string text = header.dump();
  std::ofstream out(path, std::ios::binary);
  const std::uint64_t length = text.size();
  out.write(reinterpret_cast<const char*>(&length), sizeof length);
  out << text;
  for (std::size_t i = 0; i < begins.size(); ++i) {
    const float number = static_cast<float>(i + 1);
    out.seekp(static_cast<std::streamoff>(sizeof length + length + begins[i]));
    out.write(reinterpret_cast<const char*>(&number), sizeof number);
    out.write(reinterpret_cast<const char*>(&number), sizeof number);
  }
  out.close();
  std::filesystem::resize_file(path, sizeof length + length + bytes);
}

}  // namespace

TEST_CASE("a checkpoint is read in a fixed amount of memory, each byte once", "[store]") {
  for (const Architecture architecture : {Architecture::gpt, Architecture::llama}) {
    ModelSpec model = tiny(architecture);
    model.layers = 20;
    model.hidden = 512;
    model.ffn = 2048;
    model.head_width = 0;
    const TemporaryFolder folder;
    write_sparse(folder / "model.safetensors", model);
    std::atomic<std::uint64_t> read = 0;
    Checkpoint checkpoint(folder.path(), model, [&](std::span<const int> files, unsigned depth) {
      return std::make_unique<CountingRing>(make_usual_ring(files, depth), read);
    });
    std::uint64_t told = 0, all = 0;
    checkpoint.tell([&](std::uint64_t done, std::uint64_t of) {
      CHECK(done > told);
      told = done;
      all = of;
    });
    CHECK(checkpoint.memory_bytes() == 0);
    // In pieces, as training reads them.
    std::vector<float> piece(1 << 20);
    double sum = 0, expected = 0;
    for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
      const auto elements = static_cast<std::uint64_t>(unit_elements(model, unit));
      for (std::uint64_t at = 0; at < elements; at += piece.size()) {
        const std::uint64_t some = std::min<std::uint64_t>(piece.size(), elements - at);
        checkpoint.read(unit, at, some, piece.data());
        sum =
            std::accumulate(piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(some), sum);
      }
    }
    std::size_t tensors = 0;
    for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
      for (std::size_t i = 0; i < hugging_face_tensors(model, unit).size(); ++i)
        expected += 2.0 * static_cast<double>(++tensors);
    }
    CHECK(sum == expected);
    constexpr std::uint64_t mebi = std::uint64_t{1} << 20;
    // Three blocks of 16 MiB; of a GPT a strip of the largest matrix beside.
    const std::uint64_t most = (architecture == Architecture::gpt ? 49 + 5 : 49) * mebi;
    CHECK(checkpoint.memory_bytes() <= most);
    CHECK(checkpoint.memory_bytes() >= 48 * mebi);
    CHECK(checkpoint.bytes() > 4 * most);
    // Hashing them reads nothing anew; all has been told.
    const std::uint64_t before = read;
    CHECK(before >= checkpoint.bytes() / 4096 * 4096);
    CHECK(before < checkpoint.bytes() + checkpoint.bytes() / 100);
    checkpoint.data_hash();
    CHECK(read == before);
    CHECK(told == all);
    CHECK(all >= checkpoint.bytes());
  }
}

TEST_CASE("a transposed matrix larger than the strip is read again for each, else once",
          "[store]") {
  ModelSpec model = tiny(Architecture::gpt);
  model.layers = 1;
  model.hidden = 2304;
  model.ffn = 4 * model.hidden;  // 85 MB in fp32
  const TemporaryFolder folder;
  write_sparse(folder / "model.safetensors", model);
  for (const std::int64_t strip : {TransposedMatrix::usual_strip_bytes, std::int64_t{128} << 20}) {
    std::atomic<std::uint64_t> read = 0;
    Checkpoint checkpoint(folder.path(), model, [&](std::span<const int> files, unsigned depth) {
      return std::make_unique<CountingRing>(make_usual_ring(files, depth), read);
    });
    checkpoint.set_strip_bytes(strip);
    std::vector<float> layer(static_cast<std::size_t>(unit_elements(model, 0)));
    checkpoint.read(0, 0, layer.size(), layer.data());
    const std::uint64_t bytes = layer.size() * sizeof(float);
    if (strip == TransposedMatrix::usual_strip_bytes)
      CHECK(read > bytes + bytes / 2);
    else
      CHECK(read < bytes + bytes / 5);  // with what is read ahead
  }
}

TEST_CASE("what is told while weights are read can end the reading", "[store]") {
  const ModelSpec model = tiny(Architecture::llama);
  const TemporaryFolder folder;
  write(folder / "model.safetensors", stored(model));
  Checkpoint checkpoint(folder.path(), model);
  checkpoint.tell([](std::uint64_t, std::uint64_t) { throw InputError("interrupted"); });
  CHECK_THROWS_WITH(checkpoint.data_hash(), "interrupted");
  checkpoint.tell({});
  check_all(checkpoint, model);
  Checkpoint other(folder.path(), model);
  CHECK(checkpoint.data_hash() == other.data_hash());
}

TEST_CASE("weights are read into the order of units, whatever the model", "[store]") {
  for (const Architecture architecture : {Architecture::gpt, Architecture::llama}) {
    const ModelSpec model = tiny(architecture);
    const TemporaryFolder folder;
    write(folder / "model.safetensors", stored(model));
    Checkpoint checkpoint(folder.path(), model);
    CHECK(checkpoint.bytes() == static_cast<std::uint64_t>(model.parameters()) * 4);
    check_all(checkpoint, model);
    check_all(checkpoint, model);  // from the beginning again
  }
}

TEST_CASE("what is written is read again: one file or several, fp32 or bf16", "[store]") {
  for (const Architecture architecture : {Architecture::gpt, Architecture::llama}) {
    for (const ElementType type : {ElementType::f32, ElementType::bf16}) {
      for (const std::uint64_t most_bytes : {std::uint64_t{1} << 30, std::uint64_t{40'000}}) {
        const ModelSpec model = tiny(architecture);
        const TemporaryFolder folder;
        const std::size_t files =
            write_weights(Directory(folder.path()), model, some_values, {type, most_bytes, {}});
        CHECK((files > 1) == (most_bytes == 40'000));
        CHECK(std::filesystem::exists(folder / "model.safetensors.index.json") == (files > 1));
        Checkpoint checkpoint(folder.path(), model);
        check_all(checkpoint, model);
        CHECK_THAT(checkpoint.describe(), Catch::Contains(name_of(type)));
        // They go as they came, and leave what is not of them.
        write_file(folder / "model.safetensors.mine", "");
        remove_weights(Directory(folder.path()));
        CHECK_FALSE(SafetensorsFolder::has_weights(folder.path()));
        CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
      }
    }
  }
}

TEST_CASE("any run of elements is read, padding as zeros", "[store]") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const ModelSpec model = tiny(Architecture::gpt);
  const TemporaryFolder folder;
  write_weights(Directory(folder.path()), model, some_values, {});
  Checkpoint checkpoint(folder.path(), model);
  for (int i = 0; i < 200; ++i) {
    const auto unit =
        static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(unit_count(model)));
    const std::vector<float> all = whole_unit(model, unit);
    const std::uint64_t first = random() % all.size();
    const std::uint64_t count = random() % (all.size() - first) + 1;
    std::vector<float> read(count, -1);
    checkpoint.read(unit, first, count, read.data());
    REQUIRE(std::equal(read.begin(), read.end(), all.begin() + static_cast<std::ptrdiff_t>(first)));
  }
}

TEST_CASE("names without the prefix, masks, tables and a tied head are taken", "[store]") {
  ModelSpec model = tiny(Architecture::gpt);
  std::vector<Stored> all = stored(model);
  for (Stored& one : all) one.tensor.name.erase(0, std::string("transformer.").size());
  all.push_back({{"h.0.attn.bias", {1, 1, 4, 4}}, std::vector<float>(16)});
  all.push_back({{"h.1.attn.masked_bias", {}}, std::vector<float>(1)});
  all.push_back({{"lm_head.weight", {101, 48}}, named(all, "wte.weight").values});
  const TemporaryFolder folder;
  write(folder / "model.safetensors", all);
  Checkpoint gpt(folder.path(), model);
  check_all(gpt, model);

  model = tiny(Architecture::llama);
  all = stored(model);
  for (Stored& one : all) {
    if (one.tensor.name.starts_with("model.")) one.tensor.name.erase(0, 6);
  }
  all.push_back({{"layers.0.self_attn.rotary_emb.inv_freq", {6}}, std::vector<float>(6)});
  write(folder / "model.safetensors", all);
  Checkpoint llama(folder.path(), model);
  check_all(llama, model);
}

TEST_CASE("weights of another model are refused, with the tensors named") {
  const ModelSpec model = tiny(Architecture::llama);
  std::vector<Stored> all = stored(model);
  all.pop_back();
  CHECK_THAT(refusal(model, all), Catch::Contains("lack 1 tensor: lm_head.weight"));
  all = stored(model);
  all.push_back({{"model.layers.0.mlp.gate_proj.bias", {80}}, std::vector<float>(80)});
  CHECK_THAT(refusal(model, all), Catch::Contains("model.layers.0.mlp.gate_proj.bias"));
  all = stored(model);
  named(all, "model.norm.weight") = {{"model.norm.weight", {47}}, std::vector<float>(47)};
  CHECK_THAT(refusal(model, all), Catch::Contains("[47]") && Catch::Contains("[48]"));
  // Transposed by whoever wrote it.
  all = stored(model);
  named(all, "model.layers.1.mlp.up_proj.weight").tensor.shape = {48, 80};
  CHECK_THAT(refusal(model, all), Catch::Contains("[48, 80]") && Catch::Contains("[80, 48]"));
  all = stored(model);
  all.push_back({{"norm.weight", {48}}, std::vector<float>(48)});
  CHECK_THAT(refusal(model, all), Catch::Contains("two tensors for model.norm.weight"));
  // Many are counted, and the first few named.
  CHECK_THAT(refusal(model, stored(tiny(Architecture::gpt))), Catch::Contains("and 40 more"));
}

TEST_CASE("a head that a tied model would lose is refused with its file and name") {
  const ModelSpec model = tiny(Architecture::gpt);
  const std::vector<Stored> all = stored(model);
  const auto with_head = [&](std::vector<std::int64_t> shape, ElementType type, float change) {
    std::vector<Stored> changed = all;
    std::vector<float> values = named(changed, "transformer.wte.weight").values;
    values.back() += change;
    changed.push_back({{"lm_head.weight", std::move(shape), type}, std::move(values)});
    return changed;
  };
  for (const ElementType type : {ElementType::f32, ElementType::bf16}) {
    const TemporaryFolder folder;
    write(folder / "model.safetensors", with_head({101, 48}, type, 0));
    CHECK_NOTHROW(Checkpoint(folder.path(), model));
    CHECK_THAT(refusal(model, with_head({101, 48}, type, 1)),
               Catch::Contains("model.safetensors: tensor lm_head.weight differs from") &&
                   Catch::Contains("transformer.wte.weight"));
  }
  CHECK_THAT(refusal(model, with_head({48, 101}, ElementType::f32, 0)),
             Catch::Contains("lm_head.weight has the shape [48, 101]"));
}

TEST_CASE("a type that weights cannot have is refused") {
  const ModelSpec model = tiny(Architecture::llama);
  const TemporaryFolder folder;
  write(folder / "model.safetensors", stored(model));
  std::string text = read_file(folder / "model.safetensors");
  const std::size_t at = text.find("F32");
  text.replace(at, 3, "I32");
  write_file(folder / "model.safetensors", text);
  CHECK_THAT(message_of<InputError>([&] { Checkpoint(folder.path(), model); }),
             Catch::Contains("of type I32") && Catch::Contains("F32, F16, BF16"));
}

TEST_CASE("what transformers has saved is written again as it was", "[store]") {
  for (const char* name : {"gpt2", "llama", "mistral", "qwen2", "qwen3"}) {
    INFO(name);
    const std::filesystem::path reference =
        std::filesystem::path(SPILLWAY_SOURCE_DIR "/tests/reference") / name;
    const ModelSpec model = load_model(reference);
    Checkpoint checkpoint(reference, model);
    const TemporaryFolder folder;
    const auto values = [&](std::int64_t unit, std::uint64_t first, std::uint64_t count,
                            float* to) { checkpoint.read(unit, first, count, to); };
    write_weights(Directory(folder.path()), model, values, {});
    const SafetensorsFile before(reference / "model.safetensors"),
        after(folder / "model.safetensors");
    REQUIRE(after.tensors().size() == before.tensors().size());
    for (const SafetensorsFile::Tensor& tensor : before.tensors())
      CHECK(after.read(tensor.name) == before.read(tensor.name));
  }
}
