"""Connectors: a broker's message is acked when everything that derives from it is done."""

from acker.connectors.bolt import PublishBolt
from acker.connectors.consumer import Consumer
from acker.connectors.dead_letters import DeadLetterFile
from acker.connectors.handles import Child, ConsumedMessage, Handle
from acker.connectors.journaled_spout import JournaledSourceSpout
from acker.connectors.open_messages import OpenMessage, OpenMessages
from acker.connectors.publisher import Outgoing, Publisher
from acker.connectors.source import Delivery, Source, SourceEvents
from acker.connectors.spout import SourceSpout

__all__ = [
    "Child",
    "ConsumedMessage",
    "Consumer",
    "DeadLetterFile",
    "Delivery",
    "Handle",
    "JournaledSourceSpout",
    "OpenMessage",
    "OpenMessages",
    "Outgoing",
    "PublishBolt",
    "Publisher",
    "Source",
    "SourceEvents",
    "SourceSpout",
]
