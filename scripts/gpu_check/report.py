"""The report: tables of what gpu-check found, as Markdown, with the command beside each figure.

A summary (OUT/summary.json) goes in, text comes out; nothing else is looked at, so that the same results always give
the same tables. docs/gpu.md holds them between two marks, for every folder of traces/recorded.
"""

import datetime
import json
import pathlib
import shutil
import tarfile
import tempfile

from .machine import folder_name
from .session import FORMAT, Failure, unpack
from .training import median
from .verdicts import MISSED, verdicts

BEGIN = "<!-- made by scripts/gpu-report: begin -->"
END = "<!-- made by scripts/gpu-report: end -->"
NOTHING = "No figure of a real GPU is recorded yet."


def today():
    return datetime.date.today().isoformat()


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return lines + [""]


def code(text):
    return f"`{text}`"


def percent(value, digits=1):
    return "" if value is None else f"{100 * value:.{digits}f} %"


def number(value):
    return "" if value is None else f"{value:.4g}"


def commands(numbered):
    """Full commands below a table, by the number of their row."""
    return [f"{index}. {code(command)}" for index, command in numbered] + [""] if numbered else []


def heading(summary):
    gpu, host = summary["gpu"], summary["host"]
    return [f"### {gpu['name']}", "",
            f"{gpu['name']} ({gpu['memory_mib']} MiB, compute capability {gpu['compute_capability']}), driver {gpu['driver']}, "
            f"CUDA {summary['nvcc'] or 'unknown'}; {host['cpu']}, {host['cores']} processors, "
            f"{host['memory_available_gb']} GB of host memory free; {host['system']}, kernel {host['kernel']}; "
            f"{summary['date']}.", ""]


def verdicts_table(summary):
    rows = [(row["sentence"], row["target"], row["measured"],
             f"**{row['verdict']}**" if row["verdict"] == MISSED else row["verdict"]) for row in verdicts(summary)]
    return ["#### What is held to", "", "Figures are for an H200.", ""] + table(("", "target", "measured", ""), rows)


def steps_table(summary):
    """Build and tests; what measures has tables of its own, and is here only if it did not pass."""
    rows = []
    for step in summary["steps"]:
        if step["part"] in ("build", "test") or step["result"] != "passed":
            command = step["commands"][0] if step["commands"] else ""
            rows.append((step["part"], step["name"], step["result"], step["note"], code(command) if command else ""))
    return ["#### Checks", ""] + table(("part", "step", "result", "note", "command"), rows) if rows else []


def policies_table(facts):
    rows = [(row["policy"], row["gpu_memory"], row["host_memory"], f"{row['final_loss']:.9g}", code(row["weights_hash"]),
             "yes" if row["same"] else "**no**") for row in facts.get("policies", [])]
    if not rows:
        return []
    return ["#### The same numbers under every policy", ""] + table(
        ("policy", "gpu memory", "host memory", "last loss", "weights", "as resident"), rows)


def mfu_table(facts):
    rows = facts.get("mfu", [])
    if not rows:
        return []
    cells = [(index, row["model"], f"{row['batch']} in {row['micro_batch']}", row["sequence"], number(row["step_seconds"]),
              f"{row['tokens_per_second']:.0f}", f"{row['tflops']:.0f}",
              percent(row["tflops"] / row["peak_tflops"]) if row["peak_tflops"] else "peak unknown",
              percent(row["palm_tflops"] / row["peak_tflops"]) if row["peak_tflops"] else "")
             for index, row in enumerate(rows, 1)]
    return ["#### Resident training", ""] + table(
        ("", "model", "batch", "T", "step, s", "tokens/s", "model TFLOP/s", "MFU", "MFU, attention in full"), cells
    ) + commands([(index, row["command"]) for index, row in enumerate(rows, 1)])


def figures_table(facts):
    rows = []
    for figure in facts.get("figures", []):
        target = figure.get("target")
        if target:
            bound = f">= {target['least_ratio']:g}" if "least_ratio" in target else f"<= {target['most']:g}"
            held = f"{bound}, {'met' if target['met'] else '**missed**'}"
        else:
            held = ""
        what = "; ".join(text for text in (figure["what"], figure.get("note", "")) if text)
        rows.append((code(figure["name"]), what, f"{number(figure['value'])} {figure['unit']}",
                     number(figure["roofline"]), number(figure["ratio"]), held))
    if not rows:
        return []
    return ["#### Kernels and training beside what the GPU gives", "", code("spillway bench gpu"), ""] + table(
        ("figure", "what", "value", "held against", "ratio", "target"), rows)


def validation_table(facts):
    rows = facts.get("validation", [])
    if not rows:
        return []
    errors = [abs(row["error"]) for row in rows]
    signed = [row["error"] for row in rows]
    lines = ["#### Predicted beside measured", "",
             f"{len(rows)} runs: median error {percent(median(errors))}, largest {percent(max(errors))}, "
             f"median with its sign {100 * median(signed):+.1f} %.", ""]
    cells = []
    for index, row in enumerate(rows, 1):
        cells.append((index, row["model"], row["policy"], f"{row['batch']} in {row['micro_batch']}", row["level"],
                      number(row["predicted"]), number(row["measured"]),
                      f"{100 * row['error']:+.1f} %" + (" (extrapolated)" if row["extrapolated"] else ""),
                      row["bound_by"] or "", percent(row["of_bound"]),
                      f"{row['busiest']} {percent(row['lanes'][row['busiest']])}"))
    lines += table(("", "model", "policy", "batch", "limits", "predicted, s", "measured, s", "error", "bound by",
                    "of the bound", "busiest lane"), cells)
    lanes = sorted({lane for row in rows for lane in row["lanes"]})
    lines += table(("", "gpu memory", "host memory", *lanes),
                   [(index, row["gpu_memory"], row["host_memory"],
                     *(percent(row["lanes"].get(lane)) for lane in lanes)) for index, row in enumerate(rows, 1)])
    return lines + commands([(index, row["command"]) for index, row in enumerate(rows, 1)])


def markdown(summary):
    facts = summary["facts"]
    lines = heading(summary) + verdicts_table(summary) + steps_table(summary) + policies_table(facts)
    lines += figures_table(facts) + mfu_table(facts) + validation_table(facts)
    return "\n".join(lines)


# --- on the machine with the GPU ---


def write(out, summary):
    """OUT/report.md, and OUT/results.tgz with all that is to be kept."""
    if "gpu" in summary:
        (out / "report.md").write_text(markdown(summary))
    with tarfile.open(out / "results.tgz.part", "w:gz") as archive:
        for path in result_files(out):
            archive.add(path, arcname=f"results/{path.relative_to(out)}")
    (out / "results.tgz.part").replace(out / "results.tgz")


def result_files(out):
    """Logs travel too, cut to their ends: the machine may be gone when somebody asks."""
    names = [out / "summary.json", out / "report.md"]
    names += sorted(out.glob("machine-*.toml")) + sorted(out.glob("traces/*.json.gz")) + sorted(out.glob("logs/*.log"))
    return [path for path in names if path.exists() and path.stat().st_size < 1000000]


# --- at home ---


def collect(root, source):
    """Results of OUT or of results.tgz into traces/recorded/GPU, and into the tables of docs/gpu.md."""
    if source.is_file():
        with tempfile.TemporaryDirectory() as folder:
            unpack(source, folder)
            return collect(root, pathlib.Path(folder) / "results")
    try:
        summary = json.loads((source / "summary.json").read_text())
    except (OSError, ValueError) as error:
        raise Failure(f"{source}: no summary.json of gpu-check: {error}") from error
    if summary.get("format") != FORMAT or "gpu" not in summary:
        raise Failure(f"{source}/summary.json is of another version of gpu-check, or of a build without a GPU")
    target = root / "traces" / "recorded" / folder_name(summary["gpu"]["name"])
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    (target / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    for path in [*sorted(source.glob("machine-*.toml")), *sorted(source.glob("traces/*.json.gz"))]:
        shutil.copyfile(path, target / path.name)
    refresh(root)
    return target


def refresh(root, check=False):
    """Writes the tables of all recorded results into docs/gpu.md. True if they were there already."""
    document = root / "docs" / "gpu.md"
    text = document.read_text()
    if BEGIN not in text or END not in text:
        raise Failure(f"{document} lacks the marks between which the tables go: {BEGIN} and {END}")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    made = [markdown(json.loads(path.read_text())).rstrip()
            for path in sorted(root.glob("traces/recorded/*/summary.json"))]
    fresh = before + BEGIN + "\n" + ("\n\n".join(made) or NOTHING) + "\n" + END + after
    if not check and fresh != text:
        document.write_text(fresh)
    return fresh == text
