"""Stands in for PyTorch where scripts/gpu_check/torch_bench.py itself is tested: its names, and no arithmetic. As of a GPU without
cuDNN's attention, and without memory for heads of 128 backward."""

import contextlib

__version__ = "0.stand-in"
bfloat16 = "bf16"


class version:  # pylint: disable=invalid-name
    cuda = None


class Tensor:
    def __init__(self, *shape):
        self.shape = shape

    def t(self):
        return Tensor(*reversed(self.shape))


def manual_seed(_):
    pass


def randn(*shape, device, dtype, requires_grad=False):
    assert dtype is bfloat16 and device == "cpu" and requires_grad in (False, True)
    return Tensor(*shape)


def matmul(a, b):
    if a.shape[1] != b.shape[0]:
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({a.shape} and {b.shape})")
    return Tensor(a.shape[0], b.shape[1])


no_grad = contextlib.nullcontext


class autograd:  # pylint: disable=invalid-name
    @staticmethod
    def grad(made, operands, gradient, retain_graph):
        assert made.shape == gradient.shape and len(operands) == 3 and retain_graph
        if made.shape[-1] == 128:
            raise RuntimeError("CUDA out of memory.\nTried to allocate more.")
        return operands


from . import nn  # noqa: E402
