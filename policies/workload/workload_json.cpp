#include "policies/workload/workload_json.hpp"

#include "base/errors.hpp"
#include "policies/workload/json_number.hpp"
#include "policies/workload/workload_fields.hpp"

namespace spillway {

using nlohmann::ordered_json;

ordered_json workload_json(const Workload& workload) {
  ordered_json json;
  for (const WorkloadField& field : workload_fields()) {
    if (!is_written(field, workload)) continue;
    const std::string text = field.write(workload);
    json[field.key] = field.is_count() ? ordered_json(std::stoll(text)) : ordered_json(text);
  }
  return json;
}

Workload workload_of_json(const ordered_json& json, const std::string& place,
                          const std::string& hint) {
  Workload workload;
  for (const WorkloadField& field : workload_fields()) {
    if (json.is_object() && !json.contains(field.key) && !field.is_written_always) continue;
    if (json.is_object() && !json.contains(field.key))
      throw InputError(place + ": " + field.key + " is missing", hint);
    const std::string text =
        field.is_count() ? std::to_string(whole_number<std::int64_t>(json, field.key, place))
                         : json.at(field.key).get<std::string>();
    try {
      field.read(workload, text);
    } catch (const InputError& error) {
      throw InputError(place + ": " + error.what(), hint);
    }
  }
  return workload;
}

}  // namespace spillway
