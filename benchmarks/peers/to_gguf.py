"""Writes the weights of a Hugging Face directory as GGUF. Matrices keep their type; biases and norms become f32.

  python to_gguf.py DIR FILE.gguf        (requires numpy and gguf)
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "test" / "oracle"))
from gguf_writer import write_gguf  # noqa: E402

if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]), sys.argv[2], max_model_len=4096, as_f32=False)
