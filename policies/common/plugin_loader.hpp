// Loads plugins: shared libraries with policies (plugin.hpp), whose code runs as part of this
// program. A plugin is loaded because its user names it, never because a file says so.
#pragma once

#include <string>
#include <vector>

#include "policies/common/registry.hpp"

namespace spillway {

struct LoadedPlugin {
  PolicyOrigin origin;
  std::vector<std::string> policies;  // their names
};

// Loads the library and adds its policies, which stay until the program ends; of one that is loaded
// already, changes nothing. Throws InputError where there is no such file, where it is no library
// or one that lacks something, no plugin, a plugin built for another Spillway, one that has changed
// since it was loaded, or where add_policies() refuses a policy.
LoadedPlugin load_plugin(const std::string& path);

// What a plugin has to be built for, in words: "spillway 0.1.0, headers 0123456789abcdef, ..."
std::string plugin_build();

}  // namespace spillway
