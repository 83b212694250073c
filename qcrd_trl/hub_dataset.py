"""The training set and the generated negatives of a run, as a dataset repository of the Hub."""

import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from datasets import Dataset
from huggingface_hub import DatasetCard, DatasetCardData, HfApi

from .data.generated import read_negatives
from .data.store import NEGATIVES_FOLDER
from .errors import DataError
from .hub import hub_errors
from .markdown import code, plain


_TEXT = """\
# {title}

What a student was trained on by `qcrd_trl` with the recipe {preset}.
{parts}
```python
from datasets import load_dataset

rows = load_dataset({repo!r}, {first!r}, split="train")
```
"""


def push_run_dataset(
    repo_id: str,
    questions: Any,
    output_dir: str | Path,
    preset: str,
    private: bool | None = None,
    token: str | None = None,
    commit_message: str = "Upload training set",
    again: str | None = None,
) -> str:
    """
    Uploads the training set of a run, and the negatives that it generated, in one commit: as the configurations `training_set`
    and `negatives` of a dataset.

    Args:
        repo_id (`str`):
            The dataset's repository, made if there is none.
        questions ([`~datasets.Dataset`] or [`~datasets.IterableDataset`]):
            The training set. A stream is not uploaded: it may have no end.
        output_dir (`str` or `Path`):
            Where the negatives of the run lie.
        preset (`str`):
            Its recipe, for the card.
        private (`bool`, *optional*):
            Whether a repository that is made here is private.
        token (`str`, *optional*):
            Token; that of `huggingface_hub` if left out.
        commit_message (`str`, *optional*):
            Message of the commit.
        again (`str`, *optional*):
            What an error says of how to push again.

    Returns:
        `str`: address of the commit.

    Raises:
        [`DataError`]: if there is neither a training set nor a negative.
        [`HubError`]: if the Hub refuses it.
    """
    with tempfile.TemporaryDirectory() as made:
        folder, parts = Path(made), {}
        if isinstance(questions, Dataset):
            questions.to_parquet(_place(folder, "training_set"))
            parts["training_set"] = (
                f"{len(questions):,} questions with labels and rationales, as the trainer was given them"
            )
        if any((Path(output_dir) / NEGATIVES_FOLDER).glob("iteration-*")):
            table = read_negatives(Path(output_dir))
            pq.write_table(table, _place(folder, "negatives"))
            parts["negatives"] = (
                f"{len(table):,} rationales that the student's own past generated, each with its iteration"
            )
        if not parts:
            raise DataError(
                f"There is nothing to upload to {repo_id!r}: the training set is a stream, and the run in {str(output_dir)!r} "
                "generated no negatives."
            )
        api, name = HfApi(library_name="qcrd_trl"), repo_id
        with hub_errors(name, "make or find the dataset's repository", again, secrets=[token]):
            name = api.create_repo(name, repo_type="dataset", token=token, private=private, exist_ok=True).repo_id
        (folder / "README.md").write_text(str(_card(name, preset, parts)), encoding="utf-8")
        with hub_errors(name, "upload the training set", again, secrets=[token]):
            commit = api.upload_folder(
                repo_id=name, repo_type="dataset", folder_path=folder, token=token, commit_message=commit_message
            )
    return commit.commit_url


def _place(folder: Path, part: str) -> Path:
    (folder / part).mkdir()
    return folder / part / "train.parquet"


def _card(repo_id: str, preset: str, parts: dict[str, str]) -> DatasetCard:
    configs = [
        {"config_name": name, "data_files": [{"split": "train", "path": f"{name}/train.parquet"}]} for name in parts
    ]
    configs[0]["default"] = True
    data = DatasetCardData(tags=["qcrd", "trl", "distillation", "synthetic"], configs=configs)
    listed = "".join(f"\n- `{name}`: {what}." for name, what in parts.items())
    text = _TEXT.format(
        title=plain(repo_id.split("/")[-1]),
        preset=code(preset),
        parts=f"{listed}\n",
        repo=repo_id,
        first=next(iter(parts)),
    )
    return DatasetCard(f"---\n{data.to_yaml()}\n---\n\n{text}")
