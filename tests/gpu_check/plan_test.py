"""The plan is what is promised, sessions keep to their times, and what is packed stays within its limits."""

import contextlib
import io
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import time
import unittest
import unittest.mock

from helpers import HERE, ROOT, Case, Clock, part, script

from gpu_check import packs, plan, session as sessions, shapes
from gpu_check.parts import Parts
from gpu_check.session import FAILED, LEFT, PASSED, RUNNING, Failure, Finished, OutOfTime, last_words

MINUTES, CALL_MINUTES = 30, 9.5  # of a lent machine


class Planned(unittest.TestCase):
    def test_stages_fit_into_their_minutes_and_all_of_them_into_half_an_hour(self):
        stages = plan.load().stages
        self.assertEqual([(stage.name, stage.minutes) for stage in stages],
                         [("start", 3), ("right", 7), ("fast", 10), ("predicted", 10), ("more", None)])
        for stage in stages:
            expected = sum(one.seconds for one in stage.parts)
            if stage.minutes:
                self.assertLessEqual(expected, 60 * stage.minutes, stage.name)
            for one in stage.parts:
                self.assertGreaterEqual(one.limit, one.seconds)
                self.assertLess(one.limit, 600, one.name)  # a lent machine's calls end after ten minutes
        first = [one for stage in stages[:4] for one in stage.parts]
        calls = math.ceil(MINUTES / CALL_MINUTES)
        self.assertLessEqual(sum(one.seconds * (calls if one.always else 1) for one in first), 60 * MINUTES)

    def test_every_part_has_a_name_of_its_own_and_something_to_do(self):
        parts = plan.load().parts
        self.assertEqual(len({one.name for one in parts}), len(parts))
        for one in parts:
            self.assertTrue(hasattr(Parts, "do_" + one.do), one.do)

    def test_the_order_is_that_of_what_is_learnt_in_a_minute(self):
        """The groups of tests in the order in which one rests on the other, Hopper's last; then both kinds of attention."""
        names = [one.name for one in plan.load().parts]
        wanted = ["machine", "start", "build", "tests matmul", "tests kernels", "tests attention", "tests step", "tests policies",
                  "tests resume", "tests hopper", "mfu gpt2-124m", "mfu gpt2-124m with wgmma", "bench gpu/matmul",
                  "bench gpu/attention", "torch", "bench gpu/attention with wgmma", "mfu gpt2-1.5b", "calibrate",
                  "zero-infinity roomy", "large greedysnake", "memcheck"]
        self.assertEqual([name for name in names if name in wanted], wanted)
        large = next(one for one in plan.load().parts if one.name == "mfu gpt2-1.5b").arguments
        self.assertGreaterEqual(large["batch"], 64)
        self.assertGreaterEqual(large["micro_batches"][0], 32)

    def test_what_others_need_is_marked(self):
        """The program, and the machine files that runs are predicted with."""
        parts = plan.load().parts
        self.assertEqual([one.name for one in parts if one.needed], ["machine", "start", "build", "calibrate", "calibrate large"])
        for which, users in (("calibrate", "run"), ("calibrate large", "large")):
            place = [one.name for one in parts].index(which)
            self.assertTrue(all(index > place for index, one in enumerate(parts) if one.do == users))

    def test_times_are_sums_of_what_comes_before(self):
        seconds = [at for at, _ in plan.times(plan.load())]
        self.assertEqual(seconds[:4], [0, 20, 50, 50])
        self.assertEqual([plan.clock(value) for value in (0, 61, 605)], ["0:00", "1:01", "10:05"])

    def test_the_tiny_plan_changes_sizes_and_leaves_nothing_out(self):
        tiny, full = plan.load(HERE / "tiny_plan.json"), plan.load()
        self.assertEqual([(one.name, one.do, one.stage, one.hopper) for one in tiny.parts],
                         [(one.name, one.do, one.stage, one.hopper) for one in full.parts])
        self.assertEqual(set(tiny.sizes), set(full.sizes))
        for one, other in zip(tiny.parts, full.parts):
            self.assertLessEqual(set(other.arguments), set(one.arguments), one.name)
            self.assertEqual((one.always, one.needed), (other.always, other.needed), one.name)

    def test_shapes_are_those_of_the_bench(self):
        """shapes.py and the C++ that measures."""
        matmul = (ROOT / "exec/cuda/bench/bench_matmul.cpp").read_text()
        rows = re.search(r"rows = 16 \* 1024, vocabulary = (\d+), head_rows = (\d+);", matmul)
        self.assertEqual((shapes.ROWS, str(shapes.VOCABULARY), str(shapes.HEAD_ROWS)), (16 * 1024, *rows.groups()))
        widths = re.findall(r"add\((\d+), rows, vocabulary, head_rows\)", matmul)
        self.assertEqual([int(width) for width in widths], list(shapes.WIDTHS))
        self.assertEqual(re.findall(r'named\("([a-z-]+)"\)', matmul),
                         [name.rsplit("-c", 1)[0] for name, *_ in shapes.products(1, 1, 1, 1)])
        attention = (ROOT / "exec/cuda/bench/bench_attention.cpp").read_text()
        self.assertIn("channels = 2048;", attention)
        self.assertIn("tokens_at_once = 32 * 1024;", attention)
        self.assertEqual((shapes.WIDTH, shapes.TOKENS_AT_ONCE), (2048, 32 * 1024))
        self.assertIn("head_size : {64, 128}", attention)
        self.assertIn("tokens : {1024, 2048, 4096}", attention)
        self.assertEqual((shapes.HEADS, shapes.TOKENS), ((64, 128), (1024, 2048, 4096)))
        # 32 sequences of 1024 tokens, 32 heads of 64: 4 T^2 / 2 D H S.
        self.assertEqual(shapes.attention_flops(32, 32, 1024, 64), 32 * 2 * 1024 * 1024 * 2048)


class Simulated(Case):
    """Calls of a lent machine by a clock that does not run: parts take what they are expected to, and those that fail nearly
    all that they may."""

    parts = plan.load().parts
    wanted = [one.name for one in parts if one.stage != "more"]

    def setUp(self):
        super().setUp()
        self.clock, self.done, self.script, self.minutes = Clock(), [], script(), MINUTES
        patch = unittest.mock.patch.object(sessions, "time", self.clock)
        patch.start()
        self.addCleanup(patch.stop)

    def spend(self, session, one, fails):
        takes, allowed = (0.9 * one.limit if fails else one.seconds), session.time_left()
        self.clock.now += min(takes, allowed)
        if takes > allowed:
            raise OutOfTime("the call is over")
        self.done.append(one.name)
        if fails:
            raise Failure("it does not hold")

    def call(self, failing=()):
        """Its exit code."""
        session = self.session(60 * CALL_MINUTES, budget=60 * self.minutes)
        session.facts["tests"] = {}
        for one in session.order(self.parts):
            session.do(one, lambda one=one: self.spend(session, one, one.name in failing))
        with contextlib.redirect_stdout(io.StringIO()):
            return self.script.conclude(session, self.parts, self.folder / "packed", False)

    def calls(self, failing=()):
        """Exit codes of as many as are asked for."""
        codes = [self.call(failing)]
        while codes[-1] == self.script.UNFINISHED:
            self.assertLess(len(codes), 10)
            codes.append(self.call(failing))
        return codes

    def test_where_all_goes_as_expected_all_stages_but_the_last_are_done_in_the_minutes(self):
        codes = self.calls()
        self.assertEqual(codes, [75, 75, 75, 3])
        session = self.session()
        self.assertEqual([name for name in self.wanted if session.result_of(name) != PASSED], [])
        self.assertLessEqual(session.spent(), 60 * MINUTES)

    def test_what_fails_is_not_repeated_before_all_else_was_tried(self):
        """Five parts of the stage `right` that fail would take most of each call. Half an hour is too little for all others;
        where there is more they are done, and a call after that repeats what failed."""
        failing = ["tests matmul", "tests kernels", "tests attention", "tests step", "tests policies"]
        for self.minutes in (MINUTES, 3 * MINUTES):
            shutil.rmtree(self.folder)
            self.done.clear()
            self.assertEqual(self.calls(failing)[-1], 1)
            self.call(failing)
            first_repeated = next((place for place, name in enumerate(self.done) if name in failing and name in self.done[:place]), None)
            before = self.done[:first_repeated]
            for name in self.wanted if first_repeated else ("mfu gpt2-1.5b", "torch", "parity", "calibrate", "deep-optimizer-states roomy"):
                self.assertIn(name, before)
            self.assertEqual(first_repeated is not None, self.minutes > MINUTES)

    def test_what_failed_is_repeated_once_nothing_else_is_left(self):
        session = self.session()
        for name, result in (("bad", FAILED), ("good", PASSED), ("long", LEFT)):
            session.put({"stage": "right", "name": name, "result": result, "seconds": 1, "note": ""})
        parts = [part("bad"), part("good"), part("long", seconds=60), part("new")]
        self.assertEqual([one.name for one in session.order(parts)], ["good", "long", "new"])
        session.budget = 50  # of which the long one needs more
        self.assertEqual([one.name for one in session.order(parts)], ["good", "long", "new", "bad"])
        session.budget, parts[0].needed = 600, True
        self.assertEqual([one.name for one in session.order(parts)], ["bad", "good", "long", "new"])

    def test_another_call_is_asked_for_only_where_it_can_do_more(self):
        """A part of 180 s was left. Each call begins with 50 s of others, so 230 s have to be left of the minutes."""
        for spent, code in ((1500, 75), (1580, 3), (1675, 3), (1799, 3)):
            session = self.session(60 * CALL_MINUTES, budget=60 * MINUTES)
            session.summary["parts"] = [{"stage": "predicted", "name": "large greedysnake", "result": LEFT, "seconds": 0, "note": ""}]
            session.spent_before = spent
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(self.script.conclude(session, self.parts, self.folder / "packed", False), code, spent)

    def test_what_passed_stays_so_where_there_is_no_time_to_do_it_again(self):
        """Also where the call that did it again was killed."""
        self.do(self.session(), "start", lambda: "it starts", always=True)
        session = self.session(budget=3)
        self.do(session, "start", lambda: self.fail("there is no time"), always=True)
        self.assertEqual(session.entry("start")["note"], "it starts")
        session = self.session()

        def kill():
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            self.do(session, "start", kill, always=True)
        self.assertEqual(session.result_of("start"), RUNNING)
        self.assertEqual(self.session().result_of("start"), PASSED)

    def test_what_failed_stays_so_where_there_is_no_time_to_do_it_again(self):
        def fail():
            raise Failure("it does not hold")

        self.do(self.session(), "bad", fail)
        self.assertEqual(self.do(self.session(budget=3), "bad", lambda: self.fail("there is no time")), FAILED)
        self.assertEqual(self.session().entry("bad")["note"], "it does not hold")
        self.assertEqual(self.do(self.session(), "bad", lambda: "it holds"), PASSED)
        # What passed and fails in a later call has failed, for that one may be on another machine.
        self.assertEqual(self.do(self.session(), "bad", fail, always=True), FAILED)


class Remembered(Case):
    def test_a_part_that_passed_is_not_done_again_and_one_that_failed_is(self):
        done = []
        for _ in range(2):
            session = self.session()
            self.do(session, "good", lambda: done.append("good"))
            self.do(session, "bad", lambda: done.append("bad") or session.succeed(["false"], 5))
        self.assertEqual(done, ["good", "bad", "bad"])
        self.assertEqual([entry["result"] for entry in self.session().summary["parts"]], [PASSED, FAILED])

    def test_a_command_that_outlasts_the_call_is_left_and_one_that_outlasts_its_part_fails(self):
        session = self.session(seconds=1.3)
        self.assertEqual(self.do(session, "too long for this call", lambda: session.run(["sleep", "100"], 60), seconds=1), LEFT)
        session = self.session()
        self.assertEqual(self.do(session, "too long", lambda: session.run(["sleep", "100"], 60), seconds=1, limit=1.1), FAILED)
        self.assertIn("took longer than", session.entry("too long")["note"])

    def test_what_needs_more_time_than_is_left_is_not_begun(self):
        session = self.session(seconds=100)
        session.deadline -= 60  # 40 s are left of 100
        self.assertEqual(self.do(session, "long", lambda: self.fail("there is too little time for it"), seconds=50), LEFT)
        self.assertEqual(self.do(session, "short", lambda: "done", seconds=30), PASSED)
        session = self.session(seconds=100)
        self.assertEqual(self.do(session, "long", lambda: "done", seconds=500), PASSED)  # no call has so much

    def test_calls_share_the_minutes_of_the_plan(self):
        session = self.session(budget=100)
        self.do(session, "first", lambda: "done")
        session.spent_before += 90
        session.save()
        session = self.session(budget=100)
        self.assertLess(session.time_left(), 10)
        self.assertEqual(self.do(session, "second", lambda: self.fail("its 30 s are not there"), seconds=30), LEFT)

    def test_what_was_under_way_when_a_call_was_killed_comes_last_and_not_a_third_time(self):
        order = [part("culprit", seconds=7), part("after")]
        done = []
        for kills in (1, 2):
            session = self.session()
            session.put({"stage": "right", "name": "culprit", "result": RUNNING, "seconds": 0, "expected": 7, "note": "",
                         "commands": [], "kills": kills - 1})
            session = self.session()  # the next call
            self.assertEqual([one.name for one in session.order(order)], ["after", "culprit"])
            needed = [part("culprit", needed=True), part("after")]
            self.assertEqual([one.name for one in session.order(needed)], ["culprit", "after"])
            self.assertGreaterEqual(session.spent(), 7 * kills)  # nobody knows how long it took
            self.assertEqual(session.result_of("culprit"), LEFT if kills == 1 else FAILED)
        for one in session.order(order):
            session.do(one, lambda one=one: done.append(one.name))
        self.assertEqual(done, ["after"])
        self.assertIn("2 of 2", session.entry("culprit")["note"])

    def test_an_answer_of_another_form_costs_its_own_part_only(self):
        session = self.session()
        self.assertEqual(self.do(session, "odd", lambda: {}["figures"]), FAILED)
        self.assertEqual(self.do(session, "next", lambda: ""), PASSED)

    def test_all_children_of_a_command_end_with_it(self):
        session, flag = self.session(), self.folder / "flag"
        self.do(session, "children", lambda: session.run(["sh", "-c", f"(sleep 1.5; touch {flag}) & sleep 100"], 1))
        time.sleep(1)
        self.assertFalse(flag.exists())

    def test_a_command_ends_with_the_call_that_was_killed(self):
        """A call that runs `sleep`, whose number it learns from the log."""
        code = f"""import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r})
from gpu_check.session import Session
from gpu_check.plan import Part
session = Session({str(self.folder)!r}, 60, "spillway")
session.do(Part("part", "right", "part", 5, 60), lambda: session.run(["sh", "-c", "echo $$; exec sleep 100"], 60))"""
        call = subprocess.Popen([sys.executable, "-c", code])
        said = self.folder / "logs" / "stdout"
        while not said.exists() or not said.read_text().strip():
            self.assertIsNone(call.poll())
            time.sleep(0.02)
        command = pathlib.Path("/proc") / said.read_text().strip()
        self.assertTrue(command.exists())
        call.kill()
        call.wait()
        for _ in range(500):  # it is ended by the kernel, soon; nobody may be there to take note of its end
            try:
                if (command / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                    return
            except OSError:
                return
            time.sleep(0.02)
        self.fail("the command goes on")

    def test_the_line_that_says_what_went_wrong(self):
        for printed, line in (("a\nspillway: no such model\n  hint: b\n", "no such model"),
                              ("x.cpp:1: Error: first\nx.cpp:2: error: second\nbuild: advice\n", "x.cpp:1: Error: first"),
                              ("./a: error while loading shared libraries: libb.so.1: cannot open\n",
                               "./a: error while loading shared libraries: libb.so.1: cannot open"),
                              ("one\n\ntwo\n\n", "two"), ("", "it printed nothing")):
            self.assertEqual(last_words(Finished(1, "", printed)), line)

    def test_commands_are_noted_as_a_person_would_type_them(self):
        session = self.session()
        program, here = session.program, ROOT / "scripts" / "gpu_check"
        for argv, text in (([program, "train", "--run", self.folder / "runs" / "a b"], "spillway train --run 'OUT/runs/a b'"),
                           ([program.parent / "tests_cuda_gpu", "[step]"], "tests_cuda_gpu '[step]'"),
                           ([program.parent / "tests" / "tests_cuda_gpu"], "tests_cuda_gpu"), (["python3", here / "a.py"], "python3 a.py")):
            self.assertEqual(session.plain(argv), text)

    def test_only_names_parts_and_those_that_start_the_program_go_along(self):
        session, done = self.session(only="mfu*"), []
        for name, more in (("start", {"always": True}), ("tests", {}), ("mfu a", {})):
            self.do(session, name, lambda name=name: done.append(name), **more)
        self.assertEqual(done, ["start", "mfu a"])


class Packed(Case):
    def packed(self):
        return {path.name: tarfile.open(path).getnames() for path in sorted((self.folder / "packed").iterdir())}

    def write(self, name, size):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(os.urandom(size))
        time.sleep(0.002)  # they are packed in the order in which they were made

    def pack(self):
        session = self.session()
        session.save()
        packs.write(session, self.folder / "packed")
        return session.summary["left_out"]

    def test_at_most_eight_files_of_at_most_16_mb_and_what_finds_no_room_is_named(self):
        """Two traces of 7.4 MB fill a file. With what results.tgz may take, all together stay below 50 MB; that one has logs
        that nothing makes smaller."""
        for number in range(60):
            self.write(f"logs/{number}.log", packs.LOG_END)
        for number in range(4):
            self.write(f"traces/{number}.json.gz", 7_400_000)
        self.write("traces/huge.json.gz", 16_000_000)
        self.write("traces/last.json.gz", 7_400_000)
        left_out = self.pack()
        self.assertEqual([line.split(" ")[0] for line in left_out if "trace" in line], ["traces/huge.json.gz", "traces/last.json.gz"])
        self.assertEqual(len([line for line in left_out if "log" in line]), 30)
        packed = self.packed()
        self.assertEqual(packed.pop("results.tgz")[0], "results/summary.json")
        self.assertEqual(packed, {f"traces-{number + 1}.tgz": [f"results/traces/{2 * number + which}.json.gz" for which in (0, 1)]
                                  for number in range(2)})
        sizes = [path.stat().st_size for path in (self.folder / "packed").iterdir()]
        self.assertLess(len(sizes), packs.MOST_FILES)
        self.assertLess(max(sizes), 16_000_000)
        self.assertLess(sum(sizes), packs.ALL_BYTES)

    def test_many_traces_too_large_to_share_a_file_leave_room_for_the_one_being_written(self):
        with unittest.mock.patch.object(packs, "MOST_BYTES", 5_000), unittest.mock.patch.object(packs, "ALL_BYTES", 1_000_000):
            for number in range(10):
                self.write(f"traces/{number}.json.gz", 2_000)
            left_out = self.pack()
        self.assertEqual(len(self.packed()), 7)
        self.assertEqual(len(left_out), 4)

    def test_only_what_changed_is_written_again(self):
        self.write("traces/a.json.gz", 1000)
        self.pack()
        before = (self.folder / "packed" / "traces-1.tgz").stat().st_mtime_ns
        self.pack()
        self.assertEqual((self.folder / "packed" / "traces-1.tgz").stat().st_mtime_ns, before)
        self.write("traces/b.json.gz", 1000)
        self.pack()
        self.assertEqual(self.packed()["traces-1.tgz"], ["results/traces/a.json.gz", "results/traces/b.json.gz"])

    def test_a_trace_that_was_made_again_is_packed_again(self):
        """With the same size, with another, and with none of it changed."""
        for content in (b"first", b"again", b"a longer one"):
            (self.folder / "traces").mkdir(exist_ok=True)
            (self.folder / "traces" / "a.json.gz").write_bytes(content)
            self.pack()
            with tarfile.open(self.folder / "packed" / "traces-1.tgz") as archive:
                self.assertEqual(archive.extractfile("results/traces/a.json.gz").read(), content)
            time.sleep(0.01)

    def test_long_logs_travel_by_their_ends(self):
        (self.folder / "logs").mkdir()
        (self.folder / "logs" / "long.log").write_text("begin" + "x" * 3 * packs.LOG_END + "end")
        self.pack()
        with tarfile.open(self.folder / "packed" / "results.tgz") as archive:
            text = archive.extractfile("results/logs/long.log").read()
        self.assertTrue(text.endswith(b"xend") and b"begin" not in text)
        self.assertLess(len(text), packs.LOG_END + 100)

    def test_what_was_packed_is_what_out_was(self):
        session = self.session()
        self.do(session, "good", lambda: "a note")
        (self.folder / "machine-a.toml").write_text("a = 1\n")
        self.write("traces/a.json.gz", 1000)
        self.pack()
        other = self.folder / "other"
        other.mkdir()
        packs.restore(self.folder / "packed", other)
        for name in ("summary.json", "machine-a.toml", "traces/a.json.gz", "logs/good.log"):
            self.assertEqual((other / name).read_bytes(), (self.folder / name).read_bytes(), name)
        self.assertEqual(sorted(path.name for path in other.iterdir()), ["logs", "machine-a.toml", "summary.json", "traces"])

    def test_packs_of_several_calls_are_put_together(self):
        """The second call had the first one's results.tgz only: its own trace has the name of another file of the first."""
        brought = self.folder / "brought"
        self.write("traces/a.json.gz", 1000)
        self.pack()
        shutil.copytree(self.folder / "packed", brought / "call-1")
        (self.folder / "traces" / "a.json.gz").unlink()
        self.write("traces/b.json.gz", 1000)
        (self.folder / "machine-b.toml").write_text("b = 1\n")
        self.pack()
        shutil.copytree(self.folder / "packed", brought / "call-2")
        other = self.folder / "other"
        other.mkdir()
        packs.restore(brought, other)
        self.assertEqual(sorted(path.name for path in (other / "traces").iterdir()), ["a.json.gz", "b.json.gz"])
        self.assertTrue((other / "machine-b.toml").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
