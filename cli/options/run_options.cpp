#include "cli/options/run_options.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string_view>

#include "base/errors.hpp"
#include "cli/options/setting_options.hpp"

namespace spillway::cli {

double parse_tokens(const std::string& text) {
  const auto fail = [&]() -> double {
    throw InputError(fmt::format("--tokens {}: not a number of tokens from 1 to 1e18", text),
                     "examples: --tokens 300B, --tokens 1.5T, --tokens 2e9");
  };
  double tokens = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, tokens);
  if (error != std::errc()) return fail();
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  if (unit == "k" || unit == "K") {
    tokens *= 1e3;
  } else if (unit == "M") {
    tokens *= 1e6;
  } else if (unit == "B" || unit == "G") {
    tokens *= 1e9;
  } else if (unit == "T") {
    tokens *= 1e12;
  } else if (!unit.empty()) {
    return fail();
  }
  return tokens >= 1 && tokens <= 1e18 ? tokens : fail();
}

std::string durability_help() {
  return setting_help("durability") + "; off as another program's --framework runs it";
}

void RunOptions::add_durability_to(CLI::App& command) {
  command.add_option("--durability", durability, durability_help());
}

void RunOptions::add_to(CLI::App& command) {
  add_durability_to(command);
  auto* count = command.add_option("--steps", steps,
                                   "optimizer steps of the whole training: what it writes, and how "
                                   "much of the drives' life that takes");
  command.add_option("--tokens", tokens, "the same in tokens, e.g. 300B")->excludes(count);
}

WholeRun RunOptions::whole_run(const Workload& workload, const std::string& framework) const {
  WholeRun run{durability_of(durability, framework), steps};
  if (steps && *steps < 1)
    throw InputError(fmt::format("--steps {}: not a positive number", *steps),
                     "steps of the whole training, e.g. --steps 10000");
  if (!tokens.empty()) {
    run.steps = static_cast<std::int64_t>(
        std::ceil(parse_tokens(tokens) / static_cast<double>(workload.tokens_per_step())));
  }
  return run;
}

}  // namespace spillway::cli
