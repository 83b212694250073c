"""Presets, what wins over them, and what is refused when the config is built."""

import dataclasses
import math

import pytest
import yaml
from transformers import TrainingArguments
from trl import TrlParser

from qcrd_trl import QCRDConfig
from qcrd_trl.errors import ConfigError
from qcrd_trl.losses import REDUCTIONS


def config(**kwargs):
    return QCRDConfig("unused", **kwargs)


def own(args):
    """The fields of QCRD, without those of the base class."""
    base = {field.name for field in dataclasses.fields(TrainingArguments)}
    return {field.name: getattr(args, field.name) for field in dataclasses.fields(args) if field.name not in base}


# alpha_1, alpha_2, alpha_3, beta, source, positives, negatives, margin, type, weighting, discriminator
EXPECTED = {
    "label_only": (1, 0, 0, 0, "selected", "mean", "mean", 3, "absolute", "none", "none"),
    "dss": (0.5, 0.5, 0, 0, "raw", "mean", "mean", 3, "absolute", "none", "none"),
    "dss_all": (0.5, 0.5, 0, 0, "selected", "mean", "mean", 3, "absolute", "none", "none"),
    "qcrd_paper": (0.5, 0.5, 0.5, 0.2, "selected", "min", "max", 3, "absolute", "printed", "student"),
    "qcrd": (0.5, 0.5, 0.5, 0.2, "selected", "sampling", "max", 0.5, "relative", "normalized", "student"),
}
FIELDS = (
    *("alpha_1", "alpha_2", "alpha_3", "beta", "rationale_source", "positive_reduction", "negative_reduction"),
    *("margin", "margin_type", "quality_weighting", "discriminator"),
)


@pytest.mark.parametrize("preset", EXPECTED)
def test_presets(preset):
    """A comparison of presets measures nothing if one of them is not what its name says."""
    args = config(preset=preset)
    assert {name: getattr(args, name) for name in FIELDS} == dict(zip(FIELDS, EXPECTED[preset], strict=True))
    assert args.alpha_3_decay == 0.9
    assert all(value is not None for name, value in own(args).items() if name in FIELDS)


def test_default_preset_and_paper_loss():
    """The printed recipe has the printed L_D; a default that changed it would not be the paper's any more."""
    assert config().preset == "qcrd"
    assert config(preset="qcrd_paper").discriminator_loss == "ratio"
    assert config(preset="qcrd").discriminator_loss == "ratio"
    assert (config().predict_prefix, config().explain_prefix) == ("<Predict>", "<Explain>")


@pytest.mark.parametrize(
    ("preset", "rationales", "negatives"),
    [
        ("label_only", False, False),
        ("dss", True, False),
        ("dss_all", True, False),
        ("qcrd_paper", True, True),
        ("qcrd", True, True),
    ],
)
def test_what_a_preset_uses(preset, rationales, negatives):
    """Label-only that scored rationales, or DSS with negatives, would be slower or another method."""
    args = config(preset=preset)
    assert (args.uses_rationales, args.uses_negatives) == (rationales, negatives)


def test_negatives_for_the_discriminator_alone():
    """With beta = 0 the discriminator still learns from negatives; without either they cost time for nothing."""
    assert config(preset="qcrd", beta=0.0).uses_negatives
    assert not config(preset="qcrd", beta=0.0, discriminator="none", quality_weighting="none").uses_negatives
    assert config(preset="dss_all", beta=0.2).uses_negatives


def test_alpha_2_of_0_is_label_only():
    """A rationale task that only a discriminator would learn from costs most of the time and teaches the student nothing."""
    assert not config(alpha_2=0.0).uses_rationales
    assert not config(alpha_2=0.0).uses_negatives


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("alpha_1", 0.0), ("alpha_2", 0.125), ("alpha_3", 0.0), ("beta", 0.0), ("margin", 0.0)),
        *(("margin_type", "absolute"), ("quality_weighting", "printed"), ("rationale_source", "raw")),
        *(("positive_reduction", "min"), ("negative_reduction", "mean"), ("discriminator_loss", "binary")),
    ],
)
def test_explicit_wins_over_the_preset(name, value):
    """0 is a value: a recipe that filled in for falsy fields could not be switched off."""
    default, changed = config(preset="qcrd"), config(preset="qcrd", **{name: value})
    assert getattr(default, name) != value
    assert getattr(changed, name) == value
    differing = {field for field in FIELDS if getattr(changed, field) != getattr(default, field)}
    assert differing <= {name}


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_explicit_reduction_governs_both_sides(reduction):
    """`--reduction mean` with positives still sampled, as the recipe has them, would be a table row of another name."""
    sides = {"min_max": ("min", "max"), "max_min": ("max", "min")}.get(reduction, (reduction, reduction))
    args = config(preset="qcrd", reduction=reduction)
    assert (args.positive_reduction, args.negative_reduction) == sides
    both = config(preset="qcrd", reduction=reduction, positive_reduction="max")
    assert (both.positive_reduction, both.negative_reduction) == ("max", sides[1])
    other = config(preset="qcrd", negative_reduction="min")
    assert (other.positive_reduction, other.negative_reduction) == ("sampling", "min")


WEIGHTS = (
    *("alpha_1", "alpha_2", "alpha_3", "alpha_3_decay", "beta", "margin"),
    *("discriminator_learning_rate", "discriminator_weight_decay", "discriminator_max_grad_norm"),
)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("value", [math.nan, -0.1, math.inf, -math.inf, True, "0.5", [0.5]], ids=repr)
def test_bad_weights(name, value):
    """A NaN weight makes the first loss NaN; a negative beta pulls negatives up, at a falling loss."""
    with pytest.raises(ConfigError, match=f"{name} must be a finite number of at least 0"):
        config(**{name: value})


@pytest.mark.parametrize(
    "name",
    [
        *("max_length", "dataset_num_proc", "pad_to_multiple_of", "rationale_forward_passes"),
        *("discriminator_hidden_size", "discriminator_update_interval"),
    ],
)
@pytest.mark.parametrize("value", [0, -1, True, 1.5, math.nan, "8"], ids=repr)
def test_bad_counts(name, value):
    """An interval of 0 divides by it at the first step, after the model is loaded and the data are tokenized."""
    with pytest.raises(ConfigError, match=f"{name} must be an integer of at least 1"):
        config(**{name: value})


@pytest.mark.parametrize(
    "name",
    [
        *("preset", "rationale_source", "reduction", "positive_reduction", "negative_reduction", "margin_type"),
        *("quality_weighting", "discriminator", "discriminator_loss"),
    ],
)
@pytest.mark.parametrize("value", ["nonsense", "", 1, True, ["mean"]], ids=repr)
def test_unknown_names(name, value):
    """A misspelt option that fell back on the recipe's would run the recipe under another name."""
    with pytest.raises(ConfigError, match=rf"(?s){name}.*expected one of"):
        config(**{name: value})


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"alpha_1": 0.0, "alpha_2": 0.0}, "alpha_1 and alpha_2 are both 0"),
        ({"predict_prefix": "<X>", "explain_prefix": "<X>"}, "predict_prefix and explain_prefix are both '<X>'"),
        ({"predict_prefix": "", "explain_prefix": ""}, "predict_prefix and explain_prefix"),
        ({"discriminator": "none"}, "quality_weighting='normalized' needs a discriminator"),
        ({"preset": "qcrd_paper", "discriminator": "none"}, "quality_weighting='printed' needs a discriminator"),
        ({"preset": "dss_all", "quality_weighting": "printed"}, "quality_weighting='printed' needs"),
        ({"preset": "dss_all", "reduction": "weighted_mean"}, "'weighted_mean' needs a discriminator"),
        ({"preset": "dss_all", "negative_reduction": "weighted_mean"}, "'weighted_mean' needs a discriminator"),
    ],
)
def test_bad_combinations(kwargs, text):
    """Each of these would run to the end and give a student of another method than asked for."""
    with pytest.raises(ConfigError, match=text) as caught:
        config(**kwargs)
    assert isinstance(caught.value, ValueError)


def test_good_combinations():
    """Checks that refuse what works would force users into the recipes."""
    config(predict_prefix="<X>", explain_prefix="<X>", alpha_1=0.0)
    config(preset="label_only", predict_prefix="", explain_prefix="")
    config(preset="label_only", reduction="weighted_mean")
    config(discriminator="none", quality_weighting="none")
    config(reduction="weighted_mean")
    config(alpha_1=0)
    config(alpha_2=0)
    config(max_length=None)
    config(margin=1)


@pytest.mark.parametrize(
    "kwargs",
    [
        *({"preset": preset} for preset in EXPECTED),
        {"preset": "dss_all", "beta": 0.3, "reduction": "max_min", "max_length": None, "predict_prefix": "a😀"},
        {"reduction": "mean", "discriminator_loss": "ratio", "model_init_kwargs": {"dtype": "bfloat16"}},
    ],
    ids=repr,
)
def test_round_trip(kwargs):
    """The config that a checkpoint or a log holds must build the run again, not its preset's."""
    args = config(**kwargs)
    again = QCRDConfig(**args.to_dict())
    assert own(again) == own(args)
    assert own(dataclasses.replace(args)) == own(args)
    assert all(own(args)[name] == value for name, value in kwargs.items())


def test_yaml_with_flags(tmp_path):
    """A flag that the file overrides, or a number read as text, trains another run than the command line says."""
    path = tmp_path / "run.yaml"
    settings = {
        "output_dir": "out",
        "preset": "qcrd_paper",
        "beta": 0,
        "margin": 1.5,
        "max_length": 64,
        "alpha_3": 1e-1,
    }
    path.write_text(yaml.safe_dump({**settings, "model_init_kwargs": {"dtype": "bfloat16"}, "reduction": "sampling"}))
    (args,) = TrlParser(QCRDConfig).parse_args_and_config(
        ["--config", str(path), "--margin", "2.5", "--negative_reduction", "min"]
    )
    assert (args.preset, args.beta, args.margin, args.max_length, args.alpha_3) == ("qcrd_paper", 0, 2.5, 64, 0.1)
    assert (args.positive_reduction, args.negative_reduction) == ("sampling", "min")
    assert (args.quality_weighting, args.discriminator_loss) == ("printed", "ratio")
    assert args.model_init_kwargs == {"dtype": "bfloat16"}


def test_switches_from_a_shell_and_a_file(tmp_path):
    """A word that stays a word is true, so that "false" would switch on what it is to switch off."""
    path = tmp_path / "run.yaml"
    path.write_text("output_dir: out\nshared_prompt: false\nselection: auto\nchunked_logits: true\n")
    (args,) = TrlParser(QCRDConfig).parse_args_and_config(["--config", str(path), "--selection", "false"])
    assert (args.shared_prompt, args.selection, args.chunked_logits) == (False, False, True)
    (args,) = TrlParser(QCRDConfig).parse_args_and_config(["--output_dir", "out", "--shared_prompt", "auto"])
    assert (args.shared_prompt, args.selection, args.chunked_logits) == ("auto", "auto", "auto")


def test_flags_alone():
    """Prefixes, separators and JSON reach the config as they were typed."""
    (args,) = TrlParser(QCRDConfig).parse_args_and_config(
        [
            *("--output_dir", "out", "--preset", "dss", "--predict_prefix", "Answer:", "--response_separator", "\n\n"),
            *("--model_init_kwargs", '{"attn_implementation": "eager"}', "--alpha_1", "0"),
        ]
    )
    assert (args.predict_prefix, args.response_separator, args.rationale_source) == ("Answer:", "\n\n", "raw")
    assert args.model_init_kwargs == {"attn_implementation": "eager"}
    assert args.alpha_1 == 0


def test_every_own_field_has_help_and_is_documented():
    """A field that `--help` or the docstring lacks is found by nobody."""
    for name in own(config()):
        assert QCRDConfig.__dataclass_fields__[name].metadata["help"]
        assert f"{name} (`" in QCRDConfig.__doc__, name
