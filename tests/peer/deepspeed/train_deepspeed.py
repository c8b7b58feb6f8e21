"""Trains a GPT with DeepSpeed's ZeRO-Infinity (stage 3, parameters and optimizer on an SSD) on the CPU.

The same work as `spillway train`: weights from a model.safetensors that Spillway wrote, the same
sequences (the rule of exec/data/dataset.hpp), AdamW, fp32, no dropout. Writes a JSON file with the seconds,
the loss, the bytes read and written and the resident memory of every step.
"""

import argparse
import json
import math
import os
import socket
import struct
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("RANK", "0")
os.environ.setdefault("LOCAL_RANK", "0")
os.environ.setdefault("WORLD_SIZE", "1")
os.environ.setdefault("LOCAL_SIZE", "1")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
with socket.socket() as any_free_port:
    any_free_port.bind(("127.0.0.1", 0))
    os.environ["MASTER_PORT"] = str(any_free_port.getsockname()[1])

import deepspeed  # noqa: E402
import numpy  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as functional  # noqa: E402
import xxhash  # noqa: E402
from deepspeed.ops.adam import DeepSpeedCPUAdam  # noqa: E402


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", required=True, help="initial weights: Spillway's model.safetensors")
    parser.add_argument("--data", required=True, help="one text file")
    parser.add_argument("--nvme", required=True, help="folder for what is offloaded")
    parser.add_argument("--out", required=True, help="JSON file to write")
    parser.add_argument("--heads", type=int, required=True)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--sub-group", type=int, default=20_000_000, help="elements of an optimizer sub-group")
    parser.add_argument("--buffers", type=int, default=12, help="buffers of the optimizer swapper")
    parser.add_argument("--parameter-buffers", type=int, default=24)
    parser.add_argument("--prefetch", type=int, default=0, help="stage3_prefetch_bucket_size")
    parser.add_argument("--host-parameters", type=int, default=0, help="max_in_cpu: elements that stay in memory")
    parser.add_argument("--optimizer-in-memory", action="store_true", help="only the parameters on the SSD")
    parser.add_argument("--serial", action="store_true", help="the optimizer as shipped: no read-ahead, no write-behind")
    parser.add_argument("--plain", action="store_true", help="no DeepSpeed: torch.optim.AdamW in memory, as a referee")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    return parser.parse_args()


class Weights:
    """The tensors of a safetensors file, read one at a time."""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            self.header = json.loads(file.read(length))
        self.start = 8 + length

    def read(self, name):
        entry = self.header["transformer." + name]
        begin, end = entry["data_offsets"]
        with open(self.path, "rb") as file:
            file.seek(self.start + begin)
            values = numpy.frombuffer(file.read(end - begin), dtype=numpy.float32)
        return torch.from_numpy(values.reshape(entry["shape"]).copy())

    def layers(self):
        return 1 + max(int(name.split(".")[2]) for name in self.header if name.startswith("transformer.h."))


# Each takes its values as soon as it is made: under zero.Init a tensor leaves for the SSD right after.
class Linear(torch.nn.Linear):
    def __init__(self, weights, name):
        values = weights.read(name + ".weight")  # (in, out)
        super().__init__(*values.shape)
        with torch.no_grad():
            self.weight.copy_(values.t())
            self.bias.copy_(weights.read(name + ".bias"))


class Norm(torch.nn.LayerNorm):
    def __init__(self, weights, name):
        values = weights.read(name + ".weight")
        super().__init__(values.shape, eps=1e-5)
        with torch.no_grad():
            self.weight.copy_(values)
            self.bias.copy_(weights.read(name + ".bias"))


class Table(torch.nn.Embedding):
    def __init__(self, weights, name):
        values = weights.read(name + ".weight")
        super().__init__(*values.shape)
        with torch.no_grad():
            self.weight.copy_(values)


class Block(torch.nn.Module):
    def __init__(self, weights, layer, heads):
        super().__init__()
        at = f"h.{layer}."
        self.heads = heads
        self.ln_1 = Norm(weights, at + "ln_1")
        self.attention = Linear(weights, at + "attn.c_attn")
        self.projection = Linear(weights, at + "attn.c_proj")
        self.ln_2 = Norm(weights, at + "ln_2")
        self.wide = Linear(weights, at + "mlp.c_fc")
        self.narrow = Linear(weights, at + "mlp.c_proj")

    def forward(self, x):  # (B, T, C)
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.attention(self.ln_1(x)).split(c, dim=2)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(b, t, c))
        return x + self.narrow(functional.gelu(self.wide(self.ln_2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    def __init__(self, weights, heads):
        super().__init__()
        self.tokens = Table(weights, "wte")
        self.positions = Table(weights, "wpe")
        self.blocks = torch.nn.ModuleList(Block(weights, layer, heads) for layer in range(weights.layers()))
        self.norm = Norm(weights, "ln_f")

    def forward(self, tokens, targets):  # (B, T)
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Text:
    """Batches by the rule of exec/data/dataset.hpp: a sequence starts at XXH3(step, sequence) mod starts."""

    def __init__(self, path, seed):
        self.corpus = numpy.fromfile(path, dtype=numpy.uint8)
        self.seed = seed

    def batch(self, step, sequences, length):
        rows = []
        for i in range(sequences):
            counter = struct.pack("<qq", step, i)
            start = xxhash.xxh3_64_intdigest(counter, self.seed) % (len(self.corpus) - length)
            rows.append(self.corpus[start : start + length + 1])
        rows = torch.from_numpy(numpy.stack(rows).astype(numpy.int64))
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def process_counters():
    """Bytes this process read and wrote at the drive, and its resident memory, now and at the most."""
    with open("/proc/self/io") as file:
        io = dict(line.split(": ") for line in file.read().splitlines())
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file.read().splitlines())
    kib = lambda key: int(status[key].split()[0]) * 1024  # noqa: E731
    return {
        "read": int(io["read_bytes"]),
        "written": int(io["write_bytes"]),
        "resident": kib("VmRSS"),
        "peak": kib("VmHWM"),
    }


def configuration(options):
    return {
        "train_batch_size": options.batch,
        "train_micro_batch_size_per_gpu": options.batch,
        "gradient_clipping": 0.0,  # by itself it clips at 1 (0.19)
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": 3,
            "sub_group_size": options.sub_group,
            "stage3_prefetch_bucket_size": options.prefetch,
            "stage3_param_persistence_threshold": 100_000,
            "stage3_max_live_parameters": 10_000_000,
            "stage3_max_reuse_distance": 10_000_000,
            "reduce_bucket_size": 10_000_000,
            "offload_optimizer": {
                "device": "cpu" if options.optimizer_in_memory else "nvme",
                "nvme_path": options.nvme,
                "buffer_count": options.buffers,
                "pipeline_read": not options.serial,
                "pipeline_write": not options.serial,
            },
            "offload_param": {
                "device": "nvme",
                "nvme_path": options.nvme,
                "buffer_count": options.parameter_buffers,
                "buffer_size": 4_000_000,
                "max_in_cpu": options.host_parameters,
            },
        },
        "aio": {"block_size": 1 << 20, "queue_depth": 32, "intra_op_parallelism": 1,
                "single_submit": False, "overlap_events": True},
    }


def train_plainly(options):
    """The losses of the same steps by PyTorch alone."""
    model = Gpt(Weights(options.weights), options.heads)
    text = Text(options.data, options.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, betas=(0.9, 0.999), eps=1e-8,
                                  weight_decay=0.0)
    losses = []
    for step in range(options.steps):
        loss = model(*text.batch(step, options.batch, options.sequence))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        print(losses[-1], flush=True)
    with open(options.out, "w") as file:
        json.dump({"system": f"torch {torch.__version__}", "losses": losses}, file, indent=1)


def main():
    options = read_arguments()
    torch.set_num_threads(options.threads)
    if options.plain:
        return train_plainly(options)
    config = configuration(options)
    deepspeed.init_distributed(dist_backend="gloo")
    weights = Weights(options.weights)
    text = Text(options.data, options.seed)
    # Without a dtype of its own zero.Init takes fp32 from the configuration; with one, bf16 (0.19).
    with deepspeed.zero.Init(config_dict_or_path=config, remote_device="nvme"):
        model = Gpt(weights, options.heads)
    optimizer = DeepSpeedCPUAdam(model.parameters(), lr=options.learning_rate, betas=(0.9, 0.999),
                                 eps=1e-8, weight_decay=0.0, adamw_mode=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    parameters = sum(p.ds_numel for p in engine.module.parameters())

    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak counts from here: making the model is not part of the comparison
    steps = []
    for step in range(options.steps):
        before = process_counters()
        began = time.perf_counter()
        loss = engine(*text.batch(step, options.batch, options.sequence))
        forward = time.perf_counter()
        engine.backward(loss)
        backward = time.perf_counter()
        engine.step()
        ended = time.perf_counter()
        after = process_counters()
        steps.append({
            "step": step,
            "loss": loss.item(),
            "seconds": ended - began,
            "forward_seconds": forward - began,
            "backward_seconds": backward - forward,
            "update_seconds": ended - backward,
            "bytes_read": after["read"] - before["read"],
            "bytes_written": after["written"] - before["written"],
            "peak_resident_bytes": after["peak"],
        })
        assert math.isfinite(steps[-1]["loss"])
        print(json.dumps(steps[-1]), flush=True)
    with open(options.out, "w") as file:
        json.dump({
            "system": f"DeepSpeed {deepspeed.__version__}, torch {torch.__version__}",
            "parameters": parameters,
            "threads": torch.get_num_threads(),
            "configuration": config,
            "steps": steps,
        }, file, indent=1)


if __name__ == "__main__":
    main()
