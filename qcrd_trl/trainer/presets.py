"""The named recipes of QCRD and its baselines: one table, so that every comparison runs through the same code."""

# What a recipe sets; a field that the user gives wins over its recipe.
PRESETS: dict[str, dict] = {
    # Fine-tuning on the labels alone.
    "label_only": {
        "alpha_1": 1.0,
        "alpha_2": 0.0,
        "alpha_3": 0.0,
        "beta": 0.0,
        "negative_source": "minority",
        "rationale_source": "selected",
        "reduction": "mean",
        "margin": 3.0,
        "margin_type": "absolute",
        "quality_weighting": "none",
        "discriminator": "none",
    },
    # Distilling step-by-step (Hsieh et al., 2023): one raw teacher sample a question.
    "dss": {
        "alpha_1": 0.5,
        "alpha_2": 0.5,
        "alpha_3": 0.0,
        "beta": 0.0,
        "negative_source": "minority",
        "rationale_source": "raw",
        "reduction": "mean",
        "margin": 3.0,
        "margin_type": "absolute",
        "quality_weighting": "none",
        "discriminator": "none",
    },
    # The same on all samples that self-consistency kept, averaged.
    "dss_all": {
        "alpha_1": 0.5,
        "alpha_2": 0.5,
        "alpha_3": 0.0,
        "beta": 0.0,
        "negative_source": "minority",
        "rationale_source": "selected",
        "reduction": "mean",
        "margin": 3.0,
        "margin_type": "absolute",
        "quality_weighting": "none",
        "discriminator": "none",
    },
    # Eq. 1 to 8 with the settings of the paper (Wang et al., EMNLP 2025).
    "qcrd_paper": {
        "alpha_1": 0.5,
        "alpha_2": 0.5,
        "alpha_3": 0.5,
        "beta": 0.2,
        "negative_source": "both",
        "rationale_source": "selected",
        "reduction": "min_max",
        "margin": 3.0,
        "margin_type": "absolute",
        "quality_weighting": "printed",
        "discriminator": "student",
        "discriminator_loss": "ratio",
    },
    # Where the printed recipe cost accuracy in a miniature benchmark, it is replaced: a positive drawn at each visit in
    # place of the easiest one, quality weights that do not shrink the loss, a margin that follows the positive.
    "qcrd": {
        "alpha_1": 0.5,
        "alpha_2": 0.5,
        "alpha_3": 0.5,
        "beta": 0.2,
        "negative_source": "self",
        "rationale_source": "selected",
        "reduction": "min_max",
        "positive_reduction": "sampling",
        "margin": 0.5,
        "margin_type": "relative",
        "quality_weighting": "normalized",
        "discriminator": "student",
    },
}
