#include "base/suggest.hpp"

#include <catch2/catch.hpp>

using namespace spillway;
using Names = std::vector<std::string>;

TEST_CASE("near names: a few letters apart, nearest first, at most three") {
  const Names known = {"gpt2-124m", "gpt2-1.5b", "gpt-6b", "llama-7b"};
  CHECK(near_names("gpt2-1.4b", known).front() == "gpt2-1.5b");
  CHECK(near_names("lama-7b", known) == Names{"llama-7b"});
  CHECK(near_names("bert", known).empty());
  CHECK(near_names("abcd", {"abce", "abcf", "abcg", "abch"}).size() == 3);
}

TEST_CASE("near names: swapped neighbours are one slip, equal distances keep their order") {
  CHECK(near_names("memroy", {"memory"}) == Names{"memory"});
  // "ab" -> "ba" is 1 as a swap but 2 as substitutions; with a name this short 2 is everything.
  CHECK(near_names("ab", {"ba", "xy"}) == Names{"ba"});
  CHECK(near_names("axy", {"bxy", "cxy"}) == Names{"bxy", "cxy"});
}

TEST_CASE("near names: a name without its section is found in every section that has it") {
  const Names known = {"gpu.memory", "gpu.flops", "host.memory"};
  CHECK(near_names("memory", known) == Names{"gpu.memory", "host.memory"});
  CHECK(near_names("ssd.flops", known) == Names{"gpu.flops"});
}

TEST_CASE(
    "near names: there are none of a name of sixteen megabytes, which is not compared with each") {
  const Names known(50, std::string(20, 'x'));
  CHECK(near_names(std::string(std::size_t{16} << 20, 'x'), known).empty());
  // Lengths that differ by as much as is allowed are compared.
  CHECK(near_names("abcdef", {"abcd", "abc", "abcdefgh", "abcdefghi"}) ==
        Names{"abcd", "abcdefgh"});
}

TEST_CASE("the hint asks about near names, else lists what is known") {
  CHECK(unknown_name_hint("hots", {"host", "gpu"}) == "did you mean host?");
  CHECK(unknown_name_hint("memory", {"gpu.memory", "host.memory"}) ==
        "did you mean gpu.memory or host.memory?");
  CHECK(unknown_name_hint("zzzz", {"host", "gpu"}) == "known: host, gpu");
}
