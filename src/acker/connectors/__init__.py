"""Connectors: a broker's message is acked when everything that derives from it is done."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from acker.connectors.calls import CurrentMessage, current_message
from acker.connectors.consumer import Consumer
from acker.connectors.consumer_stats import ConsumerHealth, ConsumerStats
from acker.connectors.dead_letters import DeadLetterFile
from acker.connectors.handles import Child, Handle, Message
from acker.connectors.open_messages import OpenMessage, OpenMessages
from acker.connectors.publisher import Outgoing, Publisher
from acker.connectors.source import Delivery, Source, SourceEvents
from acker.errors import Reject

if TYPE_CHECKING:
    from acker.connectors.topologies.journaled_spout import JournaledSourceSpout
    from acker.connectors.topologies.publish_bolt import PublishBolt
    from acker.connectors.topologies.source_spout import SourceSpout

__all__ = [
    "Child",
    "Consumer",
    "ConsumerHealth",
    "ConsumerStats",
    "CurrentMessage",
    "DeadLetterFile",
    "Delivery",
    "Handle",
    "JournaledSourceSpout",
    "Message",
    "OpenMessage",
    "OpenMessages",
    "Outgoing",
    "PublishBolt",
    "Publisher",
    "Reject",
    "Source",
    "SourceEvents",
    "SourceSpout",
    "current_message",
]

# Imported when somebody asks for them, since they need `acker.topology`, which a consumer does not.
_OF_TOPOLOGIES = {
    "JournaledSourceSpout": "journaled_spout",
    "PublishBolt": "publish_bolt",
    "SourceSpout": "source_spout",
}


def __getattr__(name: str) -> Any:
    if name in _OF_TOPOLOGIES:
        return getattr(importlib.import_module(f"acker.connectors.topologies.{_OF_TOPOLOGIES[name]}"), name)
    raise AttributeError(f"module 'acker.connectors' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
