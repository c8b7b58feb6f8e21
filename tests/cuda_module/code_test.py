"""The CUDA module as it was built: code_test.py MODULE PIECES HOPPER_PIECES VERSION ARCHITECTURE...

1. It has PIECES of device code, one of each .cu file, and each holds what CMake's CUDA architectures say and no more:
   machine code (80-real: sm_80), PTX (90-virtual: compute_90), or both (90). Beside these it has HOPPER_PIECES, one of
   each *_sm90a.cu, with machine code for sm_90a and nothing else.
2. The module loads, driver or not, is of the program's VERSION, and says why there is no device where there is none.

The file is read as nvcc writes it, so that no tool of the toolkit is needed: section .nv_fatbin holds containers one after
the other; a container has a header (magic number, version, header size, size), then entries with a header of their own
(kind: 1 PTX, 2 machine code; ...; architecture), whether their contents are compressed or not.
"""

import ctypes
import os
import pathlib
import struct
import sys
import unittest

CONTAINER, ENTRY = struct.Struct("<IHHQ"), struct.Struct("<HHIQIIHHI")
MAGIC, PTX, MACHINE_CODE = 0xBA55ED50, 1, 2
FLAGS_AT, FOR_ONE_ARCHITECTURE = 40, 1 << 20  # of an entry: where its 64 flags are; that of sm_90a beside sm_90


def section(image, name):
    """The bytes of a section of a 64-bit ELF file."""
    (table,), (count, names) = struct.unpack_from("<Q", image, 0x28), struct.unpack_from("<HH", image, 0x3C)
    headers = [struct.unpack_from("<IIQQQQ", image, table + 64 * index) for index in range(count)]
    for header in headers:
        begin = headers[names][4] + header[0]
        if image[begin:image.index(b"\0", begin)] == name:
            return image[header[4]:header[4] + header[5]]
    return b""


def containers(code):
    """The entries of each container: kind, architecture, flags, contents."""
    at = 0
    while at + CONTAINER.size <= len(code):
        magic, _, header_bytes, bytes_left = CONTAINER.unpack_from(code, at)
        if magic != MAGIC:
            at += 8  # padding
            continue
        at += header_bytes
        end, entries = at + bytes_left, []
        while at < end:
            kind, _, entry_header, entry_bytes, *_, architecture = ENTRY.unpack_from(code, at)
            (flags,) = struct.unpack_from("<Q", code, at + FLAGS_AT) if entry_header >= FLAGS_AT + 8 else (0,)
            entries.append((kind, architecture, flags, code[at + entry_header:at + entry_header + entry_bytes]))
            at += entry_header + entry_bytes
        yield entries


def pieces(code):
    """The names of what each container holds: {"sm_80", "compute_90"}."""
    for entries in containers(code):
        yield {f"{'sm' if kind == MACHINE_CODE else 'compute'}_{architecture}{'a' if flags & FOR_ONE_ARCHITECTURE else ''}"
               for kind, architecture, flags, _ in entries if kind in (PTX, MACHINE_CODE)}


def names_of(architecture):
    """CMake's way to say it: 80-real, 90-virtual, 90 for both."""
    number, _, kind = architecture.partition("-")  # 90a: with the letter
    return {f"{name}_{number}" for name, only in (("sm", "real"), ("compute", "virtual")) if kind in ("", only)}


class Module(unittest.TestCase):
    path, pieces, hopper_pieces, version, expected = pathlib.Path(), 0, 0, "", set()

    def test_every_kernel_is_there_for_every_architecture(self):
        found = list(pieces(section(self.path.read_bytes(), b".nv_fatbin")))
        hopper = [names for names in found if names == {"sm_90a"}]
        if self.expected != {"sm_90a"}:
            self.assertEqual(len(hopper), self.hopper_pieces)
            found = [names for names in found if names not in hopper]
            self.assertEqual(len(found), self.pieces)
        for names in found:
            self.assertEqual(names, self.expected)

    def test_it_loads_and_says_what_devices_there_are(self):
        module = ctypes.CDLL(str(self.path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        module.spillway_cuda_version.restype = ctypes.c_char_p
        # Sizes of what program and module pass each other follow.
        self.assertEqual(module.spillway_cuda_version().decode().split()[0], self.version)
        text = ctypes.create_string_buffer(4096)
        if module.spillway_cuda_devices(text, len(text)) < 0:
            self.assertRegex(text.value.decode(), r"^cudaError[A-Za-z]+: ")

    def test_what_is_missing_would_be_found(self):
        """A container of two entries, then padding, then one of none."""
        def entry(kind, architecture, contents, flags=0x11):
            return ENTRY.pack(kind, 1, 48, len(contents), 0, 0, 0, 0, architecture) + struct.pack("<QQ", 0, flags) + contents

        def container(contents):
            return CONTAINER.pack(MAGIC, 1, CONTAINER.size, len(contents)) + contents

        both = container(entry(MACHINE_CODE, 80, b"x" * 24) + entry(PTX, 90, b"y" * 8))
        self.assertEqual(list(pieces(both + bytes(8) + container(b""))), [{"sm_80", "compute_90"}, set()])
        self.assertEqual(list(pieces(container(entry(MACHINE_CODE, 90, b"x" * 8, 0x100011)))), [{"sm_90a"}])
        self.assertEqual(names_of("90"), {"sm_90", "compute_90"})
        self.assertEqual(names_of("80-real") | names_of("90a-virtual"), {"sm_80", "compute_90a"})


if __name__ == "__main__":
    Module.path, Module.version = pathlib.Path(sys.argv[1]), sys.argv[4]
    Module.pieces, Module.hopper_pieces = map(int, sys.argv[2:4])
    Module.expected = set().union(*map(names_of, sys.argv[5:]))
    unittest.main(argv=sys.argv[:1], verbosity=2)
