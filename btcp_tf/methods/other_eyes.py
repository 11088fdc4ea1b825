"""Cheap models of another kind, trained on the samples that a classifier was trained on.

Their answer to the same input is evidence of whether the classifier's is wrong: trees do not see a
table as a network does, nor a bag of tokens a text, nor a small network an image. A student learns
the classifier's own answers, too. Small images have a second head on their `View` as well.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from btcp_tf.core import checks, progress
from btcp_tf.networks import evidence_layers, other_eyes
from btcp_tf.networks.other_eyes import Tokens, Trees

_ROWS = 100_000  # Training samples, at most.

_MOST_WIDTH = 4096

_ITERATIONS = 100

_TREES = 1000  # For all classes together, unless there are more of these.

_SPLITS = 2**17  # Trees times numbers of an input: each tree tries to split by all of them.

_TREE_WORK = 2**30  # The same times samples: about a minute on one slow core.

_DEPTH = 6

_LEAVES = 31

_BATCH = 1024

_MOST_TOKENS = 2**16

_WEIGHTS = 2**22  # Tokens times classes, at most: 16 MiB.

_TOKEN_WORK = 2**26  # Tokens of all samples times classes: about a minute, too.

_STRENGTH = 10.0  # Inverse of the penalty on the weights of tokens.

_NET_BATCH = 64

_PASSES = 2**17  # Of samples through a network: some minutes on one slow core.

_EPOCHS = (3, 50)  # At least, at most.

_RATE = 2e-3

_MEASURED = 2**24  # Numbers that mean and spread are measured on, at most.

_SHARED = 0.9  # Columns of which most numbers are in others, too: those of a sequence.


def train_trees(x: np.ndarray, y: np.ndarray, classes: int, seed: int, title: str = "") -> Trees:
    """Trains gradient-boosted trees on samples that a classifier was trained on.

    100 iterations, fewer where there are many classes or an input has many numbers, of trees with
    at most 31 leaves in 6 levels.

    Args:
      x: Numbers `[n, ...]`, n ≥ 1; they count as float32.
      y: True classes, whole numbers from 0 to `classes` − 1, `[n]`.
      classes: Number of classes, k.
      seed: Which samples are drawn where there are more than 100,000, or more than trees learn from
        in about a minute.
      title: Is printed at the start, unless it is empty.

    Returns:
      A layer, numbers `[n, ...]` → log-probabilities `[n, k]`. If all samples have one class, it
      answers with that.

    Raises:
      ValueError: If samples and labels are not as many, are none, or labels are no classes.

    Source: scikit-learn's `HistGradientBoostingClassifier`, after Ke et al., LightGBM, 2017.

    >>> x = np.random.default_rng(0).normal(size=(200, 3))
    >>> eye = train_trees(x, (x[:, 1] > 0).astype(int), classes=2, seed=0)
    >>> np.asarray(eye(np.array([[0, -2, 0], [0, 2, 0]]))).argmax(axis=1).tolist()
    [0, 1]
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    x, y = _checked(x, y, classes)
    progress.say(title, bool(title))
    width, known = math.prod(x.shape[1:]), len(np.unique(y))
    groups = 1 if known <= 2 else known  # Classes with trees.
    iterations = max(1, min(_ITERATIONS, min(_TREES, _SPLITS // width) // groups))
    drawn = _drawn(len(x), max(1, _TREE_WORK // (iterations * groups * width)), seed)
    x, y = x[drawn].reshape(-1, width).astype(np.float32), y[drawn]
    if len(np.unique(y)) == 1:
        return other_eyes.constant_trees(width, other_eyes.log_shares(y, classes), name="trees")
    fitted = HistGradientBoostingClassifier(
        # Few iterations take longer steps.
        learning_rate=min(0.3, 10 / iterations),
        max_iter=iterations,
        max_depth=_DEPTH,
        max_leaf_nodes=_LEAVES,
        min_samples_leaf=min(20, max(1, len(x) // 20)),
        early_stopping=False,
        random_state=seed,
    ).fit(x, y)
    return other_eyes.trees_of(fitted, classes, name="trees")


def train_tokens(x: np.ndarray, y: np.ndarray, classes: int, seed: int, title: str = "") -> Tokens:
    """Trains a logistic regression on the tokens of samples that a classifier was trained on.

    It knows the tokens that at least two samples have: the most frequent 65,536, or fewer from 65
    classes on.

    Args:
      x: Numbers of tokens `[n, t]`, where 0 is none; or texts `[n]` or `[n, 1]`, n ≥ 1.
      y: True classes, whole numbers from 0 to `classes` − 1, `[n]`.
      classes: Number of classes, k.
      seed: Which samples are drawn where there are more than 100,000, or more tokens in them than
        are learned from in about a minute.
      title: Is printed at the start, unless it is empty.

    Returns:
      A layer, inputs like x → log-probabilities `[n, k]`. If all samples have one class, or no
      token in common, it answers with the shares of the classes.

    Raises:
      ValueError: If samples and labels are not as many, are none, or labels are no classes.

    Source: scikit-learn's `LogisticRegression`.

    >>> x = np.array(["good film", "a good one", "bad film", "a bad one"] * 10)
    >>> eye = train_tokens(x, np.array([1, 1, 0, 0] * 10), classes=2, seed=0)
    >>> np.asarray(eye(np.array(["Good!", "a bad idea"]))).argmax(axis=1).tolist()
    [1, 0]
    """
    x, y = _checked(x, y, classes)
    progress.say(title, bool(title))
    drawn = _drawn(len(x), _ROWS, seed)
    x, y = x[drawn], y[drawn]
    text = x.dtype.kind not in "biuf"
    rows, ids = _bags(x, text)
    sizes = np.bincount(rows, minlength=len(x))
    taken = max(1, int(np.searchsorted(np.cumsum(sizes), _TOKEN_WORK // classes, side="right")))
    rows, ids, y = rows[rows < taken], ids[rows < taken], y[:taken]
    length = max(1, math.ceil(sizes.mean()) if text else x.shape[1])
    most = max(1, min(_MOST_TOKENS, _WEIGHTS // classes))
    vocabulary = _most_frequent(ids, most)
    if len(np.unique(y)) == 1 or not len(vocabulary):
        layer = Tokens(1, classes, length, text, name="tokens")
        layer.bias.assign(other_eyes.log_shares(y, classes))
        return layer
    layer = Tokens(len(vocabulary), classes, length, text, name="tokens")
    fitted = _regression(_present(rows, ids, vocabulary, taken), y)
    columns, bias = other_eyes.class_columns(classes, fitted.classes_, fitted.intercept_)
    # One more row for classes without weights of their own.
    kernel = np.vstack([fitted.coef_, np.zeros((1, len(vocabulary)))])[columns].T
    layer.set_weights([vocabulary, kernel, bias])
    return layer


def train_net(
    x: np.ndarray,
    y: np.ndarray,
    classes: int,
    seed: int,
    title: str = "",
    probs: np.ndarray | None = None,
) -> keras.Model:
    """Trains a small network (`networks.other_eyes.small_net`) on samples of a classifier.

    Adam with a cosine schedule, 3 to 50 epochs, the fewer the more samples there are. A tenth of
    the samples is held back, and says after which epoch the network was best.

    Args:
      x: Images, numbers `[n, ...]`, numbers of tokens `[n, t]` or texts, n ≥ 1.
      y: True classes, whole numbers from 0 to `classes` − 1, `[n]`.
      classes: Number of classes, k.
      seed: Seed of weights, order, and which samples are drawn where there are more than 100,000.
      title: Shows a progress bar under this title, unless it is empty.
      probs: The classifier's probabilities `[n, k]`. Then the network is its student (Hinton et
        al., Distilling the Knowledge in a Neural Network, 2015): it learns the mean of them and of
        the truth. None: it learns the truth.

    Returns:
      A model, inputs like x → log-probabilities `[n, k]`. If all samples have one class, it answers
      with that, unless it is a student.

    Raises:
      ValueError: If samples and labels are not as many, are none, labels are no classes, or numbers
        are not finite.

    >>> x = np.random.default_rng(0).normal(size=(200, 8, 8))
    >>> eye = train_net(x, (x[:, 2, 2] > 0).astype(int), classes=2, seed=0)
    >>> eye.output_shape
    (None, 2)
    """
    x, y = _checked(x, y, classes)
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise ValueError("x: expected finite numbers, received NaN or infinity; leave them out")
    rows = _drawn(len(x), _ROWS, seed)
    tokens = x.dtype.kind not in "biuf" or look_like_tokens(x)
    some = rows[: max(1, _MEASURED // max(1, math.prod(x.shape[1:])))]
    net = other_eyes.small_net(x[some], classes, seed, tokens)
    one_hot = np.eye(classes, dtype=np.float32)

    def batch(rows: np.ndarray) -> tuple[Any, Any]:
        truth = one_hot[y[rows]]
        wanted = truth if probs is None else (truth + probs[rows]) / 2
        return tf.constant(x[rows]), tf.constant(wanted)

    absent = np.bincount(y[rows], minlength=classes) == 0
    absent &= probs is None
    if absent.sum() < classes - 1:
        _fit(net, batch, rows, seed, title)
    return other_eyes.with_log_probs(net, absent, "small_net" if probs is None else "student")


def _fit(
    net: keras.Model,
    batch: Callable[[np.ndarray], tuple[Any, Any]],
    rows: np.ndarray,
    seed: int,
    title: str,
) -> None:
    """Trains a network of logits; `batch` are inputs and wanted probabilities of some rows."""
    held_back, train = np.split(rows, [len(rows) // 10])
    size = min(_NET_BATCH, len(train))
    steps, epochs = len(train) // size, int(np.clip(_PASSES // len(train), *_EPOCHS))
    schedule = keras.optimizers.schedules.CosineDecay(_RATE, steps * epochs)
    optimizer = keras.optimizers.Adam(schedule)
    optimizer.build(net.trainable_variables)

    like = [tf.TensorSpec((None, *part.shape[1:]), part.dtype) for part in batch(rows[:1])]

    def learn(inputs: Any, wanted: Any) -> None:
        with tf.GradientTape() as tape:
            losses = tf.nn.softmax_cross_entropy_with_logits(wanted, net(inputs, training=True))
        gradients = tape.gradient(losses, net.trainable_variables)
        # Those of vectors have a form of their own.
        gradients = [tf.convert_to_tensor(gradient) / size for gradient in gradients]
        optimizer.apply(gradients, net.trainable_variables)

    def loss(inputs: Any, wanted: Any) -> Any:
        logits = net(inputs, training=False)
        return tf.reduce_sum(tf.nn.softmax_cross_entropy_with_logits(wanted, logits))

    learn, loss = (
        tf.function(function, like, jit_compile=False).get_concrete_function()
        for function in (learn, loss)
    )

    least, best = math.inf, net.get_weights()
    random = np.random.default_rng(seed)
    bar = progress.Bar(title, steps * epochs, shown=bool(title))
    for _ in range(epochs):
        order = random.permutation(train)
        for start in range(0, steps * size, size):
            learn(*batch(order[start : start + size]))
            bar.add(1)
        starts = range(0, len(held_back), _NET_BATCH)
        now = sum(float(loss(*batch(held_back[start : start + _NET_BATCH]))) for start in starts)
        if now < least or not starts:
            least, best = now, net.get_weights()
    net.set_weights(best)


EYES: dict[str, Callable[..., Any]] = {
    "trees": train_trees,
    "tokens": train_tokens,
    "small_net": train_net,
    "student": train_net,
}
"""(x, y, classes, seed, title) → a trained layer, by name; "student" is given `probs`, too."""


def eyes_for(
    shape: Sequence[int | None], dtype: str, x: np.ndarray | None = None, by_name: bool = False
) -> tuple[str, ...]:
    """Names of the `EYES` that can see inputs of a classifier.

    Trees see up to 4,096 numbers; tokens are seen in texts and in rows of whole numbers; small
    networks see images.

    Args:
      shape: Shape of one input, without the batch; None: any length.
      dtype: Type of the inputs, such as "float32" or "string".
      x: Some inputs `[n, ...]`, which show whether numbers are those of tokens, also as floats.
        Without them rows of int16 and wider may be either.
      by_name: Also those that are trained only where they are asked for by name: a student, which
        costs a pass over its samples; and for images of up to 28 × 28 pixels, of which a `View`
        shows each, or of no fixed size, a small network.

    >>> eyes_for((14,), "float32"), eyes_for((), "string"), eyes_for((28, 28, 1), "uint8")
    (('trees',), ('tokens',), ())
    >>> eyes_for((32, 32, 3), "uint8"), eyes_for((28, 28, 1), "uint8", by_name=True)
    (('small_net',), ('small_net', 'student'))
    """
    names = _suitable(shape, dtype, x, by_name)
    return (*names, *["student"] * (by_name and bool(names)))


def seen_inputs(inputs: Mapping[str, Any], x: Mapping[str, np.ndarray]) -> dict[str, list[str]]:
    """Which of several inputs other eyes see, by the names of these.

    Trees see all numbers that are no tokens, up to 4,096 side by side; tokens are seen in all
    texts, or in the only input of numbers of tokens.

    Args:
      inputs: Symbolic inputs `[n, ...]` by name.
      x: Some inputs, by name.

    >>> inputs = {name: keras.Input((1,), dtype="string") for name in ("job", "town")}
    >>> inputs["age"] = keras.Input((1,))
    >>> x = {"job": [["clerk"]], "town": [["Ulm"]], "age": [[30.0]]}
    >>> seen_inputs(inputs, {name: np.array(one) for name, one in x.items()})
    {'trees': ['age'], 'tokens': ['job', 'town']}
    """
    seen: dict[str, list[str]] = {"trees": [], "tokens": []}
    for name, one in inputs.items():
        for eyes in _suitable(one.shape[1:], one.dtype, x[name], any_image=False):
            if eyes in seen:
                seen[eyes].append(name)
    texts = [name for name in seen["tokens"] if inputs[name].dtype == "string"]
    if texts or len(seen["tokens"]) > 1:  # Numbers of one vocabulary are none of another's.
        seen["tokens"] = texts
    seen["trees"] = [name for name in seen["trees"] if name not in seen["tokens"]]
    width = sum(math.prod(inputs[name].shape[1:]) for name in seen["trees"])
    if width > _MOST_WIDTH:
        seen["trees"] = []
    return {eyes: names for eyes, names in seen.items() if names}


def _suitable(
    shape: Sequence[int | None], dtype: str, x: np.ndarray | None, any_image: bool
) -> list[str]:
    """Eyes but for students, see `eyes_for`."""
    if dtype == "string":
        return ["tokens"] if tuple(shape) in ((), (1,)) else []
    sizes = [size for size in shape if size is not None]
    fixed = len(sizes) == len(shape)
    if evidence_layers.is_image(shape):
        large = fixed and max(sizes[:2]) > evidence_layers.SIDE
        return ["small_net"] if large or any_image else []
    whole = "int" in dtype and not dtype.endswith("int8")
    if x is None:
        sequence = whole and len(shape) == 1
    else:
        sequence = len(shape) == 1 and look_like_tokens(x)
    names = ["tokens"] if sequence else []
    table = fixed and 1 <= math.prod(sizes) <= _MOST_WIDTH
    # Whole numbers that look like tokens are tokens.
    if table and not (sequence and whole and x is not None):
        names.insert(0, "trees")
    return names


def look_like_tokens(x: np.ndarray) -> bool:
    """Whether rows look like sequences of tokens.

    They are whole numbers, none negative, more than 255 among them; and most of a column's are in
    other columns, too, unlike those of a table.

    Args:
      x: Numbers `[n, t]`.

    >>> random = np.random.default_rng(0)
    >>> look_like_tokens(random.geometric(0.01, (50, 20))), look_like_tokens(np.ones((50, 20)))
    (True, False)
    """
    x = np.asarray(x)[:_BATCH]
    if x.ndim != 2 or not x.size or not np.isfinite(x).all():
        return False
    if (x < 0).any() or (x % 1 != 0).any() or x.max() < 256:
        return False
    rows, columns = np.nonzero(x)
    _, number = np.unique(x[rows, columns], return_inverse=True)
    pairs = np.unique(np.stack([number, columns], axis=1), axis=0)
    shared = np.bincount(pairs[:, 0])[number] > 1
    filled = np.bincount(columns, minlength=x.shape[1])
    most = np.bincount(columns[shared], minlength=x.shape[1]) >= filled / 2
    return bool(most.mean() >= _SHARED)


def _checked(x: Any, y: Any, classes: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = checks.array("x", x), checks.array("y", y)
    if not len(x) or y.shape != x.shape[:1]:
        raise ValueError(
            f"y: expected a label for each of at least one sample, received labels {y.shape} for "
            f"samples {x.shape}"
        )
    if y.dtype.kind not in "biu" or y.min() < 0 or y.max() >= classes:
        raise ValueError(
            f"y: expected whole numbers from 0 to {classes - 1}, received {y.dtype} from "
            f"{y.min()} to {y.max()}"
        )
    return x, y.astype(np.int64)


def _drawn(count: int, most: int, seed: int) -> np.ndarray:
    """Rows in a random order, at most so many."""
    return np.random.default_rng(seed).permutation(count)[: min(most, _ROWS)]


def _bags(x: np.ndarray, text: bool) -> tuple[np.ndarray, np.ndarray]:
    """Each token of each sample once: numbers of the samples, ascending, and of the tokens."""
    rows, ids = [], []
    for start in range(0, len(x), _BATCH):
        batch = tf.convert_to_tensor(x[start : start + _BATCH])
        found, new = (part.numpy() for part in other_eyes.distinct_tokens(batch, text))
        rows.append(start + np.nonzero(new)[0])
        ids.append(found[new])
    return np.concatenate(rows), np.concatenate(ids)


def _most_frequent(ids: np.ndarray, most: int) -> np.ndarray:
    """Tokens in the most samples, at least in two of them; in the order of their numbers."""
    tokens, counts = np.unique(ids, return_counts=True)
    tokens, counts = tokens[counts > 1], counts[counts > 1]
    return np.sort(tokens[np.argsort(-counts, kind="stable")[:most]])


def _present(rows: np.ndarray, ids: np.ndarray, vocabulary: np.ndarray, count: int) -> Any:
    """Sparse matrix `[count, tokens]` of the known tokens, as `Tokens` counts them."""
    from scipy import sparse

    places = np.minimum(np.searchsorted(vocabulary, ids), len(vocabulary) - 1)
    known = vocabulary[places] == ids
    rows, places = rows[known], places[known]
    values = 1.0 / np.sqrt(np.bincount(rows, minlength=count)[rows])
    return sparse.csr_matrix((values, (rows, places)), shape=(count, len(vocabulary)))


def _regression(present: Any, y: np.ndarray) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        # Nearly there is good enough for evidence.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=_STRENGTH, max_iter=200).fit(present, y)
