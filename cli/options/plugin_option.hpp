// `--plugin`: policies from shared libraries (docs/write-a-policy.md).
#pragma once

#include <CLI/CLI.hpp>

namespace spillway::cli {

// Adds --plugin to every command that takes a policy or shows what one did. The libraries are
// loaded before the command begins; those that the environment names in SPILLWAY_PLUGINS, separated
// by colons, before these.
void add_plugin_option(CLI::App& app);

}  // namespace spillway::cli
