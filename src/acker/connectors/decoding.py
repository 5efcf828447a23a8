"""`decode` of a consumer: a function of the body, or a class that describes its JSON."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import json
import types
import typing
from collections.abc import Callable
from typing import Any, Final, Literal, Union

from acker.errors import ArgumentTypeError

# What JSON has itself. An int is a float too, and True is no int.
_PLAIN: Final = (str, int, float, bool, type(None))
# Python's own classes make something else of a body than what it says, or nothing, but for these.
_READ_BODIES: Final = (bytes, bytearray, memoryview, int, float)
_OWN_MODULES: Final = ("builtins", "collections", "collections.abc", "types", "typing")


def decoder_of(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return the function that makes the value of a body.

    Parameters
    ----------
    decode : callable
        A model of pydantic, a struct of msgspec or a dataclass reads JSON. Anything else is called with the body.

    Raises
    ------
    ArgumentTypeError
        It is a type whose call does not read a body, or a field of a dataclass has a type that needs one of these
        libraries.
    """
    kind = typing.get_origin(decode) or decode
    if kind is decode and not isinstance(decode, type):
        return decode
    if hasattr(decode, "__pydantic_validator__"):  # models, and pydantic's own dataclasses
        return functools.partial(_by_pydantic, decode)
    if _is_misread(kind) or (kind is not decode and dataclasses.is_dataclass(kind)):
        name = str(decode) if kind is not decode else decode.__name__
        raise ArgumentTypeError(
            f"decode: {name} does not read a body: write bytes.decode for text, json.loads for JSON, and"
            f" msgspec.json.Decoder({name}).decode or pydantic.TypeAdapter({name}).validate_json for JSON of this type"
        )
    if hasattr(kind, "__struct_fields__"):
        msgspec_json: Any = importlib.import_module("msgspec.json")
        return typing.cast("Callable[[bytes], Any]", msgspec_json.Decoder(decode).decode)
    if dataclasses.is_dataclass(decode):
        read = _reader_of(decode, decode.__name__)
        return lambda body: read(json.loads(body), decode.__name__)
    return decode


def _is_misread(kind: Any) -> bool:
    """Return whether a call of this class makes something else of a body than what it says, or nothing."""
    if typing.is_typeddict(kind):
        return True
    if isinstance(kind, type) and issubclass(kind, tuple):
        # The `__new__` of a NamedTuple takes the whole body as the first field; a subclass may have a better one.
        maker = next(each for each in kind.__mro__ if "__new__" in vars(each))
        if "_fields" in vars(maker):
            return True
    return kind.__module__ in _OWN_MODULES and kind not in _READ_BODIES


def _by_pydantic(model: Any, body: bytes) -> Any:
    try:
        return model.__pydantic_validator__.validate_json(body)
    except ValueError as error:
        told: Any = error  # with all faults in one line, and none of their values, which may be secret
        faults = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in told.errors(include_input=False)]
        raise ValueError(f"{model.__name__}: {'; '.join(faults)}") from None


# Makes a value of what JSON has, or raises `ValueError`; the text is the place of the value.
_Reader = Callable[[Any, str], Any]


def _reader_of(kind: Any, where: str) -> _Reader:
    """Return what reads values of a type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return lambda value, _: value
    if kind in _PLAIN or kind is None:
        return functools.partial(_read_plain, kind or type(None))
    if dataclasses.is_dataclass(kind):
        return _reader_of_fields(kind, where)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return functools.partial(_read_one_of, {each.value: each for each in kind})
    if origin is Literal:
        return functools.partial(_read_one_of, {each: each for each in arguments})
    if origin in (Union, types.UnionType):
        return functools.partial(_read_any, [_reader_of(each, where) for each in arguments], str(kind))
    if (origin or kind) is list:
        return functools.partial(_read_list, _reader_of(arguments[0] if arguments else Any, where))
    if (origin or kind) is dict and (not arguments or arguments[0] is str):
        return functools.partial(_read_dict, _reader_of(arguments[1] if arguments else Any, where))
    raise ArgumentTypeError(
        f"decode: {where} is of type {kind}, which a dataclass cannot read from JSON: use a model of pydantic or a"
        " struct of msgspec, or give a function"
    )


def _reader_of_fields(kind: Any, where: str) -> _Reader:
    # Made at the first use, since a class may have fields of its own type.
    @functools.cache
    def readers() -> dict[str, tuple[_Reader, bool]]:
        hints = typing.get_type_hints(kind)
        missing = dataclasses.MISSING
        return {
            each.name: (
                _reader_of(hints[each.name], f"{kind.__name__}.{each.name}"),
                each.default is missing and each.default_factory is missing,
            )
            for each in dataclasses.fields(kind)
            if each.init
        }

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _expected("an object", value, where)
        found = {}
        for name, (reader, is_needed) in readers().items():
            if name in value:
                found[name] = reader(value[name], f"{where}.{name}")
            elif is_needed:
                raise ValueError(f"{where}.{name} is missing")
        return kind(**found)

    if where == kind.__name__:  # the outermost class: its fields are checked at once
        readers()
    return read


def _read_plain(kind: type, value: Any, where: str) -> Any:
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value)
    raise _expected("null" if kind is type(None) else kind.__name__, value, where)


def _read_one_of(values: dict[Any, Any], value: Any, where: str) -> Any:
    for known, meant in values.items():
        if type(value) is type(known) and value == known:
            return meant
    raise _expected(f"one of {', '.join(map(repr, values))}", value, where)


def _read_any(readers: list[_Reader], kind: str, value: Any, where: str) -> Any:
    faults = []
    for read in readers:
        try:
            return read(value, where)
        except ValueError as error:
            faults.append(str(error))
    # Of an object that fits none of several, the fault inside says more than its type.
    inner = [fault for fault in faults if fault.startswith((f"{where}.", f"{where}["))]
    if inner:
        raise ValueError(inner[0])
    raise _expected(kind, value, where)


def _read_list(read: _Reader, value: Any, where: str) -> Any:
    if not isinstance(value, list):
        raise _expected("an array", value, where)
    return [read(each, f"{where}[{number}]") for number, each in enumerate(value)]


def _read_dict(read: _Reader, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _expected("an object", value, where)
    return {name: read(each, f"{where}[{name!r}]") for name, each in value.items()}


def _expected(what: str, value: Any, where: str) -> ValueError:
    found = {dict: "an object", list: "an array", type(None): "null"}.get(type(value), type(value).__name__)
    return ValueError(f"{where}: expected {what}, got {found}")
