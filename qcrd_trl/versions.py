"""Versions of what a model was trained with."""

from importlib.metadata import PackageNotFoundError, version


def package_versions() -> str:
    """One line with the versions of what a model was trained with."""
    known = []
    for name in ("qcrd_trl", "trl", "transformers", "peft", "torch", "datasets"):
        try:
            known.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return f"Versions: {', '.join(known)}."
