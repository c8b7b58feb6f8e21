"""Makes gpt2_tiny.safetensors: what PyTorch says a tiny GPT-2 computes.

    python3 tests/reference/make_reference.py [OUTPUT]

The file holds the parameters and tokens both sides start from, the loss of every token, the gradient of
every tensor, and the losses of ten AdamW steps on the same batch. Arithmetic is float64, so that the
reference has no rounding of its own. Made with PyTorch 1.13.1 (Debian 12: python3-torch); the script
needs nothing else, and the test that reads the file needs neither.
"""

import json
import math
import struct
import sys

import torch

V, L, C, NH, T, B = 64, 2, 32, 4, 16, 4
ADAM = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1}
STEPS = 10


def layout():
    """Names and shapes, Hugging Face style but with [out, in] matrices."""
    shapes = {"wte.weight": (V, C), "wpe.weight": (T, C)}
    for i in range(L):
        block = {
            "ln_1.weight": (C,), "ln_1.bias": (C,),
            "attn.c_attn.weight": (3 * C, C), "attn.c_attn.bias": (3 * C,),
            "attn.c_proj.weight": (C, C), "attn.c_proj.bias": (C,),
            "ln_2.weight": (C,), "ln_2.bias": (C,),
            "mlp.c_fc.weight": (4 * C, C), "mlp.c_fc.bias": (4 * C,),
            "mlp.c_proj.weight": (C, 4 * C), "mlp.c_proj.bias": (C,),
        }
        shapes.update({f"h.{i}.{name}": shape for name, shape in block.items()})
    shapes.update({"ln_f.weight": (C,), "ln_f.bias": (C,)})
    return shapes


def initial(name, shape):
    """Larger and less regular than a real initialisation, so that every gradient has something to say."""
    values = torch.randn(shape, dtype=torch.float64)
    if ".ln_" in name or name.startswith("ln_"):
        values = 0.1 * values + (1.0 if name.endswith("weight") else 0.0)
    else:
        values = values * (0.1 if len(shape) == 2 else 0.05)
    return values.float().double()  # exactly representable in float32


def norm(x, weight, bias):
    return torch.nn.functional.layer_norm(x, (C,), weight, bias, eps=1e-5)


def gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def attention(x, p, prefix):
    q, k, v = (x @ p[prefix + "c_attn.weight"].T + p[prefix + "c_attn.bias"]).split(C, dim=2)
    q, k, v = (y.view(B, T, NH, C // NH).transpose(1, 2) for y in (q, k, v))
    scores = q @ k.transpose(2, 3) / math.sqrt(C // NH)
    mask = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
    probabilities = torch.softmax(scores.masked_fill(mask, float("-inf")), dim=3)
    out = (probabilities @ v).transpose(1, 2).reshape(B, T, C)
    return out @ p[prefix + "c_proj.weight"].T + p[prefix + "c_proj.bias"]


def token_losses(p, tokens, targets):
    x = p["wte.weight"][tokens] + p["wpe.weight"]
    for i in range(L):
        h = f"h.{i}."
        x = x + attention(norm(x, p[h + "ln_1.weight"], p[h + "ln_1.bias"]), p, h + "attn.")
        y = norm(x, p[h + "ln_2.weight"], p[h + "ln_2.bias"])
        y = gelu(y @ p[h + "mlp.c_fc.weight"].T + p[h + "mlp.c_fc.bias"])
        x = x + y @ p[h + "mlp.c_proj.weight"].T + p[h + "mlp.c_proj.bias"]
    logits = norm(x, p["ln_f.weight"], p["ln_f.bias"]) @ p["wte.weight"].T
    return torch.nn.functional.cross_entropy(logits.view(B * T, V), targets.view(B * T), reduction="none")


def optimizer(p):
    decay = [v for v in p.values() if v.dim() == 2]
    plain = [v for v in p.values() if v.dim() != 2]
    return torch.optim.AdamW(
        [{"params": decay, "weight_decay": ADAM["weight_decay"]}, {"params": plain, "weight_decay": 0.0}],
        lr=ADAM["learning_rate"], betas=(ADAM["beta1"], ADAM["beta2"]), eps=ADAM["epsilon"])


def write_safetensors(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, (kind, shape, values) in tensors.items():
        packed = struct.pack(f"<{len(values)}{dict(F32='f', F64='d', I32='i')[kind]}", *values)
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def main(path):
    torch.manual_seed(20240607)
    p = {name: initial(name, shape).requires_grad_() for name, shape in layout().items()}
    tokens, targets = torch.randint(V, (B, T)), torch.randint(V, (B, T))
    flat = lambda x: x.detach().reshape(-1).tolist()

    tensors = {"tokens": ("I32", (B, T), flat(tokens)), "targets": ("I32", (B, T), flat(targets))}
    for name, value in p.items():
        tensors["parameters." + name] = ("F32", value.shape, flat(value))
    losses = token_losses(p, tokens, targets)
    tensors["token_losses"] = ("F64", (B, T), flat(losses))
    losses.mean().backward()
    for name, value in p.items():
        tensors["gradients." + name] = ("F32", value.shape, flat(value.grad))

    adamw, step_losses = optimizer(p), []
    for _ in range(STEPS):
        adamw.zero_grad()
        loss = token_losses(p, tokens, targets).mean()
        loss.backward()
        step_losses.append(loss.item())
        adamw.step()
    tensors["step_losses"] = ("F64", (STEPS,), step_losses)

    shape = dict(vocabulary=V, layers=L, hidden=C, heads=NH, sequence=T, batch=B)
    write_safetensors(path, tensors, {k: str(v) for k, v in {**shape, **ADAM}.items()})
    print("losses", *(f"{loss:.6f}" for loss in step_losses))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else __file__.replace("make_reference.py", "gpt2_tiny.safetensors"))
