"""Parts that ask how fast this GPU is: kernels, resident training, and PyTorch beside them."""

import json
import pathlib

from . import machine
from .session import LONG, Failure, OutOfTime, Skip, last_words
from .training import DOES_NOT_FIT, Job, bytes_of, median, read_events, train

TORCH_BENCH = pathlib.Path(__file__).resolve().parent / "torch_bench.py"


def threads():
    """Processors for the optimizer; the others stay with the lanes of copies and of the SSD."""
    return max(1, machine.cores() - 4)


def megabytes(count):
    return f"{int(count // 1000000)}MB"


class Machine:
    """What runs may take: of the host's memory, of the GPU's and of the drive."""

    def __init__(self, session, gpu, ssd, host_memory):
        self.ssd = ssd
        self.gpu = gpu or {"name": "none", "free_mib": 16384}
        self.gpu_memory = megabytes(self.gpu["free_mib"] * 1048576 * 0.92)
        limit = machine.cgroup_memory() or float("inf")
        self.host_memory = host_memory or megabytes(min(machine.memory_bytes(), limit) * 0.7)
        if not session.dry:
            ssd.mkdir(parents=True, exist_ok=True)

    def disk(self):
        return machine.disk_bytes(self.ssd if self.ssd.exists() else ".")

    def host_bytes(self):
        return bytes_of(self.host_memory)


def bench(session, place, name, hopper=False):
    """One group of figures of `spillway bench`; those with attention's kernels for Hopper beside those without."""
    extra = ("--ssd", place.ssd) if name == "ssd" else ()
    finished = session.succeed(session.spillway("bench", name, *extra, "--json"), LONG)
    if session.dry:
        return ""
    figures = finished.json(f"spillway bench {name}")["figures"]
    for figure in figures:
        figure["name"] += machine.WITH_WGMMA if hopper else ""
    names = {figure["name"] for figure in figures}
    session.facts["figures"] = [figure for figure in session.facts.get("figures", []) if figure["name"] not in names] + figures
    missed = [figure["name"] for figure in figures if figure.get("target") and not figure["target"]["met"]]
    return f"{len(figures)} figures, {len(missed)} below their target" + (f": {', '.join(missed)}" if missed else "")


def torch(session, *words):
    """PyTorch at the shapes of the bench. Every figure counts, also where the others did not come."""
    argv = ["python3", TORCH_BENCH, *words]
    if session.dry:
        session.run(argv, LONG, ours=False)
        return ""
    why = ""
    try:
        finished = session.run(argv, LONG, ours=False)
        if finished.code != 0:
            why = f"exit code {finished.code}: {last_words(finished)}"
    except (Failure, OutOfTime) as failure:
        why = str(failure)
    lines = []
    for line in session.last.out.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue  # cut off, or a warning
    figures = [line for line in lines if "name" in line]
    if "No module named 'torch'" in why:
        raise Skip("PyTorch is not installed")
    session.facts["torch"] = {"version": next((line["torch"] for line in lines if "torch" in line), None), "figures": figures}
    done = [figure for figure in figures if "tflops" in figure]
    said = f"{len(done)} figures of PyTorch {session.facts['torch']['version']}, {len(figures) - len(done)} it does not do"
    if why or not done:
        raise Failure(f"{why or next((figure['error'] for figure in figures), 'no figure')}; {said}")
    return said


def shape_of(session, model):
    listed = session.question("models", "--json").json("spillway models")
    return next(entry for entry in listed["models"] if entry["name"] == model)


def model_flops_per_token(shape, sequence):
    """llm.c's count: 6 N + 6 L C T. N are all parameters; the second term is attention, causal half only."""
    return 6 * shape["parameters"] + 6 * shape["layers"] * shape["hidden"] * sequence


def palm_flops_per_token(shape, sequence):
    """PaLM, appendix B: 6 N + 12 L H Q T, with H Q = C; attention is counted in full."""
    return 6 * shape["parameters"] + 12 * shape["layers"] * shape["hidden"] * sequence


def mfu(session, place, name, model, batch, micro_batches, steps, sequence, settings=(), hopper=False):
    """A resident run with the largest micro-batch that fits: tokens a second of the median step, the first half not counted."""
    run, finished, job = session.out / "runs" / name.replace(" ", "-"), None, None
    extra = ("--durability", "off", *(word for setting in settings for word in ("--set", setting)))
    for micro_batch in micro_batches:
        job = Job(model, "resident", batch, micro_batch, sequence, host_memory=place.host_memory)
        finished = train(session, job, run, steps, LONG, extra)
        command = session.commands[-1]
        if session.dry or finished.code != DOES_NOT_FIT:
            break
    if session.dry:
        return ""
    if finished.code != 0:
        raise Failure(last_words(finished))
    seconds = median([step["step_seconds"] for step in read_events(run)[1][steps // 2:]])
    shape, tokens = shape_of(session, model), job.batch * sequence
    peak = machine.peak_tflops(place.gpu["name"])
    row = {"model": model + (machine.WITH_WGMMA if hopper else ""), "batch": job.batch, "micro_batch": job.micro_batch,
           "sequence": sequence, "step_seconds": seconds, "tokens_per_second": tokens / seconds, "peak_tflops": peak,
           "tflops": model_flops_per_token(shape, sequence) * tokens / seconds / 1e12,
           "palm_tflops": palm_flops_per_token(shape, sequence) * tokens / seconds / 1e12,
           "command": command}
    session.facts["mfu"] = [other for other in session.facts.get("mfu", []) if other["model"] != row["model"]] + [row]
    share = f"MFU {row['tflops'] / peak:.1%}" if peak else "no MFU: the peak of this GPU is not known"
    return f"{row['tokens_per_second']:.0f} tokens/s, {row['tflops']:.0f} TFLOP/s, {share}"
