#!/usr/bin/env python3
"""Adapters go from Spillway to PEFT and back: check_peft.py --program SPILLWAY

Beside tiny models that transformers has made, Spillway trains adapters. PEFT loads them, from the run's folder and from `spillway
export`, and has their loss; what `export --merge` and `merge` write gives the same logits to rounding. Adapters that PEFT has made
are trained from: the loss of the first step is PEFT's. Exit code 77: skipped, with the reason: torch, transformers or peft is
missing. SPILLWAY_TRANSFORMERS names another python3 that has them.
"""

import sys

import bench


class Checks(bench.Bench):
    def __init__(self, program, root, torch, transformers, peft):
        super().__init__(program, torch, transformers, root)
        self.peft = peft

    def beside(self, folder, adapter):
        return self.peft.PeftModel.from_pretrained(self.load(folder), adapter).eval()

    def close(self, a, b):
        return (self.logits(a) - self.logits(b)).abs().max().item() < 2e-5

    def check(self, name, config):
        folder = self.root / name
        self.save_random(config, folder)
        # Trained here, loaded there.
        run = self.root / f"run-{name}"
        losses = self.train(folder, run, "--lora", "rank=4,alpha=8", "--steps", 6, "--learning-rate", 0.01)
        trained = self.beside(folder, run)
        self.expect(not self.close(trained, self.load(folder)), f"{name}: the adapters do nothing")
        following = self.train(folder, self.root / f"next-{name}", "--adapter", run, "--steps", 1, "--learning-rate", 0)
        self.expect(abs(following[0] - self.loss(trained)) < 2e-5, f"{name}: loss {following[0]}, PEFT has {self.loss(trained)}")
        self.expect(following[0] < losses[-1], f"{name}: nothing was learned: {losses}, then {following}")
        out, merged, both = (self.root / f"{what}-{name}" for what in ("out", "merged", "both"))
        self.spillway("export", run, "--out", out)
        self.expect(self.torch.equal(self.logits(self.beside(folder, out)), self.logits(trained)), f"{name}: other logits from {out}")
        self.spillway("export", run, "--merge", "--out", merged)
        self.expect(self.close(self.load(merged), trained), f"{name}: other logits merged by export")
        self.spillway("merge", "--model", folder, "--adapter", run, "--out", both)
        self.expect(self.torch.equal(self.logits(self.load(both)), self.logits(self.load(merged))), f"{name}: merge is not export --merge")
        # Made there, trained and merged here.
        theirs = self.peft.get_peft_model(self.load(folder), self.peft.LoraConfig(
            r=3, lora_alpha=7, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)).eval()
        adapter, together = self.root / f"theirs-{name}", self.root / f"together-{name}"
        theirs.save_pretrained(adapter)
        found = self.train(folder, self.root / f"theirs-run-{name}", "--adapter", adapter, "--steps", 1)[0]
        self.expect(abs(found - self.loss(theirs)) < 5e-5, f"{name}: loss {found}, PEFT has {self.loss(theirs)}")
        self.spillway("merge", "--model", folder, "--adapter", adapter, "--out", together)
        scale = max(1.0, self.logits(theirs).abs().max().item())
        difference = (self.logits(self.load(together)) - self.logits(theirs)).abs().max().item()
        self.expect(difference < 2e-5 * scale, f"{name}: their adapters, merged: logits differ by {difference}")
        print(f"{name}: loss {losses[0]:.6f} to {following[0]:.6f}, PEFT {self.loss(trained):.6f}")


def check(program, root, torch, transformers, peft):
    checks = Checks(program, root, torch, transformers, peft)
    checks.check("gpt2", checks.gpt2_config())
    checks.check("llama", transformers.LlamaConfig(**bench.FAMILY, tie_word_embeddings=False))
    checks.check("qwen2", transformers.Qwen2Config(**bench.FAMILY, tie_word_embeddings=True))
    return checks.failed


if __name__ == "__main__":
    sys.exit(bench.run(__file__, ["torch", "transformers", "peft"], check))
