"""Find the function that a step names, call it, and take the ``Lowered`` out of what it returns (child only)."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from hloinspect.compile.child.jax_types import Compiled
from hloinspect.compile.flags import Option


class StepError(Exception):
    """The step is not one: its text is the one line that the user sees."""


def load_step(step: str, given: Collection[str] = ()) -> Callable[..., object]:
    """Return the function that ``file.py:function`` or ``package.module:function`` names. Imports the user's module.

    Raises StepError where the file, the module or the function is missing, or where the function needs arguments that
    are not ``given`` or does not take one that is; whatever the module itself raises goes through.
    """
    where, _, name = step.rpartition(":")
    module = _import_file(Path(where)) if where.endswith(".py") else _import_module(where)
    function: Any = module
    for part in name.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        raise StepError(_no_such_function(where, name, module, function))
    for argument in given:
        if not takes(function, argument):
            raise StepError(f"{step} takes no argument {argument!r}; {_taken(function)}")
    required = [name for name in _required_parameters(function) if name not in given]
    if required:
        raise StepError(
            f"{step} needs arguments ({', '.join(required)}): a step takes none; name a function that returns "
            f"jax.jit(...).lower(...)"
        )
    return function  # type: ignore[no-any-return]


def takes(function: Callable[..., object], name: str) -> bool:
    """Return whether a function can be called with a keyword argument of this name."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    named = parameters.get(name)
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    anything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return anything if named is None else named.kind in by_keyword


def _taken(function: Callable[..., object]) -> str:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = []
    return f"it takes {', '.join(names)}" if names else "it takes none"


def call_step(
    step: str, function: Callable[..., object], arguments: Mapping[str, object] | None = None
) -> tuple[jax.stages.Lowered, dict[str, Option]]:
    """Call the step, with keyword arguments if it is to have any, and lower what it returns, if it is not lowered yet.

    Returns the ``Lowered``, and the compiler options of a ``Compiled`` that the step returned instead. Raises StepError
    where that cannot be done.
    """
    value = function(**(arguments or {}))
    if (known := _compiled_from.get(id(value))) is not None:
        return known.lowered, known.options
    for unwrap in (_as_lowered, _from_tuple, _from_wrapper):
        lowered = unwrap(value)
        if lowered is not None:
            return lowered, {}
    returned = _describe_returned(value)
    raise StepError(f"{step} returned {returned}: a step returns jax.jit(...).lower(...), or (jitted, arguments...)")


def remember_lowered() -> None:
    """Remember from here on what each ``Compiled`` is compiled from: a step may return one."""
    compile_it: Callable[..., Compiled] = jax.stages.Lowered.compile

    @functools.wraps(compile_it)
    def compile_and_keep(self: jax.stages.Lowered, *args: Any, **kwargs: Any) -> Compiled:
        compiled = compile_it(self, *args, **kwargs)
        options = dict(args[0] if args else kwargs.get("compiler_options") or {})
        _compiled_from[id(compiled)] = _CompiledFrom(compiled, self, options)
        return compiled

    jax.stages.Lowered.compile = compile_and_keep  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class _CompiledFrom:
    """``compiled`` is kept so that its id is not used again."""

    compiled: Compiled
    lowered: jax.stages.Lowered
    options: dict[str, Option]


_compiled_from: dict[int, _CompiledFrom] = {}


def _import_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise StepError(f"there is no file {path}")
    sys.path.insert(0, str(path.parent))  # as `python file.py` would have it, so that its neighbours can be imported
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"step_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise StepError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look for a class's module here
    spec.loader.exec_module(module)
    return module


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise StepError(
                f"there is no module {error.name!r} (a step is file.py:function or package.module:function)"
            ) from None
        raise  # a module that the user's module imports


def _no_such_function(where: str, name: str, module: ModuleType, found: object) -> str:
    if found is not None:
        return f"{where}:{name} is {_describe(found)}, not a function"
    candidates = list(_steps_in(module))
    nearest = difflib.get_close_matches(name, candidates, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else f"; it has {', '.join(candidates)}" if candidates else ""
    return f"{where} has no function {name!r}{hint}"


def _steps_in(module: ModuleType) -> Iterator[str]:
    for name, value in vars(module).items():
        ours = inspect.isfunction(value) and value.__module__ == module.__name__
        if ours and not name.startswith("_") and not _required_parameters(value):
            yield name


def _required_parameters(function: Callable[..., object]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin: let the call say
        return []
    optional_kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in optional_kinds]


def _as_lowered(value: object) -> jax.stages.Lowered | None:
    if isinstance(value, jax.stages.Lowered):
        return value
    return value.lower() if isinstance(value, jax.stages.Traced) else None


def _from_tuple(value: object) -> jax.stages.Lowered | None:
    if not (isinstance(value, tuple) and value):
        return None
    function: Any = value[0]
    arguments, named = value[1:], dict[str, object]()
    while isinstance(function, functools.partial):
        function, arguments, named = function.func, (*function.args, *arguments), {**function.keywords, **named}
    if not callable(getattr(function, "lower", None)):
        return None
    lowered = function.lower(*arguments, **named)
    return _as_lowered(lowered) or _from_wrapper(lowered)


def _from_wrapper(value: object) -> jax.stages.Lowered | None:
    """Look one level deep for a Lowered: flax's nnx.jit and equinox's filter_jit wrap it in an object of their own."""
    if isinstance(value, jax.Array):
        return None
    names = {*getattr(value, "__dict__", {}), *(slot for cls in type(value).__mro__ for slot in _slots(cls))}
    held = [getattr(value, name, None) for name in sorted(names)]
    return next((item for item in held if isinstance(item, jax.stages.Lowered)), None)


def _slots(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _describe_returned(value: object) -> str:
    if isinstance(value, tuple) and value and inspect.isfunction(value[0]):
        return f"a tuple that begins with {value[0].__name__}, a function that is not jitted (wrap it in jax.jit)"
    return _describe(value)


def _describe(value: object) -> str:
    if value is None:
        return "None"
    cls = type(value)
    name = cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
