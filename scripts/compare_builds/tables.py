"""The tables of a comparison: summary.md, table.md, table.csv."""

import csv
import io
import math
import shlex

from compare_builds.comparison import TIERS, geometric_mean

LANES = ("pcie.h2d", "pcie.d2h", "ssd.read", "ssd.write")
WORST = 10  # settings that a list of the summary shows


def ratio_text(value):
    return "inf" if math.isinf(value) else f"{value:.4f}"


def exact(value):
    """For lists of what is above a limit: a ratio just above 1 must not look like 1."""
    return "inf" if math.isinf(value) else f"{value:.6f}"


def gigabytes(count):
    return f"{count / 1e9:.3f}"


def markdown(header, rows):
    """Numbers to the right, the first column to the left."""
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def fits_text(run):
    return "fails" if run.failed else "yes" if run.fits else "no"


def listing(title, rows, tell):
    """A list of at most WORST settings under a title; nothing of none."""
    if not rows:
        return ""
    lines = [f"* {tell(row)}" for row in rows[:WORST]]
    more = [f"* and {len(rows) - WORST} more"] if len(rows) > WORST else []
    return "\n".join([f"## {title}", "", *lines, *more, ""])


def by_policy(result):
    table = []
    groups = [(family, [row for row in result.rows if row.setting.family == family]) for family in result.families()]
    for name, rows in [*groups, ("all", result.rows)]:
        both = result.both(rows)
        times = [row.time_ratio for row in both]
        table.append([name, len(rows), sum(row.old.fits for row in rows), sum(row.new.fits for row in rows),
                      *([ratio_text(result.mean(rows)), ratio_text(min(times)), ratio_text(max(times))] if both else ["", "", ""]),
                      len(result.slower(rows)), *(len(result.larger(tier, rows)) for tier in TIERS)])
    return markdown(["policy", "settings", "old fits", "new fits", "geometric mean", "least", "largest",
                     f"time > {result.limits.time:g}", *(f"{tier} > {result.limits.peak:g}" for tier in TIERS)], table)


def variant_summary(result, name):
    rows = result.with_variant(name)
    table = []
    groups = [(family, [row for row in rows if row.setting.family == family]) for family in result.families()]
    for family, some in [*groups, ("all", rows)]:
        ratios = [row.variant_ratio(name) for row in some]
        if ratios:
            table.append([family, len(ratios), ratio_text(geometric_mean(ratios)), ratio_text(min(ratios)),
                          ratio_text(max(ratios)), sum(value < 0.9999 for value in ratios),
                          sum(row in result.variant_slower(name) for row in some)])
    return f"## {name} against new\n\n" + markdown(
        ["policy", "settings", "geometric mean", "least", "largest", "faster", "slower"], table) + "\n"


def summary(result):
    exceeded = result.exceeded()
    worst = sorted(result.both(), key=lambda row: -row.time_ratio)
    parts = [
        "# Two builds compared\n",
        f"old {result.old.digest[:12]}, new {result.new.digest[:12]}; step times and peaks of memory as ratios of new to old.\n",
        by_policy(result) + "\n",
        "## Limits\n\n" + "\n".join(f"* exceeded: {line}" for line in exceeded) + "\n" if exceeded
        else "## Limits\n\nAll are held.\n",
        listing("Largest ratios of step time", [row for row in worst if row.time_ratio > 1],
                lambda row: f"{exact(row.time_ratio)}: {row.setting.name}"),
        *(listing(f"Peak of {tier} memory above the limit", result.larger(tier),
                  lambda row, tier=tier: f"{exact(row.peak_ratio(tier))}: {row.setting.name}") for tier in TIERS),
        listing("Fits the old program only", result.lost(), lambda row: f"{row.setting.name}: {row.new.message}"),
        listing("Fits the new program only", result.gained(), lambda row: f"{row.setting.name}: {row.old.message}"),
        listing("The old program fails", [row for row in result.rows if row.old.failed],
                lambda row: f"{row.setting.name}: {row.old.message}"),
        listing("The new program fails", [row for row in result.rows if row.new.failed],
                lambda row: f"{row.setting.name}: {row.new.message}"),
    ]
    for name in result.variants:
        parts.append(variant_summary(result, name))
        parts.append(listing(f"{name} slower than new", result.variant_slower(name),
                             lambda row, name=name: f"{exact(row.variant_ratio(name))}: {row.setting.name}"))
        parts.append(listing(f"Does not fit with {name}", result.variant_lost(name),
                             lambda row, name=name: f"{row.setting.name}: {row.variants[name].message}"))
    return "\n".join(part for part in parts if part)


def pair(row, tell):
    """Cells of old, new and ratio; empty where one does not fit."""
    if not row.both_fit:
        return [tell(row.old) if row.old.fits else "", tell(row.new) if row.new.fits else "", ""]
    return [tell(row.old), tell(row.new)]


def main_table(result):
    header = ["setting", "fits old", "new", "step s old", "new", "ratio"]
    for tier in TIERS:
        header += [f"{tier} GB old", "new", "ratio"]
    table = []
    for row in result.rows:
        cells = [row.setting.name, fits_text(row.old), fits_text(row.new), *pair(row, lambda run: f"{run.step_seconds:.6g}")]
        cells += [ratio_text(row.time_ratio)] if row.both_fit else []
        for tier in TIERS:
            cells += pair(row, lambda run, tier=tier: gigabytes(run.peak(tier)))
            cells += [ratio_text(row.peak_ratio(tier))] if row.both_fit else []
        table.append(cells)
    return markdown(header, table)


def lane_table(result):
    header = ["setting"]
    for lane in LANES:
        header += [f"{lane} GB old", "new"]
    table = []
    for row in result.rows:
        cells = [row.setting.name]
        for lane in LANES:
            cells += [gigabytes(run.lane_bytes(lane)) if run.fits else "" for run in (row.old, row.new)]
        table.append(cells)
    return markdown(header, table)


def variant_table(result, name):
    """Of each setting: step time, bytes over PCIe and to and from the drives, and the peaks, without and with the variant."""
    header = ["setting", "step s new", name, "ratio", "PCIe GB new", name, "SSD GB new", name]
    for tier in TIERS:
        header += [f"{tier} GB new", name]
    table = []
    for row in result.with_variant(name):
        runs = (row.new, row.variants[name])
        cells = [row.setting.name, *(f"{run.step_seconds:.6g}" for run in runs), ratio_text(row.variant_ratio(name))]
        for lanes in (LANES[:2], LANES[2:]):
            cells += [gigabytes(sum(run.lane_bytes(lane) for lane in lanes)) for run in runs]
        for tier in TIERS:
            cells += [gigabytes(run.peak(tier)) for run in runs]
        table.append(cells)
    return markdown(header, table)


def csv_text(result):
    """One row a setting, bytes and seconds as they are; a variant's columns bear its name."""
    sides = ["old", "new", *result.variants]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    header = ["grid", "setting", "policy", "old_arguments", "new_arguments", *(f"fits_{side}" for side in sides),
              *(f"step_seconds_{side}" for side in sides), "step_ratio", *(f"step_ratio_{name}" for name in result.variants)]
    for tier in TIERS:
        header += [*(f"{tier}_peak_bytes_{side}" for side in sides), f"{tier}_peak_ratio"]
    header += [f"{lane}_bytes_{side}" for lane in LANES for side in sides]
    writer.writerow(header)
    for row in result.rows:
        runs = [row.old, row.new, *(row.variants[name] for name in result.variants)]

        def cells(tell, runs=runs):
            return [tell(run) if run.fits else "" for run in runs]

        line = [row.setting.grid, row.setting.name, row.setting.family, shlex.join(row.setting.old), shlex.join(row.setting.new),
                *(fits_text(run) for run in runs), *cells(lambda run: run.step_seconds), row.time_ratio if row.both_fit else ""]
        line += [row.variant_ratio(name) if row in result.with_variant(name) else "" for name in result.variants]
        for tier in TIERS:
            line += [*cells(lambda run, tier=tier: run.peak(tier)), row.peak_ratio(tier) if row.both_fit else ""]
        for lane in LANES:
            line += cells(lambda run, lane=lane: run.lane_bytes(lane))
        writer.writerow(line)
    return out.getvalue()


def write(result, folder):
    parts = [summary(result), "## Every setting\n", main_table(result), "\n## Bytes by lane and step\n", lane_table(result)]
    for name in result.variants:
        parts += [f"\n## Every setting, {name} against new\n", variant_table(result, name)]
    (folder / "summary.md").write_text(summary(result) + "\n")
    (folder / "table.md").write_text("\n".join(parts) + "\n")
    (folder / "table.csv").write_text(csv_text(result))
