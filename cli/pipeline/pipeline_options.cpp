#include "cli/pipeline/pipeline_options.hpp"

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/units.hpp"

namespace spillway::cli {

void PipelineOptions::add_to(CLI::App& command) {
  problem.add_to(command, true, {"pipeline"});
  command
      .add_option("--order", orders,
                  "orders of passes, each with options as NAME:OPTION=VALUE; all that suit the "
                  "batch or, with what-if, 1f1b unless given (`spillway policies` lists them)")
      ->type_name("ORDER");
  command.add_option("--centers", centers,
                     "TOML file of data centres and the WAN between them (docs/pipelines.md); "
                     "without it all nodes of the machine are in one");
  command.add_option("--wan", wan, "override keys of every WAN link, e.g. --wan flows=1 rtt=40ms")
      ->type_name("KEY=VALUE");
  command
      .add_option("--pipeline", pipeline,
                  "pipeline parallelism: workers of a pipeline, one after the other; all nodes' "
                  "unless given")
      ->check(CLI::Range(1, 1000000));
  command
      .add_option("--replicas", replicas,
                  "data parallelism: pipelines, each on its share of the batch")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  command
      .add_option(
          "--tensor", tensor,
          "tensor parallelism: GPUs of a node that are a worker, which layers are split over")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  command
      .add_option("--recompute", recompute,
                  "on: layers keep their inputs alone | off: all | auto: on where all does not fit")
      ->check(CLI::IsMember({"on", "off", "auto"}))
      ->capture_default_str();
  command
      .add_option("--cell", cell,
                  "of order atlas: pipelines that take turns on the WAN; a divisor of the "
                  "replicas, next to a transfer's time in forward passes unless given")
      ->check(CLI::Range(1, 1000000));
  command.add_flag(
      "--sends-wait", sends_wait,
      "a worker that sends waits until it has arrived, as with blocking sends of NCCL");
  command.add_option("--seed", seed, "of the WAN's jitter")->capture_default_str();

  command.add_flag(
      "--what-if", what_if,
      "try every set of data centres, every pipeline and number of replicas that fits");
  command
      .add_option("--micro-batches", micro_batches,
                  "with what-if: sizes of a micro-batch that are tried; 1, 2, 4, 8 unless given")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  command.add_option("--top", top, "with what-if: so many are shown")->capture_default_str();

  command
      .add_option(
          "--prefill-rate", prefill.rates,
          "place prefills of an inference service in the bubbles: requests a second, Poisson; "
          "several rates give a table")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  command.add_option("--prefill-requests", prefill.file,
                     "in place of a rate: a file of lines `seconds,tokens`, in order of arrival");
  command.add_option("--prefill-model", prefill.model,
                     "the model that serves; the one that trains, unless given");
  command
      .add_option("--prefill-tokens", prefill.tokens,
                  "tokens of a prompt, from LEAST:MOST, spread evenly by logarithm")
      ->capture_default_str();
  command
      .add_option("--prefill-pipeline", prefill.gpus,
                  "workers in a row that a prefill goes through")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      .add_option("--prefill-guard", prefill.guard,
                  "a prefill ends so long before its worker trains again")
      ->capture_default_str();
  command.add_option("--prefill-ttft", prefill.ttft,
                     "bound on the time to the first token, e.g. 2s; what would take longer goes "
                     "elsewhere. Not bounded unless given");
  command.add_option("--prefill-steps", prefill.steps, "steps of training that are looked at")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();

  command.add_option("--trace", trace,
                     "write the step of a single order as a Chrome trace (Perfetto)");
  command.add_flag("--json", json, "print one JSON object (docs/pipelines.md)");
}

PipelineRequest PipelineOptions::request() const {
  if (problem.workload.contains("ranks"))
    throw InputError("pipeline: ranks are replicas here", "give the number of replicas");
  if (what_if && (prefill.asked() || !trace.empty()))
    throw InputError("pipeline: what-if has neither prefills nor a trace",
                     "ask them of the choice that is to be looked at");
  ProblemOptions whole = problem;
  whole.workload["ranks"] = "1";  // of the machine as a whole; replicas are said here
  PipelineRequest request;
  request.problem = whole.problem();
  request.centers = centers.empty() ? one_data_center(request.problem.machine.cluster.nodes)
                                    : load_data_centers(centers);
  if (!wan.empty() && request.centers.links.empty())
    throw InputError("pipeline: there is no WAN whose keys could be set",
                     "name a file of data centres with links between them");
  for (const std::string& assignment : wan) set_on_links(request.centers, assignment);
  request.tensor = tensor;
  request.replicas = replicas;
  request.cell = cell;
  request.sends_wait = sends_wait;
  request.seed = seed;
  if (recompute != "auto") request.recompute = recompute == "on";
  const auto gpus = request.problem.machine.cluster.gpus;
  if (tensor < 1 || gpus % tensor != 0)
    throw InputError(
        fmt::format("pipeline: {} GPUs of a node do not divide into workers of {}", gpus, tensor),
        "give tensor parallelism of a divisor of cluster.gpus");
  if (replicas < 1) throw InputError("pipeline: there is at least one replica", "give 1 or more");
  const std::int64_t workers = request.centers.nodes() * (gpus / tensor);
  request.gpus =
      pipeline > 0 ? pipeline : static_cast<int>(std::max<std::int64_t>(1, workers / replicas));
  return request;
}

std::vector<PipelineOrder> PipelineOptions::chosen_orders(const PipelineRequest& request) const {
  std::vector<PipelineOrder> all;
  for (const std::string& text : orders) all.emplace_back(text);
  if (!all.empty()) return all;
  const Workload& workload = request.problem.workload;
  for (const PipelineOrderInfo& info : pipeline_orders()) {
    PipelineOrder order(info.name);
    const auto batches = static_cast<int>(workload.batch / workload.micro_batch / request.replicas);
    const bool has_stages = request.gpus * order.chunks() <= request.problem.model.layers;
    if (has_stages && (problem.chooses_micro_batch() || order.suits(request.gpus, batches)))
      all.push_back(std::move(order));
  }
  if (all.empty())
    throw InputError(
        fmt::format("pipeline: no order suits {} workers in a row and the {} layers of {}",
                    request.gpus, request.problem.model.layers, request.problem.model.name),
        "give a pipeline of as many workers as there are layers, or fewer");
  return all;
}

PrefillSettings PipelineOptions::prefill_settings(const Problem& trained) const {
  PrefillSettings settings;
  settings.model = prefill.model.empty() ? trained.model : load_model(prefill.model, {});
  settings.gpus = prefill.gpus;
  settings.guard_ns = parse_nanoseconds(prefill.guard);
  settings.most_ttft_ns = prefill.ttft.empty() ? 0 : parse_nanoseconds(prefill.ttft);
  settings.steps = prefill.steps;
  return settings;
}

std::vector<PrefillRequest> PipelineOptions::requests(double rate, std::int64_t end_ns) const {
  if (!prefill.file.empty()) return load_requests(prefill.file);
  long long least = 0, most = 0;
  char rest = 0;
  if (std::sscanf(prefill.tokens.c_str(), "%lld:%lld%c", &least, &most, &rest) != 2 || least < 1 ||
      most < least || most > 100'000'000)
    throw InputError(fmt::format("tokens of prompts '{}' are not LEAST:MOST", prefill.tokens),
                     "write for example 256:4096");
  return poisson_requests(rate, least, most, end_ns, seed);
}

}  // namespace spillway::cli
