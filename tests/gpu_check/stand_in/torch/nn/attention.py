import contextlib
import enum

SDPBackend = enum.Enum("SDPBackend", "FLASH_ATTENTION CUDNN_ATTENTION")
chosen = []


@contextlib.contextmanager
def sdpa_kernel(backend):
    chosen.append(backend)
    yield
    chosen.pop()
