#include "exec/data/packed_batches.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <numeric>

#include "tests/exec/io_test_support.hpp"
#include "tests/text/tokens/made_corpus.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

constexpr std::int64_t length = 24;

struct PackedRows {
  std::vector<std::int32_t> tokens, targets, starts;
  bool operator==(const PackedRows&) const = default;
};

PackedRows rows_of(const Batches& batches, std::int64_t step, std::int64_t first,
                   std::int64_t count) {
  const auto size = static_cast<std::size_t>(count * length);
  PackedRows rows{std::vector<std::int32_t>(size, -7), std::vector<std::int32_t>(size, -7),
                  std::vector<std::int32_t>(size, -7)};
  batches.batch(step, first, count, length, rows.tokens.data(), rows.targets.data(),
                rows.starts.data());
  return rows;
}

// Sources of random documents, packed.
class MadeSources {
 public:
  void add(std::uint64_t seed, std::size_t documents, double weight, bool all_trained = false) {
    folders_.push_back(std::make_unique<TemporaryFolder>());
    made_.push_back(made_documents(seed, documents, 60, 1000, all_trained));
    write_made_folder(folders_.back()->path(), made_.back(), 1000, 100);
    auto corpus = std::make_shared<const TokenCorpus>(TokenCorpus::open(folders_.back()->path()));
    auto packed =
        std::make_shared<const PackedSequences>(*corpus, settings, HoldOut{}, Side::training);
    sources.push_back({std::move(corpus), std::move(packed), weight});
  }
  PackedBatches batches(std::int64_t per_step, std::uint64_t seed = 1, bool shuffled = true) const {
    return PackedBatches(sources, settings, {seed, per_step, shuffled});
  }

  PackSettings settings{Packing::packed, length};
  std::vector<PackedBatches::Source> sources;

 private:
  std::vector<std::unique_ptr<TemporaryFolder>> folders_;
  std::vector<std::vector<MadeDocument>> made_;
};

// How often each sequence of each source comes up in sequences [first, end) of a training.
std::map<std::pair<std::size_t, std::uint64_t>, int> seen_in(const PackedBatches& batches,
                                                             std::uint64_t first, std::uint64_t end,
                                                             std::uint64_t per_step) {
  std::map<std::pair<std::size_t, std::uint64_t>, int> seen;
  for (std::uint64_t number = first; number < end; ++number) {
    const auto place = batches.place(static_cast<std::int64_t>(number / per_step),
                                     static_cast<std::int64_t>(number % per_step));
    ++seen[{place.source, place.sequence}];
  }
  return seen;
}

}  // namespace

TEST_CASE(
    "packed rows: targets follow their tokens within a document, and borders are where they are") {
  MadeSources made;
  made.add(1, 200, 1);
  const PackedBatches batches = made.batches(4);
  REQUIRE(batches.has_borders());
  std::int64_t masked = 0, borders = 0;
  for (std::int64_t step = 0; step < 20; ++step) {
    const PackedRows rows = rows_of(batches, step, 0, 4);
    std::int64_t counted = 0;
    for (std::size_t i = 0; i < rows.tokens.size(); ++i) {
      const auto at = static_cast<std::int32_t>(i % length);
      REQUIRE(rows.tokens[i] >= 0);
      REQUIRE(rows.starts[i] >= 0);
      REQUIRE(rows.starts[i] <= at);
      const bool begins = at == 0 || rows.starts[i] != rows.starts[i - 1];
      REQUIRE((!begins || rows.starts[i] == at));
      borders += begins && at > 0 ? 1 : 0;
      if (!begins && rows.targets[i - 1] != no_target)
        REQUIRE(rows.targets[i - 1] == rows.tokens[i]);
      counted += rows.targets[i] == no_target ? 0 : 1;
    }
    REQUIRE(counted > 0);
    REQUIRE(batches.counted_tokens(step, 4, length) == counted);
    masked += 4 * length - counted;
  }
  CHECK(masked > 0);
  CHECK(borders > 0);
}

TEST_CASE("packed batches depend on seed, step and sequence, not on how they are asked for") {
  MadeSources made;
  made.add(1, 200, 1);
  made.add(2, 100, 0.5);
  const PackedBatches batches = made.batches(6);
  const PackedRows whole = rows_of(batches, 7, 0, 6);
  for (const std::int64_t micro_batch : {1, 2, 3}) {
    PackedRows joined;
    for (std::int64_t first = 0; first < 6; first += micro_batch) {
      const PackedRows part = rows_of(batches, 7, first, micro_batch);
      joined.tokens.insert(joined.tokens.end(), part.tokens.begin(), part.tokens.end());
      joined.targets.insert(joined.targets.end(), part.targets.begin(), part.targets.end());
      joined.starts.insert(joined.starts.end(), part.starts.begin(), part.starts.end());
    }
    CHECK(joined == whole);
  }
  CHECK(rows_of(made.batches(6), 7, 0, 6) == whole);
  CHECK(!(rows_of(made.batches(6, 2), 7, 0, 6) == whole));
  CHECK(!(rows_of(batches, 8, 0, 6) == whole));
}

TEST_CASE("an epoch has each sequence once, and every epoch in another order") {
  MadeSources made;
  made.add(1, 300, 1);
  made.add(2, 200, 1);
  const PackedBatches batches = made.batches(5);
  const std::uint64_t epoch = batches.epoch_sequences();
  REQUIRE(epoch == made.sources[0].sequences->sequences() + made.sources[1].sequences->sequences());
  for (std::uint64_t e = 0; e < 3; ++e) {
    const auto seen = seen_in(batches, e * epoch, (e + 1) * epoch, 5);
    CHECK(seen.size() == epoch);
  }
  std::uint64_t equal = 0;
  for (std::uint64_t i = 0; i < epoch; ++i) {
    const auto place = [&](std::uint64_t number) {
      return batches.place(static_cast<std::int64_t>(number / 5),
                           static_cast<std::int64_t>(number % 5));
    };
    if (place(i) == place(epoch + i)) ++equal;
  }
  CHECK(equal < epoch / 10);
  CHECK(batches.steps_in(2) == static_cast<std::int64_t>((2 * epoch + 4) / 5));
}

TEST_CASE("a weight is how often each document is seen in an epoch") {
  MadeSources made;
  made.add(1, 200, 3);
  made.add(2, 200, 0.5);
  made.add(3, 200, 1);
  const PackedBatches batches = made.batches(1);
  const std::uint64_t epoch = batches.epoch_sequences();
  const auto one = seen_in(batches, 0, epoch, 1), two = seen_in(batches, 0, 2 * epoch, 1);
  for (const auto& [place, times] : one) {
    if (place.first == 0) CHECK(times == 3);
    if (place.first == 1) CHECK(times == 1);
    if (place.first == 2) CHECK(times == 1);
  }
  std::vector<std::uint64_t> different(3);
  for (const auto& [place, times] : two) {
    ++different[place.first];
    if (place.first == 1) CHECK(times <= 2);
  }
  // After two epochs all of the source that is seen by halves has been there (to rounding).
  CHECK(different[1] + 1 >= made.sources[1].sequences->sequences());
}

TEST_CASE("batches in order: what evaluation sees once, and nothing counts after the end") {
  MadeSources made;
  made.add(4, 50, 1);
  const PackedBatches batches = made.batches(4, 1, false);
  const auto sequences = static_cast<std::int64_t>(batches.epoch_sequences());
  CHECK(batches.batches() == (sequences + 3) / 4);
  for (std::int64_t s = 0; s < sequences; ++s)
    CHECK(batches.place(s / 4, s % 4) == PackedBatches::Place{0, static_cast<std::uint64_t>(s)});
  const PackedRows after = rows_of(batches, batches.batches(), 0, 4);
  CHECK(after.targets == std::vector<std::int32_t>(4 * length, no_target));
  CHECK(after.tokens == std::vector<std::int32_t>(4 * length, 0));
  CHECK(batches.counted_tokens(batches.batches(), 4, length) == 0);
}

TEST_CASE("what decides the batches is in their hash") {
  MadeSources made;
  made.add(1, 100, 1);
  const std::uint64_t hash = made.batches(2).hash();
  CHECK(made.batches(2, 5).hash() == hash);  // the seed is recorded by itself
  made.sources[0].weight = 2;
  CHECK(made.batches(2).hash() != hash);
  made.sources[0].weight = 1;
  made.settings.packing = Packing::padded;
  CHECK(made.batches(2).hash() != hash);
  CHECK_NOTHROW(made.batches(2).require(length, 1000));
  CHECK_THROWS_AS(made.batches(2).require(length, 900), InputError);
}
