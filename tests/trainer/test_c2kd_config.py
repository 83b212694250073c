"""Arguments of C2KD: what a method stands for, and combinations that cannot work."""

import json

import pytest
from c2kd_runs import c2kd_config

from qcrd_trl import C2KDConfig
from qcrd_trl.errors import ConfigError
from qcrd_trl.trainer.c2kd_config import METHODS
from qcrd_trl.trainer.c2kd_objective import block_ends, num_blocks


def made(**overrides):
    return C2KDConfig(output_dir="unused", use_cpu=True, report_to="none", **overrides)


@pytest.mark.parametrize(
    ("method", "features", "logits"),
    [
        ("c2kd", "router", "cross_head"),
        ("none", "none", "none"),
        ("feature_kd", "last", "none"),
        ("logit_kd", "none", "own_heads"),
        ("blockwise", "blocks", "none"),
    ],
)
def test_methods(method, features, logits):
    """A baseline that is another one would be compared under its name."""
    args = made(method=method)
    assert (args.feature_distillation, args.logit_distillation) == (features, logits)
    assert set(METHODS) == {"c2kd", "none", "feature_kd", "logit_kd", "blockwise"}
    assert args.uses_features == (features != "none")
    assert args.uses_logits == (logits != "none")
    assert args.uses_teacher == (method != "none")
    assert args.uses_router == (method == "c2kd")
    assert args.uses_blocks == (method == "blockwise")


def test_defaults():
    """What the documentation says of the defaults must be so."""
    args = made()
    assert (args.lambda_feat, args.lambda_logit, args.lambda_orthogonal, args.temperature) == (0.5, 0.5, 0.0, 1.0)
    assert (args.task_mode, args.method, args.feature_loss, args.teacher_dtype) == (
        *("item_head", "c2kd", "mse", "float16"),
    )
    assert (args.block_norm_weight, args.lambda_block_task, args.num_blocks) == (0.1, 1.0, None)


def test_what_is_given_wins():
    """An option that a preset overrides in silence is an experiment that was not run."""
    args = made(method="c2kd", feature_distillation="last", logit_distillation="own_heads")
    assert (args.feature_distillation, args.logit_distillation) == ("last", "own_heads")
    assert not args.uses_router
    off = made(method="c2kd", lambda_feat=0.0)
    assert not off.uses_features
    assert off.uses_logits
    assert made(method="none", feature_distillation="router", lambda_logit=0.0).uses_router


def test_keyword_arguments_come_from_a_shell_too():
    """A text in the place of a mapping would be passed on letter by letter."""
    args = made(model_init_kwargs='{"dtype": "bfloat16"}', teacher_model_init_kwargs='{"dtype": "float16"}')
    assert args.model_init_kwargs == {"dtype": "bfloat16"}
    assert args.teacher_model_init_kwargs == {"dtype": "float16"}
    stored = json.loads(args.to_json_string())
    assert stored["feature_distillation"] == "router"  # as resolved


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"method": "ckd"}, "Unknown method 'ckd'"),
        ({"task_mode": "text"}, "Unknown task_mode"),
        ({"feature_distillation": "first"}, "Unknown feature_distillation"),
        ({"logit_distillation": "all"}, "Unknown logit_distillation"),
        ({"train_positions": "first"}, "Unknown train_positions"),
        ({"feature_loss": "l1"}, "Unknown feature_loss"),
        ({"filter_target": "norm"}, "Unknown filter_target"),
        ({"method": "feature_kd", "filter_target": "normed"}, "filter_target='normed' is for the router"),
        ({"lambda_feat": 0.0, "filter_target": "normed"}, "filter_target='normed' is for the router"),
        ({"teacher_dtype": "int8"}, "Unknown teacher_dtype"),
        ({"lambda_feat": -1.0}, "lambda_feat must be a finite number"),
        ({"lambda_logit": float("nan")}, "lambda_logit must be a finite number"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"temperature": -1.0}, "temperature must be"),
        ({"feature_alpha": 1.5}, "feature_alpha must be at most 1"),
        ({"heads_learning_rate": -0.1}, "heads_learning_rate"),
        ({"student_layer": 0}, "student_layer must be an integer of at least 1"),
        ({"num_items": 0}, "num_items must be"),
        ({"per_device_eval_batch_size": 0}, "per_device_eval_batch_size must be an integer of at least 1"),
        ({"max_history": 0}, "max_history must be"),
        ({"candidate_layers": []}, "candidate_layers must be different layers"),
        ({"candidate_layers": [3, 3]}, "candidate_layers must be different layers"),
        ({"candidate_layers": [0, 3]}, "candidate_layers must be an integer"),
        ({"method": "feature_kd", "layer_filters": "f"}, "layer_filters is for the router"),
        ({"lambda_feat": 0.0, "layer_filters": "f"}, "'router' and lambda_feat=0 has none.*a lambda_feat above 0"),
        ({"method": "logit_kd", "candidate_layers": [3]}, "candidate_layers is for the router"),
        ({"method": "blockwise", "student_layer": 1}, "student_layer has no part"),
        ({"num_blocks": 2}, "num_blocks is for block-wise"),
        ({"method": "logit_kd", "lambda_orthogonal": 0.1}, "lambda_orthogonal is for the projection"),
        ({"lambda_logit": 0.0, "lambda_orthogonal": 0.1}, "lambda_orthogonal is for the projection"),
        ({"method": "none", "teacher_cache": "c"}, "teacher_cache does nothing here"),
        ({"lambda_feat": 0.0, "lambda_logit": 0.0}, "distils nothing"),
        ({"method": "feature_kd", "lambda_feat": 0.0}, "distils nothing"),
        ({"hub_model_id": "a/b/c"}, "hub_model_id"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor=0.1 has no part"),
    ],
)
def test_what_cannot_work(overrides, message):
    """Found after hours, or never: an option without an effect reads like a result."""
    with pytest.raises(ConfigError, match=message):
        made(**overrides)


def test_blocks_end_where_both_models_end():
    """Blocks that leave out the last layer imitate everything but what is scored."""
    assert block_ends(6, 4) == [1, 3, 4, 6]
    assert block_ends(32, 4) == [8, 16, 24, 32]
    assert block_ends(2, 2) == [1, 2]
    for layers in range(1, 20):
        for blocks in range(1, layers + 1):
            ends = block_ends(layers, blocks)
            assert len(set(ends)) == blocks
            assert ends[-1] == layers
            assert ends[0] >= 1
    args = c2kd_config("unused", method="blockwise")
    assert num_blocks(args, 2, 6) == 2
    assert num_blocks(args, 8, 32) == 4
    with pytest.raises(ConfigError, match="the student has 2 layers"):
        num_blocks(c2kd_config("unused", method="blockwise", num_blocks=3), 2, 6)
