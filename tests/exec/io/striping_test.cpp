// Where bytes of the address space lie, of one set of files and of several.
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "exec/io/io_transfer.hpp"

using namespace spillway;

TEST_CASE("Every address has a place of its own, inside its file, on the files of its set") {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    Striping striping;
    striping.stripe_bytes = io_alignment * (1 + random() % 4);
    striping.begin = io_alignment * (random() % 3);
    striping.files = 0;
    std::uint64_t total = 0;
    const std::uint64_t sets = 1 + random() % 4;
    for (std::uint64_t set = 0; set < sets; ++set) {
      const auto files = static_cast<std::uint32_t>(1 + random() % 3);
      if (sets > 1) striping.sets.push_back({total, files});
      striping.files += files;
      total += io_alignment * (random() % 30);
    }
    total += io_alignment;
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> taken;
    for (std::uint64_t at = 0; at < total; at += io_alignment) {
      const Striping::Place place = striping.locate(at);
      REQUIRE(taken.emplace(std::pair(place.file, place.offset), at).second);
      REQUIRE(place.file < striping.files);
      REQUIRE(place.offset >= striping.begin);
      REQUIRE(place.offset + io_alignment <=
              striping.begin + striping.file_bytes(place.file, total));
      // What is contiguous goes on in the same file, and not into another set.
      REQUIRE(place.contiguous >= io_alignment);
      for (std::uint64_t more = io_alignment; more < place.contiguous && at + more < total;
           more += io_alignment) {
        const Striping::Place next = striping.locate(at + more);
        REQUIRE(next.file == place.file);
        REQUIRE(next.offset == place.offset + more);
      }
      // No chunk of the checksums, which are cut at whole stripes, is cut again by the files.
      const std::uint64_t to_cut = striping.stripe_bytes - at % striping.stripe_bytes;
      bool ends = false;
      for (const FileSet& set : striping.sets) ends = ends || set.from == at + place.contiguous;
      REQUIRE((place.contiguous == to_cut || ends));
      std::uint32_t first = 0;
      for (std::size_t set = 0; set < striping.sets.size(); ++set) {
        const bool is_here = striping.sets[set].from <= at &&
                             (set + 1 == striping.sets.size() || at < striping.sets[set + 1].from);
        if (is_here)
          REQUIRE((place.file >= first && place.file < first + striping.sets[set].files));
        first += striping.sets[set].files;
      }
    }
  }
}
