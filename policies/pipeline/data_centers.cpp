#include "policies/pipeline/data_centers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "policies/machine/field_reader.hpp"

namespace spillway {

namespace {

constexpr std::int64_t most_nodes = 1'000'000, most_flows = 1'000'000;

std::vector<Field> fields_of(DataCenter& center) {
  return {text_field("name", center.name, "east"), count_field("nodes", center.nodes)};
}

std::vector<Field> fields_of(WanLink& link) {
  return {text_field("from", link.from, "east"), text_field("to", link.to, "west"),
          nanoseconds_field("rtt", link.rtt_ns), bytes_field("window", link.window),
          count_field("flows", link.flows),      bandwidth_field("pair", link.pair),
          bandwidth_field("total", link.total),  nanoseconds_field("jitter", link.jitter_ns)};
}

// The fields that are of a link, and not of which data centres it joins.
std::vector<Field> settings_of(WanLink& link) {
  std::vector<Field> fields = fields_of(link);
  fields.erase(fields.begin(), fields.begin() + 2);
  return fields;
}

std::optional<FieldProblem> problem_of(const WanLink& link) {
  if (link.rtt_ns < 1)
    return {{"rtt", "it is zero", "give the time there and back, e.g. \"40ms\""}};
  if (link.window < 1)
    return {{"window", "it is zero", "give the bytes of a flow, e.g. \"1.47MB\""}};
  if (link.flows < 1 || link.flows > most_flows)
    return {{"flows", fmt::format("{} flows are none that two nodes have", link.flows),
             "give 1 or more"}};
  if (!(link.pair > 0))
    return {{"pair", "it is zero", "give what two nodes reach with many flows, e.g. \"625MB/s\""}};
  return {};
}

template <class Row>
Row read_row(const toml::node& node, const std::string& name, const std::string& origin,
             const std::vector<std::string>& required,
             std::optional<FieldProblem> (*problem_of_row)(const Row&)) {
  const toml::table* table = node.as_table();
  if (table == nullptr)
    throw InputError(place_of(node.source(), origin), 0,
                     fmt::format("{} is not a list of tables", name),
                     fmt::format("write [[{}]]", name));
  Row row;
  FieldReader reader(fields_of(row), origin, place_of(table->source(), origin), nullptr);
  for (const auto& [key, value] : *table) reader.read("", key, value);
  reader.require(required);
  if (const auto problem = problem_of_row(row)) reader.fail(*problem);
  return row;
}

std::optional<FieldProblem> problem_of_center(const DataCenter& center) {
  if (center.name.empty()) return {{"name", "it is empty", "give for example \"east\""}};
  if (center.nodes < 1 || center.nodes > most_nodes)
    return {{"nodes", fmt::format("{} nodes are none that a data centre has", center.nodes),
             "give the number of servers"}};
  return {};
}

template <class Read>
void for_each_row(const toml::table& document, const char* key, const std::string& origin,
                  const Read& read) {
  const toml::node* node = document.get(key);
  if (node == nullptr) return;
  const toml::array* array = node->as_array();
  if (array == nullptr)
    throw InputError(place_of(node->source(), origin), 0,
                     fmt::format("{} is not a list of tables", key),
                     fmt::format("write [[{}]]", key));
  for (const toml::node& row : *array) read(row);
}

void add_link(const toml::node& node, const std::string& origin, DataCenters& centers) {
  const auto link =
      read_row<WanLink>(node, "wan", origin, {"from", "to", "rtt", "window", "pair"}, problem_of);
  const std::string place = place_of(node.source(), origin);
  std::vector<std::string> names;
  for (const DataCenter& one : centers.centers) names.push_back(one.name);
  for (const std::string& end : {link.from, link.to}) {
    if (std::find(names.begin(), names.end(), end) == names.end())
      throw InputError(place, 0, "there is no data centre " + end, unknown_name_hint(end, names));
  }
  if (link.from == link.to)
    throw InputError(place, 0, "a link from " + link.from + " to itself",
                     "links join two data centres");
  if (centers.link(link.from, link.to) != nullptr)
    throw InputError(place, 0, fmt::format("two links from {} to {}", link.from, link.to),
                     "keep one of them");
  centers.links.push_back(link);
}

}  // namespace

double WanLink::pair_rate() const {
  const double of_flows =
      static_cast<double>(flows) * static_cast<double>(window) / static_cast<double>(rtt_ns) * 1e9;
  return std::min(of_flows, pair);
}

std::int64_t DataCenters::nodes() const {
  std::int64_t all = 0;
  for (const DataCenter& one : centers) all += one.nodes;
  return all;
}

const WanLink* DataCenters::link(const std::string& from, const std::string& to) const {
  for (const WanLink& one : links) {
    if (one.from == from && one.to == to) return &one;
  }
  return nullptr;
}

DataCenters parse_data_centers(const std::string& toml_text, const std::string& origin) {
  const toml::table document = parse_toml(toml_text, origin, "docs/pipelines.md describes it");
  DataCenters centers;
  centers.name = origin;
  for (const auto& [key, value] : document) {
    if (key.str() == "name") {
      if (!value.is_string())
        throw InputError(place_of(value.source(), origin), 0, "name is not a string",
                         "write for example name = \"three\"");
      require_printable(value.as_string()->get());
      centers.name = value.as_string()->get();
    } else if (key.str() != "data_center" && key.str() != "wan") {
      throw InputError(place_of(key.source(), origin), 0, fmt::format("unknown key {}", key.str()),
                       "known: name, data_center, wan");
    }
  }
  for_each_row(document, "data_center", origin, [&](const toml::node& node) {
    const auto center =
        read_row<DataCenter>(node, "data_center", origin, {"name", "nodes"}, problem_of_center);
    for (const DataCenter& other : centers.centers) {
      if (other.name == center.name)
        throw InputError(place_of(node.source(), origin), 0,
                         "two data centres named " + center.name, "give each a name of its own");
    }
    centers.centers.push_back(center);
  });
  if (centers.centers.empty())
    throw InputError(origin, 0, "it has no data centre", "write [[data_center]]");
  for_each_row(document, "wan", origin,
               [&](const toml::node& node) { add_link(node, origin, centers); });
  const std::size_t given = centers.links.size();
  for (std::size_t i = 0; i < given; ++i) {
    WanLink back = centers.links[i];
    std::swap(back.from, back.to);
    if (centers.link(back.from, back.to) == nullptr) centers.links.push_back(back);
  }
  return centers;
}

DataCenters load_data_centers(const std::string& path) {
  const auto text = read_named_file(path);
  if (!text) throw InputError("no file of data centres " + path, "give the path of a TOML file");
  return parse_data_centers(*text, path);
}

DataCenters one_data_center(std::int64_t nodes) {
  DataCenters centers;
  centers.name = "one data centre";
  centers.centers = {{"one", nodes}};
  return centers;
}

void set_on_links(DataCenters& centers, const std::string& assignment) {
  const auto [key, value] = split_assignment(assignment, "wan.");
  for (WanLink& link : centers.links) {
    set_field(settings_of(link), key, value);
    if (const auto problem = problem_of(link))
      throw InputError(fmt::format("wan.{}: {}: {}", assignment, problem->key, problem->what),
                       problem->hint);
  }
}

}  // namespace spillway
