// The failures that people meet, as Python exceptions.
#include <fmt/format.h>

#include <exception>

#include "base/errors.hpp"
#include "python/core.hpp"

namespace spillway::python {

namespace {

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789.") == std::string::npos;
}

std::string value_of(const std::string& text) {
  return is_number(text) ? text : fmt::format("'{}'", text);
}

// A key of a machine or a model file is an item of `set`; the limits of memory are keywords.
std::string keyword(const Setting& setting) {
  const auto& [name, value] = setting;
  if (name == "plugin")
    return value.empty() ? "load_plugin()" : fmt::format("spillway.load_plugin('{}')", value);
  if (name == "gpu.memory" || name == "host.memory") {
    const std::string limit = name == "gpu.memory" ? "gpu_memory" : "host_memory";
    return value.empty() ? limit : fmt::format("{}={}", limit, value_of(value));
  }
  if (name.find('.') != std::string::npos)
    return value.empty() ? fmt::format("set['{}']", name)
                         : fmt::format("set={{'{}': {}}}", name, value_of(value));
  return value.empty() ? name : fmt::format("{}={}", name, value_of(value));
}

void raise(const char* name, const Error& error) {
  const nb::object type = nb::module_::import_("spillway._errors").attr(name);
  const nb::object raised = type(error.message().text(keyword), error.advice().text(keyword));
  PyErr_SetObject(type.ptr(), raised.ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const InputError& error) {
    raise("InputError", error);
  } catch (const FitError& error) {
    raise("FitError", error);
  } catch (const MachineError& error) {
    raise("MachineError", error);
  } catch (const Error& error) {
    raise("Error", error);
  }
}

}  // namespace

void bind_errors() { nb::register_exception_translator(translate); }

}  // namespace spillway::python
