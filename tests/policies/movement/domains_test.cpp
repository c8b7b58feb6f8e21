// Domains: what they take, how they describe it, and values picked from them.
#include "policies/movement/domains.hpp"

#include <catch2/catch.hpp>

using namespace spillway;

namespace {

using Texts = std::vector<std::string>;

template <class Domain>
std::optional<typename Domain::Value> value_of(const Domain& domain, const std::string& text) {
  typename Domain::Value value{};
  if (!domain.read(text, value)) return std::nullopt;
  return value;
}

}  // namespace

TEST_CASE("Numbers: both ends, between them in equal distances, whole ones in equal ratios") {
  CHECK(fraction.samples(5) == Texts{"0", "0.25", "0.5", "0.75", "1"});
  CHECK(count(2, 4).samples(9) == Texts{"2", "3", "4"});
  CHECK(count(0, 999).samples(4) == Texts{"0", "9", "99", "999"});
  CHECK(count(7, 7).samples(4) == Texts{"7"});
  CHECK(Elements{1}.samples(4) == Texts{"1", "100000", "10000000000", "1000000000000000"});
  CHECK(fraction.describe() == "a number from 0 to 1");
  CHECK(count(2, 4).describe() == "a whole number from 2 to 4");
  CHECK(Elements{1}.describe() == "a whole number of elements from 1 to 1e+15");
}

TEST_CASE("Elements may be written with an exponent") {
  CHECK(value_of(Elements{}, "5e8") == 500'000'000);
  CHECK(value_of(Elements{1}, "1e15") == 1'000'000'000'000'000);
  for (const char* text : {"0.5", "1e16", "-1", "nan", "", "5e8x"})
    CHECK(!value_of(Elements{}, text));
  CHECK(!value_of(Elements{1}, "0"));
}

TEST_CASE(
    "A word stands for a value of its own, or for none, beside the values of another domain") {
  const auto stride = or_auto(WordOr<Numbers<int>, int>{"off", count(2, 9)});
  CHECK(value_of(stride, "auto").value() == std::nullopt);
  CHECK(value_of(stride, "off").value() == 0);
  CHECK(value_of(stride, "7").value() == 7);
  CHECK(!value_of(stride, "1"));
  CHECK(stride.describe() == "a whole number from 2 to 9, or off, or auto");
  CHECK(stride.samples(2) == Texts{"auto", "off", "2", "9"});
  for (const char* text : {"auto", "off", "7"})
    CHECK(stride.write(*value_of(stride, text)) == text);
}

TEST_CASE("A domain of texts takes what the domain takes, and forgets its type") {
  const TextDomain domain = of_texts(Choice<int>{{"one", 1}, {"two", 2}});
  CHECK(domain.holds("two"));
  CHECK(!domain.holds("three"));
  CHECK(domain.values == "one of one | two");
  CHECK(domain.samples(1) == Texts{"one", "two"});
}
