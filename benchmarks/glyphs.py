"""A thousand classes of real shapes: characters in fonts that the classifier has not seen.

    apt-get install fonts-noto-cjk fonts-ipafont fonts-takao fonts-migmix fonts-horai-umefont ...
    python -m benchmarks.glyphs FOLDER

Common Japanese characters (the first level of JIS X 0208) are drawn in the fonts of this machine
that have nearly all of them, turned, moved, blurred and noisy. Fonts of one folder, which are often
one design, belong to one part: some to train a small network, some to fit the residual estimator,
some to test. The images go to FOLDER/glyphs.npz, the network to FOLDER/glyphs.keras; what is there
already is used again.
"""

import os
import sys
from pathlib import Path

import numpy as np

from benchmarks import common

SIDE = 32
"""Pixels."""

_PARTS = {"train": 0.6, "fit": 0.2, "test": 0.2}
"""Shares of the fonts."""

_OF_A_FOLDER = 3
"""Fonts at most."""


def main() -> None:
    parser = common.parser("glyphs", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fonts", type=Path, default=Path("/usr/share/fonts"))
    parser.add_argument("--classes", type=common.count, default=1000)
    parser.add_argument("--copies", type=common.count, default=2, help="of each held-out glyph")
    parser.add_argument("--held_out", type=common.count, default=10_000, help="to fit, at most")
    parser.add_argument("--epochs", type=common.count, default=6)
    parser.add_argument("--looks", action="store_true", help="also with looks")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    path = arguments.folder / "glyphs.npz"
    if not path.exists():
        fonts = find_fonts(arguments.fonts, characters(arguments.classes))
        draw(path, fonts, characters(arguments.classes), arguments.copies, arguments.seed)
    common.start_tensorflow(common.cores())
    common.print_environment("tensorflow", "keras", "scikit-learn", "pillow")
    with np.load(path) as file:
        parts = {part: (file[f"x_{part}"], file[f"y_{part}"]) for part in _PARTS}
    random = np.random.default_rng(arguments.seed)
    rows = random.permutation(len(parts["fit"][1]))[: arguments.held_out]
    parts["fit"] = (parts["fit"][0][rows], parts["fit"][1][rows])
    print({part: f"{len(y):,} images" for part, (_, y) in parts.items()}, flush=True)
    network = arguments.folder / "glyphs.keras"
    if not network.exists():
        train(network, *parts["train"], arguments.classes, arguments.epochs, arguments.seed)
    measure(network, parts, arguments.looks)


def characters(count: int) -> str:
    """So many characters of the first level of JIS X 0208, spread over it."""
    every = "".join(
        bytes([row + 0xA0, cell + 0xA0]).decode("euc_jp", "ignore")
        for row in range(16, 48)
        for cell in range(1, 95)
    )
    if count > len(every):
        sys.exit(f"error: classes: expected at most {len(every)}, received {count}")
    return "".join(every[place] for place in np.linspace(0, len(every) - 1, count).astype(int))


def find_fonts(folder: Path, wanted: str) -> list[list[Path]]:
    """Fonts that have nearly all characters, by the folder that they are in."""
    from fontTools.ttLib import TTFont, TTLibError

    fonts = []
    for own in sorted({path.parent for path in folder.rglob("*.[ot]t[fc]")}):
        found: list[Path] = []
        for path in sorted(own.glob("*.[ot]t[fc]")):
            if path.is_symlink() or len(found) == _OF_A_FOLDER:
                continue
            try:
                known = TTFont(path, lazy=True, fontNumber=0).getBestCmap() or {}
            except (TTLibError, OSError):
                continue
            if sum(ord(one) in known for one in wanted) >= 0.95 * len(wanted):
                found.append(path)
        if found:
            fonts.append(found)
    if len(fonts) < 10:
        sys.exit(
            f"error: fonts: expected ten folders of fonts with these characters in {folder}, "
            f"received {len(fonts)}; install more of Debian's Japanese and Chinese fonts"
        )
    return fonts


def draw(path: Path, fonts: list[list[Path]], wanted: str, copies: int, seed: int) -> None:
    """Writes images uint8 `[n, 32, 32, 1]` and classes `[n]` of each part."""
    random = np.random.default_rng(seed)
    order = [fonts[place] for place in random.permutation(len(fonts))]
    ends = np.cumsum([*_PARTS.values()]) * sum(map(len, order))
    # The middle of a folder decides which part all of it belongs to.
    middles = np.cumsum([len(own) for own in order]) - [len(own) / 2 for own in order]
    places = np.searchsorted(ends, middles)
    arrays = {}
    for number, part in enumerate(_PARTS):
        own = [
            font
            for one, place in zip(order, places, strict=True)
            if place == number
            for font in one
        ]
        print(f"{part}: {', '.join(font.stem for font in own)}", flush=True)
        drawn = [glyphs(font, wanted, 1 if part == "train" else copies, random) for font in own]
        arrays[f"x_{part}"] = np.concatenate([images for images, _ in drawn])
        arrays[f"y_{part}"] = np.concatenate([labels for _, labels in drawn])
    np.savez_compressed(path, **arrays)


def glyphs(
    font: Path, wanted: str, copies: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Images of the characters that a font has, and their numbers."""
    from fontTools.ttLib import TTFont
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    known = TTFont(font, lazy=True, fontNumber=0).getBestCmap()
    pen = ImageFont.truetype(str(font), SIDE - 6)
    images, labels = [], []
    for label, character in enumerate(wanted):
        if ord(character) not in known:
            continue
        for _ in range(copies):
            image = Image.new("L", (SIDE, SIDE))
            x, y = SIDE / 2 + random.uniform(-2, 2, 2)
            ImageDraw.Draw(image).text((x, y), character, 255, pen, anchor="mm")
            image = image.rotate(random.uniform(-8, 8), Image.Resampling.BILINEAR)
            image = image.filter(ImageFilter.GaussianBlur(random.uniform(0, 0.9)))
            pixels = np.asarray(image, np.float32) * random.uniform(0.5, 1.0)
            pixels += random.uniform(0, 25) * random.normal(size=pixels.shape)
            images.append(np.clip(pixels, 0, 255).astype(np.uint8)[..., None])
            labels.append(label)
    return np.stack(images), np.array(labels)


def train(path: Path, x: np.ndarray, y: np.ndarray, classes: int, epochs: int, seed: int) -> None:
    """Trains a small convolutional network and saves it."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(seed)
    network = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            layers.Rescaling(1 / 255),
            layers.Conv2D(16, 5, 2, "same", activation="relu"),
            layers.Conv2D(48, 3, 2, "same", activation="relu"),
            layers.BatchNormalization(),
            layers.Conv2D(96, 3, 2, "same", activation="relu"),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(256, "relu"),
            layers.Dropout(0.3),
            layers.Dense(classes),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
    network.fit(x.astype(np.float32), y, batch_size=128, epochs=epochs, verbose=2)
    network.save(path)


def measure(path: Path, parts: dict[str, tuple[np.ndarray, np.ndarray]], looks: bool) -> None:
    """Prints the residual estimator's ranking of errors minus MCP's."""
    import btcp_tf

    floats = {part: (x.astype(np.float32), y) for part, (x, y) in parts.items()}
    rows = []
    for name, settings in {
        "residual": {"looks": ()},
        **({"with looks": {}} if looks else {}),
    }.items():
        judge = btcp_tf.attach(str(path))
        judge.fit(*floats["fit"], reference=floats["train"], **settings)
        mcp, own = judge.evaluate(*floats["test"])
        rows = rows or [mcp]
        rows.append(own | {"method": name})
    print(f"{rows[0]['n']:,} test images, accuracy {rows[0]['accuracy']:.1%}")
    common.print_table(common.DIFFERENCES, common.differences(rows))
    print(f"\nlargest memory of this process: {common.peak_mib():,.0f} MiB")


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
