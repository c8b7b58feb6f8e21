"""Every command that gpu-check would run is one that the program understands; nothing is run, and no GPU is needed."""

import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))

from gpu_check import plan, testing, training  # noqa: E402


def output(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)


class DryRun(unittest.TestCase):
    program = ""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.out = pathlib.Path(cls.folder.name) / "out"
        cls.answer = output(ROOT / "scripts" / "gpu-check", "--dry-run", "--program", cls.program, "--out", cls.out)
        cls.lines = [line.strip() for line in cls.answer.stdout.splitlines()]
        cls.commands = [shlex.split(line)[1:] for line in cls.lines if line.startswith(cls.program)]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_all_parts_are_named_with_their_times_and_nothing_is_written(self):
        self.assertEqual(self.answer.returncode, 0, self.answer.stderr)
        self.assertEqual([line.split(",")[0] for line in self.lines if line.startswith("== ")],
                         [f"== {stage.name}" for stage in plan.load().stages])
        times = [re.match(r"(\d+:\d\d) (.*): (\S+) s, ended after (\S+) s$", line) for line in self.lines]
        self.assertEqual([(found[1], found[2], float(found[3]), float(found[4])) for found in times if found],
                         [(plan.clock(at), part.name, part.seconds, part.limit) for at, part in plan.times(plan.load())])
        self.assertFalse(self.out.exists())
        self.assertGreater(len(self.commands), 40)

    def test_the_program_knows_every_command_and_every_option(self):
        known = {}
        for words in self.commands:
            if words == ["--version"]:
                continue
            if words[0] not in known:
                help_text = output(self.program, words[0], "--help")
                self.assertEqual(help_text.returncode, 0, words[0])
                known[words[0]] = set(re.findall(r"--[a-z0-9-]+", help_text.stdout))
            for word in words:
                if word.startswith("--"):
                    self.assertIn(word, known[words[0]], shlex.join(words))

    def test_the_test_that_compute_sanitizer_is_tried_with_is_there(self):
        """One that needs no more than a kernel."""
        found = [tags for path in (ROOT / "tests" / "cuda").rglob("*.cpp")
                 for name, tags in re.findall(r'TEST_CASE\("([^"]+)",\s*"([^"]*)"\)', path.read_text()) if name == testing.SMALLEST]
        self.assertEqual(found, ["[kernels]"])
        asked = [shlex.split(line) for line in self.lines if " --tool memcheck " in line]
        self.assertIn(testing.catch_name(testing.SMALLEST), asked[0])

    def test_models_and_policies_are_those_of_the_program(self):
        policies = [policy["name"] for policy in json.loads(output(self.program, "policies", "--json").stdout)["policies"]
                    if not policy["for_several_ranks"]]  # a check has one GPU
        self.assertEqual(sorted(training.POLICIES), sorted(policies))
        models = [model["name"] for model in json.loads(output(self.program, "models", "--json").stdout)["models"]]
        used = {words[words.index("--model") + 1] for words in self.commands if "--model" in words}
        sizes = plan.load().sizes
        for model in used | {*sizes["models"], *sizes["large_models"]}:
            self.assertIn(model, models)

    def test_a_policy_with_its_options_and_the_workload_are_accepted(self):
        """The program plans each job that is trained; only the GPU and the machine file are missing here."""
        jobs = set()
        for words in self.commands:
            if words[0] != "train" or "--policy" not in words:
                continue
            kept = [item for option in ("--model", "--policy", "--batch", "--micro-batch", "--sequence", "--precision")
                    for item in (option, words[words.index(option) + 1])]
            jobs.add(tuple(kept))
        self.assertGreater(len(jobs), 15)
        for job in sorted(jobs):
            answer = output(self.program, "estimate", *job, "--machine", "h200", "--json")
            self.assertIn(answer.returncode, (0, training.DOES_NOT_FIT), f"{job}: {answer.stderr}")

    def test_the_largest_model_fits_a_machine_of_128_gb_with_a_drive_of_64(self):
        """With what runs may take of them, and without commits, which would need the drive twice."""
        sizes = plan.load().sizes
        job = training.Job(sizes["large_models"][0], "greedysnake", sizes["large_batch"], sizes["micro_batch"], sizes["sequence"],
                           gpu_memory=sizes["large_gpu_memory"], host_memory="90GB", machine="h200")
        for durability, code in (("off", 0), ("step", training.DOES_NOT_FIT)):
            answer = output(self.program, "estimate", *job.words(), "--set", "ssd.capacity=45GB", "--durability", durability)
            self.assertEqual(answer.returncode, code, answer.stdout + answer.stderr)

    def test_the_bundle_the_gpu_and_the_processors_reach_the_build(self):
        (pathlib.Path(self.folder.name) / "include" / "catch2").mkdir(parents=True)
        (pathlib.Path(self.folder.name) / "include" / "catch2" / "catch.hpp").write_text("")  # without it, no tests are built
        answer = output(ROOT / "scripts" / "gpu-check", "--dry-run", "--out", self.out, "--bundle", self.folder.name)
        build = next(shlex.split(line) for line in answer.stdout.splitlines() if "/scripts/build " in line)
        self.assertEqual(build[0], "env")
        self.assertIn("CMAKE_ARGUMENTS=-DCMAKE_CUDA_ARCHITECTURES=90-real", build)
        self.assertIn(f"SPILLWAY_BUNDLE={pathlib.Path(self.folder.name).resolve()}", build)
        self.assertTrue([word for word in build if re.fullmatch(r"JOBS=\d+", word)], build)
        self.assertEqual(build[-4:], ["cuda", "spillway", "spillway_cuda", "tests_cuda_gpu"])

    def test_a_program_built_elsewhere_is_tried_first(self):
        answer = output(ROOT / "scripts" / "gpu-check", "--dry-run", "--out", self.out, "--prebuilt", self.folder.name)
        commands = [line.strip() for line in answer.stdout.splitlines() if line.startswith("  /") or line.startswith("  env")]
        self.assertEqual(commands[0], f"{self.folder.name}/spillway --version")
        self.assertTrue(commands[2].startswith("env "), commands[2])  # built here, should that not start

    def test_wrong_arguments_are_refused(self):
        for name, text in (("unknown", '{"parts": {"nothing": {}}}'), ("broken", "{"), ("other", '{"stages": []}')):
            (pathlib.Path(self.folder.name) / name).write_text(text)
        plans = [["--plan", f"{self.folder.name}/{name}"] for name in ("unknown", "broken", "other")]
        for words in (["--part", "nothing"], ["--bundle", "/nowhere"], ["--collect", "/nowhere"], ["--host-memory", "90"],
                      ["--prebuilt", "/nowhere"], ["--resume", "/nowhere"], *plans):
            self.assertEqual(output(ROOT / "scripts" / "gpu-check", *words).returncode, 2, words)


if __name__ == "__main__":
    DryRun.program = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
