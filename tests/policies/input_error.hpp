// Catches the InputError that a test expects, to look at its text and hint.
#pragma once

#include <catch2/catch.hpp>

#include <stdexcept>
#include <string>

#include "base/errors.hpp"

namespace spillway {

template <class Body>
InputError input_error(Body body) {
  try {
    body();
  } catch (const InputError& error) {
    return error;
  }
  FAIL("no InputError was thrown");
  throw std::logic_error("not reached");
}

// An expected error: what() begins with `what` (file:line:column first), the hint contains `hint`.
template <class Body>
void check_error(Body body, const std::string& what, const std::string& hint) {
  const InputError error = input_error(body);
  INFO("what: " << error.what() << "\nhint: " << error.hint());
  CHECK(std::string(error.what()).rfind(what, 0) == 0);
  CHECK(error.hint().find(hint) != std::string::npos);
}

}  // namespace spillway
