#!/usr/bin/env python3
"""Models that transformers has made go through Spillway and back: check.py --program SPILLWAY

Each is a tiny one with random weights, saved by transformers. Spillway trains on it for a step at a learning rate of 0; its loss
must be that of transformers on the same bytes, and what transformers loads from the run's folder and from `spillway export` must
give the same logits, to the bit. Exit code 77: skipped, with the reason: torch or transformers is missing. SPILLWAY_TRANSFORMERS
names another python3 that has them.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

SEQUENCE = 48


def models(transformers):
    """Name, configuration, and what save_pretrained is told."""
    family = dict(vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=128)
    llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
    return [
        ("gpt2", transformers.GPT2Config(vocab_size=300, n_embd=64, n_layer=3, n_head=4, n_positions=64), {}),
        ("gpt2-in-shards", transformers.GPT2Config(vocab_size=300, n_embd=64, n_layer=3, n_head=4, n_positions=64),
         {"max_shard_size": "200KB"}),
        ("llama", transformers.LlamaConfig(**family, tie_word_embeddings=False), {}),
        ("llama3-in-shards", transformers.LlamaConfig(**family, rope_theta=500000.0, rope_scaling=llama3, tie_word_embeddings=True),
         {"max_shard_size": "100KB"}),
        ("llama-linear", transformers.LlamaConfig(**family, rope_scaling=dict(rope_type="linear", factor=2.0), head_dim=32), {}),
        ("mistral", transformers.MistralConfig(**family, sliding_window=16), {}),
        ("qwen2", transformers.Qwen2Config(**family, tie_word_embeddings=True), {}),
        ("qwen3", transformers.Qwen3Config(**family, head_dim=24, tie_word_embeddings=False), {}),
    ]


def spillway(program, *arguments):
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=300)


class Checks:
    def __init__(self, program, torch, transformers, root):
        self.program, self.torch, self.transformers, self.root = program, torch, transformers, root
        self.text = bytes((i * i * 7 + i) % 251 for i in range(SEQUENCE + 1))
        (root / "data.bin").write_bytes(self.text)
        self.failed = []

    def load(self, folder):
        model = self.transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=self.torch.float32)
        return model.eval()

    def logits(self, model):
        with self.torch.no_grad():
            return model(self.torch.tensor([list(self.text[:-1])])).logits[0]

    def expect(self, holds, what):
        if not holds:
            self.failed.append(what)
            print("FAILED: " + what)

    def check(self, name, config, how, dtype):
        self.torch.manual_seed(1)
        model = self.transformers.AutoModelForCausalLM.from_config(config).to(getattr(self.torch, dtype))
        # Norms and biases begin as ones and zeros, which would hide a mistake.
        with self.torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(self.torch.randn_like(parameter) * 0.05)
        folder = self.root / f"{name}-{dtype}"
        model.save_pretrained(folder, **how)
        reference = self.logits(self.load(folder))
        target = self.torch.tensor(list(self.text[1:]))
        loss = self.torch.nn.functional.cross_entropy(reference, target).item()
        run = self.root / f"run-{name}-{dtype}"
        done = spillway(self.program, "train", "--model", folder, "--data", self.root / "data.bin", "--binary-data", "--run", run,
                        "--steps", 1, "--batch", 1, "--micro-batch", 1, "--sequence", SEQUENCE, "--policy", "resident",
                        "--learning-rate", 0, "--weight-decay", 0, "--gpu-memory", "64MB", "--host-memory", "64MB",
                        "--device", "cpu", "--json")
        self.expect(done.returncode == 0, f"{name}: train: {done.stderr}")
        if done.returncode != 0:
            return
        steps = [json.loads(line) for line in done.stdout.splitlines() if '"step"' in line]
        found = next(event["loss"] for event in steps if event["event"] == "step")
        self.expect(abs(found - loss) < 2e-5 * max(1.0, loss), f"{name}: loss {found}, transformers has {loss}")
        exported = self.root / f"out-{name}-{dtype}"
        done = spillway(self.program, "export", run, "--out", exported, "--max-shard", "150kB")
        self.expect(done.returncode == 0, f"{name}: export: {done.stderr}")
        for place in (run, exported):
            again = self.load(place)
            self.expect(type(again) is type(model), f"{name}: {place} is a {type(again).__name__}")
            self.expect(self.torch.equal(self.logits(again), reference), f"{name}: other logits from {place}")
            told = self.transformers.AutoModelForCausalLM.from_pretrained(place).dtype
            self.expect(told == self.torch.float32, f"{name}: {place} is loaded as {told}")
        print(f"{name} {dtype}: loss {found:.6f}, transformers {loss:.6f}; the same logits")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    options = parser.parse_args()
    other = os.environ.get("SPILLWAY_TRANSFORMERS")
    if other and not os.environ.get("SPILLWAY_TRANSFORMERS_FOUND"):
        os.environ["SPILLWAY_TRANSFORMERS_FOUND"] = "1"
        os.execv(other, [other, __file__, "--program", options.program])
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import torch
        import transformers
        transformers.Qwen3Config
    except (ImportError, AttributeError) as error:
        print(f"skipped: {error}; pip install torch transformers, or SPILLWAY_TRANSFORMERS=PYTHON")
        return 77
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        checks = Checks(options.program, torch, transformers, pathlib.Path(root))
        for dtype in ("float32", "bfloat16"):
            for model in models(transformers):
                checks.check(*model, dtype)
    print(f"{len(checks.failed)} failures")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
