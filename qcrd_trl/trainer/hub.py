"""A trainer whose pushes to the Hub have all of a student, leave at home what is not asked for, and fail without a loss."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers.trainer

from ..errors import HubError
from ..hub import NEVER_PUSHED, hub_error, hub_errors, push_command
from .checkpoints import ResumableTrainer


logger = logging.getLogger(__name__)


class HubTrainer(ResumableTrainer):
    """
    A [`~transformers.Trainer`] whose pushes to the Hub fail with a [`HubError`].

    A push that fails while training goes on is told in the log and costs nothing else: the next one sends everything. One that
    is asked for, by `push_to_hub` or `save_model`, raises its error after the student is saved.
    """

    def _left_out_of_pushes(self, is_checkpoint: bool) -> list[str]:
        """Patterns of what is not uploaded, of `output_dir` or of a checkpoint."""
        return []

    def _write_beside(self, folder: Path) -> None:
        """Writes what belongs to a student beside its weights. Called on the process that saves."""

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        name = self.args.hub_model_id or Path(self.args.output_dir).absolute().name
        with hub_errors(name, "make or find the repository", secrets=[token, self.args.hub_token]):
            super().init_hf_repo(token=token, private=private)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs,
    ):
        """
        Saves the student and uploads it, with its tokenizer, format, discriminator, card and pictures.

        Args:
            commit_message (`str`, *optional*):
                Message of the commit.
            blocking (`bool`, *optional*, defaults to `True`):
                Whether to return only once all has arrived.
            token (`str`, *optional*):
                Token; `hub_token` of the arguments, or that of `huggingface_hub`, if left out.
            revision (`str`, *optional*):
                Branch to commit to.
            private (`bool`, *optional*):
                Whether a repository that is made here is private.
            **kwargs:
                Arguments of `create_model_card`.

        Returns:
            `CommitInfo`, or a `Future` where `blocking` is `False`; on the main process.

        Raises:
            [`HubError`]: if the Hub refuses it. The student is saved by then.
        """
        token = self.args.hub_token if token is None else token
        if self.is_world_process_zero():
            self._finish_current_push()  # it reads the files that are written now
        with self._uploads():
            return super().push_to_hub(commit_message, blocking, token, revision, private, **kwargs)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        with self._without_token():
            super()._save(output_dir, state_dict)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._aside is not None:
            return  # pushed once it is in its place
        self._tell_failed_pushes()
        push = getattr(self, "push_in_progress", None)  # of the main process alone
        busy = push is not None and not push.is_done()
        if (
            self.is_world_process_zero()
            and self.args.hub_strategy != "end"
            and not (busy and not self.args.hub_always_push)
        ):
            # The base class copies the weights; the rest of the student is written anew.
            self._write_beside(Path(self.args.output_dir))
            self.create_model_card()
        with self._uploads():
            super()._push_from_checkpoint(checkpoint_folder)

    def _finish_current_push(self) -> None:
        super()._finish_current_push()
        self._tell_failed_pushes()

    def _tell_failed_pushes(self) -> None:
        """A push in the background has nobody to raise its error to."""
        push = getattr(self, "push_in_progress", None)
        for job in [] if push is None else [job for job in push.jobs if job.done() and not job.cancelled()]:
            push.jobs.remove(job)
            if (err := job.exception()) is not None:
                told = self._hub_error(err, "upload the student while it was trained")
                logger.error("%s\nTraining is not affected, and the next push sends everything.", told)

    def _hub_error(
        self, err: BaseException, doing: str, left_out: tuple[str, ...] = (), token: str | None = None
    ) -> HubError:
        folder, name = self.args.output_dir, str(self.hub_model_id)
        return hub_error(err, name, doing, push_command(folder, name), folder, left_out, [token, self.args.hub_token])

    @contextmanager
    def _uploads(self) -> Iterator[None]:
        """
        Adds to the patterns that the base class, which has no argument for it, leaves out of its uploads, and says what is
        wrong with one.
        """
        module = transformers.trainer
        name = "hf_api" if hasattr(module, "hf_api") else "upload_folder"
        original = getattr(module, name)
        secret = self.args.hub_token

        def upload(upload_folder: Callable, **kwargs):
            patterns = [*NEVER_PUSHED, *self._left_out_of_pushes(kwargs.get("path_in_repo") is not None)]
            kwargs["ignore_patterns"] = [*(kwargs.get("ignore_patterns") or []), *patterns]
            kwargs["token"] = kwargs.get("token") or secret
            try:
                return upload_folder(**kwargs)
            except Exception as err:
                raise self._hub_error(
                    err, "upload the student", tuple(kwargs["ignore_patterns"]), kwargs["token"]
                ) from err

        class Api:
            def __getattr__(self, attribute: str) -> Any:
                return getattr(original(), attribute)

            def upload_folder(self, **kwargs):
                return upload(original().upload_folder, **kwargs)

        setattr(module, name, Api if name == "hf_api" else lambda **kwargs: upload(original, **kwargs))
        try:
            with self._without_token():
                yield
        finally:
            setattr(module, name, original)

    @contextmanager
    def _without_token(self) -> Iterator[None]:
        """The base class pickles the arguments beside the student: the token must not be among them."""
        secret, self.args.hub_token = self.args.hub_token, None
        try:
            yield
        finally:
            self.args.hub_token = secret
