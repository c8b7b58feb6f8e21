"""Spillway against DeepSpeed's ZeRO-Infinity: the same training on the same machine, in turn.

Called by `run`, which says what is compared. Writes result.json and result.md into the work folder and
prints the table. Exit code 1 when the losses do not agree or DeepSpeed is less than twice as slow.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

here = pathlib.Path(__file__).resolve().parent
model = {"layers": 16, "hidden": 768, "heads": 12, "vocabulary": 256, "positions": 1024}
warm_up = 2  # steps that are not counted: DeepSpeed records its order of fetches in the first


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spillway", required=True, help="the program")
    parser.add_argument("--python", required=True, help="an interpreter that has torch and deepspeed")
    parser.add_argument("--work", required=True, help="folder on the drive to use")
    parser.add_argument("--batch", type=int, default=1, help="sequences a step; with more, arithmetic bounds both (docs/speed.md)")
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--steps", type=int, default=6, help="of each run, the first two not counted")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each system, in turn")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of both systems")
    parser.add_argument("--serial", action="store_true", help="DeepSpeed's optimizer as shipped: not pipelined")
    parser.add_argument("--policy", default="fuyou:swap=all", help="all model states on the SSD, no recomputation")
    parser.add_argument("--gpu-memory", default="800MB")
    parser.add_argument("--host-memory", default="1GB")
    return parser.parse_args()


def counters(pid):
    with open(f"/proc/{pid}/io") as file:
        io = dict(line.split(": ") for line in file.read().splitlines())
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.split(":", 1) for line in file.read().splitlines() if ":" in line)
    return int(io["read_bytes"]), int(io["write_bytes"]), int(status["VmHWM"].split()[0]) * 1024


def empty(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def train_spillway(options, work, text, weights_only=False):
    """Steps of one run: seconds and loss as the program says, bytes and memory as the kernel counts."""
    ssd, run = empty(work / "ssd"), work / "run"
    shutil.rmtree(run, ignore_errors=True)
    rate, steps, extra = options.learning_rate, options.steps, ["--no-export"]
    if weights_only:
        rate, steps, extra = 0, 1, []  # a step at rate 0 changes nothing: the initial weights
    command = [
        options.spillway, "train", "--model", work / "model.toml", "--data", text, "--policy", options.policy,
        "--gpu-memory", options.gpu_memory, "--host-memory", options.host_memory, "--ssd", ssd, "--run", run,
        "--batch", options.batch, "--micro-batch", options.batch, "--sequence", options.sequence,
        "--steps", steps, "--learning-rate", rate, "--weight-decay", 0, "--seed", 1, "--json",
        "--threads", options.threads, *extra,
    ]
    result, policy, before = [], None, (0, 0, 0)
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True) as program:
        for line in program.stdout:
            event = json.loads(line)
            if event["event"] == "start":
                policy, before = event["policy"], counters(program.pid)
            if event["event"] == "step":
                after = counters(program.pid)
                result.append({
                    "step": event["step"], "loss": event["loss"], "seconds": event["step_seconds"],
                    "bytes_read": after[0] - before[0], "bytes_written": after[1] - before[1],
                    "peak_resident_bytes": after[2],
                })
                before = after
    if program.returncode != 0:
        sys.exit(f"spillway train failed with exit code {program.returncode}")
    return policy, result


def train_deepspeed(options, work, text):
    nvme, out = empty(work / "nvme"), work / "deepspeed.json"
    command = [
        options.python, here / "train_deepspeed.py", "--weights", work / "initial.safetensors", "--data", text,
        "--nvme", nvme, "--out", out, "--heads", model["heads"], "--batch", options.batch,
        "--sequence", options.sequence, "--steps", options.steps, "--learning-rate", options.learning_rate,
        "--threads", options.threads, *(["--serial"] if options.serial else []),
    ]
    environment = dict(os.environ, PATH=f"{pathlib.Path(options.python).parent}:{os.environ['PATH']}")
    with open(work / "deepspeed.log", "w") as log:
        code = subprocess.run([str(word) for word in command], stdout=log, stderr=log, env=environment).returncode
    shutil.rmtree(nvme)
    if code != 0:
        sys.exit(f"DeepSpeed failed with exit code {code}: see {work / 'deepspeed.log'}")
    report = json.loads(out.read_text())
    return report["system"], report["steps"]


def summary(runs):
    counted = [step for run in runs for step in run[warm_up:]]
    middle = lambda key: statistics.median(step[key] for step in counted)  # noqa: E731
    return {
        "seconds": middle("seconds"),
        "fastest_seconds": min(step["seconds"] for step in counted),
        "bytes_read": middle("bytes_read"),
        "bytes_written": middle("bytes_written"),
        "peak_resident_bytes": max(step["peak_resident_bytes"] for run in runs for step in run),
        "losses": [step["loss"] for step in runs[0]],
    }


def table(names, ours, theirs):
    rows = [
        ("step, median", "s", lambda r: r["seconds"]),
        ("step, fastest", "s", lambda r: r["fastest_seconds"]),
        ("read from the SSD a step", "GB", lambda r: r["bytes_read"] / 1e9),
        ("written to the SSD a step", "GB", lambda r: r["bytes_written"] / 1e9),
        ("resident memory, peak", "GB", lambda r: r["peak_resident_bytes"] / 1e9),
        ("loss of the last step", "", lambda r: r["losses"][-1]),
    ]
    lines = [f"| | {names[0]} | {names[1]} | ratio |", "|---|---|---|---|"]
    for label, unit, value in rows:
        a, b = value(ours), value(theirs)
        digits = 5 if not unit else 2
        ratio = f"{b / a:.2f}" if unit else ""
        lines.append(f"| {label} | {a:.{digits}f} {unit} | {b:.{digits}f} {unit} | {ratio} |")
    return "\n".join(lines)


def main():
    options = read_arguments()
    work = pathlib.Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    (work / "model.toml").write_text(
        '[[model]]\nname = "gpt-114m"\n' + "".join(f"{key} = {value}\n" for key, value in model.items()))
    text = work / "text.txt"
    documents = sorted((here.parents[2] / "docs").glob("*.md"))
    text.write_bytes(b"".join(path.read_bytes() for path in documents))
    train_spillway(options, work, text, weights_only=True)
    shutil.move(work / "run" / "model.safetensors", work / "initial.safetensors")

    ours, theirs = [], []
    for _ in range(options.rounds):
        policy, run = train_spillway(options, work, text)
        ours.append(run)
        system, run = train_deepspeed(options, work, text)
        theirs.append(run)
        print(f"round {len(ours)}: Spillway {statistics.median(s['seconds'] for s in ours[-1][warm_up:]):.2f} s, "
              f"DeepSpeed {statistics.median(s['seconds'] for s in run[warm_up:]):.2f} s a step", flush=True)
    for folder in ("ssd", "run"):
        shutil.rmtree(work / folder, ignore_errors=True)

    a, b = summary(ours), summary(theirs)
    apart = max(abs(x - y) / y for x, y in zip(a["losses"], b["losses"]))
    names = [f"Spillway, {policy}", system]
    text = table(names, a, b)
    print(text)
    print(f"losses differ by at most {apart:.1e}, relatively, over {len(a['losses'])} steps")
    (work / "result.md").write_text(text + "\n")
    (work / "result.json").write_text(json.dumps({
        "model": model, "workload": {"batch": options.batch, "sequence": options.sequence},
        "rounds": options.rounds, "losses_differ": apart,
        "spillway": {"policy": policy, "runs": ours, **a}, "deepspeed": {"system": system, "runs": theirs, **b},
    }, indent=1))
    # fp32 sums in another order: seven digits at first, fewer with every step.
    checks = {
        "losses agree to 0.1 %": apart < 1e-3,
        "Spillway is at least twice as fast": b["seconds"] >= 2 * a["seconds"],
        "Spillway moves fewer bytes over the SSD":
            a["bytes_read"] + a["bytes_written"] < b["bytes_read"] + b["bytes_written"],
        "Spillway takes less memory": a["peak_resident_bytes"] < b["peak_resident_bytes"],
    }
    for name, holds in checks.items():
        print(f"{'yes' if holds else 'NO '} {name}")
    sys.exit(0 if all(checks.values()) else 1)


if __name__ == "__main__":
    main()
