"""A Perfetto file as its packets, one after the other: nothing else of it is held.

Source: google/perfetto, `protos/perfetto/trace/trace.proto` and `trace_packet.proto`.
"""

from __future__ import annotations

from collections.abc import Iterator

from analyzer.trace.stream import Feed
from analyzer.trace.wire import WireError, fields, varint

_PACKET_KEY = 0x0A  # field 1 of a trace, with a length
_MOST_HELD = 64 << 20

# Fields of a packet: whose, when, what its texts are, and one of many kinds of data.
TIMESTAMP, SEQUENCE, SEQUENCE_FLAGS, STATE_CLEARED = 8, 10, 13, 41
INTERNED, TRACK_EVENT, TRACK_DESCRIPTOR = 12, 11, 60
COUNTER, RENDER_STAGE = 52, 53
CLEARED, NEEDS_STATE = 1, 2  # bits of the flags
_DEFAULTS = 59
_NUMBERS = {3, TIMESTAMP, SEQUENCE, SEQUENCE_FLAGS, STATE_CLEARED, 42, 58, 79, 87, 98}
_PROCESS_TREE = 2
_LAST_FIELD = 1999


class Packets:
    """Iterates over the packets of a file.

    Attributes:
        cut_at: Byte at which a file that ends too early has its last whole packet's end.
        damaged_at: Byte at which something stands that is no packet; what follows is not read.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.cut_at: int | None = None
        self.damaged_at: int | None = None

    def __iter__(self) -> Iterator[bytes]:
        feed = self._feed
        while feed.at < len(feed.buffer) or feed.more():
            if feed.buffer[feed.at] != _PACKET_KEY:
                self.damaged_at = feed.place()
                return
            try:
                size, start = varint(feed.buffer, feed.at + 1)
            except WireError:
                if len(feed.buffer) - feed.at < 12 and feed.more():
                    continue
                self._stop_here()
                return
            if size > _MOST_HELD:
                self.damaged_at = feed.place()
                return
            if start + size > len(feed.buffer):
                if feed.more():
                    continue
                self.cut_at = feed.place()
                return
            feed.at = start + size
            yield feed.buffer[start : start + size]

    def _stop_here(self) -> None:
        if self._feed.ended:
            self.cut_at = self._feed.place()
        else:
            self.damaged_at = self._feed.place()


def begins_with_packets(head: bytes) -> bool:
    """Return whether the first bytes of a file are Perfetto's packets.

    Other formats of protocol buffers begin with field 1 as well, so that the first packet's own
    fields are looked at: their types, and that it has one kind of data.
    """
    if not head or head[0] != _PACKET_KEY:
        return False
    try:
        size, start = varint(head, 1)
    except WireError:
        return False
    return 0 < size <= _MOST_HELD and _is_packet(head[start : start + size], size)


def _is_packet(packet: bytes, size: int) -> bool:
    data: set[int] = set()
    any_field = False
    try:
        for number, value in fields(packet):
            any_field = True
            if (number in _NUMBERS) != isinstance(value, int) or number > _LAST_FIELD:
                return False
            if isinstance(value, bytes) and number not in (INTERNED, _DEFAULTS):
                data.add(number)
                if number == _PROCESS_TREE:  # a text is none: another format has a name here
                    list(fields(value))
    except WireError:
        # Of a packet longer than the head there are the first fields.
        return any_field and len(packet) < size and len(data) <= 1
    return any_field and len(data) <= 1
