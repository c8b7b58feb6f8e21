#!/usr/bin/env python3
"""A chat template's process, once it has given up its rights, can do nothing but compute: tests/text/chat/rights_test.py SOURCE_DIR

What a template could do that found a way out of jinja's sandbox is tried in a process that gave up its rights as template_worker.py
does. Exit code 77: skipped, with the reason.
"""
import os
import platform
import socket
import subprocess
import sys
import tempfile

LIMITS = {"memory_bytes": 1 << 30, "text_characters": 1000, "seconds": 10}


def attempts(folder):
    """Each should fail."""
    yield "open a file", lambda: open("/etc/passwd")
    yield "write a file", lambda: open(os.path.join(folder, "new"), "w")
    yield "make a socket", lambda: socket.socket(socket.AF_INET)
    yield "fork", os.fork
    yield "start a program", lambda: os.execv("/bin/true", ["true"])
    yield "spawn", lambda: subprocess.run(["/bin/true"], check=True)
    yield "remove a file", lambda: os.unlink(os.path.join(folder, "there"))
    yield "look into a folder", lambda: os.listdir("/")
    yield "end its parent", lambda: os.kill(os.getppid(), 0)
    yield "much memory", lambda: bytearray(2 << 30)


def main():
    if platform.machine() not in ("x86_64", "aarch64"):
        print(f"skipped: no filter of system calls is written for {platform.machine()}")
        return 77
    source = open(os.path.join(sys.argv[1], "text/chat/template_worker.py")).read()
    worker = {}
    exec(source[:source.rindex("\nmain()")], worker)  # all but the last line, which waits for a message
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        open(os.path.join(folder, "there"), "w").close()
        names = [name for name, _ in attempts(folder)]
        for index, name in enumerate(names):
            child = os.fork()
            if child == 0:
                worker["give_up_rights"](LIMITS)
                try:
                    list(attempts(folder))[index][1]()
                except (OSError, MemoryError):
                    os._exit(0)
                os._exit(1)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            print(f"{name}: {'refused' if status == 0 else f'NOT REFUSED ({status})'}")
            failed += status != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
