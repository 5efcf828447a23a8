"""`decode` as a class: models of pydantic, structs of msgspec and dataclasses, and what they say of a wrong body."""

import enum
import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import msgspec
import pydantic
import pytest
from pydantic.dataclasses import dataclass as pydantic_dataclass

from acker import ArgumentTypeError
from acker.connectors import Consumer
from acker.connectors.decoding import decoder_of
from acker.testing.connectors import MemoryBroker, MemoryPublisher, MemorySource


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Item:
    name: str
    count: int = 1
    size: Size | None = None


@dataclass
class Order:
    number: int
    items: list[Item]
    price: float = 0.0
    kind: Literal["new", "again"] = "new"
    notes: dict[str, str] = field(default_factory=dict)
    more: Any = None
    parent: "Order | None" = None
    packed: bool = field(default=False, init=False)


Content = TypeVar("Content")


@dataclass
class Box(Generic[Content]):
    content: Content


class Fields(TypedDict):
    number: int


class Pair(NamedTuple):
    first: int
    second: int = 0


class Pairs(Pair):
    pass


class OwnPair(Pair):
    def __new__(cls, body):
        return super().__new__(cls, *json.loads(body))


class ItemModel(pydantic.BaseModel):
    name: str
    count: int = 1


class OrderModel(pydantic.BaseModel):
    number: int
    items: list[ItemModel]


@pydantic_dataclass
class PydanticOrder:
    number: int
    items: list[ItemModel]


def test_a_dataclass_reads_json():
    body = {
        "number": 7,
        "items": [{"name": "lamp"}, {"name": "desk", "count": 2, "size": "l"}],
        "price": 3,
        "kind": "again",
        "notes": {"a": "b"},
        "more": [1, None],
        "parent": {"number": 6, "items": []},
        "unknown": 1,
        "packed": True,
    }
    order = decoder_of(Order)(json.dumps(body).encode())
    items = [Item("lamp"), Item("desk", 2, Size.LARGE)]
    assert order == Order(7, items, 3.0, "again", {"a": "b"}, [1, None], Order(6, []))
    assert type(order.price) is float and not order.packed


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"number": "7"}, "Order.number: expected int, got str"),
        ({"number": True}, "Order.number: expected int, got bool"),
        ({"number": 7.0}, "Order.number: expected int, got float"),
        ({"items": None}, "Order.items: expected an array, got null"),
        ({"items": [{"name": "lamp"}, {}]}, "Order.items[1].name is missing"),
        ({"items": [{"name": "lamp", "size": "m"}]}, "Order.items[0].size: expected "),
        ({"kind": "old"}, "Order.kind: expected one of 'new', 'again', got str"),
        ({"notes": {"a": 1}}, "Order.notes['a']: expected str, got int"),
        ({"notes": []}, "Order.notes: expected an object, got an array"),
        ({"parent": {"number": 1}}, "Order.parent.items is missing"),
        ({"parent": 1}, "Order.parent: expected "),
    ],
)
def test_a_dataclass_says_which_field_is_wrong(change, text):
    body = {"number": 7, "items": [], **change}
    with pytest.raises(ValueError) as caught:
        decoder_of(Order)(json.dumps(body).encode())
    assert str(caught.value).startswith(text)


def test_a_body_that_is_no_json_or_no_object_is_a_failure():
    for body in (b"{", b"[1]", b"\xff"):
        with pytest.raises(ValueError):
            decoder_of(Order)(body)


def test_a_field_that_a_dataclass_cannot_read_is_refused_at_once():
    @dataclass
    class Delivery:
        when: datetime

    with pytest.raises(ArgumentTypeError, match=r"decode: Delivery\.when is of type .*datetime.*pydantic"):
        Consumer(MemorySource(MemoryBroker()), decode=Delivery)


@pytest.mark.parametrize("model", [OrderModel, PydanticOrder])
def test_pydantic_reads_json_and_says_which_fields_are_wrong(model):
    decode = decoder_of(model)
    order = decode(b'{"number": 7, "items": [{"name": "lamp"}]}')
    assert type(order) is model and order.items == [ItemModel(name="lamp")]
    with pytest.raises(ValueError) as caught:
        decode(b'{"number": "secret", "items": [{}]}')
    text = str(caught.value)
    assert text.startswith(f"{model.__name__}: number: ") and "; items.0.name: Field required" in text
    assert "secret" not in text and "\n" not in text


def test_msgspec_reads_json_and_says_which_field_is_wrong():
    item = msgspec.defstruct("Item", [("name", str)])
    decode = decoder_of(msgspec.defstruct("Order", [("number", int), ("items", list[item])]))
    assert decode(b'{"number": 7, "items": [{"name": "lamp"}]}').items == [item("lamp")]
    with pytest.raises(ValueError, match=r"\$\.items\[1\]\.name"):
        decode(b'{"number": 7, "items": [{"name": "lamp"}, {"name": 7}]}')
    with pytest.raises(ValueError, match="number"):
        decode(b'{"items": []}')


def test_other_classes_and_functions_are_called_with_the_body():
    assert decoder_of(int)(b"7") == 7 and decoder_of(json.loads)(b"[7]") == [7]


@pytest.mark.parametrize(
    "decode",
    [
        *(str, bool, list, list[Order], tuple, dict, dict[str, int], Counter),
        *(Fields, Pair, Pairs, Any, type(None), Order | None, Box[int]),
    ],
)
def test_a_type_whose_call_does_not_read_a_body_is_refused_at_once(decode):
    name = getattr(decode, "__name__", "") if isinstance(decode, type) else str(decode)
    with pytest.raises(ArgumentTypeError) as caught:
        Consumer(MemorySource(MemoryBroker()), decode=decode)
    text = str(caught.value)
    assert text.startswith(f"decode: {name} does not read a body: write bytes.decode for text, json.loads for JSON")
    assert f"msgspec.json.Decoder({name}).decode" in text and f"pydantic.TypeAdapter({name}).validate_json" in text


def test_classes_that_take_the_body_are_called_with_it():
    class Text:
        def __init__(self, body):
            self.body = body

    assert decoder_of(Text)(b"7").body == b"7" and decoder_of(OwnPair)(b"[1, 2]") == (1, 2)
    assert [decoder_of(each)(b"7") for each in (bytes, bytearray, float)] == [b"7", b"7", 7.0]


def test_a_generic_struct_of_msgspec_is_read_with_its_arguments():
    class Parcel(msgspec.Struct, Generic[Content]):
        content: Content

    consumer = Consumer(MemorySource(MemoryBroker()), decode=Parcel[int])
    assert consumer._decode(b'{"content": 7}') == Parcel(7)


def test_a_wrong_field_is_the_reason_of_the_dead_letter():
    broker, letters, values = MemoryBroker(), MemoryPublisher(), []
    broker.publish([b'{"number": 1, "items": []}', b'{"number": "1", "items": []}'])
    consumer = Consumer(MemorySource(broker), decode=Order, dead_letters=letters)
    stats = consumer.run(lambda message: values.append(message.value), until="empty")
    (letter,) = letters.published
    assert values == [Order(1, [])] and stats.undecodable == 1 and Counter(broker.acked).total() == 2
    assert "Order.number: expected int, got str" in letter.headers["acker-reason"]
