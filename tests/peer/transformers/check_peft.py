#!/usr/bin/env python3
"""Adapters go from Spillway to PEFT and back: check_peft.py --program SPILLWAY

Beside tiny models that transformers has made, Spillway trains adapters. PEFT loads them, from the run's folder and from `spillway
export`, and has their loss; what `export --merge` and `merge` write gives the same logits to rounding. Adapters that PEFT has made
are trained from: the loss of the first step is PEFT's. Exit code 77: skipped, with the reason: torch, transformers or peft is
missing. SPILLWAY_TRANSFORMERS names another python3 that has them.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

SEQUENCE = 48


class Checks:
    def __init__(self, program, torch, transformers, peft, root):
        self.program, self.torch, self.transformers, self.peft, self.root = program, torch, transformers, peft, root
        self.text = bytes((i * i * 7 + i) % 251 for i in range(SEQUENCE + 1))
        (root / "data.bin").write_bytes(self.text)
        self.failed = []

    def expect(self, holds, what):
        if not holds:
            self.failed.append(what)
            print("FAILED: " + what)

    def spillway(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True, timeout=300)
        self.expect(done.returncode == 0, f"{' '.join(map(str, arguments))}: {done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def train(self, model, run, *arguments):
        events = self.spillway("train", "--model", model, "--data", self.root / "data.bin", "--binary-data", "--run", run, "--batch", 1,
                               "--micro-batch", 1, "--sequence", SEQUENCE, "--policy", "resident", "--gpu-memory", "64MB",
                               "--host-memory", "64MB", "--device", "cpu", "--json", *arguments)
        return [event["loss"] for event in events if event["event"] == "step"]

    def base(self, folder):
        return self.transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=self.torch.float32).eval()

    def beside(self, folder, adapter):
        return self.peft.PeftModel.from_pretrained(self.base(folder), adapter).eval()

    def logits(self, model):
        with self.torch.no_grad():
            return model(self.torch.tensor([list(self.text[:-1])])).logits[0]

    def loss(self, model):
        return self.torch.nn.functional.cross_entropy(self.logits(model), self.torch.tensor(list(self.text[1:]))).item()

    def close(self, a, b):
        return (self.logits(a) - self.logits(b)).abs().max().item() < 2e-5

    def check(self, name, config):
        self.torch.manual_seed(1)
        model = self.transformers.AutoModelForCausalLM.from_config(config)
        with self.torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(self.torch.randn_like(parameter) * 0.05)
        folder = self.root / name
        model.save_pretrained(folder)
        # Trained here, loaded there.
        run = self.root / f"run-{name}"
        losses = self.train(folder, run, "--lora", "rank=4,alpha=8", "--steps", 6, "--learning-rate", 0.01)
        trained = self.beside(folder, run)
        self.expect(not self.close(trained, self.base(folder)), f"{name}: the adapters do nothing")
        following = self.train(folder, self.root / f"next-{name}", "--adapter", run, "--steps", 1, "--learning-rate", 0)
        self.expect(abs(following[0] - self.loss(trained)) < 2e-5, f"{name}: loss {following[0]}, PEFT has {self.loss(trained)}")
        self.expect(following[0] < losses[-1], f"{name}: nothing was learned: {losses}, then {following}")
        out, merged, both = (self.root / f"{what}-{name}" for what in ("out", "merged", "both"))
        self.spillway("export", run, "--out", out)
        self.expect(self.torch.equal(self.logits(self.beside(folder, out)), self.logits(trained)), f"{name}: other logits from {out}")
        self.spillway("export", run, "--merge", "--out", merged)
        self.expect(self.close(self.base(merged), trained), f"{name}: other logits merged by export")
        self.spillway("merge", "--model", folder, "--adapter", run, "--out", both)
        self.expect(self.torch.equal(self.logits(self.base(both)), self.logits(self.base(merged))), f"{name}: merge is not export --merge")
        # Made there, trained and merged here.
        theirs = self.peft.get_peft_model(self.base(folder), self.peft.LoraConfig(
            r=3, lora_alpha=7, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)).eval()
        adapter, together = self.root / f"theirs-{name}", self.root / f"together-{name}"
        theirs.save_pretrained(adapter)
        found = self.train(folder, self.root / f"theirs-run-{name}", "--adapter", adapter, "--steps", 1)[0]
        self.expect(abs(found - self.loss(theirs)) < 5e-5, f"{name}: loss {found}, PEFT has {self.loss(theirs)}")
        self.spillway("merge", "--model", folder, "--adapter", adapter, "--out", together)
        scale = max(1.0, self.logits(theirs).abs().max().item())
        difference = (self.logits(self.base(together)) - self.logits(theirs)).abs().max().item()
        self.expect(difference < 2e-5 * scale, f"{name}: their adapters, merged: logits differ by {difference}")
        print(f"{name}: loss {losses[0]:.6f} to {following[0]:.6f}, PEFT {self.loss(trained):.6f}")


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
        import peft
        import torch
        import transformers
    except ImportError as error:
        print(f"skipped: {error}; pip install torch transformers peft, or SPILLWAY_TRANSFORMERS=PYTHON")
        return 77
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    family = dict(vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
                  num_key_value_heads=2, max_position_embeddings=128)
    with tempfile.TemporaryDirectory() as root:
        checks = Checks(options.program, torch, transformers, peft, pathlib.Path(root))
        checks.check("gpt2", transformers.GPT2Config(vocab_size=300, n_embd=64, n_layer=3, n_head=4, n_positions=64))
        checks.check("llama", transformers.LlamaConfig(**family, tie_word_embeddings=False))
        checks.check("qwen2", transformers.Qwen2Config(**family, tie_word_embeddings=True))
    print(f"{len(checks.failed)} failures")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
