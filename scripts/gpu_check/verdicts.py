"""What the CUDA backend is held to, sentence by sentence: the target, what was measured, and whether it is met.

A summary goes in, rows come out; what no step measured is said to be so, and is no verdict. Figures are those of an
H200; on another GPU they are a measure, not a promise.
"""

from .session import FAILED, PASSED, SKIPPED
from .training import median

MET, MISSED, UNKNOWN = "met", "missed", "not measured"

# Relative difference of a step's loss from that of the CPU in fp32. A bf16 number is off by up to 2^-9 of itself;
# losses are means over many, so 1 % is far above what rounding does and far below what a mistake does.
BF16_TOLERANCE, FP32_TOLERANCE = 0.01, 0.0005
LEAST_MFU = {"gpt2-124m": 0.45, "gpt2-1.5b": 0.50}
LEAST_OF_BARE, LEAST_OF_PEAK, LEAST_OF_COPY = 0.90, 0.50, 0.85
LEAST_BUSY, LEAST_OF_BOUND = 0.92, 0.90
MOST_MEDIAN_ERROR, MOST_ERROR = 0.05, 0.10


def percent(value):
    return f"{100 * value:.3g} %"


class Verdicts:
    """Rows of sentence, target, measured, verdict."""

    def __init__(self, summary):
        self.facts = summary["facts"]
        self.steps = {step["name"]: step for step in summary["steps"]}
        self.rows = []

    def add(self, sentence, target, measured, met):
        verdict = UNKNOWN if met is None else MET if met else MISSED
        self.rows.append({"sentence": sentence, "target": target, "measured": measured, "verdict": verdict})

    def missing(self, sentence, target, name):
        """There is no figure: a step that failed missed it; what was skipped, left or never begun says nothing."""
        step = self.steps.get(name)
        self.add(sentence, target, step["note"] if step else "", False if step and step["result"] == FAILED else None)

    def by_step(self, sentence, target, name):
        """The step itself is the check."""
        step = self.steps.get(name)
        if step and step["result"] in (PASSED, FAILED):
            self.add(sentence, target, step["note"], step["result"] == PASSED)
        else:
            self.add(sentence, target, f"skipped: {step['note']}" if step and step["result"] == SKIPPED else "", None)

    def losses(self, precision, most):
        sentence, target = f"losses in {precision} beside the CPU's in fp32, 50 steps", f"within {percent(most)}"
        off = self.facts.get("parity", {}).get(precision)
        if off is None:
            return self.missing(sentence, target, "parity")
        return self.add(sentence, target, percent(off), off <= most)

    def mfu(self, model, least):
        sentence, target = f"resident {model}, T = 1024: MFU", f">= {percent(least)}"
        shares = {row["model"].removeprefix(model): row["tflops"] / row["peak_tflops"]
                  for row in self.facts.get("mfu", []) if row["model"].startswith(model) and row["peak_tflops"]}
        if not shares:
            return self.missing(sentence, target, f"mfu {model}")
        best = max(shares, key=shares.get)
        return self.add(sentence, target, percent(shares[best]) + best, shares[best] >= least)

    def figures(self, sentence, least, group, prefix):
        """The worst of a group of `spillway bench gpu`."""
        target = f">= {percent(least)}"
        ratios = {figure["name"]: figure["ratio"] for figure in self.facts.get("figures", [])
                  if figure["name"].startswith(prefix) and figure.get("target") and figure["ratio"] is not None}
        if not ratios:
            return self.missing(sentence, target, f"bench {group}")
        worst = min(ratios, key=ratios.get)
        enough = sum(ratio >= least for ratio in ratios.values())
        return self.add(sentence, target, f"{enough} of {len(ratios)}; worst {percent(ratios[worst])}: {worst}",
                        enough == len(ratios))

    def worst_run(self, sentence, least, shares, step):
        target = f">= {percent(least)}"
        if not shares:
            return self.missing(sentence, target, step)
        worst = min(shares, key=shares.get)
        enough = sum(share >= least for share in shares.values())
        return self.add(sentence, target, f"{enough} of {len(shares)} runs; worst {percent(shares[worst])}: {worst}",
                        enough == len(shares))

    def errors(self):
        errors = [abs(row["error"]) for row in self.facts.get("validation", [])]
        for which, pick, most in (("median", median, MOST_MEDIAN_ERROR), ("worst", max, MOST_ERROR)):
            sentence, target = f"step time, predicted beside measured: {which}", f"<= {percent(most)}"
            if errors:
                self.add(sentence, target, f"{percent(pick(errors))} of {len(errors)} runs", pick(errors) <= most)
            else:
                self.add(sentence, target, "", None)


def busy_of_bottleneck(row):
    """Of the lane that sets the bound; where that is no single lane, of the busiest."""
    return row["lanes"].get(row["bound_by"], row["lanes"][row["busiest"]])


def verdicts(summary):
    made = Verdicts(summary)
    made.by_step("every kernel, logits, loss and all gradients beside references", "no test fails", "cuda tests")
    made.losses("bf16", BF16_TOLERANCE)
    made.losses("fp32", FP32_TOLERANCE)
    made.by_step("losses and weights under every policy", "the same bits", "policies")
    if "policies with wgmma" in made.steps:
        made.by_step("the same with attention's kernels for Hopper", "the same bits", "policies with wgmma")
    made.by_step("losses and weights after a kill and --resume", "the same bits", "resume")
    made.by_step("compute-sanitizer memcheck, every kernel", "no errors", "memcheck")
    made.by_step("compute-sanitizer racecheck, every kernel", "no errors", "racecheck")
    made.by_step("--device cuda where there is no GPU", "says so in one line", "no gpu")
    for model, least in LEAST_MFU.items():
        made.mfu(model, least)
    made.figures("matrix products, of a bare cuBLASLt call", LEAST_OF_BARE, "gpu/matmul", "gpu/matmul/")
    made.figures("attention, of the peak of matrix products", LEAST_OF_PEAK, "gpu/attention", "gpu/attention/")
    made.figures("kernels that memory bounds, of a copy", LEAST_OF_COPY, "gpu/memory", "gpu/kernel/")
    rows = summary["facts"].get("validation", [])
    made.worst_run("offloaded: the bottleneck is busy", LEAST_BUSY,
                   {row["name"]: busy_of_bottleneck(row) for row in rows if row["policy"] != "resident"}, "")
    large = [row for row in rows if row["name"].startswith("large ")]
    failed = [name for name, step in made.steps.items() if name.startswith("large ") and step["result"] == FAILED]
    made.worst_run("states larger than the GPU memory given: of the schedule's bound", LEAST_OF_BOUND,
                   {f"{row['name']}, {row['model']}": row["of_bound"] for row in large if row["of_bound"]},
                   failed[0] if failed else "")
    made.errors()
    return made.rows
