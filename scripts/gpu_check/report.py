"""The report: tables of what gpu-check found, as Markdown, with the command beside each figure.

A summary (OUT/summary.json) goes in, text comes out; nothing else is looked at, so that the same results always give
the same tables. docs/gpu.md holds them between two marks, for every folder of traces/recorded.
"""

import datetime
import json
import pathlib
import shutil
import tempfile

from .machine import folder_name
from .packs import restore
from .session import FORMAT, PASSED, Failure
from .training import median
from .verdicts import MISSED, best_of_torch, torch_name, verdicts

BEGIN = "<!-- made by scripts/gpu-report: begin -->"
END = "<!-- made by scripts/gpu-report: end -->"
NOTHING = "No figure of a real GPU is recorded yet."
MOST_TRACE_BYTES = 1000000  # what the repository takes as one file


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
    gpu, host, facts = summary["gpu"], summary["host"], summary["facts"]
    lines = [f"### {gpu['name']}", "",
             f"{gpu['name']} ({gpu['memory_mib']} MiB, compute capability {gpu['compute_capability']}), driver {gpu['driver']}, "
             f"CUDA {summary['nvcc'] or 'unknown'}; {host['cpu']}, {host['cores']} processors, "
             f"{host['memory_available_gb']} GB of host memory free; {host['system']}, kernel {host['kernel']}; "
             f"{summary['date']}.", ""]
    machine, libraries = facts.get("machine"), facts.get("libraries", {})
    if machine:
        limits = [f"{machine['cgroup_memory'] / 1e9:.0f} GB of memory"] if machine["cgroup_memory"] else []
        limits += [f"{machine['cgroup_cores']:g} processors"] if machine["cgroup_cores"] else []
        lines += [f"Drive: {machine['disk_free_gb']:g} GB free, {machine['disk_kind']}; O_DIRECT {machine['direct_io']}, "
                  f"io_uring {machine['io_uring']}; container limits: {', '.join(limits) or 'none'}; cuBLASLt "
                  f"{libraries.get('cublaslt_version') or 'unknown'}; PyTorch {machine['torch'] or 'none'}; compute-sanitizer: "
                  f"{facts.get('sanitizer', 'not tried')}.", ""]
    return lines


def verdicts_table(summary):
    rows = [(row["sentence"], row["target"], row["measured"],
             f"**{row['verdict']}**" if row["verdict"] == MISSED else row["verdict"]) for row in verdicts(summary)]
    return ["#### What is held to", "", "Figures are for an H200.", ""] + table(("", "target", "measured", ""), rows)


def parts_table(summary):
    """What checks; what measures has tables of its own, and is here only if it did not pass."""
    rows = []
    for part in summary["parts"]:
        if part["stage"] in ("start", "right") or part["result"] != PASSED:
            command = code(part["commands"][0]) if part["commands"] else ""
            rows.append((part["stage"], part["name"], part["result"], f"{part['seconds']:g}", part["note"], command))
    return ["#### Checks", ""] + table(("stage", "part", "result", "s", "note", "command"), rows) if rows else []


def failures_table(facts):
    rows = [(tag, name, why) for tag, group in facts.get("tests", {}).items() for name, why in group["failed"].items()]
    return ["#### Tests that failed", ""] + table(("tag", "test", "why"), rows) if rows else []


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
    rows, torch = [], best_of_torch(facts)
    for figure in facts.get("figures", []):
        target = figure.get("target")
        if target:
            bound = f">= {target['least_ratio']:g}" if "least_ratio" in target else f"<= {target['most']:g}"
            held = f"{bound}, {'met' if target['met'] else '**missed**'}"
        else:
            held = ""
        what = "; ".join(text for text in (figure["what"], figure.get("note", "")) if text)
        best = figure.get("best_of_eight")
        of_best = f"{number(best['ratio'])} ({best['what']})" if best else ""
        rate, backend = torch.get(torch_name(figure), (None, ""))
        rows.append((code(figure["name"]), what, f"{number(figure['value'])} {figure['unit']}",
                     number(figure["roofline"]), number(figure["ratio"]), of_best, held,
                     f"{number(rate)} ({backend.lower().replace('_attention', '')})" if rate else ""))
    if not rows:
        return []
    head = ["#### Kernels and training beside what the GPU gives", "", code("spillway bench gpu") + ", PyTorch in the same minutes", ""]
    return head + table(
        ("figure", "what", "value", "held against", "ratio", "of the best algorithm", "target", "PyTorch, TFLOP/s"), rows)


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
                      f"{row['busiest']} {percent(row['lanes'][row['busiest']])}", percent(row["simulated"][row["busiest"]])))
    lines += table(("", "model", "policy", "batch", "limits", "predicted, s", "measured, s", "error", "bound by",
                    "of the bound", "busiest lane", "simulated"), cells)
    lanes = sorted({lane for row in rows for lane in row["lanes"]})
    lines += table(("", "gpu memory", "host memory", *lanes),
                   [(index, row["gpu_memory"], row["host_memory"],
                     *(percent(row["lanes"].get(lane)) for lane in lanes)) for index, row in enumerate(rows, 1)])
    return lines + commands([(index, row["command"]) for index, row in enumerate(rows, 1)])


def markdown(summary):
    facts = summary["facts"]
    lines = heading(summary) + verdicts_table(summary) + parts_table(summary) + failures_table(facts) + policies_table(facts)
    lines += figures_table(facts) + mfu_table(facts) + validation_table(facts)
    if summary.get("left_out"):
        lines += ["Left out of the packed results: " + "; ".join(summary["left_out"]) + ".", ""]
    return "\n".join(lines)


# --- on the machine with the GPU ---


def write(out, summary):
    """OUT/report.md."""
    if "gpu" in summary:
        fresh = out / "report.md.part"
        fresh.write_text(markdown(summary))
        fresh.replace(out / "report.md")


# --- at home ---


def collect(root, source):
    """Results of OUT or of what was packed into traces/recorded/GPU, and into the tables of docs/gpu.md."""
    if source.is_file() or not (source / "summary.json").exists():
        with tempfile.TemporaryDirectory() as folder:
            restore(source, pathlib.Path(folder))
            return take_over(root, pathlib.Path(folder), source)
    return take_over(root, source, source)


def take_over(root, folder, source):
    try:
        summary = json.loads((folder / "summary.json").read_text())
    except (OSError, ValueError) as error:
        raise Failure(f"{source}: no summary.json of gpu-check: {error}") from error
    if summary.get("format") != FORMAT or "gpu" not in summary:
        raise Failure(f"{source}: its summary.json is of another version of gpu-check, or of a call that saw no GPU")
    target = root / "traces" / "recorded" / folder_name(summary["gpu"]["name"])
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    (target / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    for path in [*sorted(folder.glob("machine-*.toml")), *sorted(folder.glob("traces/*.json.gz"))]:
        if path.stat().st_size < MOST_TRACE_BYTES:
            shutil.copyfile(path, target / path.name)
        else:
            print(f"{path.name} is not recorded: {path.stat().st_size / 1e6:.1f} MB is more than the repository takes as one file")
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
