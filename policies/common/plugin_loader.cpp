#include "policies/common/plugin_loader.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>

#include "base/errors.hpp"
#include "policies/common/plugin.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

constexpr const char* symbol = "spillway_plugin";

// Absolute, so that the system's search path for libraries has no say. Throws InputError.
fs::path path_of(const std::string& path) {
  std::error_code error;
  const fs::path canonical = fs::canonical(path, error);
  if (error)
    throw InputError(Setting{"plugin", path} + ": " + error.message(),
                     "name a library that was built as docs/write-a-policy.md says");
  if (!fs::is_regular_file(canonical, error))
    throw InputError(Setting{"plugin", path} + ": this is no file", "name a shared library");
  return canonical;
}

std::string hash_of_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  if (!file) throw InputError(Setting{"plugin", path.string()} + ": it cannot be read");
  const std::string text = bytes.str();
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

// For good: policies that were made have their code in it.
void* open_library(const fs::path& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library != nullptr) return library;
  const char* const reason = dlerror();
  const std::string text = reason != nullptr ? reason : "no reason is given";
  const bool lacks = text.find("undefined symbol") != std::string::npos;
  throw InputError(
      Setting{"plugin", path.string()} + ": it cannot be loaded: " + text,
      lacks ? Message("it was built for another version of Spillway, or uses what plugins have no "
                      "headers of: build it again, with the headers of " +
                      plugin_build())
            : Message("build it as docs/write-a-policy.md says: -shared -fPIC"));
}

const PluginContents& contents_of(void* library, const fs::path& path) {
  const auto* const contents = static_cast<const PluginContents*>(dlsym(library, symbol));
  if (contents == nullptr || contents->abi == nullptr)
    throw InputError(
        Setting{"plugin", path.string()} + ": a library, but no plugin: it has no " + symbol,
        "end its source with SPILLWAY_PLUGIN(CLASS), outside of all namespaces");
  if (std::string(contents->abi) != SPILLWAY_PLUGIN_BUILD)
    throw InputError(Setting{"plugin", path.string()} + ": it was built for " + contents->abi +
                         ", and this is " + SPILLWAY_PLUGIN_BUILD,
                     "build it again, with the headers of this version");
  return *contents;
}

// By path.
struct Loaded {
  std::mutex mutex;
  std::map<std::string, LoadedPlugin> plugins;
};

Loaded& loaded() {
  static Loaded all;
  return all;
}

}  // namespace

std::string plugin_build() { return SPILLWAY_PLUGIN_BUILD; }

LoadedPlugin load_plugin(const std::string& given) {
  const fs::path path = path_of(given);
  const PolicyOrigin origin{"plugin", path.string(), hash_of_file(path)};
  const std::lock_guard lock(loaded().mutex);
  const auto known = loaded().plugins.find(origin.from);
  if (known != loaded().plugins.end()) {
    if (known->second.origin == origin) return known->second;
    throw InputError(
        Setting{"plugin", origin.from} + ": the file has changed since it was loaded",
        "start anew, or build it under another name: code that is in use cannot be replaced");
  }
  const PluginContents& contents = contents_of(open_library(path), path);
  LoadedPlugin plugin{origin, {}};
  std::vector<PolicyFactory> factories(contents.factories, contents.factories + contents.count);
  for (const PolicyFactory& factory : factories) plugin.policies.push_back(factory()->info().name);
  add_policies(factories, origin);
  return loaded().plugins[origin.from] = plugin;
}

}  // namespace spillway
