"""Lazy imports of libraries that must not run in the host."""

import importlib
import importlib.util
import sys
import types
from collections.abc import MutableSequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

WAKES_CUDA = ("bitsandbytes", "torchao")
"""Libraries that initialise CUDA when imported; others (peft, through transformers) import them."""


def open_later(name: str) -> None:
    """Let `import name`, and of its parts, succeed without running the library's code before a child uses it."""
    spec = importlib.util.find_spec(name) if name not in sys.modules else None
    if spec is not None:
        if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _Finder())
        sys.modules[name] = _OpenedLater(name)
        sys.modules[name].__spec__, sys.modules[name].__file__ = spec, spec.origin


def forget_opened_later() -> None:
    """Let the next `import` open these libraries."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for name in [name for name, module in sys.modules.items() if isinstance(module, _OpenedLater)]:
        del sys.modules[name]


class _OpenedLater(types.ModuleType):
    """Stand-in of a library that the host imports; a child's own imports open the library."""

    __path__: MutableSequence[str] = []  # noqa: RUF012 - a package, and never filled

    def __getattr__(self, attribute: str) -> Any:
        # Some look for names like __warningregistry__ in all modules.
        if attribute.startswith("__") and attribute not in ("__version__", "__all__"):
            raise AttributeError(attribute)
        if sys.modules.get(self.__name__) is self and not attribute.startswith("__"):
            return _Later(attribute, (), {"module": self.__name__})
        opened = importlib.import_module(self.__name__)
        self.__dict__.update(opened.__dict__)
        return getattr(opened, attribute)


class _Finder(MetaPathFinder, Loader):
    """Finds the submodules of a library without opening it."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002 - importlib's signature
        inside = isinstance(sys.modules.get(fullname.rpartition(".")[0]), _OpenedLater)
        return ModuleSpec(fullname, self, is_package=True) if inside else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _OpenedLater(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Later(type):
    """Stand-in of a class or function that `from name import attribute` got in the host, fetched when it is used."""

    module: str

    def _real(cls) -> Any:
        return getattr(importlib.import_module(cls.module), cls.__name__)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._real()(*args, **kwargs)

    def __getattr__(cls, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return getattr(cls._real(), attribute)

    # Nothing is an instance of a class whose library is not open.

    def __instancecheck__(cls, instance: Any) -> bool:
        return cls._is_open() and isinstance(instance, cls._real())

    def __subclasscheck__(cls, subclass: type) -> bool:
        return cls._is_open() and issubclass(subclass, cls._real())

    def _is_open(cls) -> bool:
        return not isinstance(sys.modules.get(cls.module), (_OpenedLater, type(None)))
