"""gpu-check is killed at random moments, with all its processes, and goes on: now from its folder, now from what it had
packed. Whatever it had said was done is there each time: in OUT, and in the packed files, whole.

  killed_test.py PROGRAM                         a few parts, with the CPU backend standing in for a GPU
  killed_test.py PROGRAM MODULE TESTS [SEED]     the whole plan, tiny, on an emulated GPU
"""

import contextlib
import gzip
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import unittest

from helpers import HERE, ROOT, Case

from gpu_check import packs, plan
from gpu_check.session import FAILED, LEFT, PASSED, RUNNING, SKIPPED

FEW = ["machine", "start", "sanitizer", "no gpu", "tests matmul", "tests kernels", "mfu gpt2-124m", "bench gpu/matmul",
       "bench gpu/attention", "torch", "bench ssd", "calibrate", "fuyou roomy", "large greedysnake", "memcheck"]


def processes_of(session):
    """All that belong to a session of the kernel's, whatever their process group."""
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = stat.read_text().rsplit(")", 1)[1].split()
            if int(words[3]) == session and words[0] != "Z":
                yield int(stat.parent.name)


def kill_all(session):
    """Until there is none left: one may have started another meanwhile."""
    while list(processes_of(session)):
        for process in processes_of(session):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


class Killed(Case):
    program, emulated, seed = "", None, 0
    kills, parts, pause = 3, 6, 1.0  # a kill comes after as many parts of a call at most, and up to so many seconds more

    def setUp(self):
        super().setUp()
        self.out, self.packed = self.folder / "out", self.folder / "packed"
        self.plan = self.folder / "plan.json"
        changes = json.loads((HERE / "tiny_plan.json").read_text())
        if not self.emulated:
            changes["only"] = FEW
        self.plan.write_text(json.dumps(changes))
        self.names = [part.name for part in plan.load(self.plan).parts]
        self.environment(SPILLWAY=self.program, PATH=f"{HERE / 'stand_in'}:{os.environ['PATH']}", PYTHONPATH=HERE / "stand_in")
        if self.emulated:
            module, tests = self.emulated
            self.environment(EMULATED_MODULE=module, TESTS_CUDA=tests)

    def start(self, log, *more):
        words = [ROOT / "scripts" / "gpu-check", "--program", HERE / "stand_in" / "spillway", "--plan", self.plan, "--out", self.out,
                 "--pack", self.packed, "--host-memory", "400MB", "--minutes", "120", *more]
        return subprocess.Popen([str(word) for word in words], stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def said_in(self, log):
        """What it had said was done: {part: result}. The last line may be cut off."""
        lines = re.findall(r"^   (\w+) +(.*?) \([0-9.e+-]+ s\)[:\n]", log.read_text(), re.MULTILINE)
        return {name: result for result, name in lines if name in self.names}

    def check(self, done, brought_back=False):
        """Each of these parts is in OUT and in the packed files, which are whole, with all that belongs to it.
        `brought_back`: the kill may have come before OUT was filled from the packed files."""
        files = list(self.packed.glob("*"))
        self.assertLessEqual(len(files), packs.MOST_FILES)
        self.assertTrue(all(path.stat().st_size <= 16_000_000 for path in files))
        if not done:
            return
        brought = self.folder / "brought"
        shutil.rmtree(brought, ignore_errors=True)
        brought.mkdir()
        for path in self.packed.glob("*.tgz"):
            with tarfile.open(path) as archive:
                archive.getmembers()  # reads it to its end
        packs.restore(self.packed, brought)
        packed = json.loads((brought / "summary.json").read_text())
        summary = packed
        if not brought_back or (self.out / "summary.json").exists():
            summary = json.loads((self.out / "summary.json").read_text())
        for name, result in done.items():
            for where, there in (("OUT", summary), ("packed", packed)):
                found = [entry["result"] for entry in there["parts"] if entry["name"] == name]
                self.assertEqual(len(found), 1, f"{name} in {where}")
                # One that was under way again when the kill came had not passed before.
                self.assertTrue(found[0] == result or (result != PASSED and found[0] in (RUNNING, LEFT)) or name in ("machine", "start"),
                                f"{name} in {where}: {found[0]}, and it had said {result}")
        self.assertTrue((brought / "report.md").read_text())
        measured = {name for name, result in done.items() if result == PASSED}
        rows = {row["name"]: row for row in packed["facts"].get("validation", [])}
        for name in measured & {part.name for part in plan.load(self.plan).parts if part.do in ("run", "large")}:
            trace = json.loads(gzip.decompress((brought / "traces" / rows[name]["trace"]).read_bytes()))
            self.assertGreater(len(trace["traceEvents"]), 10)
        for name in ("bench gpu/matmul", "bench gpu/attention"):
            if name in measured:
                self.assertTrue([figure for figure in packed["facts"]["figures"] if figure["name"].startswith(name.split(" ")[1])])
        if "calibrate" in measured:
            self.assertIn("[[kernel]]", (brought / "machine-gpt-tiny.toml").read_text())

    def test_what_was_done_is_there_after_a_kill_at_any_moment(self):
        chance = random.Random(self.seed)
        print(f"seed {self.seed}")
        log, done = self.folder / "log", {}
        for kill in range(self.kills):
            more = []
            if kill % 2 and (self.packed / "results.tgz").exists():  # another machine, which has only what was packed
                shutil.rmtree(self.out)
                more = ["--resume", self.packed]
            with open(log, "w") as opened:
                process = self.start(opened, *more)
            parts = chance.randint(0, self.parts)
            while process.poll() is None and len(self.said_in(log)) < parts:
                time.sleep(0.02)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0, self.pause))
            kill_all(process.pid)
            process.wait()
            new = self.said_in(log)
            again = {name for name in new if done.get(name) == PASSED} - {"machine", "start", "build"}
            self.assertFalse(again, "what passed was done again")
            done.update(new)
            print(f"killed after {len(done)} of {len(self.names)} parts")
            self.check(done, brought_back=bool(more))
        with open(log, "w") as opened:
            code = self.start(opened).wait()
        text = log.read_text()
        done.update(self.said_in(log))
        twice = {entry["name"] for entry in json.loads((self.out / "summary.json").read_text())["parts"]
                 if entry["result"] == FAILED and "(2 of 2)" in entry["note"]}  # it is not tried a third time
        self.assertEqual(code, 1 if twice else 0, text)
        self.assertEqual(set(done) | twice, set(self.names), text)
        self.assertNotIn(FAILED, [result for name, result in done.items() if name not in twice], text)
        self.check({name: result for name, result in done.items() if name not in twice})
        print(text)
        self.check_end(done, twice, text)

    def check_end(self, done, twice, text):
        """What could not be done here says why; everything else passed, and has its verdict."""
        if twice:
            print(f"under way in two calls that were killed: {twice}")
            return
        self.assertLessEqual({name for name, result in done.items() if result == SKIPPED}, {"build"})
        self.assertRegex(text, r"compute-sanitizer memcheck, (a few|every) kernels? +no errors +met")
        self.assertRegex(text, r"matrix products, of the best bare cuBLASLt algorithm +>= 90 % +missed +0 of 1; worst 80 %")
        self.assertRegex(text, r"attention, of PyTorch's best on the same GPU +>= 85 % +(met|missed) ")
        if self.emulated:
            self.assertRegex(text, r"losses and weights under every policy +the same bits +met")
            self.assertRegex(text, r"every kernel, logits, .* +no test fails +met +\d\d tests passed")


if __name__ == "__main__":
    Killed.program, *rest = (str(pathlib.Path(word).resolve()) if "/" in word else word for word in sys.argv[1:])
    if len(rest) >= 2:
        Killed.emulated, rest = rest[:2], rest[2:]
        Killed.kills, Killed.parts, Killed.pause = 6, 9, 10.0
    Killed.seed = int(rest[0]) if rest else random.SystemRandom().randrange(1 << 32)
    unittest.main(argv=sys.argv[:1], verbosity=2)
