"""gpu-check from its first step to the collected tables, with the CPU backend standing in for a GPU, or (with the module
of the emulated GPU as second argument) the CUDA backend on one.

What is checked: steps are done once and left for the next call when the time is over; a kill is survived; limits
are found that a run just fits in; failures are seen; results come home. Models and batches are the smallest there are.
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))

from gpu_check import machine, measuring, report, testing, training  # noqa: E402
from gpu_check.session import FAILED, LEFT, PASSED, Finished, Session, last_words  # noqa: E402

EMULATED = ""  # the module of an emulated GPU


class Flow(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpu-check-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.said = []

    def session(self, seconds=600, part="test"):
        session = Session(self.folder, seconds, HERE / "stand_in" / "spillway", speak=self.said.append)
        session.part = part
        return session

    def test_a_step_that_passed_is_not_done_again_and_one_that_failed_is(self):
        done = []
        for _ in range(2):
            session = self.session()
            session.step("good", lambda: done.append("good"))
            session.step("bad", lambda: session.succeed(["false"], 5))
        self.assertEqual(done, ["good"])
        self.assertEqual(self.session().result_of("good"), PASSED)
        self.assertEqual([step["result"] for step in self.session().of_part("test")], [PASSED, FAILED])

    def test_a_command_that_outlasts_the_call_is_left_and_one_that_outlasts_its_limit_fails(self):
        session = self.session(seconds=7)
        session.step("too long for this call", lambda: session.run(["sleep", "100"], 60))
        self.assertEqual(session.result_of("too long for this call"), LEFT)
        session = self.session()
        session.step("too long", lambda: session.run(["sleep", "100"], 1))
        self.assertEqual(session.result_of("too long"), FAILED)
        session = self.session(seconds=1)
        session.step("never begun", lambda: self.fail("there is no time for it"))
        self.assertEqual(session.result_of("never begun"), LEFT)

    def test_what_needs_more_time_than_is_left_is_not_begun(self):
        session = self.session(seconds=100)
        session.deadline -= 60  # 40 s are left of 100
        session.step("long", lambda: self.fail("there is too little time for it"), needs=50)
        session.step("short", lambda: "done", needs=30)
        self.assertEqual((session.result_of("long"), session.result_of("short")), (LEFT, PASSED))
        session = self.session(seconds=100)
        session.step("long", lambda: "done", needs=500)  # no call has so much
        self.assertEqual(session.result_of("long"), PASSED)

    def test_the_runs_that_are_done_are_a_spread_of_all(self):
        """Each policy, batch and limit once; each round is all policies, and at least a third of it of each batch and limit."""
        runs = list(measuring.spread())
        self.assertEqual(len(set(runs)), len(training.POLICIES) * len(measuring.BATCHES) * len(measuring.LEVELS))
        self.assertEqual(len(runs), len(set(runs)))
        count = len(training.POLICIES)
        for begin in range(0, len(runs), count):
            some = runs[begin:begin + count]
            self.assertEqual([policy for policy, _, _ in some], list(training.POLICIES))
            for which, values in ((1, measuring.BATCHES), (2, measuring.LEVELS)):
                for value in values:
                    self.assertGreaterEqual(sum(run[which] == value for run in some), count // 3)

    def test_a_large_run_comes_first_unless_it_failed(self):
        for result, place in ((None, 0), (PASSED, 0), (FAILED, -1)):
            session, began = self.session(part="validate"), []
            session.summary["steps"] = [{"part": "validate", "name": "large greedysnake", "result": result}] if result else []
            session.step = lambda name, function, **options: began.append(name)
            measuring.validate(session, measuring.Machine(session, None, self.folder / "ssd", "90GB"))
            runs = [name for name in began if "calibrate" not in name]
            self.assertEqual(runs[place], "large greedysnake", result)
            self.assertEqual(len(runs), len(set(runs)))

    def test_the_line_that_says_what_went_wrong(self):
        for printed, line in (("a\nspillway: no such model\n  hint: b\n", "no such model"),
                              ("x.cpp:1: Error: first\nx.cpp:2: error: second\nbuild: advice\n", "x.cpp:1: Error: first"),
                              ("one\n\ntwo\n\n", "two"), ("", "it printed nothing")):
            self.assertEqual(last_words(Finished(1, "", printed)), line)

    def test_all_children_of_a_command_end_with_it(self):
        session = self.session()
        flag = self.folder / "flag"
        session.step("children", lambda: session.run(["sh", "-c", f"(sleep 3; touch {flag}) & sleep 100"], 1))
        os.system("sleep 3")
        self.assertFalse(flag.exists())

    def test_every_policy_runs_in_the_least_memory_with_the_same_numbers(self):
        session = self.session()
        session.step("policies", lambda: testing.policies(session))
        self.assertEqual(session.result_of("policies"), PASSED, self.said)
        rows = session.facts["policies"]
        self.assertEqual([row["policy"].split(":")[0] for row in rows], list(training.POLICIES))
        self.assertTrue(all(row["same"] for row in rows))
        needs = {row["policy"]: training.bytes_of(row["gpu_memory"]) for row in rows}
        self.assertLess(needs["fuyou"], needs["resident"])  # it was the least, and not one limit for all

    def test_a_killed_run_is_resumed_and_compared(self):
        session = self.session()
        session.step("resume", lambda: testing.resume(session))
        self.assertEqual(session.result_of("resume"), PASSED, self.said)
        self.assertTrue(session.facts["resume"]["same"])
        self.assertGreaterEqual(session.facts["resume"]["commits_before_kill"], testing.COMMITS_BEFORE_KILL)

    def test_other_losses_than_the_resident_run_are_a_failure(self):
        learns_faster = self.stand_in("spillway", f"""
if [[ " $* " == *" fuyou "* ]]; then set -- "$@" --learning-rate 0.0011; fi
exec {HERE}/stand_in/spillway "$@"
""")
        session = self.session()
        session.program = learns_faster
        session.step("policies", lambda: testing.policies(session))
        self.assertEqual(session.result_of("policies"), FAILED)
        self.assertIn("than resident: fuyou", self.said[-1])

    def stand_in(self, name, text):
        path = self.folder / "tools" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/bash\n" + text)
        path.chmod(0o755)
        return path

    def test_a_sanitizer_that_finds_something_is_a_failure(self):
        """Two tests with the tag, one with a comma in its name; the third, without it, is not run.

        The tool ends with 99 where a test is bad, and with 0 where one is not reached."""
        tests = self.stand_in("tests_cuda_gpu", """
names='a, b\ngood\n'
[[ $MOOD != untagged ]] || names=
if [[ $1 == --list-test-names-only ]]; then [[ $2 != '[sanitizer]' ]] || printf "$names"; exit; fi
[[ $1 == '[sanitizer]' && $2 == --durations ]] || exit 2
echo '0.001 s: a, b'; [[ $MOOD == unreached ]] || echo '0.001 s: good'""")
        self.stand_in("compute-sanitizer", """
[[ "${*:2:7}" == 'memcheck --kernel-name kns=spillway --report-api-errors no --error-exitcode 99' ]] || exit 3
"${@:9}" || exit
[[ $MOOD != bad ]] || { echo '========= Invalid __global__ write of size 4 bytes'; exit 99; }""")
        for name, value in (("PATH", f"{self.folder}/tools:{os.environ['PATH']}"), ("MOOD", "good")):
            self.addCleanup(os.environ.__setitem__, name, os.environ.get(name, ""))
            os.environ[name] = value
        session = self.session()
        session.step("memcheck", lambda: testing.sanitize(session, "memcheck", tests))
        self.assertEqual(session.of_part("test")[-1]["note"], "no errors in 2 tests", self.said)
        self.assertEqual(session.facts["memcheck"], {"tests": 2, "of": 2, "clean": True})
        for mood, said in (("bad", "========= Invalid __global__ write"), ("unreached", "1 of 2 tests were not reached: good"),
                           ("untagged", "lists no test that is tagged [sanitizer]")):
            os.environ["MOOD"] = mood
            session.step(mood, lambda: testing.sanitize(session, "memcheck", tests))
            self.assertEqual(session.result_of(mood), FAILED)
            self.assertIn(said, self.said[-1])

    def test_what_ctest_prints_is_counted(self):
        """CMake 3 says "0 tests failed", CMake 4 says nothing of failures where there are none."""
        skipped = "2/3 Test #2: b ......***Skipped   0.00 sec\n\n"
        for text, counts in (("100% tests passed, 0 tests failed out of 3\n", (3, 0, 1)),
                             ("100% tests passed out of 3\n", (3, 0, 1)),
                             ("33% tests passed, 1 tests failed out of 3\n", (3, 1, 1)),
                             ("67% tests passed, 1 test failed out of 3\n", (3, 1, 1))):
            self.assertEqual(testing.ctest_counts(skipped + text), dict(zip(("tests", "failed", "skipped"), counts)), text)
        self.assertIsNone(testing.ctest_counts("No tests were found!!!\n"))

    def test_memory_that_comes_when_it_is_used_is_waited_for(self):
        """A machine of 8 GB that begins with 3 and is given 1 more whenever less than 2 are left."""
        step, total, taken = machine.GROW_STEP, [3], []

        class Taken:
            def close(self):
                taken.remove(self)

        def take(size):
            self.assertEqual(size, step)
            taken.append(Taken())
            if total[0] - len(taken) < 2:
                total[0] = min(total[0] + 1, 8)
            return taken[-1]

        def available():
            return (total[0] - len(taken)) * step

        self.assertEqual(machine.grow_memory(5 * step, 0.2, available, take), 7 * step)
        self.assertEqual(machine.grow_memory(6 * step, 0.2, available, lambda size: self.fail("it was there")), 7 * step)
        self.assertEqual(machine.grow_memory(100 * step, 0.2, available, take), 8 * step)
        self.assertEqual(taken, [])
        one = machine.take_memory(8 << 20)
        self.assertEqual(len(one), 8 << 20)
        one.close()

    def test_no_gpu_is_said_in_one_line(self):
        message = "spillway: --device cuda: there is no CUDA GPU here: cudaErrorNoDevice"
        for text, result in ((f"echo '{message}' >&2; echo '  hint: use --device cpu' >&2; exit 4", PASSED),
                             (f"echo '{message}' >&2; echo 'and more' >&2; exit 4", FAILED), ("exit 0", FAILED),
                             ("echo 'Segmentation fault' >&2; exit 139", FAILED)):
            session = self.session()
            session.program = self.stand_in("spillway", f'[[ -z ${{CUDA_VISIBLE_DEVICES-unset}} ]] || exit 9\n{text}\n')
            session.step("no gpu", lambda: testing.no_gpu(session), always=True)
            self.assertEqual(session.result_of("no gpu"), result, self.said)

    def test_losses_beside_those_of_the_cpu(self):
        """The stand-in computes the CPU's own losses, so the difference is nothing; an emulated GPU's are off by rounding,
        more so in bf16; one that learns faster is far off."""
        self.addCleanup(setattr, testing, "PARITY_STEPS", testing.PARITY_STEPS)
        testing.PARITY_STEPS = 4
        session = self.session()
        session.step("parity", lambda: testing.parity(session))
        self.assertEqual(session.result_of("parity"), PASSED, self.said)
        bf16, fp32 = session.facts["parity"]["bf16"], session.facts["parity"]["fp32"]
        if EMULATED:
            self.assertTrue(0 < fp32 < bf16, (fp32, bf16))
        else:
            self.assertEqual((bf16, fp32), (0, 0))
        session.program = self.stand_in("spillway", f"""
if [[ " $* " == *" bf16 "* ]]; then set -- "$@" --learning-rate 0.01; fi
exec {HERE}/stand_in/spillway "$@"
""")
        session.step("parity of another", lambda: testing.parity(session))
        self.assertEqual(session.result_of("parity of another"), FAILED)
        self.assertIn("bf16 losses differ by up to", self.said[-1])

    def test_bench_and_validate_end_in_tables(self):
        for name, value in (("SEQUENCE", 32 if EMULATED else 64), ("MODELS", ("gpt-tiny",)), ("LARGE_MODELS", ("gpt-tiny",)), ("MICRO_BATCH", 2),
                            ("BATCHES", (2, 4)), ("RESIDENT", (("gpt-tiny", 4, (4, 2)),)), ("LARGE_POLICIES", ("fuyou",)),
                            ("LARGE_GPU_MEMORY", "24MB")):
            self.addCleanup(setattr, measuring, name, getattr(measuring, name))
            setattr(measuring, name, value)
        gpu = {"name": "NVIDIA Stand-in", "compute_capability": "9.0", "memory_mib": 1000, "free_mib": 500, "driver": "1"}
        session = self.session(part="bench")
        session.summary.update({"gpu": gpu, "host": machine.describe_host(), "nvcc": "13.0", "date": "2026-01-02"})
        place = measuring.Machine(session, gpu, self.folder / "ssd", "400MB")
        measuring.bench(session, place)
        session.part = "validate"
        measuring.validate(session, place)
        results = {step["name"]: step["result"] for step in session.summary["steps"]}
        self.assertNotIn(FAILED, results.values(), self.said)
        self.assertEqual(results["mfu gpt-tiny"], PASSED)
        self.assertEqual(results["gpt-tiny fuyou b4 tight"], PASSED)
        self.assertEqual(results["large fuyou"], PASSED)
        groups = [name for name in session.speed_tests() if name.startswith("gpu/")]
        self.assertEqual([figure["name"] for figure in session.facts["figures"]], [f"{name}/sample" for name in groups])
        rows = session.facts["validation"]
        self.assertGreater(len(rows), 12)
        for row in rows:
            self.assertAlmostEqual(row["error"], row["predicted"] / row["measured"] - 1)
            self.assertAlmostEqual(row["of_bound"], row["bound"] / row["measured"])
            self.assertLessEqual(row["bound"], 1.0001 * row["predicted"])
        self.assertFalse(list((self.folder / "ssd").iterdir()))  # nothing stays on the drive

        report.write(self.folder, session.summary)
        root = self.folder / "repository"
        (root / "docs").mkdir(parents=True)
        (root / "docs" / "gpu.md").write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
        target = report.collect(root, self.folder / "results.tgz")
        self.assertEqual(target, root / "traces" / "recorded" / "nvidia-stand-in")
        self.assertTrue((target / "gpt-tiny-fuyou-b4-tight.json.gz").exists())
        self.assertTrue((target / "machine-gpt-tiny.toml").exists())
        text = (root / "docs" / "gpu.md").read_text()
        self.assertIn("| gpt-tiny | fuyou | 4 in 2 | tight |", text)
        self.assertNotIn("old", text)
        self.assertTrue(report.refresh(root, check=True))


if __name__ == "__main__":
    os.environ["SPILLWAY"] = str(pathlib.Path(sys.argv.pop(1)).resolve())
    if len(sys.argv) > 1 and sys.argv[1].endswith(".so"):
        os.environ["EMULATED_MODULE"] = EMULATED = str(pathlib.Path(sys.argv.pop(1)).resolve())
        # It takes its time.
        testing.POLICY_STEPS, testing.RESUME_STEPS, testing.COMMITS_BEFORE_KILL = 4, 60, 5
    unittest.main(verbosity=2)
