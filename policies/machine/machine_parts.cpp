#include "policies/machine/machine_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "base/units.hpp"
#include "policies/machine/field_reader.hpp"
#include "policies/machine/machine_sections.hpp"

namespace spillway {

namespace embedded {
using PartFiles = std::vector<std::pair<std::string, std::string>>;
const PartFiles& card_files();     // machines/parts/cards/*.toml
const PartFiles& host_files();     // machines/parts/hosts/*.toml
const PartFiles& drive_files();    // machines/parts/drives/*.toml
const PartFiles& machine_files();  // machines/*.toml
}  // namespace embedded

namespace {

constexpr const char* form_of_parts =
    "write CARD+HOST+NxDRIVE, for example rtx4090+desktop-ddr5+2x990pro; `spillway machines` lists "
    "the parts";

struct PartKind {
  const char* name;
  const embedded::PartFiles& (*files)();
};
constexpr PartKind card_kind = {"card", embedded::card_files};
constexpr PartKind host_kind = {"host", embedded::host_files};
constexpr PartKind drive_kind = {"drive", embedded::drive_files};

std::string part_name(const std::string& file) { return file.substr(0, file.rfind('.')); }

toml::table read_part(const PartKind& kind, const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [file, text] : kind.files()) {
    names.push_back(part_name(file));
    if (names.back() == name) return parse_toml(text, file);
  }
  throw InputError(fmt::format("unknown {} {}", kind.name, name),
                   unknown_name_hint(name, names) + "; `spillway machines` lists the parts");
}

struct PartNames {
  std::string card, host, drive;  // drive: empty without drives
  std::int64_t drives = 0;
};

// "4x990pro": four of them; "990pro": one.
void read_drives(const std::string& text, PartNames& names) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  names.drives = 1;
  names.drive = text;
  if (digits == 0 || digits == text.size() || text[digits] != 'x') return;
  names.drive = text.substr(digits + 1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + digits, names.drives);
  if (error != std::errc() || names.drives < 1 || names.drives > most_scaled_drives) {
    throw InputError(
        fmt::format("{}: a machine by parts has 1 to {} drives", text, most_scaled_drives),
        form_of_parts);
  }
}

PartNames split_parts(const std::string& text) {
  std::vector<std::string> pieces;
  for (std::size_t at = 0;;) {
    const std::size_t plus = text.find('+', at);
    pieces.push_back(text.substr(at, plus - at));
    if (plus == std::string::npos) break;
    at = plus + 1;
  }
  const bool empty = std::any_of(pieces.begin(), pieces.end(),
                                 [](const std::string& piece) { return piece.empty(); });
  if (empty || pieces.size() < 2 || pieces.size() > 3)
    throw InputError(fmt::format("\"{}\" is neither parts of a machine nor a built-in file", text),
                     form_of_parts);
  PartNames names;
  names.card = pieces[0];
  names.host = pieces[1];
  if (pieces.size() == 3) read_drives(pieces[2], names);
  return names;
}

// A rate of [pcie]; infinite where the part sets no limit.
double pcie_rate(toml::table& part, const char* key) {
  const auto text = part["pcie"][key]["value"].value<std::string>();
  const double rate = text ? parse_bytes_per_second(*text) : 0;
  return rate > 0 ? rate : std::numeric_limits<double>::infinity();
}

// The card and the slot of the host are in a row: the slower one sets each rate.
void keep_slower_link(toml::table& card, toml::table& host) {
  for (const char* key : {"h2d", "d2h", "total"}) {
    toml::table& faster = pcie_rate(card, key) <= pcie_rate(host, key) ? host : card;
    if (toml::table* pcie = faster["pcie"].as_table()) pcie->erase(key);
  }
}

// The file of a drive is of one; these keys of a machine are of all drives.
void multiply_drives(toml::table& ssd, std::int64_t drives) {
  const auto multiply = [&](const char* key, const auto& product) {
    toml::table* given = ssd[key].as_table();
    if (given == nullptr) return;
    given->insert_or_assign("value", product(given->at("value").value_or(std::string())));
    given->insert_or_assign(
        "source", fmt::format("{} x {}", drives, given->at("source").value_or(std::string())));
  };
  multiply("capacity", [&](const std::string& one) {
    return fmt::format("{}B", parse_bytes(one) * static_cast<std::uint64_t>(drives));
  });
  for (const char* key : {"cache_write", "cache_recovery"}) {
    multiply(key, [&](const std::string& one) {
      return fmt::format("{:.0f}B/s", parse_bytes_per_second(one) * static_cast<double>(drives));
    });
  }
  ssd.insert_or_assign("count",
                       toml::table{{"value", drives}, {"source", "named among the parts"}});
}

// What `from` says and `to` does not. A value with its source is one thing.
void add_missing(toml::table& to, toml::table from) {
  for (auto&& [key, node] : from) {
    toml::node* there = to.get(key.str());
    if (there == nullptr) {
      to.insert(key.str(), std::move(node));
      continue;
    }
    toml::table* outer = there->as_table();
    toml::table* inner = node.as_table();
    if (outer != nullptr && inner != nullptr && !outer->contains("value"))
      add_missing(*outer, std::move(*inner));
  }
}

bool gives_ssd(const toml::table& document, const char* key) {
  const toml::table* ssd = document["ssd"].as_table();
  return ssd != nullptr && ssd->contains(key);
}

bool gives_rates(const toml::table& document) {
  return gives_ssd(document, "by_count") || gives_ssd(document, "read") ||
         gives_ssd(document, "write");
}

// Adds to `document` what the parts "CARD+HOST" or "CARD+HOST+NxDRIVE" say and it does not. Throws
// InputError, without a place, where there is no such part.
void add_parts(const std::string& text, toml::table& document) {
  const PartNames names = split_parts(text);
  toml::table card = read_part(card_kind, names.card), host = read_part(host_kind, names.host);
  toml::table drive;
  if (!names.drive.empty()) drive = read_part(drive_kind, names.drive);
  keep_slower_link(card, host);
  std::string description = fmt::format("{}; {}", card["description"].value_or(std::string()),
                                        host["description"].value_or(std::string()));
  if (!names.drive.empty()) {
    if (gives_ssd(document, "count"))
      throw InputError("the parts say how many drives there are, and so does ssd.count",
                       "leave out ssd.count, or the drives among the parts");
    multiply_drives(*drive["ssd"].as_table(), names.drives);
    description +=
        fmt::format("; {} x {}", names.drives, drive["description"].value_or(std::string()));
  }
  // Bandwidths that the file gives itself are those of all drives on their host.
  const bool own_rates = gives_rates(document);
  if (own_rates && !names.drive.empty())
    for (const char* key : {"drive_read", "drive_write"}) drive["ssd"].as_table()->erase(key);
  if (own_rates || (names.drive.empty() && !gives_ssd(document, "drive_read"))) host.erase("ssd");
  // Parts that the file changes are not what their descriptions say.
  const bool is_changed = std::any_of(document.begin(), document.end(),
                                      [](const auto& entry) { return entry.second.is_table(); });
  if (is_changed) description = "of the parts " + text + ", with values of its own";
  if (!document.contains("description")) document.insert("description", description);
  for (toml::table* part : {&card, &host, &drive}) {
    part->erase("description");
    add_missing(document, std::move(*part));
  }
}

// Adds to `document` what a built-in file says and it does not. A document that has a number of
// drives describes them all by itself.
void add_file(const embedded::PartFiles::value_type& file, toml::table& document) {
  toml::table base = parse_toml(file.second, file.first);
  take_parts(base, file.first);
  for (const char* key : {"name", "variants"}) base.erase(key);
  if (gives_ssd(document, "count")) {
    base.erase("ssd");
  } else if (toml::table* ssd = base["ssd"].as_table()) {
    const bool one_drive = gives_ssd(document, "drive_read");
    if (one_drive || gives_rates(document)) {
      for (const char* key : {"by_count", "read", "write", "total", "drive_read", "drive_write"})
        ssd->erase(key);
    }
    if (gives_rates(document)) {
      for (const char* key : {"path", "ceiling"}) ssd->erase(key);
      if (toml::table* sources = base["sources"].as_table()) sources->erase("ssd.by_count");
    }
  }
  add_missing(document, std::move(base));
}

}  // namespace

const std::vector<MachinePart>& machine_parts() {
  static const std::vector<MachinePart> parts = [] {
    std::vector<MachinePart> all;
    for (const PartKind& kind : {card_kind, host_kind, drive_kind}) {
      for (const auto& [file, text] : kind.files()) {
        const toml::table part = parse_toml(text, file);
        all.push_back({kind.name, part_name(file), part["description"].value_or(std::string())});
      }
    }
    return all;
  }();
  return parts;
}

bool is_by_parts(const std::string& name) { return name.find('+') != std::string::npos; }

std::string part_hint(const std::string& name) {
  for (const MachinePart& part : machine_parts()) {
    if (part.name == name)
      return fmt::format("{} is a {}, a part of a machine: {}", name, part.kind, form_of_parts);
  }
  return {};
}

void take_parts(toml::table& document, const std::string& origin) {
  const toml::node* node = document.get("parts");
  if (node == nullptr) return;
  const std::string place = place_of(node->source(), origin);
  const auto* given = node->as_string();
  if (given == nullptr)
    throw InputError(place, 0, "parts is not a string",
                     "write parts = \"rtx4090+desktop-ddr5+2x990pro\"");
  const std::string text = given->get();
  document.erase("parts");
  const embedded::PartFiles& files = embedded::machine_files();
  const auto file = std::find_if(files.begin(), files.end(),
                                 [&](const auto& one) { return part_name(one.first) == text; });
  try {
    if (file != files.end())
      add_file(*file, document);
    else
      add_parts(text, document);
  } catch (const InputError& error) {
    throw InputError(place, 0, error.message(), error.advice());
  }
}

}  // namespace spillway
