// The price lists of machines/prices/, compiled in.
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "experiments/questions/price_list.hpp"
#include "policies/machine/field_reader.hpp"

namespace spillway {

namespace embedded {
const std::vector<std::pair<std::string, std::string>>& price_files();
}

PriceList load_price_list(const std::string& name_or_path) {
  std::vector<std::string> names;
  for (const auto& [file, text] : embedded::price_files()) {
    names.push_back(file.substr(0, file.rfind('.')));
    if (names.back() == name_or_path) return parse_price_list(text, file);
  }
  if (const auto text = read_named_file(name_or_path)) return parse_price_list(*text, name_or_path);
  throw InputError(fmt::format("unknown price list {}", name_or_path),
                   unknown_name_hint(name_or_path, names) + "; a path of a TOML file works too");
}

}  // namespace spillway
