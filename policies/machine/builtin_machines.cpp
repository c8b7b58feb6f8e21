// The machines that come with the program, and those that people name.
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "policies/machine/machine_parts.hpp"
#include "policies/machine/machine_toml.hpp"

namespace spillway {

namespace embedded {
const std::vector<std::pair<std::string, std::string>>& machine_files();  // machines/*.toml
}

namespace {

// A built-in machine: a file under the file's name, or a variant of it, which `[variants]` lists
// with its settings (KEY=VALUE).
struct Builtin {
  std::string name, file;
  const std::string& text;
  std::vector<std::string> settings;
};

const std::vector<Builtin>& builtins() {
  static const std::vector<Builtin> all = [] {
    std::vector<Builtin> found;
    for (const auto& [file, text] : embedded::machine_files()) {
      found.push_back({file.substr(0, file.rfind('.')), file, text, {}});
      const toml::table document = parse_toml(text, file);
      const toml::table* variants = document["variants"].as_table();
      if (!variants) continue;
      for (const auto& [name, settings] : *variants) {
        found.push_back({std::string(name.str()), file, text, {}});
        settings.as_array()->for_each([&](const toml::value<std::string>& setting) {
          found.back().settings.push_back(setting.get());
        });
      }
    }
    return found;
  }();
  return all;
}

Machine read_builtin(const Builtin& builtin, const std::vector<std::string>& overrides,
                     MachineFile& file) {
  toml::table document = parse_toml(builtin.text, builtin.file);
  document.erase("variants");
  Machine machine =
      read_machine(std::move(document), builtin.file, builtin.settings, overrides, file);
  if (builtin.settings.empty()) SPILLWAY_ASSERT(machine.name == builtin.name, builtin.file);
  machine.name = builtin.name;
  return machine;
}

}  // namespace

const std::vector<Machine>& builtin_machines() {
  static const std::vector<Machine> machines = [] {
    std::vector<Machine> all;
    for (const Builtin& builtin : builtins()) {
      MachineFile file;
      all.push_back(read_builtin(builtin, {}, file));
    }
    return all;
  }();
  return machines;
}

Machine load_machine(const std::string& name_or_path, const std::vector<std::string>& overrides) {
  MachineFile file;
  return load_machine(name_or_path, overrides, file);
}

Machine load_machine(const std::string& name_or_path, const std::vector<std::string>& overrides,
                     MachineFile& file) {
  std::vector<std::string> names;
  for (const Builtin& builtin : builtins()) {
    if (builtin.name == name_or_path) return read_builtin(builtin, overrides, file);
    names.push_back(builtin.name);
  }
  if (const auto text = read_named_file(name_or_path)) {
    return read_machine(parse_toml(*text, name_or_path), name_or_path, {}, overrides, file);
  }
  if (is_by_parts(name_or_path)) {
    toml::table document{{"name", name_or_path}, {"parts", name_or_path}};
    return read_machine(std::move(document), name_or_path, {}, overrides, file);
  }
  const std::string hint = part_hint(name_or_path);
  throw InputError(fmt::format("unknown machine {}", name_or_path),
                   (hint.empty() ? unknown_name_hint(name_or_path, names) : hint) +
                       "; a path of a TOML file works too");
}

}  // namespace spillway
