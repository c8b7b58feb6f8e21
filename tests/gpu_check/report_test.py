"""From a stored summary to tables: what is in sample/summary.json has to come out as sample/report.md, to the letter.

The sample's figures are invented. After a change to the tables: report_test.py --write, and read the difference.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent.parent / "scripts"))

from gpu_check import machine, measuring, report, verdicts  # noqa: E402
from gpu_check.session import Failure  # noqa: E402

SAMPLE = HERE / "sample"


class Report(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="gpu-report-"))
        self.addCleanup(shutil.rmtree, self.root)
        (self.root / "docs").mkdir()
        self.document = self.root / "docs" / "gpu.md"
        self.document.write_text(f"Text before.\n\n{report.BEGIN}\n{report.NOTHING}\n{report.END}\n\nText after.\n")

    def summary(self):
        return json.loads((SAMPLE / "summary.json").read_text())

    def test_the_tables_of_the_sample(self):
        self.assertEqual(report.markdown(self.summary()).rstrip() + "\n", (SAMPLE / "report.md").read_text())

    def test_what_an_archive_brings_is_collected_and_stays(self):
        out = self.root / "out"
        (out / "traces").mkdir(parents=True)
        shutil.copy(SAMPLE / "summary.json", out)
        (out / "machine-gpt2-774m.toml").write_text('name = "sample"\n')
        (out / "traces" / "a.json.gz").write_bytes(b"trace")
        (out / "traces" / "huge.json.gz").write_bytes(bytes(1000001))
        report.write(out, self.summary())
        with tarfile.open(out / "results.tgz") as archive:
            self.assertEqual(archive.getnames(), ["results/summary.json", "results/report.md",
                                                  "results/machine-gpt2-774m.toml", "results/traces/a.json.gz"])
        for source in (out / "results.tgz", out):
            target = report.collect(self.root, source)
            self.assertEqual(target, self.root / "traces" / "recorded" / "nvidia-sample-80gb")
            self.assertTrue((target / "a.json.gz").exists())
        text = self.document.read_text()
        self.assertTrue(text.startswith("Text before.\n") and text.endswith("\nText after.\n"))
        self.assertIn(report.markdown(self.summary()).rstrip(), text)
        self.assertNotIn(report.NOTHING, text)

    def test_tables_that_are_not_those_of_the_results_are_found(self):
        self.assertTrue(report.refresh(self.root, check=True))
        folder = self.root / "traces" / "recorded" / "nvidia-sample"
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps(self.summary()))
        self.assertFalse(report.refresh(self.root, check=True))
        self.assertIn(report.NOTHING, self.document.read_text())  # --check writes nothing
        report.refresh(self.root)
        self.assertTrue(report.refresh(self.root, check=True))

    def test_the_median_is_that_of_absolute_errors(self):
        # Errors -2 %, +4 %, +9 %, -3.2 %: absolute 2, 3.2, 4, 9, so the median is 3.6 and the largest 9.
        text = report.markdown(self.summary())
        self.assertIn("4 runs: median error 3.6 %, largest 9.0 %, median with its sign +1.0 %.", text)

    def verdict(self, sentence, change=lambda summary: None):
        summary = self.summary()
        change(summary)
        found = [row for row in verdicts.verdicts(summary) if sentence in row["sentence"]]
        self.assertEqual(len(found), 1, sentence)
        return found[0]["verdict"]

    def test_every_figure_held_to_is_met_at_its_limit_and_missed_beyond(self):
        """Both sides of each limit, as the figures would be stored."""
        def mfu(index, tflops):
            return lambda summary: summary["facts"]["mfu"][index].update(tflops=tflops, peak_tflops=1000)

        def parity(**losses):
            return lambda summary: summary["facts"]["parity"].update(losses)

        def figure(name, ratio):
            return lambda summary: summary["facts"]["figures"][0].update(name=name, ratio=ratio)

        def all_runs(**values):
            return lambda summary: [row.update(values) for row in summary["facts"]["validation"]]

        def busy(share):
            return all_runs(lanes={"gpu.compute": share, "ssd.read": 0.9}, bound_by="gpu.compute", busiest="gpu.compute")

        def errors(*values):
            return lambda summary: [row.update(error=error) for row, error in zip(summary["facts"]["validation"], values)]

        for sentence, met, missed in (
                ("resident gpt2-124m", mfu(0, 450), mfu(0, 449)), ("resident gpt2-1.5b", mfu(1, 500), mfu(1, 499)),
                ("losses in bf16", parity(bf16=0.01), parity(bf16=0.0101)),
                ("losses in fp32", parity(fp32=0.0005), parity(fp32=0.00051)),
                ("matrix products, of", figure("gpu/matmul/a", 0.9), figure("gpu/matmul/a", 0.899)),
                ("attention, of the peak", figure("gpu/attention/a", 0.5), figure("gpu/attention/a", 0.499)),
                ("bottleneck is busy", busy(0.92), busy(0.919)),
                ("of the schedule's bound", all_runs(of_bound=0.9), all_runs(of_bound=0.899)),
                ("beside measured: median", errors(0.05, -0.05, 0.05, 0.09), errors(0.051, -0.051, 0.051, 0.051)),
                ("beside measured: worst", errors(0.1, 0, 0, 0), errors(0, -0.101, 0, 0))):
            self.assertEqual(self.verdict(sentence, met), verdicts.MET, sentence)
            self.assertEqual(self.verdict(sentence, missed), verdicts.MISSED, sentence)
        self.assertEqual(self.verdict("kernels that memory bounds"), verdicts.MISSED)
        self.assertEqual(self.verdict("kernels that memory bounds", lambda summary: summary["facts"]["figures"][1].update(
            ratio=0.85)), verdicts.MET)

    def test_what_failed_is_missed_and_what_did_not_run_is_not_measured(self):
        def result(name, value):
            return lambda summary: [step.update(result=value) for step in summary["steps"] if step["name"] == name]

        for sentence, name in (("under every policy", "policies"), ("--resume", "resume"), ("memcheck", "memcheck"),
                               ("every kernel, logits", "cuda tests"), ("racecheck", "racecheck")):
            self.assertEqual(self.verdict(sentence, result(name, "passed")), verdicts.MET)
            self.assertEqual(self.verdict(sentence, result(name, "FAILED")), verdicts.MISSED)
            for other in ("left", "skipped"):
                self.assertEqual(self.verdict(sentence, result(name, other)), verdicts.UNKNOWN)

        def large_run_failed(summary):
            summary["facts"]["validation"].pop()
            summary["steps"].append({"part": "validate", "name": "large fuyou", "result": "FAILED", "note": "exit code 5"})

        self.assertEqual(self.verdict("of the schedule's bound", large_run_failed), verdicts.MISSED)
        for row in verdicts.verdicts({"steps": [], "facts": {}}):
            self.assertEqual((row["verdict"], row["measured"]), (verdicts.UNKNOWN, ""))

    def test_a_missed_figure_is_a_failure_only_when_that_is_asked_for(self):
        out = self.root / "out"
        out.mkdir()
        summary = self.summary()
        for step in summary["steps"]:
            step["result"] = "passed"
        (out / "summary.json").write_text(json.dumps(summary))
        words = [HERE.parent.parent / "scripts" / "gpu-check", "--part", "test", "--only", "nothing", "--out", out,
                 "--program", HERE / "stand_in" / "spillway"]
        tools = {**os.environ, "PATH": f"{HERE / 'stand_in'}:{os.environ['PATH']}"}
        for more, code in (([], 0), (["--strict"], 1)):
            answer = subprocess.run([*words, *more], env=tools, capture_output=True, text=True, check=False)
            self.assertEqual(answer.returncode, code, answer.stdout + answer.stderr)
            self.assertRegex(answer.stdout, r"resident gpt2-124m, T = 1024: MFU +>= 45 % +missed +42.1 %")

    def test_other_formats_are_refused(self):
        summary = self.summary()
        summary["format"] = 99
        (self.root / "summary.json").write_text(json.dumps(summary))
        with self.assertRaises(Failure):
            report.collect(self.root, self.root)

    def test_flops_of_a_token(self):
        # GPT-2 124M at T = 1024: 6 x 124439808 + 6 x 12 x 768 x 1024; PaLM's count has the attention term twice.
        shape = {"parameters": 124439808, "layers": 12, "hidden": 768}
        self.assertEqual(measuring.model_flops_per_token(shape, 1024), 746638848 + 56623104)
        self.assertEqual(measuring.palm_flops_per_token(shape, 1024), 746638848 + 2 * 56623104)

    def test_peaks_by_the_name_that_the_driver_gives(self):
        for name, peak in (("NVIDIA H200", 989.5), ("NVIDIA H100 80GB HBM3", 989.5), ("NVIDIA H100 PCIe", 756.0),
                           ("NVIDIA A100-SXM4-80GB", 312.0), ("NVIDIA L4", 121.0), ("NVIDIA L40S", 362.0),
                           ("NVIDIA GeForce RTX 4090", 165.2), ("NVIDIA GeForce GTX 970", None),
                           # Slower variants of a name, some of which are not known.
                           ("NVIDIA H200 NVL", 835.5), ("NVIDIA H100 NVL", 835.5), ("NVIDIA H100", None),
                           ("NVIDIA GeForce RTX 4090 D", None), ("NVIDIA GeForce RTX 4090 Laptop GPU", None)):
            self.assertEqual(machine.peak_tflops(name), peak, name)

    def test_peaks_are_those_of_bench_gpu(self):
        text = (pathlib.Path(__file__).parents[2] / "experiments/speed_gpu.cpp").read_text()
        table = re.search(r"Known known\[\] = \{(.*?)\};", text, re.DOTALL).group(1)
        known = {name: float(peak) for name, peak in re.findall(r'\{"([^"]+)", ([0-9.]+)e12\}', table)}
        self.assertEqual(known, machine.PEAKS)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        (SAMPLE / "report.md").write_text(
            report.markdown(json.loads((SAMPLE / "summary.json").read_text())).rstrip() + "\n")
    else:
        unittest.main(argv=sys.argv[:1], verbosity=2)
