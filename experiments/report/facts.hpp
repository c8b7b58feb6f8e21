// What a summary says: named values, as text for people and as JSON for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "experiments/report/html.hpp"

namespace spillway {

struct Fact {
  std::string key;    // in JSON, as in docs/metrics.md where that has it
  std::string label;  // for people
  std::string text;   // the value in words: "4.21 s"
  nlohmann::ordered_json value;
  std::string detail = {};  // smaller, below it
};
using Facts = std::vector<Fact>;

// Each of a few values that are worth a look first.
std::string facts_html(const Facts& facts);

// Those of several things beside each other: a row a fact, a column a thing.
PageTable facts_table(const std::vector<std::string>& names, const std::vector<Facts>& facts);

// key -> value
nlohmann::ordered_json to_json(const Facts& facts);

std::string percentage_text(double share);                            // "12.3 %"
std::string signed_percent_text(double share);                        // "+12.3 %"
std::string count_text(std::size_t count, const std::string& thing);  // "1 step", "2,345 steps"
// With so many significant digits, without an exponent, thousands apart: "12,345".
std::string number_text(double number, int digits = 4);

}  // namespace spillway
