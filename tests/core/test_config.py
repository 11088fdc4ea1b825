import dataclasses

import pytest

from btcp_tf.core.config import PHASES, Config, accepted, check, to_text
from btcp_tf.data.corruptions import CORRUPTIONS

FIELDS = {field.name: field for field in dataclasses.fields(Config)}


def test_phases_are_those_of_algorithm_1():
    assert [phase.name for phase in PHASES] == ["classifier", "estimator", "finetune"]
    assert [phase.trains for phase in PHASES] == [
        ("encoder", "classifier"),
        ("estimator",),
        ("encoder", "classifier", "estimator"),
    ]
    assert [phase.objective for phase in PHASES] == [
        ("cross_entropy",),
        ("dfl",),
        ("cross_entropy", "dfl"),
    ]


def test_defaults_are_the_papers():
    config = Config(dataset="mnist")
    assert (config.gamma, config.gamma_max) == ("auto", 10.0)
    assert (config.epsilon, config.density, config.scope) == (0.05, "window", "dataset")
    assert (config.fine_bins, config.bootstrap_draws, config.tau) == (1000, 1000, 0.5)
    assert (config.learning_rate, config.finetune_learning_rate) == (1e-3, 1e-4)
    assert (config.momentum, config.weight_decay, config.test_batch_size) == (0.9, 1e-4, 1024)
    assert config.method == ("mcp", "tcp", "btcp", "residual")


@pytest.mark.parametrize(
    "name, value",
    [
        ("seed", -1),
        ("seed", 2**31),
        ("seed", 1.5),
        ("seed", True),
        ("seed", "1.5"),
        ("gamma", "-0.1"),
        ("gamma", "inf"),
        ("gamma", "automatic"),
        ("gamma_max", 0),
        ("epsilon", 0),
        ("epsilon", 1.01),
        ("epsilon", float("nan")),
        ("epsilon", None),
        ("density", "windows"),
        ("scope", "epoch"),
        ("encoder", "resnet"),
        ("fine_bins", 9),
        ("classifier_epochs", 0),
        ("finetune_epochs", -1),
        ("batch_size", 0),
        ("learning_rate", 0.0),
        ("momentum", 1.0),
        ("weight_decay", -1e-9),
        ("tau", 1.1),
        ("export_collapsed", "yes"),
        ("verbose", 3),
        ("method", "mcp"),
        ("method", ()),
        ("method", ("mcp", "mcp")),
        ("method", ("mcp,tcp",)),
        ("method", ("mcp", 3)),
        ("output_dir", 3),
        ("output_dir", "runs/a "),
        ("output_dir", "runs/a # a note"),
        ("output_dir", "runs\na"),
        ("dataset", ""),
    ],
)
def test_a_refused_value_is_named(name, value):
    with pytest.raises(ValueError, match=rf"^{name}: expected .+, received "):
        Config(**{"dataset": "mnist", name: value})


@pytest.mark.parametrize(
    "name, value",
    [
        ("seed", 0),
        ("seed", 2**31 - 1),
        ("gamma", "0.0"),
        ("epsilon", 1.0),
        ("tau", 0.0),
        ("tau", 1.0),
        ("momentum", 0.0),
        ("weight_decay", 0.0),
        ("finetune_epochs", 0),
        ("fine_bins", 10),
        ("verbose", 2),
        ("output_dir", "runs/#3 of a.b"),
    ],
)
def test_the_limits_themselves_are_accepted(name, value):
    assert getattr(Config(**{"dataset": "mnist", name: value}), name) == value


def test_equal_settings_have_equal_words():
    given = Config("mnist", gamma=2, learning_rate=1, seed="07", method=["mcp", "btcp"])
    plain = Config("mnist", gamma="2.0", learning_rate=1.0, seed=7, method=("mcp", "btcp"))
    assert given == plain
    assert given.settings() == plain.settings()
    assert type(given.learning_rate) is float
    assert type(given.seed) is int


RESIDUAL = ("mcp", "btcp", "residual_no_index")
LOOKS = ("mcp", "btcp", "residual_looks")


@pytest.mark.parametrize(
    "name, settings",
    [
        ("finetune_method", dict(method=("mcp", "tcp"))),
        ("finetune_method", dict(finetune_method=("btcp", "btcp"))),
        ("method", dict(classifier="my.keras", method=("mcp", "btcp", "ensemble"))),
        ("method", dict(classifier="my.keras", method=("mcp", "btcp", "ensemble_few"))),
        ("threshold", dict(threshold="best")),
        ("threshold", dict(threshold="nan")),
        ("residual_folds", dict(method=RESIDUAL, residual_folds=1)),
        ("residual_folds", dict(method=RESIDUAL, residual_folds=5, classifier="my.keras")),
        ("residual_folds", dict(method=("mcp",), finetune_method=(), residual_folds=2)),
        ("residual_copies", dict(method=("mcp",), finetune_method=(), residual_copies=("noise",))),
        ("residual_distilled", dict(method=("mcp",), finetune_method=(), residual_distilled=True)),
        (
            "residual_distilled",
            dict(method=RESIDUAL, residual_distilled=True, residual_folds=2),
        ),
        (
            "residual_distilled",
            dict(method=RESIDUAL, residual_distilled=True, classifier="my.keras"),
        ),
        ("residual_looks", dict(residual_looks=("mirror",))),
        ("residual_cost", dict(residual_cost=2.0)),
        ("residual_cost", dict(method=LOOKS, residual_cost=0.9)),
        ("residual_looks", dict(method=LOOKS, residual_looks=())),
        ("residual_looks", dict(method=LOOKS, residual_looks=("auto", "mirror"))),
        ("residual_looks", dict(method=LOOKS, residual_looks=("mirror", "mirror"))),
        ("residual_looks", dict(method=LOOKS, residual_looks=("drop_tokens",))),
        ("residual_looks", dict(method=LOOKS, residual_looks=("a.keras",), residual_folds=2)),
        ("residual_copies", dict(residual_copies=("noise", "fog"))),
        ("residual_copies", dict(residual_copies=("blur", "blur"))),
        ("residual_copies", dict(method=RESIDUAL, residual_copies=("none", "blur"))),
        ("logical_devices", dict(logical_devices=2)),
        ("logical_devices", dict(strategy="mirrored", logical_devices=1)),
    ],
)
def test_conflicting_settings_are_refused_by_name(name, settings):
    with pytest.raises(ValueError, match=rf"^{name}: expected .+, received "):
        Config(dataset="mnist", **settings)


def test_looks_are_names_and_files():
    looks = ("mirror", "dropout", "my nets/second.keras")
    config = Config("mnist", method=LOOKS, residual_looks=looks, residual_cost=1)
    assert config.settings()["residual_looks"] == "mirror,dropout,my nets/second.keras"
    assert Config("mnist", method=LOOKS, residual_looks=("mirror",), residual_folds=2)
    assert accepted(FIELDS["residual_looks"]).endswith(", dropouts, and paths of .keras files")


def test_without_epochs_nothing_is_finetuned():
    assert Config("mnist", finetune_epochs=1).finetuned == ("btcp",)
    assert Config("mnist", method=("mcp",), finetune_epochs=0).finetuned == ()


def test_settings_are_words_in_order_of_declaration():
    settings = Config("mnist", method=("mcp", "btcp"), export_collapsed=True).settings()
    assert list(settings) == list(FIELDS)
    assert settings["method"] == "mcp,btcp"
    assert settings["export_collapsed"] == "true"
    assert settings["weight_decay"] == "0.0001"


def test_what_does_not_change_results_is_left_out_on_request():
    left_out = set(FIELDS) - set(Config("mnist").settings(results_only=True))
    assert left_out == {
        "data_dir",
        "max_pixels",
        "strict",
        "output_dir",
        "export_dir",
        "export_name",
        "publish",
        "test_batch_size",
        "steps_per_execution",
        "export_collapsed",
        "allow_poor_classifier",
        "verbose",
    }


@pytest.mark.parametrize(
    "name, words",
    [
        ("epsilon", "a finite number > 0 and <= 1"),
        ("seed", "a whole number >= 0 and <= 2147483647"),
        ("gamma", "auto, or a finite number >= 0"),
        ("scope", "one of dataset, batch"),
        ("export_collapsed", "true or false"),
        ("data_dir", ""),
    ],
)
def test_accepted_says_what_check_enforces(name, words):
    assert accepted(FIELDS[name]) == words


def test_every_default_is_accepted_and_every_setting_has_help():
    for field in FIELDS.values():
        assert check(field, field.default) == field.default
        if type(field.default) in (int, float):
            assert check(field, to_text(field.default)) == field.default
        assert field.metadata["help"].endswith(".")


def test_copies_are_of_the_corruptions_that_there_are():
    assert FIELDS["residual_copies"].metadata["choices"] == ("none", *CORRUPTIONS)
    with_copies = Config("mnist", method=RESIDUAL, residual_copies=["noise"])
    assert with_copies.settings()["residual_copies"] == "noise"
