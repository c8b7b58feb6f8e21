#include "experiments/train/training_job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/errors.hpp"
#include "exec/data/model_writer.hpp"
#include "exec/ranks/left_over_stores.hpp"
#include "exec/run/cuda_module.hpp"
#include "exec/run/run_export.hpp"
#include "exec/run/training_record.hpp"
#include "experiments/testbed/throttled_machine.hpp"
#include "experiments/train/kept_settings.hpp"
#include "experiments/train/run_config.hpp"
#include "experiments/train/train_algorithms.hpp"
#include "experiments/train/train_checks.hpp"
#include "policies/machine/memory_beside.hpp"
#include "policies/model/hugging_face.hpp"
#include "policies/model/peft.hpp"
#include "traces/file_sink.hpp"
#include "traces/perfetto.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;
using Stage = TrainListener::Stage;

// `free`: bytes of the GPU's memory.
TrainHardware hardware_of(const DeviceChoice& choice, const ProblemRequest& request,
                          std::uint64_t free) {
  TrainHardware hardware;
  if (!choice.gpu) return hardware;
  hardware.cuda = true;
  hardware.choose_sequences_at_once = request.chooses_sequences_at_once();
  if (request.gpu_memory.empty()) {
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
  try {
    take_place_among_ranks();
    settle();
  } catch (...) {
    if (request_.team) request_.team->fail(std::current_exception());
    throw;
  }
}

TrainingJob::~TrainingJob() = default;

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
    given.keep_best = false;
    given.early_stop = 0;
    check(given);
    const ProblemRequest::Processes processes = settings_.problem.processes;
    if (leads()) {
      folder_.emplace(request_.dry_run ? RunFolder::look(request_.run)
                                       : RunFolder::open(request_.run, request_.take_over));
      point = resume();
      adopt_left_out(point ? point->record.version : 0);
    }
    if (request_.team) point = share_resume(std::move(point));
    settings_.problem.processes = processes;
  }
  refuse_spike_guard();  // also that of a run which goes on
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
  const auto on_host = request_.team ? request_.team->on_host() : RankTransport::OnHost{};
  device_ = choose_device({settings_.device, settings_.gpu, throttle.any(), asked.machine_backend(),
                           began_on_gpu, on_host.number, on_host.count});
  if (request_.team) connect_ranks();
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
  const bool machine_known = request_.retuned || !asked.machine.empty();
  if (request_.retuned)
    problem.machine = request_.retuned->machine;
  else if (machine_known)
    problem.machine = throttled_machine(problem.machine, throttle);
  DriveFolders drives = ssd_directories(settings_.ssd);
  if (machine_known) take_drive_sets(problem.machine, drives, listener_.note);
  for (std::size_t set = drives.set_count(); set < throttle.drives.size(); ++set) {
    if (!throttle.drives[set].any()) continue;
    const char* const name = drive_set_name(static_cast<int>(set));
    throw InputError(
        Setting{"throttle"} + fmt::format(" {0}: no directories on {0} are named", name),
        "name them: " + Setting{name, "DIR[,DIR]"});
  }
  const bool drives_given = !drives.all.empty();
  if (!drives_given)
    drives.all.push_back(nearest_existing(request_.run.empty() ? "." : request_.run));
  // What can be refused at once is, before anything takes long.
  if (!request_.resume && leads()) RunFolder::require_new(request_.run);
  open_data(problem);
  if (settings_.samples.any()) open_samples(problem);
  set_memory_beside(problem, settings_.frozen_weights == "checkpoint" && weights_.values &&
                                 FrozenFiles::why_not(problem, *weights_.values).empty());
  if (by_data) {
    settle_learning_rate(settings_, given_);
    check(settings_);
  }
  TrainHardware hardware = hardware_of(device_, asked, free_gpu_bytes());
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
  if (leads())
    plan_ = plan_training(problem, asked.chooses_micro_batch(), settings_.policy, !machine_known,
                          drives, hardware, {durability, settings_.steps},
                          request_.retuned ? request_.retuned->policy : "");
  if (request_.team) share_plan(problem);
  if (request_.retune && !plan_.predicted_step_seconds)
    throw InputError(
        Setting{"retune"} +
            " holds the first steps against a prediction, and there is "
            "none without a machine that is known",
        "add " + Setting{"machine", "machine.toml"} + ", or use " + Setting{"policy", "auto"});
  enter(Stage::preparing);
  const bool has_folder = leads() && !request_.dry_run;
  if (has_folder) take_folder();
  if (!drives_given && has_folder) drives.all = {folder_->make_ssd_folder()};
  if (folder_) run_ = folder_->identity();
  if (request_.team) drives.all = share_drives(std::move(drives.all));
  fill_options(std::move(point), std::move(drives));
  if (has_folder && !request_.resume) folder_->save();
}

// The run's folder, where it is not there yet, and in run.json what is known of the run.
void TrainingJob::take_folder() {
  if (!folder_) folder_.emplace(RunFolder::create(request_.run, plan_.problem.model.name));
  folder_->saved().options = to_save(given_, kept(request_.settings), folder_->saved().options);
  if (!parse_durability(settings_.durability).on() && !folder_->saved().store)
    folder_->saved().not_resumable = "it was made without durability: nothing was committed";
}

void TrainingJob::fill_options(std::optional<ResumePoint> point, DriveFolders drives) {
  options_.problem = plan_.problem;
  options_.policy = plan_.policy;
  options_.steps = settings_.steps;
  options_.seed = settings_.seed;
  options_.ssd = std::move(drives.all);
  options_.ssd_sets = std::move(drives.sets);
  options_.make_ring = request_.io.make_ring;
  options_.optimizer = settings_.optimizer;
  options_.threads = settings_.threads;
  if (device_.gpu) {
    options_.place =
        place_beside(numa_node_of_pci(device_.gpu->pci_bus), numa_nodes(), settings_.threads);
    CudaOptions cuda =
        cuda_options(settings_, given_, request_.retune_matmul, plan_.problem, *device_.gpu, point);
    if (listener_.doing) cuda.say = listener_.doing;
    train_on(cuda, options_);
    options_.retunes_products = request_.retune_matmul;
  }
  options_.throttle = parse_throttle(settings_.throttle);
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
  if (samples_) options_.samples = {true, settings_.samples.every};
  options_.left_out = settings_.left_out;
  options_.weights = weights_.values;
  options_.adapter = weights_.adapter;
  options_.durability = parse_durability(settings_.durability);
  if (settings_.keep > 0) options_.also_commit_every = settings_.keep_every;
  options_.resume = std::move(point);
  options_.overwrite = request_.overwrite;
  options_.keep_store = true;  // see finish()
  options_.team = request_.team;
  options_.gpus = gpus_.get();
  if (request_.team && !request_.dry_run) options_.run = run_;
  if (request_.team) options_.may_be_done = true;  // as rank 0 finds
  auto origin = folder_ ? FrozenOrigin::load(folder_->directory()) : std::nullopt;
  // Ranks without the folder need not read all of the frozen weights to know them.
  if (request_.team)
    origin = FrozenOrigin::parse(request_.team->from_first(origin ? origin->text() : ""));
  if (origin) options_.seal = origin->seal;
  if (!folder_) return;
  options_.run = folder_->identity();
  options_.may_be_done = !folder_->saved().complete;  // killed between its last commit and its end
}

// What writes samples, and the memory that is set aside for it.
void TrainingJob::open_samples(Problem& problem) {
  fs::path folder;
  std::error_code error;
  if (fs::is_directory(settings_.problem.model, error)) folder = settings_.problem.model;
  const auto kept_or = [&](const char* key, const std::string& now) {
    const auto found = given_.find(key);
    return found != given_.end() ? found->second.back() : now;
  };
  samples_.emplace(settings_.samples, problem.model, folder,
                   kept_or("tokenizer", settings_.data.tokenizer),
                   kept_or("chat_template", settings_.data.chat_template), settings_.threads);
  problem.sample_memory = samples_->memory();
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
  require_hash(data_, settings_.data.data_hash);
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
  if (!settings_.no_export && leads())
    require_new_file(folder_->place(weights_file()), &only_an_export());
  if (listener_.doing) listener_.doing("setting up memory and store");
  if (options_.durability.on() && leads()) {
    export_lock_.emplace(folder_->directory());
    options_.may_overwrite = [this](std::int64_t committed) { return may_overwrite(committed); };
  }
  if (weights_.values) weights_.values->tell(listener_.reading);
  training_ = std::make_unique<Training>(options_);
  if (weights_.values && training_->first_step() == 0)
    initial_ = InitialState{weights_.values->folder(), weights_.values->data_hash(),
                            weights_.values->bytes(), weights_.values->describe()};
  if (initial_ && !settings_.weights_hash.empty() && settings_.weights_hash != hash_of_weights())
    throw InputError(Setting{"weights_hash", settings_.weights_hash} +
                         Message(fmt::format(": the weights in {} are others than then, their hash "
                                             "is {}",
                                             initial_->folder.string(), hash_of_weights())),
                     "put back what they were; or leave " + Setting{"weights_hash"} +
                         " out, for a training that is not the same again");
  options_.weights.reset();  // with its files and memory
  options_.adapter.reset();
  weights_.values.reset();
  weights_.adapter.reset();
  if (!leads()) return;
  say_whether_sums_change();
  require_room(plan_.problem.model, folder_->path(), settings_);
  const std::int64_t first = training_->first_step();
  trace_place_ = !request_.trace.empty() ? FilePlace(request_.trace)
                 : first == 0            ? folder_->place(RunFolder::trace)
                              : folder_->place(fmt::format("trace-from-step-{}.json.gz", first));
  require_new_file(*trace_place_, &only_a_trace());  // not only after all steps
}

std::string TrainingJob::hash_of_weights() const { return fmt::format("{:016x}", initial_->hash); }

// Where the state is now is written down once it is there to stay, of several ranks with all of
// them; what it was before is removed once that is written down. Whoever is lost in between, one of
// both is whole.
void TrainingJob::begin() {
  const bool durable = training_->commit_interval() > 0;
  if (durable && request_.team) {
    training_->hold_store();
    request_.team->barrier();
  }
  if (leads()) begin_folder();
  if (!durable) return;
  if (leads()) folder_->remember_store(training_->store_location());
  if (request_.team) request_.team->barrier();
  remove_previous_stores();
  if (settings_.keep == 0 || !leads()) return;
  kept_.emplace(folder_->path(), KeepRule{settings_.keep, settings_.keep_every},
                request_.io.make_ring);
  kept_->committed(training_->first_step());  // the run before may have been killed over it
}

// Each its own, and the first what nobody has any more.
void TrainingJob::remove_previous_stores() {
  std::vector<fs::path> directories = training_->store_location().directories;
  if (const auto& before = training_->previous_store())
    directories.insert(directories.end(), before->directories.begin(), before->directories.end());
  training_->remove_previous_store();
  if (request_.team) request_.team->barrier();
  if (leads())
    remove_left_over_stores(
        directories, {run_.id},
        StoresInUse{training_->store_location(), request_.team ? request_.team->size() : 1,
                    training_->first_step()});
}

void TrainingJob::begin_folder() {
  const auto write = [&](const char* name, const std::string& text) {
    FileSink file(folder_->place(name), FileSink::Compression::none);
    file.write(text);
    file.commit();
  };
  // Without a machine file there are limits but no rates: nothing that could be read as a machine.
  if (!settings_.problem.machine.empty() || rates_->known || request_.retuned)
    write(RunFolder::machine, machine_to_toml(plan_.problem.machine));
  write(RunFolder::model, model_to_toml(plan_.problem.model));
  if (initial_) {
    given_["weights_hash"] = {hash_of_weights()};
    folder_->saved().options["weights_hash"] = given_["weights_hash"];
  }
  write(
      RunFolder::config,
      run_config_text({given_, settings_, plan_.problem, training_->schedule().policy(),
                       data_.hash(), folder_->directory().status(RunFolder::machine).has_value()}));
  folder_->keep();
  take_best();
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
  if (training_->first_step() == 0 && !has_config) write_model_files_to(folder_->directory());
  if (const auto& origin = training_->frozen_origin()) origin->save(folder_->directory());
}

void TrainingJob::finish() {
  const bool durable = training_->commit_interval() > 0;
  if (request_.team) gather_traces();
  if (!leads()) {
    // Rank 0 writes down first that the store goes.
    request_.team->barrier();
    if (stopped() || (durable && !request_.remove_store)) return;
    if (!durable) remove_previous_stores();
    return training_->discard_store();
  }
  write_trace(trace_, *trace_place_);
  SavedRun& saved = folder_->saved();
  saved.complete = !stopped() && !spike_;
  if (spike_) saved.options["left_out"] = left_out_texts();
  const bool keeps = stopped() || (durable && !request_.remove_store);
  folder_->save();
  if (keeps) {
    if (request_.team) request_.team->barrier();
    return;
  }
  // Written down before the store goes, so that `store remove` can end what is broken off.
  saved.not_resumable =
      durable ? "its store was removed on purpose" : "its last steps were made without durability";
  folder_->save();
  if (request_.team) request_.team->barrier();
  if (!durable) remove_previous_stores();  // kept until now
  training_->discard_store();
}

}  // namespace spillway
