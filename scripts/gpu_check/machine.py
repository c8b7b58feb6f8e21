"""The machine at hand: its GPU, its memory, its drives."""

import mmap
import os
import pathlib
import platform
import re
import shutil
import subprocess
import time

# Dense bf16 with fp32 accumulation, TFLOP/s: the peak that MFU is a fraction of. From NVIDIA's datasheets (half of
# the figure "with sparsity") and, for the RTX 4090, the Ada whitepaper. By the whole name that the driver gives, for
# variants of a GPU differ; as in experiments/speed_gpu.cpp, and a test holds them together.
PEAKS = {
    "B200": 2250.0,
    "GH200 120GB": 989.5,
    "GH200 480GB": 989.5,
    "GH200 144G HBM3e": 989.5,
    "H200": 989.5,
    "H200 NVL": 835.5,
    "H100 80GB HBM3": 989.5,
    "H100 NVL": 835.5,
    "H100 PCIe": 756.0,
    "A100-SXM4-40GB": 312.0,
    "A100-SXM4-80GB": 312.0,
    "A100-PCIE-40GB": 312.0,
    "A100 80GB PCIe": 312.0,
    "L40S": 362.0,
    "L4": 121.0,
    "GeForce RTX 4090": 165.2,
}


def peak_tflops(name):
    """None where the peak of this GPU is not in the list."""
    return PEAKS.get(name.removeprefix("NVIDIA "))


def find_tool(name):
    """On PATH, or where drivers and toolkits put it."""
    for folder in (None, "/usr/local/nvidia/bin", "/usr/local/cuda/bin"):
        path = shutil.which(name, path=folder)
        if path:
            return path
    return None


def find_gpu():
    """The first GPU as a dictionary, or a line that says why there is none."""
    tool = find_tool("nvidia-smi")
    if not tool:
        return None, "nvidia-smi was not found, so there is no driver"
    query = "name,compute_cap,memory.total,memory.free,driver_version"
    answer = subprocess.run([tool, f"--query-gpu={query}", "--format=csv,noheader,nounits"], capture_output=True,
                            text=True, check=False)
    line = answer.stdout.splitlines()[0] if answer.stdout.strip() else ""
    words = [word.strip() for word in line.split(",")]
    if answer.returncode != 0 or len(words) != 5:
        said = (answer.stderr or answer.stdout).strip().splitlines()
        return None, f"nvidia-smi: {said[0] if said else 'lists no GPU'}"
    name, capability, total, free, driver = words
    return {"name": name, "compute_capability": capability, "memory_mib": int(total), "free_mib": int(free),
            "driver": driver}, ""


def architecture(gpu):
    """For CMAKE_CUDA_ARCHITECTURES: machine code of this GPU and nothing else."""
    return gpu["compute_capability"].replace(".", "") + "-real"


def is_hopper(gpu):
    """Whether attention has kernels of its own there, which SPILLWAY_CUDA_ATTENTION=wgmma asks for."""
    return bool(gpu) and gpu["compute_capability"] == "9.0"


class HopperAttention:
    """Within `with`, programs compute attention by them."""

    def __enter__(self):
        os.environ["SPILLWAY_CUDA_ATTENTION"] = "wgmma"

    def __exit__(self, *_):
        del os.environ["SPILLWAY_CUDA_ATTENTION"]


def memory_bytes():
    """What programs may take now."""
    match = re.search(r"^MemAvailable:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(match.group(1)) * 1024


GROW_STEP, GROW_MARGIN = 1 << 30, 1 << 30
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14


def grow_memory(wanted, patience=5, available=None, take=None):
    """Virtual machines may begin with little memory and be given more when it is used: uses up to `wanted` bytes, gives them
    back, and returns what is available then. Ends when nothing more came for `patience` seconds."""
    available, take, taken = available or memory_bytes, take or take_memory, []
    waited_since = None
    if available() >= wanted:
        return available()
    while len(taken) * GROW_STEP < wanted:
        if available() >= GROW_STEP + GROW_MARGIN:
            try:
                taken.append(take(GROW_STEP))
            except OSError:
                break
            waited_since = None
            continue
        waited_since = waited_since or time.monotonic()
        if time.monotonic() - waited_since > patience:
            break
        time.sleep(0.05)
    for one in taken:
        one.close()
    return available()


def take_memory(size):
    """Anonymous memory, every page of it touched."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(POPULATE_WRITE)
    except OSError:
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1
    return memory


def keep_awake():
    """Without its persistence mode a GPU is started anew, for seconds, by every program that finds no other at it. While the
    result is open it stays; None where that is not possible."""
    try:
        return os.open("/dev/nvidia0", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None


def disk_bytes(folder):
    return shutil.disk_usage(folder).free


def cores():
    return len(os.sched_getaffinity(0))


def describe_host():
    model = re.search(r"^model name\s*:\s*(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    system = "unknown"
    try:
        for line in pathlib.Path("/etc/os-release").read_text().splitlines():
            if line.startswith("PRETTY_NAME="):
                system = line.split("=", 1)[1].strip('"')
    except OSError:
        pass
    return {"cpu": model.group(1) if model else platform.machine(), "cores": cores(),
            "memory_available_gb": round(memory_bytes() / 1e9), "system": system, "kernel": platform.release()}


def nvcc_version():
    tool = find_tool("nvcc")
    if not tool:
        return None
    answer = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"release ([0-9.]+)", answer.stdout)
    return match.group(1) if match else None


def folder_name(gpu_name):
    """nvidia-h200 of "NVIDIA H200"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu_name.lower()).strip("-")
