#!/usr/bin/env python3
"""Sweeps as tasks of Dask, with workers killed: check.py --program SPILLWAY

What scripts/sweep-dask makes must be the bytes of one undisturbed run, each point run once: on workers of its own and on those of a
cluster, with a worker killed in the middle, with a program killed in the middle, and stopped and started again. Exit code 77: skipped,
with the reason: distributed is missing (pip install distributed, or apt-get install python3-distributed). SPILLWAY_DASK names another
python3 that has it.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "scripts"))

import sweep_processes  # noqa: E402

SHARDS = 6
POINTS_A_SHARD = sweep_processes.POINTS // SHARDS
PATIENCE_S = 300
PROGRAM = None


def wait_for_file(path, process):
    end = time.monotonic() + PATIENCE_S
    while not path.exists() or not path.read_text().strip():
        if process.poll() is not None or time.monotonic() > end:
            raise AssertionError(f"{path} did not appear")
        time.sleep(0.05)


class Dask(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name).resolve()
        cls.file = cls.folder / "sweep.toml"
        cls.file.write_text(sweep_processes.SWEEP)
        cls.expected = sweep_processes.undisturbed(PROGRAM, cls.file, cls.folder / "undisturbed")

    def setUp(self):
        self.out = self.folder / self.id().rpartition(".")[2]

    def start(self, *words, group=False):
        log = (self.folder / f"{self.out.name}.log").open("a")
        self.addCleanup(log.close)
        process = subprocess.Popen([sys.executable, ROOT / "scripts" / "sweep-dask", self.file, "--out", self.out, "--spillway", PROGRAM,
                                    "--shards", str(SHARDS), *map(str, words)], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                   start_new_session=group)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def log(self):
        return (self.folder / f"{self.out.name}.log").read_text()

    def in_the_middle_of(self, shard, process):
        """The number of a stopped process that is not done with the shard, and what is written by then."""
        pid = sweep_processes.stop_in_the_middle(self.out, shard, 3, gone=lambda: process.poll() is not None)
        written = set(sweep_processes.identities(self.out))
        self.assertLess(sweep_processes.lines_of_shard(self.out, shard), POINTS_A_SHARD)
        return pid, written

    def check_results(self, process, written=frozenset()):
        self.assertEqual(process.wait(PATIENCE_S), 0, self.log())
        self.assertEqual((self.out / "results.csv").read_bytes(), self.expected)
        points = sweep_processes.identities(self.out)
        self.assertEqual((len(points), len(set(points))), (sweep_processes.POINTS, sweep_processes.POINTS), self.log())
        self.assertLessEqual(written, set(points))
        # The tasks have done everything: the last run here only makes the table.
        self.assertIn("nothing to do", self.log())

    def test_undisturbed(self):
        process = self.start("--workers", 2)
        self.check_results(process)
        self.assertIn(f"{SHARDS}/{SHARDS} shards, {sweep_processes.POINTS} points run", self.log())

    def test_worker_killed(self):
        process = self.start("--workers", 2)
        pid, written = self.in_the_middle_of("2/6", process)
        worker = sweep_processes.parent_of(pid)
        self.assertNotEqual(worker, process.pid)
        os.kill(worker, signal.SIGKILL)
        self.check_results(process, written)

    def test_program_killed(self):
        process = self.start("--workers", 2)
        pid, written = self.in_the_middle_of("2/6", process)
        os.kill(pid, signal.SIGKILL)
        self.check_results(process, written)
        self.assertIn("shard 2/6: its program was ended by signal 9; run again", self.log())

    def test_stopped_and_started_again(self):
        process = self.start("--workers", 2, group=True)
        _, written = self.in_the_middle_of("2/6", process)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        # The programs end with their workers, and so let go of their journals.
        end = time.monotonic() + PATIENCE_S
        while any(sweep_processes.processes_of(self.out, f"{i}/{SHARDS}") for i in range(1, SHARDS + 1)):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        self.assertFalse((self.out / "results.csv").exists())
        self.check_results(self.start("--workers", 2), written)

    def test_shard_that_another_process_holds(self):
        """As by a worker that the scheduler has given up and that works on."""
        other = subprocess.Popen([PROGRAM, "sweep", self.file, "--out", self.out, "--shard", f"2/{SHARDS}", "--jobs", "1"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        pid = sweep_processes.stop_in_the_middle(self.out, "2/6", 3, gone=lambda: other.poll() is not None)
        process = self.start("--workers", 2)
        end = time.monotonic() + PATIENCE_S
        while sweep_processes.lines_of_shard(self.out, "3/6") < POINTS_A_SHARD:
            self.assertLess(time.monotonic(), end, self.log())
            time.sleep(0.02)
        os.kill(pid, signal.SIGCONT)
        self.assertEqual(other.wait(PATIENCE_S), 0)
        self.check_results(process)

    def test_worker_of_a_cluster_killed(self):
        """Without a nanny nobody starts the worker again: the other one does its shard."""
        address_file = self.folder / "scheduler.json"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
        daemons = [subprocess.Popen([sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
                                     "--scheduler-file", address_file], cwd=self.folder, **quiet)]
        self.addCleanup(lambda: [daemon.kill() or daemon.wait() for daemon in daemons])
        wait_for_file(address_file, daemons[0])
        for _ in range(2):
            daemons.append(subprocess.Popen([sys.executable, "-m", "distributed.cli.dask_worker", "--no-nanny", "--no-dashboard", "--nthreads", "1",
                                             "--scheduler-file", address_file], cwd=self.folder, **quiet))
        process = self.start("--scheduler", json.loads(address_file.read_text())["address"])
        pid, written = self.in_the_middle_of("2/6", process)
        worker = sweep_processes.parent_of(pid)
        self.assertIn(worker, [daemon.pid for daemon in daemons[1:]])
        os.kill(worker, signal.SIGKILL)
        self.check_results(process, written)

    def test_a_sweep_that_is_wrong_is_said_once(self):
        wrong = self.folder / "wrong.toml"
        wrong.write_text("[fixed]\nmodle = 1\n")
        done = subprocess.run([sys.executable, ROOT / "scripts" / "sweep-dask", wrong, "--out", self.out, "--spillway", PROGRAM, "--workers", "1"],
                              capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual(done.returncode, 1)
        self.assertIn("modle", done.stderr)
        self.assertFalse(self.out.exists())

    def test_a_program_that_always_dies_is_given_up(self):
        dying = self.folder / "dying"
        dying.write_text("#!/bin/sh\nkill -9 $$\n")
        dying.chmod(0o755)
        done = subprocess.run([sys.executable, ROOT / "scripts" / "sweep-dask", self.file, "--out", self.out, "--spillway", dying, "--workers", "1",
                               "--shards", "1", "--retries", "2"], capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual(done.returncode, 1)
        self.assertIn("given up after 3 times", done.stderr)


def main():
    global PROGRAM
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    arguments, rest = parser.parse_known_args()
    other = os.environ.get("SPILLWAY_DASK")
    if other and os.environ.get("SPILLWAY_DASK_FOUND") is None:
        os.environ["SPILLWAY_DASK_FOUND"] = "1"
        os.execv(other, [other, __file__, *sys.argv[1:]])
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        print(f"skipped: {error} (pip install distributed, or apt-get install python3-distributed; SPILLWAY_DASK names the python3 that has it)")
        return 77
    PROGRAM = str(pathlib.Path(arguments.program).resolve())
    return 0 if unittest.main(argv=[sys.argv[0], *rest], verbosity=2, exit=False).result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
