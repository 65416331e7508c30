"""Reading: what is for our consumers and publishers is taken out of what the broker sends, before the driver sees it.

The driver makes three objects, three awaits and a task of each delivery, decodes every field of it, and walks through
everything unconfirmed for a confirm. Here each is a few slices of what came from the socket. All else goes on to the
driver, byte for byte and in its order, and so does whatever is not as it should be: it fails there as it always did.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

#: Told of a delivery, while the bytes are read: its tag, the payload of its content header, and its body.
Delivered = Callable[[int, bytes, bytes], None]
#: Told of a confirm: its number, whether all before it are meant as well, and whether the broker took the message.
Confirmed = Callable[[int, bool, bool], None]
#: Told of a message that came back: the payload of its content header. Raises ValueError if that cannot be read.
Returned = Callable[[bytes], None]

_METHOD, _HEADER, _BODY, _HEARTBEAT = _KINDS = (1, 2, 3, 8)
_END = 0xCE
#: A frame is kind, channel and size, then so many bytes, then the end mark.
_frame = struct.Struct(">BHI").unpack_from
#: Bytes of a frame before its payload, and before and behind it.
_BEFORE, _AROUND = 7, 8
_long = struct.Struct(">Q").unpack_from
#: Class and method as they begin a method frame's payload.
_DELIVER, _RETURN, _ACK, _NACK = (struct.pack(">HH", 60, method) for method in (60, 50, 80, 120))
_OPEN, _OPEN_OK, _CLOSE, _CLOSE_OK = (struct.pack(">HH", 20, method) for method in (10, 11, 40, 41))
#: From here on the number stands for another channel or for none.
_ANOTHER_CHANNEL = frozenset((_OPEN_OK, _CLOSE, _CLOSE_OK))
#: A heartbeat, and the time in seconds after which the driver is given one in place of what was taken out: it gives up
#: a connection without frames, after three times `broker.heartbeat`, which is a second at least.
_LIFE = struct.pack(">BHIB", _HEARTBEAT, 0, 0, _END)
_LIFE_SECONDS = 1.0
#: The fewest bytes of a frame with a confirm or with a content header, and of Basic.Deliver from its tag on. In fewer
#: the end mark would be read as a part of a number.
_CONFIRM_BYTES, _HEADER_BYTES, _FROM_TAG_BYTES = 21, 20, 12


class IncomingFrames:
    """Splits what the broker sends on one connection into what registered channels take and the rest."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._channels: dict[int, _OwnChannel] = {}
        #: Channels that the broker said it opened.
        self.opened: set[int] = set()
        #: The beginning of a frame, and the size at which it is worth another look.
        self._rest = bytearray()
        self._wanted = 0
        #: What came is not AMQP. The driver says so in its own words, and nothing after it means what it seems to.
        self._is_broken = False
        self._showed_life = clock()

    def register(self, channel: int, delivered: Delivered) -> None:
        """From now on, hand over what is delivered on an open channel; until the channel is closed.

        Call it before the consumer is requested: deliveries may come before the answer to that.
        """

        def hand_over(method: bytes, header: bytes, body: bytes) -> None:
            at = _BEFORE + 5 + method[_BEFORE + 4]  # behind the consumer's tag
            if len(method) < at + _FROM_TAG_BYTES:
                raise ValueError("a delivery that is too short")
            (tag,) = _long(method, at)
            try:
                delivered(tag, header, body)
            except Exception:
                logger.exception("a delivery could not be taken")

        self._channels[channel] = _OwnChannel(_DELIVER, hand_over)

    def register_confirms(self, channel: int, confirmed: Confirmed, returned: Returned) -> None:
        """The same for what the broker answers to publications."""
        self._channels[channel] = _OwnChannel(_RETURN, lambda _, header, __: returned(header), confirmed)

    def split(self, data: bytes) -> bytes:
        """Hand over the deliveries that are complete.

        Returns:
            What is for the driver: whole frames, unless something is wrong with them.
        """
        if self._is_broken:
            return data
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return b""
            data = bytes(self._rest)
            self._rest.clear()
        others, were_taken = self._read(data)
        if were_taken and not others and self._clock() - self._showed_life >= _LIFE_SECONDS:
            # The broker sends no heartbeats between deliveries.
            others.append(_LIFE)
        if others:
            self._showed_life = self._clock()
        return b"".join(others)

    def incomplete(self) -> bytes:
        """The beginning of a frame whose end will not come."""
        return bytes(self._rest)

    def _read(self, data: bytes) -> tuple[list[bytes], bool]:
        """What is for the driver, and whether anything was taken out."""
        others: list[bytes] = []
        at = begin = 0  # `begin`: of the frames for the driver that are not yet in `others`
        were_taken = False
        try:
            while (found := self._frame_at(data, at)) is not None:
                kind, number, after = found
                frame = data[at:after]
                channel = self._channels.get(number)
                if kind == _METHOD and (method := frame[_BEFORE : _BEFORE + 4]) in _ANOTHER_CHANNEL:
                    others += (data[begin:at], *self._forget(number))
                    begin = at
                    if method == _OPEN_OK:
                        self.opened.add(number)
                elif channel is not None and channel.takes(kind, frame):
                    others.append(data[begin:at])
                    begin, were_taken = after, True
                at = after
        except (struct.error, IndexError, ValueError):
            # All that is not handed over goes to the driver from its first frame on, and fails there.
            self._is_broken = True
            others.append(data[begin:at])
            for number in list(self._channels):
                others += self._forget(number)
            begin = at
            at = len(data)
        others.append(data[begin:at])
        self._rest += data[at:]
        return [part for part in others if part], were_taken

    def _forget(self, channel: int) -> list[bytes]:
        """End a registration; returns the frames of a message that is not complete."""
        forgotten = self._channels.pop(channel, None)
        return forgotten.frames if forgotten is not None else []

    def _frame_at(self, data: bytes, at: int) -> tuple[int, int, int] | None:
        """Kind, channel and end of a frame; None if it is not all there.

        Raises:
            ValueError: if it is none.
        """
        if at == len(data):
            return None
        if data[at] not in _KINDS:
            raise ValueError("another protocol")
        if len(data) - at < _AROUND:
            self._wanted = _AROUND
            return None
        kind, number, size = _frame(data, at)
        after = at + _AROUND + size
        if after > len(data):
            self._wanted = after - at
            return None
        if data[after - 1] != _END or (not size) != (kind == _HEARTBEAT):
            raise ValueError("not a frame")
        return kind, number, after


class _OwnChannel:
    """A channel of ours, and the message that is just coming in on it."""

    __slots__ = ("_begins", "_confirmed", "_hand_over", "_missing", "frames")

    def __init__(
        self, begins: bytes, hand_over: Callable[[bytes, bytes, bytes], None], confirmed: Confirmed | None = None
    ) -> None:
        """Prepare for messages.

        Args:
            begins: the method that a message begins with.
            hand_over: told the frame of that method, the header's payload and the body. Raises struct.error,
                IndexError or ValueError if they are malformed.
            confirmed: told of confirms.
        """
        self._begins = begins
        self._hand_over = hand_over
        self._confirmed = confirmed
        #: What came of the message, whole frames.
        self.frames: list[bytes] = []
        #: Bytes of the body that are still to come.
        self._missing = 0

    def takes(self, kind: int, frame: bytes) -> bool:
        """Whether a frame is for us; the last one of a message hands it over.

        Raises:
            struct.error, IndexError, ValueError: if it cannot be.
        """
        if self.frames:
            self._take_next(kind, frame)
            return True
        if kind != _METHOD:
            return False  # of a message that was asked for
        method = frame[_BEFORE : _BEFORE + 4]
        if method == self._begins:
            self.frames.append(frame)
            return True
        if self._confirmed is None or method not in (_ACK, _NACK) or len(frame) < _CONFIRM_BYTES:
            return False
        (tag,) = _long(frame, _BEFORE + 4)
        self._confirmed(tag, bool(frame[_BEFORE + 12] & 1), method == _ACK)
        return True

    def _take_next(self, kind: int, frame: bytes) -> None:
        if kind != (_HEADER if len(self.frames) == 1 else _BODY):
            raise ValueError("a frame that cannot follow")
        if kind == _HEADER:
            if len(frame) < _HEADER_BYTES:
                raise ValueError("a content header that is too short")
            (self._missing,) = _long(frame, _BEFORE + 4)
        else:
            self._missing -= len(frame) - _AROUND
        if self._missing > 0:
            self.frames.append(frame)
            return
        method, header, *bodies = *self.frames, frame
        self._hand_over(method, header[_BEFORE:-1], b"".join([body[_BEFORE:-1] for body in bodies]))
        self.frames = []


def opened_channels(data: bytes) -> list[int] | None:
    """The channels that whole frames of the driver ask to be opened; None if these are no whole frames."""
    opened, at = list[int](), 0
    if data.startswith(b"AMQP"):  # how a connection begins
        return opened
    while at + _AROUND <= len(data):
        kind, number, size = _frame(data, at)
        if kind == _METHOD and data[at + _BEFORE : at + _BEFORE + 4] == _OPEN:
            opened.append(number)
        at += _AROUND + size
    return opened if at == len(data) and (not data or data[-1] == _END) else None
