// The machine in effect, key by key: each value, and whether it is given, derived or assumed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policies/machine/machine.hpp"

namespace spillway {

enum class Origin : std::uint8_t {
  given,    // the file, one of its parts or a setting says it
  derived,  // it follows from others by a rule
  assumed   // it is left out, or its own source says that it is assumed
};
std::string to_string(Origin origin);

// By what a source says of itself: "assumed" anywhere in it, or "derived: ..." at its beginning.
Origin origin_of(const std::string& source);

struct MachineValue {
  std::string key;    // "pcie.h2d"
  std::string value;  // exact, as files and settings write it: "25GB/s"
  std::string shown;  // rounded, for people: "25.0 GB/s"; "-" where it is left out and has no value
  Origin origin = Origin::given;
  // Where it is from; of what is derived the rule; of what is assumed why, or what is taken in its
  // place.
  std::string source;
};

// A list of tables, [[ssd.by_count]] for example.
struct MachineTable {
  std::string key;
  Origin origin = Origin::given;
  std::string source;
  std::string summary;  // "12 rows"
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;  // for people; of long lists some
};

struct MachineAccount {
  Machine machine;
  std::vector<MachineValue> values;  // in the order of docs/machine-files.md
  std::vector<MachineTable> tables;  // those that the machine has
  // Whether the key matters on this machine: keys of drives do not where there are none, nor those
  // of a cluster where there is one GPU.
  bool concerns(const std::string& key) const;
};

// As load_machine(); throws what it throws.
MachineAccount account_of_machine(const std::string& name_or_path,
                                  const std::vector<std::string>& overrides = {});
// Of a machine that was read before. What its file said of one drive is in its table of drives.
MachineAccount account_of(const Machine& machine);

}  // namespace spillway
