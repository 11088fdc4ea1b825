"""Answers of a SavedModel in a process that cannot import btcp_tf.

A script, which `export_check` runs by its path: `python -I fresh_answers.py ARGUMENTS`, where the
arguments are those of `main` and `sys_path` as a JSON object. A SavedModel that needs this package
therefore fails.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def main(
    directory: str,
    images_file: str,
    sizes: Sequence[int],
    scale: tuple[float, float],
    rows_file: str,
    batch_size: int,
    answers_file: str,
) -> None:
    """Writes the answers of all signatures to an npz file.

    Args:
      directory: The SavedModel.
      images_file: An npy file of inputs.
      sizes: Numbers of the first inputs to answer together.
      scale: (scale, offset) from pixels to the model's inputs.
      rows_file: An npy file of further inputs; "" for none.
      batch_size: How many of these to answer together.
      answers_file: The file to write: `2/about/json`, `<size>/<signature>/<answer>`, and
        `calibration/<signature>/<answer>` of the further inputs.
    """
    import numpy as np
    import tensorflow as tf

    def files(images: Any) -> tf.Tensor:
        pixels = np.rint((images - scale[1]) / scale[0]).astype(np.uint8)
        # Of a type, since an empty list would be one of floats.
        return tf.constant([tf.io.encode_png(image).numpy() for image in pixels], tf.string)

    inputs: dict[str, Callable[[Any], Mapping[str, tf.Tensor]]] = {
        "serving_default": lambda images: {"images": tf.constant(images)},
        "serving_float": lambda images: {"images": tf.constant(images, tf.float32)},
        "serving_bytes": lambda images: {"image_bytes": files(images)},
    }

    def answer(signature: str, images: Any) -> dict[str, Any]:
        answers = signatures[signature](**inputs[signature](images))
        return {name: value.numpy() for name, value in answers.items()}

    signatures = tf.saved_model.load(directory).signatures
    images = np.load(images_file)
    about = signatures["about"](ask=tf.constant(["", "?"]))["json"].numpy()
    found = {"2/about/json": about.astype("S")}
    known = [name for name in inputs if name in signatures]
    for size in sizes:
        for signature in known:
            for name, value in answer(signature, images[:size]).items():
                # Text comes as Python objects, which a file of arrays does not hold.
                value = value.astype("S") if value.dtype == "O" else value
                found[f"{size}/{signature}/{name}"] = value
    rows = np.load(rows_file, mmap_mode="r") if rows_file else images[:0]
    # Files hold whole pixels alone, which float inputs need not be.
    exact = known if images.dtype == np.uint8 else ["serving_default"]
    for signature in exact if len(rows) else ():
        starts = range(0, len(rows), batch_size)
        parts = [answer(signature, np.array(rows[n : n + batch_size])) for n in starts]
        for name in ("predicted", "uncertainty", "accept"):
            found[f"calibration/{signature}/{name}"] = np.concatenate([p[name] for p in parts])
    np.savez(answers_file, **found)


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    # All modules that the caller can import, but this package.
    sys.path[:] = arguments.pop("sys_path")
    sys.modules["btcp_tf"] = None  # type: ignore[assignment]
    main(**arguments)
