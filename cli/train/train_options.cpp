#include "cli/train/train_options.hpp"

#include <fmt/format.h>

#include "base/errors.hpp"
#include "cli/text/output.hpp"
#include "cli/train/train_checks.hpp"
#include "traces/perfetto.hpp"

namespace spillway::cli {

void check(const TrainOptions& options) {
  if (options.steps < 1)
    throw InputError(fmt::format("--steps {}: not a positive number", options.steps),
                     "optimizer steps, e.g. --steps 100");
  if (options.retune_matmul && !options.resume)
    throw InputError("--retune-matmul goes with --resume: a new training tunes anyway",
                     "leave it out");
  check_optimizer(options.optimizer);
  check_output_path("--trace", options.trace, &only_a_trace());
}

void add_train_options(CLI::App& parser, TrainOptions& options) {
  CLI::App* const command = &parser;
  options.problem.add_to(*command, false);
  command->get_option("--model")->required(false);  // --resume knows it
  command->add_option("--data", options.data,
                      "text files or folders; default: Spillway's own text");
  command->add_flag("--binary-data", options.binary_data,
                    "take archives, pictures and other files of --data that are no text, as bytes");
  command
      ->add_option("--policy", options.policy,
                   "policy and options, or auto: the one predicted fastest (as `spillway compare` "
                   "shows); without --machine this machine is measured for some seconds, once")
      ->capture_default_str();
  command->add_option("--steps", options.steps, "optimizer steps")->capture_default_str();
  command->add_option("--ssd", options.ssd,
                      "directories of the ssd tier, separated by commas; default: RUN/ssd");
  options.io.add_to(*command);
  command->add_option("--run", options.run,
                      "folder for metrics, trace and weights; default: runs/MODEL-TIME");
  command->add_option("--seed", options.seed, "seed of initial weights and data order")
      ->check(
          [](const std::string& text) {
            return std::string(text.rfind("-", 0) == 0 ? "not a whole number of at least 0" : "");
          },
          "")
      ->capture_default_str();
  command
      ->add_option("--device", options.device,
                   "cpu | cuda | auto: a GPU where there is one, unless --machine describes a CPU "
                   "or --throttle is given")
      ->capture_default_str();
  command->add_option("--gpu", options.gpu,
                      "number of the GPU, as nvidia-smi lists them; default: the first that can be "
                      "used");
  command
      ->add_option("--threads", options.threads,
                   "threads for matrix products, and as many for the optimizer")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--tune-matmul", options.tune_matmul,
                   "on: before training, try several algorithms for each matrix product of the GPU "
                   "and take the fastest of those with equal bits; off: take cuBLASLt's first")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  command->add_flag("--retune-matmul", options.retune_matmul,
                    "with --resume: choose these algorithms anew, for another GPU or other CUDA "
                    "libraries; from there on numbers agree to rounding only");
  command
      ->add_option("--gelu-backward", options.gelu_backward,
                   "what computes GELU's backward on the GPU: kernel | dgelu | dgelu-bgrad "
                   "(cuBLASLt's epilogues); auto: what the machine file says, else kernel")
      ->check(CLI::IsMember({"auto", "kernel", "dgelu", "dgelu-bgrad"}))
      ->capture_default_str();
  command->add_option("--throttle", options.throttle,
                      "make the CPU backend as slow as another machine, e.g. h2d=2GB/s,d2h=2GB/s,"
                      "ssd.read=800MB/s; also ssd.write, ssd.total, gpu=20GFLOPS, gpu.optimizer, "
                      "optimizer=100Mparam/s");
  command->add_option("--trace", options.trace,
                      "where to write the trace; default: RUN/trace.json.gz");
  command->add_option("--learning-rate", options.optimizer.learning_rate, "peak learning rate")
      ->capture_default_str();
  command->add_option("--warmup", options.optimizer.warmup_steps, "steps of linear warm-up")
      ->capture_default_str();
  command
      ->add_option("--decay-steps", options.optimizer.decay_steps,
                   "cosine decay to a tenth at this step; 0: constant")
      ->capture_default_str();
  command->add_option("--weight-decay", options.optimizer.weight_decay, "AdamW weight decay")
      ->capture_default_str();
  command->add_option("--beta1", options.optimizer.beta1, "AdamW beta1")->capture_default_str();
  command->add_option("--beta2", options.optimizer.beta2, "AdamW beta2")->capture_default_str();
  command->add_option("--durability", options.durability, durability_help);
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
  command->add_flag("--no-export", options.no_export, "do not write model.safetensors at the end");
  command->add_flag("--json", options.json, "print one JSON object a line");
  command->add_flag("--quiet", options.quiet, "print errors only");
}

}  // namespace spillway::cli
