"""What the kernels of the CUDA module take of a multiprocessor: resources_test.py MODULE [--write].

Each kernel, as it was compiled for each architecture, can be launched with the largest block it may be launched with
(__launch_bounds__), asks for no more shared memory of fixed size than a block has, and keeps its variables in registers.
A kernel that breaks the first of these compiles, and CUDA refuses to launch it. Kernels for sm_90a start with the
registers per thread that their warpgroups then share out (setmaxnreg): with fewer, those that ask for more would wait
for ever.

resources.txt beside this file has a bound for each: what tests/cuda/device/emulated_waves_test.cpp, which has no module, goes by. No
kernel of the module may take more than it says, or be missing there. --write writes it anew from the module. And as many
blocks of a kernel run side by side on a multiprocessor as BLOCKS says at least; the table is printed.

Machine code is an ELF file in the module (code_test.py finds it). Its sections .nv.info have attributes one after the
other: format, number, then a value of 16 bits or, in format 4, as many bytes.
"""

import ctypes
import pathlib
import re
import struct
import sys
import unittest

sys.dont_write_bytecode = True
from code_test import MACHINE_CODE, containers, section  # noqa: E402

MAX_THREADS, FRAME_SIZE, REGISTERS = 0x05, 0x11, 0x2F  # numbers of attributes
SYMBOLS = 2  # type of a section
# The same for all GPUs of compute capability 8.0 to 9.0.
REGISTERS_OF_BLOCK, REGISTERS_AT_ONCE, SHARED_OF_BLOCK, THREADS_OF_BLOCK = 65536, 256, 48 * 1024, 1024
SHARED_OF_SYSTEM = 1024  # counted into a kernel's for 9.0
# Bytes of a thread's variables outside of registers: a few that are read once cost nothing.
MOST_STACK = 32


BOUNDS = pathlib.Path(__file__).with_name("resources.txt")
HEADER = """# What each kernel takes, as nvcc 13.0 compiled it: resources_test.py MODULE --write.
# Registers of a thread on sm_80, sm_89 and sm_90 (0: there is none; Hopper's own are for sm_90a), bytes of shared memory of
# fixed size, threads of the largest block, kernel.
"""
ARCHITECTURES = (80, 89, 90)
# Threads, shared memory and blocks of a multiprocessor.
MULTIPROCESSOR = {80: (2048, 164 * 1024, 32), 89: (1536, 100 * 1024, 24), 90: (2048, 228 * 1024, 32)}
# Kernel, threads and dynamic shared memory it is launched with; blocks side by side, at least, on each architecture.
# 0: where that is so, another kernel of the same name is taken.
BLOCKS = (
    ("attention_forward_kernel<64, 64, true, false, false>", 128, 36864, (2, 2, 2)),
    ("attention_forward_kernel<128, 64, true, false, false>", 128, 104448, (1, 0, 2)),
    ("attention_forward_kernel<128, 32, true, false, false>", 128, 69632, (2, 1, 2)),
    ("attention_keys_kernel<64, false, false, false>", 128, 74752, (2, 1, 2)),
    ("attention_keys_kernel<128, false, false, false>", 256, 140288, (1, 0, 1)),
    ("attention_keys_kernel<128, true, false, false>", 256, 70656, (1, 1, 1)),
    ("attention_queries_kernel<64, 2, false, false>", 128, 73728, (2, 1, 2)),
    ("attention_queries_kernel<128, 2, false, false>", 128, 104448, (1, 0, 2)),
    ("attention_queries_kernel<128, 1, false, false>", 128, 69632, (2, 1, 2)),
    ("cross_entropy_kernel<bf16, true>", 768, 100528, (1, 0, 2)),  # a row of 50,257
    ("cross_entropy_kernel<bf16, false>", 768, 0, (2, 2, 2)),
    ("forward_kernel<bf16, 3, true>", 256, 0, (5, 5, 5)),  # norm, 768 columns
    ("backward_kernel<bf16, 1, 2, 4>", 576, 12288, (1, 1, 1)),  # norm
    ("backward_kernel<bf16, false>", 256, 0, (4, 4, 4)),  # GELU
    ("column_sums_kernel<bf16>", 256, 0, (5, 5, 5)),
    ("adamw_kernel<bf16, bf16, float>", 256, 0, (3, 3, 3)),
)


def plain_name(mangled, demangle=ctypes.CDLL("libstdc++.so.6").__cxa_demangle):
    """Without namespaces: the same for g++, which compiles kernels for the emulator."""
    demangle.restype = ctypes.c_char_p
    name = (demangle(mangled.encode(), None, None, None) or mangled.encode()).decode()
    return re.sub(r"\(anonymous namespace\)::|spillway::|cuda::", "", name).removeprefix("void ")


def side_by_side(architecture, threads, registers, shared):
    """Blocks that a multiprocessor runs at once; shared memory with that of fixed size."""
    most_threads, most_shared, most_blocks = MULTIPROCESSOR[architecture]
    warps = -(-threads // 32)
    of_warp = -(-32 * registers // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
    # A quarter of the registers for each quarter of the warps.
    return min(most_threads // (32 * warps), REGISTERS_OF_BLOCK // 4 // of_warp * 4 // warps,
               most_shared // (shared + SHARED_OF_SYSTEM), most_blocks)


def read_bounds():
    """By name: registers on each architecture, shared memory of fixed size, threads."""
    rows = [line.split(maxsplit=5) for line in BOUNDS.read_text().splitlines() if line and line[0] != "#"]
    return {row[5]: (tuple(map(int, row[:3])), int(row[3]), int(row[4])) for row in rows}


def measured(code):
    """The same of the module."""
    found = {}
    for architecture, image in cubins(code):
        for name, kernel in kernels(image).items():
            registers, _, _ = found.get(plain_name(name), ((0, 0, 0), 0, 0))
            registers = tuple(kernel["registers"] if number == architecture else old
                              for number, old in zip(ARCHITECTURES, registers))
            shared = kernel["shared"] - (SHARED_OF_SYSTEM if architecture == 90 and kernel["shared"] else 0)
            found[plain_name(name)] = (registers, shared, kernel["threads"])
    return found


def cubins(code):
    """The architecture and the ELF file of each piece of machine code."""
    for entries in containers(code):
        for kind, architecture, _, contents in entries:
            if kind == MACHINE_CODE:
                yield architecture, contents


def text_at(image, begin):
    return image[begin:image.index(b"\0", begin)].decode()


def attributes(image, begin, size):
    at, end = begin, begin + size
    while at < end:
        form, number, value = struct.unpack_from("<BBH", image, at)
        at += 4
        if form == 4:
            yield number, image[at:at + value]
            at += value


def kernels(image):
    """By name: registers, stack, threads (of the largest block), shared (of fixed size)."""
    (table,), (count, names) = struct.unpack_from("<Q", image, 0x28), struct.unpack_from("<HH", image, 0x3C)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, table + 64 * index) for index in range(count)]
    sections = {text_at(image, headers[names][4] + header[0]): header for header in headers}
    symbols = next(header for header in headers if header[1] == SYMBOLS)
    found = {name[len(".text."):]: {"stack": 0, "threads": THREADS_OF_BLOCK, "shared": 0}
             for name in sections if name.startswith(".text.")}

    def symbol(index):
        return text_at(image, headers[symbols[6]][4] + struct.unpack_from("<I", image, symbols[4] + 24 * index)[0])

    for number, value in attributes(image, *sections[".nv.info"][4:6]):
        if number in (FRAME_SIZE, REGISTERS):
            index, size = struct.unpack("<II", value)
            if symbol(index) in found:
                found[symbol(index)]["stack" if number == FRAME_SIZE else "registers"] = size
    for name, kernel in found.items():
        for number, value in attributes(image, *sections[".nv.info." + name][4:6]):
            if number == MAX_THREADS:
                x, y, z = struct.unpack("<III", value)
                kernel["threads"] = x * y * z
        if ".nv.shared." + name in sections:
            kernel["shared"] = sections[".nv.shared." + name][5]
    return found


def faults(kernel, shares_registers=False):
    """What CUDA would refuse, or what would make it slow; in words."""
    at_start = REGISTERS_OF_BLOCK // kernel["threads"] // 8 * 8
    if shares_registers and kernel["registers"] != at_start:
        yield f"starts with {kernel['registers']} registers per thread, its warpgroups share out {at_start}"
    of_warp = -(-32 * kernel["registers"] // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
    registers = of_warp * -(-kernel["threads"] // 32)
    if registers > REGISTERS_OF_BLOCK:
        yield f"{kernel['threads']} threads of {kernel['registers']} registers take {registers} of {REGISTERS_OF_BLOCK}"
    if kernel["shared"] > SHARED_OF_BLOCK + SHARED_OF_SYSTEM:
        yield f"{kernel['shared']} bytes of shared memory of fixed size, of {SHARED_OF_BLOCK}"
    if kernel["stack"] > MOST_STACK:
        yield f"{kernel['stack']} bytes of a thread do not fit into its {kernel['registers']} registers"


class Resources(unittest.TestCase):
    path = pathlib.Path()

    def test_every_kernel_can_be_launched_and_keeps_its_variables_in_registers(self):
        wrong, count, bounded, sharing = [], 0, 0, 0
        for architecture, image in cubins(section(self.path.read_bytes(), b".nv_fatbin")):
            for name, kernel in kernels(image).items():
                count += 1
                bounded += kernel["threads"] < THREADS_OF_BLOCK
                shares = "hopper_kernel" in name
                sharing += shares
                wrong += [f"sm_{architecture} {name}: {fault}" for fault in faults(kernel, shares)]
        self.assertGreater(count, 50)  # or they were not found
        self.assertGreater(bounded, count // 2)
        self.assertEqual(sharing, 15)
        self.assertEqual(wrong, [])

    def test_no_kernel_takes_more_than_the_bounds_that_tests_without_a_module_go_by(self):
        bounds, wrong = read_bounds(), []
        for name, (registers, shared, threads) in measured(section(self.path.read_bytes(), b".nv_fatbin")).items():
            if name not in bounds:
                wrong.append(f"{name} is missing in {BOUNDS.name}: run {pathlib.Path(__file__).name} MODULE --write")
                continue
            most, most_shared, most_threads = bounds[name]
            if any(own > bound for own, bound in zip(registers, most)) or shared > most_shared or threads != most_threads:
                wrong.append(f"{name} takes {registers, shared, threads}, its bounds are {bounds[name]}")
        self.assertEqual(wrong, [])

    def test_as_many_blocks_run_side_by_side_as_the_documents_say(self):
        found, wrong, table = measured(section(self.path.read_bytes(), b".nv_fatbin")), [], []
        for name, threads, dynamic, least in BLOCKS:
            (full, (registers, shared, _)), = [(full, row) for full, row in found.items() if full.startswith(name + "(")]
            # A module for some architectures only has the registers of these.
            blocks = [side_by_side(number, threads, own, shared + dynamic) if own else 0
                      for number, own in zip(ARCHITECTURES, registers)]
            wrong += [f"{name} on sm_{number}: {have} blocks side by side, not {want}"
                      for number, own, have, want in zip(ARCHITECTURES, registers, blocks, least) if own and have < want]
            table.append("| `" + name + f"` | {threads} | " + " / ".join(map(str, registers)) +
                         f" | {(shared + dynamic) / 1024:.1f} KB | " + " / ".join(map(str, blocks)) + " |")
        print("| kernel | threads | registers, sm_80 / 89 / 90 | shared memory of a block | blocks side by side |", *table, sep="\n")
        self.assertEqual(wrong, [])

    def test_what_is_too_much_would_be_found(self):
        self.assertEqual(side_by_side(89, 128, 168, 40 * 1024), 2)  # by shared memory; 3 by registers
        self.assertEqual(side_by_side(80, 128, 168, 40 * 1024), 3)
        self.assertEqual(side_by_side(89, 512, 40, 0), 3)  # by threads and registers
        self.assertEqual(side_by_side(90, 32, 16, 0), 32)
        self.assertEqual(side_by_side(90, 224, 96, 0), 2)  # 20 warps, not 21
        fits = {"registers": 168, "threads": 384, "stack": 8, "shared": 48 * 1024}
        self.assertEqual(list(faults(fits)), [])
        self.assertEqual(list(faults(fits, True)), [])
        self.assertIn("share", next(faults({**fits, "registers": 160}, True)))
        for change, word in (({"threads": 416}, "take"), ({"registers": 169}, "take"), ({"stack": 40}, "fit"),
                             ({"shared": 50 * 1024}, "shared")):
            (fault,) = faults({**fits, **change})
            self.assertIn(word, fault)


if __name__ == "__main__":
    Resources.path = pathlib.Path(sys.argv[1])
    if "--write" in sys.argv[2:]:
        rows = measured(section(Resources.path.read_bytes(), b".nv_fatbin"))
        BOUNDS.write_text(HEADER + "".join(f"{a} {b} {c} {shared} {threads} {name}\n"
                                           for name, ((a, b, c), shared, threads) in sorted(rows.items())))
        sys.exit(0)
    unittest.main(argv=sys.argv[:1], verbosity=2)
