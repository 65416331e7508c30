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
OnDelivery = Callable[[int, bytes, bytes], None]
#: Called for a confirm: its number, whether it includes all numbers before, and whether the broker took the message.
OnConfirm = Callable[[int, bool, bool], None]
#: Called for a message that came back: the payload of its content header. Raises ValueError if that cannot be read.
OnReturn = Callable[[bytes], None]

_METHOD, _HEADER, _BODY, _HEARTBEAT = _KINDS = (1, 2, 3, 8)
_END = 0xCE
#: A frame is kind, channel and size, then as many bytes as the size says, then the end mark.
_unpack_frame = struct.Struct(">BHI").unpack_from
#: The bytes of a frame before its payload, and the bytes before and after the payload together.
_PREFIX_BYTES, _OVERHEAD_BYTES = 7, 8
_unpack_long = struct.Struct(">Q").unpack_from
#: Class and method, with which the payload of a method frame begins.
_DELIVER, _RETURN, _ACK, _NACK = (struct.pack(">HH", 60, method) for method in (60, 50, 80, 120))
_OPEN, _OPEN_OK, _CLOSE, _CLOSE_OK = (struct.pack(">HH", 20, method) for method in (10, 11, 40, 41))
#: After one of these methods, the channel number means another channel or no channel.
_CHANNEL_CHANGES = frozenset((_OPEN_OK, _CLOSE, _CLOSE_OK))
#: A heartbeat, and after how many seconds the driver gets one in place of the frames that were taken out. Without
#: frames the driver gives up a connection after three times `broker.heartbeat`, which is at least one second.
_HEARTBEAT_FRAME = struct.pack(">BHIB", _HEARTBEAT, 0, 0, _END)
_HEARTBEAT_INTERVAL_SECONDS = 1.0
#: The fewest bytes of a frame with a confirm, of a frame with a content header, and of Basic.Deliver from its tag on.
#: With fewer bytes, the end mark would be read as a part of a number.
_CONFIRM_BYTES, _HEADER_BYTES, _FROM_TAG_BYTES = 21, 20, 12


class IncomingFrames:
    """Splits the bytes of one connection into frames for registered channels and bytes for the driver."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._channels: dict[int, _RegisteredChannel] = {}
        #: Channels that the broker has confirmed as open.
        self.opened: set[int] = set()
        #: The beginning of a frame, and how many bytes must be there before reading it again is useful.
        self._incomplete = bytearray()
        self._needed_bytes = 0
        #: Whether bytes came that are not AMQP. From then on all bytes go to the driver, which raises its own error.
        self._is_broken = False
        self._last_bytes_at = clock()

    def register(self, channel: int, on_delivery: OnDelivery) -> None:
        """Hand over the deliveries of an open channel, from now on until the channel is closed.

        Call this before the request for the consumer: deliveries may come before the answer to that request.
        """

        def hand_over(method: bytes, header: bytes, body: bytes) -> None:
            offset = _PREFIX_BYTES + 5 + method[_PREFIX_BYTES + 4]  # after the consumer's tag
            if len(method) < offset + _FROM_TAG_BYTES:
                raise ValueError("a delivery that is too short")
            (tag,) = _unpack_long(method, offset)
            try:
                on_delivery(tag, header, body)
            except Exception:
                logger.exception("a delivery could not be taken")

        self._channels[channel] = _RegisteredChannel(_DELIVER, hand_over)

    def register_confirms(self, channel: int, on_confirm: OnConfirm, on_return: OnReturn) -> None:
        """Hand over the broker's answers to publications, from now on until the channel is closed."""
        self._channels[channel] = _RegisteredChannel(_RETURN, lambda _, header, __: on_return(header), on_confirm)

    def split(self, data: bytes) -> bytes:
        """Hand over the deliveries that are complete.

        Returns:
            The bytes for the driver: whole frames, unless the bytes are malformed.
        """
        if self._is_broken:
            return data
        if self._incomplete:
            self._incomplete += data
            if len(self._incomplete) < self._needed_bytes:
                return b""
            data = bytes(self._incomplete)
            self._incomplete.clear()
        for_driver, has_taken = self._read(data)
        if has_taken and not for_driver and self._clock() - self._last_bytes_at >= _HEARTBEAT_INTERVAL_SECONDS:
            # The broker sends no heartbeats between deliveries.
            for_driver.append(_HEARTBEAT_FRAME)
        if for_driver:
            self._last_bytes_at = self._clock()
        return b"".join(for_driver)

    def incomplete(self) -> bytes:
        """Return the beginning of a frame whose end will not come."""
        return bytes(self._incomplete)

    def _read(self, data: bytes) -> tuple[list[bytes], bool]:
        """Return the bytes for the driver, and whether any frames were taken out."""
        for_driver: list[bytes] = []
        offset = begin_for_driver = 0  # `begin_for_driver`: the beginning of frames not in `for_driver` yet
        has_taken = False
        try:
            while (found := self._frame_at(data, offset)) is not None:
                kind, number, end = found
                frame = data[offset:end]
                channel = self._channels.get(number)
                if kind == _METHOD and (method := frame[_PREFIX_BYTES : _PREFIX_BYTES + 4]) in _CHANNEL_CHANGES:
                    for_driver += (data[begin_for_driver:offset], *self._unregister(number))
                    begin_for_driver = offset
                    if method == _OPEN_OK:
                        self.opened.add(number)
                elif channel is not None and channel.take_frame(kind, frame):
                    for_driver.append(data[begin_for_driver:offset])
                    begin_for_driver, has_taken = end, True
                offset = end
        except (struct.error, IndexError, ValueError):
            # All frames that are not handed over go to the driver, with the begun messages first, and fail there.
            self._is_broken = True
            for_driver.append(data[begin_for_driver:offset])
            for number in list(self._channels):
                for_driver += self._unregister(number)
            begin_for_driver = offset
            offset = len(data)
        for_driver.append(data[begin_for_driver:offset])
        self._incomplete += data[offset:]
        return [part for part in for_driver if part], has_taken

    def _unregister(self, channel: int) -> list[bytes]:
        """End a registration; return the frames of its incomplete message."""
        forgotten = self._channels.pop(channel, None)
        return forgotten.frames if forgotten is not None else []

    def _frame_at(self, data: bytes, offset: int) -> tuple[int, int, int] | None:
        """Return kind, channel and end of a frame; None if the frame is not complete.

        Raises:
            ValueError: if the bytes are not a frame.
        """
        if offset == len(data):
            return None
        if data[offset] not in _KINDS:
            raise ValueError("another protocol")
        if len(data) - offset < _OVERHEAD_BYTES:
            self._needed_bytes = _OVERHEAD_BYTES
            return None
        kind, number, size = _unpack_frame(data, offset)
        end = offset + _OVERHEAD_BYTES + size
        if end > len(data):
            self._needed_bytes = end - offset
            return None
        if data[end - 1] != _END or (not size) != (kind == _HEARTBEAT):
            raise ValueError("not a frame")
        return kind, number, end


class _RegisteredChannel:
    """A registered channel, and the message that is arriving on it."""

    __slots__ = ("_first_method", "_missing_bytes", "_on_confirm", "_on_message", "frames")

    def __init__(
        self,
        first_method: bytes,
        on_message: Callable[[bytes, bytes, bytes], None],
        on_confirm: OnConfirm | None = None,
    ) -> None:
        """Prepare for messages.

        Args:
            first_method: the method with which a message begins.
            on_message: called with the frame of this method, the header's payload and the body. Raises struct.error,
                IndexError or ValueError if they are malformed.
            on_confirm: called for each confirm.
        """
        self._first_method = first_method
        self._on_message = on_message
        self._on_confirm = on_confirm
        #: The frames of the message that have arrived.
        self.frames: list[bytes] = []
        #: Bytes of the body that are still to come.
        self._missing_bytes = 0

    def take_frame(self, kind: int, frame: bytes) -> bool:
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
        method = frame[_PREFIX_BYTES : _PREFIX_BYTES + 4]
        if method == self._first_method:
            self.frames.append(frame)
            return True
        if self._on_confirm is None or method not in (_ACK, _NACK) or len(frame) < _CONFIRM_BYTES:
            return False
        (tag,) = _unpack_long(frame, _PREFIX_BYTES + 4)
        self._on_confirm(tag, bool(frame[_PREFIX_BYTES + 12] & 1), method == _ACK)
        return True

    def _take_next(self, kind: int, frame: bytes) -> None:
        if kind != (_HEADER if len(self.frames) == 1 else _BODY):
            raise ValueError("a frame that cannot follow")
        if kind == _HEADER:
            if len(frame) < _HEADER_BYTES:
                raise ValueError("a content header that is too short")
            (self._missing_bytes,) = _unpack_long(frame, _PREFIX_BYTES + 4)
        else:
            self._missing_bytes -= len(frame) - _OVERHEAD_BYTES
        if self._missing_bytes > 0:
            self.frames.append(frame)
            return
        method, header, *bodies = *self.frames, frame
        self._on_message(method, header[_PREFIX_BYTES:-1], b"".join([body[_PREFIX_BYTES:-1] for body in bodies]))
        self.frames = []


def opened_channels(data: bytes) -> list[int] | None:
    """Return the channels that the driver asks to open in `data`; None if `data` is not whole frames."""
    opened, offset = list[int](), 0
    if data.startswith(b"AMQP"):  # the begin of a connection
        return opened
    while offset + _OVERHEAD_BYTES <= len(data):
        kind, number, size = _unpack_frame(data, offset)
        if kind == _METHOD and data[offset + _PREFIX_BYTES : offset + _PREFIX_BYTES + 4] == _OPEN:
            opened.append(number)
        offset += _OVERHEAD_BYTES + size
    return opened if offset == len(data) and (not data or data[-1] == _END) else None
