#include "experiments/questions/price_list.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "base/errors.hpp"
#include "policies/machine/field_reader.hpp"

namespace spillway {

namespace {

constexpr const char* about = "docs/questions.md describes price lists";
constexpr std::int64_t most_drives = 1000;

// Reads the keys of one table that are fields; `other` reads those that are not, and says whether
// it knows them.
template <class Other>
void read_fields(const toml::table& table, FieldReader& reader, const Other& other) {
  for (const auto& [key, value] : table) {
    if (!other(std::string(key.str()), value)) reader.read("", key, value);
  }
}

// `set = { "gpu.memory" = "24GB", ... }`
std::vector<std::string> read_settings(const toml::node& node, const std::string& origin) {
  const toml::table* table = node.as_table();
  const std::string place = place_of(node.source(), origin);
  if (table == nullptr)
    throw InputError(place, 0, "set is not a table", "write set = { \"gpu.memory\" = \"24GB\" }");
  std::vector<std::string> settings;
  for (const auto& [key, value] : *table) {
    const std::string name(key.str()), at = place_of(key.source(), origin);
    std::string text;
    if (const auto* string = value.as_string())
      text = string->get();
    else if (const auto* whole = value.as_integer())
      text = std::to_string(whole->get());
    else if (const auto* real = value.as_floating_point())
      text = fmt::format("{}", real->get());
    else if (value.is_table())
      throw InputError(at, 0, fmt::format("{} is a table", name),
                       "a key with a dot stands in quotes: set = { \"gpu.memory\" = \"24GB\" }");
    try {
      check_machine_setting(name, text);
    } catch (const InputError& error) {
      throw InputError(at, 0, error.message(), error.advice());
    }
    settings.push_back(name + "=" + text);
  }
  return settings;
}

std::vector<std::int64_t> read_counts(const toml::node& node, const std::string& origin) {
  const auto fail = [&](const toml::node& at) {
    throw InputError(place_of(at.source(), origin), 0,
                     fmt::format("counts holds whole numbers of 0 to {}", most_drives),
                     "write for example counts = [1, 2, 4]");
  };
  const toml::array* array = node.as_array();
  if (array == nullptr || array->empty()) fail(node);
  std::vector<std::int64_t> counts;
  for (const toml::node& element : *array) {
    const auto* count = element.as_integer();
    if (count == nullptr || count->get() < 0 || count->get() > most_drives) fail(element);
    counts.push_back(count->get());
  }
  return counts;
}

class ListReader {
 public:
  explicit ListReader(const std::string& origin) { list_.origin = origin; }

  PriceList read(const std::string& text) {
    const toml::table document = parse_document(text);
    FieldReader reader(
        {text_field("currency", list_.currency, "USD"),
         text_field("source", list_.source, "my shop, in June"),
         text_field("machine", list_.machine, "rtx4090-12ssd"), number_field("price", list_.price)},
        list_.origin, list_.origin + ":1:1", nullptr);
    read_fields(document, reader, [&](const std::string& key, const toml::node& node) {
      if (key == "gpu")
        each(key, node, [&](const toml::table& part) { read_gpu(part); });
      else if (key == "memory")
        each(key, node, [&](const toml::table& part) { read_memory(part); });
      else if (key == "drive")
        each(key, node, [&](const toml::table& part) { read_drive(part); });
      else
        return false;
      return true;
    });
    reader.require({"machine", "currency"});
    refuse_control_characters(reader, "currency", list_.currency);
    refuse_control_characters(reader, "source", list_.source);
    if (list_.gpus.empty() && list_.memories.empty() && list_.drives.empty())
      throw InputError(list_.origin, 0, "it holds no part",
                       "add [[gpu]], [[memory]] or [[drive]] tables; " + std::string(about));
    return std::move(list_);
  }

 private:
  toml::table parse_document(const std::string& text) const {
    try {
      return parse_toml(text, list_.origin);
    } catch (const InputError& error) {
      throw InputError(error.message(), about);
    }
  }

  template <class Read>
  void each(const std::string& key, const toml::node& node, const Read& read) const {
    const toml::array* array = node.as_array();
    const auto fail = [&](const toml::node& at) {
      throw InputError(place_of(at.source(), list_.origin), 0,
                       fmt::format("{} is not a list of tables", key),
                       fmt::format("write [[{}]], and its keys on the lines below", key));
    };
    if (array == nullptr) fail(node);
    for (const toml::node& element : *array) {
      if (!element.is_table()) fail(element);
      read(*element.as_table());
    }
  }

  // The keys that all parts have come first.
  void refuse_control_characters(const FieldReader& reader, const char* key,
                                 const std::string& text) const {
    const bool is_plain = std::none_of(text.begin(), text.end(), [](char one) {
      return static_cast<unsigned char>(one) < 0x20 || one == 0x7f;
    });
    if (!is_plain)
      reader.fail({key, "it holds a control character", "write it on one line, without tabs"});
  }

  FieldReader part_reader(const toml::table& table, std::string& name, double& price,
                          std::vector<Field> more) const {
    std::vector<Field> fields = {text_field("name", name, "a name"), number_field("price", price)};
    for (Field& field : more) fields.push_back(std::move(field));
    return {std::move(fields), list_.origin, place_of(table.source(), list_.origin), nullptr};
  }

  void read_gpu(const toml::table& table) {
    PricedGpu gpu;
    FieldReader reader = part_reader(table, gpu.name, gpu.price, {});
    read_fields(table, reader, [&](const std::string& key, const toml::node& node) {
      if (key != "set") return false;
      gpu.settings = read_settings(node, list_.origin);
      return true;
    });
    check(reader, gpu.name);
    list_.gpus.push_back(std::move(gpu));
  }

  void read_memory(const toml::table& table) {
    PricedMemory memory;
    FieldReader reader =
        part_reader(table, memory.name, memory.price, {bytes_field("size", memory.size)});
    read_fields(table, reader, [](const std::string&, const toml::node&) { return false; });
    check(reader, memory.name);
    reader.require({"size"});
    refuse_zero(reader, {{"size", memory.size > 0}});
    list_.memories.push_back(std::move(memory));
  }

  void read_drive(const toml::table& table) {
    PricedDrive drive;
    FieldReader reader = part_reader(
        table, drive.name, drive.price,
        {bytes_field("capacity", drive.capacity), bytes_field("tbw", drive.tbw),
         bandwidth_field("read", drive.read), bandwidth_field("write", drive.write),
         bandwidth_field("total", drive.total), bandwidth_field("ceiling", drive.ceiling)});
    read_fields(table, reader, [&](const std::string& key, const toml::node& node) {
      if (key == "set")
        drive.settings = read_settings(node, list_.origin);
      else if (key == "counts")
        drive.counts = read_counts(node, list_.origin);
      else
        return false;
      return true;
    });
    check(reader, drive.name);
    refuse_zero(reader, {{"capacity", drive.capacity > 0},
                         {"tbw", drive.tbw > 0},
                         {"read", drive.read > 0},
                         {"write", drive.write > 0},
                         {"ceiling", drive.ceiling > 0}});
    if (drive.counts.empty())
      reader.fail({"counts", "it is missing", "write for example counts = [1, 2, 4]"});
    // A drive of another make has rates of its own, and a size.
    if (drive.read > 0 || drive.write > 0 || drive.total > 0)
      reader.require({"read", "write", "capacity"});
    list_.drives.push_back(std::move(drive));
  }

  void check(const FieldReader& reader, const std::string& name) const {
    reader.require({"name", "price"});
    refuse_control_characters(reader, "name", name);
  }
  // Keys, and whether they are more than 0.
  static void refuse_zero(const FieldReader& reader,
                          const std::vector<std::pair<const char*, bool>>& keys) {
    for (const auto& [key, is_positive] : keys) {
      if (reader.given(key) && !is_positive)
        reader.fail({key, "it is 0", "give what the part has, or leave the key out"});
    }
  }

  PriceList list_;
};

// "4TB", "128GiB": with the largest prefix that leaves a whole number.
std::string exact_text(double amount, const std::string& unit) {
  const auto whole = static_cast<std::uint64_t>(std::llround(std::min(amount, 9e18)));
  const auto with = [&](std::uint64_t base, const char* infix) {
    std::uint64_t left = whole;
    std::size_t prefix = 0;
    static constexpr std::string_view prefixes = "kMGTP";
    for (; left > 0 && left % base == 0 && prefix < prefixes.size(); ++prefix) left /= base;
    if (prefix == 0) return std::to_string(whole) + unit;
    const char letter = prefix == 1 && base == 1024 ? 'K' : prefixes[prefix - 1];
    return fmt::format("{}{}{}{}", left, letter, infix, unit);
  };
  const std::string decimal = with(1000, ""), binary = with(1024, "i");
  return binary.size() < decimal.size() ? binary : decimal;
}

// What so many drives of a kind set.
std::vector<std::string> settings_of(const PricedDrive& drive, std::int64_t count) {
  std::vector<std::string> settings = {fmt::format("ssd.count={}", count)};
  const auto all = [&](double one) {
    const double together = one * static_cast<double>(count);
    return drive.ceiling > 0 ? std::min(together, drive.ceiling) : together;
  };
  const auto set = [&](const char* key, const std::string& value) {
    settings.push_back(std::string(key) + "=" + value);
  };
  if (drive.capacity > 0)
    set("ssd.capacity",
        exact_text(static_cast<double>(drive.capacity) * static_cast<double>(count), "B"));
  if (drive.tbw > 0) set("ssd.tbw", exact_text(static_cast<double>(drive.tbw), "B"));
  if (drive.read > 0 && count > 0) {
    set("ssd.read", exact_text(all(drive.read), "B/s"));
    set("ssd.write", exact_text(all(drive.write), "B/s"));
    set("ssd.total", exact_text(all(drive.total), "B/s"));
  }
  settings.insert(settings.end(), drive.settings.begin(), drive.settings.end());
  return settings;
}

// Where the list has none of a kind of part, one that sets nothing and costs nothing.
template <class Part>
std::vector<Part> or_none(const std::vector<Part>& parts) {
  return parts.empty() ? std::vector<Part>(1) : parts;
}

}  // namespace

std::vector<PricedMachine> PriceList::machines() const {
  std::vector<PricedMachine> all;
  const std::vector<PricedGpu> some_gpu = or_none(gpus);
  const std::vector<PricedMemory> some_memory = or_none(memories);
  std::vector<PricedDrive> some_drive = or_none(drives);
  if (drives.empty()) some_drive[0].counts = {0};
  for (std::size_t g = 0; g < some_gpu.size(); ++g) {
    for (std::size_t m = 0; m < some_memory.size(); ++m) {
      std::set<std::pair<std::size_t, std::int64_t>> seen;  // kinds of drives and counts
      for (std::size_t d = 0; d < some_drive.size(); ++d) {
        for (const std::int64_t count : some_drive[d].counts) {
          // No drives are the same of any kind.
          if (!seen.insert({count == 0 ? 0 : d, count}).second) continue;
          PricedMachine one{price, g, m, d, count, some_gpu[g].settings};
          one.price += some_gpu[g].price + some_memory[m].price +
                       some_drive[d].price * static_cast<double>(count);
          if (some_memory[m].size > 0)
            one.overrides.push_back("host.memory=" +
                                    exact_text(static_cast<double>(some_memory[m].size), "B"));
          if (!drives.empty()) {
            for (std::string& setting : settings_of(some_drive[d], count))
              one.overrides.push_back(std::move(setting));
          }
          all.push_back(std::move(one));
        }
      }
    }
  }
  if (all.size() > most_priced_machines) {
    throw InputError(origin, 0,
                     fmt::format("its parts make {} machines, more than the {} that are tried",
                                 all.size(), most_priced_machines),
                     "leave out parts or counts of drives");
  }
  std::stable_sort(all.begin(), all.end(), [](const PricedMachine& a, const PricedMachine& b) {
    return a.price < b.price;
  });
  return all;
}

std::optional<std::string> PriceList::part_that_sets(const std::string& key) const {
  const auto sets = [&](const std::vector<std::string>& settings) {
    return std::any_of(settings.begin(), settings.end(),
                       [&](const std::string& one) { return one.rfind(key + "=", 0) == 0; });
  };
  for (const PricedGpu& gpu : gpus) {
    if (sets(gpu.settings)) return "[[gpu]] " + gpu.name;
  }
  if (key == "host.memory" && !memories.empty()) return "[[memory]] " + memories.front().name;
  // What the base machine says of drives goes by their number.
  static constexpr std::array<const char*, 4> by_count = {"ssd.capacity", "ssd.read", "ssd.write",
                                                          "ssd.total"};
  for (const PricedDrive& drive : drives) {
    if (sets(settings_of(drive, 1)) ||
        std::find(by_count.begin(), by_count.end(), key) != by_count.end())
      return "[[drive]] " + drive.name;
  }
  return {};
}

std::string PriceList::name_of(const PricedMachine& machine) const {
  std::vector<std::string> parts;
  if (!gpus.empty()) parts.push_back(gpus[machine.gpu].name);
  if (!memories.empty()) parts.push_back(memories[machine.memory].name);
  if (!drives.empty())
    parts.push_back(machine.drives == 0
                        ? "no drives"
                        : fmt::format("{} x {}", machine.drives, drives[machine.drive].name));
  return fmt::format("{}", fmt::join(parts, ", "));
}

PriceList parse_price_list(const std::string& toml_text, const std::string& origin) {
  return ListReader(origin).read(toml_text);
}

}  // namespace spillway
