// The module itself.
#include "policies/common/plugin_loader.hpp"
#include "python/core.hpp"

NB_MODULE(_core, module) {
  using namespace spillway::python;
  module.doc() = "The C++ library of Spillway; use the package spillway, which explains it.";
  module.attr("version") = SPILLWAY_VERSION;
  module.attr("plugin_build") = spillway::plugin_build().c_str();
  bind_errors();
  bind_lists(module);
  bind_problem(module);
  bind_plan(module);
  bind_policy(module);
  bind_results(module);
  bind_questions(module);
  bind_sweep(module);
  bind_traces(module);
  bind_train(module);
}
