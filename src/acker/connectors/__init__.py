"""Connectors: a broker's message is acked when everything that derives from it is done."""

from acker.connectors.publisher import Outgoing, Publisher
from acker.connectors.source import Delivery, Source, SourceEvents

__all__ = ["Delivery", "Outgoing", "Publisher", "Source", "SourceEvents"]
