"""The errors that `qcrd_trl` raises.

Each is a [`QCRDError`] and also the built-in error that fits, so that `except ValueError` works as with any Trainer. A
message says what was got, what was expected, and what to do about it.
"""


class QCRDError(Exception):
    """Base class of every error that `qcrd_trl` raises on purpose."""


class ConfigError(QCRDError, ValueError):
    """An argument, or a combination of arguments, that cannot work."""


class DataError(QCRDError, ValueError):
    """A dataset, column or row that cannot be used as it is."""


class ModelError(QCRDError, ValueError):
    """A model, adapter or tokenizer that cannot be used as it is."""


class TrainingError(QCRDError, RuntimeError):
    """Something that went wrong while the model ran, such as a loss that is not finite."""


class TeacherError(QCRDError, RuntimeError):
    """A teacher that cannot be reached, refuses its key, or does not know its model."""


class HubError(QCRDError, RuntimeError):
    """A Hub that refuses what it is sent, or cannot be reached. What was to be sent lies where it was."""
