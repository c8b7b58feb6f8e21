// `--io`: how the commands that use the SSD store read and write it.
#pragma once

#include <CLI/CLI.hpp>

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "exec/io/io_choice.hpp"

namespace spillway::cli {

// `auto`, `threads` or `uring`. Throws MachineError where io_uring is asked for and refused here.
IoChoice choose_named_io(const std::string& name);

class IoOption {
 public:
  // Adds --io.
  void add_to(CLI::App& command);
  IoChoice choose() const { return choose_named_io(text_); }

 private:
  std::string text_ = "auto";
};

// How the drives are read and written, at the depth that training has: "I/O: io_uring".
std::string io_line(const IoChoice& io);
nlohmann::ordered_json io_json(const IoChoice& io);

}  // namespace spillway::cli
