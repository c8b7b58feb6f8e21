#!/usr/bin/env python3
"""What TensorBoard reads of a run is what its metrics say: check.py --program SPILLWAY

A tiny model is trained, killed, resumed, and trained on. After each of these TensorBoard's own reader must find in the run's folder
the scalars of metrics.jsonl, each step once; also one that has followed the run from its beginning. Exit code 77: skipped, with
the reason: tensorboard is missing. SPILLWAY_TENSORBOARD names another python3 that has it.
"""

import argparse
import csv
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time

TAGS = {"train/loss": ("step", "loss"), "train/grad_norm": ("step", "grad_norm"),
        "train/learning_rate": ("step", "learning_rate"), "train/tokens_per_second": ("step", "tokens_per_second"),
        "eval/loss": ("evaluation", "loss"), "eval/perplexity": ("evaluation", "perplexity")}


def as_float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def events_of(run):
    """Whole lines of the metrics; a run that was killed may have cut the last one."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines(keepends=True) if line.endswith("\n")]


def wanted(run, tag):
    name, key = TAGS[tag]
    return [(event["step"], as_float32(event[key])) for event in events_of(run) if event["event"] == name]


def found(accumulator, tag):
    accumulator.Reload()
    if tag not in accumulator.Tags()["scalars"]:
        return []
    return [(scalar.step, scalar.value) for scalar in accumulator.Scalars(tag)]


class Checks:
    def __init__(self, accumulator_of, run):
        self.accumulator_of, self.run = accumulator_of, run
        self.follower = None
        self.failed = []

    def expect(self, holds, what):
        print(("ok    " if holds else "FAILS ") + what)
        if not holds:
            self.failed.append(what)

    def compare(self, when, killed=False):
        for tag in TAGS:
            rows = wanted(self.run, tag)
            for who, accumulator in (("a new reader", self.accumulator_of()), ("one that followed", self.follower)):
                scalars = found(accumulator, tag)
                # Of a run that was killed, the last step may be in the one file and not in the other.
                same = rows[:-1] == scalars[:len(rows) - 1] and abs(len(rows) - len(scalars)) <= 1 if killed else rows == scalars
                self.expect(same, f"{when}: {tag}, {len(rows)} rows, {who}")
        if not killed:
            with (self.run / "metrics.csv").open() as table:
                losses = [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(table) if row["event"] == "step"]
            rows = [(event["step"], event["loss"]) for event in events_of(self.run) if event["event"] == "step"]
            self.expect(rows == losses, f"{when}: losses of metrics.csv")


def check(program, accumulator, folder):
    run = folder / "run"
    (folder / "text.txt").write_text("".join(f"line {i * i} of a text.\n" for i in range(400)))
    arguments = [program, "train", "--model", "gpt-tiny", "--device", "cpu", "--policy", "zero-infinity", "--batch", "2",
                 "--micro-batch", "1", "--sequence", "16", "--data", folder / "text.txt", "--run", run, "--gpu-memory", "32MB",
                 "--host-memory", "64MB", "--no-export", "--quiet", "--warmup", "5"]
    checks = Checks(lambda: accumulator(str(run), size_guidance={"scalars": 0}), run)
    training = subprocess.Popen([*map(str, arguments), "--steps", "1000000"])
    while not (run / "metrics.jsonl").exists() or len(events_of(run)) < 10:
        time.sleep(0.02)
    checks.follower = checks.accumulator_of()
    checks.follower.Reload()
    while len(events_of(run)) < 60:
        time.sleep(0.02)
    training.send_signal(signal.SIGKILL)
    training.wait()
    checks.compare("killed", killed=True)
    done = max(event["step"] for event in events_of(run) if event["event"] == "step") + 1
    resume = [program, "train", "--resume", "--run", run, "--quiet", "--steps"]
    for more in (20, 40):
        subprocess.run([*map(str, resume), str(done + more)], check=True, timeout=300)
        checks.compare(f"resumed up to step {done + more}")
    return checks.failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    arguments = parser.parse_args()
    other = os.environ.get("SPILLWAY_TENSORBOARD")
    if other and os.environ.get("SPILLWAY_TENSORBOARD_FOUND") is None:
        os.environ["SPILLWAY_TENSORBOARD_FOUND"] = "1"
        os.execv(other, [other, __file__, *sys.argv[1:]])
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        print(f"skipped: {error} (pip install tensorboard; SPILLWAY_TENSORBOARD names the python3 that has it)")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        failed = check(arguments.program, EventAccumulator, pathlib.Path(folder))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
