// What the source of a plugin includes: a shared library with policies, which the program loads
// when it is named (docs/write-a-policy.md). A plugin names its policies once:
//
//   SPILLWAY_PLUGIN(EagerOffload)              // or several classes, separated by commas
//
// Policies are C++ objects, so a plugin and the program that loads it must have been compiled with
// the same headers and the same rules for objects: plugin_abi() says which, and the loader refuses
// every other one.
#pragma once

#include <cstddef>
#include <memory>

#include "policies/common/plugin_abi.hpp"  // made by the build: SPILLWAY_PLUGIN_ABI
#include "policies/common/policy.hpp"
#include "policies/cost/costs.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/step.hpp"

namespace spillway {

using PluginFactory = std::unique_ptr<Policy> (*)();

// The symbol `spillway_plugin` of a library. `abi` stays the first member for ever, for it is read
// before anything else is known of a library.
struct PluginContents {
  const char* abi;
  const PluginFactory* factories;
  std::size_t count;
};

template <class... Policies>
inline constexpr PluginFactory plugin_factories[] = {
    []() -> std::unique_ptr<Policy> { return std::make_unique<Policies>(); }...};

}  // namespace spillway

#define SPILLWAY_PLUGIN_TEXT_(value) #value
#define SPILLWAY_PLUGIN_TEXT(value) SPILLWAY_PLUGIN_TEXT_(value)

// Version and headers of Spillway; rules for objects of the compiler; whether the standard
// library's containers are those with checks.
#ifdef _GLIBCXX_DEBUG
#define SPILLWAY_PLUGIN_CONTAINERS "checked containers"
#else
#define SPILLWAY_PLUGIN_CONTAINERS "plain containers"
#endif
#define SPILLWAY_PLUGIN_BUILD \
  SPILLWAY_PLUGIN_ABI         \
  ", objects of ABI " SPILLWAY_PLUGIN_TEXT(__GXX_ABI_VERSION) ", " SPILLWAY_PLUGIN_CONTAINERS

#define SPILLWAY_PLUGIN(...)                                          \
  extern "C" __attribute__((visibility("default")))                   \
  const spillway::PluginContents spillway_plugin;                     \
  const spillway::PluginContents spillway_plugin = {                  \
      SPILLWAY_PLUGIN_BUILD, spillway::plugin_factories<__VA_ARGS__>, \
      sizeof(spillway::plugin_factories<__VA_ARGS__>) / sizeof(spillway::PluginFactory)};
