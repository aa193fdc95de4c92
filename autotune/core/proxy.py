"""Proxy: an object that is another one to the code that uses it, apart from a few methods."""

from collections.abc import Callable
from typing import Any

SPECIAL = ("__len__", "__getitem__", "__contains__", "__iter__", "__call__")
"""Methods that Python looks up on the class: a proxy has those of its object."""


class Proxy:
    """Base of proxies: isinstance, attributes (read, set, deleted) and `SPECIAL` methods are those of the object.

    _proxied: the object, and what else the constructor was given.
    """

    _proxied: tuple[Any, ...]

    def __new__(cls, *proxied: Any) -> "Proxy":
        methods = {name: _forwarded(name) for name in SPECIAL if hasattr(proxied[0], name) and not hasattr(cls, name)}
        return object.__new__(type(cls.__name__, (cls,), methods))

    def __init__(self, *proxied: Any) -> None:
        self.__dict__["_proxied"] = proxied

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._proxied[0])

    def __reduce__(self) -> Any:
        return type(self).__mro__[1], self._proxied

    def __getattr__(self, name: str) -> Any:
        return getattr(self._proxied[0], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._proxied[0], name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._proxied[0], name)


def _forwarded(name: str) -> Callable[..., Any]:
    return lambda proxy, *args, **kwargs: getattr(proxy._proxied[0], name)(*args, **kwargs)
