"""`fencepost user add|list|remove`: users who log in with SCRAM, or with PLAIN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fencepost.base.failures import FencepostError
from fencepost.cli.confirmation import Yes, confirm
from fencepost.cli.connection import AsJson, Connection, connected
from fencepost.cli.layout import App
from fencepost.cli.output import output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencepost.base.scram import NewPassword
    from fencepost.coordinator.metadata.users import UserChange

app = App(help="Manage the users that may log in.", no_args_is_help=True)

BOTH: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]
Mechanisms = Annotated[
    list[str],
    typer.Option("--mechanism", metavar="NAME", help="Only this one. [default: all of SCRAM]"),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data", metavar="DIR", help="A stopped data directory, instead of running brokers."
    ),
]


@app.command("add", short_help="Add a user, or change the password.")
@connected
def add_command(
    connection: Connection,
    name: Name,
    password_file: Annotated[
        str | None,
        typer.Option(
            "--password-file",
            metavar="FILE",
            help="The password is the first line of FILE; - for standard input. Without it, the "
            "terminal is asked.",
        ),
    ] = None,
    mechanism: Mechanisms = [],  # noqa: B006 - typer copies it
    iterations: Annotated[
        int,
        typer.Option(
            "--iterations", metavar="N", min=4096, max=16_384, help="How slow guesses are."
        ),
    ] = 4096,
    data: Data = None,
) -> None:
    """Add a user, or change the password of one that exists.

    Sessions of the user go on until they have to log in again. The salted password is sent to the
    brokers: use a connection with TLS.

    Example: fencepost user add alice --password-file alice.txt
    """
    from fencepost.cli.passwords import read_password

    chosen = _mechanisms(mechanism)
    salted = _salted(read_password(password_file, name).reveal(), chosen, iterations)
    if data is None:
        from fencepost.client.users import set_password

        with connection.open() as cluster:
            cluster.run(set_password(cluster.core, name, salted))
    else:
        from fencepost.coordinator.metadata.users import Upsertion

        _alter_offline(data, [Upsertion(name, *each) for each in salted])
    output(False).note(f"{name} can log in with {' and '.join(chosen)}.")


@app.command("list", short_help="List users with their mechanisms.")
@connected
def list_command(connection: Connection, data: Data = None, as_json: AsJson = False) -> None:
    """List users with their mechanisms, and how often each one hashes.

    Example: fencepost user list
    """
    rows = [
        {"user": user, "mechanism": mechanism, "iterations": iterations}
        for user, mechanisms in _users(connection, data).items()
        for mechanism, iterations in mechanisms.items()
    ]
    empty = "There are no users. `fencepost user add NAME` adds one."
    output(as_json).table(rows, ["user", "mechanism", "iterations"], empty, can_go=())


@app.command("remove", short_help="Remove a user.")
@connected
def remove_command(
    connection: Connection,
    name: Name,
    mechanism: Mechanisms = [],  # noqa: B006 - typer copies it
    data: Data = None,
    yes: Yes = False,
) -> None:
    """Remove a user, or one mechanism of it.

    Sessions of the user go on until they have to log in again (connections.max.reauth.ms).

    Example: fencepost user remove alice
    """
    from fencepost.base.scram import MECHANISMS

    present = _users(connection, data).get(name, {})
    wished = _mechanisms(mechanism) if mechanism else list(present)
    chosen = [each for each in wished if each in present]
    if not chosen:
        wanted = f" with {' or '.join(mechanism)}" if mechanism else ""
        raise FencepostError(f"There is no user {name!r}{wanted}. Nothing was changed.")
    confirm(yes, f"{name} will not be able to log in with {' and '.join(chosen)}.")
    numbers = [MECHANISMS[each].number for each in chosen]
    if data is None:
        from fencepost.client.users import remove_user

        with connection.open() as cluster:
            cluster.run(remove_user(cluster.core, name, numbers))
    else:
        from fencepost.coordinator.metadata.users import Removal

        _alter_offline(data, [Removal(name, number) for number in numbers])
    output(False).note(f"Removed {name}: {', '.join(chosen)}.")


def _mechanisms(given: Sequence[str]) -> list[str]:
    chosen = [each.upper() for each in given] or list(BOTH)
    for each in chosen:
        if each not in BOTH:
            raise FencepostError(f"--mechanism is {each}; it must be one of {', '.join(BOTH)}.")
    return list(dict.fromkeys(chosen))


def _salted(password: str, mechanisms: Sequence[str], iterations: int) -> list[NewPassword]:
    import secrets

    from fencepost.base.scram import MECHANISMS, SALT_SEED_BYTES, new_password, new_salt

    def salt() -> bytes:
        return new_salt(secrets.token_bytes(SALT_SEED_BYTES))

    return [new_password(MECHANISMS[each], password, salt(), iterations) for each in mechanisms]


def _users(connection: Connection, data: str | None) -> dict[str, dict[str, int]]:
    """The iterations by user and mechanism."""
    if data is None:
        from fencepost.client.users import describe_users

        with connection.open() as cluster:
            found = cluster.run(describe_users(cluster.core))
        return {view.user: view.iterations for view in found}
    from fencepost.base.scram import BY_NUMBER
    from fencepost.base.system import SystemClock, SystemDisk
    from fencepost.broker.security.offline import users_offline, with_lock

    known = with_lock(data, lambda folder: users_offline(SystemClock(), SystemDisk(), folder))
    return {
        user: {BY_NUMBER[number].name: iterations for number, iterations in mechanisms.items()}
        for user, mechanisms in known.items()
    }


def _alter_offline(data: str, changes: Sequence[UserChange]) -> None:
    from fencepost.base.system import SystemClock, SystemDisk
    from fencepost.broker.security.offline import alter_offline, with_lock

    outcomes: list[Any] = with_lock(
        data, lambda folder: alter_offline(SystemClock(), SystemDisk(), folder, changes)
    )
    for outcome in outcomes:
        if outcome.refusal is not None:
            raise FencepostError(
                f"{outcome.user!r}: {outcome.refusal.message}. Nothing was changed."
            )
