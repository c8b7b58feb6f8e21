#include "experiments/sweep/sweep_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "base/text.hpp"
#include "policies/machine/field_reader.hpp"

namespace spillway {

namespace {

constexpr std::size_t most_plots = 100, longest_plot_name = 100;

struct Entry {
  std::string key;
  const toml::node* node = nullptr;
  toml::source_position at;
};

// The keys of a table in the order of the file; tables inside it are dotted keys.
void collect(const toml::table& table, const std::string& prefix, std::vector<Entry>& entries) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    if (const toml::table* inner = node.as_table()) {
      collect(*inner, name + ".", entries);
    } else {
      entries.push_back({name, &node, key.source().begin});
    }
  }
}

std::vector<Entry> entries_of(const toml::table& table) {
  std::vector<Entry> entries;
  collect(table, "", entries);
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.at < b.at; });
  return entries;
}

class Reader {
 public:
  explicit Reader(std::string origin) { file_.origin = std::move(origin); }

  SweepFile read(const std::string& text) {
    toml::table document;
    try {
      document = parse_toml(text, file_.origin);
    } catch (const InputError& error) {
      throw InputError(error.what(),
                       "docs/sweep.md describes sweep files; a key with a dot stands in quotes: "
                       "\"ssd.count\" = [1, 2]");
    }
    std::vector<std::pair<const toml::key*, const toml::node*>> parts;
    for (const auto& [key, node] : document) parts.emplace_back(&key, &node);
    std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
      return a.first->source().begin < b.first->source().begin;
    });
    for (const auto& [key, node] : parts) read_top(std::string(key->str()), *key, *node);
    if (file_.name.empty())
      file_.name = file_.origin.empty()
                       ? "sweep"
                       : printable(std::filesystem::path(file_.origin).stem().string());
    return std::move(file_);
  }

 private:
  [[noreturn]] void fail(const std::string& place, const std::string& what,
                         const std::string& hint) const {
    throw InputError(place, 0, what, hint);
  }
  std::string place(const toml::node& node) const { return place_of(node.source(), file_.origin); }
  std::string place(const toml::source_position& at) const {
    return file_.origin.empty() ? "" : fmt::format("{}:{}:{}", file_.origin, at.line, at.column);
  }

  void read_top(const std::string& name, const toml::key& key, const toml::node& node) {
    if (name == "name") {
      file_.name = text_of(node, "name");
    } else if (name == "explain") {
      const auto* flag = node.as_boolean();
      if (!flag) fail(place(node), "explain is neither true nor false", "write explain = true");
      file_.explain = flag->get();
    } else if (name == "fixed") {
      const toml::table* table = node.as_table();
      if (!table) fail(place(node), "fixed is not a table", "write [fixed], and settings below");
      for (const Entry& entry : entries_of(*table)) read_fixed(entry);
    } else if (name == "axis") {
      for (const toml::table* table : tables(node, name)) read_axis(*table);
    } else if (name == "skip") {
      for (const toml::table* table : tables(node, name)) read_skip(*table);
    } else if (name == "plot") {
      for (const toml::table* table : tables(node, name)) read_plot(*table);
    } else {
      fail(place_of(key.source(), file_.origin), fmt::format("unknown key {}", name),
           unknown_name_hint(name, {"name", "explain", "fixed", "axis", "skip", "plot"}));
    }
  }

  std::vector<const toml::table*> tables(const toml::node& node, const std::string& name) const {
    const toml::array* array = node.as_array();
    if (!array || !array->is_homogeneous(toml::node_type::table)) {
      fail(place(node), fmt::format("{} is not a list of tables", name),
           fmt::format("write [[{}]] with two brackets", name));
    }
    std::vector<const toml::table*> all;
    for (const toml::node& element : *array) all.push_back(element.as_table());
    return all;
  }

  // Names, labels and values stand in tables and pictures.
  std::string shown(const toml::value<std::string>& text, const std::string& key) const {
    if (const auto found = find_unprintable(text.get()))
      fail(place(text), fmt::format("{} holds {}", key, *found), "write it without");
    return text.get();
  }

  std::string text_of(const toml::node& node, const std::string& key) const {
    if (const auto* text = node.as_string()) return shown(*text, key);
    fail(place(node), fmt::format("{} is not a string", key),
         fmt::format("write for example {} = \"tokens_per_second\"", key));
  }

  // A number, a string, true or false, as the command line takes it.
  std::string value_of(const toml::node& node, const std::string& key) const {
    if (const auto* text = node.as_string()) return shown(*text, key);
    if (const auto* integer = node.as_integer()) return std::to_string(integer->get());
    if (const auto* real = node.as_floating_point()) return fmt::format("{}", real->get());
    if (const auto* flag = node.as_boolean()) {
      // Options of policies are on or off, keys of machines true or false.
      if (policy_of_key(key)) return flag->get() ? "on" : "off";
      return flag->get() ? "true" : "false";
    }
    fail(place(node), fmt::format("a value of {} is neither a number nor a string", key),
         "lists of values belong under [[axis]]");
  }

  std::string checked_value(const toml::node& node, const std::string& key) const {
    const std::string value = value_of(node, key);
    try {
      check_sweep_value(key, value);
    } catch (const InputError& error) {
      fail(place(node), fmt::format("{}: {}", key, error.what()), error.hint());
    }
    return value;
  }

  void require_known(const Entry& entry) const {
    const std::vector<std::string> keys = sweep_keys();
    if (std::find(keys.begin(), keys.end(), entry.key) != keys.end()) return;
    fail(place(entry.at), fmt::format("unknown key {}", entry.key),
         unknown_name_hint(entry.key, keys));
  }

  void claim(const Entry& entry) {
    require_known(entry);
    const auto [it, is_new] = claimed_.emplace(entry.key, place(entry.at));
    if (is_new) return;
    fail(place(entry.at),
         it->second.empty() ? entry.key + " is set twice"
                            : fmt::format("{} is set here and at {}", entry.key, it->second),
         "keep one of them");
  }

  void read_fixed(const Entry& entry) {
    claim(entry);
    if (entry.node->is_array()) {
      fail(place(*entry.node), fmt::format("{} has a list of values under [fixed]", entry.key),
           fmt::format("put it under a line [[axis]]"));
    }
    file_.fixed[entry.key] = checked_value(*entry.node, entry.key);
    file_.fixed_places[entry.key] = place(*entry.node);
  }

  std::vector<const toml::node*> list_of(const Entry& entry) const {
    std::vector<const toml::node*> all;
    if (const toml::array* array = entry.node->as_array()) {
      for (const toml::node& node : *array) all.push_back(&node);
    } else {
      all.push_back(entry.node);
    }
    if (all.empty()) {
      fail(place(*entry.node), fmt::format("{} has no values", entry.key),
           fmt::format("write for example \"{}\" = [...] with at least one", entry.key));
    }
    return all;
  }

  void read_axis(const toml::table& table) {
    SweepAxis axis;
    for (const Entry& entry : entries_of(table)) {
      claim(entry);
      const std::vector<const toml::node*> list = list_of(entry);
      if (axis.keys.empty()) {
        axis.values.resize(list.size());
        for (const toml::node* node : list) axis.places.push_back(place(*node));
      } else if (list.size() != axis.values.size()) {
        fail(
            place(*entry.node),
            fmt::format("{} has {} values and {} has {} in the same axis", entry.key, list.size(),
                        axis.keys.front(), axis.values.size()),
            "keys of one [[axis]] move together; for every combination give each its own [[axis]]");
      }
      axis.keys.push_back(entry.key);
      for (std::size_t i = 0; i < list.size(); ++i) {
        axis.values[i].push_back(checked_value(*list[i], entry.key));
      }
    }
    if (axis.keys.empty()) {
      fail(place(table), "an axis has no key", "write for example batch = [8, 16, 32] below it");
    }
    std::set<std::vector<std::string>> seen;
    for (std::size_t i = 0; i < axis.values.size(); ++i) {
      if (seen.insert(axis.values[i]).second) continue;
      fail(axis.places[i],
           fmt::format("{} = {} is there twice", fmt::join(axis.keys, ", "),
                       fmt::join(axis.values[i], ", ")),
           "keep one of them");
    }
    file_.axes.push_back(std::move(axis));
  }

  std::vector<std::pair<std::string, std::vector<std::string>>> conditions(
      const std::vector<Entry>& entries, bool of_settings) const {
    std::vector<std::pair<std::string, std::vector<std::string>>> all;
    for (const Entry& entry : entries) {
      if (of_settings) require_known(entry);
      std::vector<std::string> values;
      for (const toml::node* node : list_of(entry)) values.push_back(value_of(*node, entry.key));
      all.emplace_back(entry.key, std::move(values));
    }
    return all;
  }

  void read_skip(const toml::table& table) {
    SkipRule rule{conditions(entries_of(table), true), place(table)};
    if (rule.values.empty()) {
      fail(rule.place, "a skip rule has no key",
           "write for example policy = \"resident\" below it");
    }
    file_.skips.push_back(std::move(rule));
  }

  void read_plot(const toml::table& table) {
    PlotRequest plot;
    plot.place = place(table);
    for (const auto& [key, node] : table) {
      const std::string name(key.str());
      const std::vector<std::pair<std::string, std::string*>> texts = {{"kind", &plot.kind},
                                                                       {"name", &plot.name},
                                                                       {"title", &plot.title},
                                                                       {"x", &plot.x},
                                                                       {"y", &plot.y},
                                                                       {"x_label", &plot.x_label},
                                                                       {"y_label", &plot.y_label}};
      const auto text = std::find_if(texts.begin(), texts.end(),
                                     [&](const auto& one) { return one.first == name; });
      if (text != texts.end()) {
        *text->second = text_of(node, name);
      } else if (name == "log_x" || name == "log_y") {
        const auto* flag = node.as_boolean();
        if (!flag)
          fail(place(node), name + " is neither true nor false", "write " + name + " = true");
        (name == "log_x" ? plot.log_x : plot.log_y) = flag->get();
      } else if (name == "where") {
        if (!node.is_table()) fail(place(node), "where is not a table", "where = { batch = 32 }");
        plot.where = conditions(entries_of(*node.as_table()), true);
      } else {
        fail(place_of(key.source(), file_.origin), fmt::format("unknown key {} of a plot", name),
             unknown_name_hint(name, {"kind", "name", "title", "x", "y", "x_label", "y_label",
                                      "log_x", "log_y", "where"}));
      }
    }
    finish_plot(plot);
    file_.plots.push_back(std::move(plot));
  }

  void finish_plot(PlotRequest& plot) const {
    const std::vector<std::string> kinds = {"roofline", "lines", "phases", "winners"};
    if (plot.kind.empty())
      fail(plot.place, "kind is missing", "roofline, lines, phases or winners");
    if (std::find(kinds.begin(), kinds.end(), plot.kind) == kinds.end()) {
      fail(plot.place, fmt::format("unknown kind of plot {}", plot.kind),
           unknown_name_hint(plot.kind, kinds));
    }
    if (plot.name.empty()) plot.name = plot.kind;
    if (plot.name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                    "-_.") != std::string::npos ||
        plot.name.front() == '.' || plot.name.front() == '-') {
      fail(plot.place, fmt::format("{} cannot be the name of a picture", plot.name),
           "use letters, digits, - and _");
    }
    if (plot.name.size() > longest_plot_name) {
      fail(plot.place, fmt::format("the name of a picture has {} characters", plot.name.size()),
           fmt::format("{} are enough", longest_plot_name));
    }
    if (file_.plots.size() == most_plots) {
      fail(plot.place, fmt::format("more than {} pictures of one sweep", most_plots),
           "sweep again into the same folder with other pictures: no point is run twice");
    }
    for (const PlotRequest& other : file_.plots) {
      if (other.name == plot.name) {
        fail(plot.place, fmt::format("two plots are named {}", plot.name),
             "give each its own name = \"...\"");
      }
    }
    if (plot.kind == "lines" && plot.x.empty()) {
      fail(plot.place, "x is missing", "name a column of results.csv, e.g. x = \"ssd.count\"");
    }
    if (plot.kind == "roofline" && plot.x.empty()) plot.x = "batch";
    if (plot.kind == "roofline" && !plot.y.empty() && plot.y != "tokens_per_second") {
      fail(plot.place, fmt::format("a roofline of {}: its roofs are tokens per second", plot.y),
           "leave y out, or draw kind = \"lines\"");
    }
    if (plot.kind == "winners" && (plot.x.empty() || plot.y.empty())) {
      fail(plot.place, plot.x.empty() ? "x is missing" : "y is missing",
           "a map of winners has an axis of the sweep each way, e.g. x = \"batch\", y = "
           "\"ssd.count\"");
    }
    if (plot.y.empty()) plot.y = "tokens_per_second";
  }

  SweepFile file_;
  std::map<std::string, std::string> claimed_;  // key -> place
};

}  // namespace

SweepFile parse_sweep(const std::string& toml_text, const std::string& origin) {
  return Reader(origin).read(toml_text);
}

SweepFile load_sweep(const std::string& path) {
  const auto text = read_named_file(path);
  if (!text) {
    throw InputError(fmt::format("{}: there is no such file", path),
                     "name a sweep file (docs/sweep.md); experiments/sweeps/ has ready ones");
  }
  return parse_sweep(*text, path);
}

}  // namespace spillway
