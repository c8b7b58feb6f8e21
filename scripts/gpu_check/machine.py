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
# variants of a GPU differ; as in experiments/speed/speed_gpu.cpp, and a test holds them together.
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
        return ask_driver() or (None, "nvidia-smi was not found, and there is no driver's library that lists a GPU")
    query = "name,compute_cap,memory.total,memory.free,driver_version"
    try:
        answer = subprocess.run([tool, f"--query-gpu={query}", "--format=csv,noheader,nounits"], capture_output=True,
                                text=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        return ask_driver() or (None, "nvidia-smi does not answer")
    line = answer.stdout.splitlines()[0] if answer.stdout.strip() else ""
    words = [word.strip() for word in line.split(",")]
    if answer.returncode != 0 or len(words) != 5:
        said = (answer.stderr or answer.stdout).strip().splitlines()
        return ask_driver() or (None, f"nvidia-smi: {said[0] if said else 'lists no GPU'}")
    name, capability, total, free, driver = words
    return {"name": name, "compute_capability": capability, "memory_mib": int(total), "free_mib": int(free),
            "driver": driver}, ""


# Containers may have a driver's library without its tools. In another process, which leaves nothing on the GPU.
ASK_DRIVER = """
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1])
device, context, version, major, minor = (ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int(), ctypes.c_int())
name, free, total = ctypes.create_string_buffer(256), ctypes.c_size_t(), ctypes.c_size_t()
for code in (cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0), cuda.cuDeviceGetName(name, 256, device),
             cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device), cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device),
             cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device), cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)),
             cuda.cuDriverGetVersion(ctypes.byref(version))):
    if code:
        sys.exit(1)
text = name.value.decode()
if not text.startswith("NVIDIA"):
    text = "NVIDIA " + text
print(f"{text},{major.value}.{minor.value},{total.value >> 20},{free.value >> 20},"
      f"for CUDA {version.value // 1000}.{version.value // 10 % 100}")
"""


def ask_driver():
    """find_gpu's answer of the driver's library itself; None where it has none."""
    library = find_library("libcuda.so.1")
    words = said_by(["python3", "-c", ASK_DRIVER, library]).strip().split(",") if library else []
    if len(words) != 5:
        return None
    return {"name": words[0], "compute_capability": words[1], "memory_mib": int(words[2]), "free_mib": int(words[3]),
            "driver": words[4]}, ""


def architecture(gpu):
    """For CMAKE_CUDA_ARCHITECTURES: machine code of this GPU and nothing else."""
    return gpu["compute_capability"].replace(".", "") + "-real"


HOPPER_ATTENTION = {"SPILLWAY_CUDA_ATTENTION": "wgmma"}
WITH_WGMMA = " with wgmma"  # after the names of figures that were measured so


def is_hopper(gpu):
    """Whether attention has kernels of its own there, which HOPPER_ATTENTION asks for."""
    return bool(gpu) and gpu["compute_capability"] == "9.0"


def memory_bytes():
    """What programs may take now."""
    match = re.search(r"^MemAvailable:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(match.group(1)) * 1024 if match else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


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


def cgroup_memory():
    """The limit of this container, in bytes; None where there is none."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            words = pathlib.Path(path).read_text().strip()
        except OSError:
            continue
        if words.isdigit() and int(words) < 1 << 60:
            return int(words)
    return None


def cgroup_cores():
    """The processors that a container's quota amounts to; None where there is none."""
    try:
        quota, period = pathlib.Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return int(quota) / int(period) if quota != "max" else None
    except (OSError, ValueError):
        return None


def nvidia_folders():
    """Where toolkits, drivers and Python packages have CUDA's libraries."""
    nvcc = find_tool("nvcc")
    roots = [pathlib.Path(nvcc).resolve().parent.parent] if nvcc else []
    roots += sorted(pathlib.Path("/usr/local").glob("cuda*"), reverse=True)
    folders = [root / name for root in roots for name in ("lib64", "lib", "targets/x86_64-linux/lib")]
    folders += [pathlib.Path("/usr/local/nvidia/lib64"), pathlib.Path("/usr/lib/x86_64-linux-gnu")]
    folders += [root / "compat" for root in roots]  # a driver's library for an older driver
    return folders + [found for site in python_folders() for found in sorted((site / "nvidia").glob("*/lib"))]


def python_folders():
    """Where `python3` looks for packages; it is asked, for it may be another than the one that runs this."""
    answer = said_by(["python3", "-c", "import site, sys; print('\\n'.join(sys.path + site.getsitepackages()))"])
    return [pathlib.Path(line) for line in dict.fromkeys(answer.splitlines()) if line and pathlib.Path(line).is_dir()]


def said_by(argv, seconds=30):
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=seconds).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def find_library(name):
    """The path of a shared library: as the loader finds it, or where CUDA's are. None: there is none."""
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder and (pathlib.Path(folder) / name).exists():
            return str(pathlib.Path(folder) / name)
    ldconfig = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    for line in said_by([ldconfig, "-p"]).splitlines() if ldconfig else []:
        if line.split(" ", 1)[0].strip() == name and "=>" in line:
            return line.split("=> ")[1].strip()
    for folder in nvidia_folders():
        if (folder / name).exists():
            return str(folder / name)
    return None


def cublaslt_version(path):
    """13.0.2 of 130002; asked of the library in another process, for it takes some hundred MB. None: it says nothing."""
    if not path:
        return None
    code = f"import ctypes; f = ctypes.CDLL({path!r}).cublasLtGetVersion; f.restype = ctypes.c_size_t; print(f())"
    number = said_by(["python3", "-c", code]).strip()
    if not number.isdigit():
        return None
    number = int(number)
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


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
