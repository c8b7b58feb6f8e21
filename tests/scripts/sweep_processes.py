"""What tests of sweeps on several machines share: the sweep, its processes, its journals."""

import os
import pathlib
import signal
import subprocess
import time

SWEEP = """[fixed]
model = "gpt-tiny"
machine = "testbed"
sequence = 16
micro_batch = 1
"model.layers" = 16
[[axis]]
policy = ["zero-infinity", "fuyou", "greedysnake"]
[[axis]]
batch = [64, 128, 192, 256]
[[axis]]
"gpu.flops" = ["1TFLOPS", "2TFLOPS", "3TFLOPS", "4TFLOPS"]
"""
POINTS = 48


def undisturbed(program, file, out):
    """The results of one run."""
    subprocess.run([program, "sweep", file, "--out", out], check=True, capture_output=True)
    return (pathlib.Path(out) / "results.csv").read_bytes()


def identities(out):
    """Of the points in all journals, whole lines only, those that were run twice twice."""
    found = []
    for journal in sorted((pathlib.Path(out) / "parts").glob("*.journal")):
        found += [line.split(b" ")[0] for line in journal.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    return found


def processes_of(out, shard):
    """Processes that run this shard into this folder, by their arguments."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if pathlib.Path(words[0]).name == "spillway" and "--shard" in words and words[words.index("--shard") + 1] == shard and str(out) in words:
            found.append(int(folder.name))
    return found


def parent_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def lines_of_shard(out, shard):
    name = "shard-" + shard.replace("/", "-of-") + ".*"
    return sum(journal.read_bytes().count(b"\n") for journal in (pathlib.Path(out) / "parts").glob(name))


def stop_in_the_middle(out, shard, lines, gone, patience_s=240):
    """Waits until the shard has written this many points, and stops (SIGSTOP) its process, of which the number is returned."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if lines_of_shard(out, shard) >= lines:
            found = processes_of(out, shard)
            if found:
                os.kill(found[0], signal.SIGSTOP)
                return found[0]
        if gone():
            break
        time.sleep(0.002)
    raise AssertionError(f"shard {shard} was never found at work after {lines} points")
