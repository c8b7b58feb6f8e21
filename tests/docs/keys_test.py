#!/usr/bin/env python3
"""Holds docs/ to naming every key of the JSON that the program prints: keys_test.py PROGRAM

Runs commands with --json and looks for each key of what they print, as code, in the pages of docs/. Exit code 1 where one is
in none of them.
"""
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROBLEM = "--model gpt-13b --machine rtx4090-12ssd --batch 8 --micro-batch 4"
COMMANDS = [
    "policies --json", "models --json", "machines --json", "frameworks --json",
    f"estimate {PROBLEM} --policy zero-infinity --json",
    f"estimate {PROBLEM} --policy zero-infinity --set host.memory=16GB ssd.count=1 --json",
    f"simulate {PROBLEM} --policy greedysnake --explain --json",
    f"simulate --model gpt2-124m --machine h200 --policy resident --batch 8 --json",
    f"compare {PROBLEM} --policy zero-infinity --policy fuyou --json",
    f"estimate {PROBLEM} --policy greedysnake --robust --json",
    f"estimate --model gpt-13b --machine rtx4090-12ssd --policy zero-infinity --smallest-batch 90% --json",
    f"meshes --model llama-7b --machine a800-cluster --set cluster.nodes=4 model.positions=4096 --batch 1024 --micro-batch 1"
    " --sequence 4096 --reserve 25GB --top 1 --json",
    "papers fuyou --json",
    "train --model gpt-tiny --data README.md --batch 2 --sequence 16 --steps 2 --machine testbed --policy zero-infinity --run run"
    " --validation 5% --evaluate-every 1 --json",
    "validate run/trace.json.gz --json",
    "runs . --json",
    "store inspect run --json",
]
# Objects whose keys are names (of lanes, of memories, ...) and no words of the program's own.
NAMED = {"lanes", "resources", "kinds", "memory", "drift", "sources", "settings", "stalls", "peaks", "by_kind", "tiers", "set", "bytes"}


def keys_of(value, found, inside=None):
    if isinstance(value, list):
        for one in value:
            keys_of(one, found, inside)
    elif isinstance(value, dict):
        for key, below in value.items():
            if inside not in NAMED:
                found.add(key)
            keys_of(below, found, key)


def main():
    program = Path(sys.argv[1]).resolve()
    pages = "\n".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))
    code = set()
    for piece in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", pages, flags=re.DOTALL)):
        code.update(re.findall(r"\w+", piece))
    missing = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "README.md").write_text((ROOT / "docs" / "train.md").read_text())
        for command in COMMANDS:
            done = subprocess.run([program, *command.split()], cwd=folder, capture_output=True, text=True)
            if done.returncode not in (0, 3):
                sys.exit(f"spillway {command}: exit code {done.returncode}\n{done.stderr}")
            lines = done.stdout.strip().split("\n") if command.startswith("train") else [done.stdout]
            found = set()
            for line in lines:
                keys_of(json.loads(line), found)
            for key in sorted(found):
                if not set(re.findall(r"\w+", key)) <= code:
                    missing.setdefault(key, command)
    for key, command in missing.items():
        print(f"no page of docs/ names the key {key} of: spillway {command}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
