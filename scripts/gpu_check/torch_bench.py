"""PyTorch's attention and matrix products at the shapes of `spillway bench gpu`; run by the machine's own python3.

Prints a line of JSON as soon as a figure is known: {"name", "backend", "tflops"}; for what this PyTorch or this GPU does
not do, {"name", "backend", "error"}. Names are those of the bench: attention/forward-d64-t1024, matmul/qkv-c768-dx. Times are
medians of samples between events on the GPU; each sample is enough calls to last 5 ms, so that starting them costs nothing.

  torch_bench.py [--tiny] [--device cpu]      tiny shapes and another device, to try the script itself
"""

import importlib.util
import json
import pathlib
import statistics
import sys
import time

del sys.path[0]  # this folder: PyTorch imports much, and shall not find our modules
import torch  # noqa: E402


def beside(name):
    """A module of this folder."""
    spec = importlib.util.spec_from_file_location(name, pathlib.Path(__file__).resolve().parent / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sys.dont_write_bytecode = True
shapes = beside("shapes")

SAMPLES, SAMPLE_SECONDS = 7, 0.005
BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION")


def say(**figure):
    print(json.dumps(figure), flush=True)


def seconds_of(device, call, calls):
    if device != "cuda":
        began = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - began) / calls
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000 / calls


def median_seconds(device, call):
    for _ in range(3):
        call()
    calls = max(1, round(SAMPLE_SECONDS / max(seconds_of(device, call, 1), 1e-7)))
    seconds_of(device, call, calls)
    return statistics.median(seconds_of(device, call, calls) for _ in range(SAMPLES))


def measure(device, name, backend, flops, call):
    try:
        say(name=name, backend=backend, tflops=flops / median_seconds(device, call) / 1e12)
    except RuntimeError as error:  # no such kernel, or no memory: the next shape may do
        say(name=name, backend=backend, error=str(error).splitlines()[0][:200])


def attention(device, tiny):
    from torch.nn.attention import SDPBackend, sdpa_kernel  # a PyTorch older than 2.3 has no choice of backends
    for name, sequences, heads, tokens, head in shapes.attention(tiny):
        flops = shapes.attention_flops(sequences, heads, tokens, head)
        q, k, v = (torch.randn(sequences, heads, tokens, head, device=device, dtype=torch.bfloat16, requires_grad=True)
                   for _ in range(3))
        gradient = torch.randn(sequences, heads, tokens, head, device=device, dtype=torch.bfloat16)
        for backend in BACKENDS:
            if not hasattr(SDPBackend, backend):
                say(name=f"attention/forward-{name}", backend=backend, error="this PyTorch has no such backend")
                continue
            with sdpa_kernel(getattr(SDPBackend, backend)):
                attend = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
                with torch.no_grad():
                    measure(device, f"attention/forward-{name}", backend, flops, attend)
                try:
                    made = attend()
                except RuntimeError as error:
                    say(name=f"attention/backward-{name}", backend=backend, error=str(error).splitlines()[0][:200])
                    continue
                measure(device, f"attention/backward-{name}", backend, 2.5 * flops,
                        lambda: torch.autograd.grad(made, (q, k, v), gradient, retain_graph=True))  # noqa: B023


def matmul(device, tiny):
    for name, rows, inner, outer in shapes.matmul(tiny):
        flops = 2 * rows * inner * outer
        x = torch.randn(rows, inner, device=device, dtype=torch.bfloat16)
        w = torch.randn(outer, inner, device=device, dtype=torch.bfloat16)
        y = torch.randn(rows, outer, device=device, dtype=torch.bfloat16)
        for suffix, call in (("", lambda: torch.matmul(x, w.t())), ("-dx", lambda: torch.matmul(y, w)),  # noqa: B023
                             ("-dw", lambda: torch.matmul(y.t(), x))):  # noqa: B023
            measure(device, f"matmul/{name}{suffix}", "matmul", flops, call)


def main(words):
    tiny = "--tiny" in words
    device = words[words.index("--device") + 1] if "--device" in words else "cuda"
    torch.manual_seed(1)
    cuda = getattr(torch.version, "cuda", None)
    say(torch=torch.__version__, cuda=cuda, device=torch.cuda.get_device_name(0) if device == "cuda" else device)
    for part in (attention, matmul):
        try:
            part(device, tiny)
        except (ImportError, AttributeError, RuntimeError) as error:
            say(name=part.__name__, backend="all", error=f"{type(error).__name__}: {error}"[:200])


if __name__ == "__main__":
    main(sys.argv[1:])
