#include "text/tokens/packing.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "base/errors.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/text/tokens/made_corpus.hpp"
#include "text/tokens/hold_out.hpp"
#include "text/tokens/permutation.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

TokenCorpus corpus_of(const TemporaryFolder& folder, const std::vector<MadeDocument>& documents) {
  write_made_folder(folder.path(), documents, 1000, 50);
  return TokenCorpus::open(folder.path());
}

// How often each token of the corpus is a target of some sequence.
std::vector<int> times_a_target(const TokenCorpus& corpus, const PackedSequences& packed,
                                std::uint64_t length) {
  std::vector<int> times(corpus.tokens());
  for (std::uint64_t s = 0; s < packed.sequences(); ++s) {
    std::uint64_t filled = 0, counted = 0;
    for (const Segment& segment : packed.segments(s)) {
      filled += segment.count;
      for (std::uint64_t i = 1; i <= segment.count; ++i) {
        ++times.at(segment.first + i);
        if (corpus.is_trained(segment.first + i)) ++counted;
      }
    }
    REQUIRE(filled > 0);
    REQUIRE(filled <= length);
    REQUIRE(counted > 0);
    REQUIRE(counted == packed.counted(s));
  }
  return times;
}

// The document that token `at` is of.
std::uint64_t document_of(const TokenCorpus& corpus, std::uint64_t at) {
  std::uint64_t document = 0;
  while (corpus.document(document).end <= at) ++document;
  return document;
}

}  // namespace

TEST_CASE("a permutation takes each number once, and differs from key to key") {
  for (const std::uint64_t count : {1u, 2u, 3u, 4u, 5u, 16u, 17u, 1000u, 4097u}) {
    std::vector<bool> seen(count);
    std::uint64_t in_place = 0, equal = 0;
    const Permutation permutation(count, 5), other(count, 6);
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t at = permutation(i);
      REQUIRE(at < count);
      REQUIRE(!seen[at]);
      seen[at] = true;
      if (at == i) ++in_place;
      if (at == other(i)) ++equal;
    }
    if (count >= 1000) CHECK(in_place < 10);
    if (count >= 1000) CHECK(equal < 10);
  }
  const std::uint64_t large = (std::uint64_t{1} << 40) + 7;
  CHECK(Permutation(large, 1)(large - 1) < large);
}

TEST_CASE("packing: each token that can be learned is a target exactly once, and nothing crosses") {
  const TemporaryFolder folder;
  const bool all_trained = GENERATE(false, true);
  const Packing packing = GENERATE(Packing::packed, Packing::padded);
  const TokenCorpus corpus = corpus_of(folder, made_documents(3, 200, 150, 1000, all_trained));
  const std::uint64_t length = 64;
  const PackedSequences packed(corpus, {packing, 64, TooLong::split}, {}, Side::training);
  const std::vector<int> times = times_a_target(corpus, packed, length);
  std::set<std::uint64_t> pieces;
  for (std::uint64_t s = 0; s < packed.sequences(); ++s) {
    const std::vector<Segment> segments = packed.segments(s);
    if (packing == Packing::padded) CHECK(segments.size() == 1);
    for (const Segment& segment : segments) {
      CHECK(pieces.insert(segment.first).second);
      CHECK(document_of(corpus, segment.first) ==
            document_of(corpus, segment.first + segment.count));
    }
  }
  for (std::uint64_t d = 0; d < corpus.documents(); ++d) {
    const auto range = corpus.document(d);
    CHECK(times[range.begin] == 0);
    for (std::uint64_t at = range.begin + 1; at < range.end; ++at) {
      REQUIRE(times[at] <= 1);
      // A piece with nothing to learn is left out as a whole.
      if (corpus.is_trained(at)) REQUIRE(times[at] == 1);
    }
  }
  if (all_trained && packing == Packing::packed) CHECK(packed.fill_rate() > 0.97);
  CHECK(packed.counts().documents == 200);
  CHECK(packed.counts().split > 0);
}

TEST_CASE("packing: documents that are too long are cut, dropped or split") {
  const TemporaryFolder folder;
  const TokenCorpus corpus = corpus_of(folder, made_documents(4, 100, 100, 1000, true));
  std::uint64_t long_ones = 0, short_places = 0;
  for (std::uint64_t d = 0; d < corpus.documents(); ++d) {
    const std::uint64_t places = corpus.document(d).size() - 1;
    if (places > 32)
      ++long_ones;
    else
      short_places += places;
  }
  const auto counts = [&](TooLong rule) {
    return PackedSequences(corpus, {Packing::packed, 32, rule}, {}, Side::training).counts();
  };
  CHECK(counts(TooLong::drop).dropped == long_ones);
  CHECK(counts(TooLong::drop).inputs == short_places);
  CHECK(counts(TooLong::cut).cut == long_ones);
  CHECK(counts(TooLong::cut).inputs == short_places + 32 * long_ones);
  CHECK(counts(TooLong::split).split == long_ones);
  CHECK(counts(TooLong::automatic).split == long_ones);
  CHECK(counts(TooLong::split).inputs == corpus.tokens() - corpus.documents());
}

TEST_CASE("packing is a function of corpus, length and seed") {
  const TemporaryFolder folder;
  const TokenCorpus corpus = corpus_of(folder, made_documents(5, 300, 40, 1000));
  const auto all = [&](std::uint64_t seed) {
    PackSettings settings{Packing::packed, 50};
    settings.seed = seed;
    const PackedSequences packed(corpus, settings, {}, Side::training);
    std::vector<Segment> segments;
    for (std::uint64_t s = 0; s < packed.sequences(); ++s)
      for (const Segment& segment : packed.segments(s)) segments.push_back(segment);
    return segments;
  };
  CHECK(all(1) == all(1));
  CHECK(all(1) != all(2));
}

TEST_CASE("a stream is cut every T tokens, and its end is held out") {
  const TemporaryFolder folder;
  const TokenCorpus corpus = corpus_of(folder, made_documents(6, 100, 50, 1000, true));
  const PackSettings settings{Packing::stream, 16};
  const PackedSequences all(corpus, settings, {}, Side::training);
  REQUIRE(all.sequences() == (corpus.tokens() - 1) / 16);
  CHECK(all.segments(3) == std::vector<Segment>{{48, 16}});
  CHECK(all.fill_rate() == 1);
  const HoldOut tenth = parse_hold_out("10%");
  const PackedSequences training(corpus, settings, tenth, Side::training);
  const PackedSequences held(corpus, settings, tenth, Side::held_out);
  const Segment last = training.segments(training.sequences() - 1).back();
  CHECK(last.first + last.count < held.segments(0).front().first);
  CHECK(held.segments(0).front().first == corpus.tokens() - corpus.tokens() / 10);
  CHECK_THROWS_WITH(PackedSequences(corpus, {Packing::stream, 100'000}, {}, Side::training),
                    Catch::Contains("a sequence of 100000 tokens needs 100001"));
}

TEST_CASE("what is not trained on cannot be a stream") {
  const TemporaryFolder folder;
  const TokenCorpus corpus = corpus_of(folder, made_documents(6, 100, 50, 1000));
  CHECK_THROWS_AS(PackedSequences(corpus, {Packing::stream, 16}, {}, Side::training), InputError);
}

TEST_CASE("held-out documents are chosen by their tokens alone") {
  const TemporaryFolder folder, more;
  std::vector<MadeDocument> documents = made_documents(8, 400, 30, 1000);
  documents[10] = documents[20];  // equal documents are on one side
  const TokenCorpus corpus = corpus_of(folder, documents);
  const std::vector<bool> fifth = held_out(corpus, parse_hold_out("20%"));
  const auto count = std::count(fifth.begin(), fifth.end(), true);
  CHECK(count > 50);
  CHECK(count < 110);
  CHECK(fifth[10] == fifth[20]);
  std::vector<MadeDocument> reversed(documents.rbegin(), documents.rend());
  reversed.pop_back();
  const std::vector<bool> other = held_out(corpus_of(more, reversed), parse_hold_out("20%"));
  for (std::size_t i = 1; i < documents.size(); ++i)
    CHECK(fifth[i] == other[documents.size() - 1 - i]);
  const std::vector<bool> seven = held_out(corpus, parse_hold_out("7"));
  CHECK(std::count(seven.begin(), seven.end(), true) == 7);
  // A small percentage still holds something out.
  const std::vector<bool> one = held_out(corpus, parse_hold_out("0.0001%"));
  CHECK(std::count(one.begin(), one.end(), true) == 1);
  CHECK_THROWS_WITH(held_out(corpus, parse_hold_out("400")), Catch::Contains("cannot be held out"));

  // The two sides together are the corpus.
  const PackSettings settings{Packing::packed, 32};
  const HoldOut part = parse_hold_out("20%");
  const PackedSequences training(corpus, settings, part, Side::training);
  const PackedSequences held(corpus, settings, part, Side::held_out);
  CHECK(training.counts().documents + held.counts().documents == 400);
  CHECK(held.counts().documents == static_cast<std::uint64_t>(count));
}

TEST_CASE("a part to hold out that makes no sense is refused") {
  for (const char* text : {"", "%", "0%", "51%", "0", "1.5", "-3", "1e99", "3 %", "nan", "x"})
    CHECK_THROWS_AS(parse_hold_out(text), InputError);
}
