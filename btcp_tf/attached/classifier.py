"""Anyone's classifier, taken apart, and what it answers to labeled samples."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from btcp_tf.attached import inference
from btcp_tf.attached import model as judge_model
from btcp_tf.attached.inference import CheckedInference, Outputs
from btcp_tf.attached.look_inference import LookInference
from btcp_tf.data import named_inputs
from btcp_tf.data.input_checks import InputsWatch, Ranges
from btcp_tf.data.named_inputs import Inputs
from btcp_tf.methods.looks import Look
from btcp_tf.methods.seen import Seen
from btcp_tf.networks import classifiers, evidence_layers
from btcp_tf.networks.evidence_layers import View
from btcp_tf.networks.image_quality import ImageQuality


class Samples(NamedTuple):
    """n labeled samples as an estimator learns from them."""

    seen: Seen
    """What the evidence is computed from."""
    labels: np.ndarray
    """True classes, int64 `[n]`."""
    hashes: np.ndarray
    """Hashes of the inputs, uint64 `[n]`."""
    input_range: Ranges
    """Range of the inputs; None: text."""


@dataclasses.dataclass(frozen=True, eq=False)
class AttachedClassifier:
    """A classifier in two parts, which share no weights with the one that was given."""

    encoder: keras.Model
    """Inputs → features `[n, d]`."""
    ends: keras.Model
    """Features → [logits, probs]."""
    class_names: list[str]
    features: str = ""
    """Name of the layer that makes the features; "": they are the input of the last `Dense`."""
    batch_size: int = 256
    """Inputs at once."""
    verbose: int = 0
    """1: progress bars are shown."""
    from_logits: bool | None = None
    """Whether the answers are logits, if that was said."""

    @classmethod
    def take_apart(
        cls,
        classifier: keras.Model | str | os.PathLike,
        features: str = "",
        names: Sequence[str] = (),
        example: Any = None,
        from_logits: bool | None = None,
    ) -> "AttachedClassifier":
        """Arguments and errors as of `btcp_tf.attach`."""
        if judge_model.has_card(getattr(classifier, "model", classifier)):
            raise ValueError(
                "classifier: expected a classifier, received a Judge, which has one already; "
                "btcp_tf.load reads it from a file"
            )
        encoder, head = classifiers.take_apart(
            classifier, features, example=example, from_logits=from_logits
        )
        names = judge_model.class_names(names, head.output.shape[1])
        ends = classifiers.both_ends(head)
        return cls(encoder, ends, names, features, from_logits=from_logits)

    @classmethod
    def of(
        cls, model: keras.Model, batch_size: int = 256, verbose: int = 0
    ) -> "AttachedClassifier":
        """The two parts of the classifier in a model of `model.join`."""
        card = judge_model.about(model)
        return cls(
            model.get_layer("encoder"),
            model.get_layer("ends"),
            card["class_names"],
            card.get("features", ""),
            batch_size,
            verbose,
            card.get("from_logits"),
        )

    @property
    def inputs(self) -> Any:
        """Its symbolic input, or several by name."""
        return classifiers.named_tensors(self.encoder)

    @property
    def names(self) -> list[str]:
        """Of several inputs; none: there is one."""
        return [*self.inputs] if isinstance(self.inputs, dict) else []

    @property
    def input_shape(self) -> tuple[int | None, ...]:
        """Shape of one sample of its only input."""
        return self.encoder.inputs[0].shape[1:]

    @property
    def dtype(self) -> str:
        """Type of its only input."""
        return self.encoder.inputs[0].dtype

    @property
    def takes(self) -> str:
        """Its inputs in a few words."""
        return ", ".join(
            ("" if name is None else f"{name} ") + f"{one.dtype} {list(one.shape[1:])}"
            for name, one in named_inputs.items(self.inputs)
        )

    @property
    def sees_images(self) -> bool:
        """Whether its only input has a `View`."""
        is_one = not self.names and self.dtype != "string"
        return is_one and evidence_layers.is_image(self.input_shape)

    def samples(
        self,
        x: Any,
        y: Any,
        title: str,
        like: Ranges = None,
        looks: Sequence[Look] = (),
    ) -> Samples:
        """Features, logits, of images views and quality, and odds of looks at labeled samples; see
        `CheckedInference`."""
        inputs = self.inputs
        features = self.encoder(inputs)
        logits = self.ends(features)[0]
        outputs = {"features": features, "logits": logits}
        if self.sees_images:
            outputs |= {"view": View()(inputs), "quality": ImageQuality()(inputs)}
        names, beside = [*outputs], None
        if looks:
            names.append("odds")
            again = self.look_again(looks)

            def beside(inputs: Inputs, answers: list[np.ndarray]) -> np.ndarray:
                return again(inputs, answers[1])

        answers = self._infer(
            [*outputs.values()], x, y, title, like=like, hashed=True, beside=beside
        )
        assert answers.hashes is not None
        # Half precision overflows in what is computed of them.
        columns = [output.astype(np.float32, copy=False) for output in answers.outputs]
        seen = Seen(**dict(zip(names, columns, strict=True)))
        labels = inference.check_labels(answers.labels, len(seen.logits), self.class_names)
        return Samples(seen, labels, answers.hashes, answers.input_range)

    def look_again(self, looks: Sequence[Look]) -> LookInference:
        """What computes odds of looks at inputs."""
        return LookInference(looks, self.encoder, self.ends, self.batch_size)

    def probs(self, x: Any, title: str) -> np.ndarray:
        """Probabilities `[n, k]`."""
        _, probs = self.ends(self.encoder(self.inputs))
        return self._infer(probs, x, None, title).outputs[0]

    def _infer(self, outputs: Any, x: Any, y: Any, title: str, **settings: Any) -> Outputs:
        infer = CheckedInference(keras.Model(self.inputs, outputs), self.batch_size)
        return infer(x, y, title if self.verbose else "", **settings)

    def copy(self) -> keras.Model | None:
        """inputs → probs, with layers `encoder` and `classifier` that share no weights with these;
        None: Keras cannot copy it."""
        probs = keras.Model(self.ends.input, self.ends.outputs[1], name="classifier")
        # Not the encoder's own: Keras would count it twice in the copy.
        inputs = classifiers.new_inputs(self.inputs)
        try:
            return classifiers.copy(keras.Model(inputs, probs(self.encoder(inputs))))
        except ValueError:
            return None

    def check_inputs(self, x: Any, name: str = "x") -> Inputs:
        """Inputs in the classifier's shapes and types, by name where there are several; ValueError
        for others."""
        return inference.checked(x, self.inputs, name)[0]

    def rows_of(self, x: Any) -> Inputs:
        """`inference.rows_of` for its inputs."""
        return inference.rows_of(x, self.inputs)

    def check_sample(self, sample: Any, known: Ranges) -> tuple[Inputs, Ranges]:
        """A few inputs to export with, and the range of the inputs; None: text.

        Args:
          sample: Inputs as of `Judge.predict`.
          known: The range that the estimator was fitted on; None: that of the sample counts.

        Raises:
          ValueError: If the sample is not finite or on another scale.
        """
        sample, kinds = inference.checked(sample, self.inputs, "sample")
        watch = InputsWatch(known, "sample")
        watch.see(sample, kinds)
        watch.end()
        if known and not self.names and (flat := known.flat(sample))[0]:
            # One that the SavedModel takes alone stands first: it is tried out with it.
            sample = np.concatenate([sample[~flat], sample[flat]])
        return sample, known or watch.range

    def take_alike_apart(self, classifier: Any, x: Any) -> "AttachedClassifier":
        """Takes apart a further classifier for the same inputs and classes, at the layer of the
        same name.

        Args:
          classifier: A Keras model, or the path of one.
          x: Inputs, perhaps a dataset of them, some of which are tried.

        Returns:
          Its parts, with the names of this one's classes.

        Raises:
          ValueError: If it has other inputs or another number of classes.
        """
        if inference.is_dataset(x):
            first = next(iter(x), ())
            x = first[0] if isinstance(first, tuple | list) and first else first
        example = self.check_inputs(named_inputs.take(self.rows_of(x), slice(4)))
        other = AttachedClassifier.take_apart(
            classifier, self.features, example=example, from_logits=self.from_logits
        )
        if len(other.class_names) != len(self.class_names):
            raise ValueError(
                f"classifier: expected one of {len(self.class_names)} classes, received one of "
                f"{len(other.class_names)}"
            )
        if other.sees_images != self.sees_images or other.names != self.names:
            raise ValueError(
                f"classifier: expected one of inputs {self.takes}, received one of {other.takes}"
            )
        return dataclasses.replace(
            other,
            class_names=self.class_names,
            batch_size=self.batch_size,
            verbose=self.verbose,
        )
