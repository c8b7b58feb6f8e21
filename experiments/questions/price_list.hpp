// A price list: parts that machines are put together from, and what each costs (docs/questions.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "policies/machine/machine.hpp"

namespace spillway {

struct PricedGpu {
  std::string name;
  double price = 0;
  std::vector<std::string> settings;  // KEY=VALUE of a machine file
};

struct PricedMemory {
  std::string name;
  double price = 0;
  std::uint64_t size = 0;  // host.memory
};

// Drives of one kind. What is 0 is as the base machine has it, by its table of drives.
struct PricedDrive {
  std::string name;
  double price = 0;  // of one, as all below but the ceiling
  std::vector<std::int64_t> counts;
  std::uint64_t capacity = 0, tbw = 0;
  double read = 0, write = 0, total = 0;
  double ceiling = 0;                 // bytes/s of all drives together, each way; 0: none
  std::vector<std::string> settings;  // KEY=VALUE of a machine file, of all drives together
};

// A machine as it would be bought: one of each kind of part.
struct PricedMachine {
  double price = 0;
  std::size_t gpu = 0, memory = 0, drive = 0;  // in the list; where it has none of a kind: 0
  std::int64_t drives = 0;
  std::vector<std::string> overrides;  // of the base machine
};

struct PriceList {
  std::string origin;    // where it was read
  std::string machine;   // the base, a built-in name or a file: everything that no part sets
  std::string currency;  // "USD"
  std::string source;    // where the prices are from
  double price = 0;      // of everything that is no part
  std::vector<PricedGpu> gpus;
  std::vector<PricedMemory> memories;
  std::vector<PricedDrive> drives;

  // Every machine that can be put together, the cheapest first; each once.
  std::vector<PricedMachine> machines() const;
  // What kind of part sets a key of a machine file, and which one: "[[memory]] 8 x 32 GB". Nothing:
  // none does.
  std::optional<std::string> part_that_sets(const std::string& key) const;
  // "RTX 4090, 8 x 32 GB, 4 x D7-P5510 3.84 TB"
  std::string name_of(const PricedMachine& machine) const;
};

// More are refused: each is a machine to be simulated.
inline constexpr std::size_t most_priced_machines = 10'000;

// Throws InputError with file:line:column.
PriceList parse_price_list(const std::string& toml_text, const std::string& origin);
// A file, or a built-in list: "example". Throws InputError.
PriceList load_price_list(const std::string& name_or_path);

}  // namespace spillway
