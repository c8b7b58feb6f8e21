"""Makes the folders llama, qwen2, qwen3, mistral and gpt2 beside this script: tiny models as `transformers`
saves them, and what it computes with them.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch transformers
    /tmp/venv/bin/python tests/reference/make_transformers_reference.py [OUTPUT]

A folder holds config.json and model.safetensors, written by save_pretrained(), and expected.safetensors, all
of it F32: tokens and targets (B, T), the logits (B, T, V), gradients.NAME of the mean loss for every tensor
NAME of the model, and the losses before each of 20 AdamW steps on the same batch (step_losses). Arithmetic is
float64, but for the parts that `transformers` computes in float32 whatever the model's type (RMSNorm, the
angles of the rotary embedding). Made with torch 2.15.0 and transformers 5.23.0; the tests that read the
folders need neither.
"""

import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

B, T, STEPS = 2, 24, 20
ADAM = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8}
WEIGHT_DECAY = 0.1  # of matrices

COMMON = dict(vocab_size=48, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
              max_position_embeddings=32, rms_norm_eps=1e-5, bos_token_id=None, eos_token_id=None, pad_token_id=None)


def configs():
    rope = lambda theta, **scaling: {"rope_theta": theta, "rope_type": "default", **scaling}
    return {
        # Wavelengths of the three frequencies are 6, 135 and 2917 positions: kept, in between, divided.
        "llama": transformers.LlamaConfig(
            **COMMON, num_key_value_heads=2, tie_word_embeddings=False,
            rope_parameters=rope(1e4, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                 original_max_position_embeddings=256)),
        "qwen2": transformers.Qwen2Config(
            **COMMON, num_key_value_heads=1, tie_word_embeddings=True, rope_parameters=rope(1e6)),
        "qwen3": transformers.Qwen3Config(
            **COMMON, num_key_value_heads=2, head_dim=10, tie_word_embeddings=True,
            rope_parameters=rope(1e6, rope_type="linear", factor=2.0)),
        "mistral": transformers.MistralConfig(
            **COMMON, num_key_value_heads=2, head_dim=8, sliding_window=5, tie_word_embeddings=False,
            rope_parameters=rope(1e4)),
        "gpt2": transformers.GPT2Config(
            vocab_size=48, n_positions=32, n_embd=24, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=None, eos_token_id=None),
    }


def make_larger(model):
    """Larger and less regular than a real initialisation, so that every gradient has something to say."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.dim() == 1:
                is_norm = "norm" in name or "ln_" in name
                value.copy_(0.1 * torch.randn_like(value) + (1.0 if is_norm and name.endswith("weight") else 0.0))
            else:
                value.copy_(0.15 * torch.randn_like(value))


def mean_loss(model, tokens, targets):
    logits = model(tokens).logits
    return torch.nn.functional.cross_entropy(logits.view(B * T, -1), targets.view(B * T)), logits


def losses_of_steps(model, tokens, targets):
    parameters = [p for p in model.parameters() if p.requires_grad]
    adamw = torch.optim.AdamW(
        [{"params": [p for p in parameters if p.dim() == 2], "weight_decay": WEIGHT_DECAY},
         {"params": [p for p in parameters if p.dim() != 2], "weight_decay": 0.0}], **ADAM)
    losses = []
    for _ in range(STEPS):
        adamw.zero_grad()
        loss, _ = mean_loss(model, tokens, targets)
        loss.backward()
        losses.append(loss.item())
        adamw.step()
    return losses


def expected_tensors(model, vocabulary):
    """What a float64 model computes; its parameters are trained by it."""
    text = torch.randint(vocabulary, (B, T + 1))
    tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    loss, logits = mean_loss(model, tokens, targets)
    loss.backward()
    tensors = {"tokens": tokens, "targets": targets, "logits": logits.detach()}
    for parameter, value in model.named_parameters():
        if value.requires_grad:
            tensors["gradients." + parameter] = value.grad.clone()
    tensors["step_losses"] = torch.tensor(losses_of_steps(model, tokens, targets))
    return tensors


def save_expected(tensors, folder):
    save_file({key: value.float().contiguous() for key, value in tensors.items()}, folder / "expected.safetensors")
    losses = tensors["step_losses"]
    print(folder.name, *(f"{loss:.5f}" for loss in losses[:3]), "..", f"{losses[-1]:.5f}")


def make(name, config, output):
    torch.manual_seed(20261123)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    make_larger(model)
    model.save_pretrained(output / name)
    (output / name / "generation_config.json").unlink(missing_ok=True)
    save_expected(expected_tensors(model.double().train(), config.vocab_size), output / name)


if __name__ == "__main__":
    where = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    for name, config in configs().items():
        make(name, config, where)
