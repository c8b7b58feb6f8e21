#include "policies/machine/machine_fields.hpp"

#include <map>
#include <string>

namespace spillway {

namespace {

using Laws = std::vector<std::pair<std::string, SsdLaw>>;
const Laws laws = {{"simplex", SsdLaw::simplex},
                   {"duplex", SsdLaw::duplex},
                   {"capped", SsdLaw::capped},
                   {"mixed", SsdLaw::mixed}};

// Of a set of drives but the first.
void add_drives(int set, Machine::Ssd& ssd, std::vector<Field>& fields) {
  const auto key = [&](const char* name) { return drive_set_key(set, name); };
  for (Field field : std::vector<Field>{
           count_field(key("count"), ssd.count), count_field(key("queue_depth"), ssd.queue_depth),
           bytes_field(key("capacity"), ssd.capacity), bytes_field(key("tbw"), ssd.tbw),
           bandwidth_field(key("read"), ssd.read), bandwidth_field(key("write"), ssd.write),
           bandwidth_field(key("total"), ssd.total), choice_field(key("law"), ssd.law, laws),
           number_field(key("mixed_gain"), ssd.mixed_gain),
           nanoseconds_field(key("read_latency"), ssd.read_latency_ns),
           nanoseconds_field(key("write_latency"), ssd.write_latency_ns),
           number_field(key("cores"), ssd.cores)})
    fields.push_back(std::move(field));
}

std::vector<Field> fields_in(Machine& machine) {
  Machine::Gpu& gpu = machine.gpu;
  Machine::Pcie& pcie = machine.pcie;
  Machine::Host& host = machine.host;
  Machine::Ssd& ssd = machine.ssd;
  Machine::Cluster& cluster = machine.cluster;
  return {text_field("name", machine.name, "my-machine"),
          text_field("description", machine.description, "the workstation under the desk"),
          flag_field("gpu.is_cpu", gpu.is_cpu),
          bytes_field("gpu.memory", gpu.memory),
          bytes_field("gpu.context", gpu.context),
          flops_field("gpu.flops", gpu.flops),
          bandwidth_field("gpu.memory_bandwidth", gpu.memory_bandwidth),
          params_per_second_field("gpu.adam_rate", gpu.adam_params_per_second),
          nanoseconds_field("gpu.launch", gpu.launch_ns),
          number_field("gpu.cores", gpu.cores),
          count_field("gpu.multiprocessors", gpu.multiprocessors),
          flops_field("gpu.attention_flops", gpu.attention_flops),
          number_field("gpu.product_gain", gpu.product_gain),
          number_field("gpu.clock", gpu.clock),
          choice_field("gpu.gelu_backward", gpu.gelu_backward,
                       {{"kernel", std::string("kernel")},
                        {"dgelu", std::string("dgelu")},
                        {"dgelu-bgrad", std::string("dgelu-bgrad")}}),
          bandwidth_field("pcie.h2d", pcie.h2d),
          bandwidth_field("pcie.d2h", pcie.d2h),
          bandwidth_field("pcie.total", pcie.total),
          bandwidth_field("pcie.pageable_h2d", pcie.pageable_h2d),
          bandwidth_field("pcie.pageable_d2h", pcie.pageable_d2h),
          nanoseconds_field("pcie.latency", pcie.latency_ns),
          bytes_field("host.memory", host.memory),
          bytes_field("host.reserved", host.reserved),
          number_field("host.reserved_share", host.reserved_share),
          bandwidth_field("host.bandwidth", host.bandwidth),
          bandwidth_field("host.core_bandwidth", host.core_bandwidth),
          bandwidth_field("host.io_bandwidth", host.io_bandwidth),
          number_field("host.cores", host.cores),
          params_per_second_field("host.adam_rate", host.adam_params_per_second),
          number_field("host.adam_bytes_per_param", host.adam_bytes_per_param),
          number_field("host.adam_cores", host.adam_cores),
          nanoseconds_field("host.sync", host.sync_ns),
          nanoseconds_field("host.wake", host.wake_ns),
          count_field("ssd.count", ssd.count),
          count_field("ssd.queue_depth", ssd.queue_depth),
          bytes_field("ssd.capacity", ssd.capacity),
          bytes_field("ssd.tbw", ssd.tbw),
          bandwidth_field("ssd.read", ssd.read),
          bandwidth_field("ssd.write", ssd.write),
          bandwidth_field("ssd.total", ssd.total),
          choice_field("ssd.law", ssd.law, laws),
          number_field("ssd.mixed_gain", ssd.mixed_gain),
          bytes_field("ssd.cache", ssd.cache),
          bandwidth_field("ssd.cache_write", ssd.cache_write),
          bandwidth_field("ssd.cache_recovery", ssd.cache_recovery),
          nanoseconds_field("ssd.read_latency", ssd.read_latency_ns),
          nanoseconds_field("ssd.write_latency", ssd.write_latency_ns),
          number_field("ssd.cores", ssd.cores),
          count_field("cluster.nodes", cluster.nodes),
          count_field("cluster.gpus", cluster.gpus),
          bandwidth_field("cluster.nvlink", cluster.nvlink),
          nanoseconds_field("cluster.nvlink_latency", cluster.nvlink_latency_ns),
          number_field("cluster.cores", cluster.cores),
          count_field("cluster.switch_gpus", cluster.switch_gpus),
          bandwidth_field("cluster.switch_link", cluster.switch_link),
          bandwidth_field("cluster.nic", cluster.nic),
          nanoseconds_field("cluster.nic_latency", cluster.nic_latency_ns),
          count_field("cluster.leaf_nodes", cluster.leaf_nodes),
          bandwidth_field("cluster.spine", cluster.spine),
          count_field("cluster.sharing", cluster.sharing)};
}

}  // namespace

std::vector<Field> fields_of(Machine& machine) {
  // What is far from the example of its unit.
  static const std::map<std::string, std::string> examples = {
      {"gpu.memory_bandwidth", "\"1000GB/s\""},
      {"host.memory", "\"128GB\""},
      {"host.bandwidth", "\"80GB/s\""},
      {"host.cores", "16"},
      {"ssd.capacity", "\"4TB\""},
      {"ssd.read", "\"14GB/s\""},
      {"ssd.write", "\"10GB/s\""}};
  std::vector<Field> fields = fields_in(machine);
  for (int set = 1; set < most_drive_sets; ++set) add_drives(set, machine.drives(set), fields);
  for (Field& field : fields) {
    const auto example = examples.find(field.key);
    if (example != examples.end()) field.example = example->second;
  }
  return fields;
}

std::vector<Field> fields_of(DriveScaling& scaling) {
  return {bandwidth_field("ssd.drive_read", scaling.read),
          bandwidth_field("ssd.drive_write", scaling.write),
          bandwidth_field("ssd.path", scaling.path),
          bandwidth_field("ssd.ceiling", scaling.ceiling)};
}

bool is_of_absent_drives(const std::string& key, const Machine& machine) {
  for (int set = 1; set < most_drive_sets; ++set) {
    if (key.rfind(drive_set_key(set, ""), 0) == 0) return machine.drives(set).count == 0;
  }
  return false;
}

Machine as_in_file(Machine machine) {
  machine.host.memory += machine.host.reserved + machine.host.beside;
  machine.gpu.memory += machine.gpu.context;
  return machine;
}

}  // namespace spillway
