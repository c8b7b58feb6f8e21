"""What a machine allows: a drive without its cache, io_uring, and which tools and Python packages there are."""

import ctypes
import errno
import mmap
import os
import pathlib

from . import machine

IO_URING_SETUP = 425  # the system call's number, on every architecture
O_DIRECT = getattr(os, "O_DIRECT", 0)


def io_uring():
    """"allowed", or the name of the error: EPERM where a container's profile refuses it, ENOSYS on an old kernel."""
    libc = ctypes.CDLL(None, use_errno=True)
    parameters = ctypes.create_string_buffer(256)
    descriptor = libc.syscall(IO_URING_SETUP, 4, parameters)
    if descriptor < 0:
        return errno.errorcode.get(ctypes.get_errno(), str(ctypes.get_errno()))
    os.close(descriptor)
    return "allowed"


def direct_io(folder):
    """"allowed", or the name of the error, for a page written past the cache."""
    path = pathlib.Path(folder) / "gpu-check-probe"
    page = mmap.mmap(-1, 4096)
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | O_DIRECT, 0o600)
        try:
            os.write(descriptor, page)
        finally:
            os.close(descriptor)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    finally:
        path.unlink(missing_ok=True)
    return "allowed"


def file_system(folder):
    """Its kind and device, by the longest mount point that the folder is below: "ext4 on /dev/vda"."""
    folder, best = str(pathlib.Path(folder).resolve()), ("", "unknown")
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        point, kind = before.split()[4], after.split()
        inside = folder == point or folder.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, f"{kind[0]} on {kind[1]}")
    return best[1]


def torch_version():
    """That of `python3`, without starting it, which takes long; None where there is none."""
    code = "import importlib.metadata as m; print(m.version('torch'))"
    return machine.said_by(["python3", "-c", code]).strip() or None


def look(drive):
    """All of it, as facts. Sandboxes lack some of what is read here, and that is a fact, too."""
    def known(probe, *arguments):
        try:
            return probe(*arguments)
        except (OSError, ValueError, IndexError) as error:
            return f"unknown ({type(error).__name__})"

    found = {name: machine.find_tool(name) for name in ("compute-sanitizer", "ncu", "nsys", "nvcc", "cmake", "ninja")}
    return {"cgroup_memory": machine.cgroup_memory(), "cgroup_cores": machine.cgroup_cores(),
            "disk_free_gb": round(machine.disk_bytes(drive) / 1e9, 1), "disk_kind": known(file_system, drive),
            "io_uring": known(io_uring), "direct_io": known(direct_io, drive), "torch": known(torch_version), "tools": found}


def said(facts, gpu, host):
    """In one line, for the one who reads along."""
    limit = f", {facts['cgroup_memory'] / 1e9:.0f} GB allowed" if facts["cgroup_memory"] else ""
    quota = f" ({facts['cgroup_cores']:g} allowed)" if facts["cgroup_cores"] else ""
    without = ", ".join(name for name, path in facts["tools"].items() if not path)
    return (f"{gpu['name']}, driver {gpu['driver']}; {host['cores']} cores{quota}, "
            f"{host['memory_available_gb']} GB of memory free{limit}; {facts['disk_free_gb']:g} GB of drive free "
            f"({facts['disk_kind']}), O_DIRECT {facts['direct_io']}, io_uring {facts['io_uring']}; PyTorch {facts['torch'] or 'none'}"
            + (f"; without {without}" if without else ""))
