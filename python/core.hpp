// spillway._core: what the Python package is made of. Each source of this folder binds one part of
// the C++ library; the package in python/spillway/ makes of it what people use.
//
// Work in C++ is done without the interpreter's lock; what calls back into Python takes it.
#pragma once

#include <nanobind/nanobind.h>

#include <nlohmann/json_fwd.hpp>

namespace spillway::python {

namespace nb = nanobind;

// InputError, FitError and MachineError become the classes of these names in spillway._errors, with
// settings spelled as keywords: "micro_batch=4", "set={'ssd.count': 6}".
void bind_errors();
void bind_lists(nb::module_& module);
void bind_problem(nb::module_& module);
void bind_plan(nb::module_& module);
void bind_policy(nb::module_& module);
void bind_results(nb::module_& module);
void bind_questions(nb::module_& module);
void bind_sweep(nb::module_& module);
void bind_traces(nb::module_& module);
void bind_train(nb::module_& module);

// Numbers, texts, lists and dictionaries.
nb::object to_python(const nlohmann::ordered_json& json);

}  // namespace spillway::python
