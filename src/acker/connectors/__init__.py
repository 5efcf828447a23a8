"""Connectors: a broker's message is acked when everything that derives from it is done."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from acker.connectors.calls import CurrentMessage, current_message
from acker.connectors.consumer import Consumer
from acker.connectors.consumer_stats import ConsumerHealth, ConsumerStats
from acker.connectors.handles import Child, Handle, Message
from acker.connectors.open_messages import OpenMessage, OpenMessages
from acker.connectors.publisher import Outgoing, Publisher
from acker.connectors.source import Delivery, Origin, Source, SourceEvents
from acker.errors import Reject

if TYPE_CHECKING:
    from acker.connectors.dead_letter_file import DeadLetterFile
    from acker.connectors.letters import DeadLetters, Letter, LettersReport
    from acker.connectors.topologies.arrow_publish_bolt import ArrowPublishBolt
    from acker.connectors.topologies.arrow_source_spout import ArrowSourceSpout
    from acker.connectors.topologies.journaled_spout import JournaledSourceSpout
    from acker.connectors.topologies.publish_bolt import PublishBolt
    from acker.connectors.topologies.source_spout import SourceSpout

__all__ = [
    "ArrowPublishBolt",
    "ArrowSourceSpout",
    "Child",
    "Consumer",
    "ConsumerHealth",
    "ConsumerStats",
    "CurrentMessage",
    "DeadLetterFile",
    "DeadLetters",
    "Delivery",
    "Handle",
    "JournaledSourceSpout",
    "Letter",
    "LettersReport",
    "Message",
    "OpenMessage",
    "OpenMessages",
    "Origin",
    "Outgoing",
    "PublishBolt",
    "Publisher",
    "Reject",
    "Source",
    "SourceEvents",
    "SourceSpout",
    "current_message",
]

# Imported when somebody asks for them: not each consumer needs them, and those of topologies need `acker.topology`.
_BY_MODULE = {
    "ArrowPublishBolt": "topologies.arrow_publish_bolt",
    "ArrowSourceSpout": "topologies.arrow_source_spout",
    "DeadLetterFile": "dead_letter_file",
    "JournaledSourceSpout": "topologies.journaled_spout",
    "Letter": "letters",
    "DeadLetters": "letters",
    "LettersReport": "letters",
    "PublishBolt": "topologies.publish_bolt",
    "SourceSpout": "topologies.source_spout",
}


def __getattr__(name: str) -> Any:
    if name in _BY_MODULE:
        return getattr(importlib.import_module(f"acker.connectors.{_BY_MODULE[name]}"), name)
    raise AttributeError(f"module 'acker.connectors' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
