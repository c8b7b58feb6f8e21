// What there is: models, machines and their parts, frameworks, policies.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "policies/common/registry.hpp"
#include "policies/framework/framework.hpp"
#include "policies/machine/machine.hpp"
#include "policies/machine/machine_parts.hpp"
#include "policies/model/model.hpp"
#include "policies/workload/workload_fields.hpp"
#include "python/core.hpp"

namespace spillway::python {

namespace {

nb::list models() {
  nb::list all;
  for (const ModelSpec& model : builtin_models()) all.append(model.name);
  return all;
}

nb::list machines() {
  nb::list all;
  for (const Machine& machine : builtin_machines()) all.append(machine.name);
  return all;
}

nb::list parts() {
  nb::list all;
  for (const MachinePart& part : machine_parts()) {
    nb::dict one;
    one["kind"] = part.kind;
    one["name"] = part.name;
    one["description"] = part.description;
    all.append(one);
  }
  return all;
}

nb::list frameworks() {
  nb::list all;
  for (const Framework& framework : builtin_frameworks()) {
    nb::dict one;
    one["name"] = framework.name;
    one["description"] = framework.description;
    all.append(one);
  }
  return all;
}

nb::list options_of(const PolicyInfo& info) {
  constexpr int some = 9;
  nb::list options;
  for (const PolicyOption& option : info.options) {
    nb::dict one;
    one["name"] = option.name;
    one["default"] = option.default_value;
    one["values"] = option.domain.values;
    one["samples"] = option.domain.samples(some);
    one["frugal"] = option.frugal;
    one["help"] = option.help;
    options.append(one);
  }
  return options;
}

nb::list policies() {
  nb::list all;
  for (const PolicyInfo& info : known_policies()) {
    nb::dict one;
    one["name"] = info.name;
    one["idea"] = info.idea;
    one["paper"] = info.paper;
    one["for_several_ranks"] = info.for_several_ranks;
    one["for_pipelines"] = info.for_pipelines;
    const auto origin = origin_of_policy(info.name);
    one["origin"] = origin ? origin->kind : "built in";
    one["from"] = origin ? origin->from : "";
    one["options"] = options_of(info);
    all.append(one);
  }
  return all;
}

nb::list settings() {
  nb::list all;
  for (const WorkloadField& field : workload_fields()) {
    nb::dict one;
    one["name"] = field.key;
    one["values"] = field.is_count() ? "a whole number" : field.values;
    one["default"] = field.shown_default();
    one["help"] = field.help;
    all.append(one);
  }
  return all;
}

}  // namespace

void bind_lists(nb::module_& module) {
  module.def("models", &models);
  module.def("machines", &machines);
  module.def("parts", &parts);
  module.def("frameworks", &frameworks);
  module.def("policies", &policies);
  module.def("workload_settings", &settings);
  module.def("load_model", &load_model, nb::arg("name"),
             nb::arg("overrides") = std::vector<std::string>(),
             nb::call_guard<nb::gil_scoped_release>());
  module.def("load_machine", &load_machine, nb::arg("name"),
             nb::arg("overrides") = std::vector<std::string>(),
             nb::call_guard<nb::gil_scoped_release>());
  module.def("canonical_policy", &canonical_policy, nb::arg("text"));
}

}  // namespace spillway::python
