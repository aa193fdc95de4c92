"""Small files of the Hugging Face hub, without long waits if it cannot be reached.

huggingface_hub retries an unreachable hub for some twenty seconds a file. Here one short request decides; if it
fails, the libraries of this process are switched to their offline mode and use the local cache.
"""

import functools
import logging
import threading
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants, errors

from autotune.core.errors import InvalidRequest

PATIENCE_S = 8.0
"""Longest wait for the hub's first answer; a resolver without a network can alone block for half a minute."""


class NotOnHub(Exception):
    """The hub, or its local cache if there is no network, has no such repository or file."""


@functools.cache
def hub_is_reachable() -> bool:
    """True if the hub answers at all; otherwise this process is offline from now on."""
    if not constants.HF_HUB_OFFLINE and _answers():
        return True
    import datasets

    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    return False


def why_not_on_hub() -> str:
    """Reason why a name was not found, as a part of a sentence."""
    return "the hub has none" if hub_is_reachable() else "the hub cannot be reached and its cache here has none"


def hub_file(repository: str, name: str) -> Path:
    """A file of a model's repository, downloaded or from the local cache.

    Raises NotOnHub if there is none, InvalidRequest if the repository is closed to this user.
    """
    offline = not hub_is_reachable()
    try:
        return Path(huggingface_hub.hf_hub_download(repository, name, local_files_only=offline))
    except errors.GatedRepoError as error:
        raise InvalidRequest(
            f"The model {repository!r} is gated on the hub.",
            "Ask for access on its page, then `hf auth login`.",
        ) from error
    except (errors.HFValidationError, errors.RepositoryNotFoundError, errors.EntryNotFoundError) as error:
        raise NotOnHub(str(error)) from error
    except Exception as error:
        if offline:
            raise NotOnHub(str(error)) from error
        raise InvalidRequest(
            f"The hub did not hand out {name} of {repository!r}: {first_line(error)}.",
            "Try again, or use a copy.",
        ) from error


def first_line(error: BaseException) -> str:
    """The message of an error's root cause, in one line without a full stop, at most 200 characters of it."""
    error = root_cause(error)
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return (text if len(text) <= 200 else f"{text[:200]}…").rstrip(".")


def root_cause(error: BaseException) -> BaseException:
    """The innermost `__cause__`."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _answers() -> bool:
    """One request, in a separate thread because looking up a host name cannot be interrupted."""
    answers: list[bool] = []

    def ask() -> None:
        # The client logs each failure as a warning; the caller reports it in one line.
        client_log = logging.getLogger("huggingface_hub.utils._http")
        level = client_log.level
        client_log.setLevel(logging.ERROR)
        try:
            huggingface_hub.get_session().head(constants.ENDPOINT, timeout=PATIENCE_S / 2)
            answers.append(True)
        except Exception:
            answers.append(False)
        finally:
            client_log.setLevel(level)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return answers == [True]
