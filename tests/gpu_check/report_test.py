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
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent.parent / "scripts"))

from gpu_check import machine, measuring, packs, report, verdicts  # noqa: E402
from gpu_check.session import Failure, Session  # noqa: E402

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

    def test_what_packed_files_bring_is_collected_and_stays(self):
        out = self.root / "out"
        (out / "traces").mkdir(parents=True)
        shutil.copy(SAMPLE / "summary.json", out)
        (out / "machine-gpt2-774m.toml").write_text('name = "sample"\n')
        (out / "traces" / "a.json.gz").write_bytes(b"trace")
        (out / "traces" / "huge.json.gz").write_bytes(os.urandom(1000001))  # comes home, and is too large for the repository
        report.write(out, self.summary())
        packs.write(Session(out, 60, "spillway"), out / "packed")
        for source in (out / "packed", out):
            target = report.collect(self.root, source)
            self.assertEqual(target, self.root / "traces" / "recorded" / "nvidia-sample-80gb")
            self.assertEqual(sorted(path.name for path in target.iterdir()), ["a.json.gz", "machine-gpt2-774m.toml", "summary.json"])
        text = self.document.read_text()
        self.assertTrue(text.startswith("Text before.\n") and text.endswith("\nText after.\n"))
        self.assertIn("| 1 | gpt2-124m | 64 in 32 | 1024 |", text)
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

        def product(ratio, **best):
            return lambda summary: summary["facts"]["figures"].__setitem__(0, {
                **{key: value for key, value in summary["facts"]["figures"][0].items() if key != "best_of_eight"}, "ratio": ratio, **best})

        def attention(value):
            return lambda summary: summary["facts"]["figures"][1].update(value=value)

        def copied(ratio):
            return lambda summary: [one.update(ratio=ratio) for one in summary["facts"]["figures"] if one["name"].startswith("gpu/kernel")]

        def busy(share):
            """The lane that the simulation has busy for 95 %, and another that is busier than it was simulated to be."""
            return lambda summary: [row.update(lanes={"gpu.compute": 0.99, "ssd.read": share}, simulated={"gpu.compute": 0.5, "ssd.read": 0.95},
                                               busiest="ssd.read") for row in summary["facts"]["validation"]]

        def errors(*values):
            """Of the two runs of greedysnake, and of all others far off."""
            return lambda summary: [row.update(error=error) for row, error in zip(summary["facts"]["validation"], (1, 1, *values))]

        for sentence, met, missed in (
                ("resident gpt2-124m", mfu(0, 400), mfu(0, 399)), ("resident gpt2-1.5b", mfu(1, 460), mfu(1, 459)),
                ("losses in bf16", parity(bf16=0.01), parity(bf16=0.0101)),
                ("losses in fp32", parity(fp32=0.0005), parity(fp32=0.00051)),
                # Where the best of eight algorithms was tried, that counts, and else the first.
                ("matrix products, of", product(0.8, best_of_eight={"ratio": 0.9}), product(1.0, best_of_eight={"ratio": 0.899})),
                ("matrix products, of", product(0.9, best_of_eight=None), product(0.899)),
                # PyTorch's best is 400 TFLOP/s.
                ("attention, of PyTorch's", attention(340), attention(339)),
                ("kernels that memory bounds", copied(0.85), copied(0.849)),
                ("the busiest lane", busy(0.9), busy(0.899)), ("the busiest lane", busy(1.0), busy(1.001)),
                ("beside measured: greedysnake", errors(0.05, -0.05), errors(0.051, -0.051)),
                ("beside measured: greedysnake", errors(0.1, 0), errors(0, -0.101))):
            self.assertEqual(self.verdict(sentence, met), verdicts.MET, sentence)
            self.assertEqual(self.verdict(sentence, missed), verdicts.MISSED, sentence)

    def test_attention_is_held_to_by_the_better_of_its_kinds(self):
        """The kind whose worst shape is better; PyTorch's best is 400 TFLOP/s at the first."""
        def wgmma(*values, mma=200):
            def change(summary):
                figures, best = summary["facts"]["figures"], {"name": "attention/other", "backend": "FLASH", "tflops": 100}
                summary["facts"]["torch"]["figures"].append(best)
                figures[1]["value"] = mma
                figures += [{**figures[1], "name": f"{name} with wgmma", "value": value}
                            for name, value in zip((figures[1]["name"], "gpu/attention/other"), values)]
            return change

        for change, verdict in ((wgmma(340, 85), verdicts.MET), (wgmma(399, 84), verdicts.MISSED),
                                (wgmma(399, 84, mma=340), verdicts.MET), (wgmma(190, 100, mma=339), verdicts.MISSED)):
            self.assertEqual(self.verdict("attention, of PyTorch's", change), verdict)
        summary = self.summary()
        wgmma(360, 85)(summary)
        row = next(row for row in verdicts.verdicts(summary) if "attention, of PyTorch's" in row["sentence"])
        self.assertEqual(row["measured"], "2 of 2; worst 85 %: gpu/attention/other with wgmma")
        self.assertRegex(report.markdown(summary), r"other with wgmma`.*100 \(flash\)")

    def test_without_pytorch_its_attention_is_not_measured(self):
        def failed(summary):
            del summary["facts"]["torch"]
            next(entry for entry in summary["parts"] if entry["name"] == "torch").update(result="FAILED", note="it broke")

        self.assertEqual(self.verdict("attention, of PyTorch's", failed), verdicts.UNKNOWN)

    def test_what_failed_is_missed_and_what_did_not_run_is_not_measured(self):
        def result(name, value):
            return lambda summary: [entry.update(result=value) for entry in summary["parts"] if entry["name"] == name]

        def all_passed(summary):
            for entry in summary["parts"]:
                entry["result"] = "passed"

        for sentence, name in (("under every policy", "policies"), ("--resume", "resume"), ("memcheck", "memcheck"), ("racecheck", "racecheck")):
            self.assertEqual(self.verdict(sentence, result(name, "passed")), verdicts.MET)
            self.assertEqual(self.verdict(sentence, result(name, "FAILED")), verdicts.MISSED)
            for other in ("left", "skipped"):
                self.assertEqual(self.verdict(sentence, result(name, other)), verdicts.UNKNOWN)
        # Each group of tests counts, and one that was not run is not taken for one that passed.
        self.assertEqual(self.verdict("every kernel, logits", all_passed), verdicts.MET)
        for tag in verdicts.TESTS:
            for value, verdict in (("FAILED", verdicts.MISSED), ("left", verdicts.UNKNOWN), ("skipped", verdicts.UNKNOWN)):
                self.assertEqual(self.verdict("every kernel, logits", lambda summary, tag=tag, value=value: (
                    all_passed(summary), result(f"tests {tag}", value)(summary))), verdict, tag)
        for row in verdicts.verdicts({"parts": [], "facts": {}}):
            self.assertEqual((row["verdict"], row["measured"]), (verdicts.UNKNOWN, ""))

    def test_a_missed_figure_is_a_failure_only_when_that_is_asked_for(self):
        out = self.root / "out"
        out.mkdir()
        summary = self.summary()
        for entry in summary["parts"]:
            entry["result"] = "passed"
        (out / "summary.json").write_text(json.dumps(summary))
        (self.root / "plan.json").write_text('{"only": ["no gpu"]}')  # nothing but to conclude from what is there
        words = [HERE.parent.parent / "scripts" / "gpu-check", "--plan", self.root / "plan.json", "--out", out, "--minutes", "60"]
        summary["parts"].append({**summary["parts"][0], "name": "no gpu"})
        (out / "summary.json").write_text(json.dumps(summary))
        tools = {**os.environ, "PATH": f"{HERE / 'stand_in'}:{os.environ['PATH']}"}
        for more, code in (([], 0), (["--strict"], 1)):
            answer = subprocess.run([*words, *more], env=tools, capture_output=True, text=True, check=False)
            self.assertEqual(answer.returncode, code, answer.stdout + answer.stderr)
            self.assertRegex(answer.stdout, r"offloaded: the busiest lane, beside its simulation +within 5 points +missed +2 of 3 runs")

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

    def test_what_is_held_to_is_the_lower_end_of_what_is_expected(self):
        """In docs/cuda.md, here, and in `spillway bench gpu/training`."""
        root = pathlib.Path(__file__).parents[2]
        source = (root / "experiments/speed/speed_gpu_training.cpp").read_text()
        held = {name: float(least) for name, least in re.findall(r'load_model\("([^"]+)".*?(0\.[0-9]+)\}', source, re.DOTALL)}
        self.assertEqual(held, {model: least for model, (least, _) in verdicts.EXPECTED_MFU.items()})
        said = re.search(r"\*\*(\d+) to (\d+) % is expected of the 124M, (\d+) to (\d+) % of the 1.5B\*\*", (root / "docs/cuda.md").read_text())
        self.assertEqual([int(word) for word in said.groups()],
                         [round(100 * share) for model in ("gpt2-124m", "gpt2-1.5b") for share in verdicts.EXPECTED_MFU[model]])

    def test_peaks_are_those_of_bench_gpu(self):
        text = (pathlib.Path(__file__).parents[2] / "experiments/speed/speed_gpu.cpp").read_text()
        table = re.search(r"Known known\[\] = \{(.*?)\};", text, re.DOTALL).group(1)
        known = {name: float(peak) for name, peak in re.findall(r'\{"([^"]+)", ([0-9.]+)e12\}', table)}
        self.assertEqual(known, machine.PEAKS)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        (SAMPLE / "report.md").write_text(
            report.markdown(json.loads((SAMPLE / "summary.json").read_text())).rstrip() + "\n")
    else:
        unittest.main(argv=sys.argv[:1], verbosity=2)
