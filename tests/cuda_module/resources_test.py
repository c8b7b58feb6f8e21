"""What the kernels of the CUDA module take of a multiprocessor: resources_test.py MODULE.

Each kernel, as it was compiled for each architecture, can be launched with the largest block it may be launched with
(__launch_bounds__), asks for no more shared memory of fixed size than a block has, and keeps its variables in registers.
A kernel that breaks the first of these compiles, and CUDA refuses to launch it. Kernels for sm_90a start with the
registers per thread that their warpgroups then share out (setmaxnreg): with fewer, those that ask for more would wait
for ever.

Machine code is an ELF file in the module (code_test.py finds it). Its sections .nv.info have attributes one after the
other: format, number, then a value of 16 bits or, in format 4, as many bytes.
"""

import pathlib
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
        self.assertEqual(sharing, 8)
        self.assertEqual(wrong, [])

    def test_what_is_too_much_would_be_found(self):
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
    unittest.main(argv=sys.argv[:1], verbosity=2)
