#include "exec/data/read_ahead.hpp"

#include <fcntl.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "base/file_descriptor.hpp"
#include "exec/io/io_threads.hpp"
#include "tests/exec/io_test_support.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

// Byte i of file f.
std::byte byte_at(std::size_t file, std::uint64_t i) {
  return static_cast<std::byte>((i * 2654435761u >> 13) + 31 * file + (i >> 20));
}

class Files {
 public:
  explicit Files(const std::vector<std::uint64_t>& sizes) {
    for (std::size_t f = 0; f < sizes.size(); ++f) {
      std::string text(sizes[f], '\0');
      for (std::uint64_t i = 0; i < sizes[f]; ++i) text[i] = static_cast<char>(byte_at(f, i));
      const auto path = folder_ / std::to_string(f);
      write_file(path, text);
      open_.emplace_back(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
      files_.push_back({open_.back().get(), sizes[f], path.string()});
    }
  }
  const std::vector<ReadAhead::File>& all() const { return files_; }
  std::filesystem::path path(std::size_t file) const { return files_[file].name; }

 private:
  TemporaryFolder folder_;
  std::vector<FileDescriptor> open_;
  std::vector<ReadAhead::File> files_;
};

// Reads [from, to) of an extent and returns how many bytes were wrong.
std::uint64_t wrong_bytes(ReadAhead& reader, const ReadAhead::Extent& extent, std::size_t index,
                          std::uint64_t from, std::uint64_t to) {
  std::uint64_t wrong = 0;
  while (from < to) {
    const auto bytes = reader.bytes(index, from);
    REQUIRE(bytes.size() >= std::min<std::uint64_t>(8, extent.end - extent.begin - from));
    REQUIRE(bytes.size() <= extent.end - extent.begin - from);
    const std::uint64_t some = std::min<std::uint64_t>(bytes.size(), to - from);
    for (std::uint64_t i = 0; i < some; ++i)
      wrong += bytes[i] != byte_at(extent.file, extent.begin + from + i);
    from += some;
  }
  return wrong;
}

}  // namespace

TEST_CASE("extents at odd places of several files are read in order, up to the files' ends",
          "[store]") {
  const std::uint64_t mebi = 1 << 20;
  const Files files({40 * mebi + 123, 5000, 1});
  const std::vector<ReadAhead::Extent> extents = {{0, 17, 35 * mebi + 3},
                                                  {1, 0, 5000},
                                                  {0, 35 * mebi + 4, 40 * mebi + 123},
                                                  {2, 0, 1},
                                                  {1, 4095, 4097}};
  for (const RingFactory& ring :
       {RingFactory(make_usual_ring), RingFactory([](std::span<const int> open, unsigned depth) {
          return make_io_threads(open, depth);
        })}) {
    ReadAhead reader(files.all(), extents, ring);
    for (std::size_t i = 0; i < extents.size(); ++i)
      CHECK(wrong_bytes(reader, extents[i], i, 0, extents[i].end - extents[i].begin) == 0);
  }
}

TEST_CASE("parts are read in any order", "[store]") {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const std::uint64_t size = 100 << 20;
  const Files files({size});
  const std::vector<ReadAhead::Extent> extents = {{0, 9, 60 << 20}, {0, 60 << 20, size}};
  ReadAhead reader(files.all(), extents);
  for (int i = 0; i < 60; ++i) {
    const std::size_t index = random() % 2;
    const std::uint64_t bytes = extents[index].end - extents[index].begin;
    const std::uint64_t from = random() % bytes;
    const std::uint64_t to = std::min(bytes, from + 1 + random() % 100'000);
    REQUIRE(wrong_bytes(reader, extents[index], index, from, to) == 0);
  }
}

TEST_CASE("the hash of what is read does not depend on what was asked for, and on every byte",
          "[store]") {
  const Files files({40 << 20, 5000});
  const std::vector<ReadAhead::Extent> extents = {{0, 4097, 35 << 20}, {1, 1, 4999}};
  const auto hash = [&](const std::vector<std::size_t>& asked) {
    ReadAhead reader(files.all(), extents);
    for (const std::size_t index : asked)
      wrong_bytes(reader, extents[index], index, 0, extents[index].end - extents[index].begin);
    return reader.hash();
  };
  const std::uint64_t none = hash({});
  CHECK(hash({0, 1}) == none);
  CHECK(hash({1, 0, 1}) == none);
  for (const std::uint64_t at : {std::uint64_t{4097}, std::uint64_t{(35 << 20) - 1}}) {
    const FileDescriptor file(::open(files.path(0).c_str(), O_WRONLY | O_CLOEXEC));
    const std::byte other = ~byte_at(0, at);
    REQUIRE(::pwrite(file.get(), &other, 1, static_cast<off_t>(at)) == 1);
    CHECK(hash({1}) != none);
    const std::byte before = byte_at(0, at);
    REQUIRE(::pwrite(file.get(), &before, 1, static_cast<off_t>(at)) == 1);
  }
  CHECK(hash({0}) == none);
}

TEST_CASE("a file that cannot be read, or was cut short, is an error for whoever reads it",
          "[store]") {
  const Files files({3 << 20, 5000});
  ReadAhead broken(files.all(), {{0, 0, 3 << 20}}, [](std::span<const int>, unsigned depth) {
    return make_io_threads([](const IoRequest&) { return -EIO; }, depth);
  });
  CHECK_THAT(message_of<MachineError>([&] { broken.bytes(0, 0); }),
             Catch::Contains(files.path(0).string()));
  std::filesystem::resize_file(files.path(1), 4100);
  ReadAhead cut(files.all(), {{1, 0, 5000}});
  CHECK_THAT(message_of<MachineError>([&] { cut.bytes(0, 0); }), Catch::Contains("cut short"));
}

TEST_CASE("whatever fails on the reading thread is thrown where the bytes are asked for") {
  const Files files({100'000});
  ReadAhead reader(
      files.all(), {{0, 0, 100'000}},
      [](std::span<const int>, unsigned) -> std::unique_ptr<IoRing> { throw std::bad_alloc(); });
  CHECK_THROWS_AS(reader.bytes(0, 0), std::bad_alloc);
}
