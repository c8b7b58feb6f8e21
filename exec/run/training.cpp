#include "exec/run/training.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "base/units.hpp"
#include "exec/cpu/cpu_device.hpp"
#include "exec/data/dataset.hpp"
#include "exec/data/left_out_batches.hpp"
#include "exec/ranks/rank_team.hpp"
#include "exec/run/model_access.hpp"
#include "exec/run/training_record.hpp"
#include "exec/run/training_start.hpp"
#include "policies/common/run_record.hpp"
#include "policies/cost/commit_interval.hpp"
#include "policies/framework/framework.hpp"
#include "policies/model/peft.hpp"
#include "policies/model/stages.hpp"
#include "policies/movement/shards.hpp"

namespace spillway {

namespace {

// The record as commits carry it. The store makes room for it before the device is there, which
// adds the algorithms it computes by: a GPU's record is filled up with blanks to a length that does
// not depend on them.
std::string text_of(const TrainingRecord& record) {
  if (record.backend != TrainingRecord::cuda_backend) return record.to_json();
  constexpr std::size_t room_for_algorithms = std::size_t{24} << 10, unit = std::size_t{32} << 10;
  TrainingRecord without = record;
  without.algorithms.clear();
  const std::size_t length = round_up(without.to_json().size() + room_for_algorithms, unit);
  std::string text = record.to_json();
  SPILLWAY_ASSERT(text.size() <= length, std::to_string(text.size()));
  text.resize(length, ' ');
  return text;
}

// Steps before `first` were trained on the batches that they would be trained on now.
void require_same_batches(std::vector<std::int64_t> before, std::vector<std::int64_t> now,
                          std::int64_t first) {
  if (first == 0) return;
  for (std::vector<std::int64_t>* left_out : {&before, &now}) {
    const std::int64_t last = LeftOutBatches::source_of(first - 1, *left_out);
    std::erase_if(*left_out, [&](std::int64_t batch) { return batch > last; });
  }
  if (before == now) return;
  throw InputError(
      Setting{"left_out"} + fmt::format(": batches of the {} steps that are done are others than "
                                        "those that they were trained without",
                                        first),
      "a resumed training goes on bit for bit: leave the option out, or start another run");
}

// What decides the numbers is as it was, as far as it is known before anything is read.
void require_goes_on(const TrainingOptions& options, TrainingStart& start) {
  TrainingRecord& record = start.record;
  TrainingRecord& before = *start.before;
  if (options.retunes_products) before.tunes_products = record.tunes_products;
  if (start.first > 0) {
    if (start.frozen && options.weights)
      require_same_frozen(record.initial_folder, record.frozen_hash, before.frozen_hash);
    if (!options.weights) record.initial_folder = before.initial_folder;
    record.initial_hash = before.initial_hash;
  } else {
    record.frozen_hash = before.frozen_hash;  // compared once it has been read
  }
  record.initial_data_hash = before.initial_data_hash;  // compared once it has been read
  // Another number of ranks adds gradients up in other groups from here on.
  if (before.workload.pipeline > 1 && before.chunks != record.chunks)
    throw InputError(
        fmt::format("the stages of this pipeline have {} run{} of layers each, and those of the "
                    "run that it goes on with {}",
                    record.chunks, record.chunks == 1 ? "" : "s", before.chunks),
        "go on with " + Setting{"policy", before.policy} +
            " or another one whose stages are alike");
  if (before.workload.ranks != record.workload.ranks) {
    before.workload.gradient_groups = record.workload.gradient_groups;
    before.workload.group_meshes = record.workload.group_meshes;
    before.workload.ranks = record.workload.ranks;
  }
  require_same_numbers(before, record);
  require_same_batches(before.left_out, record.left_out, start.first);
}

}  // namespace

TrainingStart start_of(const TrainingOptions& options) {
  TrainingStart start;
  const Problem& problem = options.problem;
  require_own_framework(problem.framework);
  if (options.steps < 1) throw InputError(Setting{"steps"} + " must be at least 1");
  if (options.durability.interval < 0)
    throw InputError(Setting{"durability", "interval=N"} + ": N must be at least 1");
  const std::int64_t first = start.first = options.resume ? options.resume->record.version : 0;
  const std::int64_t left = options.steps - first;
  if (left < (options.resume && options.may_be_done ? 0 : 1)) {
    throw InputError(fmt::format("the training is at step {} already, and ", first) +
                         Setting{"steps"} + fmt::format(" is {}", options.steps),
                     "to train on, give a larger " + Setting{"steps"});
  }
  start.schedules = std::make_unique<TrainingSchedules>(course_of(options, first));
  start.batches = options.batches;
  if (!start.batches) {
    start.batches = std::make_shared<const Dataset>(
        options.data, options.seed, Dataset::default_memory_limit, options.binary_data);
  }
  if (!options.left_out.empty())
    start.batches = std::make_shared<LeftOutBatches>(start.batches, options.left_out);
  start.batches->require(problem.workload.sequence, problem.model.vocabulary);
  if (options.evaluations.batches)
    options.evaluations.batches->require(problem.workload.sequence, problem.model.vocabulary);
  OptimizerSettings optimizer = options.optimizer;
  optimizer.seed = options.seed;
  start.record = {whole_model(problem.model),
                  problem.workload,
                  options.seed,
                  optimizer,
                  start.batches->size(),
                  start.batches->hash(),
                  options.backend,
                  options.attention,
                  {},
                  start.schedules->usual().policy(),
                  options.steps};
  TrainingRecord& record = start.record;
  if (options.weights) {
    record.initial_folder = options.weights->folder();
    record.initial_hash = options.weights->hash();
  }
  if (options.adapter) record.initial_hash ^= options.adapter->hash();
  if (problem.model.has_frozen()) {
    start.frozen = FrozenOrigin{record.initial_folder, options.seed, {}};
    if (options.weights) {
      WeightsSeal& seal = start.frozen->seal;
      seal = describe_files(*options.weights);
      const bool is_known = options.seal && options.seal->of_same_files(seal);
      // A training that begins hashes them while it reads them.
      seal.data = is_known ? options.seal->data : first > 0 ? options.weights->data_hash() : 0;
    }
    record.frozen_hash = start.frozen->seal.data;
  }
  if (!options.make_policy) record.policy_origin = origin_of_policy(record.policy);
  if (problem.workload.ranks > 1) {
    GradientMeshes& meshes = record.workload.group_meshes;
    meshes = start.schedules->usual().gradient_meshes();
    if (meshes.parameters == Shards::mixed_cut)
      throw InputError("policy " + record.policy +
                           " has shards of parameters for those layers alone that rest on the GPU",
                       "ranks train it with parameters.rest=gpu:1, or without shards.parameters");
  }
  record.rank = problem.rank;
  record.chunks = static_cast<int>(start.schedules->usual().problem().model.stage.chunks);
  record.data_rules = options.data_rules;
  record.left_out = options.left_out;
  record.gelu_backward = options.gelu_backward;
  record.tunes_products = options.tunes_products;
  for (const auto& path : options.data) record.data.push_back(std::filesystem::absolute(path));
  if (options.resume) {
    start.before = TrainingRecord::parse(options.resume->record.identity.training);
    require_goes_on(options, start);
  }
  start.store_bytes = store_bytes(start.schedules->all(), options.durability.on());
  start.commit_interval = options.durability.interval;
  if (start.commit_interval == 0)
    start.commit_interval =
        commit_interval(start.store_bytes, problem, options.predicted_step_seconds).steps;
  // No more than there are steps, so that nothing overflows.
  start.commit_interval = std::min(start.commit_interval, options.steps);
  return start;
}

Training::Training(TrainingOptions options) : options_(std::move(options)) {
  const OnNode placed(options_.place);
  options_.optimizer.seed = options_.seed;
  TrainingStart start = start_of(options_);
  if (options_.team)  // by what each has found out about its drives they might differ
    start.commit_interval =
        std::stoll(options_.team->from_first(std::to_string(start.commit_interval)));
  const std::int64_t first = start.first;
  if (options_.team) agree(start);
  schedules_ = std::move(start.schedules);
  batches_ = std::move(start.batches);
  frozen_ = std::move(start.frozen);
  store_bytes_ = start.store_bytes;
  TrainingRecord& record = start.record;
  const std::optional<TrainingRecord>& before = start.before;
  const std::vector<const Schedule*> schedules = schedules_->all();
  const RunIdentity run = options_.run      ? *options_.run
                          : options_.resume ? options_.resume->run
                                            : homeless_run();
  find_frozen_files();
  TrainingStoreOptions with{options_.ssd,
                            options_.ssd_sets,
                            options_.durability.on(),
                            text_of(record),
                            run,
                            options_.overwrite,
                            options_.resume,
                            frozen_files_.get(),
                            options_.stripe_bytes,
                            options_.make_ring};
  if (options_.team && options_.resume) {
    with.agree_in_place = [team = options_.team](bool own) {
      const double mine = own ? 1 : 0;
      const std::vector<double> all = team->gather(std::span(&mine, 1));
      return *std::min_element(all.begin(), all.end()) > 0;
    };
  }
  training_store_ = std::make_unique<TrainingStore>(schedules, std::move(with));
  // After the store, which may refuse its drives: what can be refused at once is, before memory is
  // taken and algorithms are tried.
  const std::uint64_t gpu_bytes = schedules_->peak(Tier::gpu) + options_.guard_bytes,
                      host_bytes = schedules_->peak(Tier::host) + options_.guard_bytes;
  device_ = options_.make_device ? options_.make_device(schedule().problem(), gpu_bytes, host_bytes)
                                 : std::make_unique<CpuDevice>(schedule().problem(), gpu_bytes,
                                                               host_bytes, options_.threads);
  record.algorithms = device_->algorithms();
  training_store_->set_training(text_of(record));
  training_store_->fill(schedule(), *device_, initial(), [&] {
    if (!options_.weights && !options_.adapter) return;
    record.initial_data_hash = options_.weights ? options_.weights->data_hash() : 0;
    if (frozen_) record.frozen_hash = frozen_->seal.data = record.initial_data_hash;
    if (options_.adapter) record.initial_data_hash ^= options_.adapter->data_hash();
    if (before) require_same_numbers(*before, record);
    training_store_->set_training(text_of(record));
  });
  if (frozen_ && options_.weights &&
      !describe_files(*options_.weights).of_same_files(frozen_->seal))
    throw InputError(
        "the weights in " + frozen_->folder.string() + " were written to while they were read",
        "begin again once nobody writes to them");
  options_.weights.reset();  // with its files and memory
  options_.adapter.reset();

  version_ = first;
  gate_ = std::make_unique<VersionGate>(
      CommitPoints{start.commit_interval, first, training_store_->base_epoch(), options_.steps,
                   std::min(options_.also_commit_every, options_.steps)},
      static_cast<std::uint32_t>(training_store_->parts().size()), options_.durability.on());
  SsdStore* const store = training_store_->store();
  if (options_.durability.on()) {
    CommittedByAll by_all;
    if (RankTeam* const team = options_.team) {
      by_all = [team](std::int64_t version) {
        team->committed(version);
        team->require_all();
        return team->committed_by_all() >= version;
      };
      // Who reads a commit reads it from the stores of all ranks.
      options_.may_overwrite = [team, may = options_.may_overwrite](std::int64_t version) {
        if (!team->leads()) return team->released_by_first() >= version;
        if (may && !may(version)) return false;
        team->released(version);
        return true;
      };
    }
    committer_ =
        std::make_unique<Committer>(*store, training_store_->identity(), *training_store_->chunks(),
                                    *device_, *gate_, options_.may_overwrite, by_all);
  }
  if (options_.throttle.any()) throttle_ = std::make_unique<Throttle>(options_.throttle);
  executor_ = std::make_unique<Executor>(
      *device_, store, batches_, options_.optimizer,
      StateSafety{gate_.get(), committer_.get(), training_store_->parts()}, throttle_.get(),
      frozen_files_.get(), options_.make_ring);
  if (options_.team) executor_->use_ranks(*options_.team, options_.gpus);
  for (const Schedule* schedule : schedules)
    executor_->prepare(*schedule,
                       schedule->evaluates() ? *options_.evaluations.batches : *batches_);
  if (options_.team) options_.team->barrier();  // all have their state, and have committed it
}

Training::~Training() = default;

TrainingCourse course_of(const TrainingOptions& options, std::int64_t first) {
  TrainingCourse course{options.problem, options.policy, options.make_policy,
                        first,           options.steps,  options.steps_per_run};
  course.evaluations = options.evaluations.pauses();
  course.evaluation_batches = options.evaluations.count;
  course.samples = options.samples;
  return course;
}

// Whether a stop was asked for that comes before the next step. After the last step nobody would go
// on for what is left to do there; and where a step more was promised, that one begins with it.
bool Training::stops_here() const {
  const std::int64_t stop = gate_->stop_version();
  return stop >= 0 && stop <= version_ && version_ < options_.steps && !ended_;
}

// What is due where version_ steps are done. False: the training ends here.
bool Training::pause() {
  executor_->set_paused(true);
  bool goes_on = !options_.evaluations.pauses().at(version_, options_.steps) || evaluate();
  const bool samples =
      options_.samples.at(version_, options_.steps) || (options_.samples.on && ended_);
  if (goes_on && samples) {
    for_trained([&](const StateValues& trained) {
      const auto stops = [this] { return stops_here() || executor_->wants_stop(); };
      if (on_sample_) on_sample_(version_, weights(trained), stops);
    });
    executor_->share_stop();
    goes_on = !stops_here();
  }
  goes_on = goes_on && !ended_;
  // Where it is ended here, not by a signal: so that this version is committed.
  if (!goes_on) executor_->stop_here();
  executor_->set_paused(false);
  return goes_on;
}

// False: a stop came before it was done.
bool Training::evaluate() {
  const Evaluations& evaluations = options_.evaluations;
  EvaluationResult result;
  result.step = version_;
  const std::int64_t began = now_ns();
  const auto& schedules = schedules_->evaluation();
  const int at_once = schedules.front()->steps();
  for (std::int64_t batch = 0; batch < evaluations.count; batch += at_once) {
    executor_->share_stop();
    if (stops_here()) return false;
    const bool whole = evaluations.count - batch >= at_once;
    const Executor::Losses losses =
        executor_->evaluate(whole ? *schedules.front() : *schedules.back(), batch);
    result.loss += losses.sum;
    result.tokens += losses.tokens;
  }
  result.loss /= static_cast<double>(result.tokens);
  result.seconds = static_cast<double>(now_ns() - began) * 1e-9;
  if (on_evaluation_) ended_ = !on_evaluation_(result);
  return true;
}

// Where what is frozen of the ssd tier is read from.
void Training::find_frozen_files() {
  if (!frozen_) return;
  if (options_.problem.frozen_in_place) {
    SPILLWAY_ASSERT(options_.weights != nullptr);
    frozen_files_ = FrozenFiles::open(schedule(), *options_.weights);
  } else if (!options_.weights) {
    why_in_store_ = "they are drawn from the seed";
  } else {
    why_in_store_ = FrozenFiles::why_not(options_.problem, *options_.weights);
    if (why_in_store_.empty()) why_in_store_ = "it was asked for";
  }
}

std::uint64_t Training::frozen_bytes_in_store() const {
  std::uint64_t bytes = 0;
  for (const HomePart& home : schedule().homes()) {
    const bool on_ssd = is_drives(schedule().buffers()[home.where.buffer.id].tier);
    if (home.frozen && on_ssd && !frozen_files_) bytes += home.where.bytes;
  }
  return bytes;
}

StateValues Training::initial() const {
  const StateValues whole = starting_state(whole_model(options_.problem.model), options_.seed,
                                           options_.weights, options_.adapter);
  const ModelSpec& model = schedule().problem().model;
  if (!is_stage(model)) return whole;
  return [model, whole](std::int64_t unit, int moment, std::uint64_t first, std::uint64_t count,
                        float* to) { whole(whole_unit(model, unit), moment, first, count, to); };
}

std::vector<std::string> Training::warnings() const {
  std::vector<std::string> all = executor_->warnings();
  if (const SsdStore* const store = training_store_->store())
    all.insert(all.begin(), store->warnings().begin(), store->warnings().end());
  if (frozen_files_)
    all.insert(all.end(), frozen_files_->warnings().begin(), frozen_files_->warnings().end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::string Training::host_memory_text() const {
  const std::optional<HostMemorySetup> setup = device_->host_memory_setup();
  if (!setup || setup->bytes == 0) return "";
  std::string text = fmt::format(
      "{} of host memory: taken in {:.1f} s, pinned in {:.1f} s, {}",
      format_bytes(static_cast<double>(setup->bytes)), setup->take_seconds, setup->pin_seconds,
      setup->pinned_pieces > 1 ? fmt::format("in {} pieces", setup->pinned_pieces) : "by one call");
  if (!options_.place.text.empty()) text += "; " + options_.place.text;
  if (options_.place.node < 0) return text;
  const std::optional<double> share = share_on_node(device_->host_memory(), options_.place.node);
  constexpr double nearly_all = 0.99;
  if (share && *share < nearly_all)
    text += fmt::format("; only {:.0f} % of it lies there", 100 * *share);
  return text;
}

ModelAccess Training::access() {
  return ModelAccess({schedule(), *device_, training_store_->store(), training_store_->chunks(),
                      training_store_->parts(), frozen_files_.get()},
                     gate_->points().copy_of(version_));
}

TrainingResult Training::run(const std::function<void(const StepResult&)>& report, Trace* trace,
                             const std::function<void(std::int64_t)>& committed) {
  if (trace) {
    *trace = make_trace(schedule(), "executor");
    trace->set_metadata("seed", std::to_string(options_.seed));
    if (throttle_) trace->set_metadata("throttle", '"' + to_text(options_.throttle) + '"');
    trace->spans.reserve(
        std::min(most_spans, static_cast<std::size_t>(options_.steps) * schedule().tasks().size()));
  }
  TrainingResult result;
  result.steps = version_;
  const std::int64_t first = version_;
  const auto take = [&](const StepResult& step) {
    const bool skipped = step.skipped_unit >= 0;
    if (!std::isfinite(step.loss) && !skipped) {
      throw MachineError(fmt::format("the loss is {} at step {}", step.loss, step.step),
                         "training has diverged: use a smaller " + Setting{"learning_rate"} +
                             " or a longer " + Setting{"warmup"});
    }
    if (step.step == first) result.first_loss = step.loss;
    if (std::isfinite(step.loss)) result.final_loss = step.loss;
    report(step);
  };
  executor_->on_commit(committed);
  // From here on the state is worth more than the space it takes.
  if (committer_) training_store_->store()->set_keep(true);
  int segment = 0;
  bool stopped = !pause();
  while (version_ < options_.steps && !stopped) {
    const Schedule& next = schedules_->next(version_);
    const bool record =
        trace && &next == &schedule() && trace->spans.size() + next.tasks().size() <= most_spans;
    version_ += executor_->run(next, version_, take, record ? trace : nullptr, segment++);
    // What is due after the last step is done all the same: nobody would go on for it.
    stopped = (version_ < options_.steps && gate_->stop_version() >= 0 &&
               version_ >= gate_->stop_version()) ||
              !pause();
  }
  if (committer_) executor_->wait_for_commit(version_);
  result.steps = version_;
  result.weights_hash = weights_hash();
  // Only now nothing that can fail needs it any more.
  keep_store(version_ < options_.steps || options_.keep_store);
  return result;
}

void Training::keep_store(bool keep) {
  if (SsdStore* const store = training_store_->store()) store->set_keep(committer_ && keep);
}

std::uint64_t Training::highest_written(Tier tier) const {
  SPILLWAY_ASSERT(!is_drives(tier));
  return device_->highest_written(tier);
}

// With what is frozen beside what is trained of the whole model.
StateValues Training::weights(const StateValues& trained) const {
  if (!frozen_) return trained;
  const ModelSpec& model = options_.problem.model;
  return with_frozen(model, trained, frozen_values(*frozen_, model, options_.make_ring));
}

void Training::export_model(const Directory& folder, const WeightFiles& files) {
  keep_store(true);  // the weights may find no room: they are then still there to be had
  const ModelSpec model = whole_model(options_.problem.model);
  for_trained([&](const StateValues& trained) {
    // Of adapters the files have no more than these.
    const StateValues all = model.has_adapters() ? trained : weights(trained);
    const auto values = [&](std::int64_t unit, std::uint64_t first, std::uint64_t count,
                            float* to) { all(unit, 0, first, count, to); };
    if (model.has_adapters()) {
      write_adapter(FilePlace(folder, adapter_weights_file), model, values, files.type,
                    frozen_->seal.data);
    } else {
      write_weights(folder, model, values, files);
    }
  });
  keep_store(version_ < options_.steps || options_.keep_store);
}

}  // namespace spillway
