"""The command `qcrd` itself: finding commands, reading YAML, and one-line errors."""

import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from qcrd_trl.cli import main as cli
from qcrd_trl.cli.common import parse_arguments
from qcrd_trl.errors import ConfigError, DataError
from qcrd_trl.version import __version__


@dataclass
class Arguments:
    name: str = field(metadata={"help": "A name."})
    size: int = 1
    rate: float = 0.5
    flag: bool = False
    shuffle: bool = True
    kind: Literal["a", "b"] = "a"
    words: list[str] = field(default_factory=list)
    maybe: int | None = None
    options: dict[str, Any] | str | None = None

    def __post_init__(self):
        if self.size < 0:
            raise ValueError("size must not be negative")


def parse(*argv):
    (args,) = parse_arguments(argv, Arguments, prog="qcrd test")
    return args


def parse_yaml(tmp_path, text, *argv):
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return parse("--config", str(path), *argv)


@pytest.mark.parametrize("argv", [["--help"], ["-h"], []])
def test_help_names_every_command(capsys, argv):
    """A command that help does not name is not found."""
    assert cli.main(argv) == (0 if argv else 2)
    captured = capsys.readouterr()
    assert all(name in captured.out + captured.err for name in cli.COMMANDS)


def test_version(capsys):
    """Bug reports quote it."""
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"qcrd {__version__}\n"


def test_unknown_command_names_the_commands(capsys):
    """A typing error must not end in a traceback about modules."""
    assert cli.main(["slect"]) == 2
    assert (
        "unknown command 'slect'. The commands are: demo, sample, select, report, train, evaluate, predict, score, quality, "
        "merge, discriminator, push, negatives, c2kd." in capsys.readouterr().err
    )


def test_help_imports_nothing_heavy():
    """Torch, once imported by accident, makes every `--help` wait for seconds."""
    code = (
        "import sys; from qcrd_trl.cli.main import main; main(['--help']); "
        "heavy = {'torch', 'transformers', 'datasets', 'trl'} & set(sys.modules); assert not heavy, heavy\n"
        "try: main(['select', '--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "heavy = {'torch', 'transformers', 'datasets'} & set(sys.modules); assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "--samples_column" in result.stdout
    assert "--config FILE" in result.stdout


def test_module_is_the_command():
    """`accelerate launch -m qcrd_trl train` goes through it."""
    result = subprocess.run([sys.executable, "-m", "qcrd_trl", "--version"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, f"qcrd {__version__}\n")


def test_reader_that_leaves():
    """`qcrd --help | head -1` must not end in a traceback."""
    code = (
        "import os, sys; from qcrd_trl.cli.main import main; "
        "r, w = os.pipe(); os.close(r); os.dup2(w, 1); sys.exit(main(['--help']))"
    )
    result = subprocess.run([sys.executable, "-u", "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (DataError("row 3 is\nwrong"), 2, "qcrd select: error: row 3 is wrong"),
        (FileNotFoundError(2, "No such file", "x.yaml"), 2, "qcrd select: error: x.yaml: No such file"),
        (KeyboardInterrupt(), 130, "qcrd select: stopped by Ctrl-C."),
    ],
)
def test_errors_are_one_line(capsys, monkeypatch, error, status, line):
    """A traceback hides the one line that says what to mend; a status of 0 lets a script go on."""
    monkeypatch.delenv("QCRD_DEBUG", raising=False)

    def fail(argv):
        raise error

    assert cli.run_command("select", fail, []) == status
    assert capsys.readouterr().err.strip().splitlines() == [line]


def test_debug_and_bugs_show_the_traceback(monkeypatch):
    """A bug shown as the user's error would never be reported."""

    def fail(argv):
        raise argv[0]

    monkeypatch.setenv("QCRD_DEBUG", "1")
    with pytest.raises(DataError):
        cli.run_command("select", fail, [DataError("x")])
    monkeypatch.setenv("QCRD_DEBUG", "0")
    with pytest.raises(TypeError):
        cli.run_command("select", fail, [TypeError("x")])


def test_yaml_and_flags(tmp_path):
    """A YAML value that beat a flag, or text like 1e-4 left as text, would train with settings nobody chose."""
    text = "name: n\nsize: 3\nrate: 1e-4\nflag: true\nshuffle: false\nkind: b\nwords: [x, y]\noptions: {k: 1}\n"
    args = parse_yaml(tmp_path, text, "--size", "4", "--kind=a")
    assert (args.name, args.size, args.rate, args.flag, args.shuffle) == ("n", 4, 1e-4, True, False)
    assert (args.kind, args.words, args.maybe, args.options) == ("a", ["x", "y"], None, {"k": 1})
    (tmp_path / "short.yaml").write_text("name: m\nwords: x\n")
    args = parse(f"--config={tmp_path / 'short.yaml'}", "--flag")
    assert (args.name, args.words, args.flag) == ("m", ["x"], True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: n\nsiez: 3\n", r"Unknown key 'siez' in the config file \(did you mean size\?\)"),
        ("name: n\nconfig: x\n", "Unknown key 'config'"),
        ("name: n\nhelp: x\n", "Unknown key 'help'"),
        ("name: no\n", "'name': expected str, got False .*quote it"),
        ("name: null\n", "'name': expected str, got None"),
        ("name: n\nsize: 1.5\n", "'size': expected int, got 1.5"),
        ("name: n\nsize: true\n", "'size': expected int, got True"),
        ("name: n\nkind: c\n", "'kind': expected .*'a', 'b'.*, got 'c'"),
        ("name: n\nwords: [1]\n", "'words'"),
        ("name: n\nflag: 3\n", "'flag': expected bool, got 3"),
        ("name: n\nsize: -1\n", "size must not be negative"),
        ("- name\n", "must hold `key: value` lines"),
        ("", "must hold `key: value` lines"),
        ("name: n\non: true\n", "must hold `key: value` lines"),  # YAML reads the key `on` as true
        ("name: [\n", "is not valid YAML"),
    ],
)
def test_wrong_yaml(tmp_path, text, message):
    """`argparse` does not look at defaults: unchecked, a list where a number belongs would reach the training run."""
    with pytest.raises(ConfigError, match=message):
        parse_yaml(tmp_path, text)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--size", "3"], "required: --name"),
        (["--name", "n", "--siez", "3"], "unrecognized arguments: --siez 3 (did you mean --size?)"),
        (["--name", "n", "--siz", "3"], "unrecognized arguments: --siz"),
        (["--name", "n", "--size", "x"], "invalid int value: 'x'"),
        (["--name", "n", "--kind", "c"], "invalid choice: 'c'"),
        (["--config"], "--config: expected one argument"),
        (["--config", "a", "--config", "b"], "given more than once"),
    ],
)
def test_wrong_flags(capsys, argv, message):
    """A flag that is half right must not be taken for another."""
    with pytest.raises(SystemExit) as stop:
        parse(*argv)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("qcrd test: error: ")
    assert error.count("\n") == 1
    assert message in error


def test_yaml_text_that_does_not_convert(tmp_path, capsys):
    """Text in YAML is converted as a flag is, and fails as a flag does."""
    with pytest.raises(SystemExit):
        parse_yaml(tmp_path, "name: n\nsize: many\n")
    assert "invalid int value: 'many'" in capsys.readouterr().err


def test_missing_config_file(tmp_path):
    """Shown by the command as one line naming the file."""
    with pytest.raises(FileNotFoundError):
        parse("--config", str(tmp_path / "no.yaml"))
