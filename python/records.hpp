// Rows of numbers for numpy: a structure of C++ becomes a structured array, column by column, with
// one copy. numpy itself is called from Python alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "python/core.hpp"

namespace spillway::python {

// A column of a row: its name, and where it is in the structure.
struct Column {
  const char* name;
  const char* format;  // as numpy writes it: "<i8", "<f8", "<u1"
  std::size_t offset;
};

template <class Number>
constexpr const char* format_of() {
  constexpr bool is_float = std::is_floating_point_v<Number>;
  constexpr bool is_signed = std::is_signed_v<Number>;
  if constexpr (sizeof(Number) == 1) return is_signed ? "<i1" : "<u1";
  if constexpr (sizeof(Number) == 2) return is_signed ? "<i2" : "<u2";
  if constexpr (sizeof(Number) == 4) return is_float ? "<f4" : is_signed ? "<i4" : "<u4";
  if constexpr (sizeof(Number) == 8) return is_float ? "<f8" : is_signed ? "<i8" : "<u8";
}

// {bytes of all rows, names, formats, offsets, bytes of a row}: what numpy.frombuffer takes.
template <class Row>
nb::tuple records(std::size_t count, std::span<const Column> columns, const auto& fill) {
  static_assert(std::is_trivially_copyable_v<Row>);
  PyObject* const bytes =
      PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(count * sizeof(Row)));
  if (bytes == nullptr) throw nb::python_error();
  const nb::object all = nb::steal(bytes);
  auto* rows = reinterpret_cast<Row*>(PyBytes_AS_STRING(bytes));
  for (std::size_t i = 0; i < count; ++i) new (rows + i) Row(fill(i));
  nb::list names, formats, offsets;
  for (const Column& column : columns) {
    names.append(column.name);
    formats.append(column.format);
    offsets.append(column.offset);
  }
  return nb::make_tuple(all, names, formats, offsets, sizeof(Row));
}

}  // namespace spillway::python

// The column of a member that has its name.
#define SPILLWAY_COLUMN(Row, member)                                                         \
  ::spillway::python::Column {                                                               \
#member, ::spillway::python::format_of < decltype(Row::member)>(), offsetof(Row, member) \
  }
