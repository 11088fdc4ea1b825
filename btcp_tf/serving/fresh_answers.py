"""Answers of a SavedModel in a process that cannot import btcp_tf.

A script, which `export_check` runs by its path: `python -I fresh_answers.py SYS_PATH`, with
`sys.path` as a JSON list. It loads TensorFlow, then reads the arguments of `main` as a JSON object
from its standard input. A SavedModel that needs this package therefore fails.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ANSWERS = "answers.npz"


def main(
    directory: str,
    folder: str,
    names: Sequence[str],
    sizes: Sequence[int],
    scale: tuple[float, float],
    batch_size: int,
) -> None:
    """Writes the answers of all signatures to an npz file.

    Args:
      directory: The SavedModel.
      folder: Where the inputs are, `images0.npy` and further ones, perhaps none, `rows0.npy`, with
        a number for each of the names; and where `ANSWERS` is written, with `2/about/json`,
        `<size>/<signature>/<answer>`, and `calibration/<signature>/<answer>` of the further inputs.
      names: Of the inputs of `serving_default`. Those behind the first go to all signatures, where
        a model has more than this one.
      sizes: Numbers of the first inputs to answer together.
      scale: (scale, offset) from pixels to the model's inputs.
      batch_size: How many of the further inputs to answer together.
    """
    import numpy as np
    import tensorflow as tf

    def files(images: Any) -> tf.Tensor:
        pixels = np.rint((images - scale[1]) / scale[0]).astype(np.uint8)
        # With a type: an empty list would become floats.
        return tf.constant([tf.io.encode_png(image).numpy() for image in pixels], tf.string)

    def own(inputs: Sequence[Any]) -> dict[str, tf.Tensor]:
        return {name: tf.constant(one) for name, one in zip(names, inputs, strict=True)}

    def others(inputs: Sequence[Any]) -> dict[str, tf.Tensor]:
        return {name: one for name, one in own(inputs).items() if name != names[0]}

    takes: dict[str, Callable[[Sequence[Any]], Mapping[str, tf.Tensor]]] = {
        "serving_default": own,
        "serving_float": lambda inputs: {
            "images": tf.constant(inputs[0], tf.float32),
            **others(inputs),
        },
        "serving_bytes": lambda inputs: {"image_bytes": files(inputs[0]), **others(inputs)},
    }

    def answer(signature: str, inputs: Sequence[Any]) -> dict[str, Any]:
        answers = signatures[signature](**takes[signature](inputs))
        return {name: value.numpy() for name, value in answers.items()}

    def stored(kind: str, **settings: Any) -> list[Any]:
        paths = [f"{folder}/{kind}{number}.npy" for number in range(len(names))]
        return [np.load(path, **settings) for path in paths]

    signatures = tf.saved_model.load(directory).signatures
    images = stored("images")
    about = signatures["about"](ask=tf.constant(["", "?"]))["json"].numpy()
    written = {"2/about/json": about.astype("S")}
    known = [name for name in takes if name in signatures]
    for size in sizes:
        for signature in known:
            for name, value in answer(signature, [one[:size] for one in images]).items():
                # Text comes as Python objects, which a file of arrays does not hold.
                value = value.astype("S") if value.dtype == "O" else value
                written[f"{size}/{signature}/{name}"] = value
    rows = stored("rows", mmap_mode="r")
    # Files hold whole pixels alone, which float inputs need not be.
    exact = known if images[0].dtype == np.uint8 else ["serving_default"]
    for signature in exact if len(rows[0]) else ():
        batches = [slice(n, n + batch_size) for n in range(0, len(rows[0]), batch_size)]
        parts = [answer(signature, [np.array(one[some]) for one in rows]) for some in batches]
        for name in ("predicted", "uncertainty", "accept"):
            written[f"calibration/{signature}/{name}"] = np.concatenate([p[name] for p in parts])
    np.savez(f"{folder}/{ANSWERS}", **written)


if __name__ == "__main__":
    # All modules that the caller can import, but this package.
    sys.path[:] = json.loads(sys.argv[1])
    sys.modules["btcp_tf"] = None  # type: ignore[assignment]
    import tensorflow  # noqa: F401, before there is anything to wait for

    # Nothing: whoever started it has ended, or needs no answers.
    if text := sys.stdin.read():
        main(**json.loads(text))
