"""Run by the interpreter that has vLLM: SmolLM2 out of its GGUF file, as a folder that is served.

python export_smollm2.py FILE.gguf FOLDER
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

file, folder = map(Path, sys.argv[1:])
where = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
unpacked = GgufConfig(dequantize=True)
model = AutoModelForCausalLM.from_pretrained(
    **where, dtype=torch.float32, quantization_config=unpacked
)
model.save_pretrained(folder)
AutoTokenizer.from_pretrained(**where).save_pretrained(folder)
