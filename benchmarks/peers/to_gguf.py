"""The weights of a Hugging Face directory as GGUF in their own type, biases and norms in f32.

  python to_gguf.py DIR FILE.gguf        needs numpy and gguf
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "test" / "oracle"))
from gguf_writer import write_gguf  # noqa: E402

if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]), sys.argv[2], max_model_len=4096, as_f32=False)
