"""Sweeps as arrays of Slurm jobs, with tasks killed and requeued: sweep_slurm_test.py PROGRAM [--slurm]

Without --slurm a stand-in takes the place of sbatch and scontrol. With it Slurm itself runs on this machine, on ports of its own; exit
code 77, with the reason, where it cannot. The results have to be those of one undisturbed run, to the byte, each point run once.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import slurm_clusters  # noqa: E402
import sweep_processes  # noqa: E402

SCRIPT = HERE.parent.parent / "scripts" / "sweep-slurm"
PROGRAM = None
CLUSTER = slurm_clusters.StandIn


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name).resolve()
        (cls.folder / "cluster").mkdir()
        cls.cluster = CLUSTER(cls.folder / "cluster")
        cls.addClassCleanup(cls.cluster.stop)
        (cls.folder / "sweep.toml").write_text(sweep_processes.SWEEP)
        cls.expected = sweep_processes.undisturbed(PROGRAM, cls.folder / "sweep.toml", cls.folder / "undisturbed")

    def setUp(self):
        self.here = self.folder / self.id().rpartition(".")[2]  # where jobs are submitted from
        self.here.mkdir()
        shutil.copy(self.folder / "sweep.toml", self.here)
        self.out = self.here / "out"

    def call(self, *words, environment=None):
        """Where jobs are submitted from; the path `out` there is the absolute one, by which processes are found."""
        return subprocess.run([str(self.out) if word == "out" else str(word) for word in words], cwd=self.here, capture_output=True, text=True,
                              env=dict(self.cluster.environment, SPILLWAY=PROGRAM) if environment is None else environment)

    def submit(self, *words):
        """The array and the job after it."""
        done = self.call(SCRIPT, "--submit", *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        words = done.stdout.replace(",", "").split()
        self.assertEqual(words[0], "array")
        return words[1], words[3]

    def sbatch(self, *words, environment=None):
        done = self.call("sbatch", "--parsable", *words, environment=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def log_of(self, job, task=None):
        return (self.here / (f"slurm-{job}.out" if task is None else f"slurm-{job}_{task}.out")).read_text()

    def logs(self):
        return "\n".join(f"{log.name}: {log.read_text()}" for log in sorted(self.here.glob("slurm-*.out")))

    def check_results(self):
        self.assertTrue((self.out / "results.csv").exists(), self.logs())
        self.assertEqual((self.out / "results.csv").read_bytes(), self.expected)
        points = sweep_processes.identities(self.out)
        self.assertEqual((len(points), len(set(points))), (sweep_processes.POINTS, sweep_processes.POINTS), self.logs())

    def in_the_middle_of(self, shard, job):
        """The number of a stopped process that is not done with the shard, and the points it has written."""
        process = sweep_processes.stop_in_the_middle(self.out, shard, 3, gone=lambda: (self.out / "results.csv").exists())
        written = sweep_processes.identities(self.out)
        self.assertLess(sweep_processes.lines_of_shard(self.out, shard), sweep_processes.POINTS // int(shard.partition("/")[2]))
        return process, written


class EitherCluster(Case):
    def test_array_and_the_job_after_it(self):
        array, last = self.submit("3", "--cpus-per-task=2", "--", "sweep.toml", "out", "--no-plots")
        self.cluster.wait(last)
        self.check_results()
        self.assertEqual(self.cluster.exit_codes(array), [0, 0, 0])
        self.assertIn(f"sweep sweep.toml --out {self.out} --shard 2/3 --jobs 2 --no-plots", self.log_of(array, 2))
        self.assertNotIn("--shard", self.log_of(last))
        self.assertIn("nothing to do", self.log_of(last))

    def test_program_killed(self):
        array, last = self.submit("3", "--", "sweep.toml", "out")
        process, written = self.in_the_middle_of("2/3", array)
        os.kill(process, signal.SIGKILL)
        self.cluster.wait(last)
        self.assertIn("spillway was ended by signal 9; task 2/3 goes back into the queue, restart 1 of 3", self.log_of(array, 2))
        self.assertLessEqual(set(written), set(sweep_processes.identities(self.out)))
        self.check_results()
        self.assertIn("nothing to do", self.log_of(last))

    def test_task_requeued(self):
        array, last = self.submit("3", "--", "sweep.toml", "out")
        _, written = self.in_the_middle_of("2/3", array)
        self.cluster.requeue(array, 2)
        self.cluster.wait(last)
        self.assertEqual(self.log_of(array, 2).count("--shard 2/3"), 2, self.logs())
        self.assertLessEqual(set(written), set(sweep_processes.identities(self.out)))
        self.check_results()

    def test_array_by_hand_from_a_repository(self):
        """The program is found beside the script, of which Slurm runs a copy; whichever ends last writes the results."""
        repository = self.here / "a repository"
        (repository / "scripts").mkdir(parents=True)
        shutil.copy(SCRIPT, repository / "scripts")
        (repository / "build" / "release").mkdir(parents=True)
        (repository / "build" / "release" / "spillway").symlink_to(PROGRAM)
        job = self.sbatch("--array=2-8:3", repository / "scripts" / "sweep-slurm", "sweep.toml", "out", "--jobs", "1",
                          environment=self.cluster.environment)
        self.assertEqual(self.cluster.exit_codes(job), [0, 0, 0], self.logs())
        self.check_results()
        for task, shard in ((2, "1/3"), (5, "2/3"), (8, "3/3")):
            self.assertIn(f"--shard {shard} --jobs 1\n", self.log_of(job, task))

    def test_lost_tasks_are_done_by_the_last_job(self):
        job = self.sbatch("--array=1-3", SCRIPT, "sweep.toml", "out")
        process, _ = self.in_the_middle_of("2/3", job)
        os.kill(process, signal.SIGTERM)  # as by a time limit: not requeued
        os.kill(process, signal.SIGCONT)
        self.assertEqual(sorted(self.cluster.exit_codes(job)), [0, 0, 143], self.logs())
        self.assertFalse((self.out / "results.csv").exists())
        last = self.sbatch(f"--dependency=afterany:{job}", SCRIPT, "sweep.toml", "out")
        self.assertEqual(self.cluster.exit_codes(last), [0])
        self.check_results()


class StandInOnly(Case):
    def test_a_list_is_no_range(self):
        job = self.sbatch("--array=1,5,6", SCRIPT, "sweep.toml", "out")
        self.assertEqual(self.cluster.exit_codes(job), [2, 2, 2])
        self.assertIn("no range (first 1, last 6, 3 of them)", self.log_of(job, 5))
        self.assertFalse(self.out.exists())

    def test_a_program_that_always_dies_is_given_up(self):
        dying = self.here / "dying"
        dying.write_text("#!/bin/sh\necho begun\nkill -9 $$\n")
        dying.chmod(0o755)
        job = self.sbatch("--array=0-0", SCRIPT, "sweep.toml", "out", environment=dict(self.cluster.environment, SPILLWAY=str(dying)))
        self.assertEqual(self.cluster.exit_codes(job), [137])
        self.assertEqual(self.log_of(job, 0).count("begun"), 4)
        self.assertIn("restart 3 of 3", self.log_of(job, 0))

    def test_a_sweep_that_is_wrong_is_not_requeued(self):
        (self.here / "sweep.toml").write_text("[fixed]\nmodle = 1\n")
        job = self.sbatch("--array=1-2", SCRIPT, "sweep.toml", "out")
        self.assertEqual(self.cluster.exit_codes(job), [2, 2])
        self.assertIn("modle", self.log_of(job, 1))

    def test_what_is_missing_is_said(self):
        for words, message in (
                ((), "FILE and DIR are needed"),
                (("sweep.toml",), "FILE and DIR are needed"),
                (("sweep.toml", "out"), "this is no job of Slurm's"),
                (("--submit",), "needs the number of tasks"),
                (("--submit", "3"), "FILE and DIR are needed, after --"),
                (("--submit", "3", "sweep.toml", "out"), "FILE and DIR are needed, after --"),
                (("--submit", "3", "--", "none.toml", "out"), "none.toml: there is no such file")):
            done = self.call(SCRIPT, *words)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(message, done.stderr)
        done = self.call(SCRIPT, "--submit", "3", "--", "sweep.toml", "out", environment=dict(self.cluster.environment, SPILLWAY="/none"))
        self.assertIn("/none is not there", done.stderr)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(self.call(SCRIPT, "--help").returncode, 0)
        self.assertFalse(self.out.exists())


def load_tests(loader, _, __):
    cases = (EitherCluster,) if CLUSTER is slurm_clusters.RealSlurm else (EitherCluster, StandInOnly)
    return unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in cases)


def slurm_runs():
    """Whether it does; says why not."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            slurm_clusters.RealSlurm(folder).stop()
        except slurm_clusters.Unavailable as reason:
            print(f"skipped: {reason}")
            return False
    return True


if __name__ == "__main__":
    PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
    if "--slurm" in sys.argv:
        sys.argv.remove("--slurm")
        CLUSTER = slurm_clusters.RealSlurm
        if not slurm_runs():
            sys.exit(77)
    unittest.main(verbosity=2)
