"""Reading: takes the frames for our consumers and publishers out of the broker's bytes, before the driver sees them.

For each delivery the driver makes three objects, three awaits and a task, and decodes every field; for each confirm it
walks through everything unconfirmed. Here each delivery or confirm is a few slices of the bytes from the socket. All
other bytes go to the driver, unchanged and in their order. Malformed bytes go there too, and fail as without this.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

#: Called for a delivery, while the bytes are read: its tag, the payload of its content header, and its body.
Delivered = Callable[[int, bytes, bytes], None]
#: Called for a confirm: its number, whether it includes all numbers before, and whether the broker took the message.
Confirmed = Callable[[int, bool, bool], None]
#: Called for a message that came back: the payload of its content header. Raises ValueError if that cannot be read.
Returned = Callable[[bytes], None]

_METHOD, _HEADER, _BODY, _HEARTBEAT = _KINDS = (1, 2, 3, 8)
_END = 0xCE
#: A frame is kind, channel and size, then as many bytes as the size says, then the end mark.
_frame = struct.Struct(">BHI").unpack_from
#: The bytes of a frame before its payload, and the bytes before and after the payload together.
_BEFORE, _AROUND = 7, 8
_long = struct.Struct(">Q").unpack_from
#: Class and method, with which the payload of a method frame begins.
_DELIVER, _RETURN, _ACK, _NACK = (struct.pack(">HH", 60, method) for method in (60, 50, 80, 120))
_OPEN, _OPEN_OK, _CLOSE, _CLOSE_OK = (struct.pack(">HH", 20, method) for method in (10, 11, 40, 41))
#: After one of these methods, the channel number means another channel or no channel.
_ANOTHER_CHANNEL = frozenset((_OPEN_OK, _CLOSE, _CLOSE_OK))
#: A heartbeat, and after how many seconds the driver gets one in place of the frames that were taken out. Without
#: frames the driver gives up a connection after three times `broker.heartbeat`, which is at least one second.
_LIFE = struct.pack(">BHIB", _HEARTBEAT, 0, 0, _END)
_LIFE_SECONDS = 1.0
#: The fewest bytes of a frame with a confirm, of a frame with a content header, and of Basic.Deliver from its tag on.
#: With fewer bytes, the end mark would be read as a part of a number.
_CONFIRM_BYTES, _HEADER_BYTES, _FROM_TAG_BYTES = 21, 20, 12


class IncomingFrames:
    """Splits the bytes of one connection into frames for registered channels and bytes for the driver."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._channels: dict[int, _OwnChannel] = {}
        #: Channels that the broker has confirmed as open.
        self.opened: set[int] = set()
        #: The beginning of a frame, and how many bytes must be there before reading it again is useful.
        self._rest = bytearray()
        self._wanted = 0
        #: Whether bytes came that are not AMQP. From then on all bytes go to the driver, which raises its own error.
        self._is_broken = False
        self._showed_life = clock()

    def register(self, channel: int, delivered: Delivered) -> None:
        """Hand over the deliveries of an open channel, from now on until the channel is closed.

        Call this before the request for the consumer: deliveries may come before the answer to that request.
        """

        def hand_over(method: bytes, header: bytes, body: bytes) -> None:
            at = _BEFORE + 5 + method[_BEFORE + 4]  # after the consumer's tag
            if len(method) < at + _FROM_TAG_BYTES:
                raise ValueError("a delivery that is too short")
            (tag,) = _long(method, at)
            try:
                delivered(tag, header, body)
            except Exception:
                logger.exception("a delivery could not be taken")

        self._channels[channel] = _OwnChannel(_DELIVER, hand_over)

    def register_confirms(self, channel: int, confirmed: Confirmed, returned: Returned) -> None:
        """Hand over the broker's answers to publications, from now on until the channel is closed."""
        self._channels[channel] = _OwnChannel(_RETURN, lambda _, header, __: returned(header), confirmed)

    def split(self, data: bytes) -> bytes:
        """Hand over the deliveries that are complete.

        Returns:
            The bytes for the driver: whole frames, unless the bytes are malformed.
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
        """Return the beginning of a frame whose end will not come."""
        return bytes(self._rest)

    def _read(self, data: bytes) -> tuple[list[bytes], bool]:
        """Return the bytes for the driver, and whether any frames were taken out."""
        others: list[bytes] = []
        at = begin = 0  # `begin`: where the frames for the driver begin that are not yet in `others`
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
            # All frames that are not handed over go to the driver, with the begun messages first, and fail there.
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
        """End a registration; return the frames of its incomplete message."""
        forgotten = self._channels.pop(channel, None)
        return forgotten.frames if forgotten is not None else []

    def _frame_at(self, data: bytes, at: int) -> tuple[int, int, int] | None:
        """Return kind, channel and end of a frame; None if the frame is not complete.

        Raises:
            ValueError: if the bytes are not a frame.
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
    """A registered channel, and the message that is arriving on it."""

    __slots__ = ("_begins", "_confirmed", "_hand_over", "_missing", "frames")

    def __init__(
        self, begins: bytes, hand_over: Callable[[bytes, bytes, bytes], None], confirmed: Confirmed | None = None
    ) -> None:
        """Prepare for messages.

        Args:
            begins: the method with which a message begins.
            hand_over: called with the frame of this method, the header's payload and the body. Raises struct.error,
                IndexError or ValueError if they are malformed.
            confirmed: called for each confirm.
        """
        self._begins = begins
        self._hand_over = hand_over
        self._confirmed = confirmed
        #: The frames of the message that have arrived.
        self.frames: list[bytes] = []
        #: Bytes of the body that are still to come.
        self._missing = 0

    def takes(self, kind: int, frame: bytes) -> bool:
        """Take a frame if it is for this channel's user; the last frame of a message hands the message over.

        Returns:
            Whether the frame was taken.

        Raises:
            struct.error, IndexError, ValueError: if the frame is malformed or may not come here.
        """
        if self.frames:
            self._take_next(kind, frame)
            return True
        if kind != _METHOD:
            return False  # a frame of a message that the driver asked for
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
    """Return the channels that the driver asks to open in `data`; None if `data` is not whole frames."""
    opened, at = list[int](), 0
    if data.startswith(b"AMQP"):  # the begin of a connection
        return opened
    while at + _AROUND <= len(data):
        kind, number, size = _frame(data, at)
        if kind == _METHOD and data[at + _BEFORE : at + _BEFORE + 4] == _OPEN:
            opened.append(number)
        at += _AROUND + size
    return opened if at == len(data) and (not data or data[-1] == _END) else None
