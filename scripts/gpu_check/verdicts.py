"""What the CUDA backend is held to, sentence by sentence: the target, what was measured, and whether it is met.

A summary goes in, rows come out; what no part measured is said to be so, and is no verdict. Figures are those of an
H200; on another GPU they are a measure, not a promise.
"""

from .machine import WITH_WGMMA
from .session import FAILED, PASSED, SKIPPED
from .training import median

MET, MISSED, UNKNOWN = "met", "missed", "not measured"

# Relative difference of a step's loss from that of the CPU in fp32. A bf16 number is off by up to 2^-9 of itself;
# losses are means over many, so 1 % is far above what rounding does and far below what a mistake does.
BF16_TOLERANCE, FP32_TOLERANCE = 0.01, 0.0005
# What docs/cuda.md counts on, from least to most: the least is held to, also by `spillway bench gpu/training`.
EXPECTED_MFU = {"gpt2-124m": (0.40, 0.46), "gpt2-1.5b": (0.46, 0.52)}
LEAST_OF_BARE, LEAST_OF_TORCH, LEAST_OF_COPY = 0.90, 0.85, 0.85
MOST_BUSY_DIFFERENCE = 0.05
MOST_MEDIAN_ERROR, MOST_ERROR = 0.05, 0.10
TESTS = ("matmul", "kernels", "attention", "step", "policies", "resume")


def percent(value):
    return f"{100 * value:.3g} %"


def best_of_torch(facts):
    """{name: (TFLOP/s, backend)} of the fastest backend for a shape."""
    best = {}
    for figure in facts.get("torch", {}).get("figures", []):
        if figure.get("tflops", 0) > best.get(figure["name"], (0, ""))[0]:
            best[figure["name"]] = (figure["tflops"], figure["backend"])
    return best


def torch_name(figure):
    """What PyTorch's figure of the same shape is called, whatever kernels ours is of."""
    return figure["name"].removeprefix("gpu/").removesuffix(WITH_WGMMA)


def of_torch(facts, prefix):
    """{name: rate / PyTorch's best rate} of the figures that both have."""
    best = best_of_torch(facts)
    return {figure["name"]: figure["value"] / best[torch_name(figure)][0] for figure in facts.get("figures", [])
            if figure["name"].startswith("gpu/" + prefix) and torch_name(figure) in best}


def of_best_bare(figure):
    """A product's rate of that of the best of the algorithms that were tried bare; of the first where no other was tried."""
    best = figure.get("best_of_eight")
    return best["ratio"] if best else figure["ratio"]


class Verdicts:
    """Rows of sentence, target, measured, verdict."""

    def __init__(self, summary):
        self.facts = summary["facts"]
        self.parts = {entry["name"]: entry for entry in summary["parts"]}
        self.rows = []

    def add(self, sentence, target, measured, met):
        verdict = UNKNOWN if met is None else MET if met else MISSED
        self.rows.append({"sentence": sentence, "target": target, "measured": measured, "verdict": verdict})

    def missing(self, sentence, target, name):
        """There is no figure: a part that failed missed it; what was skipped, left or never begun says nothing."""
        part = self.parts.get(name)
        self.add(sentence, target, part["note"] if part else "", False if part and part["result"] == FAILED else None)

    def judged(self, name):
        return self.parts.get(name, {}).get("result") in (PASSED, FAILED)

    def by_part(self, sentence, target, name):
        """The part itself is the check."""
        part = self.parts.get(name)
        if self.judged(name):
            self.add(sentence, target, part["note"], part["result"] == PASSED)
        else:
            self.add(sentence, target, f"skipped: {part['note']}" if part and part["result"] == SKIPPED else "", None)

    def tests(self):
        """All groups, each in a process of its own."""
        sentence, target = "every kernel, logits, loss and all gradients beside references", "no test fails"
        parts = {tag: self.parts.get(f"tests {tag}") for tag in TESTS}
        failed = [f"{tag}: {part['note']}" for tag, part in parts.items() if part and part["result"] == FAILED]
        undone = [tag for tag, part in parts.items() if not part or part["result"] not in (PASSED, FAILED)]
        if failed:
            self.add(sentence, target, "; ".join(failed), False)
        elif undone:
            self.add(sentence, target, f"without {', '.join(undone)}" if len(undone) < len(TESTS) else "", None)
        else:
            count = sum(group["of"] for tag, group in self.facts["tests"].items() if tag in TESTS)
            self.add(sentence, target, f"{count} tests passed", True)

    def losses(self, precision, most):
        sentence, target = f"losses in {precision} beside the CPU's in fp32", f"within {percent(most)}"
        off = self.facts.get("parity", {}).get(precision)
        if off is None:
            return self.missing(sentence, target, "parity")
        return self.add(sentence, target, percent(off), off <= most)

    def mfu(self, model, least, most):
        """With the better kind of attention."""
        sentence, target = f"resident {model}, T = 1024: MFU", f">= {percent(least)}"
        shares = {row["model"].removeprefix(model): row["tflops"] / row["peak_tflops"]
                  for row in self.facts.get("mfu", []) if row["model"].startswith(model) and row["peak_tflops"]}
        sentence += f", expected {100 * least:.0f} to {percent(most)}"
        if not shares:
            return self.missing(sentence, target, f"mfu {model}")
        best = max(shares, key=shares.get)
        return self.add(sentence, target, percent(shares[best]) + best, shares[best] >= least)

    def worst(self, sentence, least, ratios, part, more=""):
        target = f">= {percent(least)}"
        if not ratios:
            return self.missing(sentence, target, part)
        worst = min(ratios, key=ratios.get)
        enough = sum(ratio >= least for ratio in ratios.values())
        return self.add(sentence, target, f"{enough} of {len(ratios)}; worst {percent(ratios[worst])}: {worst}{more}",
                        enough == len(ratios))

    def figures(self, prefix):
        return [figure for figure in self.facts.get("figures", [])
                if figure["name"].startswith(prefix) and figure.get("target") and figure["ratio"] is not None]

    def products(self):
        figures = self.figures("gpu/matmul/")
        tried = [figure for figure in figures if figure.get("best_of_eight")]
        more = "" if not figures or tried else " (of the first algorithm: no others were tried)"
        self.worst("matrix products, of the best bare cuBLASLt algorithm", LEAST_OF_BARE,
                   {figure["name"]: of_best_bare(figure) for figure in figures}, "bench gpu/matmul", more)

    def attention(self):
        """With the better kind of kernels, of which training uses one for all shapes."""
        sentence = "attention, of PyTorch's best on the same GPU"
        ratios = of_torch(self.facts, "attention/")
        torch = self.parts.get("torch")
        if not ratios and torch and torch["result"] != PASSED:  # a PyTorch that fails is not ours
            return self.add(sentence, f">= {percent(LEAST_OF_TORCH)}", torch["note"], None)
        kinds = [{name: ratio for name, ratio in ratios.items() if name.endswith(WITH_WGMMA) == hopper} for hopper in (False, True)]
        better = max(filter(None, kinds), key=lambda kind: min(kind.values()), default={})  # the one whose worst shape is better
        return self.worst(sentence, LEAST_OF_TORCH, better, "bench gpu/attention")

    def busy(self):
        """The lane that should be the busiest is as busy as in the simulation of its schedule."""
        rows = [row for row in self.facts.get("validation", []) if row["policy"] != "resident"]
        sentence, target = "offloaded: the busiest lane, beside its simulation", f"within {100 * MOST_BUSY_DIFFERENCE:g} points"
        if not rows:
            return self.add(sentence, target, "", None)
        off = {f"{row['name']}, {row['busiest']}": row["lanes"][row["busiest"]] - row["simulated"][row["busiest"]] for row in rows}
        worst = max(off, key=lambda name: abs(off[name]))
        enough = sum(abs(value) <= MOST_BUSY_DIFFERENCE + 1e-9 for value in off.values())
        return self.add(sentence, target, f"{enough} of {len(off)} runs; worst {100 * off[worst]:+.1f} points: {worst}",
                        enough == len(off))

    def errors(self):
        """By policy: each has to be predicted, not all of them on average."""
        rows = self.facts.get("validation", [])
        target = f"<= {percent(MOST_MEDIAN_ERROR)}, worst {percent(MOST_ERROR)}"
        if not rows:
            self.add("step time, predicted beside measured", target, "", None)
        for policy in dict.fromkeys(row["policy"] for row in rows):
            errors = [row["error"] for row in rows if row["policy"] == policy]
            middle, worst = median([abs(error) for error in errors]), max(errors, key=abs)
            self.add(f"step time, predicted beside measured: {policy}", target,
                     f"{percent(middle)}, worst {100 * worst:+.1f} %, of {len(errors)} run{'s'[:len(errors) > 1]}",
                     middle <= MOST_MEDIAN_ERROR and abs(worst) <= MOST_ERROR)


def verdicts(summary):
    made = Verdicts(summary)
    made.by_part("a small model trains on the GPU", "it does", "build" if made.judged("build") else "start")
    made.tests()
    for name, sentence, target in (
            ("tests hopper", "attention's kernels for Hopper, beside references", "no test fails"),
            ("policies with wgmma", "losses and weights under every policy, with them", "the same bits")):
        if name in made.parts:
            made.by_part(sentence, target, name)
    made.losses("bf16", BF16_TOLERANCE)
    made.losses("fp32", FP32_TOLERANCE)
    made.by_part("losses and weights under every policy", "the same bits", "policies")
    made.by_part("losses and weights after a kill and --resume", "the same bits", "resume")
    for tool in ("memcheck", "racecheck"):
        done = f"{tool} all" if made.judged(f"{tool} all") else tool
        made.by_part(f"compute-sanitizer {tool}, {'every kernel' if done != tool else 'a few kernels'}", "no errors", done)
    made.by_part("--device cuda where there is no GPU", "says so in one line", "no gpu")
    for model, (least, most) in EXPECTED_MFU.items():
        made.mfu(model, least, most)
    made.products()
    made.attention()
    made.worst("kernels that memory bounds, of a copy", LEAST_OF_COPY,
               {figure["name"]: figure["ratio"] for figure in made.figures("gpu/kernel/")}, "bench gpu/memory")
    made.busy()
    made.errors()
    return made.rows
