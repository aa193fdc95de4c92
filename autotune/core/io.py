"""Files that are written whole or not at all, JSON, and dataclasses as plain data."""

import errno
import json
import math
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import IO, Any, Self, get_args, get_origin, get_type_hints

MISSING = "it is missing"


TOO_DEEP = "it is nested too deeply"


class TooDeep(ValueError):
    """JSON that is nested more deeply than Python can read."""


class Unreadable(ValueError):
    """A file that does not hold what belongs there; its text gives the reason in a few words, without content of the file."""


def parse_json(text: str | bytes) -> Any:
    """Plain data; raises ValueError for invalid JSON, and for JSON nested more deeply than Python can read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise TooDeep(TOO_DEEP) from None


def write_json(path: Path, data: Any, mode: int = 0o666) -> None:
    """Write plain data as `write_whole` does."""
    write_whole(path, f"{json.dumps(data, indent=1)}\n", mode)


def write_whole(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    r"""Write to a temporary file, then rename it: whole or not at all. Raises OSError if the disk refuses.

    content: bytes, or text, in which bytes of a path that are no UTF-8 become escapes (`\udcff`). mode: who may read and write
    it, less the umask.
    """
    content = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb", opener=partial(os.open, mode=mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def open_regular(path: Path) -> IO[bytes]:
    """Open a file for reading; raises OSError also for a FIFO, which would wait for a writer, and for a device."""
    file = open(path, "rb", opener=without_waiting)  # noqa: SIM115
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def without_waiting(path: str, flags: int) -> int:
    """Opener of a file that does not wait at a FIFO for its other end."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)


def read_text(path: Path) -> str:
    """The content of a regular file; raises OSError, or UnicodeDecodeError if it is not UTF-8."""
    with open_regular(path) as file:
        return file.read().decode()


def read_json(path: Path) -> Any:
    """The content of a JSON file; raises OSError or ValueError."""
    return parse_json(read_text(path))


def read_record(path: Path, build: Callable[[Any], Any] = lambda data: data) -> Any:
    """The result of `build` for the content of a JSON file. Raises FileNotFoundError, and Unreadable for any other fault."""
    try:
        return build(json.loads(read_text(path), parse_constant=_refuse))
    except RecursionError as error:
        raise Unreadable(TOO_DEEP) from error
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(error.strerror or "the disk refuses") from error
    except json.JSONDecodeError as error:
        raise Unreadable("it is not JSON" if path.stat().st_size else "it is empty") from error
    except UnicodeDecodeError as error:
        raise Unreadable("it is not text") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unreadable("it is incomplete, or of another version") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")  # `_plain` writes it as text, where a value may be it


def file_end(path: Path, size: int) -> bytes:
    """The last bytes of a file, at most `size`; raises OSError."""
    with open_regular(path) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        return file.read()


@dataclass(frozen=True)
class Serializable:
    """Base of frozen dataclasses that are stored as JSON objects, one key a field."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The value from the result of `to_dict`; unknown keys are ignored, missing ones have their defaults.

        Raises KeyError, TypeError or ValueError for other data.
        """
        types = cls._types()
        return cls(**{name: _typed(types[name], value) for name, value in dict(data).items() if name in types})

    @classmethod
    @cache
    def _types(cls) -> dict[str, Any]:
        hints = get_type_hints(cls)
        return {field.name: hints[field.name] for field in fields(cls)}


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no number for it
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _typed(kind: Any, value: Any) -> Any:
    """Plain data as a value of a field's type; JSON's keys are text, and NaN and infinities are written as text."""
    if get_origin(kind) is UnionType:
        kinds = [member for member in get_args(kind) if member is not NoneType]
        kind = kinds[0] if len(kinds) == 1 else Any
    if value is None or kind is Any:
        return value
    items = get_args(kind)
    if get_origin(kind) is tuple:
        each = (items[0],) * len(value) if items[-1] is Ellipsis else items
        return tuple(_typed(member, item) for member, item in zip(each, value, strict=True))
    if get_origin(kind) is Mapping:
        return {items[0](key): _typed(items[1], item) for key, item in value.items()}
    if hasattr(kind, "from_dict"):
        return kind.from_dict(value)
    if issubclass(kind, Enum) or (kind is float and isinstance(value, str)):
        return kind(value)
    if kind in _SCALARS and (not isinstance(value, _SCALARS[kind]) or (isinstance(value, bool) and kind is not bool)):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


_SCALARS: Mapping[type, tuple[type, ...]] = {int: (int,), float: (int, float), str: (str,), bool: (bool,)}
