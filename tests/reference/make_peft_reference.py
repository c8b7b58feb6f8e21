"""Makes the folders llama_lora, qwen2_lora and gpt2_lora beside this script: low-rank adapters of the tiny models
in llama, qwen2 and gpt2 as `peft` saves them, and what it computes with them.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch transformers peft
    /tmp/venv/bin/python tests/reference/make_peft_reference.py [OUTPUT]

A folder holds adapter_config.json and adapter_model.safetensors, written by save_pretrained(), with a B that is not
zero, and expected.safetensors, as make_transformers_reference.py describes: the gradients are of the adapters, which
alone are trained. Made with torch 2.15.0, transformers 5.23.0 and peft 0.21.2; the tests that read the folders need
none of them.
"""

import json
import pathlib
import sys

import peft
import torch
import transformers

from make_transformers_reference import expected_tensors, save_expected

BASES = pathlib.Path(__file__).parent
SETTINGS = {
    "llama": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                                                          "up_proj", "down_proj"]},
    "qwen2": {"r": 3, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "gpt2": {"r": 4, "lora_alpha": 6, "target_modules": ["c_attn", "mlp.c_proj"], "fan_in_fan_out": True},
}


def make(name, settings, output):
    torch.manual_seed(20261124)
    base = transformers.AutoModelForCausalLM.from_pretrained(BASES / name, attn_implementation="eager").float()
    base.config.name_or_path = base.name_or_path = name
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **settings))
    with torch.no_grad():
        for parameter, value in model.named_parameters():
            if "lora_" in parameter:
                value.copy_(0.15 * torch.randn_like(value))
    folder = output / f"{name}_lora"
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_modules"].sort()  # a set of strings, in any order
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    tensors = expected_tensors(model.double().train(), base.config.vocab_size)
    save_expected({name.replace(".default.", "."): value for name, value in tensors.items()}, folder)


if __name__ == "__main__":
    where = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else BASES
    for name, settings in SETTINGS.items():
        make(name, settings, where)
