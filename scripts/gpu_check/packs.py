"""What goes home: a folder of at most 8 files of at most 16 MB, whole at any moment, written again after every part.

  results.tgz      summary.json, report.md, machine files, the ends of the logs
  traces-1.tgz ... traces, in the order in which they were made; a new one begins where the last one is full

A file is written beside its place and then moved there, so nobody ever sees half of one; at most 7 of 50 MB together are
in place, which leaves room for the one being written. What finds no room is named in results.tgz (summary.json, "left_out").
"""

import io
import pathlib
import tarfile
import tempfile

from .session import unpack

MOST_FILES, MOST_BYTES, ALL_BYTES = 8, 15_500_000, 50_000_000
LOG_END, LOGS_BYTES = 400_000, 12_000_000  # of a log, and of all of them


def write(session, folder):
    """Packs what the session has so far into the folder."""
    out = session.out
    folder.mkdir(parents=True, exist_ok=True)
    traces = sorted(out.glob("traces/*.json.gz"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    packs, left_out = share_out(traces)
    for number, paths in enumerate(packs, 1):
        target = folder / f"traces-{number}.tgz"
        if members_of(target) != [(f"results/traces/{path.name}", *looks_of(path.stat())) for path in paths]:
            pack(target, [(path, f"results/traces/{path.name}") for path in paths])
    logs, too_many = ends_of_logs(out)
    session.summary["left_out"] = left_out + too_many
    session.save()
    names = [out / "summary.json", out / "report.md", *sorted(out.glob("machine-*.toml"))]
    pack(folder / "results.tgz", [(path, f"results/{path.relative_to(out)}") for path in names if path.exists()], logs)


def share_out(paths):
    """Traces into files one after the other; they are compressed already, so their sizes say what a pack will take."""
    packs, left_out, total = [], [], 0
    room = ALL_BYTES - MOST_BYTES  # results.tgz takes one file
    for path in paths:
        size = path.stat().st_size + 2048
        fits = packs and sum(other.stat().st_size + 2048 for other in packs[-1]) + size <= MOST_BYTES
        if size > MOST_BYTES or total + size > room or (not fits and len(packs) == MOST_FILES - 2):
            left_out.append(f"traces/{path.name} ({size / 1e6:.1f} MB, for which there is no room)")
            continue
        total += size
        if fits:
            packs[-1].append(path)
        else:
            packs.append([path])
    return packs, left_out


def members_of(archive):
    """(name, size, when it was made) of each; None where there is no archive, or no whole one."""
    try:
        with tarfile.open(archive) as opened:
            return [(member.name, member.size, round(member.mtime, 3)) for member in opened]
    except (OSError, EOFError, tarfile.TarError):
        return None


def looks_of(stat):
    return stat.st_size, round(stat.st_mtime, 3)


def ends_of_logs(out):
    """(name in the pack, bytes) of each log, its end where it is long; the machine may be gone when somebody asks."""
    logs, left_out, total = [], [], 0
    for path in sorted(out.glob("logs/*.log"), key=lambda path: path.stat().st_size):
        with open(path, "rb") as opened:
            size = path.stat().st_size
            opened.seek(max(0, size - LOG_END))
            text = opened.read(LOG_END)
        if size > LOG_END:
            text = b"(the end of %d bytes)\n" % size + text
        total += len(text)
        if total > LOGS_BYTES:
            left_out.append(f"logs/{path.name} ({size / 1e6:.1f} MB of log)")
        else:
            logs.append((f"results/logs/{path.name}", text))
    return sorted(logs), left_out


def pack(target, paths, texts=()):
    fresh = target.with_name(target.name + ".part")
    with tarfile.open(fresh, "w:gz", compresslevel=6) as archive:
        for path, name in paths:
            archive.add(path, arcname=name)
        for name, text in texts:
            add_text(archive, name, text)
    fresh.replace(target)


def add_text(archive, name, text):
    entry = tarfile.TarInfo(name)
    entry.size = len(text)
    archive.addfile(entry, io.BytesIO(text))


def restore(source, folder):
    """Unpacks a folder of packs, or one of them, into what OUT was. Folders in it are those of several calls, in the order
    of their names; what a later one has counts."""
    archives = sorted(source.rglob("*.tgz")) if source.is_dir() else [source]
    with tempfile.TemporaryDirectory(dir=folder) as work:
        for archive in archives:
            unpack(archive, work)
        for path in sorted(pathlib.Path(work).glob("results/**/*")):
            target = folder / path.relative_to(pathlib.Path(work) / "results")
            if path.is_dir():
                target.mkdir(exist_ok=True)
            else:
                path.replace(target)
