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

from gpu_check import measuring, training  # noqa: E402


def output(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)


class DryRun(unittest.TestCase):
    program = ""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.out = pathlib.Path(cls.folder.name) / "out"
        cls.answer = output(ROOT / "scripts" / "gpu-check", "--dry-run", "--program", cls.program, "--out", cls.out,
                            "--bundle", cls.folder.name)
        cls.lines = cls.answer.stdout.splitlines()
        cls.commands = [shlex.split(line)[1:] for line in cls.lines if line.startswith(cls.program)]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_all_parts_are_named_and_nothing_is_written(self):
        self.assertEqual(self.answer.returncode, 0, self.answer.stderr)
        self.assertEqual([line for line in self.lines if line.startswith("== ")],
                         ["== build", "== test", "== bench", "== validate"])
        self.assertFalse(self.out.exists())
        self.assertGreater(len(self.commands), 50)

    def test_the_program_knows_every_command_and_every_option(self):
        known = {}
        for words in self.commands:
            if words[0] not in known:
                help_text = output(self.program, words[0], "--help")
                self.assertEqual(help_text.returncode, 0, words[0])
                known[words[0]] = set(re.findall(r"--[a-z0-9-]+", help_text.stdout))
            for word in words:
                if word.startswith("--"):
                    self.assertIn(word, known[words[0]], shlex.join(words))

    def test_models_and_policies_are_those_of_the_program(self):
        policies = [policy["name"] for policy in json.loads(output(self.program, "policies", "--json").stdout)["policies"]]
        self.assertEqual(sorted(training.POLICIES), sorted(policies))
        models = [model["name"] for model in json.loads(output(self.program, "models", "--json").stdout)["models"]]
        used = {words[words.index("--model") + 1] for words in self.commands if "--model" in words}
        for model in used | {*measuring.MODELS, *measuring.LARGE_MODELS, *(entry[0] for entry in measuring.RESIDENT)}:
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

    def test_the_bundle_and_the_gpu_reach_the_build(self):
        build = next(shlex.split(line) for line in self.lines if "/scripts/build " in line)
        self.assertEqual(build[0], "env")
        self.assertIn("CMAKE_ARGUMENTS=-DCMAKE_CUDA_ARCHITECTURES=90-real", build)
        self.assertIn(f"SPILLWAY_BUNDLE={pathlib.Path(self.folder.name).resolve()}", build)

    def test_wrong_arguments_are_refused(self):
        for words in (["--part", "nothing"], ["--bundle", "/nowhere"], ["--collect", "/nowhere"], ["--host-memory", "90"]):
            self.assertEqual(output(ROOT / "scripts" / "gpu-check", *words).returncode, 2, words)


if __name__ == "__main__":
    DryRun.program = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
