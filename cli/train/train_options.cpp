#include "cli/train/train_options.hpp"

#include "cli/options/data_options.hpp"
#include "cli/options/run_options.hpp"
#include "policies/framework/framework.hpp"

namespace spillway::cli {

namespace {

void add_sample_options(CLI::App& command, SampleSettings& samples) {
  command.add_option("--sample-prompt", samples.prompts,
                     "a text that the model goes on from while it trains; may be given again");
  command.add_option("--sample-chat", samples.chats,
                     "a message that it answers by its chat template; may be given again");
  command
      .add_option("--sample-every", samples.every,
                  "steps from one sample to the next; 0: before the first step and after the last "
                  "only")
      ->capture_default_str();
  command.add_option("--sample-tokens", samples.tokens, "most tokens of a sample")
      ->capture_default_str();
  command
      .add_option("--sample-temperature", samples.sampling.temperature,
                  "of the softmax; 0: always the likeliest token")
      ->capture_default_str();
  command
      .add_option("--sample-top-k", samples.sampling.top_k, "only the k likeliest tokens; 0: all")
      ->capture_default_str();
  command
      .add_option("--sample-top-p", samples.sampling.top_p,
                  "only the likeliest tokens that have so much of the probability together")
      ->capture_default_str();
  command.add_option("--sample-seed", samples.sampling.seed, "of the choice of tokens")
      ->capture_default_str();
}

}  // namespace

void add_train_options(CLI::App& parser, TrainOptions& options) {
  CLI::App* const command = &parser;
  options.problem.add_to(*command, false);
  command->get_option("--model")->required(false);  // --resume knows it
  // Not listed by --help: it is known here so that its refusal can say why.
  command->add_option_function<std::string>("--framework", require_own_framework)->group("");
  add_data_options(*command, options.settings.data, true);
  command->add_flag("--binary-data", options.settings.data.binary_data,
                    "take archives, pictures and other files of --data that are no text, as bytes");
  command
      ->add_option("--policy", options.settings.policy,
                   "policy and options, or auto: the one predicted fastest (as `spillway compare` "
                   "shows); without --machine this machine is measured for some seconds, once")
      ->capture_default_str();
  command->add_option("--steps", options.settings.steps, "optimizer steps")->capture_default_str();
  command
      ->add_option("--evaluate-every", options.settings.evaluate_every,
                   "with --validation: steps from one evaluation to the next; 0: before the first "
                   "step and after the last only")
      ->capture_default_str();
  command
      ->add_option("--evaluate-batches", options.settings.evaluate_batches,
                   "batches of an evaluation at most; 0: all that is held out")
      ->capture_default_str();
  command->add_option("--epochs", options.settings.epochs,
                      "instead of --steps: passes over the data, e.g. 3");
  command->add_option("--tokens", options.settings.tokens,
                      "instead of --steps: tokens to train on, padding included");
  command->add_option("--ssd", options.settings.ssd,
                      "directories of the ssd tier, separated by commas; default: RUN/ssd");
  options.io.add_to(*command);
  command->add_option("--run", options.run,
                      "folder for metrics, trace and weights; default: runs/MODEL-TIME");
  command->add_option("--seed", options.settings.seed, "seed of initial weights and data order")
      ->check(
          [](const std::string& text) {
            return std::string(text.rfind("-", 0) == 0 ? "not a whole number of at least 0" : "");
          },
          "")
      ->capture_default_str();
  command
      ->add_option("--device", options.settings.device,
                   "cpu | cuda | auto: a GPU where there is one, unless --machine describes a CPU "
                   "or --throttle is given")
      ->capture_default_str();
  command->add_option("--gpu", options.settings.gpu,
                      "number of the GPU, as nvidia-smi lists them; default: the first that can be "
                      "used");
  command
      ->add_option("--threads", options.settings.threads,
                   "threads for matrix products, and as many for the optimizer")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--tune-matmul", options.settings.tune_matmul,
                   "on: before training, try several algorithms for each matrix product of the GPU "
                   "and take the fastest of those with equal bits; off: take cuBLASLt's first")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  command->add_flag("--retune", options.retune,
                    "where the first steps do not take the time that was predicted: correct the "
                    "machine's rates by them, choose the policy anew, and go on with it");
  command->add_flag("--retune-matmul", options.retune_matmul,
                    "with --resume: choose these algorithms anew, for another GPU or other CUDA "
                    "libraries; from there on numbers agree to rounding only");
  command
      ->add_option("--gelu-backward", options.settings.gelu_backward,
                   "what computes GELU's backward on the GPU: kernel | dgelu | dgelu-bgrad "
                   "(cuBLASLt's epilogues); auto: what the machine file says, else kernel")
      ->check(CLI::IsMember({"auto", "kernel", "dgelu", "dgelu-bgrad"}))
      ->capture_default_str();
  command->add_option("--throttle", options.settings.throttle,
                      "make the CPU backend as slow as another machine, e.g. h2d=2GB/s,d2h=2GB/s,"
                      "ssd.read=800MB/s; also ssd.write, ssd.total, gpu=20GFLOPS, gpu.optimizer, "
                      "optimizer=100Mparam/s");
  command->add_option("--trace", options.trace,
                      "where to write the trace; default: RUN/trace.json.gz");
  command
      ->add_option("--learning-rate", options.settings.optimizer.learning_rate,
                   "peak learning rate")
      ->capture_default_str();
  command->add_option("--warmup", options.warmup,
                      "linear warm-up: steps, or a share of all, e.g. 3%; default: none");
  command->add_option("--learning-rate-schedule", options.learning_rate_schedule,
                      "after warm-up: constant | cosine | linear | wsd (constant, then a straight "
                      "line down); default: constant, with --decay-steps cosine");
  command->add_option(
      "--decay-steps", options.settings.optimizer.decay_steps,
      "the step from which on the learning rate is the final one; default: the last");
  command
      ->add_option("--final-learning-rate", options.settings.optimizer.final_learning_rate,
                   "share of the peak that is left at that step")
      ->capture_default_str();
  command
      ->add_option("--decay-share", options.settings.optimizer.decay_share,
                   "wsd: share of the steps after warm-up in which the learning rate falls")
      ->capture_default_str();
  command
      ->add_option("--weight-decay", options.settings.optimizer.weight_decay, "AdamW weight decay")
      ->capture_default_str();
  command->add_option("--beta1", options.settings.optimizer.beta1, "AdamW beta1")
      ->capture_default_str();
  command->add_option("--beta2", options.settings.optimizer.beta2, "AdamW beta2")
      ->capture_default_str();
  command->add_option("--durability", options.settings.durability, durability_help);
  command
      ->add_option("--keep", options.settings.keep,
                   "checkpoints to keep: the weights of the last so many of every --keep-every-th "
                   "step, in RUN/checkpoints/step-NUMBER, each a folder that transformers loads; "
                   "0: none")
      ->capture_default_str();
  command
      ->add_option("--keep-every", options.settings.keep_every,
                   "steps from one kept checkpoint to the next")
      ->capture_default_str();
  command->add_flag("--keep-best", options.settings.keep_best,
                    "with --validation: the weights of the best evaluation, in RUN/best, a folder "
                    "that transformers loads");
  command
      ->add_option("--early-stop", options.settings.early_stop,
                   "with --validation: end once so many evaluations in a row were no better than "
                   "the best before them; 0: never")
      ->capture_default_str();
  command
      ->add_option("--early-stop-margin", options.settings.early_stop_margin,
                   "by how much a loss must be lower to count as better")
      ->capture_default_str();
  command
      ->add_option("--spike-guard", options.settings.spike_guard,
                   "leave a batch out, and go on from the last commit, where its loss is so many "
                   "standard deviations above the average of the last 100 steps, e.g. 6; 0: never")
      ->capture_default_str();
  command->add_option("--left-out", options.settings.left_out,
                      "numbers of batches, counted from 0, that are not trained on: what follows "
                      "takes their place");
  add_sample_options(*command, options.settings.samples);
  command->add_flag(
      "--resume", options.resume,
      "go on with the run in --run from its last commit, bit for bit; policy, limits, "
      "--ssd and a larger --steps may be given anew");
  command->add_flag("--take-over", options.take_over,
                    "with --resume: also where another run's folder, or a run on another computer, "
                    "claims the same state and surely is not at work");
  command->add_flag("--remove-store", options.remove_store,
                    "remove the optimizer state once all steps are done: the weights stay, but the "
                    "run cannot be trained further");
  command->add_flag("--overwrite", options.overwrite,
                    "replace another unfinished training that lies in the --ssd directories");
  command->add_flag("--random-weights", options.settings.random_weights,
                    "with a model from a folder: begin with values drawn from the seed, not with "
                    "the folder's weights");
  command->add_option("--adapter", options.problem.adapter,
                      "begin with the adapters of this folder of PEFT's, which also says their "
                      "rank, alpha, dropout and targets");
  command
      ->add_option("--frozen-weights", options.settings.frozen_weights,
                   "where weights that are frozen and rest on the SSD are read from: checkpoint, "
                   "the files in the model's folder, in place | store, copied to --ssd at the "
                   "start")
      ->check(CLI::IsMember({"checkpoint", "store"}))
      ->capture_default_str();
  command->add_flag("--no-export", options.settings.no_export,
                    "do not write model.safetensors at the end");
  command->add_flag("--json", options.json, "print one JSON object a line");
  command->add_flag("--quiet", options.quiet, "print errors only");
}

}  // namespace spillway::cli
