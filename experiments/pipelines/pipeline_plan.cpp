#include "experiments/pipelines/pipeline_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "policies/cost/collectives.hpp"
#include "policies/cost/costs.hpp"
#include "policies/model/saved.hpp"
#include "policies/model/scratch.hpp"
#include "policies/model/units.hpp"

namespace spillway {

namespace {

std::int64_t to_ns(double seconds) { return std::llround(seconds * 1e9); }

// The divisor of `whole` that is next to `wanted`, the smaller one of two.
int divisor_next_to(int whole, double wanted) {
  int best = 1;
  for (int d = 1; d <= whole; ++d) {
    if (whole % d == 0 && std::abs(d - wanted) < std::abs(best - wanted)) best = d;
  }
  return best;
}

double rate_inside(const Machine& node) {
  return node.cluster.nvlink > 0 ? node.cluster.nvlink : std::min(node.pcie.h2d, node.pcie.d2h);
}

class PipelineBuilder {
 public:
  PipelineBuilder(const PipelineRequest& request, const PipelineOrder& order)
      : request_(request),
        order_(order),
        problem_(of_one_replica(request)),
        cluster_(problem_.machine.cluster),
        costs_(problem_),
        workers_per_node_(static_cast<int>(cluster_.gpus) / request.tensor) {
    plan_.request = request;
    plan_.order = order.text();
    plan_.shape = order.shape(request.gpus, micro_batches());
    find_places();
    share_layers();
  }

  PipelinePlan build() {
    const std::vector<bool> tries = request_.recompute ? std::vector<bool>{*request_.recompute}
                                                       : std::vector<bool>{false, true};
    for (const bool recomputes : tries) {
      plan_.recomputes = recomputes;
      run();
      if (plan_.memory.fits()) break;
    }
    return std::move(plan_);
  }

 private:
  static Problem of_one_replica(const PipelineRequest& request) {
    Problem problem = request.problem;
    Workload& workload = problem.workload;
    const auto fail = [](const std::string& what, const std::string& hint) {
      throw InputError("pipeline: " + what, hint);
    };
    if (request.gpus < 1 || request.replicas < 1 || request.tensor < 1)
      fail("its degrees are 1 or more", "give GPUs, replicas and tensor parallelism above zero");
    if (problem.machine.cluster.gpus % request.tensor != 0)
      fail(fmt::format("{} GPUs of a node do not divide into workers of {}",
                       problem.machine.cluster.gpus, request.tensor),
           "give a divisor of cluster.gpus");
    if (workload.batch % (workload.micro_batch * request.replicas) != 0)
      fail(fmt::format("a batch of {} does not divide into micro-batches of {} for {} replicas",
                       workload.batch, workload.micro_batch, request.replicas),
           "choose a batch that is a multiple of both");
    for (std::int64_t unit = 0; unit < unit_count(problem.model); ++unit) {
      if (trained_elements(problem.model, unit) != unit_elements(problem.model, unit))
        fail("it trains whole models, and some of this one's parameters are frozen",
             "leave out adapters and layers to train");
    }
    workload.batch /= request.replicas;
    workload.ranks = 1;
    problem.validate();
    return problem;
  }

  int micro_batches() const { return static_cast<int>(problem_.workload.micro_batches()); }

  void find_places() {
    const auto places =
        place_stages(request_.centers, request_.gpus, request_.replicas, workers_per_node_);
    if (!places)
      throw InputError(
          fmt::format("pipeline: {} places of {} workers each do not go into {}, of {} nodes of {} "
                      "workers, one data centre after the other",
                      request_.gpus, request_.replicas, request_.centers.name,
                      request_.centers.nodes(), workers_per_node_),
          "take fewer replicas or GPUs of a pipeline, or describe a link between the data centres "
          "that follow each other");
    plan_.center_of = *places;
  }

  // As alike as they can be, the first ones with one more.
  void share_layers() {
    const int stages = plan_.shape.stages();
    const auto layers = static_cast<int>(problem_.model.layers);
    if (stages > layers)
      throw InputError(fmt::format("pipeline: {} layers do not make {} stages", layers, stages),
                       "take fewer GPUs in a pipeline, or fewer chunks");
    for (int s = 0; s < stages; ++s)
      plan_.layers_of.push_back(layers / stages + (s < layers % stages ? 1 : 0));
  }

  void run() {
    find_stage_times();
    find_links();
    find_memory_but_activations();
    // How many micro-batches fit decides orders that hold as many; how many an order holds decides
    // what it needs.
    const double one = activation_bytes_of_a_micro_batch();
    const double left = plan_.memory.capacity - fixed_bytes();
    plan_.times.memory_holds =
        std::max(1, static_cast<int>(std::min(1e6, left / one / plan_.shape.chunks)));
    std::vector<PassOrder> orders;
    for (;;) {
      orders = order_.passes(plan_.shape, plan_.times);
      for (const PassOrder& of_pipeline : orders) check_order(plan_.shape, of_pipeline);
      find_activations(orders);
      int& holds = plan_.times.memory_holds;
      if (plan_.memory.fits() || !order_.holds_by_memory() || holds == 1) break;
      // What is recomputed ahead needs room, too.
      const double lacking = (plan_.memory.needed - plan_.memory.capacity) / one;
      holds = std::min(holds, plan_.shape.micro_batches);
      holds = std::max(1, holds - std::max(1, static_cast<int>(std::min(1e6, lacking))));
    }
    plan_.result.reset();
    if (plan_.memory.fits()) simulate(orders);
  }

  // Pipelines that share no turns are alike, but for the jitter of their messages: the slowest ends
  // the step.
  void simulate(const std::vector<PassOrder>& orders) {
    const auto& links = plan_.times.links;
    const bool differ = std::any_of(links.begin(), links.end(),
                                    [](const PipelineLink& link) { return link.jitter_ns > 0; });
    const int groups = differ ? request_.replicas / plan_.times.pipelines : 1;
    for (int group = 0; group < groups; ++group) {
      const std::uint64_t seed = request_.seed * 0x100000001b3 + static_cast<std::uint64_t>(group);
      PipelineResult one = simulate_pipelines(plan_.shape, plan_.times, orders, seed);
      if (!plan_.result || one.step_ns > plan_.result->step_ns) plan_.result = std::move(one);
    }
  }

  double tensor_seconds() const { return tensor_sum_seconds(problem_, request_.tensor); }
  double inside_rate() const { return rate_inside(problem_.machine); }

  void find_stage_times() {
    const double forward = costs_.forward_seconds() / request_.tensor + tensor_seconds();
    const double backward =
        costs_.backward_seconds(saved_all(problem_.model), false) / request_.tensor +
        tensor_seconds();
    const double head = costs_.head_seconds() / request_.tensor;
    plan_.times.stages.clear();
    for (int s = 0; s < plan_.shape.stages(); ++s) {
      const double layers = plan_.layers_of[static_cast<std::size_t>(s)];
      // The head's backward pass is twice its forward pass.
      const double of_head = s + 1 == plan_.shape.stages() ? head / 3 : 0;
      StageTimes times;
      times.forward_ns = to_ns(layers * forward + of_head);
      times.backward_ns = to_ns(layers * backward + 2 * of_head);
      // Two products of equal size in place of one; the attention itself has no weights.
      times.weight_ns = times.backward_ns / 2;
      times.recompute_ns = plan_.recomputes ? to_ns(layers * forward) : 0;
      times.sum_ns = to_ns(sum_seconds(s));
      times.update_ns = to_ns(update_seconds(s));
      plan_.times.stages.push_back(times);
    }
  }

  // With the embedding and the head where they are used.
  double parameters_of(int stage) const {
    const ModelSpec& model = problem_.model;
    double elements = plan_.layers_of[static_cast<std::size_t>(stage)] *
                      static_cast<double>(unit_elements(model, 0));
    const bool is_last = stage + 1 == plan_.shape.stages();
    if (stage == 0) elements += static_cast<double>(unit_elements(model, embedding_unit(model)));
    if (is_last && (stage > 0 || head_unit(model) != embedding_unit(model)))
      elements += static_cast<double>(unit_elements(model, head_unit(model)));
    return elements;
  }

  // A ring over the replicas' workers, of which those of a node reach each other inside.
  double sum_seconds(int stage) const {
    const int replicas = request_.replicas;
    if (replicas == 1) return 0;
    const double bytes = parameters_of(stage) * static_cast<double>(problem_.gradient_bytes());
    const bool inside = is_inside(plan_.shape.gpu_of(stage));
    const double rate = inside ? inside_rate() * request_.tensor : nic();
    const double step =
        static_cast<double>(inside ? cluster_.nvlink_latency_ns : cluster_.nic_latency_ns) * 1e-9;
    return 2.0 * (replicas - 1) / replicas * bytes / rate + 2.0 * (replicas - 1) * step;
  }
  // A worker's number in its data centre, of the first replica of a place.
  int first_worker(int place) const {
    const auto& center_of = plan_.center_of;
    const auto begin =
        std::find(center_of.begin(), center_of.end(), center_of[static_cast<std::size_t>(place)]);
    return (place - static_cast<int>(begin - center_of.begin())) * request_.replicas;
  }
  int node_of(int worker) const { return worker / workers_per_node_; }
  // Whether all replicas of a place are on one node.
  bool is_inside(int place) const {
    const int first = first_worker(place);
    return node_of(first) == node_of(first + request_.replicas - 1);
  }
  double update_seconds(int stage) const {
    return parameters_of(stage) / request_.tensor / costs_.updates_per_second(Lane::gpu_compute);
  }
  double nic() const {
    if (!(cluster_.nic > 0))
      throw InputError("pipeline: machine " + problem_.machine.name +
                           " does not say how fast its nodes reach each other",
                       "set cluster.nic, for example 25GB/s");
    return cluster_.nic;
  }

  // Workers of a node that send to another node at once, each from its own replica.
  int senders_of_a_node() const { return std::min(workers_per_node_, request_.replicas); }

  void find_links() {
    PipelineTimes& times = plan_.times;
    times.links = {{"network", 0, false, 0}};
    times.outputs.assign(times.stages.size() - 1, {});
    times.gradients = times.outputs;
    times.sends_wait = request_.sends_wait;
    times.pipelines = 1;
    find_cell();
    for (std::size_t s = 0; s + 1 < times.stages.size(); ++s) {
      const int from = plan_.shape.gpu_of(static_cast<int>(s));
      const int to = plan_.shape.gpu_of(static_cast<int>(s) + 1);
      times.outputs[s] = hop(from, to);
      times.gradients[s] = hop(to, from);
    }
    times.embedding_ns = embedding_ns();
  }

  const WanLink* wan_between(int from, int to) const {
    const auto& centers = request_.centers.centers;
    const int a = plan_.center_of[static_cast<std::size_t>(from)];
    const int b = plan_.center_of[static_cast<std::size_t>(to)];
    if (a == b) return nullptr;
    const std::string& there = centers[static_cast<std::size_t>(b)].name;
    const WanLink* link = request_.centers.link(centers[static_cast<std::size_t>(a)].name, there);
    if (link == nullptr)
      throw InputError(
          "pipeline: no link joins " + centers[static_cast<std::size_t>(a)].name + " and " + there,
          "describe it as [[wan]]");
    return link;
  }

  void find_cell() {
    double slowest = 0;
    for (int s = 0; s + 1 < plan_.shape.stages(); ++s) {
      const WanLink* link = wan_between(plan_.shape.gpu_of(s), plan_.shape.gpu_of(s + 1));
      if (link == nullptr) continue;
      const double share = link->total > 0 ? link->total / request_.replicas : worker_rate(*link);
      slowest = std::max(slowest, wan_bytes() / std::min(worker_rate(*link), share));
    }
    std::int64_t forward = 0;
    for (const StageTimes& stage : plan_.times.stages)
      forward = std::max(forward, stage.forward_ns);
    plan_.wan_forwards = slowest * 1e9 / static_cast<double>(std::max<std::int64_t>(1, forward));
    plan_.cell = 1;
    if (!order_.shares_links_in_turns()) return;
    if (request_.cell > 0 && request_.replicas % request_.cell != 0)
      throw InputError(fmt::format("pipeline: {} replicas do not divide into cells of {}",
                                   request_.replicas, request_.cell),
                       "give a divisor of the replicas");
    plan_.cell =
        request_.cell > 0 ? request_.cell : divisor_next_to(request_.replicas, plan_.wan_forwards);
    plan_.times.pipelines = plan_.cell;
  }

  double wan_bytes() const { return static_cast<double>(checkpoint_bytes(problem_)); }
  double worker_rate(const WanLink& link) const { return link.pair_rate() / senders_of_a_node(); }

  StageHop hop(int from, int to) {
    StageHop hop;
    if (from == to) return hop;
    hop.bytes = wan_bytes();
    if (const WanLink* wan = wan_between(from, to)) return over_wan(*wan, hop);
    hop.link = 0;
    const int first = first_worker(std::min(from, to)), next = first_worker(std::max(from, to));
    if (node_of(first) == node_of(next + request_.replicas - 1)) {
      hop.rate = inside_rate();
      hop.latency_ns = cluster_.nvlink_latency_ns;
    } else {
      hop.rate = nic() / senders_of_a_node();
      hop.latency_ns = cluster_.nic_latency_ns;
    }
    return hop;
  }

  // A tied embedding's two gradients, each summed over the replicas, which then send a share each
  // over the slowest link between first and last place.
  std::int64_t embedding_ns() const {
    const ModelSpec& model = problem_.model;
    const PipelineTimes& times = plan_.times;
    if (head_unit(model) != embedding_unit(model)) return 0;
    double slowest = 0;
    std::int64_t latency = 0;
    for (const StageHop& hop : times.outputs) {
      if (hop.link < 0) continue;
      slowest = slowest == 0 ? hop.rate : std::min(slowest, hop.rate);
      latency += hop.latency_ns;
    }
    if (slowest == 0) return 0;
    const double bytes = static_cast<double>(unit_elements(model, embedding_unit(model))) *
                         static_cast<double>(problem_.gradient_bytes());
    const double of_one_pipeline = slowest / plan_.cell;
    return to_ns(bytes / request_.replicas / of_one_pipeline) + latency;
  }

  // Pipelines that take turns send with the connections of all: what they send is scattered to
  // their nodes and gathered from them, over the network of the data centre.
  StageHop over_wan(const WanLink& wan, StageHop hop) {
    auto& links = plan_.times.links;
    const std::string name = fmt::format("WAN {} to {}", wan.from, wan.to);
    const auto found = std::find_if(links.begin(), links.end(),
                                    [&](const PipelineLink& link) { return link.name == name; });
    hop.link = static_cast<int>(found - links.begin());
    if (found == links.end()) {
      const double share = static_cast<double>(plan_.cell) / request_.replicas;
      links.push_back({name, wan.total * share, order_.shares_links_in_turns(), wan.jitter_ns});
    }
    hop.rate = worker_rate(wan) * plan_.cell;
    hop.latency_ns = wan.latency_ns();
    if (plan_.cell > 1)
      hop.latency_ns += to_ns(2 * hop.bytes * (plan_.cell - 1) / plan_.cell / nic());
    return hop;
  }

  void find_memory_but_activations() {
    PipelineMemory memory;
    memory.capacity = static_cast<double>(problem_.machine.gpu.memory);
    std::vector<double> of_gpu(static_cast<std::size_t>(plan_.shape.gpus), 0);
    for (int s = 0; s < plan_.shape.stages(); ++s)
      of_gpu[static_cast<std::size_t>(plan_.shape.gpu_of(s))] += parameters_of(s);
    const double most = *std::max_element(of_gpu.begin(), of_gpu.end()) / request_.tensor;
    memory.parameters = most * static_cast<double>(problem_.parameter_bytes());
    memory.gradients = most * static_cast<double>(problem_.gradient_bytes());
    memory.optimizer_state = most * static_cast<double>(problem_.state_bytes());
    const SavedMask available = saved_all(problem_.model);
    double working = static_cast<double>(
        std::max(backward_scratch_bytes(problem_, available), head_scratch_bytes(problem_)));
    if (plan_.recomputes) working += static_cast<double>(saved_bytes(problem_, available));
    memory.working = working / request_.tensor;
    plan_.memory = memory;
  }
  double fixed_bytes() const {
    const PipelineMemory& memory = plan_.memory;
    return memory.parameters + memory.gradients + memory.optimizer_state + memory.working;
  }
  // Of a stage that has the most layers. Inputs of layers are whole on every GPU of a worker.
  double activation_bytes_of_a_micro_batch() const {
    const double layers = *std::max_element(plan_.layers_of.begin(), plan_.layers_of.end());
    const double saved =
        plan_.recomputes ? 0
                         : static_cast<double>(saved_bytes(problem_, saved_all(problem_.model))) /
                               request_.tensor;
    return layers * (static_cast<double>(checkpoint_bytes(problem_)) + saved);
  }

  double recomputed_bytes_of_a_micro_batch() const {
    const double layers = *std::max_element(plan_.layers_of.begin(), plan_.layers_of.end());
    return layers * static_cast<double>(saved_bytes(problem_, saved_all(problem_.model))) /
           request_.tensor;
  }

  void find_activations(const std::vector<PassOrder>& orders) {
    plan_.held = 0;
    for (const PassOrder& order : orders) {
      const std::vector<int> held = most_held(order);
      plan_.held = std::max(plan_.held, *std::max_element(held.begin(), held.end()));
    }
    plan_.memory.activations = plan_.held * activation_bytes_of_a_micro_batch();
    if (plan_.recomputes) {
      int recomputed = 0;
      for (const PassOrder& order : orders) {
        const std::vector<int> most = most_recomputed(order);
        recomputed = std::max(recomputed, *std::max_element(most.begin(), most.end()));
      }
      plan_.memory.activations += recomputed * recomputed_bytes_of_a_micro_batch();
    }
    plan_.memory.needed = fixed_bytes() + plan_.memory.activations;
  }

  const PipelineRequest& request_;
  const PipelineOrder& order_;
  const Problem problem_;
  const Machine::Cluster& cluster_;
  const Costs costs_;
  const int workers_per_node_;
  PipelinePlan plan_;
};

}  // namespace

double tensor_sum_seconds(const Problem& problem, int tensor) {
  if (tensor == 1) return 0;
  const Machine::Cluster& cluster = problem.machine.cluster;
  return 2 * collective_seconds(cluster, TaskKind::all_reduce, RankGroup{{tensor, 1}},
                                checkpoint_bytes(problem), rate_inside(problem.machine),
                                cluster.nic);
}

double PipelinePlan::tokens_per_second() const {
  if (!result) return 0;
  return static_cast<double>(request.problem.workload.tokens_per_step()) * 1e9 /
         static_cast<double>(result->step_ns);
}

std::optional<std::vector<int>> place_stages(const DataCenters& centers, int gpus, int replicas,
                                             int workers_per_node) {
  std::vector<int> places;
  int before = -1;
  for (std::size_t c = 0; c < centers.centers.size(); ++c) {
    const std::int64_t room = centers.centers[c].nodes * workers_per_node / replicas;
    const auto taken = std::min<std::int64_t>(room, gpus - static_cast<int>(places.size()));
    if (taken == 0) continue;
    if (before >= 0 && centers.link(centers.centers[static_cast<std::size_t>(before)].name,
                                    centers.centers[c].name) == nullptr)
      return std::nullopt;
    places.insert(places.end(), static_cast<std::size_t>(taken), static_cast<int>(c));
    before = static_cast<int>(c);
  }
  if (static_cast<int>(places.size()) < gpus) return std::nullopt;
  return places;
}

std::optional<PipelinePlan> plan_pipeline_at_its_best(PipelineRequest request,
                                                      const PipelineOrder& order) {
  constexpr std::int64_t most_sequences = 32;
  Workload& workload = request.problem.workload;
  std::optional<PipelinePlan> best;
  for (std::int64_t size = 1; size <= most_sequences; size *= 2) {
    const std::int64_t sequences = size * std::max(1, request.replicas);
    if (workload.batch % sequences != 0 ||
        !order.suits(request.gpus, static_cast<int>(workload.batch / sequences)))
      continue;
    workload.micro_batch = size;
    PipelinePlan plan = plan_pipeline(request, order);
    if (!best || plan.tokens_per_second() > best->tokens_per_second()) best = std::move(plan);
  }
  return best;
}

PipelinePlan plan_pipeline(const PipelineRequest& request, const PipelineOrder& order) {
  return PipelineBuilder(request, order).build();
}

}  // namespace spillway
