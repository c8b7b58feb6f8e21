// A machine from its TOML. Internal to policies/machine.
#pragma once

#include <string>
#include <vector>

#include "policies/machine/field_reader.hpp"
#include "policies/machine/machine_fields.hpp"

namespace spillway {

// What a file and settings say. `variant`: settings that belong to a variant of the file; `file`
// takes what is not in the machine.
Machine read_machine(toml::table document, const std::string& origin,
                     const std::vector<std::string>& variant,
                     const std::vector<std::string>& overrides, MachineFile& file);

}  // namespace spillway
