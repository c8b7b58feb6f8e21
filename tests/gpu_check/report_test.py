"""From a stored summary to tables: what is in sample/summary.json has to come out as sample/report.md, to the letter.

The sample's figures are invented. After a change to the tables: report_test.py --write, and read the difference.
"""

import json
import pathlib
import re
import shutil
import sys
import tarfile
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent.parent / "scripts"))

from gpu_check import machine, measuring, report  # noqa: E402
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
        # Errors -2 %, +4 %, +9 %: absolute 2, 4, 9, so the median is 4 and the largest 9.
        text = report.markdown(self.summary())
        self.assertIn("3 runs: median error 4.0 %, largest 9.0 %, median with its sign +4.0 %.", text)

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
