// Plans: fields by name, as text. The package gives them attributes and Python's values.
#include "python/plan.hpp"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "experiments/tune/plan_space.hpp"
#include "policies/spillway/spillway.hpp"
#include "python/core.hpp"

namespace spillway::python {

namespace {

nb::dict field_of(const PlanField& field) {
  nb::dict one;
  one["name"] = field.name;
  one["default"] = field.value;
  one["values"] = field.domain.values;
  one["help"] = field.help;
  return one;
}

[[noreturn]] void fail_unknown(const std::string& name) {
  std::vector<std::string> names;
  for (const PlanField& field : plan_fields()) names.push_back(field.name);
  throw InputError(fmt::format("a plan has no field {}", name), unknown_name_hint(name, names));
}

void set_field(Plan& plan, const std::string& name, const std::string& text) {
  if (set_plan_field(plan, name, text)) return;
  for (const PlanField& field : plan_fields()) {
    if (field.name == name)
      throw InputError(fmt::format("plan: {}={} is not {}", name, text, field.domain.values),
                       fmt::format("{}: {}", name, field.help));
  }
  fail_unknown(name);
}

std::string get_field(const Plan& plan, const std::string& name) {
  for (const PlanField& field : plan_fields(plan))
    if (field.name == name) return field.value;
  fail_unknown(name);
}

}  // namespace

Plan plan_in(const nb::object& answer) {
  const nb::object inner = nb::getattr(answer, "_core", nb::none());
  if (!nb::isinstance<Plan>(inner)) throw nb::type_error("plan() has to return a spillway.Plan");
  return nb::cast<Plan>(inner);
}

void bind_plan(nb::module_& module) {
  nb::class_<Plan>(module, "Plan")
      .def(nb::init<>())
      .def(nb::init<const Plan&>())
      .def_static("parse", &parse_plan, nb::arg("text"))
      .def("get", &get_field, nb::arg("name"))
      .def("set", &set_field, nb::arg("name"), nb::arg("text"))
      .def("text", [](const Plan& plan) { return to_text(plan); })
      .def("hash", [](const Plan& plan) { return hash_of(plan); })
      .def("policy", [](const Plan& plan) { return spillway_policy(plan); });
  module.def(
      "plan_fields",
      [] {
        nb::list all;
        for (const PlanField& field : plan_fields()) all.append(field_of(field));
        return all;
      },
      "Every field of a plan: name, default, values, help.");
  module.def("plan_of", &plan_of, nb::arg("problem"), nb::arg("policy"),
             nb::call_guard<nb::gil_scoped_release>(),
             "The plan of a policy whose options are settled, for a problem with its micro-batch.");
}

}  // namespace spillway::python
