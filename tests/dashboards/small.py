"""Makes the pictures small: small.py FOLDER. 256 colours are enough for a board, and a third of the bytes."""

import sys
from pathlib import Path

from PIL import Image

for path in Path(sys.argv[1]).glob("board-*.png"):
    picture = Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)
