#!/usr/bin/env python3
"""Records a small training of transformers' GPT-2 with PyTorch's profiler, on the CPU: record.py OUT.json.gz

Five optimizer steps of two micro-batches each, of the model in tests/reference/kineto/model.toml, in float32 on one thread; the
first warms the profiler up and is not in the trace. The profiler is as in PyTorch's own tutorial: profiler.step() after every step
makes the annotations ProfilerStep#N, and torch.optim annotates its steps itself.

tests/reference/kineto/gpt2-cpu.json.gz was recorded by this script with torch 2.15.0 and transformers
5.24.0 (pip install torch transformers) on a virtual machine with 2 cores; the tests that read it need neither.

    tests/peer/kineto/record.py tests/reference/kineto/gpt2-cpu.json.gz
"""

import gzip
import json
import pathlib
import sys
import tempfile

import torch
import transformers

LAYERS, HIDDEN, HEADS, VOCABULARY, POSITIONS = 2, 128, 4, 512, 128
MICRO_BATCHES, SEQUENCES, STEPS = 2, 2, 5
KEPT = ("schemaVersion", "displayTimeUnit", "baseTimeNanoseconds", "traceEvents")  # without what tells the machine


def train(profiler):
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS, n_positions=POSITIONS, eos_token_id=None, bos_token_id=None,
                                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        for _ in range(MICRO_BATCHES):
            tokens = torch.randint(VOCABULARY, (SEQUENCES, POSITIONS))
            with torch.profiler.record_function("forward"):
                loss = model(tokens, labels=tokens).loss / MICRO_BATCHES
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()


def main(out):
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "trace.json"
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU],
                                    schedule=torch.profiler.schedule(wait=0, warmup=1, active=STEPS - 1, repeat=1),
                                    on_trace_ready=lambda ready: ready.export_chrome_trace(str(path))) as profiler:
            train(profiler)
        trace = json.loads(path.read_text())
    text = json.dumps({key: trace[key] for key in KEPT if key in trace}, separators=(",", ":"))
    with open(out, "wb") as file, gzip.GzipFile(fileobj=file, mode="wb", compresslevel=9, mtime=0, filename="") as compressed:
        compressed.write(text.replace('},{"ph"', '},\n{"ph"').encode())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
