"""What scripts/compare-builds finds and says, with stand-ins for the two programs: compare_builds_test.py PROGRAM

A stand-in answers each policy from a table of step time and peak of GPU memory. PROGRAM is a real one, which has to
understand the committed settings.
"""

import csv
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

if sys.version_info < (3, 11):
    print("skipped: Python 3.11 or later is needed, for its reader of TOML")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))

from compare_builds import settings  # noqa: E402

SETTINGS = """
[defaults]
machine = "m"
[[grid]]
name = "small"
model = "a"
batch = [1, 2]
policy = ["first:x={1,2}", "second"]
"""

STAND_IN = """#!{python}
import json, sys
words = sys.argv[1:]
assert words[:2] == ["simulate", "--json"], words
open({calls!r}, "a").write(" ".join(words) + "\\n")
seconds, gpu = {answers!r}.get(words[words.index("--policy") + 1], (10.0, 1000))
if seconds == "fails":
    print("spillway: gone wrong", file=sys.stderr)
    sys.exit(2)
fits = seconds is not None
print(json.dumps({{"fits": fits, "step_seconds": seconds,
                  "memory": {{"gpu": {{"peak_bytes": gpu}}, "host": {{"peak_bytes": 500}}, "ssd": {{"peak_bytes": 0}}}},
                  "lanes": {{"pcie.h2d": {{"bytes": 7}}, "ssd.read": {{"bytes": 9}}}}}}))
if not fits:
    print("spillway: does not fit in gpu memory", file=sys.stderr)
    sys.exit(3)
"""


class Compare(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)
        (self.path / "settings.toml").write_text(SETTINGS)

    def stand_in(self, name, answers=()):
        """A program that answers a policy with (step seconds, peak of GPU memory), by default (10.0, 1000)."""
        path = self.path / name
        path.write_text(STAND_IN.format(python=sys.executable, calls=str(self.path / f"{name}.calls"), answers=dict(answers)))
        path.chmod(0o755)
        return path

    def calls(self, name):
        path = self.path / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def compare(self, *words):
        done = subprocess.run([sys.executable, ROOT / "scripts" / "compare-builds", "--old", self.path / "old", "--new", self.path / "new",
                               "--settings", self.path / "settings.toml", "--out", self.path / "out", "--jobs", "2", *words],
                              capture_output=True, text=True, check=False)
        self.said = done.stdout + done.stderr
        return done.returncode

    def rows(self):
        with open(self.path / "out" / "table.csv", encoding="utf-8") as file:
            return {row["setting"]: row for row in csv.DictReader(file)}

    def test_equal_programs_are_within_the_limits(self):
        self.stand_in("old")
        self.stand_in("new")
        self.assertEqual(self.compare(), 0, self.said)
        rows = self.rows()
        self.assertEqual(list(rows), ["a m B1/auto T first:x=1", "a m B1/auto T first:x=2", "a m B1/auto T second",
                                      "a m B2/auto T first:x=1", "a m B2/auto T first:x=2", "a m B2/auto T second"])
        row = rows["a m B1/auto T second"]
        self.assertEqual((row["fits_old"], row["fits_new"], row["step_ratio"], row["gpu_peak_ratio"], row["ssd_peak_ratio"]),
                         ("yes", "yes", "1.0", "1.0", "1.0"))
        self.assertEqual((row["pcie.h2d_bytes_old"], row["pcie.d2h_bytes_new"], row["ssd.read_bytes_new"]), ("7", "0", "9"))
        self.assertIn("| all | 6 | 6 | 6 | 1.0000 |", self.said)

    def test_machines_may_come_from_one_folder_for_both(self):
        self.stand_in("old")
        self.stand_in("new")
        machines = self.path / "machines"
        self.assertEqual(self.compare("--machines", machines), 2, self.said)
        self.assertIn("there is no such folder", self.said)
        machines.mkdir()
        self.assertEqual(self.compare("--machines", machines), 2, self.said)
        self.assertIn("m.toml: there is no such file", self.said)
        (machines / "m.toml").write_text("")
        self.assertEqual(self.compare("--machines", machines), 0, self.said)
        for program in ("old", "new"):
            self.assertTrue(all(f"--machine {machines}/m.toml" in call for call in self.calls(program)), self.calls(program))
        self.assertIn("a m B1/auto T second", self.rows())

    def test_a_slower_setting_is_named(self):
        """3 % slower in one of three policies, 3 % faster in the others: the mean is held, the setting's limit is not."""
        self.stand_in("old")
        self.stand_in("new", {"second": (10.3, 1000), "first:x=1": (9.7, 1000), "first:x=2": (9.7, 1000)})
        self.assertEqual(self.compare(), 1, self.said)
        self.assertIn("exceeded: 2 settings above 1.02 in step time, the worst 1.030000: a m B1/auto T second", self.said)
        self.assertNotIn("geometric mean of step times is", self.said)
        self.assertIn("* 1.030000: a m B2/auto T second", self.said)
        self.assertEqual(self.compare("--time-limit", "1.04"), 0, self.said)

    def test_a_mean_that_is_worse_is_told_though_each_setting_is_within_its_limit(self):
        self.stand_in("old")
        self.stand_in("new", {"second": (10.1, 1000)})
        self.assertEqual(self.compare(), 1, self.said)
        self.assertIn("exceeded: the geometric mean of step times is 1.003322, above 1", self.said)
        self.assertNotIn("in step time, the worst", self.said)

    def test_a_larger_peak_is_named(self):
        self.stand_in("old")
        self.stand_in("new", {"second": (10.0, 1021)})
        self.assertEqual(self.compare(), 1, self.said)
        self.assertIn("exceeded: 2 settings above 1.02 in the peak of gpu memory", self.said)
        self.assertIn("* 1.021000: a m B1/auto T second", self.said)

    def test_fits_that_are_lost_or_gained_and_failures_are_named(self):
        self.stand_in("old", {"first:x=1": (None, 2000)})
        self.stand_in("new", {"second": (None, 3000), "first:x=2": ("fails", 0)})
        self.assertEqual(self.compare(), 1, self.said)
        self.assertIn("exceeded: 2 settings fit the old program and not the new one", self.said)
        self.assertIn("* a m B1/auto T second: spillway: does not fit in gpu memory", self.said)
        self.assertIn("exceeded: 2 settings make the new program fail", self.said)
        self.assertIn("* a m B1/auto T first:x=2: spillway: gone wrong", self.said)
        self.assertIn("## Fits the new program only\n\n* a m B1/auto T first:x=1:", self.said)

    def test_a_second_call_runs_only_what_has_changed(self):
        self.stand_in("old")
        self.stand_in("new")
        self.compare()
        self.assertEqual((len(self.calls("old")), len(self.calls("new"))), (6, 6))
        self.stand_in("new", {"second": (9.0, 1000)})
        self.assertEqual(self.compare(), 0, self.said)
        self.assertEqual((len(self.calls("old")), len(self.calls("new"))), (6, 12))
        self.assertIn("0.9000", self.said)

    def test_only_some_settings(self):
        self.stand_in("old")
        self.stand_in("new")
        self.assertEqual(self.compare("--only", "small: .*B2.*first"), 0, self.said)
        self.assertEqual(sorted(self.calls("new")), sorted(self.calls("old")))
        self.assertEqual(len(self.calls("new")), 2)
        self.assertEqual(self.compare("--only", "nothing like it"), 2)

    def test_a_variant_is_held_against_the_new_program(self):
        self.stand_in("old")
        self.stand_in("new", {"second:keep=all": (9.0, 1500), "first:x=1": (10.0, 1000), "first:x=1,keep=all": (11.0, 1000)})
        self.assertEqual(self.compare("--variant", "kept=keep=all"), 1, self.said)
        self.assertIn("exceeded: 2 settings above 1 in the step time of kept to that of new", self.said)
        self.assertIn("* 1.100000: a m B1/auto T first:x=1", self.said)
        self.assertNotIn("peak of gpu memory", self.said)
        row = self.rows()["a m B1/auto T second"]
        self.assertEqual((row["step_ratio"], row["step_ratio_kept"], row["gpu_peak_bytes_kept"]), ("1.0", "0.9", "1500"))
        self.assertEqual(self.compare("--variant", "kept=keep=all", "--variant-limit", "1.2"), 0, self.said)

    def test_the_new_program_is_asked_in_its_own_words(self):
        with open(self.path / "settings.toml", "a", encoding="utf-8") as file:
            file.write("""
[[grid]]
name = "pairs"
model = "b"
policy = [{ old = "third:y={1,2},w=3", new = "third:z={8,9}", new_arguments = "--more 5" }]
[[new]]
policy = "^first"
replace = [["x=1,?", ""]]
arguments = "--framework f"
""")
        self.stand_in("old")
        self.stand_in("new")
        self.compare("--variant", "v=keep=all --steps 3")
        self.assertIn("simulate --json --model a --machine m --batch 1 --policy first:x=1", self.calls("old"))
        self.assertIn("simulate --json --model b --machine m --policy third:y=2,w=3", self.calls("old"))
        for words in ("--model a --machine m --batch 1 --policy first --framework f",
                      "--model a --machine m --batch 1 --policy first:x=2 --framework f",
                      "--model a --machine m --batch 1 --policy second",
                      "--model b --machine m --policy third:z=9 --more 5",
                      "--model b --machine m --policy third:z=9,keep=all --more 5 --steps 3",
                      "--model a --machine m --batch 1 --policy first:keep=all --framework f --steps 3"):
            self.assertIn(f"simulate --json {words}", self.calls("new"))

    def test_what_is_wrong_in_the_settings_is_said(self):
        self.stand_in("old")
        self.stand_in("new")
        for text, message in (("[[grid]]\nname = 'g'\nbatsh = 1\npolicy = 'p'\n", "unknown key batsh"),
                              ("[[grid]]\nname = 'g'\n", "a grid has a name and a policy"),
                              ("[[grid]]\nname = 'g'\npolicy = [{ old = 'a{1,2}', new = 'b' }]\n", "do not name as many policies"),
                              ("[[grid\n", "settings.toml")):
            (self.path / "settings.toml").write_text(text)
            self.assertEqual(self.compare(), 2, self.said)
            self.assertIn(message, self.said)


class CommittedSettings(unittest.TestCase):
    program = ""

    def test_they_are_many_told_apart_by_name_and_understood(self):
        """One setting of each grid is run; the limits they state are tried by the comparison itself."""
        found = settings.load(ROOT / "scripts" / "compare_builds" / "settings.toml", {})
        self.assertGreaterEqual(len(found), 300)
        self.assertEqual(len({setting.name for setting in found}), len(found))
        families = {setting.family for setting in found}
        known = json.loads(subprocess.run([self.program, "policies", "--json"], capture_output=True, text=True, check=True).stdout)
        others = {"spillway"}  # whose settings are any plan, those of the other policies too
        of_one_rank = {policy["name"] for policy in known["policies"] if not policy["for_several_ranks"]}
        self.assertEqual(families, of_one_rank - others)
        for setting in {setting.grid: setting for setting in found}.values():
            done = subprocess.run([self.program, "simulate", "--json", *setting.new], capture_output=True, text=True, check=False)
            self.assertIn(done.returncode, (0, 3), f"{setting.grid}: {setting.name}: {done.stderr}")


if __name__ == "__main__":
    CommittedSettings.program = sys.argv.pop(1)
    unittest.main()
