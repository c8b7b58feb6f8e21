"""`spillway train` as gpu-check uses it: its command, its limits, what it wrote."""

import json
import pathlib
import re
import shutil

from .session import Failure, Skip, last_words

# One of each policy there is, with its defaults; a test holds this list to `spillway policies`.
POLICIES = ("resident", "zero-offload", "zero-infinity", "deep-optimizer-states", "fuyou", "greedysnake", "spillway")
DOES_NOT_FIT = 3  # the program's exit code


class Job:
    """What is trained, with what limits; `train` and `estimate` are told it in the same words.

    The GPU computes whole micro-batches at once: the choice is part of the numbers, so it is not left to the program."""

    def __init__(self, model, policy, batch, micro_batch, sequence, gpu_memory=None, host_memory=None,
                 device="cuda", precision="bf16", machine=None):
        self.model, self.policy, self.batch = model, policy, batch
        self.micro_batch, self.sequence = micro_batch, sequence
        self.gpu_memory, self.host_memory = gpu_memory, host_memory
        self.device, self.precision, self.machine = device, precision, machine

    def words(self):
        words = ["--model", self.model, "--policy", self.policy, "--batch", self.batch, "--micro-batch", self.micro_batch,
                 "--sequence", self.sequence, "--precision", self.precision]
        if self.device == "cuda":
            words += ["--sequences-at-once", self.micro_batch]
        for option, value in (("--machine", self.machine), ("--gpu-memory", self.gpu_memory),
                              ("--host-memory", self.host_memory)):
            if value:
                words += [option, value]
        return words

    def raise_limits(self, text):
        """To what the program says would fit. False where it says nothing new."""
        changed = False
        for option, name in (("--gpu-memory", "gpu_memory"), ("--host-memory", "host_memory")):
            match = re.search(option + r" ([\d.]+[kMGTP]?B)", text)
            if match and match.group(1) != getattr(self, name):
                setattr(self, name, match.group(1))
                changed = True
        return changed


def bytes_of(size):
    """The bytes of a size as the program writes it: 25.1MB."""
    number, prefix = re.fullmatch(r"([\d.]+)([kMGTP]?)B", size).groups()
    return float(number) * 1000.0 ** " kMGTP".index(prefix or " ")


def text(session):
    """What is trained on: a copy of the sources or the one that the bundle brings. The program's default is the sources
    themselves, and somebody may edit them between a run and its resumption."""
    path = session.out / "text"
    if not session.dry and not path.exists():
        root = pathlib.Path(__file__).resolve().parent.parent.parent
        brought = root / "text"
        folders = ("base", "traces", "policies", "sim", "exec", "experiments", "cli")
        ours = [*root.glob("docs/*.md"), *(path for folder in folders for path in (root / folder).rglob("*.[ch]pp"))]
        sources = [brought] if brought.is_file() else sorted(ours)
        path.write_bytes(b"".join(source.read_bytes() for source in sources))
    return path


def train(session, job, run, steps, limit, extra=(), threads=1, watch=None, note=True):
    """Trains in the folder `run`, which is made anew, with the ssd tier below it unless `extra` says otherwise.

    Returns the finished command; the caller judges its exit code."""
    if not session.dry and "--resume" not in extra:
        shutil.rmtree(run, ignore_errors=True)
        run.parent.mkdir(parents=True, exist_ok=True)
    words = session.spillway("train", "--device", job.device, *job.words(), "--steps", steps, "--seed", 7, "--threads", threads,
                             "--data", text(session), "--run", run, "--no-export", "--quiet", *extra)
    return session.run(words, limit, watch=watch, note=note)


def train_tight(session, job, run, steps, limit, extra=()):
    """Trains with the least memory with which the program says it fits: it is asked with next to nothing first."""
    job.gpu_memory = job.host_memory = "1MB"
    if session.dry:
        train(session, job, run, steps, limit, extra)
        return
    for _ in range(8):
        finished = train(session, job, run, steps, limit, extra, note=False)
        if finished.code != DOES_NOT_FIT or not job.raise_limits(finished.err):
            break
    session.commands.append(session.plain(session.spillway(
        "train", "--device", job.device, *job.words(), "--steps", steps, "--seed", 7)))
    if finished.code != 0:
        raise Failure(f"{job.policy}: exit code {finished.code}: {last_words(finished)}")


def least_limits(session, job, settings=()):
    """Sets the job's limits to the least that fits its machine file; raises Skip where nothing does."""
    job.gpu_memory = job.host_memory = "1MB"
    for _ in range(1 if session.dry else 10):
        finished = session.run(session.spillway("estimate", *job.words(), *settings, "--json"), 60, note=False)
        if finished.code == 0:
            return
        if finished.code != DOES_NOT_FIT or not job.raise_limits(finished.err):
            raise Skip(f"{job.policy} does not fit: {last_words(finished)}")
    raise Skip(f"{job.policy}: no limits were found that fit")


def read_events(run):
    """The events of a run, the steps by their number: those of a resumed run replace those that were lost."""
    start, steps, end = None, {}, None
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines()
    except OSError as error:
        raise Failure(f"{run} has no metrics.jsonl") from error
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the last line of a run that was killed
        if event["event"] == "start":
            start = event
        elif event["event"] == "step":
            steps[event["step"]] = event
        elif event["event"] == "end":
            end = event
    if start is None:
        raise Failure(f"{run}/metrics.jsonl has no start event")
    return start, [steps[number] for number in sorted(steps)], end


def losses(run):
    """The losses of all steps, and the hash of the weights after them."""
    _, steps, end = read_events(run)
    if not end:
        raise Failure(f"{run} did not end")
    return [step["loss"] for step in steps], end["weights_hash"]


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
