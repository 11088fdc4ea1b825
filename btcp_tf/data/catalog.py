"""The data sets that are known by name."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class DatasetSpec:
    """Where one data set comes from and what it is as published.

    Its official test set is never re-split; see `load`.
    """

    source: str
    """tensorflow-datasets name and version, or "digits" (scikit-learn)."""
    image_shape: tuple[int, int, int]
    """Height, width, channels."""
    num_classes: int
    expected_train: int
    """Published number of training images; a prepared copy may hold fewer."""
    expected_test: int
    """Published number of test images."""
    url: str = ""
    """A file that preparing the data set downloads, to see if a network is there."""


DATASETS: dict[str, DatasetSpec] = {
    "mnist": DatasetSpec(
        source="mnist:3.*.*",
        image_shape=(28, 28, 1),
        num_classes=10,
        expected_train=60_000,
        expected_test=10_000,
        url="https://storage.googleapis.com/cvdf-datasets/mnist/t10k-labels-idx1-ubyte.gz",
    ),
    "fashion_mnist": DatasetSpec(
        source="fashion_mnist:3.*.*",
        image_shape=(28, 28, 1),
        num_classes=10,
        expected_train=60_000,
        expected_test=10_000,
        url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/t10k-labels-idx1-ubyte.gz",
    ),
    "cifar10": DatasetSpec(
        source="cifar10:3.*.*",
        image_shape=(32, 32, 3),
        num_classes=10,
        expected_train=50_000,
        expected_test=10_000,
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    ),
    "cifar100": DatasetSpec(
        source="cifar100:3.*.*",
        image_shape=(32, 32, 3),
        num_classes=100,
        expected_train=50_000,
        expected_test=10_000,
        url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    ),
    "svhn_cropped": DatasetSpec(
        source="svhn_cropped:3.*.*",
        image_shape=(32, 32, 3),
        num_classes=10,
        expected_train=73_257,
        expected_test=26_032,
        url="http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
    ),
    # scikit-learn's 1,797 handwritten digits come with the library and have no official
    # test set: every fifth image of each class is the test set, whatever the seed.
    "digits": DatasetSpec(
        source="digits",
        image_shape=(8, 8, 1),
        num_classes=10,
        expected_train=1_442,
        expected_test=355,
    ),
}
