// What is asked: model, machine, workload; and what tasks cost there.
#include "python/problem.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "experiments/plan/problem_request.hpp"
#include "policies/workload/workload_json.hpp"

namespace spillway::python {

namespace {

ProblemRequest request(const std::string& model, const std::string& machine,
                       const std::vector<std::string>& overrides, const WorkloadTexts& workload,
                       const std::string& framework, const std::string& gpu_memory,
                       const std::string& host_memory, const std::optional<std::string>& lora,
                       std::optional<std::int64_t> train_layers) {
  ProblemRequest request;
  request.model = model;
  request.machine = machine;
  request.overrides = overrides;
  for (const auto& [key, text] : workload) {
    if (find_workload_field(key) == nullptr)
      throw InputError("there is no setting " + key,
                       "settings of a problem are in help(spillway.simulate), others in the help "
                       "of the function that was called");
    request.workload[key] = text;
  }
  request.framework = framework;
  request.gpu_memory = gpu_memory;
  request.host_memory = host_memory;
  request.lora = lora;
  request.train_layers = train_layers;
  return request;
}

void bind_model(nb::module_& module) {
  nb::class_<ModelSpec>(module, "Model", "The model of a problem: its shape (docs/metrics.md).")
      .def_ro("name", &ModelSpec::name)
      .def_ro("layers", &ModelSpec::layers)
      .def_ro("hidden", &ModelSpec::hidden)
      .def_ro("heads", &ModelSpec::heads)
      .def_ro("kv_heads", &ModelSpec::kv_heads)
      .def_ro("ffn", &ModelSpec::ffn)
      .def_ro("vocabulary", &ModelSpec::vocabulary)
      .def_ro("positions", &ModelSpec::positions)
      .def_ro("tied", &ModelSpec::tied)
      .def_ro("frozen_layers", &ModelSpec::frozen_layers)
      .def_ro("lora_rank", &ModelSpec::lora_rank)
      .def_prop_ro("architecture",
                   [](const ModelSpec& model) {
                     return model.architecture == Architecture::gpt ? "gpt" : "llama";
                   })
      .def_prop_ro("parameters", &ModelSpec::parameters)
      .def_prop_ro("layer_parameters", &ModelSpec::layer_parameters)
      .def_prop_ro("embedding_parameters", &ModelSpec::embedding_parameters)
      .def_prop_ro("trained_parameters", &ModelSpec::trained_parameters)
      .def("layer_forward_flops", &ModelSpec::layer_forward_flops, nb::arg("sequences"),
           nb::arg("tokens_per_sequence"), "FLOPs of one layer's forward, a multiply-add as two.")
      .def("to_toml", &model_to_toml, "The model as a file, which `model` takes.");
}

void bind_machine(nb::module_& module) {
  nb::class_<Machine::Gpu>(module, "Gpu", "Bytes, FLOP/s, bytes/s, ns; 0: not known.")
      .def_ro("memory", &Machine::Gpu::memory)
      .def_ro("flops", &Machine::Gpu::flops)
      .def_ro("memory_bandwidth", &Machine::Gpu::memory_bandwidth)
      .def_ro("adam_params_per_second", &Machine::Gpu::adam_params_per_second)
      .def_ro("launch_ns", &Machine::Gpu::launch_ns);
  nb::class_<Machine::Pcie>(module, "Pcie", "bytes/s, ns.")
      .def_ro("h2d", &Machine::Pcie::h2d)
      .def_ro("d2h", &Machine::Pcie::d2h)
      .def_ro("total", &Machine::Pcie::total)
      .def_ro("latency_ns", &Machine::Pcie::latency_ns);
  nb::class_<Machine::Host>(module, "Host", "Bytes, bytes/s; 0: not known.")
      .def_ro("memory", &Machine::Host::memory)
      .def_ro("bandwidth", &Machine::Host::bandwidth)
      .def_ro("cores", &Machine::Host::cores)
      .def_ro("adam_params_per_second", &Machine::Host::adam_params_per_second);
  nb::class_<Machine::Ssd>(module, "Ssd", "Of all drives together: bytes, bytes/s.")
      .def_ro("count", &Machine::Ssd::count)
      .def_ro("capacity", &Machine::Ssd::capacity)
      .def_ro("read", &Machine::Ssd::read)
      .def_ro("write", &Machine::Ssd::write)
      .def_prop_ro("extrapolated", &Machine::Ssd::extrapolated);
  nb::class_<Machine>(module, "Machine", "The machine of a problem: what one rank has of it.")
      .def_ro("name", &Machine::name)
      .def_ro("description", &Machine::description)
      .def_ro("gpu", &Machine::gpu)
      .def_ro("pcie", &Machine::pcie)
      .def_ro("host", &Machine::host)
      .def_ro("ssd", &Machine::ssd, "The first set of drives, or the only one.")
      .def_prop_ro(
          "drives",
          [](const Machine& machine) {
            std::vector<Machine::Ssd> sets;
            for (int set = 0; set < machine.drive_sets(); ++set)
              sets.push_back(machine.drives(set));
            return sets;
          },
          "Every set of drives.")
      .def_ro("sources", &Machine::sources)
      .def_prop_ro("gpus", [](const Machine& machine) { return machine.cluster.count(); })
      .def("to_toml", &machine_to_toml, "The machine as a file, which `machine` takes.");
}

void bind_workload(nb::module_& module) {
  nb::class_<Workload>(module, "Workload", "Sequences of tokens, and how they are trained on.")
      .def_ro("batch", &Workload::batch)
      .def_ro("micro_batch", &Workload::micro_batch)
      .def_ro("sequence", &Workload::sequence)
      .def_ro("ranks", &Workload::ranks)
      .def_prop_ro("micro_batches", &Workload::micro_batches)
      .def_prop_ro("tokens_per_step", &Workload::tokens_per_step)
      .def_prop_ro("settings", &workload_texts, "Every field by its name, as text.");
  nb::class_<Problem>(module, "Problem", "Model, machine and workload: what a policy plans for.")
      .def_ro("model", &Problem::model)
      .def_ro("machine", &Problem::machine)
      .def_ro("workload", &Problem::workload)
      .def_ro("overrides", &Problem::overrides)
      .def_ro("framework", &Problem::framework)
      .def_prop_ro("parameter_bytes", &Problem::parameter_bytes, "Of an element.")
      .def_prop_ro("gradient_bytes", &Problem::gradient_bytes, "Of an element.")
      .def_prop_ro("state_bytes", &Problem::state_bytes,
                   "Of an element: fp32 master weight and both moments.");
}

Lane lane_named(const std::string& name) {
  for (int lane = 0; lane < lane_count; ++lane)
    if (name == to_string(static_cast<Lane>(lane))) return static_cast<Lane>(lane);
  throw InputError("there is no lane " + name, "gpu.compute or cpu.optimizer");
}

void bind_costs(nb::module_& module) {
  nb::class_<LentCosts>(
      module, "Costs",
      "What tasks take on the problem's machine, alone. To be used while plan() runs. Raises\n"
      "InputError where the machine does not say a rate.")
      .def(
          "forward_seconds", [](const LentCosts& c) { return c.get().forward_seconds(); },
          "Of one layer's forward on one micro-batch, saving nothing.")
      .def(
          "head_seconds", [](const LentCosts& c) { return c.get().head_seconds(); },
          "Of the head on one micro-batch, forward and backward.")
      .def(
          "updates_per_second",
          [](const LentCosts& c, const std::string& lane) {
            return c.get().updates_per_second(lane_named(lane));
          },
          nb::arg("lane") = "cpu.optimizer",
          "Parameters per second that AdamW updates on `cpu.optimizer` or `gpu.compute`.")
      .def(
          "pcie_seconds",
          [](const LentCosts& c, double to_gpu, double from_gpu) {
            return c.get().links().seconds(to_gpu, from_gpu);
          },
          nb::arg("to_gpu"), nb::arg("from_gpu") = 0.0,
          "The least time in which so many bytes go each way.")
      .def(
          "ssd_seconds",
          [](const LentCosts& c, double read, double written) {
            return c.get().drives().seconds(read, written);
          },
          nb::arg("read"), nb::arg("written") = 0.0,
          "The least time in which so many bytes are read and written.");
}

}  // namespace

const Costs& LentCosts::get() const {
  if (costs_ == nullptr)
    throw InputError("these costs were of a plan() that has returned",
                     "keep the numbers, not the object");
  return *costs_;
}

void bind_problem(nb::module_& module) {
  bind_model(module);
  bind_machine(module);
  bind_workload(module);
  bind_costs(module);
  nb::class_<ProblemRequest>(module, "Request", "What is to be trained, and on what.")
      .def(
          "__init__",
          [](ProblemRequest* place, const std::string& model, const std::string& machine,
             const std::vector<std::string>& overrides, const WorkloadTexts& workload,
             const std::string& framework, const std::string& gpu_memory,
             const std::string& host_memory, const std::optional<std::string>& lora,
             std::optional<std::int64_t> train_layers) {
            new (place) ProblemRequest(request(model, machine, overrides, workload, framework,
                                               gpu_memory, host_memory, lora, train_layers));
          },
          nb::arg("model"), nb::arg("machine"), nb::kw_only(),
          nb::arg("overrides") = std::vector<std::string>(), nb::arg("workload") = WorkloadTexts(),
          nb::arg("framework") = own_framework, nb::arg("gpu_memory") = "",
          nb::arg("host_memory") = "", nb::arg("lora") = nb::none(),
          nb::arg("train_layers") = nb::none())
      .def(
          "problem", [](const ProblemRequest& one) { return one.problem(); },
          nb::call_guard<nb::gil_scoped_release>(),
          "The problem, all files read. Where no micro-batch is given it is the batch.");
}

}  // namespace spillway::python
