#include "experiments/train/training_job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/errors.hpp"
#include "exec/data/model_writer.hpp"
#include "exec/data/safetensors_folder.hpp"
#include "exec/run/cuda_module.hpp"
#include "exec/run/run_export.hpp"
#include "exec/run/training_record.hpp"
#include "experiments/testbed/throttled_machine.hpp"
#include "experiments/train/kept_settings.hpp"
#include "experiments/train/train_algorithms.hpp"
#include "experiments/train/train_checks.hpp"
#include "policies/machine/frozen_buffer.hpp"
#include "policies/model/hugging_face.hpp"
#include "policies/model/peft.hpp"
#include "traces/file_sink.hpp"
#include "traces/perfetto.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;
using Stage = TrainListener::Stage;

constexpr std::int64_t most_skipped_in_a_row = 100;

TrainHardware hardware_of(const DeviceChoice& choice, const ProblemRequest& request) {
  TrainHardware hardware;
  if (!choice.gpu) return hardware;
  hardware.cuda = true;
  hardware.choose_sequences_at_once = request.chooses_sequences_at_once();
  if (request.gpu_memory.empty()) {
    const std::uint64_t free = cuda_free_bytes(choice.gpu->id);
    hardware.gpu_bytes = [free](const Problem& problem) {
      return gpu_tier_bytes(free, cuda_reserved_bytes(problem));
    };
  }
  return hardware;
}

}  // namespace

TrainingJob::TrainingJob(TrainRequest request, TrainListener listener)
    : request_(std::move(request)), listener_(std::move(listener)) {
  settings_ = read_train_settings(request_.settings);
  given_ = kept(request_.settings);
  settle();
}

TrainingJob::~TrainingJob() = default;

// What `resume` goes on from: the settings of the run where none are given now, and its last
// commit, if there is one yet.
std::optional<ResumePoint> TrainingJob::resume() {
  const SavedRun& saved = folder_->saved();
  if (!saved.not_resumable.empty()) {
    throw InputError(
        Setting{"resume"} + Message(fmt::format(": there is nothing to go on from in {}: {}",
                                                request_.run, saved.not_resumable)),
        "start another run, in a folder of its own");
  }
  ResumeState state = folder_->resume({ssd_directories(settings_.ssd), request_.take_over,
                                       listener_.checking, request_.io.make_ring});
  const GivenSettings now = given_, before = settings_in(saved);
  given_ = added_to(now, before);
  GivenSettings all = given_;
  settings_ = read_train_settings(all);
  if (!state.note.empty() && listener_.note) {
    // A copy may come from somebody else.
    const std::string text =
        settings_.data.data.empty()
            ? ""
            : fmt::format("; its text: {}", fmt::join(settings_.data.data, ", "));
    listener_.note(state.note + text);
  }
  if (!state.point) return {};  // it ended before its first commit: from the beginning
  const TrainingRecord record = TrainingRecord::parse(state.point->record.identity.training);
  require_same_reading(now, before, record.data_rules);
  const auto device = now.find("device");
  const bool device_given = device != now.end() && device->second.back() != "auto";
  if (device_given && device->second.back() != record.backend) {
    throw InputError(
        Setting{"resume"} +
            Message(fmt::format(": the run in {} is trained on device {}, not {}", request_.run,
                                record.backend, device->second.back())),
        "leave " + Setting{"device"} + " out: what is trained on another device has other numbers");
  }
  // Chosen where the run began, and part of its numbers since.
  const WorkloadTexts workload = workload_texts(record.workload);
  for (const char* key : {"micro_batch", "precision", "sequences_at_once"})
    if (!now.contains(key)) all[key] = {workload.at(key)};
  if (!now.contains("policy")) all["policy"] = {record.policy};
  // The file or folder that it was read from may be gone, and so may that of the adapters. A model
  // of which a part is frozen is needed for its weights alone.
  if (record.model.has_frozen() && now.contains("model")) frozen_from_ = now.at("model").back();
  const bool needs_model = now.contains("model") && frozen_from_.empty();
  if (state.point->record.version > 0) {
    if (now.contains("adapter"))
      throw InputError(Setting{"resume"} + ": the run has adapters of its own, at step " +
                           std::to_string(state.point->record.version),
                       "leave " + Setting{"adapter"} + " out, or start another run");
    all.erase("adapter");
  }
  if (!needs_model && folder_->directory().status(RunFolder::model))
    all["model"] = {folder_->directory().path_of(RunFolder::model).string()};
  if (!device_given) all["device"] = {record.backend};
  if (!now.contains("data")) {
    std::vector<std::string>& data = all["data"];
    data.clear();
    for (const fs::path& path : record.data) data.push_back(path.string());
  }
  std::vector<std::string> directories;
  for (const fs::path& directory : state.ssd) directories.push_back(directory.string());
  all["ssd"] = {fmt::format("{}", fmt::join(directories, ","))};
  settings_ = read_train_settings(all);
  return std::move(state.point);
}

void TrainingJob::settle() {
  const auto enter = [&](Stage stage) {
    if (listener_.enter) listener_.enter(stage);
  };
  const auto check = [&](const TrainSettings& settings) {
    check_settings(settings);
    if (request_.retune && !parse_durability(settings_.durability).on())
      throw InputError(Setting{"retune"} +
                           " goes on from a commit, and without durability there "
                           "is none",
                       "leave " + Setting{"durability"} + " out");
    if (request_.retune_matmul && !request_.resume)
      throw InputError(Setting{"retune_matmul"} + " goes with " + Setting{"resume"} +
                           ": a new training tunes anyway",
                       "leave it out");
  };
  std::optional<ResumePoint> point;
  if (request_.resume) {
    if (request_.run.empty())
      throw InputError(Setting{"resume"} + " needs to know which run to go on with",
                       Setting{"run", "DIR"});
    TrainSettings given = settings_;
    given.keep = 0;  // to be judged by the run's own number of steps, and so are these
    given.optimizer.decay_steps = given.optimizer.warmup_steps = 0;
    given.evaluate_every = given.evaluate_batches = 0;  // what is held out the run knows
    check(given);
    folder_.emplace(RunFolder::open(request_.run, request_.take_over));
    point = resume();
  }
  ProblemRequest& asked = settings_.problem;
  if (asked.model.empty())
    throw InputError("there is no model to train", "name one: " + Setting{"model"});
  require_one_length(given_);
  const bool by_data = settings_.epochs > 0 || settings_.tokens > 0;
  if (!by_data) {
    settle_learning_rate(settings_, given_);
    check(settings_);
  }
  const Durability durability = parse_durability(settings_.durability);
  const ThrottleRates throttle = parse_throttle(settings_.throttle);
  chose_device_ = !given_.contains("device");
  const bool began_on_gpu =
      point && TrainingRecord::parse(point->record.identity.training).backend ==
                   TrainingRecord::cuda_backend;
  device_ = choose_device(
      {settings_.device, settings_.gpu, throttle.any(), asked.machine_backend(), began_on_gpu});
  // A GPU computes in bf16 unless told otherwise, the CPU in fp32.
  asked.workload.try_emplace(
      "precision", to_string(usual_precision(device_.gpu ? Backend::cuda : Backend::cpu)));
  Problem problem = asked.problem(device_.gpu.has_value());
  require_own_framework(problem.framework);
  refuse_idle_settings(request_.settings, settings_, problem.model);
  check_backend(problem, device_.gpu.has_value());
  if (settings_.keep > 0) hugging_face_config(problem.model, "");  // or it refuses
  if (!device_.gpu) refuse_without_gpu(given_, request_.retune_matmul);
  weights_ =
      open_initial_weights(settings_, point, problem.model, request_.io.make_ring, frozen_from_);
  set_frozen_in_place(problem, settings_.frozen_weights == "checkpoint" && weights_.values &&
                                   FrozenFiles::why_not(problem, *weights_.values).empty());
  const bool machine_known = request_.retuned || !asked.machine.empty();
  if (request_.retuned)
    problem.machine = request_.retuned->machine;
  else if (machine_known)
    problem.machine = throttled_machine(problem.machine, throttle);
  std::vector<fs::path> drives = ssd_directories(settings_.ssd);
  const bool drives_given = !drives.empty();
  if (!drives_given) drives.push_back(nearest_existing(request_.run.empty() ? "." : request_.run));
  // What can be refused at once is, before anything takes long.
  if (!request_.resume) RunFolder::require_new(request_.run);
  open_data(problem);
  if (by_data) {
    settle_learning_rate(settings_, given_);
    check(settings_);
  }
  TrainHardware hardware = hardware_of(device_, asked);
  hardware.measure =
      [&, measure = measure_this_machine({drives, request_.io, settings_.threads, device_.gpu,
                                          throttle, listener_.note, listener_.measuring},
                                         rates_)](const Problem& of,
                                                  const std::vector<std::int64_t>& micro_batches) {
        enter(Stage::preparing);  // there are files to be removed
        Machine measured = measure(of, micro_batches);
        enter(Stage::planning);
        return measured;
      };
  if (listener_.doing) listener_.doing("choosing how to train");
  enter(Stage::planning);
  plan_ = plan_training(problem, asked.chooses_micro_batch(), settings_.policy, !machine_known,
                        drives, hardware, {durability, settings_.steps},
                        request_.retuned ? request_.retuned->policy : "");
  if (request_.retune && !plan_.predicted_step_seconds)
    throw InputError(
        Setting{"retune"} +
            " holds the first steps against a prediction, and there is "
            "none without a machine that is known",
        "add " + Setting{"machine", "machine.toml"} + ", or use " + Setting{"policy", "auto"});
  enter(Stage::preparing);
  if (!folder_) folder_.emplace(RunFolder::create(request_.run, plan_.problem.model.name));
  folder_->saved().options = given_;
  if (!drives_given) drives = {folder_->make_ssd_folder()};
  options_.problem = plan_.problem;
  options_.policy = plan_.policy;
  options_.steps = settings_.steps;
  options_.seed = settings_.seed;
  options_.ssd = drives;
  options_.make_ring = request_.io.make_ring;
  options_.optimizer = settings_.optimizer;
  options_.threads = settings_.threads;
  if (device_.gpu) {
    options_.place =
        place_beside(numa_node_of_pci(device_.gpu->pci_bus), numa_nodes(), settings_.threads);
    CudaOptions cuda =
        cuda_options(settings_, given_, request_.retune_matmul, plan_.problem, *device_.gpu, point);
    if (listener_.doing) cuda.say = listener_.doing;
    train_on(cuda, plan_.problem, options_);
    options_.retunes_products = request_.retune_matmul;
  }
  options_.throttle = throttle;
  options_.predicted_step_seconds = plan_.predicted_step_seconds.value_or(0);
  for (const std::string& text : settings_.data.data)
    options_.data.emplace_back(absolute_source(text));
  options_.batches = data_.batches;
  options_.data_rules = data_.rules;
  if (data_.validation) {
    const std::int64_t most = settings_.evaluate_batches;
    options_.evaluations = {
        data_.validation,
        most == 0 ? data_.validation_batches : std::min(most, data_.validation_batches),
        settings_.evaluate_every};
  }
  options_.weights = weights_.values;
  options_.adapter = weights_.adapter;
  if (const auto origin = FrozenOrigin::load(folder_->directory())) options_.seal = origin->seal;
  options_.durability = durability;
  options_.resume = std::move(point);
  options_.overwrite = request_.overwrite;
  options_.run = folder_->identity();
  options_.keep_store = true;                         // see finish()
  options_.may_be_done = !folder_->saved().complete;  // killed between its last commit and its end
  if (!durability.on() && !folder_->saved().store)
    folder_->saved().not_resumable = "it was made without durability: nothing was committed";
  if (!request_.resume) folder_->save();
}

// What it is fed, and, where that says how long it is, its steps.
void TrainingJob::open_data(const Problem& problem) {
  DataRequest request;
  if (settings_.data.data.empty())
    for (const fs::path& path : default_text()) settings_.data.data.push_back(path.string());
  request.settings = settings_.data;
  std::error_code error;
  if (fs::is_directory(settings_.problem.model, error))
    request.model_folder = fs::canonical(settings_.problem.model, error);
  request.learned = weights_.values != nullptr;
  request.vocabulary = problem.model.vocabulary;
  request.sequence = problem.workload.sequence;
  request.sequences_per_step = problem.workload.batch;
  request.seed = settings_.seed;
  auto data = open_training_data(request, {listener_.doing, listener_.stop, listener_.note});
  if (!data) {
    if (listener_.enter) listener_.enter(Stage::planning);  // tells of the signal
    throw MachineError("stopped while the data was prepared");
  }
  data_ = std::move(*data);
  // A resumed run has the model's shape only.
  if (!data_.tokenizer_from.empty()) given_["tokenizer"] = {data_.tokenizer_from.string()};
  if (!data_.template_from.empty()) given_["chat_template"] = {data_.template_from.string()};
  const auto steps_in = [](double steps) {
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(steps - 1e-9)));
  };
  if (settings_.epochs > 0) settings_.steps = steps_in(settings_.epochs * data_.steps_of_epoch);
  if (settings_.tokens > 0)
    settings_.steps = steps_in(static_cast<double>(settings_.tokens) /
                               static_cast<double>(problem.workload.tokens_per_step()));
}

// Once, where an end was asked for and somebody reads the state that it would overwrite.
void TrainingJob::say_what_waits() {
  if (!stop_requested_ || !listener_.waiting || said_what_waits_.exchange(true)) return;
  const std::optional<std::int64_t> step = kept_ ? kept_->writing() : std::nullopt;
  listener_.waiting(step ? fmt::format("the checkpoint of step {} to be written", *step)
                         : fmt::format("an export of this run, which holds {} (fuser names it)",
                                       (folder_->path() / ExportLock::file_name).string()));
}

// On the thread that commits.
bool TrainingJob::may_overwrite(std::int64_t committed) {
  if (!export_lock_->nobody_reads()) {
    say_what_waits();
    return false;
  }
  if (kept_) kept_->committed(committed);
  return true;
}

std::vector<KeptStep> TrainingJob::kept_news() {
  return kept_ ? kept_->news() : std::vector<KeptStep>();
}

void TrainingJob::open() {
  if (!settings_.no_export) require_new_file(folder_->place(weights_file()), &only_an_export());
  if (listener_.doing) listener_.doing("setting up memory and store");
  if (options_.durability.on()) {
    export_lock_.emplace(folder_->directory());
    options_.may_overwrite = [this](std::int64_t committed) { return may_overwrite(committed); };
  }
  if (settings_.keep > 0) options_.also_commit_every = settings_.keep_every;
  if (weights_.values) weights_.values->tell(listener_.reading);
  training_ = std::make_unique<Training>(options_);
  if (weights_.values && training_->first_step() == 0)
    initial_ = InitialState{weights_.values->folder(), weights_.values->data_hash(),
                            weights_.values->bytes(), weights_.values->describe()};
  options_.weights.reset();  // with its files and memory
  options_.adapter.reset();
  weights_.values.reset();
  weights_.adapter.reset();
  require_room(plan_.problem.model, folder_->path(), settings_);
  const std::int64_t first = training_->first_step();
  trace_place_ = !request_.trace.empty() ? FilePlace(request_.trace)
                 : first == 0            ? folder_->place(RunFolder::trace)
                              : folder_->place(fmt::format("trace-from-step-{}.json.gz", first));
  require_new_file(*trace_place_, &only_a_trace());  // not only after all steps
}

const char* TrainingJob::weights_file() const {
  return plan_.problem.model.has_adapters() ? adapter_weights_file : RunFolder::weights;
}

std::filesystem::path TrainingJob::weights_path() const {
  return plan_.problem.model.has_adapters() ? folder_->file(weights_file())
                                            : SafetensorsFolder::file_in(folder_->path());
}

void TrainingJob::remove_weights() {
  if (!plan_.problem.model.has_adapters()) return spillway::remove_weights(folder_->directory());
  const FilePlace weights = folder_->place(weights_file());
  if (!folder_->directory().status(weights_file())) return;
  require_new_file(weights, &only_an_export());
  if (!folder_->directory().remove(weights_file()))
    throw MachineError("cannot remove " + weights.path.string(), "remove it by hand");
}

void TrainingJob::begin() {
  const auto write = [&](const char* name, const std::string& text) {
    FileSink file(folder_->place(name), FileSink::Compression::none);
    file.write(text);
    file.commit();
  };
  // Without a machine file there are limits but no rates: nothing that could be read as a machine.
  if (!settings_.problem.machine.empty() || rates_->known || request_.retuned)
    write(RunFolder::machine, machine_to_toml(plan_.problem.machine));
  write(RunFolder::model, model_to_toml(plan_.problem.model));
  folder_->keep();
  // What an earlier part of the run wrote at its end is older than what the run comes to now.
  if (training_->first_step() < settings_.steps) remove_weights();
  // A run that begins again has them already, whole where its config is there.
  const ModelSpec& model = plan_.problem.model;
  const char* const config = model.has_adapters() ? adapter_config_file : hugging_face_config_file;
  const bool has_config = folder_->directory().status(config).has_value();
  // A model that was moved has another name by now.
  if (has_config && model.has_adapters() && !frozen_from_.empty())
    write_adapter_files(folder_->path(), folder_->directory(), model,
                        training_->frozen_origin()->folder);
  const fs::path base =
      training_->frozen_origin() ? training_->frozen_origin()->folder : fs::path();
  if (training_->first_step() == 0 && !has_config)
    write_files_of_run(weights_, settings_, model, base, folder_->directory());
  if (const auto& origin = training_->frozen_origin()) origin->save(folder_->directory());
  if (training_->commit_interval() == 0) return;
  // From here on it is known where the state is now.
  folder_->remember_store(training_->store_location());
  training_->remove_previous_store();
  if (settings_.keep == 0) return;
  kept_.emplace(folder_->path(), KeepRule{settings_.keep, settings_.keep_every},
                request_.io.make_ring);
  kept_->committed(training_->first_step());  // the run before may have been killed over it
}

TrainingResult TrainingJob::train(const std::function<void(const StepResult&)>& report,
                                  const std::function<void(std::int64_t)>& committed,
                                  const std::function<void(const EvaluationResult&)>& evaluated) {
  std::int64_t skipped_in_a_row = 0;
  training_->on_evaluation(evaluated);
  const TrainingResult result = training_->run(
      [&](const StepResult& step) {
        if (step.skipped_unit >= 0) ++skipped_steps_;
        skipped_in_a_row = step.skipped_unit >= 0 ? skipped_in_a_row + 1 : 0;
        if (skipped_in_a_row == most_skipped_in_a_row) {
          throw MachineError(
              fmt::format("{} steps in a row had a gradient that is not finite, up to "
                          "step {}: nothing is learned any more",
                          most_skipped_in_a_row, step.step),
              "use a smaller " + Setting{"learning_rate"} + ", a longer " + Setting{"warmup"} +
                  ", or look at the text");
        }
        check_prediction(step.seconds);
        if (request_.retune && !retunes_ && prediction_check_ && !prediction_check_->holds()) {
          retunes_ = true;
          training_->request_stop();
        }
        if (report) report(step);
      },
      &trace_, committed);
  look_at_lanes();
  steps_done_ = result.steps;
  if (kept_) {
    const auto wait = [&] {
      if (kept_->writing()) say_what_waits();
      kept_->wait();
    };
    wait();
    kept_->committed(result.steps);  // where somebody read what was committed before
    wait();
  }
  return result;
}

// Soon by the time of steps alone, and by what each lane did once that is recorded.
void TrainingJob::check_prediction(double step_seconds) {
  if (!plan_.predicted_step_seconds) return;
  first_steps_.push_back(step_seconds);
  // The very first step fills the pipeline.
  if (first_steps_.size() == fewest_steps_checked + 1)
    prediction_check_ =
        check_steps({first_steps_.begin() + 1, first_steps_.end()}, *plan_.predicted_step_seconds);
  if (first_steps_.size() > fewest_steps_checked) look_at_lanes();
}

void TrainingJob::look_at_lanes() {
  if (!plan_.predicted_step_seconds || (prediction_check_ && !prediction_check_->lanes.empty()))
    return;
  const auto check = spillway::check_prediction(training_->schedule(), trace_);
  if (check) prediction_check_ = check;
}

TrainRequest TrainingJob::next() const {
  TrainRequest next;
  next.run = folder_->path().string();
  next.resume = true;
  next.io = request_.io;
  next.remove_store = request_.remove_store;
  // What looked otherwise by its first steps alone goes on as it is.
  const bool holds =
      !prediction_check_ || prediction_check_->holds() || prediction_check_->lanes.empty();
  next.settings["policy"] = {holds ? plan_.policy : "auto"};
  next.retuned = {
      holds ? plan_.problem.machine : corrected_machine(plan_.problem.machine, *prediction_check_),
      plan_.policy};
  return next;
}

void TrainingJob::export_weights() {
  if (!settings_.no_export) training_->export_model(folder_->directory());
}

void TrainingJob::finish() {
  write_trace(trace_, *trace_place_);
  const bool durable = training_->commit_interval() > 0;
  SavedRun& saved = folder_->saved();
  saved.complete = !stopped();
  folder_->save();
  if (stopped() || (durable && !request_.remove_store)) return;
  // Written down before the store goes, so that `store remove` can end what is broken off.
  saved.not_resumable =
      durable ? "its store was removed on purpose" : "its last steps were made without durability";
  folder_->save();
  if (!durable) training_->remove_previous_store();  // kept until now
  training_->discard_store();
}

}  // namespace spillway
