"""The entry point, and the exit codes of all commands.

    0     done; for `serve`, stopped by Ctrl-C or SIGTERM
    1     refused or failed: one line on standard error, "fencepost: ...", with reason and advice
    2     usage error: an unknown command or option, an invalid value
    3     with --check only: the command looked for trouble and found some
    4     with --check only: `audit` found nothing, and cannot tell whether there is nothing to find
    70    `serve` only: the broker stopped itself, because it could not go on without risking data
    130   interrupted by Ctrl-C (143 by SIGTERM)
    141   the reader of the output has gone (`| head`), as if SIGPIPE had ended the command

Results go to standard output, as a table or with --json as one document; everything else goes to
standard error.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import Final

FAILED: Final = 1
USAGE_ERROR: Final = 2
TROUBLE_FOUND: Final = 3
CANNOT_TELL: Final = 4
AT_RISK: Final = 70
INTERRUPTED: Final = 128 + signal.SIGINT
READER_GONE: Final = 128 + signal.SIGPIPE

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def main() -> None:
    """The entry point of the `fencepost` command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs a command and returns its exit code."""
    if sys.stderr is None:
        # Otherwise `print` would write errors to standard output.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        code = _dispatch(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return READER_GONE
    except OSError as problem:
        # Other failures of files have their own messages.
        if problem.errno not in _NO_ROOM:
            raise
        complain(f"standard output could not be written: {problem.strerror}")
        _drop_output()
        return FAILED


def _drop_output() -> None:
    """What is still in the buffer must not be flushed at the end, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(arguments: list[str]) -> int:
    from fencepost.base.failures import FencepostError, SyncError

    try:
        if arguments[:1] == ["serve"]:
            from fencepost.cli.commands.serve import serve

            return serve(arguments[1:])
        return _run_app(arguments)
    except SyncError as problem:
        complain(f"{problem}. What the disk holds is unknown: check it, then run the command again")
        return AT_RISK
    except FencepostError as problem:
        complain(str(problem))
        return FAILED


def _run_app(arguments: list[str]) -> int:
    import typer

    from fencepost.cli.app import app
    from fencepost.cli.commands import completion

    if sys.stdout is None:
        complain("standard output is closed; for no output, use > /dev/null. Nothing was done")
        return FAILED
    if completion.VARIABLE in os.environ:
        completion.prepare()
    try:
        code = app(arguments, prog_name="fencepost", standalone_mode=False)
    except SystemExit as end:
        # Typer and rich exit with 1 if the reader of a pipe has gone.
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        raise
    except typer.Abort:
        complain("stopped, and nothing was changed")
        return FAILED
    except Exception as problem:
        # Typer vendors click under a private name, so its errors are recognised by their method.
        if not hasattr(problem, "format_message"):
            raise
        _explain_usage(problem)
        return USAGE_ERROR
    return code if isinstance(code, int) else 0


def _explain_usage(problem: Exception) -> None:
    message: str = problem.format_message()  # type: ignore[attr-defined]
    if "\n" in message:
        # No command was given, and this is the help.
        print(message, file=sys.stderr)
        return
    context = getattr(problem, "ctx", None)
    complain_of_usage(message, context.command_path if context is not None else "fencepost")


def complain(sentence: str) -> None:
    """Prints an error in the format of all commands."""
    print(f"fencepost: {sentence}", file=sys.stderr)


def complain_of_usage(sentence: str, command: str) -> None:
    """Prints a usage error, with a hint to --help."""
    # Typer ends its own sentences with a dot, also behind a question mark.
    sentence = sentence.replace("Value error, ", "").rstrip(".")
    end = "" if sentence.endswith(("?", "!")) else "."
    complain(f"{sentence}{end} See `{command} --help`.")
