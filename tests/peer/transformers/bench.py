"""What the checks against transformers share: a text, a program that is run, models with random weights."""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile

SEQUENCE = 48
FAMILY = dict(vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=128)


class Bench:
    def __init__(self, program, torch, transformers, root):
        self.program, self.torch, self.transformers, self.root = program, torch, transformers, root
        self.text = bytes((i * i * 7 + i) % 251 for i in range(SEQUENCE + 1))
        (root / "data.bin").write_bytes(self.text)
        self.failed = []

    def gpt2_config(self):
        return self.transformers.GPT2Config(vocab_size=300, n_embd=64, n_layer=3, n_head=4, n_positions=64)

    def expect(self, holds, what):
        if not holds:
            self.failed.append(what)
            print("FAILED: " + what)

    def spillway(self, *arguments):
        """The events that it prints; none where it fails."""
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True, timeout=300)
        self.expect(done.returncode == 0, f"{' '.join(map(str, arguments))}: {done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def train(self, model, run, *arguments):
        """The losses of its steps."""
        events = self.spillway("train", "--model", model, "--data", self.root / "data.bin", "--binary-data", "--run", run, "--batch", 1,
                               "--micro-batch", 1, "--sequence", SEQUENCE, "--policy", "resident", "--gpu-memory", "64MB",
                               "--host-memory", "64MB", "--device", "cpu", "--json", *arguments)
        return [event["loss"] for event in events if event["event"] == "step"]

    def save_random(self, config, folder, dtype="float32", **how):
        """A model of transformers'. Norms and biases begin as ones and zeros, which would hide a mistake."""
        self.torch.manual_seed(1)
        model = self.transformers.AutoModelForCausalLM.from_config(config).to(getattr(self.torch, dtype))
        with self.torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(self.torch.randn_like(parameter) * 0.05)
        model.save_pretrained(folder, **how)
        return model

    def load(self, folder):
        return self.transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=self.torch.float32).eval()

    def logits(self, model):
        with self.torch.no_grad():
            return model(self.torch.tensor([list(self.text[:-1])])).logits[0]

    def loss(self, model):
        return self.torch.nn.functional.cross_entropy(self.logits(model), self.torch.tensor(list(self.text[1:]))).item()


def run(file, packages, check):
    """Runs check(program, root, modules), which returns what failed, with the modules of these packages. Returns the exit code: 77
    where one is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    options = parser.parse_args()
    other = os.environ.get("SPILLWAY_TRANSFORMERS")
    if other and not os.environ.get("SPILLWAY_TRANSFORMERS_FOUND"):
        os.environ["SPILLWAY_TRANSFORMERS_FOUND"] = "1"
        os.execv(other, [other, file, "--program", options.program])
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        modules = [__import__(name) for name in packages]
        import transformers
        transformers.Qwen3Config
    except (ImportError, AttributeError) as error:
        print(f"skipped: {error}; pip install {' '.join(packages)}, or SPILLWAY_TRANSFORMERS=PYTHON")
        return 77
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    modules[0].set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        failed = check(options.program, pathlib.Path(root), *modules)
    print(f"{len(failed)} failures")
    return 1 if failed else 0
