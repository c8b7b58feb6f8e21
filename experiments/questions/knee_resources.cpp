#include "experiments/questions/knee_resources.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "base/units.hpp"
#include "experiments/plan/machine_changes.hpp"
#include "experiments/questions/robustness.hpp"

namespace spillway {

namespace {

std::vector<KneeResource> all_resources() {
  std::vector<KneeResource> all;
  for (int set = 0; set < most_drive_sets; ++set)
    all.push_back({drive_set_key(set, "count"), ResourceKind::drives, set});
  all.insert(all.end(), {{"host.memory", ResourceKind::host_memory},
                         {"gpu.memory", ResourceKind::gpu_memory},
                         {"pcie", ResourceKind::link},
                         {"gpu", ResourceKind::rate},
                         {"cpu", ResourceKind::rate},
                         {"dram", ResourceKind::rate}});
  return all;
}
const std::vector<KneeResource> resources = all_resources();

bool is_size(ResourceKind kind) {
  return kind == ResourceKind::host_memory || kind == ResourceKind::gpu_memory;
}

constexpr double gibi = 1024.0 * 1024 * 1024;

double installed(const Machine::Host& host, std::int64_t sharing) {
  return static_cast<double>(host.memory + host.reserved + host.beside) *
         static_cast<double>(sharing);
}

// Every number up to 32, then fewer; up to the last of the machine's table, or to what there is.
std::vector<double> usual_drives(const ProblemRequest& request, const Machine& machine, int set) {
  const Machine::Ssd& ssd = machine.drives(set);
  const std::int64_t now = ssd.count;
  const std::int64_t most = in_proportion(request, machine, set)
                                ? std::max<std::int64_t>(2 * now, 8)
                                : std::max(ssd.by_count.rbegin()->first, now);
  std::vector<double> values;
  for (std::int64_t count = 1; count <= most; count += count < 32 ? 1 : count / 4)
    values.push_back(static_cast<double>(count));
  values.push_back(static_cast<double>(most));
  return values;
}

// Sizes that are sold, from an eighth of what there is to four times as much: of hosts in GiB; of
// cards the GB that programs see, but for the size that is nearly what there is.
std::vector<double> usual_sizes(ResourceKind kind, double now) {
  static const std::vector<double> of_hosts = {4,   8,   16,  32,  48,   64,   96,   128,  192,
                                               256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096};
  static const std::vector<double> of_gpus = {4,  6,  8,  12, 16, 24,  32,
                                              40, 48, 64, 80, 96, 141, 192};
  std::vector<double> values;
  for (const double size : kind == ResourceKind::host_memory ? of_hosts : of_gpus) {
    const double bytes = size * (kind == ResourceKind::host_memory ? gibi : 1e9);
    const bool is_nearly_now = std::abs(bytes / now - 1) < 0.05;
    if (bytes >= now / 8 && bytes <= now * 4 && !is_nearly_now) values.push_back(bytes);
  }
  // Machines for tests are smaller than any that is sold.
  if (values.size() < 3) {
    for (const double share : {0.25, 0.5, 0.75, 1.5, 2.0, 4.0})
      values.push_back(static_cast<double>(static_cast<std::uint64_t>(share * now)));
  }
  return values;
}

// In few digits, where these are all of it.
std::string exact_size(double value) {
  const auto bytes = static_cast<std::uint64_t>(value);
  const std::string text = size_setting(bytes);
  return parse_bytes(text) == bytes ? text : fmt::format("{}B", bytes);
}

}  // namespace

const KneeResource& resource_named(const std::string& name) {
  for (const KneeResource& one : resources) {
    if (one.name == name) return one;
  }
  throw InputError(Setting{"resource", name} + ": there is no such resource",
                   unknown_name_hint(name, knee_resources()));
}

double parse_value(const KneeResource& resource, const std::string& text) {
  if (is_size(resource.kind)) return static_cast<double>(parse_bytes(text));
  const bool has_x = !text.empty() && text.back() == 'x' && resource.kind != ResourceKind::drives;
  const char* const end = text.data() + text.size() - (has_x ? 1 : 0);
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const bool is_number = error == std::errc() && rest == end;
  if (resource.kind == ResourceKind::drives) {
    if (is_number && value >= 1 && value <= 10'000 && value == static_cast<int>(value))
      return value;
    throw InputError(
        Setting{"resource", fmt::format("{}={}", resource.name, text)} + ": no number of drives",
        "whole numbers from 1 on: " + Setting{"resource", resource.name + "=1,2,4"});
  }
  if (is_number && value >= 0.01 && value <= 100) return value;
  throw InputError(Setting{"resource", fmt::format("{}={}", resource.name, text)} +
                       ": no multiple of the rate that the machine has, from 0.01 to 100",
                   "examples: " + Setting{"resource", fmt::format("{}=0.5,1,2", resource.name)});
}

std::string value_text(ResourceKind kind, double value) {
  if (kind == ResourceKind::drives) return fmt::format("{:.0f}", value);
  // Modules of memory are sold in powers of 1024.
  if (kind == ResourceKind::host_memory && value >= gibi && std::fmod(value, gibi) == 0)
    return fmt::format("{:g} GiB", value / gibi);
  if (is_size(kind)) return fmt::format("{:g} GB", value / 1e9);
  return fmt::format("{:g}x", value);
}

double value_now(const ProblemRequest& request, const Machine& machine,
                 const KneeResource& resource) {
  switch (resource.kind) {
    case ResourceKind::drives:
      return static_cast<double>(machine.drives(resource.set).count);
    case ResourceKind::host_memory:
      return request.host_memory.empty() ? installed(machine.host, machine.cluster.sharing)
                                         : static_cast<double>(parse_bytes(request.host_memory));
    case ResourceKind::gpu_memory:
      return request.gpu_memory.empty()
                 ? static_cast<double>(machine.gpu.memory + machine.gpu.context)
                 : static_cast<double>(parse_bytes(request.gpu_memory));
    case ResourceKind::link:
    case ResourceKind::rate:
      break;
  }
  return 1;
}

bool in_proportion(const ProblemRequest& request, const Machine& machine, int set) {
  if (machine.drives(set).by_count.empty()) return true;
  return std::any_of(request.overrides.begin(), request.overrides.end(), [&](const auto& one) {
    const std::string key = one.substr(0, one.find('='));
    return key == drive_set_key(set, "read") || key == drive_set_key(set, "write") ||
           key == drive_set_key(set, "total");
  });
}

std::vector<double> values_of(const KneeRange& range, const KneeResource& resource,
                              const ProblemRequest& request, const Machine& machine, double now) {
  std::vector<double> values;
  for (const std::string& text : range.values) values.push_back(parse_value(resource, text));
  if (values.empty()) {
    if (resource.kind == ResourceKind::drives) {
      values = usual_drives(request, machine, resource.set);
    } else if (is_size(resource.kind)) {
      values = usual_sizes(resource.kind, now);
    } else {
      values = {0.25, 0.5, 0.75, 1.25, 1.5, 2, 3, 4};
    }
  }
  values.push_back(now);
  std::sort(values.begin(), values.end());
  // Two sizes that are written alike are one.
  const auto alike = [&](double a, double b) {
    return value_text(resource.kind, a) == value_text(resource.kind, b);
  };
  std::vector<double> distinct;
  for (const double value : values) {
    if (distinct.empty() || !alike(distinct.back(), value)) {
      distinct.push_back(value);
    } else if (value == now) {
      distinct.back() = now;
    }
  }
  return distinct;
}

std::string why_not_there(const KneeResource& resource, const Machine& machine) {
  if (resource.kind == ResourceKind::drives && machine.drives(resource.set).count == 0)
    return resource.set == 0 ? "the machine file describes no drives"
                             : fmt::format("the machine file describes no set of drives {}",
                                           drive_set_name(resource.set));
  if (resource.kind == ResourceKind::rate && resource.name == "cpu" &&
      machine.host.adam_params_per_second == 0)
    return "the machine file does not say how fast its CPU updates parameters";
  return "";
}

std::vector<Setting> changes_of(const KneeResource& resource, const ProblemRequest& request,
                                const Machine& machine, double value) {
  switch (resource.kind) {
    case ResourceKind::drives:
      return drive_settings(machine, resource.set, static_cast<std::int64_t>(value),
                            in_proportion(request, machine, resource.set));
    case ResourceKind::host_memory:
      return {{"host.memory", exact_size(value)}};
    case ResourceKind::gpu_memory:
      return {{"gpu.memory", exact_size(value)}};
    case ResourceKind::link:
      return link_settings(machine, value);
    case ResourceKind::rate:
      break;
  }
  return {};
}

Problem problem_at(const ProblemRequest& request, const KneeResource& resource,
                   const KneePoint& point) {
  ProblemRequest changed = request;
  const std::string size = fmt::format("{:.0f}B", point.value);
  if (resource.kind == ResourceKind::host_memory && !request.host_memory.empty()) {
    changed.host_memory = size;
  } else if (resource.kind == ResourceKind::gpu_memory && !request.gpu_memory.empty()) {
    changed.gpu_memory = size;
  } else {
    changed.overrides.insert(changed.overrides.end(), point.set.begin(), point.set.end());
  }
  Problem problem = changed.problem();
  if (resource.kind == ResourceKind::rate) {
    problem.machine = with_scaled_rate(std::move(problem.machine), resource.name, point.value);
    problem.overrides.push_back(fmt::format("{} x {:g}", resource.name, point.value));
  }
  return problem;
}

std::vector<std::string> knee_resources() {
  std::vector<std::string> names;
  for (const KneeResource& one : resources) names.push_back(one.name);
  return names;
}

std::vector<std::string> usual_knee_resources() {
  return {"ssd.count", "host.memory", "gpu.memory", "pcie"};
}

KneeRange parse_knee_range(const std::string& text) {
  const std::size_t equals = text.find('=');
  KneeRange range{text.substr(0, equals), {}};
  const KneeResource& resource = resource_named(range.resource);
  if (equals == std::string::npos) return range;
  std::istringstream list(text.substr(equals + 1));
  for (std::string value; std::getline(list, value, ',');) {
    parse_value(resource, value);
    range.values.push_back(value);
  }
  if (range.values.empty())
    throw InputError(Setting{"resource", text} + ": it has no values",
                     "write values after the sign, with commas, or leave the sign out");
  return range;
}

std::vector<KneeRange> parse_knee_ranges(const std::vector<std::string>& texts) {
  std::vector<KneeRange> ranges;
  for (const std::string& text : texts.empty() ? usual_knee_resources() : texts) {
    KneeRange range = parse_knee_range(text);
    for (const KneeRange& other : ranges) {
      if (other.resource == range.resource)
        throw InputError(Setting{"resource", range.resource} + ": it is named twice",
                         "name it once, with all values");
    }
    ranges.push_back(std::move(range));
  }
  return ranges;
}

}  // namespace spillway
