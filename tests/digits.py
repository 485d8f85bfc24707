#!/usr/bin/env python3
"""Write scikit-learn's handwritten digits as a tree of PNG files: DIR/train/CLASS/*.png and DIR/val/CLASS/*.png.

    python3 tests/digits.py DIR

1,797 images of 8×8 pixels, ten classes (Alpaydin & Kaynak 1998, https://doi.org/10.24432/C50P49), enlarged to 32×32;
every fifth goes to val. scikit-learn carries the data, so nothing is downloaded.
"""

import pathlib
import sys

import numpy as np
import PIL.Image
from sklearn.datasets import load_digits


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: digits.py DIR")
    digits = load_digits()
    for i, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        folder = pathlib.Path(sys.argv[1], "val" if i % 5 == 4 else "train", str(label))
        folder.mkdir(parents=True, exist_ok=True)
        picture = PIL.Image.fromarray((image * 255 / 16).astype(np.uint8))
        picture.resize((32, 32), PIL.Image.Resampling.BICUBIC).save(folder / f"{i:04}.png")
    print(f"wrote {i + 1} images to {sys.argv[1]}")


if __name__ == "__main__":
    main()
