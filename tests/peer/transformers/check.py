#!/usr/bin/env python3
"""Models that transformers has made go through Spillway and back: check.py --program SPILLWAY

Each is a tiny one with random weights, saved by transformers. Spillway trains on it for a step at a learning rate of 0; its loss
must be that of transformers on the same bytes, and what transformers loads from the run's folder and from `spillway export` must
give the same logits, to the bit. Exit code 77: skipped, with the reason: torch or transformers is missing. SPILLWAY_TRANSFORMERS
names another python3 that has them.
"""

import sys

import bench


def models(transformers, gpt2):
    """Name, configuration, and what save_pretrained is told."""
    family = bench.FAMILY
    llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
    return [
        ("gpt2", gpt2, {}),
        ("gpt2-in-shards", gpt2, {"max_shard_size": "200KB"}),
        ("llama", transformers.LlamaConfig(**family, tie_word_embeddings=False), {}),
        ("llama3-in-shards", transformers.LlamaConfig(**family, rope_theta=500000.0, rope_scaling=llama3, tie_word_embeddings=True),
         {"max_shard_size": "100KB"}),
        ("llama-linear", transformers.LlamaConfig(**family, rope_scaling=dict(rope_type="linear", factor=2.0), head_dim=32), {}),
        ("mistral", transformers.MistralConfig(**family, sliding_window=16), {}),
        ("qwen2", transformers.Qwen2Config(**family, tie_word_embeddings=True), {}),
        ("qwen3", transformers.Qwen3Config(**family, head_dim=24, tie_word_embeddings=False), {}),
    ]


class Checks(bench.Bench):
    def check(self, name, config, how, dtype):
        folder = self.root / f"{name}-{dtype}"
        model = self.save_random(config, folder, dtype, **how)
        saved = self.load(folder)
        reference, loss = self.logits(saved), self.loss(saved)
        run = self.root / f"run-{name}-{dtype}"
        losses = self.train(folder, run, "--steps", 1, "--learning-rate", 0, "--weight-decay", 0)
        if not losses:
            return
        found = losses[0]
        self.expect(abs(found - loss) < 2e-5 * max(1.0, loss), f"{name}: loss {found}, transformers has {loss}")
        exported = self.root / f"out-{name}-{dtype}"
        self.spillway("export", run, "--out", exported, "--max-shard", "150kB")
        for place in (run, exported):
            again = self.load(place)
            self.expect(type(again) is type(model), f"{name}: {place} is a {type(again).__name__}")
            self.expect(self.torch.equal(self.logits(again), reference), f"{name}: other logits from {place}")
            told = self.transformers.AutoModelForCausalLM.from_pretrained(place).dtype
            self.expect(told == self.torch.float32, f"{name}: {place} is loaded as {told}")
        print(f"{name} {dtype}: loss {found:.6f}, transformers {loss:.6f}; the same logits")


def check(program, root, torch, transformers):
    checks = Checks(program, torch, transformers, root)
    for dtype in ("float32", "bfloat16"):
        for model in models(transformers, checks.gpt2_config()):
            checks.check(*model, dtype)
    return checks.failed


if __name__ == "__main__":
    sys.exit(bench.run(__file__, ["torch", "transformers"], check))
