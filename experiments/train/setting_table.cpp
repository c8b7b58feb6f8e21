// The table of all settings.
#include "experiments/train/setting_rows.hpp"

namespace spillway {

namespace {

using setting_rows::S;
using setting_rows::Table;
using setting_rows::Texts;

// "100" steps, or "3%" of all.
void read_warmup(TrainSettings& settings, const Texts& texts) {
  const std::string& text = texts.back();
  settings.optimizer.warmup_steps = 0;
  settings.warmup_share = 0;
  if (!text.ends_with('%')) {
    settings.optimizer.warmup_steps = setting_rows::count_of<std::int64_t>("warmup", texts);
    return;
  }
  settings.warmup_share = setting_rows::real_of("warmup", {text.substr(0, text.size() - 1)}) / 100;
  if (!(settings.warmup_share >= 0 && settings.warmup_share < 1))
    throw InputError(Setting{"warmup", text} + ": not at least 0 and below 100 %",
                     "e.g. " + Setting{"warmup", "3%"});
}

constexpr auto model_of = [](S & s) -> auto& { return s.problem.model; };

void read_left_out(TrainSettings& settings, const Texts& texts) {
  settings.left_out.clear();
  for (const std::string& text : texts)
    settings.left_out.push_back(setting_rows::count_of<std::int64_t>("left_out", {text}));
  std::vector<std::int64_t>& all = settings.left_out;
  std::sort(all.begin(), all.end());
  if (all.front() < 0 || std::adjacent_find(all.begin(), all.end()) != all.end())
    throw InputError(Setting{"left_out"} + ": not numbers of at least 0, each once");
}

void add_model(Table& t) {
  t.group(SettingGroup::model);
  t.add(
      "model", [](S & s) -> auto& { return s.problem.model; },
      "built-in model (`spillway models`), a TOML file, or a model of Hugging Face: its folder, "
      "or its name where it has been downloaded");
  t.add(
      "random_weights", [](S & s) -> auto& { return s.random_weights; },
      "with a model from a folder: begin with values drawn from the seed, not with the folder's "
      "weights");
  t.add(
      "weights_hash", [](S & s) -> auto& { return s.weights_hash; },
      "refuse weights of the model's folder other than those of this hash, which the config.toml "
      "of "
      "a run has");
  t.add(
      "lora", [](S & s) -> auto& { return s.problem.lora; },
      "train low-rank adapters beside the model's matrices, which are frozen: "
      "rank=16[,alpha=32][,dropout=0.05][,targets=q_proj+v_proj]; default: alpha twice the rank, "
      "all matrices of the layers");
  t.add(
      "adapter", [](S & s) -> auto& { return s.problem.adapter; },
      "begin with the adapters of this folder of PEFT's, which also says their rank, alpha, "
      "dropout and targets");
  t.add(
      "train_layers", [](S & s) -> auto& { return s.problem.train_layers; },
      "train the last so many layers; those before and the embedding are frozen");
  t.choice(
      "frozen_weights", [](S & s) -> auto& { return s.frozen_weights; }, {"checkpoint", "store"},
      "where weights that are frozen and rest on the SSD are read from: checkpoint, the files in "
      "the model's folder, in place | store, copied to " +
          Setting{"ssd"} + " at the start");
}

void add_data(Table& t) {
  t.group(SettingGroup::data);
  t.add(
      "data", [](S & s) -> auto& { return s.data.data; },
      "text, JSONL, token files, or folders of them, PATH=WEIGHT to see each document WEIGHT times "
      "an epoch, a list in a .toml file; default: Spillway's own text");
  t.add(
       "validation", [](S & s) -> auto& { return s.data.validation; },
       "held out of training: 1% of the documents (of a stream, its end), a number of documents, "
       "or "
       "files of their own")
      .form = SettingForm::mixed;
  t.add(
      "tokenizer", [](S & s) -> auto& { return s.data.tokenizer; },
      "tokenizer.json, vocab.json, tokenizer.model, a folder with one of them, or bytes; auto: "
      "that of the model's folder, else bytes");
  t.choice(
      "data_format", [](S & s) -> auto& { return s.data.data_format; },
      {"auto", "text", "jsonl", "json", "uint16", "uint32"},
      "what the files are: text | jsonl | json | uint16, uint32: bare tokens; auto: each file by "
      "its beginning");
  t.add(
      "chat_template", [](S & s) -> auto& { return s.data.chat_template; },
      "how chats become text: the name of a template, a file, or a model's folder; auto: that of "
      "the model's folder");
  t.add(
      "template_date", [](S & s) -> auto& { return s.data.template_date; },
      "YYYY-MM-DD, for templates that write the date of the day; default: always the same date");
  t.choice(
      "train_on", [](S & s) -> auto& { return s.data.train_on; }, {"assistant", "all"},
      "assistant: of chats and completions the answers only | all");
  t.choice(
      "pack", [](S & s) -> auto& { return s.data.pack; }, {"auto", "on", "off", "stream"},
      "on: several documents a sequence, with borders | off: one, with padding | stream: all "
      "tokens as one, without borders; auto: on for records, stream for running text");
  t.choice(
      "long_documents", [](S & s) -> auto& { return s.data.long_documents; },
      {"auto", "split", "cut", "drop"},
      "documents that are longer than a sequence: split into pieces | cut | drop; auto: cut where "
      "not all of them is trained on, else split");
  t.add(
      "parse_special", [](S & s) -> auto& { return s.data.parse_special; },
      "names of special tokens in the data are these tokens, not letters");
  t.add(
      "skip_malformed", [](S & s) -> auto& { return s.data.skip_malformed; },
      "leave out records that are malformed, and say how many, instead of refusing");
  t.add(
      "binary_data", [](S & s) -> auto& { return s.data.binary_data; },
      "take archives, pictures and other files of " + Setting{"data"} +
          " that are no text, as bytes");
  t.add(
      "data_hash", [](S & s) -> auto& { return s.data.data_hash; },
      "refuse data, split or tokens other than those of this hash, which the config.toml of a run "
      "has");
}

void add_length(Table& t) {
  t.group(SettingGroup::length);
  t.add(
      "steps", [](S & s) -> auto& { return s.steps; }, "optimizer steps");
  t.range(
       "epochs", [](S & s) -> auto& { return s.epochs; }, 1e-300, 1e6,
       "above 0 and up to a million",
       "instead of " + Setting{"steps"} + ": passes over the data, e.g. 3")
      .usual.clear();
  t.range(
       "tokens", [](S & s) -> auto& { return s.tokens; }, 1, 1e19, "above 0",
       "instead of " + Setting{"steps"} + ": tokens to train on, padding included")
      .usual.clear();
  t.add(
      "evaluate_every", [](S & s) -> auto& { return s.evaluate_every; },
      "with " + Setting{"validation"} +
          ": steps from one evaluation to the next; 0: before the first step and after the last "
          "only");
  t.add(
      "evaluate_batches", [](S & s) -> auto& { return s.evaluate_batches; },
      "batches of an evaluation at most; 0: all that is held out");
  t.add(
      "early_stop", [](S & s) -> auto& { return s.early_stop; },
      "with " + Setting{"validation"} +
          ": end once so many evaluations in a row were no better than the best before them; 0: "
          "never");
  t.add(
      "early_stop_margin", [](S & s) -> auto& { return s.early_stop_margin; },
      "by how much a loss must be lower to count as better");
  t.add(
      "spike_guard", [](S & s) -> auto& { return s.spike_guard; },
      "leave a batch out, and go on from the last commit, where its loss is so many standard "
      "deviations above the average of the last 50 steps, e.g. 6; 0: never");
  TrainSetting& left_out =
      t.add("left_out",
            "numbers of batches, counted from 0, that are not trained on: what follows takes their "
            "place");
  left_out.form = SettingForm::list;
  left_out.read = read_left_out;
  t.add(
      "seed", [](S & s) -> auto& { return s.seed; }, "seed of initial weights and data order");
}

void add_optimizer(Table& t) {
  t.group(SettingGroup::optimizer);
  t.workload("batch");
  t.workload("sequence");
  t.add(
      "learning_rate", [](S & s) -> auto& { return s.optimizer.learning_rate; },
      "peak learning rate");
  TrainSetting& warmup =
      t.add("warmup", "linear warm-up: steps, or a share of all, e.g. 3%; default: none");
  warmup.form = SettingForm::mixed;
  warmup.read = read_warmup;
  TrainSetting& shape =
      t.add("learning_rate_schedule",
            "after warm-up: constant | cosine | linear | wsd (constant, then a straight line "
            "down); default: constant, with " +
                Setting{"decay_steps"} + " cosine");
  shape.read = [](S& s, const Texts& texts) {
    s.optimizer.shape = parse_learning_rate_shape(texts.back());
  };
  t.add(
       "decay_steps", [](S & s) -> auto& { return s.optimizer.decay_steps; },
       "the step from which on the learning rate is the final one; default: the last")
      .usual.clear();
  t.add(
      "final_learning_rate", [](S & s) -> auto& { return s.optimizer.final_learning_rate; },
      "share of the peak that is left at that step");
  t.add(
      "decay_share", [](S & s) -> auto& { return s.optimizer.decay_share; },
      "wsd: share of the steps after warm-up in which the learning rate falls");
  t.add(
      "weight_decay", [](S & s) -> auto& { return s.optimizer.weight_decay; },
      "AdamW weight decay");
  t.add(
      "beta1", [](S & s) -> auto& { return s.optimizer.beta1; }, "AdamW beta1");
  t.add(
      "beta2", [](S & s) -> auto& { return s.optimizer.beta2; }, "AdamW beta2");
  t.workload("gradient_clip");
  t.workload("on_nonfinite");
  t.workload("moments");
  t.workload("precision");
  t.workload("gradient_bits").form = SettingForm::mixed;
  t.workload("pipeline");
  t.workload("gradient_groups");
  t.workload("gradient_meshes");
}

void add_machine(Table& t) {
  t.add(
      "machine", [](S & s) -> auto& { return s.problem.machine; },
      "built-in machine (`spillway machines`) or a TOML file");
  t.add(
      "set", [](S & s) -> auto& { return s.problem.overrides; },
      "override keys of the machine or the model, e.g. ssd.count=6 model.layers=48");
  t.add(
      "gpu_memory", [](S & s) -> auto& { return s.problem.gpu_memory; },
      "limit of GPU memory, workspaces included, e.g. 24GB");
  t.add(
      "host_memory", [](S & s) -> auto& { return s.problem.host_memory; },
      "limit of the host tier, e.g. 256MB");
  t.add(
       "ssd", [](S & s) -> auto& { return s.ssd[0]; },
       "directories of the ssd tier, separated by commas; default: RUN/ssd")
      .form = SettingForm::parts;
  t.add(
       "ssd2", [](S & s) -> auto& { return s.ssd[1]; },
       "directories on drives that are faster or slower than those of " + Setting{"ssd"} +
           ": a set of its own, with a part that suits its speed")
      .form = SettingForm::parts;
  t.add(
       "ssd3", [](S & s) -> auto& { return s.ssd[2]; }, "the same, of a third set of drives")
      .form = SettingForm::parts;
  t.add(
       "ssd4", [](S & s) -> auto& { return s.ssd[3]; }, "the same, of a fourth set of drives")
      .form = SettingForm::parts;
  t.add(
      "device", [](S & s) -> auto& { return s.device; },
      "cpu | cuda | auto: a GPU where there is one, unless " + Setting{"machine"} +
          " describes a CPU or " + Setting{"throttle"} + " is given");
  t.add(
      "gpu", [](S & s) -> auto& { return s.gpu; },
      "number of the GPU, as nvidia-smi lists them; default: the first that can be used");
  t.range(
      "threads", [](S & s) -> auto& { return s.threads; }, 1, 1024, "from 1 to 1024",
      "threads for matrix products, and as many for the optimizer");
  t.add(
      "throttle", [](S & s) -> auto& { return s.throttle; },
      "make the CPU backend as slow as another machine, e.g. h2d=2GB/s,d2h=2GB/s,ssd.read=800MB/s; "
      "also ssd.write, ssd.total, gpu=20GFLOPS, gpu.optimizer, optimizer=100Mparam/s");
}

void add_plan(Table& t) {
  t.group(SettingGroup::plan);
  t.add(
      "policy", [](S & s) -> auto& { return s.policy; },
      "policy and options, or auto: the one predicted fastest (as `spillway compare` shows); "
      "without " +
          Setting{"machine"} + " this machine is measured for some seconds, once");
  t.workload("micro_batch");
  t.workload("sequences_at_once");
  add_machine(t);
  t.choice(
      "tune_matmul", [](S & s) -> auto& { return s.tune_matmul; }, {"on", "off"},
      "on: before training, try several algorithms for each matrix product of the GPU and take the "
      "fastest of those with equal bits; off: take cuBLASLt's first");
  t.choice(
      "gelu_backward", [](S & s) -> auto& { return s.gelu_backward; },
      {"auto", "kernel", "dgelu", "dgelu-bgrad"},
      "what computes GELU's backward on the GPU: kernel | dgelu | dgelu-bgrad (cuBLASLt's "
      "epilogues); auto: what the machine file says, else kernel");
  t.range(
       "rank_timeout", [](S & s) -> auto& { return s.start.rank_timeout; }, 1, 86400,
       "a number of seconds from 1 to 86400",
       "seconds after which a rank of `mpirun -n RANKS spillway train` counts as lost that nothing "
       "is heard of")
      .kept = false;
  t.choice(
       "io", [](S & s) -> auto& { return s.start.io; }, {"auto", "threads", "uring"},
       "auto | threads | uring: read and write the drives with io_uring, or with threads and pread "
       "and pwrite; auto: io_uring where it is to be had. Changes time only")
      .kept = false;
  t.add(
       "retune", [](S & s) -> auto& { return s.start.retune; },
       "where the first steps do not take the time that was predicted: correct the machine's rates "
       "by them, choose the policy anew, and go on with it")
      .kept = false;
}

void add_output(Table& t) {
  t.group(SettingGroup::output);
  t.add(
       "run", [](S & s) -> auto& { return s.start.run; },
       "folder for metrics, trace and weights; default: runs/MODEL-TIME")
      .kept = false;
  t.add(
      "durability", [](S & s) -> auto& { return s.durability; },
      "step: every step can be resumed; interval=N: every N steps; off: none, and half the space "
      "on the SSD; default: step where all optimizer state rests on the SSD, else by the time and "
      "the wear that commits cost (docs/store.md)");
  t.add(
      "keep", [](S & s) -> auto& { return s.keep; },
      "checkpoints to keep: the weights of the last so many of every " + Setting{"keep_every"} +
          "-th step, in RUN/checkpoints/step-NUMBER, each a folder that transformers loads; 0: "
          "none");
  t.add(
      "keep_every", [](S & s) -> auto& { return s.keep_every; },
      "steps from one kept checkpoint to the next");
  t.add(
      "keep_best", [](S & s) -> auto& { return s.keep_best; },
      "with " + Setting{"validation"} +
          ": the weights of the best evaluation, in RUN/best, a folder that transformers loads");
  t.add(
      "no_export", [](S & s) -> auto& { return s.no_export; },
      "do not write model.safetensors at the end");
  t.add(
       "remove_store", [](S & s) -> auto& { return s.start.remove_store; },
       "remove the optimizer state once all steps are done: the weights stay, but the run cannot "
       "be trained further")
      .kept = false;
  t.add(
       "trace", [](S & s) -> auto& { return s.start.trace; },
       "where to write the trace; default: RUN/trace.json.gz")
      .kept = false;
}

void add_samples(Table& t) {
  t.group(SettingGroup::samples);
  t.add(
      "sample_prompt", [](S & s) -> auto& { return s.samples.prompts; },
      "texts that the model goes on from while it trains");
  t.add(
      "sample_chat", [](S & s) -> auto& { return s.samples.chats; },
      "messages that it answers by its chat template");
  t.add(
      "sample_every", [](S & s) -> auto& { return s.samples.every; },
      "steps from one sample to the next; 0: before the first step and after the last only");
  t.add(
      "sample_tokens", [](S & s) -> auto& { return s.samples.tokens; }, "most tokens of a sample");
  t.add(
      "sample_temperature", [](S & s) -> auto& { return s.samples.sampling.temperature; },
      "of the softmax; 0: always the likeliest token");
  t.add(
      "sample_top_k", [](S & s) -> auto& { return s.samples.sampling.top_k; },
      "only the k likeliest tokens; 0: all");
  t.add(
      "sample_top_p", [](S & s) -> auto& { return s.samples.sampling.top_p; },
      "only the likeliest tokens that have so much of the probability together");
  t.add(
      "sample_memory", [](S & s) -> auto& { return s.samples.memory; },
      "of " + Setting{"host_memory"} +
          ", for writing samples; what does not fit is read again for every token; default: what "
          "it has a use for, up to 1.07 GB");
  t.add(
      "sample_seed", [](S & s) -> auto& { return s.samples.sampling.seed; },
      "of the choice of tokens");
}

}  // namespace

const char* title_of(SettingGroup group) {
  switch (group) {
    case SettingGroup::model:
      return "What is trained";
    case SettingGroup::data:
      return "Data";
    case SettingGroup::length:
      return "Length and evaluation";
    case SettingGroup::optimizer:
      return "Batch and optimizer";
    case SettingGroup::plan:
      return "Machine and plan";
    case SettingGroup::output:
      return "Run folder and checkpoints";
    case SettingGroup::samples:
      return "Samples while it trains";
  }
  SPILLWAY_ASSERT(false);
}

const std::vector<TrainSetting>& train_settings() {
  static const std::vector<TrainSetting> settings = [] {
    Table table;
    add_model(table);
    add_data(table);
    add_length(table);
    add_optimizer(table);
    add_plan(table);
    add_output(table);
    add_samples(table);
    return table.all;
  }();
  return settings;
}

}  // namespace spillway
