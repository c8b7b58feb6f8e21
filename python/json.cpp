// JSON as Python objects.
#include <nlohmann/json.hpp>

#include "python/core.hpp"

namespace spillway::python {

nb::object to_python(const nlohmann::ordered_json& json) {
  using Type = nlohmann::ordered_json::value_t;
  switch (json.type()) {
    case Type::boolean:
      return nb::bool_(json.get<bool>());
    case Type::number_integer:
      return nb::int_(json.get<std::int64_t>());
    case Type::number_unsigned:
      return nb::int_(json.get<std::uint64_t>());
    case Type::number_float:
      return nb::float_(json.get<double>());
    case Type::string: {
      // Names and paths may hold any bytes.
      const std::string& text = json.get_ref<const std::string&>();
      PyObject* const decoded =
          PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
      if (decoded == nullptr) throw nb::python_error();
      return nb::steal(decoded);
    }
    case Type::array: {
      nb::list list;
      for (const auto& one : json) list.append(to_python(one));
      return list;
    }
    case Type::object: {
      nb::dict dictionary;
      for (const auto& [key, value] : json.items()) dictionary[key.c_str()] = to_python(value);
      return dictionary;
    }
    case Type::null:
    case Type::binary:
    case Type::discarded:
      break;
  }
  return nb::none();
}

}  // namespace spillway::python
