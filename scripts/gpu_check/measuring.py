"""The parts `bench` and `validate`: how fast is this GPU, and is what is predicted true?"""

import json
import shutil

from . import machine
from .session import FAILED, Failure, Skip, last_words
from .training import DOES_NOT_FIT, POLICIES, Job, bytes_of, least_limits, median, read_events, train

SEQUENCE = 1024
MOST_TRACE_BYTES = 1000000  # what the repository takes as one file

# Model, batch, and the micro-batches tried from the largest: the first that fits counts.
RESIDENT = (("gpt2-124m", 64, (64, 32, 16, 8)), ("gpt2-1.5b", 16, (16, 8, 4, 2)))
RESIDENT_STEPS = 20

# The model that every policy trains; the largest that the drive holds.
MODELS = ("gpt2-774m", "gpt2-355m", "gpt2-124m")
# A model whose states do not fit the GPU memory it is given; the largest that drive and host memory hold.
LARGE_MODELS = ("gpt3-6.7b", "gpt-6b", "gpt3-2.7b", "gpt3-1.3b", "gpt2-1.5b")
LARGE_GPU_MEMORY = "24GB"
LARGE_POLICIES = ("greedysnake", "fuyou")
STEPS, MICRO_BATCH = 5, 4
BATCHES = (4, 16)
LEVELS = ("tight", "roomy")

# Seconds: as long as one command may take, so that a part of 9.5 minutes can do it when it begins with it.
WHOLE_PART = 540


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
        self.host_memory = host_memory or megabytes(machine.memory_bytes() * 0.7)
        if not session.dry:
            ssd.mkdir(parents=True, exist_ok=True)

    def disk(self):
        return machine.disk_bytes(self.ssd if self.ssd.exists() else ".")


# --- bench ---


def bench(session, place):
    names = [name for name in session.speed_tests() if name.split("/")[0] == "gpu"]
    for name in names or ["gpu"]:
        session.step(f"bench {name}", lambda name=name: bench_gpu(session, name, bool(names)),
                     needs=300 if name == "gpu/training" else 60)
    for model, batch, micro_batches in RESIDENT:
        session.step(f"mfu {model}", lambda model=model, batch=batch, micro_batches=micro_batches: mfu(
            session, place, model, batch, micro_batches), needs=90)
        if machine.is_hopper(place.gpu):
            session.step(f"mfu {model} with wgmma", lambda model=model, batch=batch, micro_batches=micro_batches: mfu_with_wgmma(
                session, place, model, batch, micro_batches), needs=90)
    model = main_model(session, place)
    session.step(f"calibrate {model}", lambda: calibrate(session, place, model), needs=150)


def bench_gpu(session, name, known):
    """One group of figures of `spillway bench gpu`."""
    if not known:
        raise Skip("this build's `spillway bench` has no figures of a GPU")
    finished = session.succeed(session.spillway("bench", name, "--json"), WHOLE_PART)
    if session.dry:
        return ""
    figures = finished.json(f"spillway bench {name}")["figures"]
    session.facts["figures"] = [figure for figure in session.facts.get("figures", [])
                                if figure["name"] not in {new["name"] for new in figures}] + figures
    missed = [figure["name"] for figure in figures if figure.get("target") and not figure["target"]["met"]]
    return f"{len(figures)} figures, {len(missed)} below their target" + (f": {', '.join(missed)}" if missed else "")


def shape_of(session, model):
    return next(entry for entry in json.loads(session.ask("models", "--json"))["models"] if entry["name"] == model)


def model_flops_per_token(shape, sequence):
    """llm.c's count: 6 N + 6 L C T. N are all parameters; the second term is attention, causal half only."""
    return 6 * shape["parameters"] + 6 * shape["layers"] * shape["hidden"] * sequence


def palm_flops_per_token(shape, sequence):
    """PaLM, appendix B: 6 N + 12 L H Q T, with H Q = C; attention is counted in full."""
    return 6 * shape["parameters"] + 12 * shape["layers"] * shape["hidden"] * sequence


def mfu_with_wgmma(session, place, model, batch, micro_batches):
    """With attention's kernels for Hopper."""
    with machine.HopperAttention():
        return mfu(session, place, model, batch, micro_batches, " with wgmma")


def mfu(session, place, model, batch, micro_batches, how=""):
    """A resident run: tokens a second of the median step, the first half not counted."""
    run, finished, job = session.out / "runs" / f"mfu-{model}{how}".replace(" ", "-"), None, None
    for micro_batch in micro_batches:
        job = Job(model, "resident", batch, micro_batch, SEQUENCE, host_memory=place.host_memory)
        finished = train(session, job, run, RESIDENT_STEPS, 300, extra=("--durability", "off"))
        command = session.commands[-1]
        if finished.code != DOES_NOT_FIT:
            break
    if session.dry:
        return ""
    if finished.code != 0:
        raise Failure(last_words(finished))
    seconds = median([step["step_seconds"] for step in read_events(run)[1][RESIDENT_STEPS // 2:]])
    shape, tokens = shape_of(session, model), job.batch * SEQUENCE
    peak = machine.peak_tflops(place.gpu["name"])
    row = {"model": model + how, "batch": job.batch, "micro_batch": job.micro_batch, "sequence": SEQUENCE, "step_seconds": seconds,
           "tokens_per_second": tokens / seconds, "peak_tflops": peak,
           "tflops": model_flops_per_token(shape, SEQUENCE) * tokens / seconds / 1e12,
           "palm_tflops": palm_flops_per_token(shape, SEQUENCE) * tokens / seconds / 1e12,
           "command": command}
    session.facts["mfu"] = [other for other in session.facts.get("mfu", []) if other["model"] != row["model"]] + [row]
    share = f"MFU {row['tflops'] / peak:.1%}" if peak else "no MFU: the peak of this GPU is not known"
    return f"{row['tokens_per_second']:.0f} tokens/s, {row['tflops']:.0f} TFLOP/s, {share}"


# --- validate ---


def main_model(session, place):
    """On the drive: 12 bytes of optimizer state a parameter, and as much again for what policies put beside it."""
    for model in MODELS[:-1]:
        if session.dry or shape_of(session, model)["parameters"] * 24 < place.disk() * 0.9:
            return model
    return MODELS[-1]


def calibrate(session, place, model):
    """Measures kernels of the model, copies, the optimizer and the drive: OUT/machine-MODEL.toml. Once."""
    if not session.supports("calibrate", "--device"):
        raise Skip("this build's `spillway calibrate` measures no GPU: it has no --device")
    path = session.out / f"machine-{model}.toml"
    if path.exists():
        return f"{path.name} is there"
    session.succeed(session.spillway("calibrate", "--device", "cuda", "--model", model, "--micro-batches", MICRO_BATCH,
                                     "--sequence", SEQUENCE, "--ssd", place.ssd, "--threads", threads(), "--out", path,
                                     "--quiet"), WHOLE_PART)
    return path.name


def validate(session, place):
    """What tells most comes first: a large offloaded run, then runs that differ in everything, then what is between."""
    model = main_model(session, place)
    first, *others = [policy for policy in LARGE_POLICIES if session.result_of(f"large {policy}") != FAILED] or [None]
    if first:
        large(session, place, first)
    session.step(f"calibrate {model}", lambda: calibrate(session, place, model), needs=150)
    for policy, batch, level in spread():
        job = Job(model, policy, batch, MICRO_BATCH, SEQUENCE, machine=session.out / f"machine-{model}.toml")
        name = f"{model} {policy} b{batch} {level}"
        session.step(name, lambda job=job, name=name, level=level: predict_and_train(
            session, place, job, name, level, STEPS), needs=30)
    # One that failed is tried again when all else is done: it may take the whole part to fail.
    for policy in (*others, *(policy for policy in LARGE_POLICIES if policy != first and policy not in others)):
        large(session, place, policy)


def spread():
    """Every policy, batch and limit, so that however many are done, each is about as often among them as the others."""
    choices = [(batch, level) for level in LEVELS for batch in BATCHES]
    order = [choices[0], choices[3], choices[1], choices[2]]
    for turn in range(len(order)):
        for index, policy in enumerate(POLICIES):
            yield (policy, *order[(turn + index) % len(order)])


def large(session, place, policy):
    job, name = large_job(session, place, policy), f"large {policy}"
    if not job:
        session.step(name, lambda: too_large(place))
        return
    session.step(f"large calibrate {job.model}", lambda: calibrate(session, place, job.model), needs=240)
    session.step(name, lambda: train_and_compare(session, place, job, name, LARGE_GPU_MEMORY, STEPS, WHOLE_PART), needs=300)


def need_machine_file(session, job):
    if not session.dry and not job.machine.exists():
        raise Skip("nothing to predict with: there is no " + job.machine.name)


def settings_of(session, place):
    """What the drive holds now, whatever it held when it was measured."""
    return ("--set", f"ssd.capacity={megabytes(place.disk() * 0.9)}")


def predict_and_train(session, place, job, name, level, steps):
    """Tight: the least that fits. Roomy: a quarter of the GPU, half of what runs may take of the host."""
    if level == "tight":
        need_machine_file(session, job)
        least_limits(session, job, settings_of(session, place))
    else:
        job.gpu_memory = megabytes(bytes_of(place.gpu_memory) / 4)
        job.host_memory = megabytes(bytes_of(place.host_memory) / 2)
    return train_and_compare(session, place, job, name, level, steps)


def train_and_compare(session, place, job, name, level, steps, limit=300):
    need_machine_file(session, job)
    safe = name.replace(" ", "-")
    run, drive = session.out / "runs" / safe, place.ssd / safe
    trace = session.out / "traces" / f"{safe}.json.gz"
    if not session.dry:
        trace.parent.mkdir(exist_ok=True)
        drive.mkdir(parents=True, exist_ok=True)
    try:
        extra = (*settings_of(session, place), "--durability", "off", "--ssd", drive, "--trace", trace)
        finished = train(session, job, run, steps, limit, extra, threads())
        # On the GPU it may need a little more than was estimated for the machine file.
        while finished.code == DOES_NOT_FIT and level == "tight" and job.raise_limits(finished.err):
            finished = train(session, job, run, steps, limit, extra, threads())
        command = session.commands[-1]
    finally:
        if not session.dry:
            shutil.rmtree(drive, ignore_errors=True)
    if finished.code == DOES_NOT_FIT:
        raise Skip("does not fit: " + last_words(finished))
    if finished.code != 0:
        raise Failure(f"exit code {finished.code}: {last_words(finished)}")
    compared = session.succeed(session.spillway("validate", trace, "--json"), 120)
    described = session.succeed(session.spillway(
        "simulate", *Job(**{**vars(job), "machine": run / "machine.toml"}).words(), "--json"), 120, note=False)
    if session.dry:
        return ""
    row = row_of(job, name, level, steps, command, compared.json("validate"), described.json("simulate"))
    row["trace"] = trace.name
    if trace.stat().st_size >= MOST_TRACE_BYTES:
        row["trace"] = None
        trace.unlink()
    rows = [other for other in session.facts.get("validation", []) if other["name"] != name]
    session.facts["validation"] = rows + [row]
    return f"predicted {row['predicted']:.3g} s, measured {row['measured']:.3g} s ({row['error']:+.1%})"


def row_of(job, name, level, steps, command, compared, described):
    lanes = {lane: times["measured_busy"] for lane, times in compared["lanes"].items()}
    busiest = max(lanes, key=lanes.get)
    bound = described.get("bound_seconds")
    return {"name": name, "model": job.model, "policy": job.policy, "batch": job.batch, "micro_batch": job.micro_batch,
            "level": level, "gpu_memory": job.gpu_memory, "host_memory": job.host_memory, "steps": steps,
            "predicted": compared["predicted_step_seconds"], "measured": compared["measured_step_seconds"],
            "error": compared["error"], "extrapolated": compared["extrapolated"], "lanes": lanes, "busiest": busiest,
            "bound": bound, "bound_by": described.get("bound_by"),
            "of_bound": bound / compared["measured_step_seconds"] if bound else None, "command": command}


# --- a model that is larger than its GPU memory ---


def large_job(session, place, policy):
    """The largest model that fits drive and host memory; its states are larger than the GPU memory given. None: no model."""
    for model in LARGE_MODELS:
        job = Job(model, policy, max(BATCHES), MICRO_BATCH, SEQUENCE, gpu_memory=LARGE_GPU_MEMORY,
                  host_memory=place.host_memory, machine=session.out / f"machine-{model}.toml")
        if session.dry:
            return job
        # Whether it fits is the same on any machine of these sizes, calibrated or not.
        question = Job(**{**vars(job), "machine": "h200"})
        if session.question("estimate", *question.words(), *settings_of(session, place), "--json").code == 0:
            return job
    return None


def too_large(place):
    raise Skip(f"no large model fits {place.disk() / 1e9:.0f} GB of drive and {place.host_memory} of host memory")
