"""Keras layers of cheap models of another kind, which answer beside a classifier.

They see the classifier's inputs and share nothing with it. So where they answer otherwise, one of
the two is wrong. `methods.other_eyes` trains them.

Each layer answers inputs `[n, ...]`, also none, with log-probabilities float32 `[n, k]`, row by
row. What a layer has learned are weights that no training changes: they go into `.keras` files and
SavedModels.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from btcp_tf.networks import evidence_layers

_PACKAGE = "btcp_tf"

LEAST = -30.0
"""The smallest log-probability: also that of a class that no training sample had."""

_ABSENT = -1e9  # Score of a class that no training sample had.

_WORDS = 512  # Words that are read of a text.

_HASHES = 2**40  # Two tokens of a vocabulary hardly ever have one number.

_SEPARATORS = r"[^\pL\pM\pN]+"  # All but letters, marks on letters and digits.

_CONVOLUTIONS = ((16, 2), (32, 1), (64, 2), (96, 2))  # Channels, stride.

_SIDE = 36  # Of images that are not made smaller first, in pixels, about.

_UNITS = 64  # Of a hidden layer.

_VECTORS = 2**15


def class_columns(
    classes: int, known: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where scikit-learn's scores belong among all classes.

    Of two classes scikit-learn scores the second alone; the first has the score 0.

    Args:
      classes: Number of classes, k.
      known: Classes that training samples had, `[c]`, in order.
      start: What the score of each starts from, `[g]`: g = c, or the last g of them.

    Returns:
      The column of each class among the g scores, `[k]`; g: none. And what the score of each class
      starts from, `[k]`.

    >>> columns, start = class_columns(4, np.array([1, 3]), np.array([0.5]))
    >>> columns.tolist(), start[[1, 3]].tolist()
    ([1, 1, 1, 0], [0.0, 0.5])
    """
    scored = known[len(known) - len(start) :]
    columns = np.full(classes, len(start))
    columns[scored] = np.arange(len(start))
    first = np.full(classes, _ABSENT)
    first[known] = 0.0
    first[scored] = start
    return columns, first


def log_shares(labels: np.ndarray, classes: int) -> np.ndarray:
    """Scores `[k]` of a model that answers each input with the shares of the classes.

    Args:
      labels: Classes `[n]`, n ≥ 1.
      classes: Number of classes, k.

    >>> np.exp(log_shares(np.array([0, 0, 1, 0]), 3)).tolist()
    [0.75, 0.25, 0.0]
    """
    counts = np.bincount(labels, minlength=classes)
    return np.where(counts, np.log(np.maximum(counts, 1) / len(labels)), _ABSENT)


def _log_probs(scores: Any) -> Any:
    return tf.maximum(tf.cast(tf.nn.log_softmax(scores), tf.float32), LEAST)


@keras.saving.register_keras_serializable(_PACKAGE)
class Trees(evidence_layers.Float32Layer):
    """Gradient-boosted trees: numbers `[n, ...]` → log-probabilities `[n, k]`.

    Those of scikit-learn's `HistGradientBoostingClassifier`, whose probabilities they have to 1e-6;
    see `trees_of`. All trees go down one node at a time, side by side. Inputs count as float32.

    Args:
      width: Numbers of one input.
      classes: Number of classes, k.
      nodes: Nodes of all trees together.
      iterations: Trees for each class with trees.
      groups: Classes with trees: 1 if there are two.
      depth: Nodes that are passed before the deepest leaf.
    """

    _arguments = ("width", "classes", "nodes", "iterations", "groups", "depth")

    def __init__(
        self,
        width: int,
        classes: int,
        nodes: int,
        iterations: int,
        groups: int,
        depth: int,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.width = width
        self.classes = classes
        self.nodes = nodes
        self.iterations = iterations
        self.groups = groups
        self.depth = depth
        # Feature, and the next node if it is at most the threshold, if it is above, if it is NaN.
        self.links = self._constant("links", nodes, 4, dtype="int32")
        self.thresholds = self._constant("thresholds", nodes)
        self.values = self._double("values", nodes)
        self.roots = self._constant("roots", iterations * groups, dtype="int32")
        self.columns = self._constant("columns", classes, dtype="int32")
        self.start = self._double("start", classes)

    def _double(self, name: str, *shape: int) -> Any:
        """A weight that stays float64 in a layer of float32: sums of many trees need the digits."""
        return self.add_weight(
            shape=shape,
            initializer="zeros",
            trainable=False,
            dtype="float64",
            autocast=False,
            name=name,
        )

    @property
    def multiply_adds(self) -> int:
        """Comparisons for one input, the cost of the layer."""
        return self.iterations * self.groups * max(self.depth, 1)

    def call(self, inputs: Any) -> Any:
        x = tf.reshape(tf.cast(inputs, tf.float32), (-1, self.width))
        links, thresholds, values, roots, columns, start = map(
            tf.convert_to_tensor,
            (self.links, self.thresholds, self.values, self.roots, self.columns, self.start),
        )
        at = tf.zeros_like(x[:, :1], tf.int32) + roots
        for _ in range(self.depth):
            link = tf.gather(links, at)
            value = tf.gather(x, link[..., 0], batch_dims=1)
            after = tf.where(value <= tf.gather(thresholds, at), link[..., 1], link[..., 2])
            at = tf.where(tf.math.is_nan(value), link[..., 3], after)
        leaves = tf.reshape(tf.gather(values, at), (-1, self.iterations, self.groups))
        # One more column for the classes without trees.
        scores = tf.pad(tf.reduce_sum(leaves, axis=1), ((0, 0), (0, 1)))
        return _log_probs(tf.gather(scores, columns, axis=1) + start)


def trees_of(fitted: Any, classes: int, **settings: Any) -> Trees:
    """The trees of a fitted scikit-learn classifier as a layer.

    Args:
      fitted: A fitted `HistGradientBoostingClassifier` of numbers, without categorical features.
        Its classes are whole numbers from 0 to k − 1, at least two of them.
      classes: Number of classes, k.
      **settings: Of the layer, such as its name.

    Raises:
      ValueError: If it has categorical features.

    >>> from sklearn.ensemble import HistGradientBoostingClassifier
    >>> x, y = np.arange(80.0).reshape(-1, 1), np.arange(80) // 40
    >>> layer = trees_of(HistGradientBoostingClassifier(max_iter=3).fit(x, y), 2)
    >>> np.asarray(layer(x[[0, 79]])).argmax(axis=1).tolist()
    [0, 1]
    """
    if fitted.is_categorical_ is not None:
        raise ValueError(
            "fitted: expected trees without categorical features, received "
            f"{int(np.sum(fitted.is_categorical_))} of them; encode them as numbers"
        )
    trees = [tree.nodes for iteration in fitted._predictors for tree in iteration]
    sizes = [len(nodes) for nodes in trees]
    roots = np.cumsum([0, *sizes[:-1]])
    nodes = np.concatenate(trees)
    columns, start = class_columns(classes, fitted.classes_, fitted._baseline_prediction.ravel())
    layer = Trees(
        fitted.n_features_in_,
        classes,
        len(nodes),
        len(fitted._predictors),
        len(fitted._predictors[0]),
        int(nodes["depth"].max()),
        **settings,
    )
    links = _links(nodes, np.repeat(roots, sizes))
    thresholds = _at_most(nodes["num_threshold"])
    layer.set_weights([links, thresholds, nodes["value"], roots, columns, start])
    return layer


def constant_trees(width: int, start: np.ndarray, **settings: Any) -> Trees:
    """A layer that answers alike whatever the input.

    Args:
      width: Numbers of one input.
      start: Scores `[k]`, see `log_shares`.
      **settings: Of the layer, such as its name.

    >>> layer = constant_trees(2, np.log([0.25, 0.75]))
    >>> np.exp(layer(np.zeros((1, 2)))).round(2).tolist()
    [[0.25, 0.75]]
    """
    classes = len(start)
    layer = Trees(width, classes, 1, 1, 1, 0, **settings)
    # One leaf, and the column for classes without trees.
    zero, none = np.zeros(1), np.ones(classes)
    layer.set_weights([np.zeros((1, 4)), zero, zero, zero, none, start])
    return layer


def _links(nodes: np.ndarray, roots: np.ndarray) -> np.ndarray:
    """See `Trees`; `[nodes, 4]`. A leaf leads to itself, as not all leaves are equally deep."""
    left, right = nodes["left"] + roots, nodes["right"] + roots
    missing = np.where(nodes["missing_go_to_left"], left, right)
    inner = np.stack([nodes["feature_idx"], left, right, missing], axis=1)
    own = np.arange(len(nodes))
    leaf = np.stack([np.zeros_like(own), own, own, own], axis=1)
    return np.where(nodes["is_leaf"].astype(bool)[:, None], leaf, inner)


def _at_most(thresholds: np.ndarray) -> np.ndarray:
    """The largest float32 that is no larger: a float32 is at most the one if at most the other."""
    with np.errstate(over="ignore"):
        near = thresholds.astype(np.float32)
    return np.where(near > thresholds, np.nextafter(near, np.float32(-np.inf)), near)


@keras.saving.register_keras_serializable(_PACKAGE)
class Tokens(evidence_layers.Float32Layer):
    """Logistic regression on which tokens are there: `[n, t]` or text → `[n, k]`.

    The score of a class is its bias, plus the sum of its weights of the known tokens, each counted
    once, divided by the square root of how many these are. See `distinct_tokens` for what a token
    is.

    Args:
      size: Tokens that are known.
      classes: Number of classes, k.
      length: Tokens of an input of usual length, for the cost.
      text: Whether inputs are texts, not numbers of tokens.
    """

    _arguments = ("size", "classes", "length", "text")

    def __init__(
        self, size: int, classes: int, length: int, text: bool = False, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.size = size
        self.classes = classes
        self.length = length
        self.text = text
        self.vocabulary = self._constant("vocabulary", size, dtype="int64")
        self.kernel = self._constant("kernel", size, classes)
        self.bias = self._constant("bias", classes)

    @property
    def multiply_adds(self) -> int:
        """Additions for an input of usual length, the cost of the layer."""
        return self.length * self.classes

    def call(self, inputs: Any) -> Any:
        vocabulary, kernel, bias = map(
            tf.convert_to_tensor, (self.vocabulary, self.kernel, self.bias)
        )
        ids, new = distinct_tokens(inputs, self.text)
        places = tf.searchsorted(vocabulary, tf.reshape(ids, (-1,)))
        places = tf.reshape(tf.minimum(places, self.size - 1), tf.shape(ids))
        known = tf.logical_and(new, tf.gather(vocabulary, places) == ids)
        # Summed as they are looked up: nothing of n times t times k numbers is ever made.
        total = tf.sparse.segment_sum(
            kernel,
            tf.boolean_mask(places, known),
            tf.where(known)[:, 0],
            num_segments=tf.shape(ids)[0],
        )
        count = tf.reduce_sum(tf.cast(known, tf.float32), axis=1, keepdims=True)
        total = tf.reshape(total, (-1, self.classes))
        return _log_probs(total / tf.sqrt(tf.maximum(count, 1.0)) + bias)


def distinct_tokens(inputs: Any, text: bool) -> tuple[Any, Any]:
    """The tokens of each input.

    Args:
      inputs: Numbers of tokens `[n, t]`, where 0 fills up what is short and is none; or texts, as
        strings in UTF-8, `[n]` or `[n, 1]`. Tokens of a text are its first 512 words in lower
        case, without what stands between them, and the pairs of neighbors among these, as hashes.
      text: Whether inputs are texts.

    Returns:
      int64 `[n, m]`, in order; and which of them are tokens for the first time, bool `[n, m]`.

    >>> ids, new = distinct_tokens([[7, 3, 7, 0]], text=False)
    >>> ids[new].numpy().tolist()
    [3, 7]
    >>> ids, new = distinct_tokens(["Good, good, GOOD!"], text=True)
    >>> len(ids[new])  # The word, and it twice.
    2
    """
    ids = tf.sort(_text_ids(inputs) if text else tf.cast(inputs, tf.int64), axis=1)
    before = tf.pad(ids[:, :-1], ((0, 0), (1, 0)))
    return ids, tf.logical_and(ids != 0, ids != before)


def _text_ids(texts: Any) -> Any:
    """Numbers of the words of texts and of pairs of words, int64 `[n, m]`; 0: there is none."""
    texts = tf.strings.lower(tf.reshape(texts, (-1,)), encoding="utf-8")
    words = tf.strings.split(tf.strings.regex_replace(texts, _SEPARATORS, " "))[:, :_WORDS]
    pairs = tf.strings.ngrams(words, 2, separator=" ")
    tokens = tf.concat([words, pairs], axis=1)
    return (tf.strings.to_hash_bucket_fast(tokens, _HASHES) + 1).to_tensor()


@keras.saving.register_keras_serializable(_PACKAGE)
class SideBySide(evidence_layers.Float32Layer):
    """Several inputs as one: numbers `[n, ...]` → `[n, width]`; texts `[n]` or `[n, 1]` → `[n]`,
    with blanks between them."""

    def call(self, inputs: Sequence[Any]) -> Any:
        if inputs[0].dtype in ("string", tf.string):
            return tf.strings.join([tf.reshape(one, (-1,)) for one in inputs], separator=" ")
        rows = [tf.cast(one, tf.float32) for one in inputs]
        # Tokens may be of any number, and stay as they are.
        flat = [
            one if len(one.shape) == 2 else tf.reshape(one, (-1, math.prod(one.shape[1:])))
            for one in rows
        ]
        return tf.concat(flat, axis=1)


def side_by_side(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """`SideBySide` of arrays.

    >>> side_by_side([np.array([[1, 2]]), np.array([3.0])]).tolist()
    [[1.0, 2.0, 3.0]]
    """
    return SideBySide()([tf.constant(one) for one in arrays]).numpy()


def of_some(
    eyes: keras.layers.Layer, names: Sequence[str], inputs: Mapping[str, Any]
) -> keras.Model:
    """Eyes that see some of several inputs side by side, as a model of all of them.

    Args:
      eyes: What `SideBySide` makes of these inputs → log-probabilities `[n, k]`.
      names: Of the inputs that are seen.
      inputs: Keras tensors of all inputs, which are not used otherwise.
    """
    seen = SideBySide(name="side_by_side")([inputs[name] for name in names])
    # In a model of its own: an input may have the name of the layer.
    one = keras.Input(seen.shape[1:], dtype=seen.dtype)
    alone = keras.Model(one, eyes(one), name=f"eyes_{eyes.name}")
    return keras.Model(dict(inputs), alone(seen), name=f"{eyes.name}_of_some")


@keras.saving.register_keras_serializable(_PACKAGE)
class MeanVector(evidence_layers.Float32Layer):
    """Mean of the learned vectors of an input's tokens: `[n, t]` or text → `[n, width]`.

    Each token counts once, see `distinct_tokens`; an input without any has zeros.

    Args:
      size: Vectors; tokens share them if there are more.
      width: Length of a vector.
      text: Whether inputs are texts, not numbers of tokens.
      seed: Seed of the vectors before training.
    """

    _arguments = ("size", "width", "text", "seed")

    def __init__(
        self, size: int, width: int, text: bool = False, seed: int = 0, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.size = size
        self.width = width
        self.text = text
        self.seed = seed
        start = keras.initializers.RandomNormal(stddev=0.1, seed=seed)
        self.vectors = self.add_weight(shape=(size, width), initializer=start, name="vectors")

    def call(self, inputs: Any) -> Any:
        ids, new = distinct_tokens(inputs, self.text)
        mean = tf.sparse.segment_mean(
            tf.convert_to_tensor(self.vectors),
            tf.boolean_mask(ids % self.size, new),
            tf.where(new)[:, 0],
            num_segments=tf.shape(ids)[0],
        )
        return tf.reshape(mean, (-1, self.width))


def small_net(x: np.ndarray, classes: int, seed: int, tokens: bool = False) -> keras.Model:
    """A small network before its training: inputs → logits float32 `[n, k]`.

    For images (see `evidence_layers.is_image`) four convolutions, of any size of image, 3.4 million
    multiply-adds for 32 × 32 pixels: a twelfth of a ResNet-20's. Larger images are made smaller
    first. For tokens a mean of vectors, else the numbers themselves, and two hidden layers.

    Args:
      x: Some inputs like those that it will see, `[m, ...]`, m ≥ 1. Mean and spread of channels
        and columns are measured on them.
      classes: Number of classes, k.
      seed: Seed of the weights.
      tokens: Whether inputs are texts or numbers of tokens.

    >>> small_net(np.zeros((1, 28, 28), np.uint8), classes=3, seed=0).output_shape
    (None, 3)
    """
    text = x.dtype.kind not in "biuf"
    shape, dtype = x.shape[1:], "string" if text else x.dtype.name
    image = not tokens and evidence_layers.is_image(shape)
    if image:
        shape = (None, None, *shape[2:])
    elif tokens and not text:
        shape = (None,)
    inputs = keras.Input(shape, dtype=dtype)
    if image:
        hidden = _convolved(inputs, x, seed)
    elif tokens:
        hidden = MeanVector(_VECTORS, _UNITS // 2, text, seed)(inputs)
    else:
        hidden = _standardized(layers.Flatten(dtype=dtype)(inputs), x)
    for place in range(0 if image else 2):
        hidden = layers.Dense(
            _UNITS,
            "relu",
            kernel_initializer=keras.initializers.HeNormal(seed + place),
            dtype="float32",
        )(hidden)
    start = keras.initializers.GlorotUniform(seed)
    return keras.Model(
        inputs, layers.Dense(classes, kernel_initializer=start, dtype="float32")(hidden)
    )


def with_log_probs(net: keras.Model, absent: np.ndarray, name: str) -> keras.Model:
    """Inputs → log-probabilities `[n, k]`, with weights that no training changes.

    Args:
      net: A trained `small_net`, which is changed.
      absent: bool `[k]`, the classes that no training sample had.
      name: Its name.
    """
    bias = net.layers[-1].bias
    bias.assign(np.where(absent, _ABSENT, bias))
    answers = ops.maximum(ops.log_softmax(net.output, axis=1), LEAST)
    model = keras.Model(net.input, answers, name=name)
    model.trainable = False
    return model


def _standardized(inputs: Any, x: np.ndarray) -> Any:
    """Columns, or channels, with a mean of 0 and a spread of 1 in x; 0 for what is constant there,
    whatever it is elsewhere."""
    x = x.reshape(-1, inputs.shape[-1]).astype(np.float64)
    mean, spread = x.mean(axis=0), x.std(axis=0)
    varies = spread > 1e-6 * np.abs(x).max(axis=0)
    variance = np.where(varies, np.square(spread), 1e30)
    return layers.Normalization(mean=mean.tolist(), variance=variance.tolist(), dtype="float32")(
        inputs
    )


def _convolved(images: Any, x: np.ndarray, seed: int) -> Any:
    """`[n, h, w(, c)]` → `[n, channels]`."""
    like: Any = {"data_format": "channels_last", "dtype": "float32"}
    hidden = images if len(images.shape) == 4 else ops.expand_dims(images, -1)
    hidden = _standardized(hidden, x)
    step = math.ceil(math.sqrt(math.prod(x.shape[1:3])) / _SIDE)
    if step > 1:
        hidden = layers.AveragePooling2D(step, padding="same", **like)(hidden)
    for place, (channels, stride) in enumerate(_CONVOLUTIONS):
        start = keras.initializers.HeNormal(seed + place)
        hidden = layers.Conv2D(
            channels, 3, stride, "same", use_bias=False, kernel_initializer=start, **like
        )(hidden)
        # Means over few steps: with few samples there are no more.
        hidden = layers.BatchNormalization(momentum=0.9, dtype="float32")(hidden)
        hidden = layers.ReLU(dtype="float32")(hidden)
    return layers.GlobalAveragePooling2D(**like)(hidden)
