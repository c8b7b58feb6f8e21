// Machines by parts: a graphics card, a host and drives, each described once under machines/parts/.
#pragma once

#include <string>
#include <vector>

namespace spillway {

struct MachinePart {
  std::string kind;  // "card", "host" or "drive"
  std::string name, description;
};

// All parts, embedded from machines/parts/: cards, hosts, drives, each by name.
const std::vector<MachinePart>& machine_parts();

// Whether `name` is of the form of a machine by parts, "CARD+HOST" or "CARD+HOST+NxDRIVE".
bool is_by_parts(const std::string& name);

// What to write where a machine was meant and `name` is only a part of one; empty where it is none.
std::string part_hint(const std::string& name);

// The text of a machine file with what its key `parts` stands for in place of that key.
std::string without_parts(const std::string& toml_text, const std::string& origin);

}  // namespace spillway
